"""The case studies on a real Spark query: each ends with what was expected, and draws it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apps import congestion, detection, exchange, hotel, pairs, routing, shop, steps


@pytest.mark.parametrize(
    ("study", "picture", "count"),
    [
        (exchange, "turnover.svg", 4000),
        (congestion, "congestion.svg", 4000),
        (detection, "detection.svg", 16),
        (shop, "shop.svg", 600),
        (hotel, "hotel.svg", 600),
    ],
    ids=["exchange", "congestion", "detection", "shop", "hotel"],
)
def test_a_case_study_finds_what_was_expected(
    spark: Any, tmp_path: Path, study: Any, picture: str, count: int
) -> None:
    assert study.on_spark(spark, tmp_path, count)
    assert (tmp_path / picture).read_text().count("<polyline") == 2


def test_a_case_study_that_is_started_again_finds_the_same(spark: Any, tmp_path: Path) -> None:
    assert exchange.on_spark(spark, tmp_path, 1000)
    assert exchange.on_spark(spark, tmp_path, 1000)  # no micro-batch comes: nothing is flushed


def test_a_query_that_follows_the_store_which_it_feeds_comes_to_its_end(
    spark: Any, tmp_path: Path
) -> None:
    assert routing.on_spark(spark, tmp_path, 120)


@pytest.mark.parametrize("study", [pairs, steps], ids=["pairs", "steps"])
def test_a_dataflow_behind_spark_ends_with_the_rows_of_plain_python(
    spark: Any, tmp_path: Path, study: Any
) -> None:
    assert study.on_spark(spark, tmp_path, 520)
