"""Packing: how a batch of few rows was written in format 3; it is read, and written no more.

Invariant: no byte that was read is used as a length before it was found within its bounds.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from headgate.durability.describing import Taking, shape_of

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
