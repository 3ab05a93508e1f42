"""Shares: who waits for whom is enough for the serial order, whatever is in the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.execution.shared_batch import SharedBatch
from headgate.isolation.levels import Executor
from headgate.kernels import shares
from headgate.kernels.shares import RUN_EVENTS, SECTION_EVENTS, linked, share_events, share_of
from headgate.parallel import whole_transactions
from headgate.parallel.decision import Thresholds
from headgate.parallel.scheduler import Scheduler
from tests.property.seeding import plant

jars = hg.Table("jars", "id bigint, n bigint", key="id", check="n < 1000000")
KEYS = 50


@hg.transaction(event="ts bigint, a bigint, b bigint, seen array<bigint>, z bigint")
def pour(event, a=jars.at("a"), b=jars.at("b"), rows=jars.each("seen", mode="read")):
    for row in rows:
        b.n += row.n % 7
    a.n -= 1
    b.n += 10 // event.z


def make_events(count: int, errors: int = 0, seed: int = 3) -> pa.Table:
    random = np.random.default_rng(seed)
    z = np.ones(count, np.int64)
    z[:errors] = 0
    lists = [random.integers(0, KEYS, size).tolist() for size in random.integers(0, 3, count)]
    columns: dict[str, Any] = {name: random.integers(0, KEYS, count) for name in "ab"}
    return pa.table(columns | {"ts": np.arange(count), "seen": lists, "z": random.permutation(z)})


def poured(events: pa.Table, **options: Any) -> tuple[pa.Table, pa.Table, list[str]]:
    """Results, rows and decisions of two batches."""
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        engine.load(jars, [{"id": number, "n": 5} for number in range(KEYS)])
        results = [engine.run(pour, events, order_by="ts", **options) for _ in range(2)]
        rows = engine.sql("select * from jars order by id").arrow()
        return pa.concat_tables(results), rows, [one.why for one in engine.decisions()]


# ---------------------------------------------------------------- links

OPERATIONS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)), max_size=30)


@given(OPERATIONS, st.integers(0, 4))
def test_an_operation_waits_for_all_that_must_be_over(
    given: list[tuple[int, bool, int]], stale: int
) -> None:
    """Given as (row, whether it writes, how many blocks later than the one before)."""
    base = 10
    last = {row: (base - 1 - stale << 32) | (base - 1) for row in range(3)}  # of an older batch
    over: dict[int, set[int]] = defaultdict(set)  # by block: those that are over when it is
    done: list[tuple[int, int, bool]] = []
    block = base
    for row, write, later in given:
        block += later
        link, last[row] = linked(last[row], block, int(write), base)
        waits = range(base, -link) if link < 0 else range(link - 1, link) if link else range(0)
        for before in waits:
            assert base <= before < block  # so nobody waits for ever
            over[block] |= {before} | over[before]
        needed = {old for old, at, wrote in done if at == row and (wrote or write)}
        assert needed <= over[block] | {block}
        done.append((block, row, write))


def test_every_row_is_of_one_share_and_shares_are_even() -> None:
    for threads in (1, 2, 3, 16):
        found = np.bincount([share_of(row, threads) for row in range(8000)], minlength=threads)
        assert len(found) == threads
        assert found.min() > 0.7 * found.mean()


def test_there_is_room_for_the_longest_share() -> None:
    random = np.random.default_rng(1)
    count, threads = SECTION_EVENTS + 5 * RUN_EVENTS + 3, 3
    lengths, order = random.integers(0, 9, count), random.permutation(count)
    none: Any = None  # it is not asked for
    batch = SharedBatch(none, none, count, [], [], none, 0, 2, [lengths], order)
    named = (2 + lengths)[order]
    most = 0
    for first, last in pairwise((0, SECTION_EVENTS, count)):
        size = share_events(last - first, threads)
        most = max(most, *(named[p : min(p + size, last)].sum() for p in range(first, last, size)))
    assert whole_transactions.share_room(batch, threads) == most


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [1, RUN_EVENTS, 3 * RUN_EVENTS + 5, 2 * SECTION_EVENTS + 7])
def test_batches_of_any_length_give_the_bytes_of_the_serial_loop(count: int, threads: int) -> None:
    events = make_events(count)
    assert (
        poured(events, scheme="shares", threads=threads)[:2] == poured(events, scheme="serial")[:2]
    )


def test_a_function_that_raises_has_the_batch_put_back_and_run_serially() -> None:
    events = make_events(500, errors=3)
    *found, decisions = poured(events, scheme="shares", threads=2)
    assert found == list(poured(events, scheme="serial")[:2])
    assert any("could not finish" in why for why in decisions)
    reasons = found[0]["reason"].drop_null().unique().to_pylist()
    assert reasons == ["error: ZeroDivisionError: division by zero"]


def test_events_that_name_too_many_rows_run_serially(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_transactions, "PLAN_WORDS_MAX", 100)
    events = make_events(500)
    *found, decisions = poured(events, scheme="shares", threads=2)
    assert found == list(poured(events, scheme="serial")[:2])
    assert all("name too many rows" in why for why in decisions)
    assert len(decisions) == 2


def test_threads_that_count_their_time_say_what_planning_took() -> None:
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        engine.load(jars, [{"id": number, "n": 5} for number in range(KEYS)])
        events = make_events(500)
        engine.run(pour, events, order_by="ts", scheme="shares", threads=2)
        (executor,) = engine._executors.values()
        executor.scheduler.is_timed = True
        engine.run(pour, events, order_by="ts", scheme="shares", threads=2)
        breakdown = executor.scheduler.breakdown
    assert breakdown is not None
    assert breakdown["construct"] > 0
    assert breakdown["useful"] > 0


def test_blocks_are_counted_from_the_start_again_before_their_numbers_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_transactions, "BLOCKS_MAX", 20)
    events = make_events(12 * RUN_EVENTS)
    found = poured(events, scheme="shares", threads=2)
    assert found[:2] == poured(events, scheme="serial")[:2]


def test_forgotten_links_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: blocks taken from the last one on, and nobody waits."""
    last_first = "block = -(-last // RUN_EVENTS) - 1 - add(sync, NEXT, 1)"
    plant(monkeypatch, shares, "next_block", "block = low + add(sync, NEXT, 1)", last_first)
    plant(monkeypatch, shares, "run_events", "abs(get(links, k)) > low", "False")
    events = make_events(3 * RUN_EVENTS)
    found = poured(events, scheme="shares", threads=1)
    assert found[:2] != poured(events, scheme="serial")[:2]


# ---------------------------------------------------------------- the model


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """As if threads cost nothing; gives the schemes that were run as they were chosen."""
    chosen: list[str] = []
    share = Scheduler.share

    def noting(self: Scheduler, batch: Any, scheme: Any) -> bool:
        chosen.append(str(scheme))
        return share(self, batch, scheme)

    free = Thresholds(share_ns_per_operation=0.0, share_start_ns=0.0, thread_ns=0.0, barrier_ns=0.0)
    monkeypatch.setattr(Scheduler, "costs", free)
    monkeypatch.setattr(Scheduler, "share", noting)
    yield chosen


def test_the_model_has_a_plain_batch_shared_where_that_pays(cheap: list[str]) -> None:
    events = make_events(500)
    found = poured(events, threads=4)
    assert found[:2] == poured(events, scheme="serial")[:2]
    assert cheap == ["shares"]  # the second: the first one showed what a transaction costs
    assert "too cheap for a graph" in found[2][-1]


def test_the_model_has_any_other_batch_shared_as_well(cheap: list[str]) -> None:
    events = make_events(500).slice(0).take(np.random.default_rng(1).permutation(500))
    assert poured(events, threads=4)[:2] == poured(events, scheme="serial")[:2]
    assert cheap == ["shares"]


def test_what_took_too_long_is_not_shared_again(
    cheap: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        engine.load(jars, [{"id": number, "n": 5} for number in range(KEYS)])
        engine.run(pour, make_events(500), order_by="ts", threads=4)
        (executor,) = engine._executors.values()
        assert isinstance(executor, Executor)
        executor.scheduler.attempts.ran(1e9)
        engine.run(pour, make_events(500), order_by="ts", threads=4)
    assert cheap == []
