"""Layout: where each column stands in the bytes of a row.

A row is a whole number of 8-byte words. Word 0 is the header, whose bits are named here and only
here (docs/index-spaces.md says more of them). The key columns follow, each a whole word, so that
the key index compares words and needs to know no types. The rest is packed by size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headgate.state.schema import Schema
from headgate.state.types import Column, ColumnType

HEADER_ALIVE = 1  # there is such a row
HEADER_RELEASED = 2  # the slot is in the free list of its table
HEADER_EXCHANGED = 4  # while constraints are judged: its new and old bytes have changed places
HEADER_EPOCH_SHIFT = 8  # from this bit on: the epoch that changed the row last
WORD_BYTES = 8
STORED = {
    "boolean": "u1",
    "int": "i4",
    "bigint": "i8",
    "float": "f4",
    "double": "f8",
    "string": "i8",  # the code of the text in the string pool
    "timestamp": "i8",  # microseconds since 1970 UTC
    "date": "i4",  # days since 1970
    "decimal": "i8",  # scaled by 10 ** scale
}


@dataclass(frozen=True)
class Field:
    """One column's place: byte offset from the start of the row and stored NumPy format."""

    name: str
    type: ColumnType
    offset: int
    format: str
    is_key: bool = False


@dataclass(frozen=True)
class Layout:
    """The fields of a row and its size in words."""

    fields: tuple[Field, ...]
    words: int

    @cached_property
    def dtype(self) -> np.dtype:
        return np.dtype(
            {
                "names": [field.name for field in self.fields],
                "formats": [field.format for field in self.fields],
                "offsets": [field.offset for field in self.fields],
                "itemsize": self.words * WORD_BYTES,
            }
        )

    def field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)


def row_layout(schema: Schema, key: Iterable[str]) -> Layout:
    """A table's layout: header, key words in key order, then the other columns by size."""
    names = list(key)
    fields = [
        Field(name, schema[name].type, WORD_BYTES * (1 + place), "i8", True)
        for place, name in enumerate(names)
    ]
    others = [column for column in schema if column.name not in names]
    return _packed(fields, others, WORD_BYTES * (1 + len(names)), schema.names)


def record_layout(schema: Schema) -> Layout:
    """The layout of an output record: columns by size, no header, no key."""
    return _packed([], list(schema), 0, schema.names)


def _packed(
    fields: list[Field], columns: list[Column], offset: int, order: tuple[str, ...]
) -> Layout:
    for column in sorted(columns, key=lambda column: -_size(column)):
        fields.append(Field(column.name, column.type, offset, STORED[column.type.kind]))
        offset += _size(column)
    ordered = sorted(fields, key=lambda field: order.index(field.name))
    return Layout(tuple(ordered), max(1, -(-offset // WORD_BYTES)))


def _size(column: Column) -> int:
    return int(np.dtype(STORED[column.type.kind]).itemsize)
