"""Shops that sell from their own stock: a program whose tables are not declared for shards yet."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headgate as hg
from tests.unit.dataflow import shows

SHOPS, ITEMS = 16, 10
stock = hg.Table("stock", "shop int, item int, n bigint", key="shop, item", index="shop")
prices = hg.Table("prices", "item int, price double", key="item")
takings = hg.Table("takings", "shop int, total double", key="shop")


@hg.transaction(event="shop int, item int, n bigint", compiled=False)
def sell(
    event: Any,
    on_shelf: Any = stock.at("shop", "item"),
    price: Any = prices.at("item", mode="read"),
    taken: Any = takings.at("shop"),
) -> None:
    on_shelf.n -= event.n
    taken.total += event.n * price.price


@hg.transaction(event="shop int, item int, n bigint", compiled=False)
def deliver(event: Any, on_shelf: Any = stock.at("shop", "item")) -> None:
    on_shelf.n += event.n


@hg.transaction(event="shop int", compiled=False)
def clear(event: Any, shelves: Any = stock.where("shop")) -> None:
    for shelf in shelves:
        shelf.n = 0


def sales(count: int) -> pa.Table:
    shops = [7 * n % SHOPS for n in range(count)]
    items = [3 * n % ITEMS for n in range(count)]
    kinds = [pa.int32(), pa.int32(), pa.int64()]
    arrays = [
        pa.array(one, kind) for one, kind in zip((shops, items, [1] * count), kinds, strict=True)
    ]
    return pa.table(dict(zip(("shop", "item", "n"), arrays, strict=True)))


def deliveries(count: int) -> pa.Table:
    return sales(count)


def open_shops(path: Any = None) -> hg.Engine:
    engine = hg.open(path, tables=[stock, prices, takings], transactions=[sell, deliver, clear])
    engine.load(
        stock, [{"shop": n // ITEMS, "item": n % ITEMS, "n": 0} for n in range(SHOPS * ITEMS)]
    )
    engine.load(prices, [{"item": n, "price": 1.0} for n in range(ITEMS)])
    engine.load(takings, [{"shop": n, "total": 0.0} for n in range(SHOPS)])
    return engine


def open_show() -> hg.Engine:
    """The voters' show, whose nodes go to workers."""
    engine = hg.open(None, tables=shows.TABLES, dataflows=[shows.show(())])
    engine.load(shows.contestants, [{"id": n, "name": str(n)} for n in (1, 2)])
    return engine
