"""Partitions of a procedure: parts of each batch by a key, run apart, each over rows of its own."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import order_of_units
from headgate.dataflow.partitions import Partition
from headgate.testing import FlowOracle, SimulatedDisk

ROWS = "k bigint, v bigint"
totals = hg.Table("totals", "k bigint, total bigint DEFAULT 0", key="k")
names = hg.Table("names", "name string, n bigint", key="name")
source, sums = hg.Stream("source", ROWS), hg.Stream("sums", ROWS)


def of(number: int, key: Any, count: int = 2) -> bool:
    return Partition("any", "k", number, count, None, frozenset()).has(key)


# A key of each of two partitions, and another of each.
A, OTHER_A = [k for k in range(20) if of(0, k)][:2]
B, OTHER_B = [k for k in range(20) if of(1, k)][:2]


def adding(batch: pa.Table, tx: hg.Tx) -> Any:
    found = tx.sql(
        "select b.k, (coalesce(max(t.total), 0) + sum(b.v))::bigint as total "
        "from batch b left join totals t on b.k = t.k group by b.k order by b.k"
    )
    tx.upsert(totals, found)
    return found.rename_columns(["k", "v"])


def added(batch: pa.Table, tx: hg.Tx) -> None:
    adding(batch, tx)


def flow(function: Any, *behind: Any, workers: Any = None, **said: Any) -> hg.Dataflow:
    said = {"output": sums, "writes": totals, "name": "add", "partitions": 2, **said}
    node = hg.procedure(source, partition_by="k", **said)(function)
    return hg.Dataflow("flow", [node, *behind], workers=workers)


def rows(*keys: int, v: int = 1) -> list[dict[str, int]]:
    return [{"k": k, "v": v} for k in keys]


def test_partitions_are_nodes_and_what_they_give_comes_together() -> None:
    assert (
        flow(adding).show()
        == """\
dataflow flow
  source -> add_0 -> sums_0
  source -> add_1 -> sums_1
  sums_0, sums_1 -> sums_of_add -> sums"""
    )


@pytest.mark.parametrize("workers", [None, hg.Workers(2), hg.Workers(2, "pool")])
def test_all_partitions_together_do_what_the_oracle_does(workers: Any) -> None:
    made = flow(adding, workers=workers, partitions=3)
    oracle, disk = FlowOracle([totals], made), SimulatedDisk()
    with hg.open("/store", tables=[totals], dataflows=made, disk=disk) as engine:
        for first in range(6):
            given = [{"k": (first * n) % 11, "v": n} for n in range(7)]
            engine.push(source, given)
            oracle.push(source, given)
        expected = [tuple(row.values()) for row in oracle.serial.table("totals")]
        assert engine.sql("from totals order by k").rows() == sorted(expected)
        found = engine.sql(
            "select transaction, batch, k, v from results where transaction = 'sums' "
            "order by batch, position"
        ).rows()
        wanted = [(name, batch, *row.values()) for name, batch, row in oracle.given]
        assert found == [row for row in wanted if row[0] == "sums"]


def test_texts_are_keys_too() -> None:
    words = hg.Stream("words", "name string")

    @hg.procedure(words, writes=names, partition_by="name", partitions=3)
    def count(batch: pa.Table, tx: hg.Tx) -> None:
        tx.upsert(names, "select name, count(*) as n from batch group by name")

    with hg.open(None, tables=[names], dataflows=hg.Dataflow("flow", [count])) as engine:
        engine.push(words, [{"name": word} for word in ["to", "be", "or", "not", "to", "be"]])
        engine.push(words, [{"name": "be"}])
        assert dict(engine.sql("from names").rows()) == {"to": 2, "be": 1, "or": 1, "not": 1}
        # All words are somebody's, and nobody has all.
        nodes = engine.stream(words).metrics()
        assert sum(nodes[f"count_{n}"].rows for n in range(3)) == 7
        assert max(nodes[f"count_{n}"].rows for n in range(3)) < 7


def test_a_partition_sees_its_own_rows_of_what_it_writes() -> None:
    seen: dict[int, list[int]] = {}

    def look(batch: pa.Table, tx: hg.Tx) -> None:
        adding(batch, tx)
        own = 0 if of(0, batch.column("k")[0].as_py()) else 1
        seen[own] = sorted(tx.sql("select k from totals").column("k").to_pylist())

    with hg.open(None, tables=[totals], dataflows=flow(look, output=None)) as engine:
        engine.push(source, rows(A, B, OTHER_A, OTHER_B))
        engine.push(source, rows(A, B))
        assert seen == {0: sorted([A, OTHER_A]), 1: sorted([B, OTHER_B])}


@pytest.mark.parametrize("how", ["insert", "update", "upsert", "delete"])
def test_a_partition_writes_no_row_of_another(how: str) -> None:
    def write(batch: pa.Table, tx: hg.Tx) -> None:
        given = {"k": A} if how == "delete" else {"k": A, "total": 7}
        getattr(tx, how)(totals, [given])

    with hg.open(None, tables=[totals], dataflows=flow(write, output=None)) as engine:
        found = engine.push(source, rows(B)).to_pylist()[-1]
        assert found["outcome"] == "aborted"
        assert found["reason"] == "totals: a row with 'k' of another partition"
        assert engine.counts()["totals"] == 0


def test_a_part_that_aborts_leaves_the_others_and_what_they_give_flows_on() -> None:
    def abort_b(batch: pa.Table, tx: hg.Tx) -> Any:
        found = adding(batch, tx)
        return hg.abort("not b") if B in batch.column("k").to_pylist() else found

    seen: list[list[int]] = []

    @hg.procedure(sums)
    def follow(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append(batch.column("k").to_pylist())

    with hg.open(None, tables=[totals], dataflows=flow(abort_b, follow)) as engine:
        engine.push(source, rows(A, B, OTHER_B))
        engine.push(source, rows(OTHER_B, A))
        assert engine.sql("from totals order by k").rows() == sorted([(A, 2), (OTHER_B, 1)])
        assert seen == [[A], [A, OTHER_B]]


def test_with_workers_partitions_run_at_once() -> None:
    both = threading.Barrier(2, timeout=100)

    def meet(batch: pa.Table, tx: hg.Tx) -> None:
        both.wait()  # each waits for the other
        adding(batch, tx)

    made = flow(meet, output=None, workers=hg.Workers(2))
    with hg.open(None, tables=[totals], dataflows=made) as engine:
        engine.push(source, rows(A, B))
        assert engine.sql("from totals order by k").rows() == sorted([(A, 1), (B, 1)])


class Held:
    """Partition 0 waits at its second batch until it is freed; partition 1 passes."""

    def __init__(self, **said: Any) -> None:
        self.is_free, self.is_there = threading.Event(), threading.Event()
        made = flow(self.run, output=None, workers=hg.Workers(2), **said)
        disk = SimulatedDisk()
        self.engine = hg.open("/store", tables=[totals], dataflows=made, disk=disk)
        self.stream = self.engine.stream(source)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_free.set()
        self.engine.close()

    def run(self, batch: pa.Table, tx: hg.Tx) -> None:
        if A in batch.column("k").to_pylist() and batch.column("v")[0].as_py() > 1:
            self.is_there.set()
            self.is_free.wait(100)
        adding(batch, tx)

    def send(self, count: int) -> None:
        self.stream.send(rows(A, B, v=1))
        self.stream.settle()  # else one may be at the third batch before the other is at the first
        for number in range(2, count + 1):
            self.stream.send(rows(A, B, v=number))
        assert self.is_there.wait(100)

    def batches(self) -> tuple[int, int]:
        found = self.stream.metrics()
        return found["add_0"].batches, found["add_1"].batches

    def await_batches(self, expected: tuple[int, int]) -> None:
        for _ in range(10_000):
            if self.batches() == expected:
                return
            threading.Event().wait(0.01)
        assert self.batches() == expected


def test_a_partition_may_be_batches_ahead_of_another_and_a_query_sees_one_batch() -> None:
    with Held() as held:
        held.send(5)
        held.await_batches((1, 5))
        found = held.stream.aligned()
        assert found.batch == 1
        query = "select k, total from totals order by k"
        assert held.engine.sql(query, epoch=found.epoch).rows() == sorted([(A, 1), (B, 1)])
        held.is_free.set()
        held.stream.settle()
        assert held.stream.aligned().batch == 5
        assert held.engine.sql(query).rows() == sorted([(A, 15), (B, 15)])


def test_aligned_partitions_do_not_pass_a_batch_before_all_have_come_to_it() -> None:
    with Held(align=3) as held:
        held.send(6)
        held.await_batches((1, 3))
        threading.Event().wait(0.1)
        assert held.batches() == (1, 3)
        held.is_free.set()
        held.stream.settle()
        assert held.batches() == (6, 6) and held.stream.aligned().batch == 6


@pytest.mark.parametrize("sees_all", [False, True])
def test_what_another_partition_writes_restarts_nobody(
    sees_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sees_all:  # and a turn that is of no partition is restarted: this test sees it
        is_same = staticmethod(lambda name, seen, found: found is seen)
        monkeypatch.setattr(order_of_units.LateTurn, "_is_same", is_same)
    has_read, has_written = threading.Event(), threading.Event()

    def cross(batch: pa.Table, tx: hg.Tx) -> None:
        if A in batch.column("k").to_pylist():
            tx.sql("from totals")
            has_read.set()
            has_written.wait(20)
        else:
            has_read.wait(20)
        adding(batch, tx)

    made = flow(cross, output=None, workers=hg.Workers(2))
    with hg.open(None, tables=[totals], dataflows=made) as engine:
        stream = engine.stream(source)
        stream.send(rows(A, B))
        for _ in range(2000):
            if stream.metrics()["add_1"].batches:
                break
            threading.Event().wait(0.01)
        has_written.set()
        stream.settle()
        assert engine.sql("from totals order by k").rows() == sorted([(A, 1), (B, 1)])
        assert stream.metrics()["add_0"].restarts == sees_all


@hg.transaction(event=ROWS, compiled=False)
def outside(event: hg.Event, row: hg.Row = totals.at("k", create=True)) -> None:
    row.total += event.v


def test_a_call_that_changes_a_partitions_row_restarts_it() -> None:
    calls: list[Any] = []

    def called(batch: pa.Table, tx: hg.Tx) -> None:
        tx.sql("from totals")
        if not calls:
            calls.append(None)
            thread = threading.Thread(target=lambda: engine.call(outside, k=A, v=10))
            thread.start()
            thread.join()
        adding(batch, tx)

    made = flow(called, output=None, workers=hg.Workers(2))
    with hg.open(None, tables=[totals], dataflows=made, transactions=[outside]) as engine:
        engine.push(source, rows(A))
        assert engine.sql("from totals").rows() == [(A, 11)]
        assert engine.stream(source).metrics()["add_0"].restarts == 1


nullable = hg.Stream("nullable", "k bigint NULL, v bigint")
other = hg.Table("other", "id bigint, k bigint", key="id")
by_k: Any = {"partition_by": "k", "partitions": 2, "name": "add"}


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: hg.procedure(source, partitions=2)(added), "need partition_by="),
        (lambda: hg.procedure(source, partition_by="k")(added), "partitions is a number from 2"),
        (lambda: hg.procedure(source, partition_by="k", partitions=1)(added), "from 2 on"),
        (lambda: hg.procedure(source, **by_k, align=0)(added), "align is a number from 1"),
        (lambda: flow(adding, writes=other), "has no column 'k' of this type in its key, id"),
        (lambda: hg.Dataflow("f", [hg.procedure(nullable, **by_k)(added)]), "not null"),
        (lambda: hg.Dataflow("f", [hg.procedure(source, **{**by_k, "partition_by": "x"})(added)]),
         "'x'"),
        (lambda: hg.Dataflow("f", [hg.procedure(source.window("2 rows"), **by_k)(added)]),
         "and no window"),
        (lambda: hg.Dataflow("f", [hg.procedure(source, **by_k)(added)],
                             nest=[["add_0", "add_1"]]), "is a partition"),
    ],
)  # fmt: skip
def test_wrong_partitions_are_refused(declare: Any, told: str) -> None:
    with pytest.raises(hg.DeclarationError, match=told):
        declare()


def test_a_stream_without_partitions_is_not_aligned() -> None:
    with hg.open(None, tables=[totals], dataflows=flow(adding)) as engine:
        with pytest.raises(hg.InputError, match="is taken by no procedure with partition_by"):
            engine.stream(sums).aligned()
        assert engine.stream(source).aligned().batch == 0
