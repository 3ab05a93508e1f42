"""Columns: Arrow arrays as the NumPy arrays that kernels read, and back.

Fixed-width columns are viewed, not copied. What does not fit the declared type is an InputError
when it is the column's type, and a fault of that one value when it is its range or a null.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InputError, check_invariant
from headgate.state.layout import STORED
from headgate.state.schema import INT_MAX, ColumnType
from headgate.state.strings import StringPool

NULL_FAULT = 1
RANGE_FAULT = 2
# Of these types Arrow's values are those that are stored.
_WHOLE = {
    kind: np.dtype(STORED[kind])
    for kind in ("int", "bigint", "float", "double", "timestamp", "date")
}


@dataclass(frozen=True)
class StoredColumn:
    """A column's stored values and, where any value cannot be used, why (0: it can)."""

    values: np.ndarray
    faults: np.ndarray | None = None
    offsets: np.ndarray | None = None  # for an array column: row -> first element

    @cached_property
    def lengths(self) -> np.ndarray:
        """How many elements each row of an array column has."""
        check_invariant(self.offsets is not None, "lengths of a column that is no array")
        return np.diff(np.asarray(self.offsets))


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as one contiguous Arrow array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def to_stored(
    column: pa.ChunkedArray | pa.Array, kind: ColumnType, pool: StringPool, where: str
) -> StoredColumn:
    """The values in stored form. Nulls and values out of range are marked as faults."""
    array = one_array(column)
    if kind.kind in _WHOLE and not array.null_count and array.type == kind.arrow:
        return StoredColumn(_viewed(array, kind.kind))  # nothing to ask or to change
    if kind.element is not None:
        return _list_to_stored(array, kind.element, pool, where)
    array = conform(array, kind, where)
    faults = None
    if array.null_count:
        faults = np.where(array.is_null().to_numpy(zero_copy_only=False), NULL_FAULT, 0)
        faults = faults.astype(np.uint8)
    if kind.kind == "int" and pa.types.is_int64(array.type):
        array, faults = _narrowed(array, faults)
    return StoredColumn(_values(array, kind, pool), faults)


def conform(array: pa.Array, kind: ColumnType, where: str) -> pa.Array:
    """The array in the Arrow type of its column (an int may stay int64: its range is checked)."""
    source, target = array.type, kind.arrow
    if source == target or pa.types.is_null(source):
        return array if source == target else array.cast(target)
    if kind.kind == "string" and _is_text(source):
        return array
    if kind.kind == "int" and pa.types.is_integer(source):
        target = pa.int64()
    elif not _castable(source, kind):
        hint = f"cast it to {kind} before it reaches Headgate"
        raise InputError(f"{where}: the column is {source}, the declaration says {kind}; {hint}")
    try:
        if kind.kind == "decimal" and pa.types.is_integer(source):
            array = array.cast(pa.decimal128(38, kind.scale))
        return array.cast(target, safe=kind.kind != "timestamp" and kind.kind != "float")
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: {error}; the declaration says {kind}") from None


def _is_text(source: pa.DataType) -> bool:
    if pa.types.is_dictionary(source):
        return _is_text(source.value_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(source) for is_kind in kinds)


def _castable(source: pa.DataType, kind: ColumnType) -> bool:
    if kind.kind == "bigint":
        return bool(pa.types.is_integer(source))
    if kind.kind in ("float", "double"):
        return bool(pa.types.is_integer(source) or pa.types.is_floating(source))
    if kind.kind == "decimal":
        exact = pa.types.is_decimal(source) and source.scale <= kind.scale
        return bool(exact or pa.types.is_integer(source))
    if kind.kind == "timestamp":
        return bool(pa.types.is_timestamp(source))
    if kind.kind == "date":
        return bool(pa.types.is_date(source))
    return False


def _narrowed(array: pa.Array, faults: np.ndarray | None) -> tuple[pa.Array, np.ndarray | None]:
    """An int64 array for an int column: values out of range become faults."""
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    outside = (values > INT_MAX) | (values < -INT_MAX - 1)
    if outside.any():
        faults = np.zeros(len(values), np.uint8) if faults is None else faults
        faults[outside] = RANGE_FAULT
    return pa.array(values.astype(np.int32)), faults


def _values(array: pa.Array, kind: ColumnType, pool: StringPool) -> np.ndarray:
    if kind.kind == "string":
        return pool.intern(array)
    if kind.kind == "boolean":
        flags: np.ndarray = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
        return flags.view(np.uint8)
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), STORED[kind.kind])
    if kind.kind == "decimal":
        # Little-endian 128-bit integers of at most 18 digits: the low word is the value.
        words = np.frombuffer(data, np.int64)
        low = words[2 * array.offset : 2 * (array.offset + len(array)) : 2]
        return np.ascontiguousarray(low)
    return _viewed(array, kind.kind)


def _viewed(array: pa.Array, kind: str) -> np.ndarray:
    """The values of a fixed-width array as they stand in memory."""
    data, stored = array.buffers()[1], _WHOLE.get(kind) or np.dtype(STORED[kind])
    if data is None:
        return np.zeros(len(array), stored)
    return np.frombuffer(data, stored, len(array), array.offset * stored.itemsize)


def _list_to_stored(
    array: pa.Array, element: ColumnType, pool: StringPool, where: str
) -> StoredColumn:
    if pa.types.is_null(array.type):
        array = array.cast(pa.list_(element.arrow))
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise InputError(
            f"{where}: the column is {array.type}, the declaration says array<{element}>"
        )
    faults = None
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        faults = np.where(nulls, NULL_FAULT, 0).astype(np.uint8)
        array = pc.fill_null(array, pa.scalar([], array.type))
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
    inner = to_stored(array.values.slice(first, last - first), element, pool, where)
    offsets = offsets if len(array) else np.zeros(1, np.int64)
    if first:
        offsets -= first
    if inner.faults is not None:
        faults = np.zeros(len(array), np.uint8) if faults is None else faults
        rows = np.searchsorted(offsets, np.flatnonzero(inner.faults), side="right") - 1
        faults[rows] = inner.faults[np.flatnonzero(inner.faults)]
    return StoredColumn(np.ascontiguousarray(inner.values), faults, offsets)


def to_arrow(
    values: np.ndarray, kind: ColumnType, pool: StringPool, nulls: np.ndarray | None = None
) -> pa.Array:
    """Stored values as an Arrow array of the column's type; `nulls` is True where there is none."""
    if kind.kind == "string":
        texts = pool.texts(values if nulls is None else np.where(nulls, 0, values))
        return texts if nulls is None else pc.if_else(pa.array(nulls), None, texts)
    if kind.kind == "boolean":
        return pa.array(values.astype(np.bool_), mask=nulls)
    mask = None
    if nulls is not None and nulls.any():
        mask = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data = np.ascontiguousarray(values, STORED[kind.kind])
    if kind.kind == "decimal":
        wide = np.empty((len(data), 2), np.int64)
        wide[:, 0] = data
        wide[:, 1] = data >> 63
        data = wide
    return pa.Array.from_buffers(kind.arrow, len(values), [mask, pa.py_buffer(data)])
