"""The ledger benchmark: transfers through the engine beside the bare compiled loop (bounds.py).

Every comparison alternates its contestants batch by batch, so that a noisy machine is noisy for
all, and reports the ratio of the medians.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from bench.bounds import OwnIndexBound, SimpleBound

ACCOUNTS = 100_000
BATCH_EVENTS = 10_240
OTHER_SIZES = (512, 102_400)
ABORT_SHARE = 0.01
SPARK_BATCH_EVENTS = 500_000
COMPILE_S = 5.0
MEMORY_ROWS = 10_000_000

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double")
def transfer(event, src=accounts.at("src"), dst=accounts.at("dst"), out=hg.output("left double")):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.left = src.balance


def make_events(
    count: int, first: int, random: np.random.Generator, keys: int | None = None
) -> pa.Table:
    """Uniform transfers in order of time, one in a hundred too large to succeed."""
    amount = random.random(count)
    amount[random.random(count) < ABORT_SHARE] = 1e12
    times = np.arange(first, first + count) * 1000
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "src": random.integers(0, keys or ACCOUNTS, count),
            "dst": random.integers(0, keys or ACCOUNTS, count),
            "amount": amount,
        }
    )


def make_accounts(random: np.random.Generator) -> pa.Table:
    return pa.table({"id": random.permutation(ACCOUNTS), "balance": np.full(ACCOUNTS, 1e6)})


def alternate(
    contestants: dict[str, Callable[[pa.Table], Any]], batches: list[pa.Table], warm: int = 3
) -> dict[str, float]:
    """Median seconds per batch of each contestant, all running each batch in turn."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number, batch in enumerate(batches):
        for name, run in contestants.items():
            began = time.perf_counter()
            run(batch)
            if number >= warm:
                times[name].append(time.perf_counter() - began)
    return {name: median(values) for name, values in times.items()}


def compare_engines(folder: Path, batch_count: int) -> list[tuple[str, float, float]]:
    """Rows of (what, ns per event, ratio) for the bounds, in memory and durable."""
    random = np.random.default_rng(7)
    rows = make_accounts(random)
    batches = [
        make_events(BATCH_EVENTS, number * BATCH_EVENTS, random) for number in range(batch_count)
    ]
    simple = SimpleBound(rows)
    options = {"tables": [accounts], "transactions": [transfer]}
    with hg.open(None, **options) as memory, hg.open(folder / "bank", **options) as durable:
        memory.load(accounts, rows)
        durable.load(accounts, rows)
        contestants = {
            "simple": simple.run,
            "own": OwnIndexBound(memory._memory.rows["accounts"]).run,
            "memory": lambda batch: memory.run(transfer, batch, order_by="ts"),
        }
        each = in_ns(alternate(contestants, batches), BATCH_EVENTS)
        # Apart from those: what the disk is asked to do goes on beside whoever comes next.
        before = durable._journal.log_bytes
        contestants = {
            "memory": contestants["memory"],
            "durable": lambda batch: durable.run(transfer, batch, order_by="ts"),
        }
        both = in_ns(alternate(contestants, batches), BATCH_EVENTS)
        size = (durable._journal.log_bytes - before) / (batch_count * BATCH_EVENTS)
        bare = compare_bare(folder / "bare", round(size * BATCH_EVENTS), contestants, batches)
        piped = pipelined_ratio(memory, durable, batches)
        found = [
            ("simple bare loop (the bound)", each["simple"], 1.0),
            ("bare loop over the engine's own index and rows / bound", each["own"],
             each["simple"] / each["own"]),
            ("engine in memory / bound", each["memory"], each["simple"] / each["memory"]),
        ]  # fmt: skip
        found += other_sizes(memory, simple, batch_count, random)
    return [
        *found,
        ("engine durable, one run a batch / memory", both["durable"],
         both["memory"] / both["durable"]),
        ("engine durable, one run of many batches / memory", piped[1], piped[0] / piped[1]),
        (f"bytes of log an event: {size:.1f} / 40", both["durable"], size / 40),
        ("engine durable / in memory, then bare bytes written and synced", bare["durable"],
         bare["bare"] / bare["durable"]),
    ]  # fmt: skip


def compare_bare(
    path: Path,
    size: int,
    contestants: dict[str, Callable[[pa.Table], Any]],
    batches: list[pa.Table],
) -> dict[str, float]:
    """ns per event of the durable engine, and of a run in memory with the simplest honest log.

    That is a file to which as many bytes are appended, which are then synced.
    """
    content = np.random.default_rng(17).bytes(size)
    with open(path, "xb", buffering=0) as file:

        def bare(batch: pa.Table) -> None:
            contestants["memory"](batch)
            file.write(content)
            os.fdatasync(file.fileno())

        run = {"bare": bare, "durable": contestants["durable"]}
        return in_ns(alternate(run, batches), BATCH_EVENTS)


def in_ns(seconds: dict[str, float], events: int) -> dict[str, float]:
    return {name: value / events * 1e9 for name, value in seconds.items()}


def other_sizes(
    memory: hg.Engine, simple: SimpleBound, batch_count: int, random: np.random.Generator
) -> list[tuple[str, float, float]]:
    """The engine in memory beside the bound in larger and in smaller batches."""
    found = []
    for events, factor in ((OTHER_SIZES[0], 4.0), (OTHER_SIZES[1], 0.25)):
        batches = [
            make_events(events, number * events, random)
            for number in range(max(5, round(factor * batch_count)))
        ]
        contestants = {
            "simple": simple.run,
            "memory": lambda batch: memory.run(transfer, batch, order_by="ts"),
        }
        seconds = alternate(contestants, batches)
        each = in_ns(seconds, events)
        told = f"in batches of {events:,} ({seconds['memory'] * 1e3:.3f} ms each) / bound"
        found.append((f"engine {told}", each["memory"], each["simple"] / each["memory"]))
    return found


def pipelined_ratio(memory: Any, durable: Any, batches: list[pa.Table]) -> tuple[float, float]:
    """ns per event of a run cut into batches, in memory and durable, in turn."""
    events = pa.concat_tables(batches).combine_chunks()
    times: dict[str, list[float]] = {"memory": [], "durable": []}
    for _ in range(3):
        for name, engine in (("memory", memory), ("durable", durable)):
            began = time.perf_counter()
            engine.run(transfer, events, order_by="ts", batch_size=BATCH_EVENTS)
            times[name].append((time.perf_counter() - began) / events.num_rows * 1e9)
    return median(times["memory"]), median(times["durable"])


def compare_threads(folder: Path, rounds: int) -> tuple[float, float]:
    """Seconds of a durable batch as large as Spark's, on one thread and on two, in turn."""
    random = np.random.default_rng(13)
    events = make_events(SPARK_BATCH_EVENTS, 0, random)
    times: dict[int, list[float]] = {1: [], 2: []}
    with hg.open(folder / "long", tables=[accounts], transactions=[transfer]) as engine:
        engine.load(accounts, make_accounts(random))
        engine.run(transfer, events, order_by="ts", threads=2)
        time.sleep(COMPILE_S)  # what two threads need is compiled beside the first batch
        for number in range(3 + rounds):
            for threads, taken in times.items():
                began = time.perf_counter()
                engine.run(transfer, events, order_by="ts", threads=threads)
                if number >= 3:
                    taken.append(time.perf_counter() - began)
    return median(times[1]), median(times[2])


def compare_spark(folder: Path, file_count: int) -> tuple[float, float]:
    """Seconds per micro-batch through Spark: fetching only, and fetching plus transactions."""
    from pyspark.sql import SparkSession

    random = np.random.default_rng(11)
    source = folder / "events"
    source.mkdir()
    for number in range(file_count):
        events = make_events(SPARK_BATCH_EVENTS, number * SPARK_BATCH_EVENTS, random)
        pq.write_table(events, source / f"part-{number:04}.parquet", coerce_timestamps="us")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    engine = hg.open(folder / "spark-bank", tables=[accounts], transactions=[transfer])
    engine.load(accounts, make_accounts(random))
    sink = engine.sink(transfer, order_by="ts")
    times: dict[str, list[float]] = {"fetch": [], "sink": []}
    try:
        _stream(spark, source, folder, {"fetch": lambda df, _: df.toArrow(), "sink": sink}, times)
    finally:
        engine.close()
        spark.stop()
    return median(times["fetch"][1:]), median(times["sink"][1:])


def _stream(
    spark: Any,
    source: Path,
    folder: Path,
    functions: dict[str, Callable[..., Any]],
    times: dict[str, list[float]],
) -> None:
    """The same query over the same files with each function, micro-batches timed by Spark."""
    for name, function in functions.items():
        query = (
            spark.readStream.schema("ts timestamp, src bigint, dst bigint, amount double")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(source))
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for progress in query.recentProgress:
            if progress["numInputRows"] > 0:
                times[name].append(progress["durationMs"]["addBatch"] / 1000)


_MEMORY_PROGRAM = """
import resource
import numpy as np
import pyarrow as pa
import headgate as hg
accounts = hg.Table("accounts", "id bigint, balance double", key="id")
engine = hg.open(None, tables=[accounts])
count = {count}
rows = pa.table({{"id": np.arange(count), "balance": np.zeros(count)}})
engine.load(accounts, rows)
del rows
with open("/proc/self/status") as status:
    resident = next(line for line in status if line.startswith("VmRSS"))
print(int(resident.split()[1]) * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def measure_memory(rows: int = MEMORY_ROWS) -> tuple[int, int]:
    """Resident bytes of a process that holds that many rows, after loading and at its peak."""
    program = _MEMORY_PROGRAM.format(count=rows)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    resident, peak = done.stdout.split()
    return int(resident), int(peak)


def main(quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from bench.growth import compare_growth  # which takes the accounts of this one

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    table = Table("what", "ns per event", "ratio", "bar", title="Transfers, 100,000 accounts")
    try:
        with console.status("memory of 10 million rows"):
            resident, peak = measure_memory()  # first: a process begins with the peak of its parent
        with console.status("bare loop, in memory, durable: batches in turn"):
            bars = {2: "0.5", 3: "0.1 ms", 4: "0.5", 7: "at most 1"}
            for place, row in enumerate(compare_engines(folder, 30 if quick else 120)):
                table.add_row(row[0], f"{row[1]:.1f}", f"{row[2]:.2f}", bars.get(place, ""))
        with console.status("a long durable batch on one thread and on two"):
            one, two = compare_threads(folder, 5 if quick else 15)
            each = two / SPARK_BATCH_EVENTS * 1e9
            told = f"durable batch of {SPARK_BATCH_EVENTS:,}, two threads / one"
            table.add_row(told, f"{each:.1f}", f"{one / two:.2f}", "1.4")
        with console.status("Spark: the same query fetching only, then with the sink"):
            fetch, sink = compare_spark(folder, 4 if quick else 8)
            each = sink / SPARK_BATCH_EVENTS * 1e9
            table.add_row(
                "Spark sink / fetching only", f"{each:.0f}", f"{fetch / sink:.2f}", "0.85"
            )
        with console.status("growth: the same with more and more accounts"):
            for one in compare_growth(quick):
                table.add_row(f"{one.what} / {one.to}", f"{one.value:.1f}", f"{one.ratio:.2f}",
                              one.verdict)  # fmt: skip
        console.print(table)
        console.print(
            f"10 million rows of (bigint, double): {resident / 2**20:.0f} MiB resident, "
            f"{peak / 2**20:.0f} MiB at the peak of loading (bar: 1024 MiB)"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
