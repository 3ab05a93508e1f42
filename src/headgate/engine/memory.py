"""Memory: an engine's state at its last epoch, and what a batch changed in its rows.

It is what recovery brings back and what a commit moves forward; it knows nothing of transactions.
Recovered rows come block by block and epoch by epoch into the slots they had; they are of use only
after `end`: until then they have no index.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT, Commit, Inlet, Recovered
from headgate.durability.commit import Changes, Forgotten, moved, pieces_in
from headgate.durability.describing import BatchShape, texts_of
from headgate.durability.named_parts import TABLE as PARTS
from headgate.durability.named_parts import NamedParts
from headgate.durability.plain_batches import PlainBatch, Texts
from headgate.engine.calls.keyed import TABLE as CALLS
from headgate.engine.calls.keyed import KeyedCalls
from headgate.engine.terms import Origin
from headgate.errors import InvariantError
from headgate.query.replica import Replica
from headgate.state import index
from headgate.state.layout import HEADER_ALIVE, WORD_BYTES, Field
from headgate.state.ordered import make_indexes
from headgate.state.row_history import versions_of
from headgate.state.rows import TableRows, bytes_of, field_values
from headgate.state.spaces import Slots, Words
from headgate.state.stored_names import Storage, Storages
from headgate.state.strings import StringPool
from headgate.state.table import Table
from headgate.state.version_rows import VersionRows

# By table: the columns that the batch may have written, where not all of them may be. A row that
# was there can be deleted and created anew by a batch, with the defaults in all columns: a list
# must name all columns of a table of which the transactions both delete and create rows.
Written = Mapping[str, tuple[str, ...]]
ALL_COLUMNS: Written = MappingProxyType({})

POOL_SLACK = 1 << 18  # texts the string pool may hold for nothing before it is compacted
RESULTS_KEPT_ROWS = 100_000  # of an engine in memory
SNAPSHOT_CHUNK_ROWS = 1 << 16


class Memory:
    """The tables of one engine and all else that an epoch changes; used under the engine's lock."""

    def __init__(
        self, tables: Mapping[str, Table], storages: Storages, *, is_elsewhere: bool = False
    ) -> None:
        self.storages = storages
        self._is_elsewhere = is_elsewhere  # the rows of the tables are
        self.epoch = 0
        self.pool = StringPool()
        self.rows = rows_of(tables, self.pool)
        self._changes = {
            name: ChangedRows(rows, storages[name]) for name, rows in self.rows.items()
        }
        self.replica = Replica(self, tables)
        self.restoring = Restoring({} if is_elsewhere else self.rows, storages)
        self.calls = KeyedCalls()
        self.parts = NamedParts()  # of an engine whose rows are in shards
        self._dropped: list[str] = []  # tables in the files that are declared no more
        # Tables that were loaded, by their names in the files, and the epoch of it.
        self.loaded: dict[str, int] = {}
        self.inlets: dict[str, Inlet] = {}
        # By query: its last batch, and that one's epoch.
        self.origins: dict[str, tuple[int, int]] = {}
        self._pool_used = 0
        # Without a store: the results of the newest epochs, for queries.
        self.results: deque[tuple[int, Any]] = deque()
        self._results_rows = 0

    def restore(self, recovered: Recovered) -> None:
        """Take the state that recovery found, before any input that is still to be run again.

        The rows came before, by way of `restoring`.
        """
        self.epoch = recovered.image_epoch
        self.origins = dict(recovered.origins)
        self.inlets = dict(recovered.inlets)
        self.restoring.end()
        self.calls.restore(recovered.images.get(CALLS))
        self.parts.restore(recovered.images.get(PARTS))
        for stored, count in recovered.slots.items():
            name = self.storages.declared(stored)
            if name is None:
                self._dropped.append(stored)
            elif name == PARTS:
                self.parts.count = max(self.parts.count, count)
            elif name != CALLS and not self._is_elsewhere:
                self.rows[name].note_used(count)

    def apply(self, commit: Commit) -> None:
        """Put the changed rows of a logged epoch in their place."""
        changed: dict[str, list[Slots]] = {}
        for stored, changes in commit.changes.items():
            name = self.storages.declared(stored)
            for given in pieces_in(changes) if name is not None else ():
                batch = given.arrow() if isinstance(given, PlainBatch) else given
                if name == CALLS:
                    self.calls.restore(batch)
                elif name == PARTS:
                    self.parts.restore(batch)
                elif name is not None:
                    changed.setdefault(name, []).append(self._patch(name, batch, commit.epoch))
        together = {name: np.concatenate(slots) for name, slots in changed.items()}
        self.advance(commit.origin, commit.inlets, together)

    def _patch(self, name: str, batch: pa.RecordBatch, epoch: int) -> Slots:
        rows, storage = self.rows[name], self.storages[name]
        slots: Slots = batch.column(SLOT).to_numpy()
        if ALIVE not in batch.schema.names:
            rows.put_values(slots, new_values(rows, storage, batch), epoch)
        else:
            alive = batch.column(ALIVE).to_numpy(zero_copy_only=False)
            rows.patch(slots, alive, storage.from_files(batch, rows.table.schema), epoch)
        return slots

    def advance(
        self,
        origin: Origin | None,
        inlets: Mapping[str, Inlet],
        changed: Mapping[str, Slots],
        gathered: Mapping[str, tuple[PlainBatch, ...]] | None = None,
    ) -> None:
        """Go to the next epoch, whose rows are already changed; `gathered` is a copy of them."""
        self.epoch += 1
        if origin is not None:
            self.origins[origin[0]] = (origin[1], self.epoch)
        if inlets:
            self.inlets = moved(self.inlets, inlets)
        for name, slots in changed.items():
            self.rows[name].note_changed(slots)
        self.replica.note(self.epoch, changed, gathered or {})
        self._compact_pool()

    def keep_results(self, batch: Any) -> None:
        """Keep the results of this epoch, where no log does, and forget the oldest."""
        self.results.append((self.epoch, batch))
        self._results_rows += batch.num_rows
        while len(self.results) > 1 and self._results_rows > RESULTS_KEPT_ROWS:
            self._results_rows -= self.results.popleft()[1].num_rows

    def _compact_pool(self) -> None:
        self.pool.settle()
        if self.pool.count > 2 * self._pool_used + POOL_SLACK:
            self.pool.compact([codes for rows in self.rows.values() for codes in rows.text_codes()])
            self._pool_used = self.pool.count

    def note_loaded(self, recorded: Mapping[str, int] | None) -> None:
        """Take what the manifest has of loads, after recovery.

        It is written before the load's own epoch, so an epoch that never came says: not loaded.
        A store of before that was noted has loaded every table that it has rows of.
        """
        if recorded is None:
            used = [name for name, rows in self.rows.items() if rows.count]
            recorded = {self.storages[name].name: 0 for name in used}
        self.loaded = {name: epoch for name, epoch in recorded.items() if epoch <= self.epoch}

    def is_loaded(self, name: str) -> bool:
        """Whether a table was loaded, now or before."""
        return self.storages[name].name in self.loaded

    def has_applied(self, origin: Origin) -> bool:
        """Whether this micro-batch, or a later one of its query, was committed before."""
        seen = self.origins.get(origin[0])
        return seen is not None and origin[1] <= seen[0]

    def gathered(
        self, changed: Mapping[str, Slots], written: Written = ALL_COLUMNS
    ) -> dict[str, tuple[PlainBatch, ...]]:
        """What a batch changed, as the replica takes it; of the tables not named all columns."""
        return {
            name: self._changes[name].gathered(slots, written.get(name))
            for name, slots in changed.items()
        }

    def filed(self, gathered: Mapping[str, tuple[PlainBatch, ...]]) -> dict[str, Changes]:
        """The same as the log takes it, by the names that the files have."""
        return {
            self.storages[name].name: self._changes[name].filed(pieces)
            for name, pieces in gathered.items()
        }

    def counts(self) -> dict[str, int]:
        """How many rows each table has, here and in shards."""
        placed = self.parts.counts()
        return {name: len(rows) + placed.get(name, 0) for name, rows in self.rows.items()}

    def image(self, name: str, slots: range, words: Words) -> dict[str, pa.Array]:
        """Copy the rows in these slots as they are; columns of texts come beside, as texts: their
        codes in the rows are those of this pool."""
        rows = self.rows[name]
        # Not by NumPy, which gives the interpreter up meanwhile: beside busy readers the stream
        # would wait for this thread until it has it back.
        bytes_of(words)[:] = bytes_of(rows.words[slots.start : slots.stop])
        alive = words[:, 0] & HEADER_ALIVE
        # A dead row's texts may be forgotten already.
        return {
            field.name: self.pool.texts(words[:, field.offset // WORD_BYTES] * alive)
            for field in rows.layout.fields
            if field.type.kind == "string"
        }

    def used_slots(self) -> dict[str, int]:
        """One more than the highest slot ever used, of each table that has any, as in the log."""
        storages = self.storages
        used = {storages[name].name: rows.count for name, rows in self.rows.items() if rows.count}
        return {**used, CALLS: self.calls.count} if self.calls.count else used

    def images(self) -> dict[str, Iterator[pa.RecordBatch]]:
        """All live rows with their slots, for a snapshot."""
        storages = self.storages
        images = {storages[name].name: _image(rows, storages) for name, rows in self.rows.items()}
        images.update({stored: iter(()) for stored in self._dropped})
        return {**images, CALLS: self.calls.image()} if self.calls.count else images


def rows_of(tables: Mapping[str, Table], pool: StringPool) -> dict[str, TableRows]:
    """Rows for each table; those of versions have no index."""
    kept = [versions_of(table) for table in tables.values()]
    names = {one.name for one in kept if one is not None}
    return {
        name: VersionRows(table, pool) if name in names else TableRows(table, pool)
        for name, table in tables.items()
    }


def _image(rows: TableRows, storages: Storages) -> Iterator[pa.RecordBatch]:
    storage = storages[rows.table.name]
    for first in range(0, max(rows.count, 1), SNAPSHOT_CHUNK_ROWS):
        last = min(first + SNAPSHOT_CHUNK_ROWS, rows.count)
        alive = first + np.flatnonzero(rows.words[first:last, 0] & HEADER_ALIVE)
        arrays = [pa.array(alive), *rows.arrow(alive).columns]
        names = [SLOT, *map(storage.column, rows.table.schema.names)]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def new_values(rows: TableRows, storage: Storage, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of a batch that the table has now, in their declared types."""
    given, found = set(batch.schema.names), {}
    for column in rows.table.schema:
        stored = storage.column(column.name)
        if stored in given:
            array = batch.column(stored)
            if array.null_count or array.type != column.type.arrow:
                array = storage.from_files(batch, [column]).column(column.name)
            found[column.name] = array
    return found


class RowsPlace:
    """The rows of one table while recovery fills them."""

    def __init__(self, rows: TableRows, storage: Storage) -> None:
        self._rows = rows
        self._storage = storage
        kinds = [column.type.kind for column in rows.table.schema]
        # Texts go through the pool, which takes one thread at a time; tables come one by one.
        self._guard = threading.Lock() if "string" in kinds else contextlib.nullcontext()

    def reserve(self, slots: int) -> None:
        self._rows.begin_restoring(slots)

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        given = self._storage.from_files(batch, self._rows.table.schema)
        slots = batch.column(SLOT).to_numpy()
        with self._guard:
            self._rows.put(slots, given, epoch)

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        if ALIVE not in batch.schema.names:
            slots = batch.column(SLOT).to_numpy()
            values = new_values(self._rows, self._storage, batch)
            self._rows.put_values(slots, values, epochs)
            return
        alive = batch.column(ALIVE).to_numpy(zero_copy_only=False)
        slots = batch.column(SLOT).to_numpy()
        given = self._storage.from_files(batch, self._rows.table.schema)
        self._rows.put_changes(slots, alive, given, epochs)


class Restoring:
    """Places for the rows of an engine's tables."""

    def __init__(self, rows: Mapping[str, TableRows], storages: Storages) -> None:
        self._rows = rows
        self._storages = storages
        self._begun: list[TableRows] = []

    def begin(self) -> None:
        for rows in self._begun:
            rows.begin_restoring(0)

    def place(self, table: str) -> RowsPlace | Forgotten | None:
        name = self._storages.declared(table)
        if name is None:
            return Forgotten()  # it was dropped
        rows = self._rows.get(name)
        if rows is None:
            # Of rows that are in shards the log has only slots, of before they were.
            return None if name.startswith("__") else Forgotten()
        self._begun.append(rows)
        return RowsPlace(rows, self._storages[name])

    def end(self) -> None:
        """Give every table that was restored its index."""
        for rows in {id(rows): rows for rows in self._begun}.values():
            rows.end_restoring()
        make_indexes(self._begun)
        self._begun.clear()


# --- changes: what a batch did to the rows of a table ---------------------------------------------
# As the log and the replica take it: rows that were there before and are there still are gathered
# by slot with the columns that may have been written, without their keys; new rows whole; of those
# that are gone only the slots. Invariant: what is gathered is a copy, so that the next batch may
# run while it is written and read. A row that came with the batch is never taken for one that was
# there; the other way round only costs bytes.

Nulls = list[np.ndarray | None] | None  # by column: where it has no value
_GONE = np.zeros(1, np.uint8)
_THERE = np.ones(1, np.uint8)


class Gatherer:
    """Gathers some columns of one table's rows; made once, used for every batch."""

    def __init__(self, rows: TableRows, fields: Sequence[Field], begin: Sequence[str]) -> None:
        self._rows = rows
        self._fields = fields
        found = {field.offset // WORD_BYTES for field in fields}
        words = sorted(found | {field.null_word for field in fields if field.nullable})
        self._places = np.array(words, np.int64)
        self._lines = [words.index(field.offset // WORD_BYTES) for field in fields]
        self._null_lines = [words.index(f.null_word) if f.nullable else -1 for f in fields]
        self._begin = [(name, {SLOT: pa.int64(), ALIVE: pa.bool_()}[name]) for name in begin]
        self.shape = self._shape([field.name for field in fields])

    def _shape(self, names: Sequence[str]) -> BatchShape:
        kinds = zip(names, (field.type.arrow for field in self._fields), strict=True)
        found = BatchShape.of(pa.schema([*self._begin, *kinds]))
        if found is None:
            raise InvariantError(f"columns of table {self._rows.table.name!r} have no shape")
        return found

    def named(self, storage: Storage) -> BatchShape:
        """The same columns by their names in the files."""
        return self._shape([storage.column(field.name) for field in self._fields])

    def gather(self, slots: Slots) -> tuple[int, np.ndarray, list[np.ndarray | Texts], Nulls]:
        """How many of these rows are alive, their slots in 32 bits, their columns and nulls."""
        narrow = np.empty(len(slots), np.uint32)
        lines = np.empty((len(self._places), len(slots)), np.int64)
        words = self._rows.words
        alive = index.gather_words(words, slots, self._places, narrow, lines)
        columns = zip(self._fields, self._lines, strict=True)
        found = [self._column(field, lines[line]) for field, line in columns]
        return alive, narrow, found, self._nulls(lines)

    def _nulls(self, lines: np.ndarray) -> Nulls:
        """By column of a batch: where it has no value; None where no column is nullable."""
        if max(self._null_lines, default=-1) < 0:
            return None
        pairs = zip(self._fields, self._null_lines, strict=True)
        nulls = [field.nulls_in(lines[line]) if line >= 0 else None for field, line in pairs]
        return [None] * len(self._begin) + nulls

    def _column(self, field: Field, words: np.ndarray) -> np.ndarray | Texts:
        values = field_values(field, words)
        return self.texts(values) if field.type.kind == "string" else values

    def texts(self, codes: np.ndarray) -> Texts:
        return Texts(*texts_of(self._rows.pool.texts(codes)))


class ChangedRows:
    """What batches do to one table, and under which names the files have it."""

    def __init__(self, rows: TableRows, storage: Storage) -> None:
        self._rows = rows
        self._storage = storage
        self._updates: dict[tuple[str, ...] | None, Gatherer] = {}
        self._created = Gatherer(rows, rows.layout.fields, (SLOT, ALIVE))
        self._gone = Gatherer(rows, (), (SLOT, ALIVE))
        self._filed: dict[bytes, BatchShape] = {}  # by the description of the declared one
        for one in (self._created, self._gone):
            self._note(one)

    def gathered(self, slots: Slots, written: tuple[str, ...] | None) -> tuple[PlainBatch, ...]:
        """The rows in these slots, each of which changed, as of now."""
        created, self._rows.created = self._rows.created, []
        if not created:
            alive, narrow, columns, nulls = self._update(written).gather(slots)
            if alive == len(slots):
                shape = self._update(written).shape
                return (PlainBatch(shape, alive, [narrow, *columns], nulls),)
        return self._sorted_out(slots, np.concatenate([*created, slots[:0]]), written)

    def _update(self, written: tuple[str, ...] | None) -> Gatherer:
        found = self._updates.get(written)
        if found is None:
            fields = [
                field
                for field in self._rows.layout.fields
                if not field.is_key and (written is None or field.name in written)
            ]
            found = self._updates[written] = Gatherer(self._rows, fields, (SLOT,))
            self._note(found)
        return found

    def _sorted_out(
        self, slots: Slots, created: Slots, written: tuple[str, ...] | None
    ) -> tuple[PlainBatch, ...]:
        alive = (self._rows.words[slots, 0] & HEADER_ALIVE) != 0
        is_new = np.isin(slots, created)
        found = []
        for gatherer, mine, flag in (
            (self._gone, slots[~alive], _GONE),
            (self._created, slots[alive & is_new], _THERE),
            (self._update(written), slots[alive & ~is_new], None),
        ):
            if len(mine):
                _, narrow, columns, nulls = gatherer.gather(mine)
                begin = [narrow] if flag is None else [narrow, flag]
                found.append(PlainBatch(gatherer.shape, len(mine), [*begin, *columns], nulls))
        return tuple(found)

    def _note(self, gatherer: Gatherer) -> None:
        self._filed[gatherer.shape.description] = gatherer.named(self._storage)

    def filed(self, pieces: Sequence[PlainBatch]) -> tuple[PlainBatch, ...]:
        """The same with the names that the files have."""
        if self._storage.is_plain:
            return tuple(pieces)
        return tuple(replace(piece, shape=self._filed[piece.shape.description]) for piece in pieces)
