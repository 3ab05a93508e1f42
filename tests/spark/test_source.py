"""The data source "headgate" for frames: what Spark reads is what the store holds, at one epoch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.stores import Writer, thing

TWO_RESULTS = [("transfer", "committed", 1.5, None), ("deposit", "aborted", None, "x")]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """A store at `tmp_path / "store"` that stays open for writing during the test."""
    opened = Writer(tmp_path / "store")
    yield opened
    opened.close()


def load(spark: SparkSession, tmp_path: Path, **options: Any) -> DataFrame:
    return spark.read.format("headgate").options(**options).load(str(tmp_path / "store"))


def ids(frame: DataFrame) -> list[int]:
    return sorted(frame.select("id").toArrow()["id"].to_pylist())


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return list(frame.toArrow().to_pylist())


def test_a_table_keeps_every_type_and_every_null(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    nothing = {name: None for name in thing(0) if name != "id"}
    rows = {0: thing(1), 1: thing(2), 2: thing(3, **nothing)}
    writer.commit(rows)
    found = rows_of(load(spark, tmp_path, table="things").orderBy("id"))
    assert found == list(rows.values())


def test_an_epoch_travels_in_time_and_the_default_is_the_newest(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    writer.commit({0: thing(1)})
    writer.commit({1: thing(2)})
    writer.commit({0: None, 2: thing(3)})
    seen = {
        epoch: ids(load(spark, tmp_path, table="things", epoch=epoch)) for epoch in (0, 1, 2, 3)
    }
    assert seen == {0: [], 1: [1], 2: [1, 2], 3: [2, 3]}
    assert ids(load(spark, tmp_path, table="things")) == [2, 3]


def test_a_frame_stays_at_the_epoch_of_its_load(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    writer.commit({0: thing(1)})
    frame = load(spark, tmp_path, table="things")
    writer.commit({1: thing(2)})
    assert ids(frame) == [1]
    assert ids(frame.where("small >= 0")) == [1]
    assert ids(load(spark, tmp_path, table="things")) == [1, 2]


def test_one_frame_with_several_filters_gives_each_its_rows(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    # Spark 4.3 mixes these up when filters are pushed down, which is why that is off by default.
    writer.commit({number: thing(number) for number in range(6)})
    frame = load(spark, tmp_path, table="things")
    one, even = frame.where("id = 3"), frame.where("flag")
    assert ids(one.union(even)) == [0, 2, 3, 4]
    assert ids(one) == [3]
    assert ids(frame) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("partitions", [1, 3, 50])
def test_partitions_share_the_rows_without_loss(
    spark: SparkSession, tmp_path: Path, writer: Writer, partitions: int
) -> None:
    writer.commit({number: thing(number) for number in range(20)})
    frame = load(spark, tmp_path, table="things", partitions=partitions)
    assert frame.rdd.getNumPartitions() == min(partitions, 20)
    assert ids(frame) == list(range(20))


def test_a_schema_given_to_the_reader_reads_just_those_columns(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    writer.commit({0: thing(1), 1: thing(2)})
    reader = spark.read.format("headgate").option("table", "things")
    frame = reader.schema("name string, id bigint").load(str(tmp_path / "store"))
    assert sorted(map(tuple, frame.collect())) == [("thing 1", 1), ("thing 2", 2)]


def test_a_table_that_was_never_written_is_empty_with_its_columns(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    writer.commit({0: thing(1)})
    frame = load(spark, tmp_path, table="empty")
    assert (frame.columns, frame.collect()) == (["id"], [])


def test_results_of_one_stream_are_plain_text_with_their_epoch(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    writer.commit(
        outcomes=[("transfer", "committed", 1.5, None), ("deposit", "aborted", None, "x")]
    )
    writer.commit({0: thing(1)})
    writer.commit(outcomes=[("transfer", "aborted", 2.5, None)])
    found = load(spark, tmp_path, stream="transfer").orderBy("epoch").drop("ts")
    expected = [
        {"epoch": 1, "position": 0, "outcome": "committed", "reason": None, "balance": 1.5},
        {"epoch": 3, "position": 0, "outcome": "aborted", "reason": "no", "balance": 2.5},
    ]
    assert rows_of(found) == [{**row, "transaction": "transfer"} for row in expected]


def test_the_stream_star_holds_all_results_with_the_columns_of_all(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    writer.commit(
        outcomes=[("transfer", "committed", 1.5, None), ("deposit", "aborted", None, "x")]
    )
    found = load(spark, tmp_path, stream="*").orderBy("position")
    assert [tuple(row) for row in found.select("transaction", "balance", "note").collect()] == [
        ("transfer", 1.5, None),
        ("deposit", None, "x"),
    ]


def test_results_can_be_read_for_a_range_of_epochs(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    for number in range(5):
        writer.commit(outcomes=[("transfer", "committed", float(number), None)])
    frame = load(spark, tmp_path, stream="transfer", startingEpoch=2, endingEpoch=4)
    assert sorted(row.epoch for row in frame.collect()) == [2, 3, 4]


def test_a_read_beside_a_writer_sees_whole_epochs_only(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    # Every epoch moves weight between two rows; the sum is constant in each, never in between.
    writer.commit({0: thing(0, weight=50.0), 1: thing(1, weight=50.0)})
    stop = threading.Event()

    def move() -> None:
        while not stop.wait(0.005):
            share = float(writer.epoch % 50)
            writer.commit({0: thing(0, weight=share), 1: thing(1, weight=100.0 - share)})

    thread = threading.Thread(target=move)
    thread.start()
    try:
        for _ in range(4):
            frame = load(spark, tmp_path, table="things", partitions=2)
            assert frame.selectExpr("sum(weight)").collect()[0][0] == 100.0
    finally:
        stop.set()
        thread.join()
    assert writer.epoch > 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'option("table", name)'),
        ({"table": "things", "stream": "transfer"}, "table and stream"),
        (
            {"table": "accounts"},
            "no table 'accounts' in the store at epoch 1; it has the tables: e",
        ),
        ({"stream": "withdraw"}, "no stream 'withdraw' in the store; it has the streams: deposi"),
        ({"table": "things", "epoch": "7"}, "epoch 7 does not exist yet; the last epoch is 1"),
        ({"table": "things", "epoch": "new"}, "epoch is a number of at least 0, not 'new'"),
        ({"table": "things", "partitions": "0"}, "partitions is a number of at least 1, not '0'"),
        ({"table": "things", "epohc": "1"}, "unknown option 'epohc'; the options are: path, table"),
        (
            {"table": "things", "startingEpoch": "1"},
            "startingEpoch has no meaning when read",
        ),
        ({"table": "things", "pushFilters": "yes"}, "pushFilters is true or false, not 'yes'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, writer: Writer, options: dict[str, str], message: str
) -> None:
    writer.commit({0: thing(1)})
    with pytest.raises(PySparkException, match="InputError") as caught:
        load(spark, tmp_path, **options).collect()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "there is no store at"),
        ("s3a://bucket/bank", "not an address in s3a"),
        (None, 'give its path, as in .load("bank")'),
    ],
)
def test_a_path_that_is_no_store_is_refused(
    spark: SparkSession, tmp_path: Path, path: str | None, message: str
) -> None:
    place = str(tmp_path / path) if path == "nowhere" else path
    with pytest.raises(PySparkException, match="InputError") as caught:
        spark.read.format("headgate").option("table", "things").load(place)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id bigint, size int", "table 'things': no column 'size'; the columns are: id, flag"),
        ("id int", "table 'things': column 'id' is bigint, not int; cast it after the load"),
    ],
)
def test_a_schema_that_the_table_does_not_hold_is_refused(
    spark: SparkSession, tmp_path: Path, writer: Writer, schema: str, message: str
) -> None:
    writer.commit({0: thing(1)})
    reader = spark.read.format("headgate").option("table", "things").schema(schema)
    with pytest.raises(PySparkException, match="InputError") as caught:
        reader.load(str(tmp_path / "store")).collect()
    assert message in str(caught.value)


def test_a_file_address_is_a_path(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    writer.commit({0: thing(1)})
    reader = spark.read.format("headgate").option("table", "things")
    assert ids(reader.load((tmp_path / "store").as_uri())) == [1]


def test_sql_can_name_a_store(spark: SparkSession, tmp_path: Path, writer: Writer) -> None:
    writer.commit({0: thing(1), 1: thing(2)})
    path = tmp_path / "store"
    spark.sql(f"create temporary view v using headgate options (path '{path}', table 'things')")
    assert spark.sql("select max(id) from v").collect()[0][0] == 2
