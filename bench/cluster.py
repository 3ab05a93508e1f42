"""The benchmark of shards: epochs on two executors beside the driver's engine and a bare shuffle.

Events are frames of Spark. What is compared takes turns in one session of two executors with one
core each, and every figure is a ratio of medians: cheap transfers within a shard beside a job that
only counts the same rows after the same shuffle; transfers of about ten microseconds beside the
engine in the driver on one thread, all within a shard, and a fifth of them across two.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg
from headgate.shards import sharding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, KEYS, BANKS, SHARDS = 500_000, 1_000_000, 1024, 8
MASTER = "local-cluster[2,1,1024]"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
}
accounts = hg.Table(
    "accounts", "bank int, id bigint, balance double", key="bank, id", shard_by="bank"
)
EVENT = "bank int, src bigint, to_bank int, dst bigint, amount double"
DEAR_STEPS = 7000  # of a loop that a processor goes through in about ten microseconds


@hg.transaction(event=EVENT)
def cheap(event, src=accounts.at("bank", "src"), dst=accounts.at("to_bank", "dst")):
    src.balance -= event.amount
    dst.balance += event.amount


@hg.transaction(event=EVENT)
def dear(event, src=accounts.at("bank", "src"), dst=accounts.at("to_bank", "dst")):
    worth = event.amount
    for _ in range(DEAR_STEPS):
        worth = worth * 1.0000001 + 1e-9
    src.balance -= worth
    dst.balance += worth


def start(master: str = MASTER) -> SparkSession:
    """A session of two executors, in a folder that takes what they leave behind."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("headgate bench")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def rows_of(keys: int) -> pa.Table:
    ids = np.arange(keys)
    banks = (ids % BANKS).astype(np.int32)
    return pa.table({"bank": banks, "id": ids, "balance": np.full(keys, 1e6)})


def events_of(count: int, keys: int, across: float, seed: int) -> pa.Table:
    """Transfers within a bank, and a share of them to another one."""
    draw, each = np.random.default_rng(seed), keys // BANKS
    bank, to_bank = (draw.integers(0, BANKS, count) for _ in range(2))
    to_bank = np.where(draw.random(count) < across, to_bank, bank)
    src, dst = (draw.integers(0, each, count) * BANKS + of for of in (bank, to_bank))
    return pa.table({
        "bank": bank.astype(np.int32), "src": src, "to_bank": to_bank.astype(np.int32),
        "dst": dst, "amount": np.ones(count),
    })  # fmt: skip


def count_only(frame: DataFrame, shards: int) -> int:
    """The rows of a frame, counted by tasks behind the same shuffle."""
    from pyspark.sql.functions import col

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})

    numbered = frame.withColumn("shard", (col("bank") % shards).cast("int"))
    placed = numbered.repartitionById(shards, "shard")
    return sum(int(row["n"]) for row in placed.mapInArrow(counted, "n bigint").collect())


def in_turn(ways: Mapping[str, Callable[[DataFrame], Any]], frames: list[DataFrame]) -> Any:
    """The median seconds of each way over the same frames; the first one does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number, frame in enumerate(frames):
        for name, way in ways.items():
            began = time.perf_counter()
            way(frame)
            if number:
                taken[name].append(time.perf_counter() - began)
    return {name: median(times) for name, times in taken.items()}


def measure(
    spark: SparkSession, folder: str, transaction: Any, across: float, rounds: int, events: int,
    keys: int = KEYS, shards: int = SHARDS,
) -> tuple[dict[str, float], str]:  # fmt: skip
    """Seconds an epoch in the driver, in shards, as chosen, and only counted; and why so."""
    declared: dict[str, Any] = {"tables": [accounts], "transactions": [transaction]}
    name = f"{transaction.name}-{across}"
    one = hg.open(os.path.join(folder, f"{name}-one"), **declared)
    path = os.path.join(folder, f"{name}-shards")
    sharding.DRIVER_BYTES_MAX, chosen = 0, sharding.DRIVER_BYTES_MAX  # executors, at any price
    engine = hg.open(path, **declared, spark=spark, shards=shards)
    sharding.DRIVER_BYTES_MAX = chosen
    free = hg.open(f"{path}-free", **declared, spark=spark, shards=shards)
    with one, engine, free:
        for each in (one, engine, free):
            each.load(accounts, rows_of(keys))
        frames = [
            spark.createDataFrame(events_of(events, keys, across, seed)).repartition(2).cache()
            for seed in range(rounds + 1)
        ]
        for frame in frames:
            frame.count()
        found = in_turn(
            {
                "driver": lambda frame: one.run(transaction, frame, threads=1),
                "shards": lambda frame: engine.run(transaction, frame),
                "chosen": lambda frame: free.run(transaction, frame),
                "count": lambda frame: count_only(frame, shards),
            },
            frames,
        )
        for frame in frames:
            frame.unpersist()
        return found, free.decisions()[-1].why


def main(quick: bool = False) -> None:
    console, rounds = Console(highlight=False), 2 if quick else 7
    events = EVENTS // 2 if quick else EVENTS
    with tempfile.TemporaryDirectory(prefix="headgate-cluster-") as folder:
        os.chdir(folder)  # a cluster of processes leaves its folder `work` where it was started
        spark = start()
        try:
            near, _ = measure(spark, folder, cheap, 0.0, rounds, events)
            alone, _ = measure(spark, folder, dear, 0.0, rounds, EVENTS // 2)
            mixed, why = measure(spark, folder, dear, 0.2, rounds, EVENTS // 2)
        finally:
            spark.stop()
            os.chdir("/")
    bars = [
        ("cheap, within a shard: over counting alone", near["shards"] / near["count"], 1.3, True),
        ("10 us, within a shard: over the driver", alone["driver"] / alone["shards"], 1.6, False),
        ("10 us, a fifth across: over the driver", mixed["driver"] / mixed["shards"], 1.2, False),
    ]
    for what, ratio, bar, is_most in bars:
        met = ratio <= bar if is_most else ratio >= bar
        console.print(f"{what}: {ratio:.2f} (bar {bar}: {'met' if met else 'MISSED'})")
    for what, found in (("cheap", near), ("10 us", alone), ("10 us, a fifth across", mixed)):
        ratio = min(found["driver"], found["shards"]) / found["chosen"]
        met = "met" if ratio >= 0.95 else "MISSED"
        console.print(f"{what}: the best over what was chosen: {ratio:.2f} (bar 0.95: {met})")
    console.print(f"cheap: the driver takes {near['driver'] / near['shards']:.2f} of shards; {why}")
