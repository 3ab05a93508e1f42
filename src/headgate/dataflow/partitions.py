"""Partitions: a procedure over parts of each batch by a key, each part a transaction of its own.

A procedure with `partition_by=` stands in the graph as several nodes, one for each partition, and
what they give comes together again in one behind them. Each sees of its batch, and of the tables
that it writes, the rows of its own keys, and writes no others. So partitions have nothing to do
with each other: with workers they run at once, and one may be batches ahead of another. Invariant:
rows and streams are those of one partition after another, whatever the workers do. What is given up
is atomicity of the whole batch: a part that aborts leaves the others.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import DeclarationError, shown

_MIX = np.uint64(0x9E3779B97F4A7C15)  # neighbours are dealt out all the same
_HIGH = np.uint64(32)


@dataclass(frozen=True)
class Partition:
    """One of several parts of the keys of a procedure."""

    of: str  # the procedure as it was declared
    column: str
    number: int
    count: int
    align: int | None
    tables: frozenset[str]  # of which it has its own rows

    def rows(self, table: pa.Table) -> pa.Table:
        """Its rows of a table."""
        return table.filter(pa.array(self._has(table.column(self.column))))

    def view(self, name: str, table: pa.Table) -> pa.Table:
        """What it sees of a table of the engine."""
        return self.rows(table) if name in self.tables else table

    def is_all(self, table: pa.Table) -> bool:
        """Whether rows are all its own."""
        return bool(self._has(table.column(self.column)).all())

    def has(self, value: Any) -> bool:
        """Whether it has a key."""
        kind = pa.string() if isinstance(value, str) else pa.int64()
        return bool(self._has(pa.chunked_array([pa.array([value], kind)]))[0])

    def _has(self, values: pa.ChunkedArray) -> np.ndarray:
        found: np.ndarray = _numbers(values, self.count) == self.number
        return found


def _numbers(values: pa.ChunkedArray, count: int) -> np.ndarray:
    """The partition of each key: the same in every process."""
    if pa.types.is_string(values.type):
        known = values.combine_chunks().dictionary_encode()
        words = [zlib.crc32(word.encode()) for word in known.dictionary.to_pylist()]
        mixed = np.array(words, np.uint64)[known.indices.to_numpy()]
    else:
        keys = values.cast(pa.int64()).to_numpy().astype(np.int64)
        mixed = (keys.view(np.uint64) * _MIX) >> _HIGH
    found: np.ndarray = (mixed % np.uint64(count)).astype(np.int64)
    return found


@dataclass(frozen=True)
class Division:
    """What a procedure says of its partitions."""

    column: str
    count: int
    align: int | None

    @classmethod
    def said(cls, column: Any, count: Any, align: Any, where: str) -> Division | None:
        """As `@hg.procedure` was told; None where it has none."""
        if column is None:
            if count is not None or align is not None:
                raise DeclarationError(f"{where}: partitions= and align= need partition_by=")
            return None
        if not isinstance(column, str):
            raise DeclarationError(f"{where}: partition_by is a column, not {shown(column)}")
        for name, number in (("partitions", count), ("align", align)):
            if number is None and name == "align":
                continue
            if type(number) is not int or number < (2 if name == "partitions" else 1):
                least = 2 if name == "partitions" else 1
                raise DeclarationError(f"{where}: {name} is a number from {least} on")
        return cls(column, count, align)
