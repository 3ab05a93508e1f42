"""Order: events sorted as Python sorts them, and durations read as they are written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.engine.sorting import is_sorted_throughout, sort_key, sort_rows
from headgate.state.durations import parse_duration
from headgate.state.types import ColumnType

WORDS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from((2**63 - 1, -(2**63), 2**11, 2**22)),
)


def python_order(keys: list[list[int]], rows: list[int]) -> list[int]:
    return sorted(rows, key=lambda row: tuple(key[row] for key in keys))


@settings(max_examples=100)
@given(data=st.data(), count=st.integers(0, 40), columns=st.integers(0, 3))
def test_rows_are_sorted_by_all_keys_and_ties_stay_as_they_arrived(
    data: st.DataObject, count: int, columns: int
) -> None:
    keys = [data.draw(st.lists(WORDS, min_size=count, max_size=count)) for _ in range(columns)]
    rows = data.draw(st.lists(st.integers(0, count - 1), unique=True)) if count else []
    arrays = [np.array(key, np.int64) for key in keys]
    found = sort_rows(arrays, np.array(rows, np.int64))
    assert list(found) == python_order(keys, rows)


def test_a_large_batch_is_sorted_like_a_small_one() -> None:
    chance = np.random.default_rng(7)
    for span in (2**3, 2**12, 2**40, 2**63 - 1):
        keys = chance.integers(-span, span, 5_000, np.int64)
        found = sort_rows([keys], np.arange(5_000))
        assert np.array_equal(found, np.argsort(keys, kind="stable"))


@given(keys=st.lists(WORDS, max_size=8))
def test_sorted_input_is_recognised(keys: list[int]) -> None:
    assert is_sorted_throughout(np.array(keys, np.int64)) == (keys == sorted(keys))


NUMBERS = st.one_of(
    st.floats(allow_nan=False),
    st.sampled_from((0.0, -0.0, 5e-324, -5e-324, math.inf, -math.inf, 1.0)),
)


@given(values=st.lists(NUMBERS, max_size=20), kind=st.sampled_from(("float", "double")))
def test_floats_sort_by_value_and_the_two_zeros_tie(values: list[float], kind: str) -> None:
    with np.errstate(over="ignore"):
        stored = np.array(values, np.float32 if kind == "float" else np.float64)
    keys = sort_key(stored, ColumnType(kind))
    expected = sorted(range(len(values)), key=lambda row: float(stored[row]))
    assert list(sort_rows([keys], np.arange(len(values)))) == expected


def test_nan_sorts_after_every_number() -> None:
    keys = sort_key(np.array([math.nan, 1.0, math.inf, -1.0]), ColumnType("double"))
    assert list(sort_rows([keys], np.arange(4))) == [3, 1, 2, 0]


@given(values=st.lists(st.text(max_size=4), max_size=12))
def test_texts_sort_by_their_code_points(values: list[str]) -> None:
    texts = [value.encode("utf-8", "replace").decode() for value in values]
    keys = sort_key(
        np.zeros(len(texts), np.int64), ColumnType("string"), pa.array(texts, pa.string())
    )
    expected = sorted(range(len(texts)), key=lambda row: texts[row])
    assert list(sort_rows([keys], np.arange(len(texts)))) == expected


@pytest.mark.parametrize("kind", ["boolean", "int", "bigint", "date", "timestamp", "decimal"])
def test_the_other_types_sort_as_they_are_stored(kind: str) -> None:
    stored = np.array([1, 0, 1, 0], np.uint8 if kind == "boolean" else np.int32)
    assert list(sort_key(stored, ColumnType(kind))) == [1, 0, 1, 0]


# --- durations ------------------------------------------------------------------------------------

DURATIONS = {
    "10 seconds": 10_000_000,
    "1 second": 1_000_000,
    "0 seconds": 0,
    "1.5 minutes": 90_000_000,
    "1 hour 30 minutes": 5_400_000_000,
    "250 milliseconds": 250_000,
    "7 microseconds": 7,
    "2 DAYS": 172_800_000_000,
    "1week": 604_800_000_000,
    "interval 3 hours": 10_800_000_000,
}


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_is_read_as_spark_reads_it(text: str) -> None:
    assert parse_duration(text, "watermark") == DURATIONS[text]


@pytest.mark.parametrize(
    "text", ["", "ten seconds", "10", "seconds", "10 parsecs", "-5 seconds", 10]
)
def test_what_is_no_duration_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(
        hg.HeadgateError, match=r"watermark: .* is not a duration; write it as '10 s"
    ):
        parse_duration(text, "watermark")
