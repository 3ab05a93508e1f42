"""The sink: micro-batches reach the engine whole, under a name that a restart keeps."""

from __future__ import annotations

import datetime
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headgate as hg
from headgate.errors import InputError
from headgate.spark.sink import Sink

NINE = datetime.datetime(2024, 1, 1, 9, tzinfo=datetime.UTC)
EVENTS = "kind string, ts timestamp, src bigint, dst bigint, amount double"

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double")
def transfer(
    event: Any,
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
    out: Any = hg.output("src_balance double"),
) -> Any:
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.src_balance = src.balance


@hg.transaction(event="ts timestamp, dst bigint, amount double")
def deposit(event: Any, dst: Any = accounts.at("dst", create=True)) -> Any:
    dst.balance += event.amount


class FakeStream:
    """A stream that keeps what it was given, and is its own feed."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)
        self.applied: list[tuple[pa.Table, tuple[str, int] | None]] = []

    def feed(self) -> FakeStream:
        return self

    def apply(
        self, events: pa.Table, origin: tuple[str, int] | None, run: str | None = None
    ) -> pa.Table:
        self.applied.append((events, origin))
        return events


class Feed:
    """A folder of event files, one micro-batch each, in the order they were added."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str = EVENTS) -> None:
        self._spark = spark
        self._folder = folder
        self._schema = schema
        self._count = 0
        (folder / "events").mkdir(parents=True)

    def add(self, *rows: tuple[Any, ...]) -> None:
        names = [part.split()[0] for part in self._schema.split(", ")]
        table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
        pq.write_table(table, self._folder / "events" / f"{self._count}.parquet")
        self._count += 1
        time.sleep(0.01)  # Spark takes files in the order of their times.

    def start(
        self, function: Callable[[DataFrame, int], Any], checkpoint: str = "checkpoint"
    ) -> StreamingQuery:
        reading = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        writing = reading.parquet(str(self._folder / "events")).writeStream
        writing = writing.option("checkpointLocation", str(self._folder / checkpoint))
        return writing.foreachBatch(function).trigger(availableNow=True).start()

    def run(self, function: Callable[[DataFrame, int], Any], checkpoint: str = "checkpoint") -> str:
        """Work off all files that are new to the checkpoint; returns the id of the query."""
        query = self.start(function, checkpoint)
        query.awaitTermination()
        return str(query.id)


def at(seconds: int) -> datetime.datetime:
    return NINE + datetime.timedelta(seconds=seconds)


def open_bank(path: Path) -> Any:
    engine = hg.open(str(path), tables=[accounts], transactions=[transfer, deposit])
    engine.load(accounts, [{"id": number, "balance": 10.0} for number in (1, 2, 3)])
    return engine


def balances(engine: Any) -> dict[int, float]:
    table = engine.sql("select id, balance from accounts order by id").arrow()
    if isinstance(table, pa.RecordBatchReader):
        table = table.read_all()
    return {row["id"]: row["balance"] for row in table.to_pylist()}


def test_a_batch_is_named_by_the_query_that_the_checkpoint_keeps(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(0), 1, 2, 1.0))
    first, second = FakeStream("ts"), FakeStream("ts")
    query = feed.run(Sink(first))
    feed.add(("t", at(1), 1, 2, 1.0))
    assert feed.run(Sink(second)) == query
    assert [source for _, source in first.applied + second.applied] == [(query, 0), (query, 1)]


def test_only_the_needed_columns_are_fetched_and_instants_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(0), 1, 2, 1.0))
    stream = FakeStream("amount", "local", "ts")
    sink = Sink(stream)

    def run(frame: DataFrame, batch_id: int) -> None:
        # In Tokyo, where this session is, nine in UTC is six in the evening.
        wall_clock = "timestamp_ntz'2024-01-01 18:00:00'"
        sink(frame.selectExpr("*", f"{wall_clock} as LOCAL", "1 as other"), batch_id)

    feed.run(run)
    events, _ = stream.applied[0]
    assert events.schema.field("ts").type == pa.timestamp("us", tz="UTC")
    assert events.to_pylist() == [{"amount": 1.0, "local": at(0), "ts": at(0)}]


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        (["ts", "fee", "tip"], "*", "no column 'fee', 'tip'; its columns are: kind, ts, src, dst"),
        (["ts"], "*, 1 as TS", "has the column 'ts' more than once"),
    ],
)
def test_columns_that_do_not_fit_end_the_query_with_our_words(
    spark: SparkSession, tmp_path: Path, columns: list[str], change: str, message: str
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(0), 1, 2, 1.0))
    sink = Sink(FakeStream(*columns))
    with pytest.raises(StreamingQueryException, match="InputError") as caught:
        feed.run(lambda frame, batch: sink(frame.selectExpr(*change.split(", ")), batch))
    assert message in str(caught.value)


def test_a_sink_outside_of_a_streaming_query_says_so(spark: SparkSession) -> None:
    with pytest.raises(InputError, match=r"outside of a streaming query.*engine\.run"):
        Sink(FakeStream("id"))(spark.range(3), 0)


def test_a_sink_cannot_be_sent_away() -> None:
    with pytest.raises(InputError, match="Spark Connect"):
        pickle.dumps(Sink(FakeStream("id")))


def test_one_transaction_runs_in_event_order_over_all_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    # The second transfer is possible only after the first in event time, which arrives behind it.
    feed.add(("t", at(2), 2, 3, 15.0), ("t", at(1), 1, 2, 10.0))
    feed.add(("t", at(3), 1, 2, 1.0))
    results: list[pa.Table] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts")
        feed.run(lambda frame, batch: results.append(sink(frame, batch)))
        assert balances(engine) == {1: 0.0, 2: 5.0, 3: 25.0}
    rows = [row for table in results for row in table.to_pylist()]
    assert [(row["ts"], row["outcome"], row["reason"]) for row in rows] == [
        (at(1), "committed", None),
        (at(2), "committed", None),
        (at(3), "aborted", "insufficient funds"),
    ]


def test_a_routed_sink_runs_each_event_with_its_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("d", at(1), None, 9, 7.0), ("t", at(2), 9, 1, 7.0), ("x", at(3), 1, 2, 1.0))
    results: list[pa.Table] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink({"t": transfer, "d": deposit}, route_by="kind", order_by="ts")
        feed.run(lambda frame, batch: results.append(sink(frame, batch)))
        assert balances(engine) == {1: 17.0, 2: 10.0, 3: 10.0, 9: 0.0}
    outcomes = {row["ts"]: row["outcome"] for row in results[0].to_pylist()}
    assert outcomes == {at(1): "committed", at(2): "committed", at(3): "rejected"}


def test_a_replayed_batch_is_recognised_and_gives_its_results_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(1), 1, 2, 4.0))
    results: list[pa.Table] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts")

        def run(frame: DataFrame, batch_id: int) -> None:
            results.append(sink(frame, batch_id))
            if len(results) == 1:
                raise RuntimeError("Spark dies after the commit and before its own")

        with pytest.raises(StreamingQueryException, match="Spark dies"):
            feed.run(run)
        feed.run(run)
        assert balances(engine) == {1: 6.0, 2: 14.0, 3: 10.0}
    assert len(results) == 2
    assert results[0].to_pylist() == results[1].to_pylist()


def test_a_batch_replayed_into_a_new_sink_of_the_engine_is_recognised(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(1), 1, 2, 4.0))
    with open_bank(tmp_path / "bank") as engine:

        def start(fail: bool) -> None:
            sink = engine.sink(transfer, order_by="ts")

            def run(frame: DataFrame, batch_id: int) -> None:
                sink(frame, batch_id)
                if fail:
                    raise RuntimeError("Spark dies")

            feed.run(run)

        with pytest.raises(StreamingQueryException, match="Spark dies"):
            start(fail=True)
        start(fail=False)
        assert balances(engine) == {1: 6.0, 2: 14.0, 3: 10.0}


def test_a_batch_replayed_into_a_reopened_engine_is_recognised_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(1), 1, 2, 4.0))
    results: list[pa.Table] = []

    def run_once(fail: bool) -> None:
        with open_bank(tmp_path / "bank") as engine:
            sink = engine.sink(transfer, order_by="ts")

            def run(frame: DataFrame, batch_id: int) -> None:
                results.append(sink(frame, batch_id))
                if fail:
                    raise RuntimeError("Spark dies")

            feed.run(run)
            assert balances(engine) == {1: 6.0, 2: 14.0, 3: 10.0}

    with pytest.raises(StreamingQueryException, match="Spark dies"):
        run_once(fail=True)
    run_once(fail=False)
    assert results[0].to_pylist() == results[1].to_pylist()


def test_a_restart_on_the_same_checkpoint_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    for place in range(3):
        feed.add(("t", at(place), 1, 2, 2.0))
        with open_bank(tmp_path / "bank") as engine:
            feed.run(engine.sink(transfer, order_by="ts"))
            moved = 2.0 * (place + 1)
            assert balances(engine) == {1: 10.0 - moved, 2: 10.0 + moved, 3: 10.0}


def test_two_queries_feed_one_engine_at_once(spark: SparkSession, tmp_path: Path) -> None:
    feeds = [Feed(spark, tmp_path / name) for name in ("one", "two")]
    for place in range(4):
        feeds[0].add(("d", at(place), None, 1, 1.0))
        feeds[1].add(("t", at(place), 2, 3, 1.0))
    with open_bank(tmp_path / "bank") as engine:
        queries = [
            feeds[0].start(engine.sink(deposit, order_by="ts")),
            feeds[1].start(engine.sink(transfer, order_by="ts")),
        ]
        for query in queries:
            query.awaitTermination()
        assert balances(engine) == {1: 14.0, 2: 6.0, 3: 14.0}


def test_two_named_sinks_in_one_function_both_run_once(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("d", at(0), None, 1, 5.0), ("t", at(1), 1, 2, 15.0))
    calls: list[int] = []
    with open_bank(tmp_path / "bank") as engine:
        deposits, transfers = engine.sink(deposit, name="d"), engine.sink(transfer, name="t")

        def run(frame: DataFrame, batch_id: int) -> None:
            calls.append(batch_id)
            deposits(frame.where("kind = 'd'"), batch_id)
            if len(calls) == 1:
                raise RuntimeError("Spark dies between the two")
            transfers(frame.where("kind = 't'"), batch_id)

        with pytest.raises(StreamingQueryException, match="between the two"):
            feed.run(run)
        feed.run(run)
        assert balances(engine) == {1: 0.0, 2: 25.0, 3: 10.0}


def test_two_sinks_without_names_in_one_function_are_refused_also_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("d", at(0), None, 1, 5.0), ("t", at(1), 1, 2, 15.0))
    for _ in range(2):
        with open_bank(tmp_path / "bank") as engine:
            deposits, transfers = engine.sink(deposit), engine.sink(transfer)

            def run(frame: DataFrame, batch_id: int, sinks: Any = (deposits, transfers)) -> None:
                sinks[0](frame.where("kind = 'd'"), batch_id)
                sinks[1](frame.where("kind = 't'"), batch_id)

            with pytest.raises(StreamingQueryException, match="give each of them a name"):
                feed.run(run)


def test_results_go_on_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(0), 1, 2, 5.0), ("t", at(1), 1, 2, 50.0))
    seen: list[tuple[Any, ...]] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts")

        def run(frame: DataFrame, batch_id: int) -> None:
            results = frame.sparkSession.createDataFrame(sink(frame, batch_id))
            rows = results.where("outcome = 'aborted'").select("transaction", "reason")
            seen.extend(map(tuple, rows.collect()))

        feed.run(run)
    assert seen == [("transfer", "insufficient funds")]


def test_a_table_is_read_while_its_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path)
    for place in range(3):
        feed.add(("t", at(place), 1, 2, 1.0))
    totals: list[float] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts")
        reader = spark.read.format("headgate").option("table", "accounts")

        def run(frame: DataFrame, batch_id: int) -> None:
            sink(frame, batch_id)
            rows = reader.load(str(tmp_path / "bank")).where("id = 1").collect()
            totals.append(rows[0].balance)

        feed.run(run)
    assert totals == [9.0, 8.0, 7.0]


def test_the_end_of_the_process_waits_for_micro_batches_and_lets_no_other_begin() -> None:
    program = (
        "import threading, time\n"
        "from headgate.spark.sink import micro_batches\n"
        "begun = threading.Event()\n"
        "def work():\n"
        "    with micro_batches.running():\n"
        "        begun.set()\n"
        "        time.sleep(1)\n"
        "        print('whole', flush=True)\n"
        "    try:\n"
        "        with micro_batches.running(): print('another', flush=True)\n"
        "    except Exception as error:\n"
        "        print(error, flush=True)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "begun.wait()\n"
    )
    # What is registered first runs last: a moment for the thread to ask for another.
    program = "import atexit, time; atexit.register(time.sleep, 0.5)\n" + program
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.splitlines()[0] == "whole"
    assert "another" not in ended.stdout
    assert ended.returncode == 0, ended.stderr
