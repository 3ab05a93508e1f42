"""Operating a sink: carried columns, the tail of a stream, columns refused before the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headgate as hg
from headgate.durability.copying import restore
from headgate.errors import InputError
from tests.spark.test_sink import EVENTS, Feed, at, balances, deposit, open_bank, transfer

WITH_ID = "event_id string, kind string, ts timestamp, src bigint, dst bigint, amount double"
ROUTES = {"t": transfer, "d": deposit}


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_carried_columns_are_in_every_result_and_unrouted_events_in_a_stream_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path, WITH_ID)
    feed.add(("a", "t", at(1), 1, 2, 5.0), ("b", "t", at(2), 1, 2, 50.0))
    malformed = ("d", "d", at(4), 1, None, 5.0)
    feed.add(("c", "x", at(3), 1, 2, 5.0), malformed, (None, "d", at(5), 1, 2, 1.0))
    results: list[pa.Table] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(ROUTES, route_by="kind", order_by="ts", carry="event_id, kind")
        feed.run(lambda frame, batch: results.append(sink(frame, batch)))
    seen = [(row["event_id"], row["outcome"]) for table in results for row in table.to_pylist()]
    assert seen == [
        ("a", "committed"), ("b", "aborted"),
        (None, "committed"), ("c", "rejected"), ("d", "rejected"),
    ]  # fmt: skip

    def stream(name: str) -> list[Any]:
        reading = spark.readStream.format("headgate").option("stream", name)
        path = str(tmp_path / f"copy-{name}")
        writing = reading.load(str(tmp_path / "bank")).writeStream.format("parquet")
        writing = writing.option("checkpointLocation", path + "-checkpoint")
        writing.trigger(availableNow=True).start(path).awaitTermination()
        rows = spark.read.parquet(path).orderBy("epoch", "position").collect()
        return [(row.event_id, row.kind, row.reason) for row in rows]

    assert stream("transfer") == [("a", "t", None), ("b", "t", "insufficient funds")]
    assert stream("deposit") == [(None, "d", None), ("d", "d", "null key: dst")]
    assert stream("unrouted") == [("c", "x", "unknown route: x")]
    every = spark.read.format("headgate").option("stream", "*").load(str(tmp_path / "bank"))
    assert {row.event_id for row in every.collect()} == {None, "a", "b", "c", "d"}


def test_a_sink_runs_the_tail_of_an_available_now_query_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(2), 2, 3, 15.0), ("t", at(1), 1, 2, 10.0))
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts", watermark="1 hour")
        feed.run(sink)
        assert balances(engine) == {1: 10.0, 2: 10.0, 3: 10.0}
        found = sink.flush()
        assert found.column("outcome").to_pylist() == ["committed", "committed"]
        assert balances(engine) == {1: 0.0, 2: 5.0, 3: 25.0}
    feed.add(("t", at(7200), 3, 1, 5.0))
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts", watermark="1 hour")
        query = feed.run(sink)
        assert sink.flush(query).num_rows == 1
        assert sink.flush().num_rows == 0
        assert balances(engine) == {1: 5.0, 2: 5.0, 3: 20.0}


def test_an_idle_query_runs_what_it_holds_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(1), 1, 2, 4.0))
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts", watermark="1 hour", idle="1 second")
        reading = spark.readStream.schema(EVENTS).parquet(str(tmp_path / "events"))
        writing = reading.writeStream.foreachBatch(sink)
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            wait_for(lambda: balances(engine)[1] == 6.0)
            feed.add(("t", at(2), 1, 2, 1.0))
            wait_for(lambda: balances(engine)[1] == 5.0)
            assert query.isActive
        finally:
            query.stop()
    with open_bank(tmp_path / "bank") as engine:
        assert balances(engine) == {1: 5.0, 2: 15.0, 3: 10.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["ts", "src", "dst"], r"no column 'amount'; its columns are: ts, src, dst"),
        (["*", "1 as TS"], "has the column 'ts' more than once"),
        (["ts", "cast(src as string) src", "dst", "amount"], "column 'src'.*bigint"),
        (["cast(ts as timestamp_ntz) as ts", "src", "dst", "amount", "1 as other"], None),
        (["make_dt_interval() as ts", "src", "dst", "amount"], "column 'ts'"),
    ],
)
def test_columns_are_refused_before_the_query_is_started(
    spark: SparkSession, tmp_path: Path, change: list[str], words: str | None
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(1), 1, 2, 4.0))
    streaming = spark.readStream.schema(EVENTS).parquet(str(tmp_path / "events"))
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts")
        for frame in (streaming, spark.read.parquet(str(tmp_path / "events"))):
            if words is None:
                assert sink.check(frame.selectExpr(*change)) is sink
                continue
            with pytest.raises(InputError, match=words):
                sink.check(frame.selectExpr(*change))


def test_a_micro_batch_that_fails_says_why_in_one_place(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(1), 1, 2, 4.0))
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts")
        with pytest.raises(StreamingQueryException) as caught:
            feed.run(lambda frame, batch: sink(frame.drop("amount"), batch))
        assert str(caught.value).count("headgate/spark/sink.py") <= 1  # not the engine's inside
        assert isinstance(sink.error, InputError)
        assert "micro-batch 0 failed: InputError: the micro-batch has no column 'amount'" in str(
            caplog.messages
        )


def forget_above(checkpoint: Path, last: int) -> None:
    """What docs/store.md says is to be done with a checkpoint that is ahead of its store."""
    for folder in (checkpoint / "offsets", checkpoint / "commits", *checkpoint.glob("sources/*")):
        for path in folder.iterdir():
            number = path.name.strip(".").partition(".")[0]
            if number.isdigit() and int(number) > last:
                path.unlink()


def test_a_checkpoint_ahead_of_its_store_is_set_back_batch_by_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    for second in range(5):
        feed.add(("t", at(second), 1, 2, 1.0 + second))
    interval = "spark.sql.streaming.fileSource.log.compactInterval"
    spark.conf.set(interval, 2)  # so that numbers on both sides end in .compact
    try:
        with open_bank(tmp_path / "bank") as engine:
            feed.run(engine.sink(transfer, order_by="ts"))
            whole = engine.sql("select * from results").arrow()
        restore(tmp_path / "bank", 3, tmp_path / "older")  # batch 1 was its last
        forget_above(tmp_path / "checkpoint", 1)
        batches = []
        with open_bank(tmp_path / "older") as engine:
            sink = engine.sink(transfer, order_by="ts")
            feed.run(lambda frame, batch: batches.append((batch, sink(frame, batch).num_rows)))
            assert engine.sql("select * from results").arrow() == whole
    finally:
        spark.conf.unset(interval)
    assert batches == [(2, 1), (3, 1), (4, 1)]


def test_a_listener_sets_the_engines_counts_beside_sparks_progress(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path)
    feed.add(("t", at(100), 1, 2, 4.0), ("t", at(101), 1, 2, 50.0))
    feed.add(("t", at(1), 1, 2, 4.0), ("t", at(200), 1, 2, 1.0))
    told: list[Any] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(transfer, order_by="ts", watermark="5 seconds")
        assert sink.progress is None
        listener = hg.listen(spark, engine, told.append)
        try:
            query = feed.run(sink)
            wait_for(lambda: len(told) == 2)
        finally:
            listener.stop()
        assert list(listener.recent) == told
        second = told[1]
        assert (second.query, second.batch) == (query, 1)
        assert second.applied[0].outcomes == {
            "committed": 1, "aborted": 1, "rejected": 0, "late": 1
        }  # fmt: skip
        assert second.applied[0].held == 1 and second.spark["numInputRows"] == 2
        assert second.streams[0].name == "transfer"
        assert "1 late" in repr(second) and sink.progress == second.applied[0]
        assert engine.metrics().streams["transfer"].outcomes["late"] == 1
