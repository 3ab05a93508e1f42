"""The program that the kill test kills: a ledger over files, and a copy of its results.

usage: ledger_program.py FOLDER     reads FOLDER/events, keeps everything else in FOLDER, too

It says on stdout where it is, one word a line. With HEADGATE_DIE_AT="after append 2" it kills its
own process group at the second such moment; that hook is here and not in the product. The copy runs
with HEADGATE_COPY=yes.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headgate as hg
from headgate.durability.head import Head
from headgate.durability.store import Store

ACCOUNTS = 8
EVENTS = "kind string, ts timestamp, event bigint, src bigint, dst bigint, amount double"
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
HOOKS: dict[str, tuple[type, str]] = {
    "append": (Store, "append"),
    "publish": (Head, "publish"),
}

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")


@hg.transaction(event="ts timestamp, event bigint, src bigint, dst bigint, amount double")
def transfer(
    event: Any,
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
    out: Any = hg.output("balance double"),
) -> Any:
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.balance = src.balance


@hg.transaction(event="ts timestamp, event bigint, dst bigint, amount double")
def deposit(
    event: Any, dst: Any = accounts.at("dst", create=True), out: Any = hg.output("balance double")
) -> Any:
    dst.balance += event.amount
    out.balance = dst.balance


def say(word: str) -> None:
    print(word, flush=True)


def die_at(moment: str) -> None:
    """Kill the whole process group at the given moment of the commit."""
    when, hook, place = moment.split()
    owner, name = HOOKS[hook]
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def dying(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if when == "before" and calls == int(place):
            os.killpg(0, signal.SIGKILL)
        answer = original(*args, **kwargs)
        if when == "after" and calls == int(place):
            os.killpg(0, signal.SIGKILL)
        return answer

    setattr(owner, name, dying)


def start_session() -> SparkSession:
    scratch = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{FAST_JVM} {scratch}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Few rows: compiling a plan takes longer than interpreting it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    builder = SparkSession.builder.master("local[2]").appName("ledger")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    hg.register(session)
    return session


def make_sink(engine: Any) -> Callable[[DataFrame, int], Any]:
    routes = {"t": transfer, "d": deposit}
    options = {"order_by": ["ts", "event"], "watermark": "4 seconds", "carry": "kind"}
    sink = engine.sink(routes, route_by="kind", **options)

    def run(frame: DataFrame, batch_id: int) -> None:
        say("batch")
        sink(frame, batch_id)
        say("applied")

    return run


def start_ledger(
    spark: SparkSession, run: Callable[[DataFrame, int], Any], folder: Path
) -> StreamingQuery:
    events = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    writing = events.parquet(str(folder / "events")).writeStream.foreachBatch(run)
    checkpoint = str(folder / "ledger-checkpoint")
    return writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def start_copy(spark: SparkSession, folder: Path) -> StreamingQuery:
    results = spark.readStream.format("headgate").option("stream", "*").load(str(folder / "bank"))
    writing = results.writeStream.format("parquet").trigger(processingTime="300 milliseconds")
    checkpoint = str(folder / "copy-checkpoint")
    return writing.option("checkpointLocation", checkpoint).start(str(folder / "copy"))


def main(folder: Path) -> None:
    say("started")
    spark = start_session()
    say("session")
    engine = hg.open(str(folder / "bank"), tables=[accounts], transactions=[transfer, deposit])
    engine.load(accounts, [{"id": number, "balance": 100.0} for number in range(ACCOUNTS)])
    say("engine")
    if moment := os.environ.get("HEADGATE_DIE_AT"):
        die_at(moment)
    sink = make_sink(engine)
    copy = start_copy(spark, folder) if os.environ.get("HEADGATE_COPY") == "yes" else None
    say("copy")
    ledger = start_ledger(spark, sink, folder)
    say("query")
    ledger.awaitTermination()
    say("ended")
    if copy is not None:
        copy.processAllAvailable()
        copy.stop()
    engine.close()
    spark.stop()
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
