"""Order routing: orders hold their buyer's money, get a venue, and are filled or given back.

    ./run python apps/routing.py              in memory, without Spark
    ./run python apps/routing.py FOLDER       on Spark: reads FOLDER/events, keeps FOLDER/desk

The FIX example of S-Store. An order that its buyer can pay holds the money; then a venue is chosen
by how often it filled orders of that symbol; the venue's answers come in on a stream of their own,
and settle the order or give the money back, between the orders that follow. On Spark two queries
feed the two sources, and the venues are a third party that follows the stream of routed orders.
Which answer comes before which order is a matter of luck, so the judge is plain Python that goes
through the recorded results in their order: each must be what one thread would have made of it.
"""

from __future__ import annotations

import datetime
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

import headgate as hg
from apps import case_study

BUYERS, SYMBOLS, VENUES = 20, 3, 4
CASH = 20_000
FIRST = datetime.datetime(2026, 1, 5, 9, tzinfo=datetime.UTC)
COLUMNS = "ts timestamp, id bigint, buyer bigint, symbol int, amount bigint"

buyers = hg.Table(
    "buyers",
    "id bigint, cash bigint, held bigint DEFAULT 0, spent bigint DEFAULT 0",
    key="id",
    check="cash >= 0 and held >= 0",
)
venues = hg.Table(
    "venues", "id int, symbol int, sent bigint DEFAULT 0, filled bigint DEFAULT 0", key="id, symbol"
)
pending = hg.Table(
    "pending", "id bigint, buyer bigint, symbol int, amount bigint, venue int", key="id"
)
TABLES = [buyers, venues, pending]

orders = hg.Stream("orders", COLUMNS, order_by=["ts", "id"], batch="20 rows")
accepted = hg.Stream("accepted", COLUMNS)
routed = hg.Stream("routed", f"{COLUMNS}, venue int")
answers = hg.Stream("answers", "ts timestamp, id bigint, filled boolean", order_by=["ts", "id"])


@hg.transaction(event=orders, output=accepted)
def hold(event: Any, buyer: Any = buyers.at("buyer")) -> Any:
    if buyer.cash < event.amount:
        return hg.abort("not enough buying power")
    buyer.cash -= event.amount
    buyer.held += event.amount


@hg.procedure(accepted, output=routed, writes=[venues, pending])
def select_venue(batch: pa.Table, tx: hg.Tx) -> pa.Table:
    """All orders of a batch by the venues' figures as they are now; the best has most filled."""
    chosen = tx.sql(
        """select batch.*, venues.id as venue from batch join venues using (symbol)
           qualify row_number() over (
             partition by batch.id order by (filled + 1) / (sent + 1) desc, venues.id) = 1
           order by batch.ts, batch.id"""
    )
    tx.insert(pending, chosen.drop_columns(["ts"]))
    tx.update(
        venues,
        """select id, symbol, sent + more as sent from venues join (
             select venue as id, symbol, count(*) as more
             from pending where id in (select id from batch) group by all
           ) using (id, symbol)""",
    )
    return chosen


@hg.transaction(event=answers)
def settle(
    event: Any,
    order: Any = pending.at("id"),
    buyer: Any = buyers.at(lambda order: order.buyer),
    venue: Any = venues.at(lambda order: (order.venue, order.symbol)),
) -> None:
    buyer.held -= order.amount
    if event.filled:
        buyer.spent += order.amount
        venue.filled += 1
    else:
        buyer.cash += order.amount
    hg.delete(order)


routing = hg.Dataflow("routing", [hold, select_venue, settle])


def open_desk(path: str | None) -> hg.Engine:
    engine = hg.open(path, tables=TABLES, dataflows=routing)
    engine.load(buyers, [{"id": n, "cash": CASH} for n in range(BUYERS)], mode="skip")
    every = [{"id": v, "symbol": s} for v in range(VENUES) for s in range(SYMBOLS)]
    engine.load(venues, every, mode="skip")
    return engine


def make_orders(count: int) -> list[dict[str, Any]]:
    dice = random.Random(5)
    return [
        {
            "ts": FIRST + datetime.timedelta(milliseconds=50 * number),
            "id": number,
            "buyer": min(dice.randrange(BUYERS), dice.randrange(BUYERS)),
            "symbol": dice.randrange(SYMBOLS),
            "amount": dice.randrange(1, 4000),
        }
        for number in range(count)
    ]


# Which orders a venue fills: the later venues fill more of them. The same in Python and in Spark.
FILLS = "pmod(id * 7 + 3, 10) < 5 + venue"


def fills(order: int, venue: int) -> bool:
    return (order * 7 + 3) % 10 < 5 + venue


# --- the judge ----------------------------------------------------------------------------------

RECORDED = "select * from results order by epoch, position"


class Judge:
    """One thread of plain Python over the recorded results, in their order."""

    def __init__(self) -> None:
        self.cash = dict.fromkeys(range(BUYERS), CASH)
        self.sent, self.filled = Counter[Any](), Counter[Any]()
        self.pending: dict[int, dict[str, Any]] = {}
        self.waiting: list[dict[str, Any]] = []  # answers that are not settled yet
        self.best: dict[int, int] = {}  # by symbol: the venue of the batch that is routed
        self.counts = Counter[str]()
        self.faults: list[str] = []

    def take(self, row: dict[str, Any]) -> None:
        self.counts[f"{row['transaction']} {row['outcome']}"] += 1
        steps = {"hold": self.hold, "select_venue": self.select, "routed": self.route,
                 "answers": self.waiting.append, "settle": self.settle}  # fmt: skip
        if row["transaction"] in steps:  # the others are streams, which say nothing more
            steps[row["transaction"]](row)

    def hold(self, row: dict[str, Any]) -> None:
        can_pay = self.cash[row["buyer"]] >= row["amount"]
        self.expect(can_pay == (row["outcome"] == "committed"), f"order {row['id']}: its money")
        self.cash[row["buyer"]] -= row["amount"] if can_pay else 0

    def select(self, row: dict[str, Any]) -> None:
        """The figures are those before any order of the batch is sent."""
        for symbol in range(SYMBOLS):
            shares = [
                (self.filled[venue, symbol] + 1) / (self.sent[venue, symbol] + 1)
                for venue in range(VENUES)
            ]
            self.best[symbol] = shares.index(max(shares))

    def route(self, row: dict[str, Any]) -> None:
        self.expect(row["venue"] == self.best[row["symbol"]], f"order {row['id']}: its venue")
        self.expect(row["id"] not in self.pending, f"order {row['id']}: routed twice")
        self.sent[row["venue"], row["symbol"]] += 1
        self.pending[row["id"]] = row

    def settle(self, row: dict[str, Any]) -> None:
        answer = self.waiting.pop(0)  # they are settled as they came
        order = self.pending.pop(answer["id"], None)
        is_right = (order is not None) == (row["outcome"] == "committed")
        self.expect(is_right, f"answer to order {answer['id']}: {row['outcome']}")
        if order is not None and answer["filled"]:
            self.filled[order["venue"], order["symbol"]] += 1
        elif order is not None:
            self.cash[order["buyer"]] += order["amount"]

    def expect(self, holds: bool, words: str) -> None:
        self.faults += [] if holds else [words]


def compare(engine: hg.Engine, given: list[dict[str, Any]]) -> bool:
    """Print what became of the orders; whether one thread of Python would have made the same."""
    judge = Judge()
    for row in engine.sql(RECORDED).arrow().to_pylist():
        judge.take(row)
    held = judge.counts["hold committed"] + judge.counts["hold aborted"]
    judge.expect(held == len(given), f"{held} of {len(given)} orders were looked at")
    judge.expect(not judge.pending, f"{len(judge.pending)} orders have no answer")
    cash = dict(engine.sql("select id, cash from buyers").rows())
    judge.expect(cash == judge.cash, "the buyers have other money")
    total = engine.sql("select sum(cash + held + spent) from buyers").rows()[0][0]
    judge.expect(total == BUYERS * CASH, f"{total} of {BUYERS * CASH} cents are there")
    refused, filled = judge.counts["hold aborted"], sum(judge.filled.values())
    print(f"{len(given):,} orders: {refused:,} refused, {filled:,} filled, the others given back")
    print(
        "\n".join(judge.faults[:5]) or "as one thread of plain Python has it, and no cent is lost"
    )
    return not judge.faults


# --- the two ways to run it ---------------------------------------------------------------------


def in_memory(count: int = 2000) -> bool:
    given = make_orders(count)
    with open_desk(None) as engine:
        late: list[dict[str, Any]] = []
        for first in range(0, count, 50):
            rows = engine.push(orders, given[first : first + 50]).to_pylist()
            engine.push(answers, late)
            late = answers_to(rows)
        late += answers_to(engine.flush(orders).to_pylist())
        engine.push(answers, late)
        return compare(engine, given)


def answers_to(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"ts": row["ts"], "id": row["id"], "filled": fills(row["id"], row["venue"])}
        for row in rows
        if row["transaction"] == "routed"
    ]


def on_spark(spark: Any, folder: Path, count: int = 2000) -> bool:
    given = make_orders(count)
    if not (folder / "events").exists():
        case_study.write_files(folder / "events", given, late=0.0)
    with open_desk(str(folder / "desk")) as engine:
        hg.register(spark)
        follow = spark.readStream.format("headgate").option("stream", "routed")
        answered = follow.load(str(folder / "desk")).selectExpr("ts", "id", f"{FILLS} as filled")
        arriving = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        sink = engine.sink(orders)
        placing = start(arriving.json(str(folder / "events")), sink, folder / "placing")
        answering = start(answered, engine.sink(answers), folder / "answering")
        placing.processAllAvailable()
        sink.flush(placing)  # the last orders do not fill a batch
        answering.processAllAvailable()
        placing.stop()
        answering.stop()
        return compare(engine, given)


def start(frame: Any, sink: Any, checkpoint: Path) -> Any:
    writer = frame.writeStream.foreachBatch(sink)
    return writer.option("checkpointLocation", str(checkpoint)).start()


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
