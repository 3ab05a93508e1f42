"""Columns: Arrow arrays as stored values and back; what a declared column takes and refuses."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.state.columns import to_arrow, to_stored
from headgate.state.objects import EXACT_FAULT, NULL_FAULT, RANGE_FAULT, TEXT_FAULT
from headgate.state.schema import Schema
from headgate.state.strings import StringPool
from headgate.state.types import ColumnType

KINDS = {
    str(column.type): column.type
    for column in Schema.parse(
        "a boolean, b int, c bigint, d float, e double, f string, g timestamp, h date, "
        "i decimal(9,2), j decimal(18,0)"
    )
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    "timestamp": st.integers(-(2**50), 2**50),
    "date": st.integers(-700_000, 2_900_000),
    "decimal(9,2)": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: decimal.Decimal(n) / 100),
    "decimal(18,0)": st.integers(-(10**18) + 1, 10**18 - 1).map(decimal.Decimal),
}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data(), cut=st.integers(0, 3), pieces=st.integers(1, 3))
def test_what_is_stored_comes_back(name: str, data: st.DataObject, cut: int, pieces: int) -> None:
    """With nulls, from the middle of an array, from several chunks: the same array again."""
    kind, pool = KINDS[name], StringPool()
    values = data.draw(st.lists(st.none() | VALUES[name], max_size=20))
    array = pa.array(values, kind.arrow)[min(cut, len(values)) :]
    column = pa.chunked_array([array[piece::1][:0] for piece in range(pieces)] + [array])
    stored = to_stored(column, kind, pool, "here")
    nulls = None if stored.faults is None else stored.faults == NULL_FAULT
    assert to_arrow(stored.values, kind, pool, nulls).equals(array)


@given(
    values=st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=4), max_size=8)
)
def test_an_array_column_is_offsets_and_elements(values: list[Any]) -> None:
    kind = ColumnType("array", element=ColumnType("bigint"))
    array = pa.concat_arrays([pa.array([[9, 9]], kind.arrow), pa.array(values, kind.arrow)])[1:]
    stored = to_stored(array, kind, StringPool(), "here")
    assert stored.offsets is not None
    for row, value in enumerate(values):
        missing = value is None or None in value
        assert bool(stored.faults is not None and stored.faults[row] == NULL_FAULT) == missing
        if not missing:
            first, last = stored.offsets[row], stored.offsets[row + 1]
            assert list(stored.values[first:last]) == value


def test_nan_and_the_two_zeros_are_kept() -> None:
    for name in ("float", "double"):
        kind = KINDS[name]
        array = pa.array([math.nan, -0.0, 0.0, math.inf], kind.arrow)
        stored = to_stored(array, kind, StringPool(), "here")
        assert repr(to_arrow(stored.values, kind, StringPool()).to_pylist()) == repr(
            array.to_pylist()
        )


ACCEPTED = {
    "small ints for bigint": ("bigint", pa.array([1, None], pa.int8()), [1, None]),
    "unsigned for bigint": ("bigint", pa.array([1], pa.uint64()), [1]),
    "int64 for int": ("int", pa.array([1, -5]), [1, -5]),
    "ints for double": ("double", pa.array([1, 2]), [1.0, 2.0]),
    "double for float": ("float", pa.array([0.1]), [np.float32(0.1)]),
    "ints for decimal": ("decimal(9,2)", pa.array([3]), [decimal.Decimal(3)]),
    "a smaller scale": (
        "decimal(9,2)",
        pa.array([decimal.Decimal("1.5")]),
        [decimal.Decimal("1.5")],
    ),
    "nanoseconds": ("timestamp", pa.array([-1500_000], pa.timestamp("ns")), [-1500]),
    "whole doubles for int": ("int", pa.array([1.0, math.nan, -0.0]), [1, None, 0]),
    "a larger scale": (
        "decimal(9,2)",
        pa.array([decimal.Decimal("1.120")]),
        [decimal.Decimal("1.12")],
    ),
    "a decimal for an int": ("int", pa.array([decimal.Decimal("7.00")]), [7]),
    "words with a null among them": (
        "string",
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None])),
        ["a", None, None],
    ),
    "chunks of words with nulls": (
        "string",
        pa.chunked_array(
            pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([word, None]))
            for word in "ab"
        ),
        ["a", None, "b", None],
    ),
    "as many words as an index has room for": (
        "string",
        pa.DictionaryArray.from_arrays(
            pa.array([127, None], pa.int8()), pa.array([str(n) for n in range(128)])
        ),
        ["127", None],
    ),
    "runs": ("bigint", pc.run_end_encode(pa.array([1, 1, None])), [1, 1, None]),
    "words of numbers": ("int", pa.array([5, 5, None]).dictionary_encode(), [5, 5, None]),
    "seconds with a zone": (
        "timestamp",
        pa.array([2], pa.timestamp("s", "Europe/Rome")),
        [2_000_000],
    ),
    "date64": ("date", pa.array([datetime.date(1970, 1, 3)], pa.date64()), [2]),
    "all null": ("string", pa.array([None, None]), [None, None]),
    "no chunks": ("int", pa.chunked_array([], pa.int32()), []),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_column_takes_what_fits_without_loss(what: str) -> None:
    name, column, expected = ACCEPTED[what]
    kind, pool = KINDS[name], StringPool()
    stored = to_stored(column, kind, pool, "here")
    nulls = None if stored.faults is None else stored.faults == NULL_FAULT
    assert to_arrow(stored.values, kind, pool, nulls).equals(pa.array(expected, kind.arrow))


REFUSED = {
    "a text for a number": ("bigint", pa.array(["1"])),
    "a number for a text": ("string", pa.array([1])),
    "a double for a decimal": ("decimal(9,2)", pa.array([1.5])),
    "a decimal for a double": ("double", pa.array([decimal.Decimal("0.5")])),
    "a duration": ("timestamp", pa.array([1], pa.duration("us"))),
    "a time of day": ("timestamp", pa.array([1], pa.time64("us"))),
    "an int for a boolean": ("boolean", pa.array([1])),
    "an int for a timestamp": ("timestamp", pa.array([1])),
    "a date for a timestamp": ("timestamp", pa.array([1], pa.date32())),
    "a timestamp for a date": ("date", pa.array([1], pa.timestamp("us"))),
    "a list for an int": ("int", pa.array([[1]])),
    "bytes for a text": ("string", pa.array([b"a"])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_column_of_another_type_is_refused_with_both_types(what: str) -> None:
    name, column = REFUSED[what]
    with pytest.raises(hg.InputError) as refused:
        to_stored(column, KINDS[name], StringPool(), "events: column 'x'")
    assert str(refused.value).startswith("events: column 'x': ")
    assert f"the declaration says {name}" in str(refused.value)


def test_an_int_out_of_range_is_a_fault_of_that_value_alone() -> None:
    column = pa.array([5, 2**31, None, -(2**31) - 1, -(2**31)])
    stored = to_stored(column, KINDS["int"], StringPool(), "here")
    assert stored.faults is not None
    assert list(stored.faults) == [0, RANGE_FAULT, NULL_FAULT, RANGE_FAULT, 0]
    assert stored.values[0] == 5 and stored.values[4] == -(2**31)


SECONDS_MAX = (2**63 - 1) // 10**6
FAULTY = {
    "too large for a bigint": ("bigint", pa.array([2**63, 5], pa.uint64()), RANGE_FAULT),
    "too large for an int": ("int", pa.array([2**63, 5], pa.uint64()), RANGE_FAULT),
    "too large for a decimal": ("decimal(9,2)", pa.array([10**7, 5]), RANGE_FAULT),
    "inexact as a decimal": (
        "decimal(9,2)",
        pa.array([decimal.Decimal("1.125"), decimal.Decimal(5)]),
        EXACT_FAULT,
    ),
    "a fraction for an int": ("int", pa.array([1.5, 5.0]), EXACT_FAULT),
    "a double beyond bigint": ("bigint", pa.array([2.0**63, 5.0]), RANGE_FAULT),
    "infinity for an int": ("int", pa.array([-math.inf, 5.0]), RANGE_FAULT),
    "an int that no double is": ("double", pa.array([2**53 + 1, 5]), EXACT_FAULT),
    "the largest int for a double": ("double", pa.array([2**63 - 1, 5]), EXACT_FAULT),
    "nanoseconds": ("timestamp", pa.array([-1, 5000], pa.timestamp("ns")), EXACT_FAULT),
    "seconds": ("timestamp", pa.array([SECONDS_MAX + 1, 5], pa.timestamp("s")), RANGE_FAULT),
    "milliseconds": ("timestamp", pa.array([-(2**62), 5], pa.timestamp("ms")), RANGE_FAULT),
    "not UTF-8": (
        "string",
        pa.Array.from_buffers(
            pa.string(),
            2,
            [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff5")],
        ),
        TEXT_FAULT,
    ),
}


@pytest.mark.parametrize("what", FAULTY)
def test_a_value_that_does_not_fit_is_a_fault_of_its_own(what: str) -> None:
    name, column, fault = FAULTY[what]
    pool = StringPool()
    many = pa.concat_arrays([column] * 300)  # enough to be looked at in parts
    for array in (column, many):
        stored = to_stored(array, KINDS[name], pool, "here")
        assert stored.faults is not None
        assert list(stored.faults) == [fault, 0] * (len(array) // 2)
        sound = to_arrow(stored.values[1:2], KINDS[name], pool).cast(pa.string()).to_pylist()[0]
        assert sound.startswith("5") or sound.startswith("1970-01-01 00:00:0")


LISTS = {
    "list": pa.list_(pa.int64()),
    "large_list": pa.large_list(pa.int64()),
    "list_view": pa.list_view(pa.int64()),
    "large_list_view": pa.large_list_view(pa.int64()),
    "fixed_size_list": pa.list_(pa.int64(), 2),
}


@pytest.mark.parametrize("what", LISTS)
def test_lists_of_every_make_are_read_also_from_their_middle(what: str) -> None:
    values = [[9, 9], [1, 2], None, [2**40, 3], [None, 2**40], [7, 8]]
    kind = ColumnType("array", element=ColumnType("int"))
    stored = to_stored(pa.array(values, LISTS[what])[1:], kind, StringPool(), "here")
    assert stored.faults is not None and stored.offsets is not None
    assert list(stored.faults) == [0, NULL_FAULT, RANGE_FAULT, NULL_FAULT, 0]
    for row, expected in ((0, [1, 2]), (4, [7, 8])):
        assert list(stored.values[stored.offsets[row] : stored.offsets[row + 1]]) == expected


@pytest.mark.parametrize("hidden", [[], [2**40, 5]], ids=["none", "some"])
def test_a_null_list_has_no_elements_whatever_arrow_keeps_for_it(hidden: list[int]) -> None:
    offsets = np.array([0, 1, 1 + len(hidden), 3 + len(hidden)], np.int32)
    mask = pa.array([False, True, False])
    array = pa.ListArray.from_arrays(offsets, pa.array([1, *hidden, 2, 3]), mask=mask)
    kind = ColumnType("array", element=ColumnType("int"))
    stored = to_stored(array, kind, StringPool(), "here")
    assert stored.faults is not None and stored.offsets is not None
    assert list(stored.faults) == [0, NULL_FAULT, 0]
    assert (list(stored.offsets), list(stored.values)) == ([0, 1, 1, 3], [1, 2, 3])


def test_a_scalar_column_for_an_array_is_refused() -> None:
    kind = ColumnType("array", element=ColumnType("int"))
    with pytest.raises(hg.InputError, match="the column is int64, the declaration says array<int>"):
        to_stored(pa.array([1]), kind, StringPool(), "here")
