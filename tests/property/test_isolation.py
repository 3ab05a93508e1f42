"""Each level of isolation, kept by locks and by timestamps, on real threads.

What the transactions read and wrote is recorded while they run; the history checker then looks for
what the level does not admit. From PL3 on the results must be those of the oracle in the order that
they report; at PL4 that order is the event order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.kernels import protocols
from headgate.testing import History, SerialOracle, difference, results_difference
from tests.property.seeding import plant

pytestmark = pytest.mark.timeout(900)  # on a busy machine compiling takes long

accounts = hg.Table("accounts", "id bigint, balance bigint, n bigint", key="id", check="n < 400")
totals = hg.Table("totals", "region int, sum bigint", key="region")
REGIONS = 3


@hg.transaction(
    event="ts bigint, src bigint, dst bigint, seen bigint, other int, region int, amount bigint, "
    "z bigint, spin bigint, ids array<bigint>"
)
def move(
    event,
    src=accounts.at("src"),
    dst=accounts.at("dst", create=True),
    seen=accounts.at("seen", mode="read"),
    other=totals.at("other", mode="read"),
    region=totals.at("region", create=True),
    rows=accounts.each("ids"),
    out=hg.output("left bigint, saw bigint"),
):
    work = event.amount
    region.sum += 1
    src.balance -= event.amount
    for step in range(event.spin):
        work = (work * 31 + step) % 1000003
    if src.balance < 0:
        return hg.abort("insufficient funds")
    dst.balance += event.amount
    for row in rows:
        row.n += 1
    region.sum += other.sum % 7 + work % 3
    if event.z == 7:
        hg.delete(dst)
    out.left = src.balance + 100 // event.z
    out.saw = seen.balance


PROTOCOLS = ("lock", "timestamp")
LEVELS = ("PL1", "PL2", "PL3", "PL4")


def make_events(seed: int, keys: int, count: int, spin: int = 50, errors: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    z = random.integers(1, 9, count)
    z[:errors] = 0
    lists = [random.integers(0, keys, size).tolist() for size in random.integers(0, 4, count)]
    return pa.table(
        {
            "ts": random.permutation(count),
            "src": random.integers(0, keys, count),
            "dst": random.integers(0, keys + 3, count),
            "seen": random.integers(0, keys, count),
            "other": random.integers(0, REGIONS, count).astype(np.int32),
            "region": random.integers(0, REGIONS, count).astype(np.int32),
            "amount": random.integers(0, 30, count),
            "z": z,
            "spin": np.full(count, spin),
            "ids": pa.array(lists, pa.list_(pa.int64())),
        }
    )


def opened(keys: int) -> tuple[hg.Engine, SerialOracle]:
    engine = hg.open(None, tables=[accounts, totals], transactions=[move])
    oracle = SerialOracle([accounts, totals], [move])
    for target in (engine, oracle):
        target.load(accounts, [{"id": key, "balance": 100, "n": 0} for key in range(keys)])
        target.load(totals, [{"region": region, "sum": 0} for region in range(REGIONS)])
    return engine, oracle


def in_reported_order(events: pa.Table, results: pa.Table) -> list[dict[str, Any]]:
    by_time = {event["ts"]: event for event in events.to_pylist()}
    return [by_time[ts] for ts in results.column("ts").to_pylist()]


def without_time(results: Any) -> list[dict[str, Any]]:
    rows = results.to_pylist() if isinstance(results, pa.Table) else results
    return [{name: value for name, value in row.items() if name != "ts"} for row in rows]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("level", ["PL3", "PL4"])
@pytest.mark.parametrize("scheme", PROTOCOLS)
def test_the_results_are_those_of_the_oracle_in_the_order_they_report(
    scheme: str, level: str, threads: int
) -> None:
    for keys in (4, 40):
        engine, oracle = opened(keys)
        for seed in range(3):
            events, record = make_events(seed, keys, 300), []
            found = engine.run(
                move, events, order_by="ts", scheme=scheme, threads=threads, isolation=level,
                record=record,
            )  # fmt: skip
            expected = oracle.run(move, in_reported_order(events, found))
            assert results_difference(without_time(found), without_time(expected)) is None
            assert difference(engine, oracle) is None
            assert History.observed(record[0]).violations(level) == []
            if level == "PL4":
                assert found.column("ts").to_pylist() == list(range(300))
        engine.close()


@pytest.mark.parametrize("scheme", PROTOCOLS)
def test_the_strongest_level_reports_the_order_of_the_events(scheme: str) -> None:
    """Though of two that share no row either may end first, and here most share none."""
    engine, _ = opened(2000)
    for seed in range(3):
        events = make_events(seed, 2000, 5000)
        found = engine.run(move, events, order_by="ts", scheme=scheme, threads=4, isolation="PL4")
        assert found.column("ts").to_pylist() == list(range(5000))
    engine.close()


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("level", ["PL1", "PL2"])
@pytest.mark.parametrize("scheme", PROTOCOLS)
def test_the_weaker_levels_keep_transactions_whole_and_admit_no_more_than_they_may(
    scheme: str, level: str, threads: int
) -> None:
    engine, _ = opened(5)
    outcomes: set[str] = set()
    for seed in range(4):
        events, record = make_events(seed, 5, 300), []
        before = engine.sql("select sum(balance) from accounts").rows()[0][0]
        found = engine.run(
            move, events, order_by="ts", scheme=scheme, threads=threads, isolation=level,
            record=record,
        )  # fmt: skip
        assert sorted(found.column("ts").to_pylist()) == list(range(300))
        assert found.column("position").to_pylist() == list(range(300))
        assert History.observed(record[0]).violations(level) == []
        assert engine.sql("select count(*) from accounts where n >= 400").rows() == [(0,)]
        outcomes.update(found.column("outcome").to_pylist())
        after = engine.sql("select sum(balance) from accounts").rows()[0][0]
        assert after <= before  # money only leaves with deleted rows
    engine.close()
    assert "committed" in outcomes  # in some batch: the one before may have deleted every row


def test_an_error_in_a_batch_has_it_run_in_event_order() -> None:
    for scheme in PROTOCOLS:
        engine, oracle = opened(5)
        events = make_events(1, 5, 200, errors=60)
        found = engine.run(move, events, order_by="ts", scheme=scheme, isolation="PL3", threads=2)
        expected = oracle.run(move, events.to_pylist(), order_by="ts")
        assert results_difference(found, expected) is None
        assert difference(engine, oracle) is None
        assert "error: ZeroDivisionError: division by zero" in found.column("reason").to_pylist()


# --- what the weaker levels do show ---------------------------------------------------------------

cells = hg.Table("cells", "id bigint, value bigint", key="id")


@hg.transaction(
    event="ts bigint, one bigint, two bigint, low bigint, high bigint, fail boolean, spin bigint"
)
def touch(
    event,
    one=cells.at("one"),
    two=cells.at("two"),
    low=cells.at("low", mode="read"),
    high=cells.at("high", mode="read"),
):
    one.value += 1 + low.value % 2
    two.value += 1 + high.value % 2
    work = event.ts
    for step in range(event.spin):
        work = (work * 31 + step) % 1000003
    one.value += work % 2
    if event.fail:
        return hg.abort("changed my mind")


# one, two (written), low, high (read), fail, spin. Rows are locked in the order of their numbers.
SKEW = [(0, 0, 1, 1, False, 20_000), (1, 1, 0, 0, False, 20_000)]
DIRTY = [(0, 0, 2, 2, True, 20_000), (1, 1, 0, 0, False, 2_000)]
# The second reads row 0, waits for row 3, which the first has long, and then reads row 5; meanwhile
# the third has written both.
WAITING = [(3, 3, 3, 3, False, 20_000), (3, 3, 0, 5, False, 10), (0, 5, 0, 5, False, 10)]


def kinds_seen(
    pattern: list[Any], scheme: str, level: str, batches: int, until: set[str]
) -> set[str]:
    """The anomalies of so many batches at most, until one of those that are looked for is seen."""
    seen: set[str] = set()
    rows = [pattern[place % len(pattern)] for place in range(150)]
    names = ("one", "two", "low", "high", "fail", "spin")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    events = pa.table({"ts": range(len(rows)), **columns})
    with hg.open(None, tables=[cells], transactions=[touch]) as engine:
        engine.load(cells, [{"id": key, "value": 0} for key in range(6)])
        for _ in range(batches):
            record: list[Any] = []
            engine.run(
                touch, events, order_by="ts", scheme=scheme, threads=4, isolation=level,
                record=record,
            )  # fmt: skip
            seen |= {anomaly.kind for anomaly in History.observed(record[0]).anomalies()}
            if seen & until:
                break
    return seen


@pytest.mark.parametrize(("scheme", "pattern"), [("lock", WAITING), ("timestamp", SKEW)])
def test_read_committed_shows_overwritten_reads_and_no_dirty_ones(
    scheme: str, pattern: list[Any]
) -> None:
    seen = kinds_seen(pattern, scheme, "PL2", 300, {"G2"})
    assert "G2" in seen
    assert not seen & {"G0", "G1a", "G1b", "G1c"}


def test_read_uncommitted_shows_a_dirty_read() -> None:
    seen = kinds_seen(DIRTY, "lock", "PL1", 300, {"G1a"})
    assert "G1a" in seen
    assert "G0" not in seen


@pytest.mark.parametrize("scheme", PROTOCOLS)
def test_serializable_shows_neither_where_the_weaker_ones_do(scheme: str) -> None:
    for pattern in (SKEW, DIRTY, WAITING):
        assert kinds_seen(pattern, scheme, "PL3", 5, set()) <= {"order"}
        assert kinds_seen(pattern, scheme, "PL4", 2, set()) == set()


# --- what is recorded is what was read ------------------------------------------------------------

marks = hg.Table("marks", "id bigint, writer bigint", key="id")


@hg.transaction(event="ts bigint, mine bigint, other bigint, fail boolean")
def sign(
    event,
    mine=marks.at("mine"),
    other=marks.at("other", mode="read"),
    out=hg.output("mine_by bigint, other_by bigint"),
):
    out.mine_by = mine.writer
    out.other_by = other.writer
    mine.writer = event.ts
    if event.fail:
        return hg.abort("changed my mind")


@pytest.mark.parametrize("level", ["PL2", "PL3", "PL4"])
@pytest.mark.parametrize("scheme", PROTOCOLS)
def test_the_versions_that_are_recorded_are_those_that_the_functions_saw(
    scheme: str, level: str
) -> None:
    random, count = np.random.default_rng(7), 2000
    columns = {"ts": np.arange(count), "fail": random.random(count) < 0.2}
    columns |= {name: random.integers(0, 4, count) for name in ("mine", "other")}
    record: list[Any] = []
    with hg.open(None, tables=[marks], transactions=[sign]) as engine:
        engine.load(marks, [{"id": key, "writer": -1} for key in range(4)])
        found = engine.run(
            sign, pa.table(columns), order_by="ts", scheme=scheme, threads=4, isolation=level,
            record=record,
        )  # fmt: skip
    seen = {row["ts"]: row for row in found.to_pylist() if row["outcome"] == "committed"}
    history = History.observed(record[0])
    for ts, row in seen.items():
        recorded = {read.item[1]: read.writer for read in history.transactions[ts].reads}
        mine, other = int(columns["mine"][ts]), int(columns["other"][ts])
        assert recorded[mine] == (row["mine_by"] if row["mine_by"] >= 0 else None)
        assert recorded[other] == (row["other_by"] if row["other_by"] >= 0 else None)


# --- canaries -------------------------------------------------------------------------------------


Seed = Callable[[pytest.MonkeyPatch], None]


def in_kernel(*bugs: tuple[str, str, str]) -> Seed:
    """Functions of the protocols with another text: name, old, new."""

    def seed(patch: pytest.MonkeyPatch) -> None:
        for bug in bugs:
            plant(patch, protocols, *bug)

    return seed


CANARIES = {
    "reads are not validated": (
        "timestamp",
        in_kernel(("draw", "is_needed = level >= 3 or", "is_needed = level >= 5 or")),
    ),
    "reads are not locked": (
        "lock",
        in_kernel(
            ("lock_rows", "if write or level >= 2", "if write or level >= 12"),
            ("unlock_rows", "if write or level >= 3", "if write or level >= 13"),
        ),
    ),
}


@pytest.mark.parametrize("name", CANARIES)
def test_a_seeded_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, seed = CANARIES[name]
    seed(monkeypatch)
    assert "G2" in kinds_seen(SKEW, scheme, "PL3", 300, {"G2"})
