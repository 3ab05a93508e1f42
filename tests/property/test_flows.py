"""Dataflows: random graphs, batches, aborts, calls, crashes; judged by an oracle of one thread.

The engine is on a simulated disk. A crash loses the power at some call of it, in the middle of a
push; the push is sent again, as Spark does, and nothing must be lost or done twice. The order of
all executions is held to the definition of a correct schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.dataflow import recording, running, stepping, under_way, writes
from headgate.dataflow.groups import Groups
from headgate.dataflow.kept_windows import KeptWindow
from headgate.dataflow.policies import POLICIES
from headgate.dataflow.runs import BatchRun
from headgate.kernels import window_groups
from headgate.testing import (
    Executed,
    FlowOracle,
    SimulatedClock,
    SimulatedCrash,
    SimulatedDisk,
    Survival,
    schedule_faults,
)

PATH = "/flows"
ROWS = "k int, v bigint"
totals = hg.Table("totals", "k int, total bigint DEFAULT 0", key="k", check="total < 90")
marks = hg.Table("marks", "k int, v bigint", key=("k", "v"))
TABLES = [totals, marks]


def sums_of(batch: pa.Table) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in batch.to_pylist():
        found[row["k"]] = found.get(row["k"], 0) + row["v"]
    return found


def passed_on(batch: pa.Table) -> list[dict[str, Any]]:
    return [{"k": row["k"], "v": row["v"] + 1} for row in batch.to_pylist() if row["v"] % 3]


def upserting(batch: pa.Table, tx: hg.Tx) -> Any:
    tx.upsert(totals, [{"k": k, "total": v} for k, v in sums_of(batch).items()])
    if any(row["v"] % 11 == 7 for row in batch.to_pylist()):
        return hg.abort("a seven")
    return passed_on(batch)


def inserting(batch: pa.Table, tx: hg.Tx) -> Any:
    rows = [{"k": row["k"], "v": row["v"]} for row in batch.to_pylist() if row["v"] % 4]
    tx.delete(marks, [row for row in rows if row["v"] % 2])
    tx.insert(marks, list({(row["k"], row["v"]): row for row in rows}.values()))
    return passed_on(batch)


def removing(batch: pa.Table, tx: hg.Tx) -> Any:
    tx.delete(marks, "select k, v from marks where k in (select k from batch)")
    return passed_on(batch)


def asking(batch: pa.Table, tx: hg.Tx) -> Any:
    known = tx.sql("select t.k, t.total from totals t where t.k in (select k from batch)")
    before = {row["k"]: row["total"] for row in known.to_pylist()}
    rows = [{"k": k, "total": before.get(k, 0) + v} for k, v in sums_of(batch).items()]
    tx.upsert(totals, rows)
    return passed_on(batch)


def summing(batch: pa.Table, tx: hg.Tx) -> Any:
    total = sum(batch.column("v").to_pylist())
    tx.upsert(totals, [{"k": -batch.num_rows, "total": total % 80}])
    if total % 3 == 1:
        return hg.abort("a window that aborts")
    return [{"k": 0, "v": total}]


KEPT = "count(*) as n, sum(v) as total, min(v) as low, max(v) as high, avg(v) as mean"


def keeping(aggregates: pa.Table, tx: hg.Tx) -> Any:
    found = tx.sql("select * from aggregates").to_pylist()
    total = sum(row["total"] for row in found)
    tx.upsert(totals, [{"k": -len(found), "total": total % 80}])
    if total % 3 == 1:
        return hg.abort("a window that aborts")
    return [
        {
            "k": row.get("k", 0),
            "v": (row["total"] + 7 * row["n"] + 11 * row["low"] + 13 * row["high"]
                  + int(row["mean"] * 16)) % 41,
        }
        for row in found
    ]  # fmt: skip


def keeping_both(batch: pa.Table, aggregates: pa.Table, tx: hg.Tx) -> Any:
    assert sum(aggregates.column("n").to_pylist()) == batch.num_rows
    return keeping(aggregates, tx)


def over_window(draw: Any, taken: hg.Stream, size: str, slide: str, said: Any) -> Any:
    """A procedure over a window, its aggregates, or both."""
    function, window = draw(st.sampled_from([summing, keeping, keeping_both])), (size, slide)
    if function is summing:
        return hg.procedure(taken.window(*window), **said)(summing)
    kept = taken.window(*window, aggregate=KEPT, by=draw(st.sampled_from(["k", None])))
    return hg.procedure(kept, retries=draw(st.sampled_from([0, 1])), **said)(function)


def joining(left: pa.Table, right: pa.Table, tx: hg.Tx) -> Any:
    tx.upsert(totals, [{"k": 50, "total": (left.num_rows - right.num_rows) % 80}])
    return passed_on(pa.concat_tables([left, right]))


PROCEDURES: dict[str, Callable[..., Any]] = {
    "upserting": upserting, "inserting": inserting, "asking": asking, "summing": summing,
    "removing": removing,
}  # fmt: skip


def transaction(number: int, taken: hg.Stream, gives: hg.Stream, *, compiled: bool = False) -> Any:
    def add(event: Any, total: Any = totals.at("k", create=True)) -> Any:
        if event.v % 5 == 4:
            return hg.abort("a four")
        if event.v % 13 == 12:
            hg.delete(total)
            return None
        total.total += event.v
        return None

    name = f"add_{number}"
    return hg.transaction(event=taken, compiled=compiled, name=name, output=gives)(add)


@hg.transaction(event=ROWS, compiled=False)
def outside(event: Any, total: Any = totals.at("k", create=True)) -> None:
    total.total = (total.total + event.v) % 80


@st.composite
def flows(draw: Any, workers: Any = st.none()) -> hg.Dataflow:
    """A graph of a few nodes: each takes a stream that there is, or two of them, and gives one."""
    batch = draw(st.sampled_from([None, "1 row", "3 rows"]))
    is_recorded = st.sampled_from([True, True, False])
    streams = [hg.Stream("s0", ROWS, batch=batch, recorded=draw(is_recorded))]
    nodes: list[Any] = []
    for number in range(1, draw(st.integers(2, 4)) + 1):
        taken = draw(st.sampled_from(streams))
        gives = hg.Stream(f"s{number}", ROWS, recorded=draw(is_recorded))
        kind = draw(st.sampled_from([*PROCEDURES, "add", "add", "joining"]))
        others = [one for one in streams if one is not taken]
        said: Any = {"output": gives, "writes": TABLES, "name": f"{kind}_{number}"}
        if kind == "add":
            nodes.append(transaction(number, taken, gives, compiled=draw(st.booleans())))
        elif kind == "joining" and others:
            nodes.append(hg.procedure(taken, draw(st.sampled_from(others)), **said)(joining))
        elif kind == "summing":
            size = draw(st.integers(2, 5))
            slide = draw(st.integers(1, size))
            nodes.append(over_window(draw, taken, f"{size} rows", f"{slide} rows", said))
        else:
            function = PROCEDURES.get(kind, upserting)
            if draw(st.booleans()):
                said |= {"partition_by": "k", "partitions": draw(st.integers(2, 3)),
                         "align": draw(st.sampled_from([None, 1, 2]))}  # fmt: skip
            nodes.append(hg.procedure(taken, **said)(function))
        streams.append(gives)
    nest = draw(st.integers(0, len(nodes)))
    first = draw(st.integers(0, len(nodes) - 1))
    names = [node.name for node in nodes[first : first + nest]]
    said = {"workers": draw(workers)}
    try:
        return hg.Dataflow("flow", nodes, nest=[names] if len(names) > 1 else [], **said)
    except hg.DeclarationError:  # what would be nested does not stand together
        return hg.Dataflow("flow", nodes, **said)


@st.composite
def nests_of_windows(draw: Any) -> hg.Dataflow:
    """A chain whose last nodes are one nest with a window in it, over one row at a time."""
    streams, nodes = [hg.Stream("s0", ROWS, batch="1 row")], list[Any]()
    last, window = draw(st.integers(2, 3)), 2
    for number in range(1, last + 1):
        gives = hg.Stream(f"s{number}", ROWS)
        is_inner = number != window or draw(st.booleans())
        taken = streams[-1] if is_inner else streams[0]
        kind = draw(st.sampled_from(["upserting", "inserting", "asking", "add"]))
        if number == window:
            said: Any = {"output": gives, "writes": TABLES, "name": f"summing_{number}"}
            nodes.append(over_window(draw, taken, "3 rows", "3 rows", said))
        elif kind == "add":
            nodes.append(transaction(number, taken, gives, compiled=draw(st.booleans())))
        else:
            said = {"output": gives, "writes": TABLES, "name": f"{kind}_{number}"}
            nodes.append(hg.procedure(taken, **said)(PROCEDURES[kind]))
        streams.append(gives)
    nest = [node.name for node in nodes[draw(st.sampled_from([0, 0, 1])) :]]
    return hg.Dataflow("flow", nodes, nest=[nest] if len(nest) > 1 else [])


rows = st.lists(
    st.fixed_dictionaries({"k": st.integers(0, 3), "v": st.integers(0, 40)}), min_size=1, max_size=5
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("push"), rows),
        st.tuples(st.just("crash"), st.tuples(rows, st.integers(1, 14), st.sampled_from(Survival))),
        st.tuples(st.just("call"), st.tuples(st.integers(0, 3), st.integers(0, 40))),
        st.tuples(st.sampled_from(["flush", "kill", "close", "snapshot"]), st.none()),
    ),
    min_size=2,
    max_size=9,
)


def _joined(parts: list[list[Any]]) -> list[Any]:
    return [one for part in parts for one in part]


class World:
    """An engine on a simulated disk and the oracle beside it."""

    def __init__(self, flow: hg.Dataflow, recovery: str) -> None:
        self.flow, self.recovery = flow, recovery
        self.source = flow.graph.sources["s0"]
        self.disk, self.pushes = SimulatedDisk(), 0
        self.calls: list[int] = []
        self.oracle = FlowOracle(TABLES, flow)
        self.engine = self.open()

    def open(self) -> hg.Engine:
        return hg.open(
            PATH, tables=TABLES, transactions=[outside], dataflows=[self.flow],
            recovery=self.recovery, disk=self.disk, clock=SimulatedClock(),
        )  # fmt: skip

    def do(self, action: str, said: Any) -> None:
        if action == "push":
            self.push(said)
        elif action == "crash":
            self.crash(*said)
        elif action == "call":
            k, v = said
            result = self.engine.call(outside, k=k, v=v)
            self.calls.append(result["epoch"])
            self.oracle.call(outside, k=k, v=v)
        elif action == "flush":
            self.engine.flush(self.source)
            self.oracle.flush(self.source)
        elif action == "snapshot":
            self.engine.snapshot()
        else:
            if action == "close":
                self.engine.close()
            else:
                self.disk = self.disk.after_kill()
            self.engine = self.open()

    def push(self, rows: list[dict[str, Any]], is_again: bool = False) -> None:
        self.pushes += not is_again
        self.engine._running_flows().push(self.source, rows, ("query", self.pushes))
        if not is_again:
            self.oracle.push(self.source, rows)

    def crash(self, rows: list[dict[str, Any]], after: int, survival: Survival) -> None:
        self.disk.crash_at = self.disk.calls + after
        try:
            self.push(rows)
        except (SimulatedCrash, hg.HeadgateError):
            self.disk = self.disk.after_crash(survival)
            self.engine = self.open()
            self.engine._running_flows().push(self.source, rows, ("query", self.pushes))
            self.oracle.push(self.source, rows)
        self.disk.crash_at = None

    def check(self) -> None:
        for table in TABLES:
            order = ", ".join(table.key)
            found = self.engine.sql(f"select * from {table.name} order by {order}").rows()
            expected = [tuple(row.values()) for row in self.oracle.serial.table(table.name)]
            assert found == sorted(expected), table.name
        recorded = self.engine.sql(
            "select epoch, position, transaction, batch, outcome, reason, k, v from results "
            "where batch is not null order by epoch, position"
        ).rows()
        streams = self.flow.graph.streams
        given = [(row[2], row[3], {"k": row[6], "v": row[7]}) for row in recorded
                 if row[2] in streams and row[2] != "s0"]  # fmt: skip
        key: Any = lambda one: (one[1], one[0])  # noqa: E731
        expected = [one for one in self.oracle.given if streams[one[0]].recorded]
        assert sorted(given, key=key) == sorted(expected, key=key)
        assert streams["s0"].recorded or not any(row[2] == "s0" for row in recorded)
        nodes = [row for row in recorded if row[2] not in streams]
        self.check_executions(nodes)
        executed = [Executed(row[0], row[1], row[2], row[3]) for row in nodes]
        firsts = {(one.epoch, one.node, one.batch): one for one in reversed(executed)}
        assert schedule_faults(self.flow, firsts.values(), self.calls) == []

    def check_executions(self, nodes: list[Any]) -> None:
        found = {(row[2], row[3]): (row[4], row[5]) for row in nodes}
        expected = {(one.node, one.batch): one for one in self.oracle.executions}
        assert set(found) == set(expected)
        for one in expected.values():
            outcome, reason = found[one.node, one.batch]
            if not one.node.startswith("add_") or one.outcome == "aborted":
                assert outcome == one.outcome, one
            if one.reason is not None:
                assert str(reason).startswith(one.reason), one


def live(flow: hg.Dataflow, recovery: str, acts: list[tuple[str, Any]]) -> None:
    world = World(flow, recovery)
    try:
        for action, said in acts:
            world.do(action, said)
        world.check()
    finally:
        world.disk.crash_at = None
        world.engine.close()


@settings(max_examples=30)
@given(
    nests_of_windows(),
    st.sampled_from(["strong", "weak"]),
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.lists(rows, min_size=3, max_size=4).map(_joined)),
            st.tuples(st.sampled_from(["kill", "close"]), st.none()),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_windows_in_nests_do_what_the_oracle_does(
    flow: hg.Dataflow, recovery: str, acts: list[tuple[str, Any]]
) -> None:
    """Several batches share an epoch, and one of them aborts, or is not run."""
    note(flow.show())
    live(flow, recovery, acts)


@settings(max_examples=25)
@given(flows(), st.sampled_from(["strong", "weak"]), actions, st.sampled_from([0.0, 0.003]))
def test_a_flow_does_what_the_oracle_does(
    flow: hg.Dataflow, recovery: str, acts: list[tuple[str, Any]], together: float
) -> None:
    note(flow.show())
    with pytest.MonkeyPatch.context() as patched:  # executions that share epochs, and do not
        patched.setattr(stepping, "TOGETHER_SECONDS", together)
        patched.setattr(recording, "_LONG_ROWS", 2)  # short parts in the log, and long ones
        live(flow, recovery, acts)


crews = st.builds(
    hg.Workers,
    st.integers(2, 3),
    architecture=st.sampled_from(["pool", "pinned"]),
    policy=st.sampled_from(POLICIES),
    buffer=st.integers(1, 3),
    compose=st.booleans(),
) | st.builds(hg.Workers, policy=st.sampled_from(POLICIES), buffer=st.integers(1, 3))


@settings(max_examples=40)
@given(flows(crews), actions)
def test_workers_do_what_the_oracle_does(flow: hg.Dataflow, acts: list[tuple[str, Any]]) -> None:
    note(f"{flow.show()} {flow.workers}")
    live(flow, "strong", acts)


# --- canaries: seeded bugs that the test above must find ------------------------------------------

SOURCE = hg.Stream("s0", ROWS, batch="3 rows")
MIDDLE, END = hg.Stream("s1", ROWS), hg.Stream("s2", ROWS)
FIRST: Any = hg.procedure(SOURCE, output=MIDDLE, writes=TABLES, name="asking_1")(asking)
SECOND: Any = transaction(2, MIDDLE, END)
THIRD: Any = hg.procedure(END, writes=TABLES, output=hg.Stream("s3", ROWS), name="upserting_3")(
    upserting
)
CHAIN = hg.Dataflow("flow", [FIRST, SECOND, THIRD], nest=[[SECOND, THIRD]])
LIFE: list[tuple[str, Any]] = [
    ("push", [{"k": k, "v": v} for k, v in ((1, 1), (2, 6), (3, 8), (1, 5), (2, 2), (1, 10))]),
    ("call", (1, 5)),
    ("crash", ([{"k": k, "v": 2} for k in range(3)], 4, Survival.KEEP)),
    ("push", [{"k": 3, "v": 29}, {"k": 1, "v": 17}, {"k": 2, "v": 7}, {"k": 2, "v": 22}]),
    ("flush", None),
]


def test_the_life_of_the_canaries_is_right_without_them() -> None:
    live(CHAIN, "strong", LIFE)


def newest(self: Any, unit: Any) -> Any:
    """The newest batch that is whole, in the place of the next."""
    return max(self.done(unit.nodes[0].name) + 1, self.closed(unit.needs[0].name))


between = BatchRun.between


def with_the_one_before(self: BatchRun, first: int, last: int) -> BatchRun | None:
    return between(self, first - 1 if first == last else first, last)


CANARIES: list[tuple[str, Any, str, Any]] = [
    ("a batch overtakes", under_way.UnderWay, "next_of", newest),
    ("an abort leaves its rows", writes.TableWrites, "undo", lambda self: None),
    ("a node runs again after recovery", under_way.UnderWay, "finish", lambda self, node, n: None),
    ("what aborted is not told", stepping.Stepping, "_give_up", lambda self, *said: None),
    ("a batch has rows of the one before it", BatchRun, "between", with_the_one_before),
    ("a stream is not recorded", recording.Recorder, "rows", lambda self, *said: None),
]


@pytest.mark.parametrize(("what", "owner", "name", "bug"), CANARIES, ids=[c[0] for c in CANARIES])
def test_a_seeded_bug_is_found(
    what: str, owner: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    if name == "finish":  # which would run the first batch for ever
        turns = iter(range(20))
        run = running.Flows._run_next

        def bounded(self: Any) -> Any:
            return next(turns, None) is not None and run(self)

        monkeypatch.setattr(running.Flows, "_run_next", bounded)
        monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 0.0)  # each a turn of its own
    with pytest.raises((AssertionError, hg.HeadgateError, KeyError)):
        live(CHAIN, "strong", LIFE)


WINDOW = hg.procedure(
    SOURCE.window("4 rows", "1 row", aggregate=KEPT, by="k"),
    output=MIDDLE, writes=TABLES, retries=1, name="keeping_1",
)(keeping)  # fmt: skip
KEPT_FLOW = hg.Dataflow("flow", [WINDOW])
move, fresh = Groups.move, KeptWindow._fresh


def moved_with_sums(self: Groups, leaving: int, inside: int) -> None:
    """What leaves is not taken away from the sums."""
    sums = self._arrays[window_groups.GROUP_SUMS].copy()
    move(self, leaving, inside)
    if leaving:
        self._arrays[window_groups.GROUP_SUMS][:] = sums


def fresh_though_aborted(self: KeptWindow, state: Any, *more: pa.Table) -> Any:
    """What an execution that aborted left is taken for what was there before it."""
    self._again = None
    state.kept = state.kept._replace(version=self._version)
    return fresh(self, state, *more)


KEPT_CANARIES: list[tuple[str, Any, str, Any]] = [
    ("an aggregate is not taken back", Groups, "move", moved_with_sums),
    ("an abort leaves its aggregates", KeptWindow, "_fresh", fresh_though_aborted),
]


@pytest.mark.parametrize("seeded", [None, *KEPT_CANARIES], ids=lambda one: one and one[0])
def test_a_seeded_bug_of_aggregates_is_found(seeded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if seeded is None:
        live(KEPT_FLOW, "strong", LIFE)
        return
    monkeypatch.setattr(*seeded[1:])
    with pytest.raises((AssertionError, hg.HeadgateError, IndexError)):
        live(KEPT_FLOW, "strong", LIFE)
