"""Runs: batches of a stream that stand together, as one table and the number of each row's batch.

A push of many small batches, or what a node makes of them, is one run for as long as it can be: who
takes several batches at once has a slice of it, and nothing is made for each. Invariant: the
numbers of a run ascend, but for their sign; of a batch that was aborted it has a row of nulls with
the negative number, as the log has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.dataflow.streams import IN_BATCH, Stream

_FILLED_MAX = 1024  # to make a view of one number takes as long as to fill so many
Batch: TypeAlias = pa.Table | None  # the rows of a batch; None: it was aborted
Part: TypeAlias = tuple[int, Batch]  # rows of a batch, and its number


def held_schema(stream: Stream) -> pa.Schema:
    """The columns of rows that are under way, as the log has them."""
    return stream.schema.arrow.append(pa.field(IN_BATCH, pa.int64()))


def as_declared(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows that are under way with all columns of their stream: those that it has got since they
    came are null."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(one.name) if one.name in rows.schema.names else pa.nulls(len(rows), one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def repeated(number: int, count: int) -> np.ndarray:
    """The same number for each row; of many it takes no room."""
    if count > _FILLED_MAX:
        return np.broadcast_to(np.int64(number), count)
    found = np.empty(count, np.int64)
    found.fill(number)
    return found


class BatchRun(NamedTuple):
    """Batches that stand together; it is never empty."""

    rows: pa.Table
    numbers: np.ndarray
    keys: np.ndarray  # the numbers without their signs

    @classmethod
    def of(cls, rows: pa.Table, numbers: np.ndarray) -> BatchRun:
        """Of batches that were not aborted."""
        return cls(rows, numbers, numbers)

    @classmethod
    def of_one(cls, rows: pa.Table, number: int) -> BatchRun:
        """Of one batch."""
        return cls.of(rows, repeated(number, rows.num_rows))

    @classmethod
    def of_marks(cls, stream: Stream, number: int) -> BatchRun:
        """Of one that was aborted."""
        schema = stream.schema.arrow
        mark = pa.table([pa.nulls(1, one.type) for one in schema], schema=schema)
        return cls(mark, np.full(1, -number, np.int64), np.full(1, number, np.int64))

    @classmethod
    def of_log(cls, held: pa.Table) -> BatchRun:
        """Of rows as the log has them."""
        rows, numbers = held.combine_chunks(), held.column(IN_BATCH).to_numpy()
        return cls(rows.drop_columns([IN_BATCH]), numbers, np.abs(numbers))

    @property
    def first(self) -> int:
        return int(self.keys[0])

    @property
    def last(self) -> int:
        return int(self.keys[-1])

    @property
    def has_marks(self) -> bool:
        return self.keys is not self.numbers and bool((self.numbers < 0).any())

    def between(self, first: int, last: int) -> BatchRun | None:
        """Its batches with these numbers; None when it has none of them."""
        if first <= self.first and self.last <= last:
            return self
        begin, end = np.searchsorted(self.keys, first), np.searchsorted(self.keys, last, "right")
        if begin >= end:
            return None
        rows, numbers = self.rows.slice(begin, end - begin), self.numbers[begin:end]
        return BatchRun(
            rows, numbers, numbers if self.keys is self.numbers else self.keys[begin:end]
        )


def among(runs: Iterable[BatchRun], first: int, last: int) -> list[BatchRun]:
    """The batches with these numbers."""
    found = (run.between(first, last) for run in runs if run.first <= last and run.last >= first)
    return [run for run in found if run is not None]


def joined(runs: Sequence[BatchRun]) -> BatchRun:
    """Runs as one, their rows in one piece."""
    if len(runs) == 1:
        return runs[0]
    numbers = np.concatenate([run.numbers for run in runs])
    rows = pa.concat_tables([run.rows for run in runs]).combine_chunks()
    return BatchRun(
        rows, numbers, np.abs(numbers) if any(run.has_marks for run in runs) else numbers
    )


def numbered(stream: Stream, runs: Sequence[BatchRun]) -> pa.Table | None:
    """Batches as the log has them; None without any."""
    if not runs:
        return None
    run = joined(runs)
    return pa.table([*run.rows.columns, pa.array(run.numbers)], schema=held_schema(stream))


def apart(rows: pa.Table, numbers: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    """The batches of rows whose batches ascend."""
    if not len(numbers):
        return
    ends = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for first, last in pairwise(ends):
        yield int(numbers[first]), rows.slice(first, last - first)


class TakenBatches(NamedTuple):
    """Batches of a stream that somebody takes at once, none of them aborted: those up to `last`."""

    rows: pa.Table
    numbers: np.ndarray
    last: int

    def up_to(self, last: int) -> TakenBatches:
        """Those up to another."""
        count = int(np.searchsorted(self.numbers, last, "right"))
        return TakenBatches(self.rows.slice(0, count), self.numbers[:count], last)


class Stamps:
    """What was noted of numbers, of many at a time; any thread may look at it."""

    def __init__(self) -> None:
        # The first and the last of those that share a value, and it: replaced as a whole.
        self._noted: tuple[list[int], list[int], list[Any]] = [], [], []

    def put(self, numbers: range, value: Any) -> None:
        """Note something of numbers behind all others."""
        if numbers:
            firsts, lasts, values = self._noted
            self._noted = ([*firsts, numbers[0]], [*lasts, numbers[-1]], [*values, value])

    def get(self, number: int, default: Any) -> Any:
        """What was noted of a number."""
        firsts, lasts, values = self._noted
        place = bisect_left(lasts, number)
        return values[place] if place < len(lasts) and firsts[place] <= number else default

    def total(self, first: int, last: int, default: float) -> float:
        """The sum of what was noted of these numbers."""
        found, left = 0.0, last + 1 - first
        for begin, end, value in zip(*self._noted, strict=True):
            count = min(end, last) + 1 - max(begin, first)
            if count > 0:
                found, left = found + count * value, left - count
        return found + left * default

    def drop(self, floor: int) -> None:
        """Nobody asks for numbers up to this one any more."""
        firsts, lasts, values = self._noted
        gone = bisect_right(lasts, floor)
        if gone:
            self._noted = firsts[gone:], lasts[gone:], values[gone:]
