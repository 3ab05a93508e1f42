"""Viewing: a plain batch as its bytes are read, and the ways in which a column is written.

Long columns view the bytes that were read. Invariant: nothing that was read is used as a length or
a place before it was found within its bounds; and so that forged bytes cannot ask for much memory,
only so many values may be implied. How batches are written is in plain_batches.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability.describing import ShapeColumn, shape_of

HEAD = struct.Struct("<IHH")  # rows, length of the description, 0
COUNT = struct.Struct("<Q")
STEP = 8
IMPLIED_MAX = 1 << 24  # values of a batch that are not written one by one
UNSIGNED: dict[int, np.dtype[Any]] = {width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}
WIDE = 16  # bytes of a decimal

# How a column is written; beside it stands whether a bit per row says which rows have a value.
EACH = 0  # every value
SAME = 1  # one value for all rows
COUNTED = 2  # nothing: the values are 0, 1, 2, ...; of a later piece see COUNTED_ON
NARROW = 3  # every value in half of its bytes: a slot in 4, a decimal in 8
NULL = 4  # nothing: no row has a value
MOST = 5  # the value of most rows, then places and values of the others
FEW = 6  # places and values of the few rows that have one
COUNTED_ON = 7  # the first value: the others count on from it
HAS_NULLS = 0x80


def packed_bits(flags: np.ndarray) -> np.ndarray:
    return np.packbits(flags.astype(np.bool_, copy=False), bitorder="little")


@lru_cache(maxsize=8)
def counted(rows: int) -> np.ndarray:
    """0, 1, 2, ... of so many rows, which no one changes."""
    found = np.arange(rows, dtype=np.uint64)
    found.flags.writeable = False
    return found


class _Cursor:
    """A body that is read from its front; ValueError where it has not as many bytes."""

    def __init__(self, body: pa.Buffer) -> None:
        self.body = body
        self.place = 0

    def take(self, size: int) -> pa.Buffer:
        if size < 0 or self.place + size > self.body.size:
            raise ValueError(f"{size} bytes at {self.place} of {self.body.size}")
        found = self.body.slice(self.place, size)
        self.place += size + -size % STEP
        return found

    def array(self, kind: str | np.dtype, count: int) -> np.ndarray:
        kind = np.dtype(kind)
        return np.frombuffer(self.take(kind.itemsize * count), kind, count)


def decoded(body: pa.Buffer) -> pa.RecordBatch:
    """The batch of a body; ValueError or an Arrow error for bytes that are none.

    Long columns view the body.
    """
    cursor = _Cursor(body)
    rows, length, zero = HEAD.unpack(memoryview(cursor.take(HEAD.size)))
    if zero:
        raise ValueError("a plain batch begins otherwise")
    shape = shape_of(cursor.take(length).to_pybytes())
    ways = cursor.take(len(shape.columns)).to_pybytes()
    implied = sum(way & ~HAS_NULLS not in (EACH, NARROW) for way in ways)
    if implied * rows > IMPLIED_MAX:
        raise ValueError(f"{rows} rows of {implied} columns that are not there")
    arrays = [
        column.checked(_read(cursor, column, way, rows))
        for column, way in zip(shape.columns, ways, strict=True)
    ]
    if cursor.place != body.size:
        raise ValueError(f"a plain batch of {cursor.place} bytes in {body.size}")
    return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def _read(cursor: _Cursor, column: ShapeColumn, way: int, rows: int) -> pa.Array:
    valid = cursor.take((rows + 7) // 8) if way & HAS_NULLS else None
    way &= ~HAS_NULLS
    if way == NULL:
        return pa.nulls(rows, column.type)
    if way == EACH and column.width < 0:
        offsets = cursor.take(4 * (rows + 1))
        # The last offset is how many bytes of text follow; the others are judged by Arrow.
        size = int(np.frombuffer(offsets, np.int32)[-1])
        return pa.Array.from_buffers(column.type, rows, [valid, offsets, cursor.take(size)])
    if way == EACH:
        size = column.width * rows if column.width else (rows + 7) // 8
        return pa.Array.from_buffers(column.type, rows, [valid, cursor.take(size)])
    reading = _READING.get(way)
    if reading is None or column.width < 0:
        raise ValueError(f"a column written in way {way}")
    if way == FEW:
        values, valid = _read_few(cursor, column, rows)
    else:
        values = reading(cursor, column, rows)
    return pa.Array.from_buffers(column.type, rows, [valid, pa.py_buffer(values)])


def _fixed(column: ShapeColumn) -> np.dtype:
    if column.width not in UNSIGNED:
        raise ValueError(f"a column of {column.type} written in places")
    return UNSIGNED[column.width]


def _read_same(cursor: _Cursor, column: ShapeColumn, rows: int) -> np.ndarray:
    if column.width == 0:
        flag = cursor.take(1)[0]
        return np.full((rows + 7) // 8, 255 if flag else 0, np.uint8)
    value = np.frombuffer(cursor.take(column.width), np.dtype((np.void, column.width)))
    return np.repeat(value, rows)


def _read_counted(cursor: _Cursor, column: ShapeColumn, rows: int) -> np.ndarray:
    if column.width != 8:
        raise ValueError(f"a column of {column.type} that counts")
    return counted(rows)


def _read_counted_on(cursor: _Cursor, column: ShapeColumn, rows: int) -> np.ndarray:
    first = cursor.array("u8", 1)
    found: np.ndarray = _read_counted(cursor, column, rows) + first
    return found


def _read_narrow(cursor: _Cursor, column: ShapeColumn, rows: int) -> np.ndarray:
    if column.width == 8:
        return cursor.array("u4", rows).astype(np.uint64)
    if column.width != WIDE:
        raise ValueError(f"a column of {column.type} that is narrow")
    low = cursor.array("i8", rows)
    wide = np.empty((rows, 2), np.int64)
    wide[:, 0] = low
    wide[:, 1] = low >> 63
    return wide


def _read_most(cursor: _Cursor, column: ShapeColumn, rows: int) -> np.ndarray:
    kind = _fixed(column)
    found = np.repeat(cursor.array(kind, 1), rows)
    _put_places(cursor, kind, found)
    return found


def _read_few(cursor: _Cursor, column: ShapeColumn, rows: int) -> tuple[np.ndarray, pa.Buffer]:
    kind = _fixed(column)
    found, flags = np.zeros(rows, kind), np.zeros(rows, np.bool_)
    flags[_put_places(cursor, kind, found)] = True
    return found, pa.py_buffer(packed_bits(flags))


def _put_places(cursor: _Cursor, kind: np.dtype, found: np.ndarray) -> np.ndarray:
    (count,) = COUNT.unpack(memoryview(cursor.take(COUNT.size)))
    places = cursor.array("u4", count)
    if count and int(places.max()) >= len(found):
        raise ValueError(f"a value of row {int(places.max())} among {len(found)}")
    found[places] = cursor.array(kind, count)
    return places


_READING: dict[int, Callable[[_Cursor, ShapeColumn, int], Any]] = {
    SAME: _read_same, COUNTED: _read_counted, NARROW: _read_narrow, MOST: _read_most,
    FEW: _read_few, COUNTED_ON: _read_counted_on,
}  # fmt: skip
