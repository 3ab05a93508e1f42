"""Rows: the live rows of one table in memory, as words, with their key index and free slots.

Invariant between batches: a slot is alive and in the index, or dead and in the free list, or beyond
`count` and never used. Rows that are being restored, and a copy of which nobody asked for a key,
have no index and no free list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import InputError
from headgate.state import index
from headgate.state.columns import to_arrow, to_stored
from headgate.state.index import build_index, release_all_dead
from headgate.state.layout import (
    HEADER_ALIVE,
    HEADER_EPOCH_SHIFT,
    HEADER_RELEASED,
    STORED,
    WORD_BYTES,
    Field,
    Layout,
    row_layout,
)
from headgate.state.objects import FAULT_WORDS
from headgate.state.spaces import Slots, Words
from headgate.state.strings import StringPool
from headgate.state.table import Table
from headgate.state.types import ColumnType

ROWS_MIN = 1024
LOAD_FACTOR = 0.6  # of the index: more entries than this and it doubles
SLOTS_MAX = 2**31 - 2


class TableRows:
    """The rows of one table: an array of words that grows by doubling."""

    def __init__(self, table: Table, pool: StringPool, is_indexed: bool = True) -> None:
        self.table = table
        self.is_indexed = is_indexed
        self.layout: Layout = row_layout(table.schema, table.key)
        self.pool = pool
        self.count = 0  # slots ever used; the live rows are fewer by the free ones
        self.words = np.zeros((ROWS_MIN, self.layout.words), np.int64)
        self.entries = np.zeros(2 * ROWS_MIN, np.int64)
        self.free = np.empty(16, np.int64)
        self.free_count = 0
        self.taken: list[Slots] = []
        self.spare: Slots = np.empty(0, np.int64)  # set aside for rows made as a batch runs
        self.spare_used = np.zeros(1, np.int64)  # how many of them have been taken
        self.spare_freed = 0  # how many of them had been used before
        self.created: list[Slots] = []  # what the last batch or load took; all else was there
        self.defaults = self._default_row()
        self.refills = 0  # how often rows came in other than by transactions
        self.kept: dict[Any, Any] = {}  # by constraint, see state/integrity.py
        self.ordered: dict[Any, Any] = {}  # by index, see state/ordered.py
        self.watchers: list[Any] = []  # who else is told which slots changed, by its `note`

    def __len__(self) -> int:
        return self.count - self.free_count

    @property
    def records(self) -> np.ndarray:
        """The same memory as named fields, all slots."""
        return self.words.reshape(-1).view(self.layout.dtype)

    def _default_row(self) -> np.ndarray:
        row = np.zeros(self.layout.words, np.int64)
        record = row.view(self.layout.dtype)
        for column in self.table.schema:
            if column.default is not None and column.type.kind == "string":
                record[column.name] = self.pool.intern(pa.array([column.default]))[0]
            elif column.default is not None:
                record[column.name] = column.default
            elif column.nullable:
                field = self.layout.field(column.name)
                row[field.null_word] |= field.null_mask
        return row

    def reserve(self, more: int) -> None:
        """Make room for that many more rows in the words and in the index."""
        need = self.count + more
        if need > SLOTS_MAX:
            raise InputError(f"table {self.table.name!r}: more than {SLOTS_MAX} rows")
        if need > len(self.words):
            words = np.zeros((max(need, 2 * len(self.words)), self.layout.words), np.int64)
            words[: self.count] = self.words[: self.count]
            self.words = words
        if self.is_indexed and need > LOAD_FACTOR * len(self.entries):
            size = 1 << int(need / LOAD_FACTOR).bit_length()
            self.entries = np.zeros(size, np.int64)
            self._index_all()

    def _index_all(self) -> None:
        """Fill the empty index with every row that is alive or taken by the running batch."""
        key_words = len(self.table.key)
        index.insert_live(self.entries, self.words, self.count, key_words)
        for slots in self.taken:
            for slot in slots[(self.words[slots, 0] & HEADER_ALIVE) == 0]:
                index.insert(self.entries, self.words, slot, key_words)

    def key_words(self, columns: Sequence[np.ndarray]) -> Words:
        """Stored key columns as one array of key words x rows."""
        if len(columns) == 1 and columns[0].dtype == np.int64:
            return np.ascontiguousarray(columns[0]).reshape(1, -1)
        return np.stack([np.asarray(column, np.int64) for column in columns])

    def find(self, keys: Words, skip: np.ndarray) -> Slots:
        """The slot of each key, -1 where there is none or `skip` is set."""
        slots = np.empty(keys.shape[1], np.int64)
        index.find_all(self.entries, self.words, keys, skip, slots)
        return slots

    def find_one(self, key: Sequence[int]) -> int:
        """The slot of one key, or -1."""
        keys = np.array(key, np.int64).reshape(-1, 1)
        return int(self.find(keys, np.zeros(1, np.uint8))[0])

    def find_or_take(self, keys: Words, skip: np.ndarray) -> Slots:
        """As `find`, but a missing key takes a slot: dead until a transaction creates the row."""
        self.reserve(keys.shape[1])
        slots = np.empty(keys.shape[1], np.int64)
        taken = np.empty(keys.shape[1], np.int64)
        self.free_count, self.count, taken_count = index.find_or_take(
            self.entries, self.words, keys, skip, slots,
            self.free, self.free_count, self.count, taken,
        )  # fmt: skip
        if taken_count:
            self.taken.append(taken[:taken_count].copy())
        return slots

    def set_aside(self, more: int) -> None:
        """Let that many slots be spare: for keys that are known only as the batch runs.

        They are taken in the order in which `find_or_take` would, dead until a row is created.
        """
        self.reserve(more)
        freed = self.free[max(0, self.free_count - more) : self.free_count][::-1]
        fresh = np.arange(self.count, self.count + more - len(freed))
        self.spare, self.spare_used[0] = np.concatenate([freed, fresh]), 0
        self.spare_freed = len(freed)
        self.free_count -= len(freed)
        self.count += len(fresh)

    def take(self, key: Sequence[int]) -> int:
        """The slot of a key, a spare one where it has none: dead until the row is created."""
        slot = self.find_one(key)
        if slot < 0:
            slot = int(self.spare[self.spare_used[0]])
            self.spare_used[0] += 1
            self.words[slot, 0] = 0
            self.words[slot, 1 : 1 + len(key)] = key
            index.insert(self.entries, self.words, slot, len(key))
        return slot

    def _give_back(self) -> None:
        """After a batch: the spare slots that it took are its own, the others are as before."""
        used, freed = int(self.spare_used[0]), self.spare_freed
        if used:
            self.taken.append(self.spare[:used].copy())
        self.free_count += max(0, freed - used)
        self.count -= len(self.spare) - max(freed, used)
        self.spare, self.spare_used[0] = self.spare[:0], 0

    def release(self, changed: Slots) -> None:
        """After a batch: rows that it deleted, or took a slot for and never created, go."""
        if len(self.spare):
            self._give_back()
        before = self.free_count
        for slots in (changed, *self.taken):
            if self.free_count + len(slots) > len(self.free):
                more = np.empty(self.free_count + 2 * len(slots), np.int64)
                self.free = np.concatenate([self.free[: self.free_count], more])
            self.free_count = index.release_dead(
                self.entries, self.words, slots, len(self.table.key), self.free, self.free_count
            )
        self.created, self.taken = self.taken, []
        index.merge_freed(self.free, before, np.sort(self.free[before : self.free_count]))

    def _order_free(self) -> None:
        """The lowest free slot is taken next: which one it is depends on the live rows alone, not
        on the scheme that ran or on whether the rows were recovered."""
        self.free[: self.free_count] = np.sort(self.free[: self.free_count])[::-1]

    def note_changed(self, slots: Slots) -> None:
        """The rows in these slots are others than before, or gone, or new."""
        for one in self.ordered.values():
            one.note(slots)
        for one in self.watchers:
            one.note(slots)

    def load(self, rows: pa.Table, epoch: int) -> range:
        """Insert the rows of an Arrow table whose keys are new; returns their slots."""
        self.reserve(rows.num_rows)
        first, last = self.count, self.count + rows.num_rows
        self._fill(slice(first, last), rows, epoch)
        twice = index.insert_new(self.entries, self.words, first, last, len(self.table.key))
        if twice >= 0:
            key = self.key_text(int(twice))
            self.words[first:last] = 0
            self.entries[:] = 0
            self._index_all()
            raise InputError(f"table {self.table.name!r}: two of the rows have the key {key}")
        self.count = last
        self.created = [np.arange(first, last)]
        return range(first, last)

    def unload(self, slots: range) -> None:
        """Take back a load that turned out to be wrong."""
        self.refills += 1
        self.words[slots.start : slots.stop] = 0
        self.count = slots.start
        self.entries[:] = 0
        self._index_all()

    def note_used(self, count: int) -> None:
        """Slots up to `count` have been used at some time; those not alive are free."""
        if count > self.count:
            self.reserve(count - self.count)
            more = np.arange(self.count, count)
            self.words[more, 0] = HEADER_RELEASED
            self.free = np.concatenate([self.free[: self.free_count], more])
            self.free_count = len(self.free)
            self.count = count
            self._order_free()

    def restore(self, slots: Slots, rows: pa.Table, epoch: int) -> None:
        """Put recovered rows back into their slots; the slots between them are free."""
        self.begin_restoring(int(slots.max(initial=-1)) + 1)
        self.put(slots, rows, epoch)
        self.end_restoring()

    def begin_restoring(self, slots: int) -> None:
        """Forget all rows and have that many dead slots; until the end the index is not there."""
        self.is_indexed, self.count = False, slots
        self.words = np.zeros((max(ROWS_MIN, slots), self.layout.words), np.int64)

    def put(self, slots: Slots, rows: pa.Table, epoch: int) -> None:
        """Put rows into these slots, ascending, whatever is there; no two threads into the same.

        Slots without a gap are one piece of memory, which is filled many times faster.
        """
        if len(slots) and int(slots[-1]) - int(slots[0]) == len(slots) - 1:
            self._fill(slice(int(slots[0]), int(slots[-1]) + 1), rows, epoch)
        else:
            self._fill(slots, rows, epoch)

    def fill(self, slots: Slots, rows: Mapping[str, pa.Array], epoch: int) -> None:
        """Put rows into these slots, in any order, whatever is there; the index has their keys."""
        self._fill(slots, rows, epoch)

    def put_changes(
        self, slots: Slots, alive: np.ndarray, rows: pa.Table, epochs: int | np.ndarray
    ) -> None:
        """Put changed rows into their slots, while these have no index; each slot once.

        They are of one epoch, or each of its own.
        """
        last = int(slots.max(initial=-1)) + 1
        if last > len(self.words):
            words = np.zeros((max(last, 2 * len(self.words)), self.layout.words), np.int64)
            words[: self.count] = self.words[: self.count]
            self.words = words
        self.count = max(self.count, last)
        if alive.all():
            self._fill(slots, rows, epochs)
        else:
            self.words[slots, 0] = 0
            living = epochs if isinstance(epochs, int) else epochs[alive]
            self._fill(slots[alive], rows.filter(pa.array(alive)), living)

    def put_values(
        self, slots: Slots, columns: Mapping[str, pa.Array], epochs: int | np.ndarray
    ) -> None:
        """Put new values of some columns, none of the key, into rows that are there; each once.

        ValueError when one of the rows is not; then nothing is changed.
        """
        last = int(slots.max(initial=-1)) + 1
        if last > self.count or index.count_alive(self.words, slots) < len(slots):
            raise ValueError(f"table {self.table.name!r}: new values of a row that is not there")
        self._fill(slots, columns, epochs, [self.layout.field(name) for name in columns])

    def end_restoring(self) -> None:
        """Make the index and the free list of the rows that were put."""
        dead = self.make_index()
        self.free, self.free_count = np.empty(16, np.int64), 0
        if dead:
            self.free_dead()

    def make_index(self) -> int:
        """Make the index of rows that have none, all at once; returns how many slots are dead."""
        size = 1 << int(max(ROWS_MIN, self.count) / LOAD_FACTOR).bit_length()
        entries = np.zeros(size, np.int64)
        dead = build_index(entries, self.words, self.count, len(self.table.key))
        self.entries, self.is_indexed = entries, True
        return dead

    def patch(self, slots: Slots, alive: np.ndarray, rows: pa.Table, epoch: int) -> None:
        """Apply changed rows by slot, as they were logged, and make the free list anew."""
        self.replace(slots, alive, rows, epoch)
        self.free_dead()

    def replace(self, slots: Slots, alive: np.ndarray, rows: pa.Table, epoch: int) -> None:
        """Put rows into these slots, or nothing where `alive` is not set, and mend the index.

        The free list is left as it is: enough for a copy in which no transaction runs.
        """
        if not self.is_indexed:
            self.put_changes(slots, alive, rows, epoch)
            return
        last = int(slots.max(initial=-1)) + 1
        if last > self.count:
            self.reserve(last - self.count)
            self.count = last
        living, given = slots, rows
        if not alive.all():
            living, given = slots[alive], rows.filter(pa.array(alive))
        was = (self.words[slots, 0] & HEADER_ALIVE) != 0
        stays = was & alive
        for place, name in enumerate(self.table.key):
            kind = self.table.schema[name].type
            key = to_stored(given.column(name), kind, self.pool, f"table {self.table.name!r}")
            stays[alive] &= self.words[living, 1 + place] == key.values
        width = len(self.table.key)
        # All that go leave the index before any row changes: a removal looks at its neighbours.
        index.remove_slots(self.entries, self.words, slots[was & ~stays], width)
        self.words[slots, 0] = 0
        before = self.refills
        self._fill(living, given, epoch)
        for one in self.ordered.values():
            one.follow(slots, before)
        index.insert_slots(self.entries, self.words, living[~stays[alive]], width)

    def remove(self, slots: Slots) -> None:
        """Let the rows in these slots be gone, where there are any; the free list stays."""
        used = slots[slots < self.count]
        there = used[(self.words[used, 0] & HEADER_ALIVE) != 0]
        if self.is_indexed:
            index.remove_slots(self.entries, self.words, there, len(self.table.key))
        self.words[there, 0] = 0

    def exchange(self, first: int, words: Words) -> None:
        """Put whole rows, dead ones among them, in the place of those from slot `first` on.

        The free list stays. Where a row has its key as before, so has the index.
        """
        here, width = self.words[first : first + len(words)], len(self.table.key)
        was, is_there = ((rows[:, 0] & HEADER_ALIVE) != 0 for rows in (here, words))
        stays = was & is_there & (here[:, 1 : 1 + width] == words[:, 1 : 1 + width]).all(axis=1)
        leaving, coming = (first + np.flatnonzero(some & ~stays) for some in (was, is_there))
        index.remove_slots(self.entries, self.words, leaving, width)
        here[:] = words
        index.insert_slots(self.entries, self.words, coming, width)

    def put_back(self, slots: Slots, words: Words, count: int) -> None:
        """Let the rows in these slots, each named once, be as they were when `count` were used.

        All rows that are dead now must have been released: then the index has none of them.
        """
        here, width = self.words[slots], len(self.table.key)
        is_there, was = ((rows[:, 0] & HEADER_ALIVE) != 0 for rows in (here, words))
        stays = was & is_there & (here[:, 1 : 1 + width] == words[:, 1 : 1 + width]).all(axis=1)
        # All that go leave the index before any row changes: a removal looks at its neighbours.
        index.remove_slots(self.entries, self.words, slots[is_there & ~stays], width)
        self.words[slots] = words
        self.words[count : self.count] = 0
        self.count = count
        index.insert_slots(self.entries, self.words, slots[was & ~stays], width)
        self.refills += 1
        self.free_dead()

    def free_dead(self) -> None:
        """Make the free list anew from the rows themselves."""
        self.free = release_all_dead(self.words, self.count)
        self.free_count = len(self.free)

    def _fill(
        self,
        slots: slice | Slots,
        rows: pa.Table | Mapping[str, pa.Array],
        epochs: int | np.ndarray,
        fields: Sequence[Field] | None = None,
    ) -> None:
        self.refills += 1
        records = self.records
        for field in self.layout.fields if fields is None else fields:
            where = f"table {self.table.name!r}: column {field.name!r}"
            stored = to_stored(rows[field.name], field.type, self.pool, where, field.nullable)
            if stored.faults is not None:
                place = int(np.flatnonzero(stored.faults)[0])
                fault = FAULT_WORDS.get(int(stored.faults[place]), "null")
                self.words[slots, 0] = 0
                raise InputError(f"{where}: the value in row {place} is {fault}")
            if isinstance(slots, np.ndarray) and stored.values.itemsize == WORD_BYTES:
                word, values = field.offset // WORD_BYTES, stored.values.view(np.int64)
                index.put_words(self.words, slots, word, values)
            else:
                records[field.name][slots] = stored.values
            if field.nullable:
                put_nulls(self.words, slots, field, stored.nulls)
        header = (epochs << HEADER_EPOCH_SHIFT) | HEADER_ALIVE
        if isinstance(header, np.ndarray):
            self.words[slots, 0] = header
        elif isinstance(slots, np.ndarray):
            index.set_words(self.words, slots, 0, header)
        else:
            self.words[slots, 0] = header

    def key_text(self, slot: int) -> str:
        return self.text(slot, self.table.key)

    def text(self, slot: int, columns: Sequence[str]) -> str:
        """Some columns of a row, for messages."""
        row = self.arrow(np.array([slot])).select(list(columns)).to_pylist()[0]
        return ", ".join(f"{name}={value!r}" for name, value in row.items())

    def gather(self, slots: Slots) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Which of these slots are alive, and the stored values of every column in them."""
        words = index.transpose(self.words, slots)
        columns = {
            field.name: field_values(field, words[field.offset // WORD_BYTES])
            for field in self.layout.fields
        }
        return (words[0] & HEADER_ALIVE).astype(np.bool_), columns

    def column(self, name: str, slots: Slots | slice) -> np.ndarray:
        """The stored values of one column."""
        values: np.ndarray = self.records[name][slots]
        return values

    def nulls(self, field: Field, slots: Slots | slice) -> np.ndarray | None:
        """Where a column has no value; None where it always has one."""
        if not field.nullable:
            return None
        return field.nulls_in(self.words[slots, field.null_word])

    def arrow(self, slots: Slots | slice) -> pa.RecordBatch:
        """The rows in these slots as Arrow columns."""
        if isinstance(slots, slice):
            columns = {name: self.column(name, slots) for name in self.table.schema.names}
        else:
            _, columns = self.gather(slots)
        arrays = [
            to_arrow(
                stored_column(columns[field.name], field.type),
                field.type,
                self.pool,
                self.nulls(field, slots),
            )
            for field in self.layout.fields
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.table.schema.arrow)

    def text_codes(self) -> list[np.ndarray]:
        """The codes of all texts in live rows, for the pool to know what is in use."""
        alive = (self.words[: self.count, 0] & HEADER_ALIVE) != 0
        fields = [field for field in self.layout.fields if field.type.kind == "string"]
        codes = [self.column(field.name, slice(0, self.count))[alive] for field in fields]
        held = [codes for one in self.ordered.values() for codes in one.text_codes()]
        return [*codes, *held, self._default_codes()]

    def _default_codes(self) -> np.ndarray:
        names = [field.name for field in self.layout.fields if field.type.kind == "string"]
        record = self.defaults.view(self.layout.dtype)[0]
        return np.array([record[name] for name in names], np.int64)


def bytes_of(words: Words) -> memoryview:
    """The same memory as bytes; the rows have no gap between them."""
    return memoryview(words.reshape(-1).view(np.uint8).data)


def put_nulls(words: Words, slots: slice | Slots, field: Field, nulls: np.ndarray | None) -> None:
    """Note in which of these rows a nullable column has no value; None: in none of them."""
    others = words[slots, field.null_word] & ~field.null_mask
    marks = others if nulls is None else others | np.where(nulls, field.null_mask, np.int64(0))
    words[slots, field.null_word] = marks


def field_values(field: Field, words: np.ndarray) -> np.ndarray:
    """A field's stored values, of rows of which these are the words that it stands in."""
    size, values = np.dtype(field.format).itemsize, words.view(field.format)
    if size != WORD_BYTES:
        values = values[field.offset % WORD_BYTES // size :: WORD_BYTES // size]
    return stored_column(np.ascontiguousarray(values), field.type)


def stored_column(values: np.ndarray, kind: ColumnType) -> np.ndarray:
    """A row field in the stored format of its type (a key field is a whole word in the row)."""
    return values.astype(STORED[kind.kind], copy=False)
