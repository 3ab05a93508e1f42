"""The results stream: every epoch is read exactly once into the checkpoint of its query."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

import headgate as hg
from headgate.spark.selection import NumberRange, ResultsSelection
from headgate.spark.source import StreamReader
from tests.spark.stores import Writer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    opened = Writer(tmp_path / "store")
    yield opened
    opened.close()


def commit(writer: Writer, count: int = 1) -> None:
    for _ in range(count):
        number = float(writer.epoch + 1)
        writer.commit(
            outcomes=[("transfer", "committed", number, None), ("deposit", "aborted", None, "x")]
        )


def stream(spark: SparkSession, tmp_path: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("headgate").options(**{"stream": "transfer", **options})
    return reader.load(str(tmp_path / "store"))


def copy(frame: DataFrame, tmp_path: Path, name: str = "copy") -> StreamingQuery:
    """Copy what is there now into files, with a checkpoint, and end."""
    writing = frame.writeStream.format("parquet").trigger(availableNow=True)
    checkpoint = str(tmp_path / f"{name}-checkpoint")
    query = writing.option("checkpointLocation", checkpoint).start(str(tmp_path / name))
    query.awaitTermination()
    return query


def copied(spark: SparkSession, tmp_path: Path, name: str = "copy") -> list[tuple[Any, ...]]:
    frame = spark.read.parquet(str(tmp_path / name)).orderBy("epoch", "position")
    return [tuple(row) for row in frame.select("epoch", "transaction", "balance").collect()]


def test_a_restarted_stream_reads_each_epoch_once(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    commit(writer, 3)
    copy(stream(spark, tmp_path), tmp_path)
    copy(stream(spark, tmp_path), tmp_path)
    commit(writer, 2)
    copy(stream(spark, tmp_path), tmp_path)
    assert copied(spark, tmp_path) == [(n, "transfer", float(n)) for n in range(1, 6)]


def test_a_limit_bounds_the_epochs_of_a_batch(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    commit(writer, 5)
    query = copy(stream(spark, tmp_path, maxEpochsPerTrigger=2), tmp_path)
    ends = [progress["sources"][0]["endOffset"] for progress in query.recentProgress]
    assert ends == ['{"epoch": 2}', '{"epoch": 4}', '{"epoch": 5}']
    assert [row[0] for row in copied(spark, tmp_path)] == [1, 2, 3, 4, 5]


def test_a_query_of_what_is_there_now_leaves_later_epochs(tmp_path: Path, writer: Writer) -> None:
    commit(writer, 2)
    selection = ResultsSelection(str(tmp_path / "store"), "*", NumberRange(1, 3))
    reader = StreamReader(selection, pa.schema([("epoch", pa.int64())]), None, None)
    reader.prepareForTriggerAvailableNow()
    commit(writer, 2)
    assert reader.latestOffset({"epoch": 0}, ReadAllAvailable()) == {"epoch": 2}
    assert reader.reportLatestOffset() == {"epoch": 4}


def test_a_stream_follows_a_writer(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    commit(writer)
    seen: list[int] = []

    def note(frame: DataFrame, _batch_id: int) -> None:
        seen.extend(row.epoch for row in frame.collect())
        if writer.epoch < 4:
            commit(writer)

    query = stream(spark, tmp_path).writeStream.foreachBatch(note)
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for _ in range(400):
            if len(seen) >= 4 or running.exception() is not None:
                break
            time.sleep(0.1)
    finally:
        running.stop()
    assert (running.exception(), seen) == (None, [1, 2, 3, 4])


@pytest.mark.parametrize(("starting", "epochs"), [("latest", [4, 5]), (3, [3, 4, 5]), (5, [5])])
def test_a_stream_starts_where_it_is_told(
    spark: SparkSession, tmp_path: Path, writer: Writer, starting: Any, epochs: list[int]
) -> None:
    commit(writer, 3)
    frame = stream(spark, tmp_path, startingEpoch=starting)
    commit(writer, 2)
    copy(frame, tmp_path)
    assert [row[0] for row in copied(spark, tmp_path)] == epochs


def test_the_stream_star_carries_the_results_of_all(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    commit(writer, 2)
    copy(stream(spark, tmp_path, stream="*"), tmp_path)
    assert [row[1] for row in copied(spark, tmp_path)] == ["transfer", "deposit"] * 2


def test_a_checkpoint_of_another_store_is_refused(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    commit(writer, 3)
    copy(stream(spark, tmp_path), tmp_path)
    writer.close()
    (tmp_path / "store").rename(tmp_path / "older")
    other = Writer(tmp_path / "store")
    commit(other)
    with pytest.raises(PySparkException, match="read up to epoch 3, but the store ends at epoch 1"):
        copy(stream(spark, tmp_path), tmp_path)
    other.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "things"}, 'give .option\\("stream"'),
        ({"stream": "withdraw"}, "no stream 'withdraw'"),
        ({"stream": "transfer", "endingEpoch": "1"}, "a stream has no end"),
        ({"stream": "transfer", "startingEpoch": "soon"}, "startingEpoch is a number"),
        ({"stream": "transfer", "maxEpochsPerTrigger": "0"}, "maxEpochsPerTrigger is a number"),
    ],
)
def test_a_wrong_option_of_a_stream_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, writer: Writer, options: dict[str, str], message: str
) -> None:
    commit(writer)
    reader = spark.readStream.format("headgate").options(**options)
    with pytest.raises(PySparkException, match=message):
        copy(reader.load(str(tmp_path / "store")), tmp_path)


counters = hg.Table("counters", "id bigint, count bigint", key="id")


@hg.transaction(event="id bigint", compiled=False)
def count(event, counter=counters.at("id", create=True), out=hg.output("count bigint")):
    counter.count += 1
    out.count = counter.count


def test_a_stream_can_start_before_its_transaction_ever_ran(
    spark: SparkSession, tmp_path: Path
) -> None:
    with hg.open(tmp_path / "store", tables=[counters], transactions=[count]) as engine:
        results = stream(spark, tmp_path, stream="count")
        copy(results, tmp_path)
        for number in range(3):
            engine.call(count, id=number % 2)
        copy(results, tmp_path)
    frame = spark.read.parquet(str(tmp_path / "copy")).orderBy("epoch")
    assert [row["count"] for row in frame.collect()] == [1, 1, 2]
