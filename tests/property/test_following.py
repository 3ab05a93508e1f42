"""Rows that follow the rows of a range: an order by its number, its lines, the stock of each line.

A range and computed keys in one transaction, also where the batch itself moves rows in and out of
the range: every form and every scheme gives what the oracle gives.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import headgate as hg
from headgate.kernels import generating_keys
from headgate.testing import SerialOracle, difference, results_difference

orders = hg.Table("orders", "id bigint, customer bigint, state string DEFAULT 'open'", key="id")
lines = hg.Table("lines", "order bigint, number int, sku bigint, count bigint", key="order, number")
stock = hg.Table("stock", "sku bigint, left bigint, region bigint", key="sku", check="left >= 0")
regions = hg.Table("regions", "id bigint, returned bigint", key="id")
customers = hg.Table("customers", "id bigint, orders bigint", key="id")
TABLES = [orders, lines, stock, regions, customers]
EVENT = "kind string, order bigint, customer bigint, skus array<bigint>, two int"
SKUS, ORDERS = 8, 30


def place(event, order=orders.at("order", create=True),
          customer=customers.at("customer", create=True),
          one=lines.at("order", "two", create=True), shelves=stock.each("skus")):  # fmt: skip
    order.customer = event.customer
    customer.orders += 1
    for shelf in shelves:
        one.sku = shelf.sku
        one.count += 1
        shelf.left -= 1


def cancel(event, order=orders.at("order"), customer=customers.at(lambda order: order.customer),
           items=lines.where(order="order"), shelves=stock.each(lambda items: items.sku),
           homes=regions.each(lambda shelves: shelves.region),
           out=hg.output("count bigint")):  # fmt: skip
    if order.state == "shut":
        return hg.abort("shut")
    for item, shelf in zip(items, shelves, strict=True):
        shelf.left += item.count
        hg.delete(item)
    for home in homes:
        home.returned += 1
    out.count = sum(item.count for item in items)
    customer.orders -= 1
    hg.delete(order)


def ship(event, items=lines.where(order="order", mode="read"),
         shelves=stock.each(lambda event, items: items.sku + event.two % 2)):  # fmt: skip
    for item, shelf in zip(items, shelves, strict=True):
        shelf.left -= item.count - item.number % 2


def swap(event, one=lines.at("order", "two"), shelf=stock.at(lambda one: one.sku)):
    one.sku = (one.sku + event.customer) % SKUS
    shelf.left += 1


MOVING, STILL = (place, cancel), (ship, swap)


def routes(functions: tuple[Any, ...], compiled: bool = True, mark: str = "") -> dict[str, Any]:
    """The transactions by their kind; with a mark of their own, no kernel is built for them yet."""
    return {
        one.__name__: hg.transaction(EVENT, compiled=compiled, name=one.__name__ + mark)(one)
        for one in functions
    }


def events(seed: int, kinds: list[str], count: int = 80) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "kind": chance.choice(kinds),
            "order": chance.randrange(ORDERS),
            "customer": chance.randrange(4),
            "skus": [chance.randrange(SKUS) for _ in range(chance.randrange(3))],
            "two": chance.randrange(3),
        }
        for _ in range(count)
    ]


def rows() -> dict[str, list[dict[str, Any]]]:
    return {
        "stock": [{"sku": sku, "left": 20, "region": sku % 4} for sku in range(SKUS)],
        "regions": [{"id": number, "returned": 0} for number in range(3)],
        "lines": [
            {"order": order, "number": number, "sku": (order + number) % SKUS, "count": order % 3}
            for order in range(ORDERS)
            for number in range(order % 4)
        ],
        "customers": [{"id": 0, "orders": 0}],
        "orders": [{"id": order, "customer": order % 3} for order in range(0, ORDERS, 2)],
    }


def compare(known: dict[str, Any], seeds: range, **options: Any) -> hg.Engine:
    """Engine and oracle over the same batches; asserts that they do not differ."""
    oracle = SerialOracle(TABLES, list(known.values()))
    updates = {"updates": options.pop("updates", False)}
    engine = hg.open(None, tables=TABLES, transactions=list(known.values()))
    for name, first in rows().items():
        oracle.load(name, first)
        engine.load(name, first)
    for seed in seeds:
        batch = events(seed, list(known))
        wanted = oracle.run(known, batch, route_by="kind", **updates)
        found = engine.run(known, batch, route_by="kind", **updates, **options)
        assert results_difference(found, wanted) is None
    assert difference(engine, oracle) is None
    return engine


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("compiled", [True, False])
def test_lines_that_come_and_go_lead_to_their_stock(compiled: bool, updates: bool) -> None:
    compare(routes(MOVING, compiled), range(4), updates=updates).close()


@pytest.mark.parametrize("compiled", [True, False])
def test_one_event_by_itself_is_called_alike(compiled: bool) -> None:
    known = routes(MOVING, compiled)
    oracle = SerialOracle(TABLES, list(known.values()))
    with hg.open(None, tables=TABLES, transactions=list(known.values())) as engine:
        for name, first in rows().items():
            oracle.load(name, first)
            engine.load(name, first)
        for event in events(9, list(known), 30):
            one = known[event["kind"]]
            assert (
                results_difference([engine.call(one, **event)], [oracle.call(one, **event)]) is None
            )
        assert difference(engine, oracle) is None


# One for each text that looks for such rows, and with --long others by the same texts: how threads
# go through the tasks is proved over the widest shape (tests/property/test_wide.py).
WAYS = ("auto", "serial", "ready", "shares", "virtual", "ready-operation-eager")
SCHEMES = (*WAYS, "strata", "depth", "lal", "strata-chain-lazy")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("long")
        metafunc.parametrize("any_scheme", SCHEMES if is_long else WAYS)


def test_every_scheme_finds_the_stock_of_lines_that_others_change(any_scheme: str) -> None:
    with compare(routes(STILL), range(5), scheme=any_scheme, threads=2) as engine:
        told = " ".join(decision.why for decision in engine.decisions())
        assert "compile" not in told and "could not finish" not in told, told


def test_a_plan_that_trusts_lines_which_others_change_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The canary: nothing ends a section of certainty."""
    monkeypatch.setattr(generating_keys.DynamicText, "_certain", lambda *given: [])
    with pytest.raises(AssertionError):
        compare(routes(STILL, mark="_trusting"), range(5), scheme="ready", threads=2)
