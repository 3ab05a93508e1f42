"""Replay: a table's image from a snapshot and the changes after it, by slot.

Invariant: `_where[slot]` is the number of the row, counted over all batches in the order they came,
that holds the slot's newest version, -1 for none, or -2 for a row that is gone. So a frame costs
one scatter and the image one take; nothing is done row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.durability.commit import ALIVE, SLOT
from headgate.errors import InvariantError

Int64s = npt.NDArray[np.int64]

# Old versions are dropped when all together take more than this and most of them are old.
_FOLD_BYTES_MIN = 128 << 20
_FIRST_SLOTS = 1024
_NONE = -1
_GONE = -2


class Replay:
    """The newest version of each row of one table, or of a range of its slots."""

    def __init__(
        self,
        slot_range: tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._low = 0 if slot_range is None else slot_range[0]
        self._high = None if slot_range is None else slot_range[1]
        self._columns = columns
        self._where: Int64s = np.full(_FIRST_SLOTS, _NONE, np.int64)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._old_rows = 0
        self._retained_bytes = 0

    def insert(self, batch: pa.RecordBatch) -> None:
        """Take in rows of a snapshot: "__slot" and columns."""
        rows = np.arange(self._rows, self._rows + batch.num_rows, dtype=np.int64)
        slots = batch.column(SLOT).to_numpy()
        if self._high is None and _without_gaps(slots):
            # The usual block: its slots are one piece of the array, and no row was there before.
            self.reserve(int(slots[-1]) + 1)
            self._where[slots[0] : slots[-1] + 1] = rows
            self._keep(batch)
        else:
            self._scatter(batch, rows)

    def apply(self, batch: pa.RecordBatch) -> None:
        """Take in one epoch's changes: "__slot", "__alive" and columns."""
        rows = np.arange(self._rows, self._rows + batch.num_rows, dtype=np.int64)
        alive = batch.column(ALIVE).to_numpy(zero_copy_only=False)
        rows[~alive] = _GONE
        self._scatter(batch, rows)
        if self._retained_bytes > _FOLD_BYTES_MIN and self._old_rows > self._rows // 2:
            self._fold()

    def _scatter(self, batch: pa.RecordBatch, rows: Int64s) -> None:
        slots = batch.column(SLOT).to_numpy()
        if len(slots) and slots.min() < 0:
            raise InvariantError(f"slot {slots.min()} is below 0")
        if self._high is not None:
            inside = (slots >= self._low) & (slots < self._high)
            slots, rows = slots[inside], rows[inside]
        if len(slots):
            self.reserve(int(slots.max()) + 1)
            slots = slots - self._low if self._low else slots
            self._old_rows += batch.num_rows - int(np.count_nonzero(rows >= 0))
            self._old_rows += int(np.count_nonzero(self._where[slots] >= 0))
            self._where[slots] = rows
        self._keep(batch)

    def _keep(self, batch: pa.RecordBatch) -> None:
        names = [name for name in batch.schema.names if name not in (SLOT, ALIVE)]
        if self._columns is not None:
            names = [name for name in self._columns if name in names]
        self._batches.append(batch.select(names))
        self._rows += batch.num_rows
        self._retained_bytes += batch.nbytes

    def reserve(self, slots: int) -> None:
        """Have room for the slots below this one: at first just that, later by doubling."""
        count = (slots if self._high is None else min(slots, self._high)) - self._low
        if count > len(self._where):
            size = count if len(self._where) == _FIRST_SLOTS else max(count, 2 * len(self._where))
            grown = np.full(size, _NONE, np.int64)
            grown[: len(self._where)] = self._where
            self._where = grown

    def gone(self) -> Int64s:
        """The slots whose rows were removed by what was applied, ascending."""
        return np.flatnonzero(self._where == _GONE) + self._low

    def image(self) -> pa.Table:
        """The live rows, slot-ascending: "__slot" and columns. The replay ends with it."""
        slots = np.flatnonzero(self._where >= 0)
        rows = self._where[slots]
        # The memory is needed for the image.
        self._where = self._where[:0].copy()
        table = self._newest(rows)
        if self._low:
            slots += self._low
        return table.add_column(0, SLOT, pa.array(slots, pa.int64()))

    def _newest(self, rows: Int64s) -> pa.Table:
        """The rows of these numbers, in this order."""
        whole = concatenated(self._batches)
        if _counts_up(rows, self._rows):
            return whole
        numbers = pa.array(rows)
        columns = [_taken(whole.column(name), numbers) for name in whole.column_names]
        return pa.Table.from_arrays(columns, schema=whole.schema)

    def _fold(self) -> None:
        """Keep only the newest versions."""
        slots = np.flatnonzero(self._where >= 0)
        table = self._newest(self._where[slots])
        self._where[slots] = np.arange(len(slots), dtype=np.int64)
        self._batches = table.combine_chunks().to_batches() or self._batches[:1]
        self._rows = sum(batch.num_rows for batch in self._batches)
        self._old_rows = 0
        self._retained_bytes = table.nbytes


def _without_gaps(slots: Int64s) -> bool:
    """Whether the slots are n, n + 1, n + 2, ..."""
    return len(slots) > 0 and slots[0] >= 0 and bool((slots[1:] - slots[:-1] == 1).all())


def _counts_up(rows: Int64s, count: int) -> bool:
    """Whether the rows are just 0, 1, 2, ... up to the count, so that nothing needs moving."""
    return len(rows) == count and (count == 0 or bool((rows[1:] > rows[:-1]).all()))


def concatenated(batches: list[pa.RecordBatch]) -> pa.Table:
    """The batches as one table; columns that came later are null in the rows before.

    A column whose type was widened meanwhile has the wider one.
    """
    if not batches:
        return pa.table({})
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.Table.from_batches(batches)
    return pa.concat_tables(tables, promote_options="permissive")


def _taken(column: pa.ChunkedArray, numbers: pa.Array) -> pa.Array | pa.ChunkedArray:
    """Take rows from a column; in one chunk, which is far faster, unless it is too long for one."""
    try:
        return column.combine_chunks().take(numbers)
    except pa.ArrowInvalid:
        return column.take(numbers)
