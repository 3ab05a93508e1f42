"""Inputs on Spark: a value that does not fit is its event's rejection; the query goes on."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headgate as hg
from headgate.errors import InputError
from tests.spark.test_sink import Feed

kept = hg.Table("kept", "id bigint, n int, price decimal(10,2), moment timestamp", key="id")


@hg.transaction(
    event="id bigint, n int, price decimal(10,2), moment timestamp, tags array<int>, word string",
    compiled=False,
)
def keep(event, row=kept.at("id", create=True)):
    row.n = event.n
    row.price = event.price
    row.moment = event.moment


# Each column in a type that is not the declared one.
COLUMNS = (
    "cast(id as decimal(38,0)) as id",
    "cast(n as double) as n",
    "cast(price as decimal(12,3)) as price",
    "cast(moment as timestamp_ntz) as moment",
    "from_json(tags, 'array<bigint>') as tags",
    "cast(word as string) as word",
)
NOON = "2024-01-01 12:00:00.000001"
ROWS: list[tuple[tuple[Any, ...], str | None]] = [
    (("1", "7", "1.500", NOON, "[1, 2]", "a"), None),
    (("99999999999999999999", "7", "1", NOON, "[]", "a"), "out of range: id"),
    (("3", "0.5", "1", NOON, "[]", "a"), "not exact: n"),
    (("4", "1e10", "1", NOON, "[]", "a"), "out of range: n"),
    (("5", "NaN", "1", NOON, "[]", "a"), "null value: n"),
    (("6", "7", "1.005", NOON, "[]", "a"), "not exact: price"),
    (("7", "7", "123456789", NOON, "[]", "a"), "out of range: price"),
    (("8", "7", "1", NOON, "[1, 3000000000]", "a"), "out of range: tags"),
    (("9", "7", "1", NOON, "[1, null]", "a"), "null value: tags"),
    (("10", "7", "1", NOON, "[]", None), "null value: word"),
    ((None, "7", "1", NOON, "[]", "a"), "null key: id"),
    (("12", "-3", "-0.01", NOON, "[]", ""), None),
]
TEXTS = "id string, n string, price string, moment string, tags string, word string"


def test_what_does_not_fit_is_rejected_and_the_query_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path, TEXTS)
    feed.add(*(row for row, _ in ROWS))
    feed.add(("20", "1", "1", NOON, "[]", "a"))
    results = []
    with hg.open(tmp_path / "store", tables=[kept], transactions=[keep]) as engine:
        sink = engine.sink(keep, carry="id")
        feed.run(lambda frame, batch: results.append(sink(frame.selectExpr(*COLUMNS), batch)))
        found = [(row["outcome"], row["reason"]) for row in results[0].to_pylist()]
        expected = [("committed", None) for _, reason in ROWS if reason is None]
        expected += [("rejected", reason) for _, reason in ROWS if reason is not None]
        assert found == expected
        assert results[1].column("outcome").to_pylist() == ["committed"]
        rows = engine.sql("select id, n, price from kept order by id").rows()
        moments = engine.sql("select distinct epoch_us(moment) % 1000000 from kept").rows()
    two = [(1, 7, decimal.Decimal("1.50")), (12, -3, decimal.Decimal("-0.01"))]
    assert rows == [*two, (20, 1, decimal.Decimal("1.00"))]
    assert moments == [(1,)]


def test_a_column_that_can_never_fit_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path, TEXTS)
    feed.add(ROWS[0][0])
    wrong = [column.replace("cast(n as double)", "cast(n as binary)") for column in COLUMNS]
    with hg.open(None, tables=[kept], transactions=[keep]) as engine:
        sink = engine.sink(keep)
        words = "column 'n': the column is binary, the declaration says int"
        with pytest.raises(StreamingQueryException, match=words):
            feed.run(lambda frame, batch: sink(frame.selectExpr(*wrong), batch))
        assert isinstance(sink.error, InputError)
