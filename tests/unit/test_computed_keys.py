"""A computed key is judged where it is declared: what it takes, reads and gives."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import headgate as hg

orders = hg.Table("orders", "id bigint, sku string, n bigint, price double", key="id")
stock = hg.Table("stock", "sku string, left int", key="sku")
shelves = hg.Table("shelves", "number int, sku string, left int", key="number, sku")


def declare(*key: Any, table: hg.Table = stock, compiled: bool = True) -> Any:
    @hg.transaction(event="order bigint, shelf int", compiled=compiled)
    def cancel(event, order=orders.at("order"), found=table.at(*key)):
        found.left += order.n

    return cancel


def sets_a_column(order: Any) -> Any:
    order.n = 3
    return order.sku


def deletes(order: Any) -> Any:
    hg.delete(order)
    return order.sku


def aborts(order: Any) -> Any:
    return hg.abort("no")


REFUSED = {
    "takes 'odrer', which is no parameter.*it may take: event, order": lambda odrer: odrer.sku,
    "takes 'found', which is no parameter": lambda found: found.sku,
    "takes the names of parameters": lambda *order: 1,
    "'stock'.sku is string, and a int64 cannot": lambda order: order.n,
    "'stock'.sku is string, and a float64 cannot": lambda order: order.price,
    "table 'orders' has no column 'nosuch'": lambda order: order.nosuch,
    "random gives another number": lambda order: random.choice((order.sku, "a")),
    "only reads, and this sets .n": sets_a_column,
    "only reads, and this calls hg.delete": deletes,
    "only reads, and this calls hg.abort": aborts,
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_key_may_not_do_is_refused_with_its_line(words: str) -> None:
    function = REFUSED[words]
    with pytest.raises(hg.DeclarationError, match=words) as found:
        declare(function)
    assert re.search(r"test_computed_keys.py:\d+", str(found.value))


def test_what_python_could_not_do_is_refused_without_compiling_too() -> None:
    for function in (sets_a_column, deletes, lambda odrer: odrer.sku):
        with pytest.raises(hg.DeclarationError):
            declare(function, compiled=False)


def test_a_key_of_several_columns_mixes_columns_and_functions() -> None:
    declare("shelf", lambda order: order.sku, table=shelves)
    declare(lambda event, order: (event.shelf, order.sku), table=shelves)
    with pytest.raises(hg.DeclarationError, match="expected 2, got 3"):
        declare(lambda event, order: (event.shelf, order.sku, 1), table=shelves)
    with pytest.raises(hg.DeclarationError, match="sku is string"):
        declare("shelf", lambda order: order.n, table=shelves)
    with pytest.raises(hg.DeclarationError, match="the key has 2 columns"):
        declare("shelf", lambda order: order.sku, "order", table=shelves)


def test_rows_that_follow_rows_are_judged_where_they_are_declared() -> None:
    def declared(*, each: Any, several: Any) -> None:
        @hg.transaction(event="order bigint, ids array<bigint>", compiled=False)
        def follow(event, order=orders.at("order"), some=several, found=each):
            pass

    many = orders.each("ids")
    by_one = "has a row for each row of one parameter that names several.*it takes none of them"
    with pytest.raises(hg.DeclarationError, match=by_one):
        declared(each=stock.each(lambda order: order.sku), several=many)
    with pytest.raises(hg.DeclarationError, match="and those are: none"):
        declared(each=stock.each(lambda order: order.sku), several=orders.at("order"))
    with pytest.raises(hg.DeclarationError, match="are there already"):
        stock.each(lambda some: some.sku, create=True)
    with pytest.raises(hg.DeclarationError, match="functions alone"):
        shelves.each("ids", lambda some: some.sku)
    with pytest.raises(hg.DeclarationError, match=r"stock.each\(function\)"):
        stock.where(sku=lambda order: order.sku)  # type: ignore[arg-type]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_key_function_that_gives_none_aborts_its_event(compiled: bool) -> None:
    wishes = hg.Table("wishes", "id bigint, sku string NULL", key="id")

    @hg.transaction(event="wish bigint", compiled=compiled)
    def grant(event, wish=wishes.at("wish"), found=stock.at(lambda wish: wish.sku)):
        found.left -= 1

    with hg.open(None, tables=[wishes, stock], transactions=[grant]) as engine:
        engine.load(wishes, [{"id": 1, "sku": None}, {"id": 2, "sku": "tea"}])
        engine.load(stock, [{"sku": "tea", "left": 3}])
        reasons = engine.run(grant, [{"wish": 1}, {"wish": 2}])["reason"].to_pylist()
        assert reasons == ["error: TypeError: None where a value is needed", None]
        assert engine.get(stock, "tea")["left"] == 2


def on_one_way(wish: Any) -> Any:
    if wish.n > 5:
        return None
    return wish.sku


@pytest.mark.parametrize("scheme", ["serial", "shares", "virtual"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_key_function_that_gives_none_on_one_way_aborts_the_events_that_go_it(
    compiled: bool, scheme: str
) -> None:
    many = hg.Table("many", "id bigint, sku string, n bigint", key="id")

    @hg.transaction(event="id bigint", compiled=compiled)
    def grant(event, wish=many.at("id"), found=stock.at(on_one_way)):
        found.left -= 1
        wish.n += 1

    with hg.open(None, tables=[many, stock], transactions=[grant]) as engine:
        engine.load(many, [{"id": 1, "sku": "tea", "n": 4}, {"id": 2, "sku": "tea", "n": 9}])
        engine.load(stock, [{"sku": "tea", "left": 10}])
        events = [{"id": one} for one in (1, 2, 1, 1)]
        reasons = engine.run(grant, events, scheme=scheme, threads=2).column("reason").to_pylist()
        none = "error: TypeError: None where a value is needed"
        assert reasons == [None, none, None, none]
        assert engine.sql("select n from many order by id").rows() == [(6,), (9,)]
        assert engine.sql('select "left" from stock').rows() == [(8,)]


def test_a_key_beyond_its_type_is_the_outcome_of_its_event() -> None:
    @hg.transaction(event="order bigint")
    def note(event, order=orders.at("order"), shelf=shelves.at(lambda order: order.n, sku_a)):
        shelf.left += 1

    with hg.open(None, tables=[orders, shelves], transactions=[note]) as engine:
        engine.load(orders, [{"id": 1, "sku": "a", "n": 2**31, "price": 0.0}])
        assert engine.call(note, order=1).reason == "error: OverflowError: overflow"
        assert engine.call(note, order=2).reason == "missing key: orders"


def test_a_key_may_be_a_text_that_is_put_together() -> None:
    @hg.transaction(event="order bigint")
    def note(event, order=orders.at("order"), found=stock.at(lambda order: order.sku + "-b")):
        found.left += 1

    with hg.open(None, tables=[orders, stock], transactions=[note]) as engine:
        engine.load(orders, [{"id": 1, "sku": "a", "n": 1, "price": 0.0}])
        assert engine.call(note, order=1).reason == "missing key: stock"
        engine.load(stock, [{"sku": "a-b", "left": 3}])
        assert engine.call(note, order=1).committed
        assert engine.get(stock, "a-b")["left"] == 4


def sku_a() -> str:
    return "a"


def test_other_code_of_a_key_is_other_code_for_recovery() -> None:
    from headgate.engine.rerun import fingerprint_of

    marks = {fingerprint_of([declare(one)]) for one in (sku_of, sku_of_another, sku_of)}
    assert len(marks) == 2


def sku_of(order: Any) -> Any:
    return order.sku


def sku_of_another(order: Any) -> Any:
    return order.sku if order.n > 0 else "none"
