"""Dataflows over stores of shards: where nodes run, what is refused, what a store goes through."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import stepping
from headgate.durability import StoreReader, backup, verify
from headgate.query.store_tables import query_store
from headgate.shards import flow_rows, share
from headgate.testing.disk import SimulatedDisk
from tests.property.harness import decoded, same_bytes
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.dataflow import shows

totals = hg.Table("totals", "k int, total bigint DEFAULT 0", key="k")
marks = hg.Table("marks", "k int, n bigint", key="k")
coming = hg.Stream("coming", "k int, v bigint", order_by="v")
added, noted = (hg.Stream(name, "k int, v bigint") for name in ("added", "noted"))


@hg.transaction(event=coming, output=added, compiled=False)
def add(event: Any, row: Any = totals.at("k", create=True)) -> Any:
    if event.v < 0:
        return hg.abort("negative")
    row.total += event.v
    return None


@hg.procedure(added, output=noted, writes=marks)
def note(batch: pa.Table, tx: hg.Tx) -> Any:
    known = {row["k"]: row["n"] for row in tx.sql("from marks").to_pylist()}
    for row in batch.to_pylist():
        known[row["k"]] = known.get(row["k"], 0) + 1
    tx.upsert(marks, [{"k": k, "n": n} for k, n in known.items()])
    return batch


FLOW = hg.Dataflow("flow", [add, note])
TABLES = [totals, marks]
BATCHES = [
    [{"k": k, "v": v} for k, v in pairs]
    for pairs in (((1, 5), (2, 3), (1, -1)), ((3, 9), (1, 1)), ((2, 2), (4, 4), (5, 0), (6, 1)))
]


@pytest.fixture(autouse=True)
def _epochs_are_not_for_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which executions share an epoch depends on it: here each has one."""
    monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 0.0)


def opened(shards: int, disk: SimulatedDisk | None = None, tables: Any = TABLES) -> hg.Engine:
    if shards:
        return open_sharded(tables, [], shards, Workers(shards, 2, 0.3), disk, dataflows=[FLOW])
    return hg.open(None if disk is None else PATH, tables=tables, dataflows=FLOW, disk=disk)


def everything(engine: hg.Engine) -> list[pa.Table]:
    results = "select * exclude (epoch) from results order by epoch, position"
    asked = [f"from {one.name} order by 1" for one in TABLES]
    return [decoded(engine.sql(query).arrow()) for query in (*asked, results)]


def assert_same(engine: hg.Engine, other: hg.Engine) -> None:
    for found, expected in zip(everything(engine), everything(other), strict=True):
        assert same_bytes(found, expected)
    assert engine.counts() == other.counts()


def test_a_transaction_runs_where_its_rows_are_when_they_are_too_many_for_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = list[int]()
    run_there = flow_rows.FlowRows.run_there

    def noting(self: Any, terms: Any, events: pa.Table, numbers: Any) -> Any:
        there.append(events.num_rows)
        return run_there(self, terms, events, numbers)

    monkeypatch.setattr(flow_rows.FlowRows, "run_there", noting)
    one, engine = opened(0), opened(3)
    for number, batch in enumerate(BATCHES):
        if number:  # from now on the driver takes the marks, and not the totals with them
            rows = engine._running_flows().stepping._rows
            monkeypatch.setattr(flow_rows, "FLOW_BYTES_MAX", rows._sharding.bytes_of([marks]))
        found, expected = (it.push(coming, batch) for it in (engine, one))
        assert same_bytes(decoded(found), decoded(expected))
        engine.load(totals, [{"k": 100 + number, "total": 1}], mode="missing")
        one.load(totals, [{"k": 100 + number, "total": 1}], mode="missing")
    assert there == [len(batch) for batch in BATCHES[1:]]
    assert engine.counts() == one.counts()
    assert_same(engine, one)
    engine.close()


sliced = hg.Stream("sliced", "k int, v bigint", batch="3 rows")
mixed = hg.Stream("mixed", "k int, v bigint", order_by="v")
folded = hg.Stream("folded", "k int, v bigint, total bigint")


@hg.procedure(sliced, output=mixed)
def turn(batch: pa.Table, tx: hg.Tx) -> Any:
    return batch.take(list(reversed(range(batch.num_rows))))


@hg.transaction(event=mixed, output=folded, compiled=False)
def fold(
    event: Any,
    row: Any = totals.at("k", create=True),
    out: Any = hg.output("total bigint"),
) -> Any:
    row.total = (2 * row.total + event.v) % 1_000_003
    out.total = row.total


@pytest.mark.parametrize("leaves", [True, False])
def test_several_batches_run_at_once_each_in_its_own_order(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 1e9)
    asked = list[list[int]]()
    run_there = flow_rows.FlowRows.run_there

    def noting(self: Any, terms: Any, events: pa.Table, numbers: Any) -> Any:
        asked.append(numbers.tolist())
        return run_there(self, terms, events, numbers)

    monkeypatch.setattr(flow_rows.FlowRows, "run_there", noting)
    monkeypatch.setattr(flow_rows.FlowRows, "leaves", lambda *said: leaves)
    flow = hg.Dataflow("flow", [turn, fold])
    one = hg.open(None, tables=[totals], dataflows=flow)
    engine = open_sharded([totals], [], 2, Workers(5, 2, 0.3), dataflows=[flow])
    given = [{"k": n % 2, "v": (7 * n) % 11} for n in range(9)]
    found, expected = (it.push(sliced, given) for it in (engine, one))
    assert same_bytes(decoded(found), decoded(expected))
    assert engine.epoch == one.epoch
    assert asked == ([[1, 1, 1, 2, 2, 2, 3, 3, 3]] if leaves else [])
    assert engine.sql("from totals order by k").rows() == one.sql("from totals order by k").rows()
    engine.close()


def test_tables_that_are_too_large_have_the_batch_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, one = SimulatedDisk(), opened(0)
    engine = opened(2, disk)
    for batch in BATCHES[:2]:
        engine.push(coming, batch)
        one.push(coming, batch)
    before = everything(engine)[1]
    with monkeypatch.context() as patched:
        patched.setattr(flow_rows, "FLOW_BYTES_MAX", 0)
        with pytest.raises(hg.DeclarationError, match=r"\(marks\) take about .* MiB") as raised:
            engine.push(coming, BATCHES[2])
        assert "headgate reshard STORE --shards 0" in str(raised.value)
        assert "do not hand them in again" in str(raised.value)
        assert engine.stopped is None and everything(engine)[1] == before
    one.push(coming, BATCHES[2])
    engine.close()
    engine = opened(2, disk)  # which goes on with what was under way
    assert_same(engine, one)
    engine.close()


def test_where_events_run_is_decided_by_what_they_cost() -> None:
    engine = opened(2)
    rows = engine._running_flows().stepping._rows
    engine.push(coming, BATCHES[0])
    told = engine.decisions()[-1]
    assert told.scheme == "driver" and "'add' run in the driver, over its copy" in told.why
    assert rows.leaves(add, 1000, 1e-3) and not rows.leaves(add, 1000, 1e-6)
    engine.close()


def test_a_store_with_batches_under_way_goes_into_shards_and_back() -> None:
    disk, one = SimulatedDisk(), shows_in(0)
    engine = shows_in(0, disk)
    for number, shards in enumerate((3, 2, 0, 2)):
        given = [shows.vote(10 * number + n, 3 * number + n, 1 + n % 3) for n in range(5)]
        for it in (engine, one):
            it.push(shows.votes, given)  # the last one waits in an open batch, at times
        engine.close()
        hg.reshard(PATH, shards, disk=disk)
        assert verify(PATH, disk).is_whole
        engine = shows_in(shards, disk)
        for table in shows.TABLES:
            query = f"from {table.name} order by 1"
            assert engine.sql(query).arrow() == one.sql(query).arrow()
        query = "select * exclude (epoch) from results order by epoch, position"
        assert engine.sql(query).arrow() == one.sql(query).arrow()
    assert engine._running_flows().open_rows() == one._running_flows().open_rows()
    backup(PATH, "/data/copy", disk=disk)
    asked = "select count(*) from results where transaction = 'trend'"
    assert query_store(StoreReader.open("/data/copy", disk), asked).rows() == one.sql(asked).rows()
    engine.close()


def shows_in(shards: int, disk: SimulatedDisk | None = None) -> hg.Engine:
    flow = shows.show()
    if shards:
        engine = open_sharded(shows.TABLES, [], shards, Workers(1), disk, dataflows=[flow])
    else:
        path = None if disk is None else PATH
        engine = hg.open(path, tables=shows.TABLES, dataflows=flow, disk=disk)
    names = [{"id": number, "name": f"c{number}"} for number in range(1, 4)]
    engine.load(shows.contestants, names)
    return engine


def test_small_epochs_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image takes the place of all that was committed, also where no batch runs on executors."""
    for module in (share, flow_rows):
        monkeypatch.setattr(module, "IMAGE_BYTES_MIN", 1 << 17)
    disk = SimulatedDisk()
    engine, one = opened(2, disk), opened(0)
    for number in range(40):
        for it in (engine, one):
            it.push(coming, [{"k": number % 7, "v": number}])
        parts = engine._memory.parts
        assert max(len(parts.history(shard).links) for shard in range(2)) <= 10
    assert any(parts.history(shard).image is not None for shard in range(2))
    engine.close()
    engine = opened(2, disk)
    assert_same(engine, one)
    engine.close()
    assert verify(PATH, disk).is_whole


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
sessions = hg.Table("sessions", "id bigint, seen timestamp", key="id", expires="seen + 10 minutes")
seen = hg.Stream("seen", "id bigint, ts timestamp")


@hg.procedure(seen, writes=sessions)
def begin(batch: pa.Table, tx: hg.Tx) -> None:
    tx.upsert(sessions, "select id, max(ts) as seen from batch group by id")


@hg.transaction(event="id bigint, ts timestamp", compiled=False)
def look(event: Any, row: Any = sessions.at("id")) -> None:
    row.seen = event.ts


def test_rows_that_a_procedure_adds_expire_in_their_shard() -> None:
    flow, said = hg.Dataflow("flow", [begin]), {"tables": [sessions], "transactions": [look]}
    one = hg.open(None, dataflows=flow, **said)
    engine = open_sharded(*said.values(), 3, Workers(2, 2, 0.3), dataflows=[flow])
    for minute in range(0, 40, 5):
        now = NOON + dt.timedelta(minutes=minute)
        looks = [{"id": minute % 4, "ts": now}, {"id": 50, "ts": now}]
        fresh = [{"id": minute + n, "ts": now - dt.timedelta(minutes=n)} for n in range(4)]
        for it in (engine, one):
            it.run(look, looks, order_by="ts")
            it.push(seen, fresh)
        query = "from sessions order by id"
        assert engine.sql(query).rows() == one.sql(query).rows() != []
        results = [it.sql("select outcome, reason from results order by epoch, position").rows()
                   for it in (engine, one)]  # fmt: skip
        assert results[0] == results[1] and engine.counts() == one.counts()
    assert one.counts()["sessions"] < 32  # some of them went
    engine.close()


peeked = hg.Stream("peeked", "n bigint, total bigint")


@hg.procedure(coming, output=peeked, reads=totals)
def peek(batch: pa.Table, tx: hg.Tx) -> Any:
    return tx.sql("select count(*) as n, coalesce(sum(total), 0)::bigint as total from totals")


def test_a_procedure_sees_what_came_between_its_batches_by_any_way() -> None:
    engine = open_sharded([totals], [put], 2, Workers(3), dataflows=[hg.Dataflow("flow", [peek])])
    found = list[tuple[int, int]]()
    for number in range(3):
        recorded = engine.push(coming, [{"k": 0, "v": 0}]).to_pylist()
        found += [(row["n"], row["total"]) for row in recorded if row["transaction"] == "peeked"]
        engine.load(totals, [{"k": 10 + number, "total": 1}], mode="missing")
        engine.run(put, [{"k": 10 + number, "v": 5}, {"k": 9, "v": -1}])
    assert found == [(0, 0), (1, 6), (2, 12)]
    engine.close()


@hg.transaction(event="k int, v bigint", compiled=False)
def put(event: Any, row: Any = totals.at("k", create=True)) -> Any:
    if event.v < 0:
        hg.delete(row)
    else:
        row.total += event.v
