"""Streaming Ledger: money and goods change hands, all or nothing, in event-time order.

    ./run python apps/ledger.py            in memory, without Spark
    ./run python apps/ledger.py FOLDER     on Spark: reads FOLDER/events, keeps FOLDER/bank

Kill it whenever you like and start it again: it goes on where it was, and nothing runs twice.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import json
import random
from pathlib import Path
from typing import Any

import headgate as hg

# Money is decimal, and therefore exact. A new account starts with the default.
accounts = hg.Table(
    "accounts", "id bigint, balance decimal(18,2) DEFAULT 0", key="id", check="balance >= 0"
)
assets = hg.Table("assets", "id bigint, quantity bigint", key="id", check="quantity >= 0")


@hg.transaction(
    event="ts timestamp, event bigint, src_account bigint, dst_account bigint, "
    "src_asset bigint, dst_asset bigint, amount decimal(12,2), quantity bigint"
)
def transfer(
    event: Any,
    src_account: Any = accounts.at("src_account"),
    dst_account: Any = accounts.at("dst_account"),
    src_asset: Any = assets.at("src_asset"),
    dst_asset: Any = assets.at("dst_asset"),
    out: Any = hg.output("balance decimal(18,2)"),
) -> Any:
    if src_account.balance < event.amount:
        return hg.abort("insufficient funds")
    src_account.balance -= event.amount
    dst_account.balance += event.amount
    src_asset.quantity -= event.quantity  # the check of the table refuses what is not there
    dst_asset.quantity += event.quantity
    out.balance = src_account.balance


@hg.transaction(
    event="ts timestamp, event bigint, dst_account bigint, dst_asset bigint, "
    "amount decimal(12,2), quantity bigint"
)
def deposit(
    event: Any,
    account: Any = accounts.at("dst_account", create=True),
    asset: Any = assets.at("dst_asset"),
    out: Any = hg.output("balance decimal(18,2)"),
) -> Any:
    account.balance += event.amount
    asset.quantity += event.quantity
    out.balance = account.balance


# Which transaction an event runs is in its column `kind`; the order is by time, ties by number.
ROUTES = {"transfer": transfer, "deposit": deposit}
ORDER = {"route_by": "kind", "order_by": ["ts", "event"]}
COLUMNS = (
    "kind string, ts timestamp, event bigint, src_account bigint, dst_account bigint, "
    "src_asset bigint, dst_asset bigint, amount decimal(12,2), quantity bigint"
)
FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
ROWS = 100


def open_bank(path: str | None) -> hg.Engine:
    """The ledger at a path, or in memory; loading is a no-op when the store is not new."""
    engine = hg.open(path, tables=[accounts, assets], transactions=[transfer, deposit])
    money = decimal.Decimal("1000.00")
    engine.load(accounts, [{"id": number, "balance": money} for number in range(ROWS)])
    engine.load(assets, [{"id": number, "quantity": 40} for number in range(ROWS)])
    return engine


def make_events(count: int) -> list[dict[str, Any]]:
    """Half transfers, half deposits."""
    dice = random.Random(7)
    return [
        {
            "kind": dice.choice(["transfer", "deposit"]),
            "ts": FIRST + datetime.timedelta(milliseconds=number),
            "event": number,
            **{name: dice.randrange(ROWS) for name in ("src_account", "dst_account")},
            **{name: dice.randrange(ROWS) for name in ("src_asset", "dst_asset")},
            "amount": decimal.Decimal(dice.randrange(1, 80_000)) / 100,
            "quantity": dice.randrange(20),
        }
        for number in range(count)
    ]


def in_memory() -> None:
    with open_bank(None) as engine:
        results = engine.run(ROUTES, make_events(10_000), **ORDER)
        print(results.slice(0, 10).to_pandas().to_string())
        print(engine.sql("select count(*), sum(balance) from accounts").rows())


def on_spark(folder: Path) -> None:
    from pyspark.sql import SparkSession

    if not (folder / "events").exists():
        write_files(folder / "events", make_events(10_000), files=5)
    spark = SparkSession.builder.master("local[2]").appName("ledger").getOrCreate()
    hg.register(spark)
    with open_bank(str(folder / "bank")) as engine:
        events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        query = (
            events.json(str(folder / "events"))
            .writeStream.foreachBatch(engine.sink(ROUTES, **ORDER))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    results = spark.read.format("headgate").option("stream", "*").load(str(folder / "bank"))
    results.groupBy("transaction", "outcome", "reason").count().show(truncate=False)
    spark.stop()


def write_files(folder: Path, events: list[dict[str, Any]], files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        lines = [json.dumps(event, default=str) for event in events[number::files]]
        (folder / f"{number}.json").write_text("\n".join(lines))


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Without FOLDER it runs in memory, with no Spark.")
    words.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    folder = words.parse_args().folder
    in_memory() if folder is None else on_spark(folder)
