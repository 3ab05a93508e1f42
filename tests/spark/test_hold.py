"""What a Spark query has planned to read stays in the store until it was read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headgate.durability import Retention, StoreReader
from tests.spark.stores import Writer, thing

COUNT = 8


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    opened = Writer(tmp_path / "store", segment_bytes=300)  # a segment or two for each epoch
    for _ in range(COUNT):
        grow(opened)
    yield opened
    opened.close()


def grow(writer: Writer) -> None:
    number = writer.epoch + 1
    writer.commit(
        rows={number: thing(number)},
        outcomes=[("transfer", "committed", float(number), None)],
    )


def trim(writer: Writer, store: Path) -> None:
    """Go on, and give up all of the past."""
    for _ in range(3):
        grow(writer)
    writer.store.snapshot()
    writer.store.trim(Retention(snapshots=1))
    assert StoreReader.open(store).first_epoch() == writer.epoch


def files(store: Path) -> set[str]:
    return {path.name for folder in ("log", "snapshots") for path in (store / folder).iterdir()}


def leases(store: Path) -> list[str]:
    return [path.name for path in (store / "readers").iterdir()]


def table(spark: SparkSession, store: Path, **options: object) -> DataFrame:
    reader = spark.read.format("headgate").options(table="things", partitions=4, **options)
    return reader.load(str(store))


def test_a_frame_is_read_whole_though_its_epoch_is_trimmed_meanwhile(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    store = tmp_path / "store"
    frame = table(spark, store).select("id")
    trim(writer, store)  # between the loading and the planning
    rows = frame.toLocalIterator()  # one job after another, a partition each
    found = [next(rows).id]
    trim(writer, store)
    found += [row.id for row in rows]
    assert found == list(range(1, COUNT + 1))
    trim(writer, store)
    assert frame.count() == COUNT


def test_results_are_read_whole_though_they_are_trimmed_meanwhile(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    store = tmp_path / "store"
    reader = spark.read.format("headgate").options(stream="transfer", partitions=4)
    rows = reader.load(str(store)).select("epoch").toLocalIterator()
    found = [next(rows).epoch]
    trim(writer, store)
    found += [row.epoch for row in rows]
    assert found == list(range(1, COUNT + 1))


def test_without_a_hold_the_query_names_what_is_gone(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    store = tmp_path / "store"
    frame = table(spark, store, hold="0 seconds")
    trim(writer, store)
    with pytest.raises(PySparkException, match="trimmed"):
        frame.collect()


def test_a_hold_that_is_over_lets_the_store_trim(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    store = tmp_path / "store"
    table(spark, store, hold="0 seconds").count()
    before = files(store)
    assert leases(store)
    trim(writer, store)
    assert leases(store) == []
    assert not files(store) & before


def test_a_stream_loses_nothing_to_trimming_while_it_runs(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    store = tmp_path / "store"
    found: list[int] = []

    def take(batch: DataFrame, number: int) -> None:
        found.extend(row.epoch for row in batch.collect())
        if number % 2 == 0:
            trim(writer, store)

    reader = spark.readStream.format("headgate")
    reader = reader.options(stream="transfer", maxEpochsPerTrigger="2", hold="0 seconds")
    query = (
        reader.load(str(store))
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert found == list(range(1, COUNT + 1))
    # What planned the query is a process of its own, which Spark ends when the query is over.
    deadline = time.monotonic() + 60
    trim(writer, store)
    while leases(store) and time.monotonic() < deadline:
        time.sleep(0.05)
        trim(writer, store)
    assert leases(store) == []


def test_a_hold_that_is_no_duration_is_refused(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    with pytest.raises(PySparkException, match="the option hold: 'long' is not a duration"):
        table(spark, tmp_path / "store", hold="long")
