"""Quiet batches run at once, and executions share an epoch: what comes of it is as one by one."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import onlookers, quiet, stepping
from headgate.dataflow.runs import BatchRun, TakenBatches, apart
from headgate.testing import Executed, FlowOracle, SimulatedClock, SimulatedDisk, schedule_faults

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
COLUMNS = "ts timestamp, k bigint, v bigint"
seen = hg.Table("seen", "k bigint, v bigint DEFAULT -1", key="k")
totals = hg.Table("totals", "k bigint, total bigint DEFAULT 0", key="k")
rounds = hg.Table("rounds", "id bigint, total bigint", key="id")
TABLES = [seen, totals, rounds]

source = hg.Stream("source", COLUMNS, order_by="ts", batch="1 row")
fresh = hg.Stream("fresh", COLUMNS)
added = hg.Stream("added", "k bigint, v bigint")
ended = hg.Stream("ended", "k bigint, v bigint")
sums = hg.Stream("sums", "k bigint, v bigint")


@hg.transaction(event=source, output=fresh)
def take(event: hg.Event, row: hg.Row = seen.at("k", create=True)) -> Any:
    if row.v >= 0:
        return hg.abort("seen")
    row.v = event.v
    return None


@hg.transaction(event=fresh, output=added)
def add(event: hg.Event, row: hg.Row = totals.at("v", create=True)) -> None:
    row.total += event.k


@hg.procedure(added.window("4 rows"), output=ended, writes=TABLES)
def end(batch: pa.Table, tx: hg.Tx) -> Any:
    total = sum(batch.column("k").to_pylist())
    if total % 5 == 1:
        return hg.abort("one of five")
    tx.upsert(rounds, [{"id": total, "total": len(batch)}])
    tx.delete(seen, "select k from seen where k % 3 = 0")
    return [{"k": total, "v": 0}]


@hg.procedure(fresh.window("3 rows", slide="1 row"), output=sums)
def summed(batch: pa.Table, tx: hg.Tx) -> Any:
    return [{"k": sum(batch.column("k").to_pylist()), "v": batch.num_rows}]


@hg.transaction(event=fresh, output=added, name="add")
def add_seen(event: hg.Event, row: hg.Row = seen.at("v", create=True)) -> None:
    row.v += event.k + 1


def plain(taken: hg.Stream, given: hg.Stream) -> Any:
    def copy(event: hg.Event, row: hg.Row = totals.at("k", create=True)) -> None:
        row.total += event.v

    return hg.transaction(event=taken, output=given, name="copy")(copy)


@hg.procedure(fresh.window("3 rows", slide="2 rows"), output=sums, name="look")
def look_at_windows(batch: pa.Table, tx: hg.Tx) -> Any:
    total = sum(batch.column("k").to_pylist())
    return hg.abort("of four") if total % 4 == 1 else [{"k": total, "v": 1}]


@hg.procedure(fresh, output=sums)
def look(batch: pa.Table, tx: hg.Tx) -> Any:
    found = tx.sql("select k, v from batch where k % 5 > 0")
    return hg.abort("of four") if batch.column("k")[0].as_py() % 4 == 1 else found


@hg.procedure(sums, writes=rounds)
def keep(batch: pa.Table, tx: hg.Tx) -> None:
    tx.upsert(rounds, "select k as id, v as total from batch")


FLOWS = {
    "onlookers": hg.Dataflow("flow", [take, look, keep]),
    "onlookers of windows": hg.Dataflow("flow", [take, look_at_windows, keep]),
    "alone": hg.Dataflow("flow", [take]),
    "a nest with a window": hg.Dataflow("flow", [take, add, end, summed], nest=[[take, add, end]]),
    "not nested": hg.Dataflow("flow", [take, add, end, summed]),
    "a nest over one table": hg.Dataflow("flow", [take, add_seen], nest=[[take, add_seen]]),
    "over one table": hg.Dataflow("flow", [take, add_seen]),
}


def events(count: int, seed: int, keys: int = 12) -> list[dict[str, Any]]:
    """Events in no order of their time; some keys come again."""
    dice = random.Random(seed)
    return [
        {"ts": NOON + datetime.timedelta(seconds=dice.randrange(50)), "k": dice.randrange(keys),
         "v": dice.randrange(4)}
        for _ in range(count)
    ]  # fmt: skip


def run(flow: hg.Dataflow, pushes: Sequence[list[dict[str, Any]]], **said: Any) -> Any:
    """The tables, what streams and nodes had batch by batch, and the order of executions."""
    disk = SimulatedDisk()
    said = {"tables": TABLES, "dataflows": flow, "disk": disk, "clock": SimulatedClock(), **said}
    with hg.open("/store", **said) as engine:
        for rows in pushes:
            engine.push(source, rows)
        tables = [engine.sql(f"from {one.name} order by all").rows() for one in TABLES]
        names = set(flow.graph.streams)
        query = (
            "select transaction, batch, outcome, reason, k, v, epoch, position from results "
            "where transaction != 'source' order by epoch, position"
        )
        recorded = engine.sql(query).rows()
        nodes = [(row[0], row[1], row[2], row[3]) for row in recorded if row[0] not in names]
        given = [
            (row[0], row[1], {"k": row[4], "v": row[5]}) for row in recorded if row[0] in names
        ]
        order = [
            Executed(row[6], row[7], row[0], row[1]) for row in recorded if row[0] not in names
        ]
        firsts = {(one.epoch, one.node, one.batch): one for one in reversed(order)}
        assert schedule_faults(flow, firsts.values()) == []
        waiting = [(node.name, engine.stream(source).metrics()[node.name].batches)
                   for node in flow.nodes]  # fmt: skip
    with hg.open("/store", **said) as engine:  # recovered, it is the same
        assert tables == [engine.sql(f"from {one.name} order by all").rows() for one in TABLES]
    return tables, sorted(nodes, key=repr), sorted(given, key=repr), waiting


def judged(flow: hg.Dataflow, pushes: Sequence[list[dict[str, Any]]]) -> Any:
    """The same by the oracle, but for the words of aborts."""
    oracle = FlowOracle(TABLES, flow)
    for rows in pushes:
        oracle.push(source, sorted(rows, key=lambda row: row["ts"]))
    tables = [
        sorted(tuple(row.values()) for row in oracle.serial.table(one.name)) for one in TABLES
    ]
    given = [(name, batch, {"k": row["k"], "v": row["v"]}) for name, batch, row in oracle.given]
    return tables, sorted(given, key=repr)


PUSHES = [events(40, 1), events(1, 2), events(25, 3), events(9, 4)]


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("seconds", [0.0, 0.003, 9.0])
def test_batches_at_once_do_what_the_oracle_does(
    name: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "TOGETHER_SECONDS", seconds)
    tables, _, given, _ = run(FLOWS[name], PUSHES)
    assert (tables, given) == judged(FLOWS[name], PUSHES)


@pytest.mark.parametrize("name", FLOWS)
def test_batches_at_once_are_recorded_as_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(FLOWS[name], PUSHES)
    monkeypatch.setattr(quiet, "BATCHES_MAX", 1)
    assert run(FLOWS[name], PUSHES) == found
    monkeypatch.setattr(stepping, "quiet_count", lambda unit: 0)
    assert run(FLOWS[name], PUSHES) == found


def test_many_batches_of_one_push_are_one_run_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[int, int]] = []
    real = quiet.QuietRun.run

    def watched(self: Any, *said: Any) -> None:
        real(self, *said)
        ran.append((self._first, self._last))

    monkeypatch.setattr(quiet.QuietRun, "run", watched)
    rows = [{"ts": NOON, "k": n, "v": 0} for n in range(30)]
    run(FLOWS["alone"], [rows])
    assert ran == [(1, 30)]
    ran.clear()
    run(FLOWS["a nest over one table"], [rows])
    # Its second transaction changes what the next batch must see.
    assert ran == [(number, number) for number in range(1, 31)]


def test_an_onlooker_takes_many_batches_at_once_and_tells_of_its_aborts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    real = onlookers.Onlooking.run

    def watched(self: Any, *given: Any) -> Any:
        looked = real(self, *given)
        taken.append(looked.taken.last)
        return looked

    monkeypatch.setattr(onlookers.Onlooking, "run", watched)
    rows = [{"ts": NOON, "k": n, "v": 1} for n in range(1, 8)]
    tables, nodes, _, _ = run(FLOWS["onlookers"], [rows])
    assert taken == [7]
    assert tables[2] == [(2, 1), (3, 1), (4, 1), (6, 1), (7, 1)]
    assert [row for row in nodes if row[2] == "aborted"] == [
        ("keep", 1, "aborted", "not run: look aborted batch 1"),
        ("keep", 5, "aborted", "not run: look aborted batch 5"),
        ("look", 1, "aborted", "of four"),
        ("look", 5, "aborted", "of four"),
    ]


def test_an_onlooker_of_a_wrong_program_has_done_what_came_before_it() -> None:
    def wrong(batch: pa.Table, tx: hg.Tx) -> Any:
        first = batch.column("k")[0].as_py()
        if first == 3:
            tx.insert(rounds, [{"id": 1, "total": 1}])  # which it does not declare
        return [{"k": first, "v": batch.num_rows}]

    node = hg.procedure(source.window("2 rows", slide="1 row"), output=sums)(wrong)
    rows = [{"ts": NOON, "k": n, "v": 0} for n in range(6)]
    disk, flow = SimulatedDisk(), hg.Dataflow("flow", [node])
    with hg.open("/store", tables=TABLES, dataflows=flow, disk=disk) as engine:
        for more in (rows, rows[:1]):
            with pytest.raises(hg.DeclarationError, match="are taken"):
                engine.push(source, more)
        given = engine.sql("select batch, k from results where transaction = 'sums'").rows()
        assert given == [(2, 0), (3, 1), (4, 2)]
        assert engine.stream(source).metrics()["wrong"].waiting == 3


def test_a_window_of_a_nest_is_whole_in_its_own_batch_and_its_abort_takes_only_that() -> None:
    rows = [{"ts": NOON, "k": n, "v": 1} for n in (1, 2, 3, 5, 8)]  # 1 + 2 + 3 + 5 aborts
    tables, nodes, _, _ = run(FLOWS["a nest with a window"], [rows])
    assert tables[1] == [(1, 1 + 2 + 3 + 8)]
    aborted = [row[:2] for row in nodes if row[2] == "aborted"]
    assert aborted == [("add", 4), ("end", 4), ("summed", 4), ("take", 4)]


CANARIES = [
    ("a window is whole among batches that run at once", "a nest with a window", quiet, "_room",
     lambda node, progress: 1000),
    ("nodes of one table run apart", "a nest over one table", quiet, "_share",
     lambda one, other: False),
    ("an abort among other batches is not seen", "onlookers", BatchRun, "has_marks",
     property(lambda self: False)),
    ("batches run at once beyond those that may", "a nest with a window", TakenBatches, "up_to",
     lambda self, last: self),
    ("an onlooker has batches for windows", "onlookers of windows", onlookers, "_calls",
     lambda node, state, taken, kept: (
         (n, [[one]], 0) for n, one in apart(taken.rows, taken.numbers)
     )),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "owner", "broken", "bug"), CANARIES, ids=lambda one: None)
def test_a_seeded_bug_is_found(
    what: str, name: str, owner: Any, broken: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, broken, bug)
    tables, _, given, _ = run(FLOWS[name], PUSHES)
    assert (tables, given) != judged(FLOWS[name], PUSHES), what


def test_units_that_share_a_table_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping.Order, "is_first", lambda self, unit, batch: True)
    tables, _, given, _ = run(FLOWS["over one table"], PUSHES)
    assert (tables, given) != judged(FLOWS["over one table"], PUSHES)


# --- what cannot go on ----------------------------------------------------------------------------


@hg.procedure(source, writes=rounds)
def wrong_at_three(batch: pa.Table, tx: hg.Tx) -> None:
    tx.upsert(rounds, [{"id": batch.column("k")[0].as_py(), "total": 1}])
    if batch.column("k")[0].as_py() == 3:
        tx.upsert(seen, [{"k": 1, "v": 1}])  # which it does not declare


@hg.procedure(source, writes=[rounds, seen], name="wrong_at_three")
def mended(batch: pa.Table, tx: hg.Tx) -> None:
    wrong_at_three.function(batch, tx)


def test_what_ran_before_a_wrong_program_stands_and_the_rows_are_taken_once(
    tmp_path: Path,
) -> None:
    rows = [{"ts": NOON, "k": n, "v": 0} for n in range(6)]
    path = str(tmp_path / "store")
    with hg.open(path, tables=TABLES, dataflows=hg.Dataflow("flow", [wrong_at_three])) as engine:
        with pytest.raises(hg.DeclarationError, match="are taken"):
            engine.push(source, rows)
        assert engine.sql("select id from rounds order by 1").rows() == [(0,), (1,), (2,)]
        assert engine.stream(source).metrics()["wrong_at_three"].waiting == 3
    flow = hg.Dataflow("flow", [mended])
    with hg.open(path, tables=TABLES, dataflows=flow) as engine:
        assert engine.sql("select id from rounds order by 1").rows() == [(n,) for n in range(6)]
        taken = engine.sql("select k from results where transaction = 'source' order by 1").rows()
        assert taken == [(n,) for n in range(6)]


def test_calls_come_in_between_while_many_executions_wait() -> None:
    """Who waits for the engine ends the epoch that others would join."""

    class Wanted:
        is_wanted = True

    flow = FLOWS["not nested"]
    with hg.open(None, tables=TABLES, dataflows=flow) as engine:
        running: Any = engine._running_flows()
        real = running.stepping._lock
        running.stepping._lock = Wanted()
        engine.push(source, events(8, 5))
        epochs = engine.sql(
            "select max(n) from (select epoch, count(distinct transaction) as n from results "
            "where transaction in ('take', 'add', 'end', 'summed') group by epoch)"
        ).rows()
        assert epochs == [(1,)]
        running.stepping._lock = real
