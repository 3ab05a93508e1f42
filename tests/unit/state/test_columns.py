"""Columns: Arrow arrays as stored values and back; what a declared column takes and refuses."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.state.columns import NULL_FAULT, RANGE_FAULT, to_arrow, to_stored
from headgate.state.schema import ColumnType, Schema
from headgate.state.strings import StringPool

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
    "nanoseconds": ("timestamp", pa.array([1500], pa.timestamp("ns")), [1]),
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
    "a double for an int": ("int", pa.array([1.0])),
    "a double for a decimal": ("decimal(9,2)", pa.array([1.5])),
    "a larger scale": ("decimal(9,2)", pa.array([decimal.Decimal("1.125")])),
    "an int for a boolean": ("boolean", pa.array([1])),
    "an int for a timestamp": ("timestamp", pa.array([1])),
    "a date for a timestamp": ("timestamp", pa.array([1], pa.date32())),
    "a timestamp for a date": ("date", pa.array([1], pa.timestamp("us"))),
    "a list for an int": ("int", pa.array([[1]])),
    "bytes for a text": ("string", pa.array([b"a"])),
    "too large for a bigint": ("bigint", pa.array([2**63], pa.uint64())),
    "too large for an int": ("int", pa.array([2**63], pa.uint64())),
    "too large for a decimal": ("decimal(9,2)", pa.array([10**7])),
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


def test_a_scalar_column_for_an_array_is_refused() -> None:
    kind = ColumnType("array", element=ColumnType("int"))
    with pytest.raises(hg.InputError, match="the column is int64, the declaration says array<int>"):
        to_stored(pa.array([1]), kind, StringPool(), "here")
