"""Parts of an epoch list the rows that they change, and put them back: as plain Python does it."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate as hg
from headgate.dataflow import quiet, stepping
from headgate.engine import parts
from headgate.execution import straight_run
from headgate.testing import FlowOracle, SimulatedDisk

kept = hg.Table("kept", "k bigint, v bigint DEFAULT 0", key="k", check="v < 40")
sums = hg.Table("sums", "k bigint, v bigint DEFAULT 0", key="k")
TABLES = [kept, sums]
COLUMNS = "k bigint, v bigint, x boolean"
first, second, third = (
    hg.Stream(name, COLUMNS, batch=batch)
    for name, batch in (("a", "2 rows"), ("b", None), ("c", None))
)


def put(event: hg.Event, row: hg.Row = kept.at("k", create=True)) -> Any:
    if event.v == 3:
        return hg.abort("a three")
    if event.x:
        hg.delete(row)
        return None
    row.v += event.v
    return None


def move(
    event: hg.Event,
    row: hg.Row = kept.at("v", create=True),
    total: hg.Row = sums.at("k", create=True),
) -> None:
    row.v += 1
    total.v += event.v
    if total.v > 12:
        hg.delete(total)


def flow_of(compiled: bool, window: int) -> hg.Dataflow:
    puts = hg.transaction(event=first, output=second, compiled=compiled)(put)
    moves = hg.transaction(event=second, output=third, compiled=compiled)(move)

    @hg.procedure(third.window(f"{window} rows") if window else third, writes=sums)
    def judge(batch: pa.Table, tx: hg.Tx) -> Any:
        total = sum(batch.column("k").to_pylist())
        tx.upsert(sums, [{"k": 100 + total % 3, "v": total}])
        return hg.abort("one of three") if total % 3 == 1 else None

    return hg.Dataflow("flow", [puts, moves, judge], nest=[[puts, moves, judge]])


def events(count: int, seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [
        {"k": dice.randrange(6), "v": dice.randrange(6), "x": dice.random() < 0.2}
        for _ in range(count)
    ]


PUSHES = [events(count, seed) for seed, count in enumerate((30, 4, 2, 19, 40, 7))]


def run(flow: hg.Dataflow) -> Any:
    """The tables as they are, and as they are recovered, and what was recorded."""
    disk = SimulatedDisk()
    said: Any = {"tables": TABLES, "dataflows": flow, "disk": disk}
    found = []
    with hg.open("/store", **said) as engine:
        for rows in PUSHES:
            engine.push(first, rows)
            found.append([engine.sql(f"from {one.name} order by all").rows() for one in TABLES])
        query = "select transaction, batch, outcome, reason, k, v from results order by all"
        recorded = engine.sql(query).rows()
    with hg.open("/store", **said) as engine:
        assert [engine.sql(f"from {one.name} order by all").rows() for one in TABLES] == found[-1]
        for table, rows in zip(TABLES, found[-1], strict=True):
            assert all(engine.get(table.name, k) == {"k": k, "v": v} for k, v in rows)
    return found, recorded


def judged(flow: hg.Dataflow) -> Any:
    oracle, found = FlowOracle(TABLES, flow), []
    for rows in PUSHES:
        oracle.push(first, rows)
        found.append([sorted(tuple(row.values()) for row in oracle.serial.table(one.name))
                      for one in TABLES])  # fmt: skip
    return found


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_parts_that_abort_leave_rows_as_the_oracle_has_them(compiled: bool, window: int) -> None:
    flow = flow_of(compiled, window)
    assert run(flow)[0] == judged(flow)


def test_a_window_behind_batches_without_rows_is_whole_in_its_own() -> None:
    """A nest over what another node gives, of which some batches are empty."""

    @hg.procedure(first, output=second)
    def some(batch: pa.Table, tx: hg.Tx) -> Any:
        return batch.filter(pc.greater(batch.column("v"), 2)) if batch["v"][0].as_py() else []

    moves = hg.transaction(event=second, output=third)(move)

    @hg.procedure(third.window("2 rows"), writes=sums)
    def judge(batch: pa.Table, tx: hg.Tx) -> None:
        tx.upsert(sums, [{"k": 100, "v": sum(batch.column("v").to_pylist())}])

    flow = hg.Dataflow("flow", [some, moves, judge], nest=[[moves, judge]])
    assert run(flow)[0] == judged(flow)


WAYS: dict[str, Any] = {
    "by tables that are copied": (parts.EpochParts, "run_plain", lambda *_, **__: None),
    "no batches ahead": (quiet.QuietRun, "_ahead", lambda self, more: None),
    "nothing goes on": (quiet.QuietRun, "_more", lambda self, more, staged: None),
    "nobody goes on": (stepping.Stepping, "takes_many", lambda self, unit: False),
}


@pytest.mark.parametrize("way", WAYS)
def test_shortcuts_do_what_the_long_ways_do(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(flow_of(compiled=True, window=5))
    monkeypatch.setattr(*WAYS[way])
    assert run(flow_of(compiled=True, window=5)) == found


def as_they_are(self: Any) -> Any:
    return {name: self._program.tables[name].words[slots] for name, slots in self.changed().items()}


CANARIES: dict[str, Any] = {
    "rows stay of the epoch of their part": (straight_run, "restamp", lambda *_: None),
    "rows are kept as they have become": (straight_run.StraightRun, "images", as_they_are),
    "a window is whole among the batches ahead": (
        quiet, "rows_to_fill", lambda unit, progress, staged: 1000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", CANARIES)
def test_a_seeded_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*CANARIES[bug])
    flow = flow_of(compiled=True, window=5)
    try:
        found = run(flow)[0]
    except (AssertionError, hg.HeadgateError):
        return
    assert found != judged(flow)
