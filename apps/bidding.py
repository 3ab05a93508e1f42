"""Online Bidding: buyers bid for items while sellers change prices and fill up the stock.

./run python apps/bidding.py
"""

from __future__ import annotations

import datetime
import random
from typing import Any

import headgate as hg

items = hg.Table(
    "items",
    "id bigint, price double, quantity bigint",
    key="id",
    check="price > 0 and quantity >= 0",
)


@hg.transaction(event="ts timestamp, item bigint, price double, quantity bigint")
def bid(event: Any, item: Any = items.at("item"), out: Any = hg.output("remaining bigint")) -> Any:
    if event.price < item.price:
        return hg.abort("below the asking price")
    if event.quantity > item.quantity:
        return hg.abort("not enough of it")
    item.quantity -= event.quantity
    out.remaining = item.quantity


# A seller changes many items at once: all of them or, when one is refused, none.
@hg.transaction(event="ts timestamp, items array<bigint>, prices array<double>")
def alter(event: Any, listed: Any = items.each("items")) -> Any:
    for place, item in enumerate(listed):
        item.price = event.prices[place]


@hg.transaction(event="ts timestamp, items array<bigint>, quantities array<bigint>")
def top(event: Any, listed: Any = items.each("items")) -> Any:
    for place, item in enumerate(listed):
        item.quantity += event.quantities[place]


ROUTES = {"bid": bid, "alter": alter, "top": top}
ORDER = {"route_by": "kind", "order_by": "ts"}
FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
ROWS = 1_000
LISTED = 20  # items in a request to alter or to top


def make_events(count: int) -> list[dict[str, Any]]:
    """Six bids for every request to alter and every request to top."""
    dice = random.Random(7)
    return [
        {
            "kind": dice.choices(["bid", "alter", "top"], [6, 1, 1])[0],
            "ts": FIRST + datetime.timedelta(milliseconds=number),
            "item": dice.randrange(ROWS),
            "price": dice.uniform(20, 120),
            "quantity": dice.randrange(1, 10),
            "items": dice.sample(range(ROWS), LISTED),
            "prices": [dice.uniform(1, 100) for _ in range(LISTED)],
            "quantities": [dice.randrange(5) for _ in range(LISTED)],
        }
        for number in range(count)
    ]


def main() -> None:
    with hg.open(None, tables=[items], transactions=[bid, alter, top]) as engine:
        first = [{"id": number, "price": 50.0, "quantity": 20} for number in range(ROWS)]
        engine.load(items, first)
        results = engine.run(ROUTES, make_events(10_000), **ORDER)
        by = ["transaction", "outcome", "reason"]
        found = results.group_by(by).aggregate([([], "count_all")])
        print(found.to_pandas().to_string(index=False))
        print(engine.sql("select sum(quantity), avg(price) from items").rows())


if __name__ == "__main__":
    main()
