"""Plain batches: columns as the buffers they are, with nothing written that is implied.

What is the same in all rows is written once, what counts up from 0 not at all, what few rows have
by their places. The rest are the bytes as they stand in memory, so a batch is encoded by naming its
buffers, and read by viewing them (viewing.py). Invariant: the same batch comes back, whatever way
its columns went.

    >>> batch = pa.record_batch({"position": [0, 1, 2], "outcome": ["a", "a", "a"]})
    >>> shape = BatchShape.of(batch.schema)
    >>> decoded(pa.py_buffer(b"".join(PlainBatch.of(batch, shape).encode()))).equals(batch)
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.durability.describing import BatchShape, ShapeColumn, texts_of
from headgate.durability.viewing import (
    COUNT,
    COUNTED,
    COUNTED_ON,
    EACH,
    FEW,
    HAS_NULLS,
    HEAD,
    IMPLIED_MAX,
    MOST,
    NARROW,
    NULL,
    SAME,
    STEP,
    UNSIGNED,
    WIDE,
    counted,
    decoded,
    packed_bits,
)

Piece = bytes | memoryview
_Written = list[Piece | np.ndarray]
_JOINED_ROWS_MAX = 64
_ZEROS = bytes(STEP)


class Texts(NamedTuple):
    """A column of texts: where each begins and the last ends, from 0 on, and their bytes."""

    offsets: np.ndarray  # int32, one more than rows
    content: Piece


class Sparse(NamedTuple):
    """A column of which most rows have one value, or none: that, and the others by their places."""

    usual: np.ndarray | None  # of one value; None: most rows are null
    places: np.ndarray  # ascending
    values: np.ndarray


class Counted(NamedTuple):
    """A column of the numbers from the first on, each one more than the one before."""

    first: int = 0


class Nulls(NamedTuple):
    """Which rows of a column have a value: how many, and a bit for each, the lowest first."""

    values: int
    bits: np.ndarray

    @classmethod
    def of(cls, nulls: np.ndarray) -> Nulls:
        """From an array that is True where there is no value."""
        return cls(len(nulls) - int(np.count_nonzero(nulls)), packed_bits(~nulls))

    def places(self, rows: int) -> np.ndarray:
        """The rows that have one."""
        flags = np.unpackbits(self.bits, count=rows, bitorder="little").view(np.bool_)
        found: np.ndarray = flags.nonzero()[0]
        return found


class Encoded(NamedTuple):
    """A column as it is written; of few rows, which come often, many columns are always the same"""

    way: int
    written: list[Any]  # its bytes


PlainColumn = np.ndarray | Texts | Sparse | Counted | Encoded


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Some rows as the log takes them: NumPy columns of a shape, made without Arrow.

    A column is an array of its type's values as Arrow has them, but of a boolean bytes 0 and 1, of
    a decimal int64, of a slot perhaps uint32, of a dictionary column the indices, of texts `Texts`.
    An array of one value stands for as many as there are rows, and whoever knows more of a column
    says so by `Counted` or `Sparse`, which saves to look at every value. `nulls`, where it is not
    None, has an array for each column that has nulls: True where there is no value.
    """

    shape: BatchShape
    num_rows: int
    columns: Sequence[PlainColumn]
    nulls: Sequence[Nulls | np.ndarray | None] | None = None

    @classmethod
    def of(cls, batch: pa.RecordBatch, shape: BatchShape) -> PlainBatch:
        """The same batch; nothing is copied that stands in memory as it should."""
        columns, nulls = [], []
        for array, column in zip(batch.columns, shape.columns, strict=True):
            buffers = array.buffers()  # of a dictionary column those of its indices
            columns.append(_viewed(array, column, buffers))
            nulls.append(_nulls_of(array, buffers) if array.null_count else None)
        return cls(shape, batch.num_rows, columns, nulls if any(nulls) else None)

    def nulls_at(self, number: int) -> np.ndarray | None:
        """Where a column has no value; None: it has one everywhere."""
        nulls = None if self.nulls is None else self.nulls[number]
        if not isinstance(nulls, Nulls):
            return nulls
        found: np.ndarray = np.unpackbits(nulls.bits, count=self.num_rows, bitorder="little") == 0
        return found

    def arrow(self) -> pa.RecordBatch:
        """The same as an Arrow batch."""
        return decoded(pa.py_buffer(b"".join(self.encode())))

    def encode(self) -> list[Piece]:
        """The bytes of all columns, which view those of the batch; their length is a multiple of 8.

        The batch must not change before they are written.
        """
        shape, rows = self.shape, self.num_rows
        head = HEAD.pack(rows, len(shape.description), 0) + shape.description
        ways, left = bytearray(len(shape.columns)), IMPLIED_MAX
        written: _Written = []
        for number, (column, values) in enumerate(zip(shape.columns, self.columns, strict=True)):
            nulls = None if self.nulls is None else self.nulls[number]
            if isinstance(nulls, np.ndarray):
                nulls = Nulls.of(nulls)
            way, found = _encoded(column, values, nulls, rows, left >= rows)
            written += found
            ways[number] = way
            if way & ~HAS_NULLS not in (EACH, NARROW):
                left -= rows
        head += _gap(len(head)) + ways + _gap(len(ways))
        return _padded([head, *written], rows)


def size_of(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.nbytes


def encoded(column: ShapeColumn, values: PlainColumn, nulls: Nulls | None, rows: int) -> Encoded:
    """A column as it is written, to be used for every batch of so many rows."""
    way, written = _encoded(column, values, nulls, rows, may_imply=True)
    return Encoded(way, [b"".join(_padded(written, rows))])


def _padded(written: _Written, rows: int) -> list[Piece]:
    """Each with zeros up to a multiple of 8: few rows as one piece, as to copy is to name less."""
    pieces: list[Any] = []
    for found in written:
        size = found.nbytes if isinstance(found, np.ndarray) else size_of(found)
        if size:
            pieces.append(found)
            if size % STEP:
                pieces.append(_gap(size))
    if rows <= _JOINED_ROWS_MAX:
        return [b"".join(pieces)]
    return [_as_bytes(piece) for piece in pieces]


def _as_bytes(found: Piece | np.ndarray) -> Piece:
    return found.reshape(-1).view(np.uint8).data if isinstance(found, np.ndarray) else found


def _gap(length: int) -> bytes:
    return _ZEROS[: -length % STEP]


def viewed(array: pa.Array, column: ShapeColumn) -> np.ndarray | Texts:
    """The values of an Arrow array as a plain column."""
    return _viewed(array, column, array.buffers())


def nulls_of(array: pa.Array) -> Nulls | None:
    """Which rows of an Arrow array have a value; None: all of them."""
    return _nulls_of(array, array.buffers()) if array.null_count else None


def is_sparse(values: int, rows: int, width: int) -> bool:
    """Whether so few values of this width take clearly fewer bytes by their places."""
    return 2 * values * (4 + width) < rows * width


def _nulls_of(array: pa.Array, buffers: list[pa.Buffer | None]) -> Nulls:
    bits, rows, first = buffers[0], len(array), array.offset
    if bits is None:  # of a type that has no bits: all of them are null
        return Nulls(0, np.zeros((rows + 7) // 8, np.uint8))
    found = np.frombuffer(bits, np.uint8)
    if first % 8:
        flags = np.unpackbits(found, count=first + rows, bitorder="little")
        return Nulls(rows - array.null_count, packed_bits(flags[first:]))
    return Nulls(rows - array.null_count, found[first // 8 : (first + rows + 7) // 8])


def _viewed(
    array: pa.Array, column: ShapeColumn, buffers: list[pa.Buffer | None]
) -> np.ndarray | Texts:
    """The values of an Arrow array as a plain column."""
    if column.width < 0:
        return Texts(*texts_of(array))
    rows, first, data = len(array), array.offset, buffers[1]
    if data is None:
        return np.zeros(rows, UNSIGNED.get(column.width, np.dtype("u1")))
    if column.width == 0:
        bits = np.frombuffer(data, np.uint8)
        return np.unpackbits(bits, count=first + rows, bitorder="little")[first:]
    if column.width == WIDE:
        return np.frombuffer(data, np.int64, 2 * rows, WIDE * first).reshape(rows, 2)
    return np.frombuffer(data, UNSIGNED[column.width], rows, column.width * first)


# --- what is written ------------------------------------------------------------------------------


def _encoded(
    column: ShapeColumn,
    values: PlainColumn,
    nulls: Nulls | None,
    rows: int,
    may_imply: bool,
) -> tuple[int, _Written]:
    """How a column is written, and its bytes."""
    if isinstance(values, Encoded):
        return values
    if isinstance(values, Counted):
        if may_imply:
            return _counting(values.first)
        values = counted(rows) + np.uint64(values.first)
    if isinstance(values, Sparse):
        if may_imply:
            return _sparse(values, column.width)
        values, nulls = _spread(values, rows)
    if nulls is not None and nulls.values == rows:
        nulls = None
    if nulls is not None and nulls.values == 0 and may_imply:
        return NULL, []
    if isinstance(values, Texts):
        return _with_nulls(EACH, nulls, [values.offsets, values.content])
    if len(values) == 1 and rows != 1:
        if may_imply and nulls is None:
            return SAME, [_value(values, column.width)]
        values = np.repeat(values, rows, axis=0)
    if column.width == 0:
        if may_imply and nulls is None and rows and _are_same(values):
            return SAME, [_value(values, 0)]
        return _with_nulls(EACH, nulls, [packed_bits(values)])
    if column.width == WIDE:
        values, way = _narrowed(values)
        return _with_nulls(way, nulls, [values])
    if values.itemsize != column.width:
        return _with_nulls(NARROW, nulls, [np.ascontiguousarray(values)])
    plain = np.ascontiguousarray(values).view(UNSIGNED[column.width])
    if rows and may_imply:
        short = _short(plain, nulls, column)
        if short is not None:
            return short
    return _with_nulls(EACH, nulls, [plain])


def _with_nulls(way: int, nulls: Nulls | None, written: _Written) -> tuple[int, _Written]:
    return (way, written) if nulls is None else (way | HAS_NULLS, [nulls.bits, *written])


def _value(values: np.ndarray, width: int) -> bytes:
    """One value in its whole width."""
    one = values[:1]
    if width == WIDE and one.ndim == 1:
        low = int(one[0])
        return low.to_bytes(WIDE, "little", signed=True)
    if width > one.itemsize and one.ndim == 1:
        return int(one[0]).to_bytes(width, "little")
    return one.tobytes()


def _are_same(values: np.ndarray) -> bool:
    # Mostly the first and the last already differ.
    return bool(values[0] == values[-1]) and bool((values == values[0]).all())


def _narrowed(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Decimals in 8 bytes each, where they are those of at most 18 digits."""
    if values.ndim == 1:
        return np.ascontiguousarray(values), NARROW
    low = np.ascontiguousarray(values[:, 0])
    if bool((values[:, 1] == low >> 63).all()):
        return low, NARROW
    return np.ascontiguousarray(values), EACH


def _short(
    values: np.ndarray, nulls: Nulls | None, column: ShapeColumn
) -> tuple[int, _Written] | None:
    """A way in which a column of values that repeat or count up takes few bytes; None for others.

    Bits are compared, so -0.0 is not 0.0, and one NaN not another.
    """
    rows, width = len(values), column.width
    if nulls is not None:
        if not is_sparse(nulls.values, rows, width):
            return None
        places = nulls.places(rows)
        return FEW, _places(places, values[places])
    if width == 8 and int(values[-1]) - int(values[0]) == rows - 1 and rows > 1:
        first = int(values[0])
        is_counted = pa.py_buffer(values - values[0]).equals(_counted_buffer(rows))
        return _counting(first) if is_counted else None
    if column.dictionary is None:
        is_same = rows > 1 and _are_same(values)  # one value is as short, and faster to read
        return (SAME, [values[:1].tobytes()]) if is_same else None
    ends = (values[0], values[rows // 2], values[-1])
    usual = ends[0] if ends[0] in ends[1:] else ends[1]
    is_other = values != usual
    others = int(np.count_nonzero(is_other))
    if not others:
        return (SAME, [values[:1].tobytes()]) if rows > 1 else None
    if not is_sparse(others, rows, width):
        return None
    places = is_other.nonzero()[0]
    return MOST, [usual.tobytes(), *_places(places, values[places])]


def _counting(first: int) -> tuple[int, _Written]:
    return (COUNTED_ON, [COUNT.pack(first)]) if first else (COUNTED, [])


def _sparse(column: Sparse, width: int) -> tuple[int, _Written]:
    kind = UNSIGNED[width]
    written = _places(column.places, column.values.view(kind))
    return (FEW, written) if column.usual is None else (MOST, [column.usual.view(kind), *written])


def _spread(column: Sparse, rows: int) -> tuple[np.ndarray, Nulls | None]:
    """The same with every value."""
    found = np.zeros(rows, column.values.dtype)
    if column.usual is not None:
        found[:] = column.usual
    found[column.places] = column.values
    if column.usual is not None:
        return found, None
    nulls = np.ones(rows, np.bool_)
    nulls[column.places] = False
    return found, Nulls.of(nulls)


def _places(places: np.ndarray, values: np.ndarray) -> _Written:
    return [COUNT.pack(len(places)), places.astype(np.uint32), values]


@lru_cache(maxsize=8)
def _counted_buffer(rows: int) -> pa.Buffer:
    return pa.py_buffer(counted(rows))
