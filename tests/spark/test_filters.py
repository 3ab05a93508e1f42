"""Filters taken over from Spark: the same rows as Spark's own, nulls, NaN and NOT included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark_source

from headgate.spark.selection import is_supported, select_rows
from headgate.state.schema import Schema
from tests.spark.stores import NAN, THINGS, Writer, thing

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = Schema.parse(THINGS).arrow
# Each is one condition on one column, which Spark offers to a Python source.
TAKEN = [
    "id = 3",
    "id <> 3",
    "id <=> 3",
    "not id <=> 3",
    "weight <=> null",
    "small > 2 and small <= 5",
    "not small > 2",
    "id in (1, 2, 9)",
    "id not in (1, 2, 9)",
    "name in ('thing 1', 'thing 4')",
    "name not in ('thing 1', 'x')",
    "name is null",
    "name is not null",
    "name like 'thing%'",
    "name not like 'thing%'",
    "name like '%5'",
    "name like '%ing 2%'",
    "name >= 'thing 3'",
    "flag",
    "not flag",
    "weight > 1.5D",
    "weight >= 1.5D",
    "weight < 1.5D",
    "weight = double('NaN')",
    "weight > double('NaN')",
    "weight >= double('NaN')",
    "weight < double('NaN')",
    "weight <= double('NaN')",
    "weight = 0D",
    "ratio > 1.25F",
    "seen > timestamp'2024-05-02 00:00:00'",
    "seen <= timestamp'2024-05-02 00:00:00+00:00'",
    "day = date'2024-01-04'",
    "price >= 1.25BD",
    "price = 0.75BD",
]
LEFT_TO_SPARK = ["id + 1 = 3", "id = 1 or id = 2", "length(name) > 7", "weight in (0D, 1D)"]


def rows() -> list[dict[str, Any]]:
    nothing = {name: None for name in thing(0) if name != "id"}
    special = [thing(10, weight=NAN, ratio=NAN), thing(11, weight=-0.0, ratio=float("inf"))]
    return [*map(thing, range(10)), *special, thing(12, **nothing)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("filters") / "store"
    writer = Writer(path)
    writer.commit(dict(enumerate(rows())))
    writer.close()
    return str(path)


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, "true")
    yield spark
    spark.conf.unset(PUSHDOWN)


@pytest.fixture(scope="module")
def by_spark(spark: SparkSession, store: str) -> DataFrame:
    """The same rows in Spark's own memory, where Spark filters alone."""
    return load(spark, store).localCheckpoint()


def load(spark: SparkSession, store: str, **options: str) -> DataFrame:
    return spark.read.format("headgate").option("table", "things").options(**options).load(store)


def ids(frame: DataFrame) -> list[int]:
    return sorted(frame.select("id").toArrow()["id"].to_pylist())


def is_filtered_by_spark(frame: DataFrame) -> bool:
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    return re.search(r"\bFilter ", plan) is not None


@pytest.mark.parametrize("condition", TAKEN)
def test_a_filter_taken_over_gives_the_rows_that_spark_gives(
    pushing: SparkSession, store: str, by_spark: DataFrame, condition: str
) -> None:
    pushed = load(pushing, store, pushFilters="true").where(condition)
    assert ids(pushed) == ids(by_spark.where(condition))
    assert not is_filtered_by_spark(pushed), "nothing was taken over"


@pytest.mark.parametrize("condition", LEFT_TO_SPARK)
def test_a_filter_we_cannot_answer_exactly_stays_with_spark(
    pushing: SparkSession, store: str, by_spark: DataFrame, condition: str
) -> None:
    pushed = load(pushing, store, pushFilters="true").where(condition)
    assert ids(pushed) == ids(by_spark.where(condition))
    assert is_filtered_by_spark(pushed)


def test_push_down_without_the_setting_of_spark_names_the_setting(
    spark: SparkSession, store: str
) -> None:
    with pytest.raises(Exception, match=PUSHDOWN):
        load(spark, store, pushFilters="true").collect()


@pytest.mark.parametrize(
    "condition",
    [
        spark_source.EqualTo(("id",), "x"),
        spark_source.EqualTo(("id",), True),
        spark_source.EqualTo(("id",), 2**70),
        spark_source.EqualTo(("id",), None),
        spark_source.EqualTo(("other",), 1),
        spark_source.EqualTo(("id", "inner"), 1),
        spark_source.In(("weight",), (0.0,)),
        spark_source.Not(spark_source.EqualTo(("day",), 5)),
        spark_source.StringStartsWith(("id",), "1"),
    ],
)
def test_a_value_of_another_type_is_not_taken_over(condition: spark_source.Filter) -> None:
    assert not is_supported(condition, SCHEMA)


@pytest.mark.parametrize("values", [(1, None), (None,)])
def test_a_null_in_a_list_makes_not_in_unknown(values: tuple[int | None, ...]) -> None:
    batch = pa.record_batch({"id": pa.array([1, 2, None], pa.int64())})
    condition = spark_source.In(("id",), values)
    found = select_rows(batch, [condition]).column("id").to_pylist()
    assert found == [value for value in (1,) if value in values]
    assert select_rows(batch, [spark_source.Not(condition)]).num_rows == 0
