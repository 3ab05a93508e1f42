"""The world of random dataflows: an engine on a simulated disk, and the oracle beside it.

What their nodes do is here, too: functions that write, ask, abort and pass on. The order of all
executions is held to the definition of a correct schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

import headgate as hg
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
