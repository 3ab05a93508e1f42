"""Layout: where each column stands in the bytes of a row.

A row is a whole number of 8-byte words. Word 0 is the header, whose bits are named here and only
here (docs/index-spaces.md says more of them). The key columns follow, each a whole word, so that
the key index compares words and needs to know no types. The rest is packed by size. Behind all of
it stand words of null bits, one bit for each nullable column, where there are any: it is set where
the column has no value, and the bytes of the value are zeros then, so that rows that are the same
have the same words.
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
HEADER_WRITTEN = 8  # of a table with history: the running transaction has set a column of the row
HEADER_EPOCH_SHIFT = 8  # from this bit on: the epoch that changed the row last
WORD_BYTES = 8
WORD_BITS = 64
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
    """One column's place: byte offset from the start of the row and stored NumPy format.

    `null_bit` counts from the start of the row, too; -1: the column always has a value.
    """

    name: str
    type: ColumnType
    offset: int
    format: str
    is_key: bool = False
    null_bit: int = -1

    @property
    def nullable(self) -> bool:
        return self.null_bit >= 0

    @property
    def null_word(self) -> int:
        """The word in which its null bit stands."""
        return self.null_bit // WORD_BITS

    @property
    def null_mask(self) -> np.int64:
        """The bit in that word."""
        return np.uint64(1 << self.null_bit % WORD_BITS).view(np.int64)

    def nulls_in(self, words: np.ndarray) -> np.ndarray:
        """Where a value is null, by the words of several rows in which its bit stands."""
        found: np.ndarray = (words & self.null_mask) != 0
        return found


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

    @cached_property
    def all_null(self) -> dict[int, int]:
        """By word of null bits: what it is when no nullable column has a value."""
        return self.null_bits([field.name for field in self.fields])

    def null_bits(self, names: Iterable[str]) -> dict[int, int]:
        """By word of null bits: those of these columns, as far as they are nullable."""
        found: dict[int, int] = {}
        for field in map(self.field, names):
            if field.nullable:
                found[field.null_word] = int(found.get(field.null_word, 0) | field.null_mask)
        return found


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
    nullable = [column.name for column in columns if column.nullable]
    end = offset + sum(map(_size, columns))
    first = WORD_BITS * max(1, -(-end // WORD_BYTES))
    for column in sorted(columns, key=lambda column: -_size(column)):
        bit = first + nullable.index(column.name) if column.nullable else -1
        kind = column.type
        fields.append(Field(column.name, kind, offset, STORED[kind.kind], null_bit=bit))
        offset += _size(column)
    ordered = sorted(fields, key=lambda field: order.index(field.name))
    return Layout(tuple(ordered), -(-(first + len(nullable)) // WORD_BITS))


def _size(column: Column) -> int:
    return int(np.dtype(STORED[column.type.kind]).itemsize)
