"""Windows beside one another, and beside streams: when a procedure over them is called, with what.

What random flows of rows do is judged in tests/property/test_flows.py; windows of time are held
here against a computation over all rows that ever came.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import FlowOracle, SimulatedDisk
from headgate.testing.window_rows import aggregated
from tests.unit.dataflow.shows import NOON

left = hg.Stream("left_rows", "n bigint")
right = hg.Stream("right_rows", "n bigint")
sums = hg.Table("sums", "n bigint, v bigint", key="n", check="v < 1000")
FEW = {"size": "3 rows", "slide": "1 row"}


class Seen:
    """A procedure that notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[list[list[Any]]] = []

    def two(self, one: pa.Table, other: pa.Table, tx: hg.Tx) -> Any:
        self.calls.append([one.column("n").to_pylist(), other.column("n").to_pylist()])

    def aborting(self, one: pa.Table, other: pa.Table, tx: hg.Tx) -> Any:
        self.two(one, other, tx)
        return hg.abort("no") if 7 in self.calls[-1][0] else None


def numbers(*given: int) -> list[dict[str, int]]:
    return [{"n": n} for n in given]


def fed(engine: hg.Engine, *batches: tuple[list[int], list[int]]) -> None:
    for ours, theirs in batches:
        engine.push(left, numbers(*ours))
        engine.push(right, numbers(*theirs))


def test_it_is_called_when_one_slides_once_all_have_been_whole() -> None:
    seen = Seen()
    node: Any = hg.procedure(left.window(**FEW), right.window("2 rows"), name="join")(seen.two)
    with hg.open(None, dataflows=hg.Dataflow("f", [node])) as engine:
        fed(engine, ([1, 2, 3], [10]), ([4], [20, 30, 40]), ([5], [50]), ([6, 7], [60]))
    assert seen.calls == [
        [[2, 3, 4], [10, 20]],  # whole before: [1, 2, 3], when the other was not
        [[2, 3, 4], [30, 40]],
        [[3, 4, 5], [30, 40]],
        [[4, 5, 6], [50, 60]],
        [[5, 6, 7], [50, 60]],
    ]


def test_beside_a_stream_it_is_called_for_each_batch_of_that() -> None:
    seen = Seen()
    node: Any = hg.procedure(left, right.window(**FEW), name="join")(seen.two)
    drained = hg.Stream("drained", "n bigint")

    @hg.procedure(left, output=drained)
    def some(batch: pa.Table, tx: hg.Tx) -> pa.Table:
        return batch.filter(pa.compute.greater(batch.column("n"), 2))

    beside: Any = hg.procedure(drained, right.window(**FEW), name="beside")(Seen().two)
    flow = hg.Dataflow("f", [node, some, beside])
    with hg.open(None, dataflows=flow) as engine:
        fed(engine, ([1], [10, 20]), ([2], [30, 40, 50]), ([3, 4], [60]))
        counted = engine.stream(left).metrics()
    assert seen.calls == [[[1], []], [[2], [30, 40, 50]], [[3, 4], [40, 50, 60]]]
    assert (counted["join"].batches, counted["join"].rows) == (3, 10)
    assert counted["beside"].rows == 8


def test_sql_has_each_window_and_its_aggregates_by_name() -> None:
    asked = []

    @hg.procedure(
        left.window("2 rows", aggregate="sum(n) as total"),
        right.window("2 rows", aggregate="max(n) as most, count(*) as c"),
        sums_of := hg.Stream("third", "n bigint"),
    )
    def ask(one: Any, one_kept: Any, other: Any, other_kept: Any, third: Any, tx: hg.Tx) -> None:
        assert other.num_rows == other_kept.column("c").to_pylist()[0]
        asked.append(
            tx.sql(
                "select total, most, (select count(*) from left_rows) as a, "
                "(select count(*) from third) as b from left_rows_aggregates, right_rows_aggregates"
            ).to_pylist()[0]
        )

    with hg.open(None, dataflows=hg.Dataflow("f", [ask])) as engine:
        for batch in ([1, 2], [3, 4]):
            for stream in (left, right, sums_of):
                engine.push(stream, numbers(*batch))
    assert asked == [{"total": 3, "most": 2, "a": 2, "b": 2},
                     {"total": 7, "most": 4, "a": 2, "b": 2}]  # fmt: skip


def test_what_has_no_rows_yet_has_the_aggregates_of_none() -> None:
    found = []

    @hg.procedure(
        left, right.window("2 rows", aggregate="count(*) as c, count(n) as n, sum(n) as s")
    )
    def look(batch: Any, kept: pa.Table, tx: hg.Tx) -> None:
        found.append(kept.to_pylist())

    with hg.open(None, dataflows=hg.Dataflow("f", [look])) as engine:
        fed(engine, ([1], [1]), ([2], [2]))
    assert found == [[{"c": 0, "n": 0, "s": None}], [{"c": 2, "n": 2, "s": 3}]]


WRONG: list[tuple[Any, str]] = [
    (lambda: node_over(left.window("2 rows"), left), "takes one stream twice"),
    (lambda: node_over(left.window("2 rows"), left.window("3 rows")), "of another name"),
    (lambda: node_over(left.window("2 rows"), right, arity=1), r"def f\(left_rows, right_rows, tx"),
    (
        lambda: node_over(left.window("2 rows", aggregate="count(*) as c"), right, arity=4),
        r"def f\(left_rows, left_rows_aggregates, right_rows, tx\)",
    ),
    (
        lambda: node_over(
            left.window("2 rows", aggregate="count(*) as c"),
            hg.Stream("left_rows_aggregates", "n int"),
        ),
        "'left_rows_aggregates' is what its SQL calls",
    ),
]  # fmt: skip


def node_over(*takes: Any, arity: int = 2) -> Any:
    functions: Any = {1: lambda a, tx: None, 2: lambda a, b, tx: None,
                      4: lambda a, b, c, d, tx: None}  # fmt: skip
    return hg.procedure(*takes, name="f")(named(functions[arity]))


def named(function: Any) -> Any:
    function.__name__ = "f"
    return function


@pytest.mark.parametrize("wrong", range(len(WRONG)))
def test_what_cannot_be_joined_is_refused_with_what_to_do(wrong: int) -> None:
    make, told = WRONG[wrong]
    with pytest.raises(hg.DeclarationError, match=told):
        make()


def test_it_shows_its_windows() -> None:
    flow = hg.Dataflow("f", [node_over(left.window(**FEW), right)])
    assert flow.show().endswith("left_rows.window('3 rows', slide='1 row'), right_rows -> f")
    assert flow.svg().count("<path") == 2


# --- what happens to its batch --------------------------------------------------------------------


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_one_that_aborts_is_behind_as_the_oracle_has_it(recovery: Any) -> None:
    seen, disk = Seen(), SimulatedDisk()
    node: Any = hg.procedure(
        left.window(**FEW), right.window("2 rows"), writes=sums, name="join", retries=1
    )(seen.aborting)
    flow = hg.Dataflow("f", [node])
    oracle = FlowOracle([sums], flow)
    said: Any = {"tables": sums, "dataflows": flow, "recovery": recovery, "disk": disk}
    for ours, theirs in (([1, 2], [1]), ([3, 7], [2]), ([4], [3, 4, 5]), ([6], []), ([8, 9], [6])):
        seen.calls.clear()
        for judged in (True, False):
            if judged:
                oracle.push(left, numbers(*ours))
                oracle.push(right, numbers(*theirs))
                wanted = list(seen.calls)
                seen.calls.clear()
                continue
            with hg.open("/joined", **said) as engine:  # opened anew for each batch
                seen.calls.clear()  # of what weak recovery has run again
                fed(engine, (ours, theirs))
        assert seen.calls == wanted


def test_a_window_that_is_joined_goes_on_in_new_columns() -> None:
    seen, disk = Seen(), SimulatedDisk()

    def opened(stream: hg.Stream) -> hg.Engine:
        node: Any = hg.procedure(stream.window(**FEW), right.window("1 row"), name="join")(seen.two)
        return hg.open("/joined", dataflows=hg.Dataflow("f", [node]), disk=disk)

    with opened(left) as engine:
        fed(engine, ([1, 2], [1]))
    wider = hg.Stream("left_rows", "m bigint NULL, n bigint")
    with opened(wider) as engine:
        engine.push(wider, [{"n": 3, "m": 1}])
        engine.push(right, numbers(2))
    assert seen.calls == [[[1, 2, 3], [2]]]
    with pytest.raises(hg.DeclarationError, match=r"window of join \(3 rows\)"):
        opened(hg.Stream("left_rows", "m bigint NULL"))


def test_a_window_in_other_company_begins_anew() -> None:
    seen, disk = Seen(), SimulatedDisk()
    alone_calls: list[list[int]] = []

    def alone(batch: pa.Table, tx: hg.Tx) -> None:
        alone_calls.append(batch.column("n").to_pylist())

    both: Any = hg.procedure(left.window(**FEW), right.window("1 row"), name="join")(seen.two)
    one: Any = hg.procedure(left.window(**FEW), name="join")(alone)

    def opened(node: Any) -> hg.Engine:
        beside: Any = hg.procedure(right, name="other")(lambda batch, tx: None)
        return hg.open("/joined", dataflows=hg.Dataflow("f", [node, beside]), disk=disk)

    with opened(one) as engine:
        fed(engine, ([1, 2], [1]))
    with opened(both) as engine:
        fed(engine, ([3, 4], [2]), ([5], [3]))
    assert seen.calls == [[[3, 4, 5], [3]]]
    with opened(one) as engine:
        fed(engine, ([6, 7], [4]), ([8], [5]))
    assert alone_calls == [[6, 7, 8]]


# --- windows of time ------------------------------------------------------------------------------

clocked = hg.Stream("clocked", "ts timestamp, n bigint", order_by="ts")
other = hg.Stream("other", "ts timestamp, n bigint", order_by="ts")
KEPT = "count(*) as c, sum(n) as s, min(n) as low, max(ts) as newest"


def row(second: int, n: int = 0) -> dict[str, Any]:
    return {"ts": NOON + datetime.timedelta(seconds=second), "n": n}


def test_windows_of_time_have_one_clock() -> None:
    seen = Seen()
    takes = clocked.window("10 seconds"), other.window("10 seconds")
    node: Any = hg.procedure(*takes, name="join")(seen.two)
    with hg.open(None, dataflows=hg.Dataflow("f", [node])) as engine:
        for ours, theirs in [
            ([row(1, 1), row(12, 2)], [row(3, 10)]),  # the other has not come to 12:00:10
            ([row(21, 3)], [row(11, 20), row(12, 21)]),
            ([row(22, 4)], [row(55, 30)]),
            ([row(56, 5)], [row(56, 31)]),
            ([row(71, 6)], [row(72, 32)]),
        ]:
            engine.push(clocked, ours)
            engine.push(other, theirs)
    assert seen.calls == [[[1], [10]], [[2], [20, 21]], [[3, 4], []], [[5], [30, 31]]]


class Clocked:
    """What a procedure over windows of time is to be called with, from all rows that came."""

    def __init__(self, takes: list[Any]) -> None:
        self.takes = takes
        self.came: list[list[dict[str, Any]]] = [[] for _ in takes]
        self.content: list[list[dict[str, Any]] | None] = [None for _ in takes]
        self.end: list[int | None] = [None for _ in takes]

    def batch(self, given: list[list[dict[str, Any]]]) -> list[list[list[dict[str, Any]]]]:
        for place, rows in enumerate(given):
            self.came[place] += rows
            slide = self.takes[place].slide.time_us if self.is_window(place) else None
            if slide and rows and self.end[place] is None:
                self.end[place] = min(map(time_of, rows)) // slide * slide
                self.content[place] = []
        windows = [place for place in range(len(given)) if self.is_window(place)]
        calls: list[list[list[dict[str, Any]]]] = []
        if all(self.end[place] is not None for place in windows):
            clock = min(max(map(time_of, self.came[place])) for place in windows)
            ends = [self.end[place] or 0 for place in windows]
            second = 1_000_000
            for end in range(min(ends) // second * second + second, clock + 1, second):
                if any([self.passes(place, end) for place in windows]):  # all of them move on
                    calls.append(self.contents(given))
        if len(windows) < len(given):
            plain = [given[place] for place in range(len(given)) if place not in windows]
            return [self.contents(given)] if any(plain) else []
        return calls

    def is_window(self, place: int) -> bool:
        return not isinstance(self.takes[place], hg.Stream)

    def passes(self, place: int, end: int) -> bool:
        """Move a window to an end, if it is one of its own; whether it has rows then."""
        window, at = self.takes[place], self.end[place]
        if end % window.slide.time_us or at is None or end <= at:
            return False
        self.end[place] = end
        inside = [one for one in self.came[place]
                  if end - window.size.time_us <= time_of(one) < end]  # fmt: skip
        self.content[place] = sorted(inside, key=time_of)
        return bool(inside)

    def contents(self, given: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        return [(self.content[place] or []) if self.is_window(place) else rows
                for place, rows in enumerate(given)]  # fmt: skip


def time_of(one: dict[str, Any]) -> int:
    return int((one["ts"] - NOON).total_seconds()) * 1_000_000 + BEGIN


BEGIN = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_time_are_those_of_all_rows_that_came(seed: int) -> None:
    """Different sizes and slides, rows that come late, aborts that are tried again, reopenings."""
    dice = random.Random(seed)
    size = dice.choice([(6, 6), (12, 4), (9, 3)]), dice.choice([(6, 6), (8, 2), (10, 5)])
    takes: list[Any] = [
        stream.window(f"{one[0]} seconds", f"{one[1]} seconds", aggregate=KEPT)
        for stream, one in zip((clocked, other), size, strict=True)
    ]
    if seed % 3 == 2:
        place = dice.randrange(2)
        takes[place] = (clocked, other)[place]
    found: list[Any] = []
    aborting: list[int] = []  # the call that aborts next, in so many calls

    def look(*tables: pa.Table) -> Any:
        found.append([one.to_pylist() for one in tables])
        aborting[:] = [one - 1 for one in aborting]
        if aborting == [0]:
            aborting.clear()
            return hg.abort("again")
        return None

    kept = sum(not isinstance(one, hg.Stream) for one in takes)
    functions: Any = {1: lambda a, b, c, tx: look(a, b, c),
                      2: lambda a, b, c, d, tx: look(a, b, c, d)}  # fmt: skip
    node: Any = hg.procedure(*takes, name="join", retries=1, writes=sums)(functions[kept])
    wanted, disk, second, called = Clocked(takes), SimulatedDisk(), 0, 0
    recovery = ("strong", "weak")[seed % 2]
    flow = hg.Dataflow("f", [node], workers=hg.Workers(2) if seed % 4 == 0 else None)
    said: Any = {"tables": sums, "dataflows": flow, "disk": disk, "recovery": recovery}
    engine = hg.open("/clocked", **said)
    for _ in range(25):
        batches = []
        for _ in takes:
            rows = [row(second + dice.choice([0, 0, 1, 3, 7, -5]), dice.randrange(99))
                    for _ in range(dice.randrange(1, 4))]  # fmt: skip
            batches.append(sorted(rows, key=time_of))
        second += dice.choice([0, 1, 2, 5, 40])
        found.clear()
        aborting[:] = dice.choice([[], [1], [2]])
        engine.push(clocked, batches[0])
        engine.push(other, batches[1])
        expected = [[*_arguments(takes, call)] for call in wanted.batch(batches)]
        # Of a batch that was tried again the last try stands.
        assert found[len(found) - len(expected) :] == expected
        called += len(expected)
        if dice.random() < 0.2:
            engine.close()
            engine = hg.open("/clocked", **said)
    engine.close()
    assert called > 5


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_rows_that_a_nest_did_not_give_are_in_no_content_and_the_clock_goes_on(
    recovery: Any,
) -> None:
    seen, disk = Seen(), SimulatedDisk()
    passed = hg.Stream("passed", "ts timestamp, n bigint", order_by="ts")

    @hg.procedure(clocked, output=passed)
    def give(batch: pa.Table, tx: hg.Tx) -> pa.Table:
        return batch

    def join(one: pa.Table, two: pa.Table, tx: hg.Tx) -> Any:
        seen.two(one, two, tx)
        return hg.abort("no") if 200 in seen.calls[-1][0] else None

    takes = passed.window("10 seconds"), clocked.window("10 seconds")
    over: Any = hg.procedure(*takes, name="join")(join)
    flow = hg.Dataflow("f", [give, over], nest=[[give, over]])
    engine = hg.open("/nest", dataflows=flow, recovery=recovery, disk=disk)
    for second, n in [(1, 5), (2, 200), (11, 7), (12, 8), (22, 9), (31, 1)]:
        engine.push(clocked, [row(second, n)])
        disk = disk.after_kill()
        engine = hg.open("/nest", dataflows=flow, recovery=recovery, disk=disk)
    engine.close()
    # 7 was given in the nest that aborted, and came to the other window all the same.
    distinct = [one for place, one in enumerate(seen.calls) if one not in seen.calls[:place]]
    assert distinct == [[[5, 200], [5, 200]], [[8], [7, 8]], [[9], [9]]]


def _arguments(takes: list[Any], call: list[list[dict[str, Any]]]) -> Iterator[Any]:
    for taken, rows in zip(takes, call, strict=True):
        yield rows
        if not isinstance(taken, hg.Stream):
            yield aggregated(taken.aggregates, rows).to_pylist()
