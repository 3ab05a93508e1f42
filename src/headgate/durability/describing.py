"""Descriptions: the columns of a batch as few bytes, and what those bytes mean.

An Arrow IPC stream of few rows is mostly description; here that is deflated, with a preset
dictionary. Invariant: a description gives the same schema back, with the same dictionaries; and no
byte that was read is used as a length before it was found within its bounds. A schema that has a
type without a code here has no description. A description is understood once and remembered by its
bytes, so that a log of many short epochs is read fast.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

_REMEMBERED = 256
_FIELD = struct.Struct("<BBB")  # length of the name, flags, length of the type's code
_COUNTS = struct.Struct("<HH")  # columns, pairs of metadata
_LENGTH = struct.Struct("<H")
_NULLABLE, _ORDERED = 1, 2
_DESCRIPTION_BYTES_MAX = 0xFFFF
# What descriptions often say; a part of the format, as every description is deflated with it.
PRESET = (
    b"\x06\x01\x02__sloti8\x07\x01\x01__aliveb\x02\x01\x02idi8\x07\x01\x05balancen12,2"
    b"\x02\x01\x05tstuUTC\x04\x01\x01names\x02\x01\x02attu\x04\x00\x00\x00\x08\x01\x02positioni8"
    b"\x0b\x01\x05transaction*i1:s\x00\x00\x00\x00\x00\x00\x07\x01\x05outcome*i1:s\x04\x00"
    b"\x00\x00\x00\x00\x09\x00\x00\x00\x10\x00\x00\x00\x18\x00\x00\x00\x1c\x00\x00\x00"
    b"committedabortedrejectedlate\x06\x01\x05reason*i4:s\x00\x00\x00\x00\x00\x00"
)
_FIXED: dict[str, tuple[pa.DataType, int]] = {
    "i1": (pa.int8(), 1), "i2": (pa.int16(), 2), "i4": (pa.int32(), 4), "i8": (pa.int64(), 8),
    "u1": (pa.uint8(), 1), "u2": (pa.uint16(), 2), "u4": (pa.uint32(), 4), "u8": (pa.uint64(), 8),
    "f4": (pa.float32(), 4), "f8": (pa.float64(), 8), "d": (pa.date32(), 4), "b": (pa.bool_(), 0),
}  # fmt: skip
_TEXTS: dict[str, pa.DataType] = {"s": pa.string(), "x": pa.binary()}
_CODES = {kind: code for code, (kind, _) in _FIXED.items()} | {
    kind: code for code, kind in _TEXTS.items()
}


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """How one column is read: its type, the bytes of a value (0: bits, -1: a text), its values."""

    type: pa.DataType
    width: int
    dictionary: pa.Array | None
    is_ordered: bool

    def checked(self, array: pa.Array) -> pa.Array:
        """The column of these values or indices; an error where they point beyond their bounds."""
        if self.dictionary is not None:
            given = (array, self.dictionary)
            return pa.DictionaryArray.from_arrays(*given, ordered=self.is_ordered)
        if self.width < 0:
            array.validate(full=True)
        return array


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A description and what it means; made once for all batches of the same columns."""

    description: bytes
    schema: pa.Schema
    columns: tuple[ShapeColumn, ...]

    @classmethod
    def of(cls, schema: pa.Schema, dictionaries: Sequence[pa.Array] = ()) -> BatchShape | None:
        """The shape of batches of this schema; None when it has a type without a code.

        The values of its dictionary columns are a part of it, in the order of the columns.
        """
        description = _described(schema, dictionaries)
        return None if description is None else shape_of(description)


class Shapes:
    """The shapes of the last batches by name, so that the same columns are described once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[pa.Schema, list[pa.Array], BatchShape | None]] = {}

    def find(self, name: Any, batch: pa.RecordBatch) -> BatchShape | None:
        """The shape of a batch; None when it has none."""
        schema = batch.schema
        dictionaries = [
            column.dictionary for column in batch.columns if isinstance(column, pa.DictionaryArray)
        ]
        known = self._known.get(name)
        if (
            known is not None
            and known[0].equals(schema, check_metadata=True)
            and all(one.equals(other) for one, other in zip(known[1], dictionaries, strict=True))
        ):
            return known[2]
        found = BatchShape.of(schema, dictionaries)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[name] = (schema, dictionaries, found)
        return found


def _described(schema: pa.Schema, dictionaries: Sequence[pa.Array]) -> bytes | None:
    """A schema and the values of its dictionaries as bytes; None when they cannot be."""
    pairs = list((schema.metadata or {}).items())
    parts = [_COUNTS.pack(len(schema), len(pairs))]
    left = iter(dictionaries)
    for field in schema:
        found = None if field.metadata else _described_field(field, left)
        if found is None:
            return None
        parts.append(found)
    for one in (text for pair in pairs for text in pair):
        if len(one) > 0xFFFF:
            return None
        parts.append(_LENGTH.pack(len(one)) + one)
    whole = b"".join(parts)
    return _deflated(whole) if len(whole) <= _DESCRIPTION_BYTES_MAX - 64 else None


def _deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS, zdict=PRESET)
    return packer.compress(content) + packer.flush()


def _inflated(content: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=-zlib.MAX_WBITS, zdict=PRESET)
    try:
        found = unpacker.decompress(content, _DESCRIPTION_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"a description that cannot be inflated: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("a description that is too long or too short")
    return found


def _described_field(field: pa.Field, dictionaries: Any) -> bytes | None:
    name, kind = field.name.encode(), field.type
    flags, values = (_NULLABLE if field.nullable else 0), b""
    prefix = ""
    if pa.types.is_dictionary(kind):
        prefix, flags = f"*{_code(kind.index_type)}:", flags | (_ORDERED if kind.ordered else 0)
        dictionary = next(dictionaries)
        if kind.value_type not in (pa.string(), pa.binary()) or dictionary.null_count:
            return None
        if len(dictionary) > 0xFFFF or _code(kind.index_type) is None:
            return None
        offsets, texts = texts_of(dictionary)
        values = _LENGTH.pack(len(dictionary)) + offsets.tobytes() + bytes(texts)
        kind = kind.value_type
    code = _code(kind)
    if code is None or len(name) > 0xFF:
        return None
    coded = (prefix + code).encode()
    head: bytes = _FIELD.pack(len(name), flags, len(coded)) + name + coded
    return head + values


def _code(kind: pa.DataType) -> str | None:
    """The code of a type; None for those that are not packed."""
    if pa.types.is_timestamp(kind):
        zone = kind.tz or ""
        return f"t{kind.unit[0]}{zone}" if len(zone) < 100 else None
    if pa.types.is_decimal128(kind):
        return f"n{kind.precision},{kind.scale}"
    return _CODES.get(kind)


def _typed(code: str) -> tuple[pa.DataType, int]:
    """The type of a code and the bytes of a value: 0 for bits, -1 for a text."""
    if code in _FIXED:
        return _FIXED[code]
    if code in _TEXTS:
        return _TEXTS[code], -1
    if code[:1] == "t":
        units = {"s": "s", "m": "ms", "u": "us", "n": "ns"}
        return pa.timestamp(units[code[1:2]], code[2:] or None), 8
    if code[:1] == "n":
        precision, scale = code[1:].split(",")
        return pa.decimal128(int(precision), int(scale)), 16
    raise ValueError(f"a column of type {code!r}")


def texts_of(column: pa.Array) -> tuple[np.ndarray, memoryview | bytes]:
    """The offsets of a column of texts, from 0 on, and their bytes, none of those of other rows."""
    buffers, count, first = column.buffers(), len(column), column.offset
    if count == 0 or buffers[1] is None:
        return np.zeros(1, np.int32), b""
    offsets = np.frombuffer(buffers[1], np.int32, count + 1, 4 * first)
    low, high = int(offsets[0]), int(offsets[-1])
    texts = b"" if buffers[2] is None else memoryview(buffers[2]).cast("B")[low:high]
    # A slice of a longer column begins in the middle of its texts.
    return offsets - np.int32(low) if low else offsets, texts


class Taking:
    """Bytes that are taken from the front; ValueError where there are not as many."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def take(self, size: int) -> bytes:
        end = self._place + size
        if size < 0 or end > len(self._content):
            raise ValueError(f"{size} bytes at {self._place} of {len(self._content)}")
        found = self._content[self._place : end]
        self._place = end
        return found

    def count(self) -> int:
        found: int = _LENGTH.unpack(self.take(_LENGTH.size))[0]
        return found

    def text(self) -> bytes:
        return self.take(self.count())

    def array(self, column: ShapeColumn, rows: int, has_nulls: bool) -> pa.Array:
        """The next column, its offsets and indices not yet looked at."""
        valid = pa.py_buffer(self.take((rows + 7) // 8)) if has_nulls else None
        if column.width < 0:
            offsets = self.take(4 * (rows + 1))
            # The last offset is how many bytes of text follow; the others are judged by Arrow.
            texts = self.take(int.from_bytes(offsets[-4:], "little", signed=True))
            buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(texts)]
        else:
            size = column.width * rows if column.width else (rows + 7) // 8
            buffers = [valid, pa.py_buffer(self.take(size))]
        return pa.Array.from_buffers(column.type, rows, buffers)

    def end(self) -> None:
        if self._place != len(self._content):
            raise ValueError(f"{len(self._content) - self._place} bytes too many")


_shapes: dict[bytes, BatchShape] = {}


def shape_of(description: bytes) -> BatchShape:
    """What a description means; ValueError or an Arrow error for bytes that are none."""
    found = _shapes.get(description)
    if found is None:
        found = _understood(description)
        if len(_shapes) >= _REMEMBERED:
            _shapes.clear()
        _shapes[description] = found
    return found


def _understood(description: bytes) -> BatchShape:
    rest = Taking(_inflated(description))
    count, pairs = _COUNTS.unpack(rest.take(_COUNTS.size))
    fields, columns = [], []
    for _ in range(count):
        field, column = _understood_field(rest)
        fields.append(field)
        columns.append(column)
    metadata = {rest.text(): rest.text() for _ in range(pairs)}
    rest.end()
    return BatchShape(description, pa.schema(fields, metadata or None), tuple(columns))


def _understood_field(rest: Taking) -> tuple[pa.Field, ShapeColumn]:
    name_length, flags, code_length = _FIELD.unpack(rest.take(_FIELD.size))
    name, code = rest.take(name_length).decode(), rest.take(code_length).decode()
    dictionary, is_ordered = None, bool(flags & _ORDERED)
    if code[:1] == "*":
        index, code = code[1:].split(":", 1)
        value, width = _typed(code)
        if width >= 0:
            raise ValueError(f"a dictionary of {code!r}")
        texts = ShapeColumn(value, width, None, False)
        dictionary = rest.array(texts, rest.count(), False)
        dictionary.validate(full=True)
        kind, width = _typed(index)
        whole = pa.dictionary(kind, value, is_ordered)
    else:
        kind, width = _typed(code)
        whole = kind
    column = ShapeColumn(kind, width, dictionary, is_ordered)
    return pa.field(name, whole, bool(flags & _NULLABLE)), column


# --- batches of format 3 --------------------------------------------------------------------------
# How a batch of few rows was written there; it is read, and written no more.

_BODY = struct.Struct("<HH")  # rows, length of the description


def unpack(content: bytes) -> pa.RecordBatch:
    """The batch that was packed; ValueError or an Arrow error for bytes that are none."""
    rows, length = _BODY.unpack_from(content)
    rest = Taking(content)
    rest.take(_BODY.size)
    shape = shape_of(rest.take(length))
    nulls = rest.take(-(-len(shape.columns) // 8))
    arrays = []
    for number, column in enumerate(shape.columns):
        array = rest.array(column, rows, bool(nulls[number >> 3] >> (number & 7) & 1))
        arrays.append(column.checked(array))
    rest.end()
    return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)
