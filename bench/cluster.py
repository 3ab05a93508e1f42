"""The benchmark of shards: epochs on two executors beside the driver's engine and a bare shuffle.

Events are frames of Spark. What is compared takes turns in one session of two executors with one
core each, and every figure is a ratio of medians: cheap transfers within a shard beside a job that
only counts the same rows after the same shuffle; transfers of about ten microseconds beside the
engine in the driver on one thread, all within a shard, and a fifth of them across two. Then what
`headgate simulate --nodes` says of these epochs beside what they took, with one executor and with
two; and 40 million rows: what processes hold of them, and the first epoch after a restart.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg
from headgate.lab.cluster_model import EXECUTORS, LOCAL, MIXED, ClusterCosts, epoch_of, load_of
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
pairs = hg.Table("pairs", "id bigint, value double", key="id")
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
    """A session of two executors, in this folder, which takes what they leave behind."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("headgate bench")
    for name, value in {**SETTINGS, "spark.local.dir": os.getcwd()}.items():
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


def model_said(
    transaction: Any, across: float, events: int, nodes: int, scheme: str, keys: int = KEYS
) -> tuple[float, float]:
    """What the model of clusters says an epoch takes in the driver and on its nodes, in seconds."""
    drawn, costs = events_of(events, keys, across, 1), ClusterCosts()
    with hg.open(None, tables=[accounts], transactions=[transaction]) as engine:
        engine.load(accounts, rows_of(keys))
        for _ in range(2):  # the first one loads code
            before = executed(engine)
            engine.run(transaction, drawn, scheme="serial")
        event_us = 1e6 * (executed(engine) - before) / events
    load = load_of(drawn["src"].to_numpy(), drawn["dst"].to_numpy(), SHARDS)
    design = EXECUTORS if scheme == "executors" else MIXED
    found = (epoch_of(one, load, nodes, event_us, costs).ms / 1e3 for one in (LOCAL, design))
    driver, cluster = found
    return driver, cluster


def executed(engine: hg.Engine) -> float:
    return float(sum(one.steps["execute"].seconds for one in engine.metrics().streams.values()))


def measure(
    spark: SparkSession, folder: str, transaction: Any, across: float, rounds: int, events: int,
    keys: int = KEYS, shards: int = SHARDS,
) -> tuple[dict[str, float], str, str]:  # fmt: skip
    """Seconds an epoch in the driver, in shards, as chosen, and only counted; why so, and by which
    scheme in shards."""
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
        return found, free.decisions()[-1].why, engine.decisions()[-1].scheme


# --- state ----------------------------------------------------------------------------------------


@hg.transaction(event="id bigint, amount double")
def pay(event, row=pairs.at("id")):
    row.value += event.amount


def held_mib(pid: int | str = "self") -> float:
    """The memory of a process beyond the files that it maps."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))]
    return sum(found) / 1024


def workers_of(spark: SparkSession) -> list[str]:
    """The processes of Python that work for this session's executors."""

    def said(_: Any) -> Iterator[int]:
        yield os.getpid()

    parts = 4 * spark.sparkContext.defaultParallelism
    return [str(one) for one in {*spark.sparkContext.range(parts, numSlices=parts)
                                 .mapPartitions(said).collect()}]  # fmt: skip


def begun(spark: SparkSession) -> float:
    """How long a new session takes for one task of Python on each executor, with what no worker
    that runs compiled transactions over Arrow can do without."""

    def imported(_: Any) -> Iterator[int]:
        import numba
        import pyarrow as pa

        yield len(numba.__name__) + len(pa.array([1]))  # which looks for pandas

    began = time.perf_counter()
    tasks = spark.sparkContext.defaultParallelism
    spark.sparkContext.range(tasks, numSlices=tasks).mapPartitions(imported).collect()
    return time.perf_counter() - began


def state(folder: str, rows: int, shards: int = SHARDS) -> dict[str, float]:
    """What rows in shards take: memory of the driver and of a worker, and a restart of all, with
    the executors' files as they were left, and without."""
    path, declared = os.path.join(folder, "pairs"), {"tables": [pairs], "transactions": [pay]}
    draw = np.random.default_rng(3)
    events = pa.table({"id": draw.integers(0, rows, 10_000), "amount": np.ones(10_000)})
    found: dict[str, float] = {}
    for life in ("loaded", "with files", "without files"):
        if life == "without files":
            for file in Path(folder).glob("headgate-*/*.warm"):
                file.unlink()
        spark = start()
        try:
            found[f"spark {life}"] = begun(spark)
            began = time.perf_counter()
            with hg.open(path, **declared, spark=spark, shards=shards) as engine:
                if life == "loaded":
                    engine.load(pairs, spark.range(rows).selectExpr("id", "1.0D as value"))
                engine.run(pay, events)
                found[life] = time.perf_counter() - began
                for _ in range(3):
                    engine.run(pay, events)
                found["driver"] = max(found.get("driver", 0.0), held_mib())
                mib = [held_mib(one) for one in workers_of(spark)]
                found["worker"] = max(found.get("worker", 0.0), *mib)
                if life == "loaded":
                    time.sleep(BESIDE_SECONDS)
        finally:
            spark.stop()
    began = time.perf_counter()
    for file in Path(path, "parts").rglob("*.part"):
        file.read_bytes()
    found["bare reading"] = time.perf_counter() - began
    return found


BESIDE_SECONDS = 10.0  # for what executors write beside epochs


def say_state(console: Console, rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headgate-cluster-") as folder:
        os.chdir(folder)
        found = state(folder, rows)
        os.chdir("/")
    told = f"{rows:,} rows"
    for what, bar in (("driver", 400), ("worker", 1024)):
        met = MET[found[what] <= bar]
        console.print(f"{told}: MiB of a {what}: {found[what]:.0f} (bar {bar}: {met})")
    bare = found["bare reading"]
    for life in ("with files", "without files"):
        of_spark, ours = found[f"spark {life}"], found[life]
        ratio = bare / (of_spark + ours)
        console.print(
            f"{told}: bare reading, {bare:.2f} s, over a first epoch {life}: {ratio:.2f} (bar 0.3: "
            f"{MET[ratio >= 0.3]}); Spark took {of_spark:.2f} s to its first Python tasks, the "
            f"engine {ours:.2f} s more: {bare / ours:.2f}"
        )


# --- the model of clusters ------------------------------------------------------------------------


def say_model(console: Console, rounds: int, events: int, nodes: int) -> None:
    """What `headgate simulate --nodes` would say, beside what epochs take on so many executors."""
    with tempfile.TemporaryDirectory(prefix="headgate-cluster-") as folder:
        os.chdir(folder)
        spark = start(f"local-cluster[{nodes},1,1024]")
        try:
            for transaction, across in ((cheap, 0.0), (dear, 0.0), (dear, 0.2)):
                took, _, scheme = measure(spark, folder, transaction, across, rounds, events)
                said = model_said(transaction, across, events, nodes, scheme)
                for what, one in zip(("driver", "shards"), said, strict=True):
                    console.print(
                        f"{nodes} executors, {transaction.name}, {across:.0%} across, {what}: "
                        f"{took[what] * 1e3:.0f} ms, the model {one * 1e3:.0f}: "
                        f"{one / took[what] - 1:+.0%}"
                    )
        finally:
            spark.stop()
            os.chdir("/")


def main(quick: bool = False) -> None:
    """All of it, or by HEADGATE_CLUSTER one piece: near, alone, mixed, one, model or state."""
    console, rounds = Console(highlight=False), 2 if quick else 7
    chosen = os.environ.get("HEADGATE_CLUSTER", "near alone mixed one model state").split()
    for piece in chosen:
        if piece == "state":
            say_state(console, 4_000_000 if quick else 40_000_000)
        elif piece == "model":
            for nodes in (1, 2):
                say_model(console, 2 if quick else 4, EVENTS // 4, nodes)
        else:
            say_piece(console, piece, rounds, quick=quick)


PIECES: dict[str, tuple[Any, float, int, str, str, float]] = {
    # the transaction, how much goes across, shards, then the bar: what over what, and how much
    "near": (cheap, 0.0, SHARDS, "shards", "count", 1.3),
    "alone": (dear, 0.0, SHARDS, "driver", "shards", 1.6),
    "mixed": (dear, 0.2, SHARDS, "driver", "shards", 1.2),
    "one": (cheap, 0.0, 1, "driver", "chosen", 0.9),
}


def say_piece(console: Console, piece: str, rounds: int, *, quick: bool) -> None:
    transaction, across, shards, over, under, bar = PIECES[piece]
    events = EVENTS if transaction is cheap and not quick else EVENTS // 2
    with tempfile.TemporaryDirectory(prefix="headgate-cluster-") as folder:
        os.chdir(folder)  # a cluster of processes leaves its folder `work` where it was started
        spark = start()
        try:
            found, why, _ = measure(
                spark, folder, transaction, across, rounds, events, shards=shards
            )
        finally:
            spark.stop()
            os.chdir("/")
    told = f"{transaction.name}, {across:.0%} across, {shards} shards"
    ratio = found[over] / found[under]
    met = ratio <= bar if piece == "near" else ratio >= bar
    console.print(f"{told}: {over} over {under}: {ratio:.2f} (bar {bar}: {MET[met]})")
    ways = {name: one for name, one in found.items() if name in ("driver", "shards")}
    best = min(ways, key=lambda name: ways[name])
    ratio = ways[best] / found["chosen"]
    console.print(f"{told}: {best}, the best, over chosen: {ratio:.2f} (bar 0.95: "
                  f"{MET[ratio >= 0.95]}); {why}")  # fmt: skip


MET = {True: "met", False: "MISSED"}
