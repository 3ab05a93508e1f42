"""Columns: Arrow arrays as the NumPy arrays that kernels read, and back.

Fixed-width columns are viewed, not copied. What does not fit the declared type is an InputError
when it is the column's type, and a fault of that one value when it is the value (`fitting.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import check_invariant
from headgate.state.compiled import numba
from headgate.state.fitting import faults_of_lists, fit, lists_of, one_array
from headgate.state.layout import STORED
from headgate.state.objects import NULL_FAULT
from headgate.state.strings import StringPool
from headgate.state.types import BOUNDS, ColumnType

# Of these types Arrow's values are those that are stored.
_WHOLE = {
    kind: np.dtype(STORED[kind])
    for kind in ("int", "bigint", "float", "double", "timestamp", "date")
}


@dataclass(frozen=True)
class StoredColumn:
    """A column's stored values and, where any value cannot be used, why (0: it can).

    Of a nullable column, `nulls` is True where there is no value; None: there is one everywhere.
    """

    values: np.ndarray
    faults: np.ndarray | None = None
    offsets: np.ndarray | None = None  # for an array column: row -> first element
    nulls: np.ndarray | None = None

    @cached_property
    def valid(self) -> np.ndarray:
        """A bit for each row, the lowest first: whether it has a value; as Arrow has it."""
        check_invariant(self.nulls is not None, "validity of a column that has no nulls")
        return np.packbits(~np.asarray(self.nulls), bitorder="little")

    @cached_property
    def lengths(self) -> np.ndarray:
        """How many elements each row of an array column has."""
        check_invariant(self.offsets is not None, "lengths of a column that is no array")
        return np.diff(np.asarray(self.offsets))


def to_stored(
    column: pa.ChunkedArray | pa.Array,
    kind: ColumnType,
    pool: StringPool,
    where: str,
    nullable: bool = False,
) -> StoredColumn:
    """The values in stored form. Values that do not fit are marked as faults, and nulls, too, but
    in a nullable column: there they are zeros, and marked as what they are."""
    array = one_array(column)
    if kind.kind in _WHOLE and not array.null_count and array.type == kind.arrow:
        values = _viewed(array, kind.kind)
        if is_in_time(values, kind.kind):
            return StoredColumn(values)  # nothing to change
    if kind.element is not None:
        return _list_to_stored(array, kind, kind.element, pool, where)
    found = fit(array, kind, where)
    values, faults = _values(found.array, kind, pool), found.faults
    if not nullable or faults is None:
        return StoredColumn(values, faults)
    nulls = faults == NULL_FAULT
    others = np.where(nulls, np.uint8(0), faults) if faults.max(initial=0) > NULL_FAULT else None
    return StoredColumn(np.where(nulls, values.dtype.type(0), values), others, nulls=nulls)


def is_in_time(values: np.ndarray, kind: str) -> bool:
    """Whether times are of the years that there are; values of other types always fit."""
    if kind not in ("timestamp", "date") or not len(values):
        return True
    return bool(_is_within(values, *BOUNDS[kind]))


@numba.njit(cache=True, nogil=True)
def _is_within(values: np.ndarray, least: int, greatest: int) -> bool:
    """One pass instead of NumPy's two, whose calls alone take longer than a short batch."""
    outside = 0
    for value in values:
        outside += (value < least) | (value > greatest)
    return outside == 0


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
    array: pa.Array, kind: ColumnType, element: ColumnType, pool: StringPool, where: str
) -> StoredColumn:
    if pa.types.is_null(array.type) or pa.types.is_struct(array.type):
        found = fit(array, kind, where)
        lists, faults = lists_of(found.array, element, where), found.faults
        inner = to_stored(lists.values, element, pool, where)
    else:
        lists = lists_of(array, element, where)
        inner = to_stored(lists.values, element, pool, where)
        faults = faults_of_lists(lists, inner.faults)
    return StoredColumn(np.ascontiguousarray(inner.values), faults, lists.offsets)


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
