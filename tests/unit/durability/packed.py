"""How a short batch was packed in format 3, to have such bytes: the package only reads them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability.describing import BatchShape, texts_of


def packed(batch: pa.RecordBatch) -> bytes:
    dictionaries = [one.dictionary for one in batch.columns if isinstance(one, pa.DictionaryArray)]
    shape = BatchShape.of(batch.schema, dictionaries)
    assert shape is not None
    nulls = bytearray(-(-batch.num_columns // 8))
    head = struct.pack("<HH", batch.num_rows, len(shape.description))
    parts: list[Any] = [head, shape.description, nulls]
    for number, column in enumerate(batch.columns):
        if column.null_count:
            nulls[number >> 3] |= 1 << (number & 7)
            parts.append(_bits(column.is_valid()))
        parts.append(_values(column.indices if isinstance(column, pa.DictionaryArray) else column))
    return b"".join(parts)


def _bits(column: pa.Array) -> bytes:
    return np.packbits(column.to_numpy(zero_copy_only=False), bitorder="little").tobytes()


def _values(column: pa.Array) -> bytes:
    if column.type == pa.bool_():
        return _bits(column.fill_null(False))
    if column.type in (pa.string(), pa.binary()):
        offsets, content = texts_of(column)
        return offsets.tobytes() + bytes(content)
    width, data = column.type.bit_width // 8, column.buffers()[1]
    first = column.offset * width
    return b"" if data is None else data.to_pybytes()[first : first + len(column) * width]
