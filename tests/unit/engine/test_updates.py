"""`updates=True`: results carry the rows as each transaction left them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.testing import SerialOracle, results_difference

stock = hg.Table(
    "stock", "sku string, count bigint, price decimal(8,2)", key="sku", check="count >= 0"
)
orders = hg.Table("orders", "id bigint, lines int, open boolean DEFAULT true", key="id")


def take(
    event,
    order=orders.at("id", create=True),
    items=stock.each("skus"),
    seen=stock.at("seen", mode="read"),
    out=hg.output("left bigint"),
):
    order.lines += len(items)
    for item in items:
        item.count -= 1
    if event.id == 13:
        hg.delete(order)
    out.left = seen.count


EVENT = "id bigint, skus array<string>, seen string"
FORMS = [hg.transaction(event=EVENT, compiled=compiled)(take) for compiled in (True, False)]
ROWS = [{"sku": sku, "count": 2, "price": 1} for sku in ("tea", "cup")]
EVENTS = [
    {"id": 1, "skus": ["tea", "cup"], "seen": "tea"},
    {"id": 1, "skus": [], "seen": "tea"},
    {"id": 13, "skus": ["tea", "tea"], "seen": "tea"},
    {"id": 13, "skus": ["tea"], "seen": "cup"},
    {"id": 2, "skus": ["pot"], "seen": "cup"},
    {"id": None, "skus": ["cup"], "seen": "cup"},
]


def opened(form: hg.Transaction, path: Path | None = None, **options: Any) -> hg.Engine:
    engine = hg.open(path, [stock, orders], [form], **options)
    engine.load(stock, ROWS)
    return engine


@pytest.mark.parametrize("form", FORMS, ids=["compiled", "plain"])
def test_the_rows_are_those_the_oracle_has_after_each_transaction(form: hg.Transaction) -> None:
    oracle = SerialOracle([stock, orders], [form])
    oracle.load(stock, ROWS)
    with opened(form) as engine:
        found = engine.run(form, EVENTS, updates=True)
        assert results_difference(found, oracle.run(form, EVENTS, updates=True)) is None
    first = found.to_pylist()[0]
    assert first["order"] == {"id": 1, "lines": 2, "open": True}
    assert [item["count"] for item in first["items"]] == [1, 1]
    assert "seen" not in first  # it is only read


def test_a_row_is_null_where_nothing_was_installed_or_the_row_was_deleted() -> None:
    with opened(FORMS[1]) as engine:
        rows = engine.run(FORMS[1], EVENTS, updates=True).to_pylist()
    assert [row["outcome"] for row in rows] == [
        "committed", "committed", "aborted", "committed", "aborted", "rejected",
    ]  # fmt: skip
    assert rows[1]["items"] == []
    assert [row["order"] for row in rows[2:]] == [None] * 4  # the fourth one deleted it
    assert [row["items"] is None for row in rows[2:]] == [True, False, True, True]


def test_the_types_are_those_of_the_table() -> None:
    with opened(FORMS[1]) as engine:
        schema = engine.run(FORMS[1], EVENTS, updates=True).schema
    row = pa.struct([("sku", pa.string()), ("count", pa.int64()), ("price", pa.decimal128(8, 2))])
    assert schema.field("items").type == pa.list_(row)


def test_a_store_keeps_them_and_knows_their_types(tmp_path: Path) -> None:
    with opened(FORMS[1], tmp_path / "shop") as engine:
        engine.run(FORMS[1], EVENTS[:2], updates=True)
    with hg.open(tmp_path / "shop", [stock, orders], [FORMS[1]]):
        declared = StoreReader.open(tmp_path / "shop").declared()
        kept = declared["streams"]["take"]["results"]
        assert "order struct<id: bigint, lines: int, open: boolean>" in kept


def test_weak_recovery_gives_the_same_results_again(tmp_path: Path) -> None:
    with opened(FORMS[1], tmp_path / "shop", recovery="weak") as engine:
        engine.run(FORMS[1], EVENTS, updates=True)
    with hg.open(tmp_path / "shop", [stock, orders], [FORMS[1]], recovery="weak") as engine:
        assert engine.sql("select count from stock where sku = 'tea'").rows() == [(0,)]


def test_a_table_that_got_a_column_goes_on_with_its_stream(tmp_path: Path) -> None:
    def program(columns: str) -> tuple[hg.Table, hg.Transaction]:
        things = hg.Table("things", columns, key="id")

        @hg.transaction(event="id bigint", compiled=False)
        def make(event, thing=things.at("id", create=True)):
            thing.n += 1

        return things, make

    for columns in ("id bigint, n int", "id bigint, n int, name string DEFAULT 'x'"):
        things, make = program(columns)
        with hg.open(tmp_path / "s", [things], [make]) as engine:
            found = engine.run(make, [{"id": 1}], updates=True).to_pylist()[0]["thing"]
    assert found == {"id": 1, "n": 2, "name": "x"}


def test_a_parameter_that_is_named_as_a_result_column_is_refused() -> None:
    @hg.transaction(event="id bigint", compiled=False)
    def clash(event, position=orders.at("id")):
        position.lines += 1

    engine = hg.open(None, [orders], [clash])
    with pytest.raises(hg.InputError, match="a column 'position' already"):
        engine.run(clash, [{"id": 1}], updates=True)


def test_one_parameter_name_for_two_tables_in_one_sink_is_refused() -> None:
    @hg.transaction(event="id bigint", compiled=False)
    def one(event, row=orders.at("id")):
        row.lines += 1

    @hg.transaction(event="sku string", compiled=False)
    def other(event, row=stock.at("sku")):
        row.count += 1

    engine = hg.open(None, [orders, stock], [one, other])
    with pytest.raises(hg.InputError, match="different tables"):
        engine.run({1: one, 2: other}, [], route_by="kind", updates=True)
