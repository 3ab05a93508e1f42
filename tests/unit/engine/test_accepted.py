"""What a newcomer gets right in another way than the shortest one: it is accepted, too."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

import headgate as hg
from tests.unit.engine.refusing import accounts

GOOD = {
    "ts": dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC),
    "src": 1,
    "dst": 2,
    "amount": 1.0,
}


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double", compiled=False)
def transfer(event, src=accounts.at("src"), dst=accounts.at("dst")):
    src.balance -= event.amount
    dst.balance += event.amount


@pytest.fixture(scope="module")
def engine() -> Iterator[hg.Engine]:
    with hg.open(None, tables=accounts, transactions=transfer) as opened:
        opened.load(accounts, [{"id": number, "balance": 100.0} for number in range(3)])
        yield opened


def test_a_transaction_goes_by_its_name_everywhere() -> None:
    with hg.open(None, tables=accounts, transactions=transfer) as engine:
        engine.load("accounts", [{"id": number, "balance": 100.0} for number in range(3)])
        assert engine.call("transfer", **GOOD).committed
        assert engine.submit("transfer", **GOOD).result().committed
        assert engine.call_once("k", "transfer", **GOOD).committed
        assert engine.run("transfer", [GOOD]).num_rows == 1
        routed = engine.run({1: "transfer"}, [{**GOOD, "kind": 1}], route_by="kind")
        assert routed.column("outcome").to_pylist() == ["committed"]
        assert engine.flush("transfer").num_rows == 0
        engine.sink("transfer", order_by="ts, src")
        assert engine.get("accounts", 1) == {"id": 1, "balance": 95.0}


def test_an_equal_table_is_the_same_table(engine: hg.Engine) -> None:
    equal = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
    assert engine.get(equal, 0) == engine.get(accounts, 0) == engine.get("accounts", 0)
    assert engine.scan(equal, columns="id").rows() == [(0,), (1,), (2,)]


@pytest.mark.parametrize("level", ["PL1", "read-committed", "PL3", "strict"])
def test_every_level_of_isolation_holds_for_a_single_call(engine: hg.Engine, level: str) -> None:
    same = {**GOOD, "src": 1, "dst": 1}
    assert engine.call(transfer, isolation=level, **same).committed
    assert engine.submit(transfer, isolation=level, **same).result().committed
    assert engine.call_once(level, transfer, isolation=level, **same).committed


def test_a_column_called_isolation_is_the_events_own() -> None:
    @hg.transaction(event="id bigint, isolation string", compiled=False)
    def note(event, row=accounts.at("id"), out=hg.output("seen string")):
        out.seen = event.isolation

    with hg.open(None, tables=accounts, transactions=note) as engine:
        engine.load(accounts, [{"id": 1, "balance": 1.0}])
        event = {"id": 1, "isolation": "splendid"}
        found = [
            engine.call(note, **event),
            engine.submit(note, **event).result(),
            engine.call_once("k", note, **event),
        ]
    assert [one.seen for one in found] == ["splendid"] * 3


@pytest.mark.parametrize(
    ("chosen", "words"),
    [(0, "the event"), (1, "a tuple"), (2, "the output of 'remove'"), (3, "a str")],
)
def test_what_is_no_row_is_not_deleted_by_plain_functions(chosen: int, words: str) -> None:
    table = hg.Table("t", "id bigint", key="id")

    @hg.transaction(event="id bigint, ids array<bigint>", compiled=False)
    def remove(event, rows=table.each("ids"), out=hg.output("n bigint")):
        out.n = 7
        hg.delete((event, rows, out, "x")[chosen])

    with hg.open(None, tables=[table], transactions=[remove]) as engine:
        engine.load(table, [{"id": 1}])
        found = engine.call(remove, id=1, ids=[1])
    assert (found.outcome, found.reason) == (
        "aborted",
        "error: TypeError: hg.delete takes a row, as table.at(...) or one of table.each(...) "
        f"gives it, not {words}",
    )
