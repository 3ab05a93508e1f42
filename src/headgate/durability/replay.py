"""Replay: a table's image from a snapshot and the changes after it, by slot.

Columns that always came together are a strand: its `where[slot]` is the number of the row, counted
over all batches of the strand in the order they came, that holds the slot's newest values, or -1.
Whole rows go to all strands, new values of some columns only to theirs. So a frame costs one
scatter and the image one take for each strand; nothing is done row by row. Invariant: a row that is
there has a number in every strand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
# What is known of the row in a slot.
_UNKNOWN, _THERE, _GONE = 0, 1, 2


class _Strand:
    """Some columns of a table that always came together; at first all of them."""

    def __init__(self, where: Int64s) -> None:
        self.names: dict[str, None] = {}  # in the order in which they came
        self.where = where
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._old_rows = 0
        self._retained_bytes = 0

    def split(self, names: Iterable[str]) -> _Strand:
        """Leave these columns to a strand of their own, which has the same past."""
        other = _Strand(self.where.copy())
        other.names = dict.fromkeys(names)
        self.names = {name: None for name in self.names if name not in other.names}
        other._rows, other._old_rows = self._rows, self._old_rows
        other._retained_bytes = self._retained_bytes
        other._batches = [_selected(batch, other.names) for batch in self._batches]
        self._batches = [_selected(batch, self.names) for batch in self._batches]
        return other

    def put(self, slots: Int64s | slice, batch: pa.RecordBatch) -> None:
        """Let the slots have the rows of a batch."""
        if isinstance(slots, np.ndarray):
            self.forget(slots)
        self.where[slots] = np.arange(self._rows, self._rows + batch.num_rows, dtype=np.int64)
        self._batches.append(_selected(batch, self.names))
        self._rows += batch.num_rows
        self._retained_bytes += self._batches[-1].nbytes

    def forget(self, slots: Int64s) -> None:
        """The rows that these slots have now are old."""
        self._old_rows += int(np.count_nonzero(self.where[slots] >= 0))
        self.where[slots] = _NONE

    def is_worn(self) -> bool:
        """Whether there are too many old versions."""
        return self._retained_bytes > _FOLD_BYTES_MIN and self._old_rows > self._rows // 2

    def fold(self) -> None:
        """Keep only the newest versions."""
        slots = np.flatnonzero(self.where >= 0)
        table = self._taken(self.where[slots])
        self.where[slots] = np.arange(len(slots), dtype=np.int64)
        empty = pa.RecordBatch.from_pylist([], schema=table.schema)
        self._batches = table.combine_chunks().to_batches() or [empty]
        self._rows = sum(batch.num_rows for batch in self._batches)
        self._old_rows = 0
        self._retained_bytes = table.nbytes

    def newest(self, slots: Int64s) -> dict[str, pa.ChunkedArray]:
        """The columns of the rows in these slots, all of which have one."""
        found = self._taken(self.where[slots])
        return {name: found.column(name) for name in self.names if name in found.column_names}

    def _taken(self, rows: Int64s) -> pa.Table:
        whole = concatenated(self._batches)
        if _counts_up(rows, self._rows):
            return whole
        numbers = pa.array(rows)
        columns = [_taken(whole.column(name), numbers) for name in whole.column_names]
        return pa.Table.from_arrays(columns, schema=whole.schema)


def _selected(batch: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    """Those of the columns that a batch has; where it has none, its rows all the same."""
    found = [name for name in names if name in batch.schema.names]
    if found:
        return batch.select(found)
    return pa.record_batch([pa.nulls(batch.num_rows)], names=[ALIVE])


class Replay:
    """The newest version of each row of one table, or of a range of its slots.

    A `partial` one begins behind a snapshot without its rows: what comes are changes to them.
    """

    def __init__(
        self,
        slot_range: tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        partial: bool = False,
    ) -> None:
        self._low = 0 if slot_range is None else slot_range[0]
        self._high = None if slot_range is None else slot_range[1]
        self._columns = columns
        self._is_partial = partial
        self._names: dict[str, None] = {}  # of all strands, in the order in which they came
        self._strands = [_Strand(np.full(_FIRST_SLOTS, _NONE, np.int64))]
        self._state = np.zeros(_FIRST_SLOTS, np.int8)

    def insert(self, batch: pa.RecordBatch) -> None:
        """Take in rows of a snapshot: "__slot" and columns."""
        slots: Int64s = batch.column(SLOT).to_numpy()
        if self._high is None and _without_gaps(slots):
            # The usual block: its slots are one piece of the array, and no row was there before.
            self.reserve(int(slots[-1]) + 1)
            self._put(batch, slice(int(slots[0]), int(slots[-1]) + 1))
        else:
            self._put(*self._inside(batch))

    def apply(self, batch: pa.RecordBatch) -> None:
        """Take in one epoch's changes, or a part of them."""
        batch, slots = self._inside(batch)
        if ALIVE not in batch.schema.names:
            self._update(batch, slots)
        else:
            alive = batch.column(ALIVE).to_numpy(zero_copy_only=False)
            if not alive.all():
                self.remove(slots[~alive])
                batch, slots = batch.filter(pa.array(alive)), slots[alive]
            self._put(batch, slots)
        self.fold([strand for strand in self._strands if strand.is_worn()])

    def fold(self, strands: Iterable[_Strand] | None = None) -> None:
        """Drop old versions."""
        for strand in self._strands if strands is None else strands:
            strand.fold()

    def remove(self, slots: Int64s) -> None:
        """Let the rows in these slots be gone; the slots are within what is reserved."""
        self._state[slots] = _GONE
        for strand in self._strands:
            strand.forget(slots)

    def _inside(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s]:
        """The rows of a batch whose slots are within the range, and their places in it."""
        slots = batch.column(SLOT).to_numpy()
        if len(slots) and slots.min() < 0:
            raise InvariantError(f"slot {slots.min()} is below 0")
        if self._high is not None:
            inside = (slots >= self._low) & (slots < self._high)
            if not inside.all():
                batch, slots = batch.filter(pa.array(inside)), slots[inside]
        self.reserve(int(slots.max(initial=-1)) + 1)
        return batch, slots - self._low if self._low else slots

    def _put(self, batch: pa.RecordBatch, slots: Int64s | slice) -> None:
        """Whole rows: their columns, and those of the others that they have not, are null."""
        self._welcome(self._new_names(batch), self._strands[0])
        self._state[slots] = _THERE
        for strand in self._strands:
            strand.put(slots, batch)

    def _update(self, batch: pa.RecordBatch, slots: Int64s) -> None:
        """New values of some columns, of rows that are there."""
        state = self._state[slots]
        if (state == _GONE if self._is_partial else state != _THERE).any():
            raise ValueError("new values of a row that is not there")
        new, meant = self._new_names(batch), []
        for strand in list(self._strands):
            mine = [name for name in strand.names if name in batch.schema.names]
            if mine and len(mine) == len(strand.names):
                meant.append(strand)
            elif mine:
                meant.append(strand.split(mine))
                self._strands.append(meant[-1])
        home = self._welcome(new, meant[0] if meant else None)
        for strand in [*meant, home] if home is not None and home not in meant else meant:
            strand.put(slots, batch)

    def _welcome(self, new: dict[str, None], home: _Strand | None) -> _Strand | None:
        """Let new columns belong to a strand, and return it.

        They are null in the rows before. But of rows of which only some columns are known they are
        not known, so they need a strand of their own then.
        """
        if not new:
            return None
        if home is None or (self._is_partial and home.names):
            home = self._strands[0].split(())
            home.where[self._state != _THERE] = _NONE
            self._strands.append(home)
        home.names.update(new)
        return home

    def _new_names(self, batch: pa.RecordBatch) -> dict[str, None]:
        """The columns that are asked for and come for the first time."""
        names = [name for name in batch.schema.names if name not in (SLOT, ALIVE)]
        if self._columns is not None:
            names = [name for name in self._columns if name in names]
        new = {name: None for name in names if name not in self._names}
        self._names.update(new)
        return new

    def reserve(self, slots: int) -> None:
        """Have room for the slots below this one: at first just that, later by doubling."""
        count = (slots if self._high is None else min(slots, self._high)) - self._low
        before = len(self._state)
        if count > before:
            size = count if before == _FIRST_SLOTS else max(count, 2 * before)
            self._state = np.concatenate([self._state, np.zeros(size - before, np.int8)])
            for strand in self._strands:
                grown = np.full(size, _NONE, np.int64)
                grown[:before] = strand.where
                strand.where = grown

    def gone(self) -> Int64s:
        """The slots whose rows were removed by what was applied, ascending."""
        return np.flatnonzero(self._state == _GONE) + self._low

    def touched(self) -> Int64s:
        """The slots of all rows that came, went or changed, ascending."""
        found = self._state != _UNKNOWN
        for strand in self._strands:
            found |= strand.where >= 0
        return np.flatnonzero(found) + self._low

    def image(self) -> pa.Table:
        """The whole rows that are there, slot-ascending: "__slot" and columns."""
        slots = np.flatnonzero(self._state == _THERE)
        found: dict[str, pa.ChunkedArray] = {}
        for strand in self._strands:
            found.update(strand.newest(slots))
        named = {name: found[name] for name in self._names}
        return pa.table({SLOT: pa.array(slots + self._low, pa.int64()), **named})

    def updates(self) -> Iterator[pa.Table]:
        """Of a partial one, the new values of rows that are not known: "__slot" and columns."""
        for strand in self._strands:
            slots = np.flatnonzero((strand.where >= 0) & (self._state == _UNKNOWN))
            if len(slots):
                yield pa.table({SLOT: pa.array(slots + self._low), **strand.newest(slots)})


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
