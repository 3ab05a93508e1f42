"""The shop: orders with lines, paid, cancelled by their number alone, or given up by the clock.

    ./run python apps/shop.py            in memory, without Spark
    ./run python apps/shop.py FOLDER     on Spark: reads FOLDER/events, keeps FOLDER/shop

An order takes its goods from the stock and holds them until a time. Paid, they are sold; cancelled,
the order leads to its lines and these to their stock; else a tick of every minute finds the lines
whose time is over, and gives their goods back. Orders that are done expire after some minutes. At
the end goods and money add up, and both are drawn over time.
"""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import headgate as hg
from apps import case_study

FIRST = datetime.datetime(2024, 1, 1, 8, tzinfo=datetime.UTC)
MINUTES = 60
GOODS, EACH = 20, 40
HOLD_US = 5 * 60 * 1_000_000
NEVER_US = 250_000_000_000_000_000  # in the year 9892

stock = hg.Table("stock", "sku bigint, price bigint, count bigint", key="sku", check="count >= 0")
orders = hg.Table(
    "orders",
    "id bigint, state string DEFAULT 'new', total bigint, done timestamp NULL",
    key="id",
    expires="done + 10 minutes",
)
lines = hg.Table(
    "lines",
    "number bigint, line bigint, sku bigint, count bigint, until timestamp",
    key="number, line",
    index="until",
)
till = hg.Table("till", "id bigint, money bigint, paid bigint", key="id")


@hg.transaction(
    event="ts timestamp, id bigint, numbers array<bigint>, places array<bigint>, "
    "skus array<bigint>, counts array<bigint>"
)
def place(
    event: Any,
    order: Any = orders.at("id", create=True),
    mine: Any = lines.each("numbers", "places", create=True),
    goods: Any = stock.each("skus"),
) -> Any:
    if order.state != "new":
        return hg.abort("there is such an order")
    for n in range(len(mine)):
        goods[n].count -= event.counts[n]
        order.total += goods[n].price * event.counts[n]
        mine[n].sku = event.skus[n]
        mine[n].count = event.counts[n]
        mine[n].until = event.ts + HOLD_US
    order.state = "held"


@hg.transaction(event="ts timestamp, id bigint")
def pay(
    event: Any,
    order: Any = orders.at("id"),
    mine: Any = lines.where(number="id"),
    money: Any = till.at(lambda event: 0),
    out: Any = hg.output("money bigint, amount bigint"),
) -> Any:
    if order.state != "held":
        return hg.abort("not to be paid: " + order.state)
    order.state = "paid"
    for line in mine:
        line.until = NEVER_US
    money.money += order.total
    money.paid += 1
    out.amount = order.total
    out.money = money.money


@hg.transaction(event="ts timestamp, id bigint")
def cancel(
    event: Any,
    order: Any = orders.at("id"),
    mine: Any = lines.where(number="id"),
    goods: Any = stock.each(lambda mine: mine.sku),
    money: Any = till.at(lambda event: 0),
    out: Any = hg.output("money bigint, amount bigint"),
) -> Any:
    if order.state != "held" and order.state != "paid":
        return hg.abort("not to be cancelled: " + order.state)
    for n in range(len(mine)):
        goods[n].count += mine[n].count
        hg.delete(mine[n])
    if order.state == "paid":
        money.money -= order.total
        money.paid -= 1
        out.amount = -order.total
    out.money = money.money
    order.state = "cancelled"
    order.done = event.ts


@hg.transaction(every="1 minute")
def give_up(
    event: Any,
    due: Any = lines.between("start", "end", index="until"),
    goods: Any = stock.each(lambda due: due.sku),
    theirs: Any = orders.each(lambda due: due.number),
    out: Any = hg.output("returned bigint"),
) -> Any:
    for n in range(len(due)):
        goods[n].count += due[n].count
        out.returned += due[n].count
        theirs[n].state = "given up"
        theirs[n].done = event.end
        hg.delete(due[n])


TABLES = [stock, orders, lines, till]
ROUTES = {"place": place, "pay": pay, "cancel": cancel}
ORDER: dict[str, Any] = {"order_by": ["ts", "id"], "route_by": "kind", "ticks": [give_up]}
COLUMNS = (
    "kind string, ts timestamp, id bigint, numbers array<bigint>, "
    "places array<bigint>, skus array<bigint>, counts array<bigint>"
)
WATERMARK = "2 seconds"
FIRST_ROWS = {
    "stock": [{"sku": n, "price": 100 + 7 * n, "count": EACH} for n in range(GOODS)],
    "till": [{"id": 0, "money": 0, "paid": 0}],
}


def open_shop(path: str | None) -> hg.Engine:
    engine = hg.open(path, tables=TABLES, transactions=[*ROUTES.values(), give_up])
    for name, rows in FIRST_ROWS.items():
        engine.load(name, rows)
    return engine


def make_events(count: int) -> list[dict[str, Any]]:
    """Orders; some are paid in time, some too late, some cancelled before or after that."""
    dice = random.Random(7)
    found = []
    for number in range(count):
        ts = FIRST + datetime.timedelta(minutes=MINUTES) * number / count
        skus = dice.sample(range(GOODS), dice.randrange(1, 5))
        counts = [dice.randrange(1, 4) for _ in skus]
        numbers, places = [number] * len(skus), list(range(len(skus)))
        order = {"numbers": numbers, "places": places, "skus": skus, "counts": counts}
        found.append({"kind": "place", "ts": ts, "id": number, **order})
        for kind, share, minutes in (("pay", 0.6, 7), ("cancel", 0.7, 12)):
            if dice.random() < share:
                later = ts + datetime.timedelta(minutes=minutes) * dice.random()
                found.append({"kind": kind, "ts": later, "id": number, **dict.fromkeys(order)})
    return sorted(found, key=lambda event: event["ts"])


# --- what must add up -------------------------------------------------------------------------

GOODS_SQL = """
    select count(*) from stock left join
        (select sku, sum(count) as ordered from lines group by sku) using (sku)
    where count + coalesce(ordered, 0) <> ?
"""
MONEY_SQL = """
    select (select money from till) = coalesce(sum(lines.count * price), 0)
    from lines join stock using (sku) where until > TIMESTAMPTZ '9000-01-01'
"""
FLOW = """
    select minute, max(money) over (order by minute), sum(paid) over (order by minute) from (
        select date_trunc('minute', ts) as minute, arg_max(money, position + epoch * 1000000)
            as money, sum(coalesce(amount, 0)) as paid
        from results where outcome = 'committed' and money is not null group by 1)
    order by minute
"""


def adds_up(engine: hg.Engine) -> bool:
    """Whether no good is lost or sold twice, and the till has what was paid."""
    wrong = engine.sql(GOODS_SQL, [EACH]).rows()[0][0]
    return wrong == 0 and bool(engine.sql(MONEY_SQL).rows()[0][0])


def tell(engine: hg.Engine, picture: Path | None) -> bool:
    """Print, and draw, what became of the orders; whether goods and money add up."""
    told = "select transaction, outcome, count(*) from results group by all order by all"
    for transaction, outcome, count in engine.sql(told).rows():
        print(f"{transaction or '':10} {outcome:10} {count:6,}")
    print(f"orders that expired: {engine.metrics().expired['orders']:,}")
    is_right = adds_up(engine)
    print("goods and money add up" if is_right else "goods or money do NOT add up")
    if picture is not None:
        rows = engine.sql(FLOW).rows()
        series = {"paid": [float(row[2]) for row in rows], "till": [float(row[1]) for row in rows]}
        case_study.draw(picture, "Money in the till", "minutes", series)
        print(f"drawn in {picture}")
    return is_right


# --- the two ways to run it -------------------------------------------------------------------


def in_memory(count: int = 5_000) -> bool:
    with open_shop(None) as engine:
        engine.run(ROUTES, make_events(count), batch_size=1000, **ORDER)
        return tell(engine, None)


def on_spark(spark: Any, folder: Path, count: int = 5_000) -> bool:
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", make_events(count))
    with open_shop(str(folder / "shop")) as engine:
        sink = engine.sink(ROUTES, watermark=WATERMARK, **ORDER)
        case_study.feed(spark, folder, COLUMNS, [], sink)
        return tell(engine, folder / "shop.svg")


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
