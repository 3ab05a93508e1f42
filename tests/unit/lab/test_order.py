"""What the simulation replays is what runs: tasks are begun in the order in which kernels do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.execution.program import Program
from headgate.execution.run import Run, Work
from headgate.kernels import in_place
from headgate.kernels.atomics import UNDONE
from headgate.kernels.explorations import CHUNKS_PER_THREAD
from headgate.lab.simulation import PlannedBatch, order_taken, plan_batch
from headgate.parallel.decision import Thresholds
from headgate.parallel.scheduler import Scheduler
from headgate.parallel.scheme import make_scheme
from headgate.parallel.whole_transactions import TransactionBatch
from headgate.state.columns import StoredColumn
from tests.property.seeding import plant

jars = hg.Table("jars", "id bigint, n bigint", key="id")
COUNT = 600


@hg.transaction(event="ts bigint, a bigint, b bigint")
def pour(event, a=jars.at("a"), b=jars.at("b")):
    a.n -= 1
    b.n += 1


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels write down which position they run, instead of its outcome."""
    noted = f"put(fixed(frame, REASON), add(fixed(frame, SYNC), {UNDONE}, 1), i)"
    plant(monkeypatch, in_place, "attempt", "put(fixed(frame, REASON), i, code)", noted)


def begun_by(name: str, threads: int) -> tuple[list[int], PlannedBatch]:
    """The positions of a batch as the kernel of a scheme begins them, and the batch."""
    random = np.random.default_rng(5)
    keys = random.integers(0, 150, (2, COUNT))
    events = pa.table({"ts": np.arange(COUNT), "a": keys[0], "b": keys[1]})
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        engine.load(jars, [{"id": number, "n": 5} for number in range(150)])
        graph = engine.explain(pour, events, order_by="ts").graph
        (executor,) = engine._executors.values()
        run = a_run(executor.program, keys)
        batch = TransactionBatch(Scheduler(executor.program), run, make_scheme(name, threads))
        batch.crew().work(batch.scheduler.readiness.transaction_kernels[name])
        return run.reason.tolist(), plan_batch(graph, 1000.0)


def a_run(program: Program, keys: np.ndarray) -> Run:
    order: Any = np.arange(COUNT)
    columns = dict(zip("ab", keys.astype(np.int64), strict=True))
    works = [a_work(program, columns)]
    program.resolve(works)
    return Run(program, works, order, np.zeros(COUNT, np.int64), 7)


def a_work(program: Program, columns: dict[str, np.ndarray]) -> Any:
    stored = {name: StoredColumn(np.ascontiguousarray(one)) for name, one in columns.items()}
    stored["ts"] = StoredColumn(np.arange(COUNT))
    return Work(program.signatures[0], stored, np.zeros(COUNT, np.uint8))


@pytest.mark.parametrize("name", ["strata", "depth", "ready"])
def test_one_thread_begins_tasks_as_the_simulation_says(name: str, noting: None) -> None:
    begun, batch = begun_by(name, 1)
    _, order = order_taken(batch, name, 1, Thresholds())
    assert begun == order.tolist()


def test_two_threads_take_a_stratum_in_the_pieces_that_the_simulation_has(noting: None) -> None:
    begun, batch = begun_by("strata", 2)
    starts = batch.graph.strata_starts.tolist()
    _, order = order_taken(batch, "strata", 2, Thresholds())
    assert max(np.diff(starts)) > 2 * CHUNKS_PER_THREAD  # else a piece is one task
    for first, last in pairwise(starts):
        assert sorted(begun[first:last]) == sorted(order[first:last].tolist())
