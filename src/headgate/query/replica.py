"""The replica: a second copy of the rows, for queries: one whole, durable epoch at any time.

The stream never waits for a reader. A commit only hands over what it changed (`note`), and says
when that is durable (`publish`); readers bring the copy forward, one at a time, under a lock of
their own. Tables that nobody reads are not copied, and keys that nobody asks for are not indexed:
the first point read of a table makes its index, and what comes later keeps it.

A copy's `mark` is an object that is new for each of its states, and None while it is behind or
being changed. Who finds the same mark after reading as before has read one whole epoch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT
from headgate.durability.plain_batches import PlainBatch, Texts
from headgate.query import mirror
from headgate.state.columns import to_stored
from headgate.state.compiled import numba
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT, WORD_BYTES
from headgate.state.rows import TableRows, bytes_of, put_nulls
from headgate.state.spaces import Slots, Words
from headgate.state.strings import StringPool
from headgate.state.table import Table

PENDING_ROWS_MAX = 1 << 20  # handed over and read by nobody: then the tables are followed no more
PENDING_EPOCHS_MIN = 64
POOL_SLACK = 1 << 18  # texts that the copies' pool may hold for nothing


class Origin(Protocol):
    """The rows that are copied; all of it is called under the engine's lock."""

    @property
    def epoch(self) -> int: ...

    @property
    def rows(self) -> Mapping[str, TableRows]: ...

    def image(self, name: str, slots: range, words: Words, /) -> Mapping[str, pa.Array]: ...

    def gathered(self, changed: Mapping[str, Slots], /) -> Mapping[str, tuple[PlainBatch, ...]]: ...


class StreamSide(Protocol):
    """What a reader needs of the engine once in a while: to hold it, and to wait for its disk."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def wait(self, epoch: int, /) -> None: ...


class Handed(NamedTuple):
    """What one epoch changed in the tables that are followed."""

    epoch: int
    tables: Mapping[str, tuple[PlainBatch, ...]]


class Copy:
    """One table's rows as of the replica's epoch."""

    def __init__(self, table: Table, pool: StringPool) -> None:
        self.table = table
        self.empty(pool)

    def empty(self, pool: StringPool) -> None:
        """Hold no rows, as at the beginning."""
        self.mark: object | None = None
        self.rows = TableRows(self.table, pool, is_indexed=False)
        self.mirror = mirror.Mirror(self.rows)
        self.view = bytes_of(self.rows.words)
        self.chunk_count = 0  # chunks that were ever copied
        self.stale: set[int] = set()  # those of them that changed unseen since

    def miss(self, slots: Slots) -> None:
        """Remember that these slots changed, for nobody follows the table."""
        known = self.chunk_count
        if len(self.stale) < known:
            marks = np.zeros(known + 1, np.bool_)
            marks[np.minimum(slots // mirror.CHUNK_SLOTS, known)] = True
            self.stale.update(np.flatnonzero(marks[:known]).tolist())

    def take_stale(self, count: int) -> list[int]:
        """The chunks to copy, of a table that has so many slots; under the engine's lock."""
        chunk_count = -(-count // mirror.CHUNK_SLOTS)
        found = [*sorted(self.stale), *range(self.chunk_count, chunk_count)]
        self.stale.clear()
        self.chunk_count = chunk_count
        return found

    def reserve(self, count: int) -> None:
        """Have that many slots; those that are new are dead."""
        rows = self.rows
        rows.reserve(max(0, count - rows.count))
        rows.count = max(rows.count, count)
        self.view = bytes_of(rows.words)

    def slots_of(self, chunk: int) -> range:
        first = chunk * mirror.CHUNK_SLOTS
        return range(first, min(first + mirror.CHUNK_SLOTS, self.rows.count))

    def place_of(self, slots: range) -> Words:
        """Where to copy rows to: at once into their place, but where an index has their keys."""
        rows = self.rows
        if rows.is_indexed:
            return np.empty((len(slots), rows.layout.words), np.int64)
        return rows.words[slots.start : slots.stop]

    def take(self, slots: range, words: Words, texts: Mapping[str, pa.Array]) -> None:
        """Have these rows, which were copied to that place, with their texts."""
        for name, found in texts.items():
            place = self.rows.layout.field(name).offset // WORD_BYTES
            words[:, place] = self.rows.pool.intern(found)
        if self.rows.is_indexed:
            self.rows.exchange(slots.start, words)
        self.rows.note_changed(np.arange(slots.start, slots.stop))
        self.mirror.note_chunk(slots.start // mirror.CHUNK_SLOTS)

    def apply(self, pieces: Iterable[PlainBatch], epoch: int) -> None:
        """Apply what an epoch changed."""
        for piece in pieces:
            names, slots = piece.shape.schema.names, np.asarray(piece.columns[0]).astype(np.int64)
            if names == [SLOT, ALIVE]:
                self.rows.remove(slots)
            elif ALIVE in names:
                self.put(piece.arrow(), epoch)
            else:
                update(self.rows, slots, piece, epoch)
            self.rows.note_changed(slots)
            self.mirror.note(slots)

    def put(self, changes: pa.RecordBatch, epoch: int) -> None:
        """Put whole rows in their place, or nothing where one is not alive."""
        if changes.num_rows == 0:
            return
        slots, alive = numbers_of(changes.column(SLOT)), flags_of(changes.column(ALIVE))
        if not overwrite(self.rows, slots, alive, changes, epoch):
            self.rows.replace(slots, alive, changes, epoch)
        self.mirror.note(slots)
        self.view = bytes_of(self.rows.words)


class Replica:
    """The copies of all tables that are read; `lock` is the readers' own."""

    def __init__(self, origin: Origin, tables: Mapping[str, Table]) -> None:
        self._origin = origin
        self.lock = threading.RLock()
        self.epoch = 0
        self.published = 0
        self.is_busy = False  # the stream runs a batch: readers let it have the interpreter
        self.followed: frozenset[str] = frozenset()  # changes under the engine's lock
        self._publishing = threading.Lock()
        self._pending: deque[Handed] = deque()
        self._handed_rows = 0  # counted by the stream
        self._taken_rows = 0  # counted by readers
        self.pool = StringPool()
        self._pool_used = 0
        self.texts: dict[int, str] = {}  # of codes that point reads met
        self.copies = {name: Copy(table, self.pool) for name, table in tables.items()}

    # --- the stream's side, under the engine's lock -------------------------------------------

    def note(
        self,
        epoch: int,
        changed: Mapping[str, Slots],
        gathered: Mapping[str, tuple[PlainBatch, ...]],
    ) -> None:
        """Hand over what an epoch changed; `gathered` has it, where it was needed before."""
        handed = {}
        for name, slots in changed.items():
            if name not in self.followed:
                self.copies[name].miss(slots)
            else:
                found = gathered.get(name)
                handed[name] = (
                    self._origin.gathered({name: slots})[name] if found is None else found
                )
                self._handed_rows += len(slots)
        if handed:
            self._pending.append(Handed(epoch, handed))
            if (
                self._handed_rows - self._taken_rows > PENDING_ROWS_MAX
                and len(self._pending) > PENDING_EPOCHS_MIN
            ):
                self._let_go()

    def _let_go(self) -> None:
        """Nobody reads: follow no table, and remember only where they changed."""
        self.followed = frozenset()
        for copy in self.copies.values():
            copy.mark = None
        while self._pending:
            try:
                handed = self._pending.popleft()
            except IndexError:  # a reader was faster
                break
            for name, pieces in handed.tables.items():
                for piece in pieces:
                    self.copies[name].miss(np.asarray(piece.columns[0]))
                    self._handed_rows -= piece.num_rows

    def publish(self, epoch: int) -> None:
        """Epochs up to this one are durable: let readers see them. Any thread may say so."""
        with self._publishing:
            if epoch > self.published:
                self.published = epoch
                for copy in self.copies.values():
                    copy.mark = None

    def hide(self) -> None:
        """Nothing is to be read any more without asking."""
        for copy in self.copies.values():
            copy.mark = None

    def leave(self) -> None:
        """This is a forked child, where another thread may have held the lock: take a new one."""
        self.lock = threading.RLock()
        self.hide()

    # --- the readers' side, under `lock` ------------------------------------------------------

    def refresh(self, names: Iterable[str], stream: StreamSide) -> None:
        """Bring the copies to the newest durable epoch, and these tables among them."""
        wanted = frozenset(names)
        try:
            while True:
                if not wanted <= self.followed:
                    self._follow(wanted - self.followed, stream)
                self._catch_up()
                if wanted <= self.followed:
                    return
        except BaseException:
            self.forget(stream)
            raise

    def _catch_up(self) -> None:
        target, followed = self.published, self.followed
        if target > self.epoch:
            for name in followed:
                self.copies[name].mark = None
            while (handed := self._next(target)) is not None:
                for name, pieces in handed.tables.items():
                    self.copies[name].apply(pieces, handed.epoch)
                    self._taken_rows += sum(piece.num_rows for piece in pieces)
            self._compact_pool()
            self.epoch = target
        mark = object()
        for name in followed:
            if self.copies[name].mark is None:
                self.copies[name].mark = mark
        # The stream clears the marks after it moved on: whoever came last, they are clear now.
        if self.published > target or self.followed != followed:
            for copy in self.copies.values():
                copy.mark = None

    def _next(self, target: int) -> Handed | None:
        try:
            if self._pending[0].epoch > target:
                return None
            return self._pending.popleft()
        except IndexError:
            return None

    def _follow(self, names: frozenset[str], stream: StreamSide) -> None:
        """Copy tables chunk by chunk, so that the stream goes on in between.

        A chunk may be newer than the one before it. From the first one on every commit hands over
        its changes, and all of them are applied after the last: then the table is of one epoch.
        """
        with stream.lock:
            counts = {name: self._origin.rows[name].count for name in names}
            chunks = {name: self.copies[name].take_stale(count) for name, count in counts.items()}
            self.followed |= names
        for name, numbers in chunks.items():
            copy = self.copies[name]
            copy.reserve(counts[name])
            for slots in map(copy.slots_of, numbers):
                words = copy.place_of(slots)
                with stream.lock:
                    texts = self._origin.image(name, slots, words)
                copy.take(slots, words, texts)
        with stream.lock:
            epoch = self._origin.epoch
        stream.wait(epoch)

    def forget(self, stream: StreamSide) -> None:
        """Begin anew, as if nothing had ever been read; so after a copy was left half done."""
        with stream.lock:
            self.followed = frozenset()
            self._pending.clear()
            self._handed_rows = self._taken_rows = 0
            self.pool, self._pool_used = StringPool(), 0
            self.texts.clear()
            for copy in self.copies.values():
                copy.empty(self.pool)

    def _compact_pool(self) -> None:
        if self.pool.count > 2 * self._pool_used + POOL_SLACK:
            used = [codes for copy in self.copies.values() for codes in copy.rows.text_codes()]
            self.pool.compact(used)
            self.texts.clear()
            self._pool_used = self.pool.count

    def tables(self, names: Iterable[str]) -> dict[str, pa.Table]:
        """The tables of this epoch as Arrow; they do not change under whoever holds them."""
        return {name: self.copies[name].mirror.table() for name in names}


# --- changed rows put over their old versions -----------------------------------------------------


# These kernels keep the interpreter's lock on purpose: they are short, and a thread that gives it
# up beside busy readers waits many times longer to have it back.


@numba.njit(cache=True)
def _read_bits(bits: np.ndarray, first: int, out: np.ndarray) -> None:
    for place in range(len(out)):
        bit = first + place
        out[place] = (bits[bit >> 3] >> (bit & 7)) & 1


@numba.njit(cache=True)
def _all_stay(words: Words, slots: Slots, alive: np.ndarray, keys: Words) -> bool:
    """Whether all these rows were and are alive, with the same keys."""
    for row in range(len(slots)):
        slot = slots[row]
        if slot >= len(words) or not alive[row] or words[slot, 0] & HEADER_ALIVE == 0:
            return False
        for part in range(len(keys)):
            if words[slot, 1 + part] != keys[part, row]:
                return False
    return True


@numba.njit(cache=True)
def _put(words: Words, slots: Slots, place: int, values: np.ndarray) -> None:
    for row in range(len(slots)):
        words[slots[row], place] = values[row]


@numba.njit(cache=True)
def _put_header(words: Words, slots: Slots, header: int) -> None:
    for row in range(len(slots)):
        words[slots[row], 0] = header


@numba.njit(cache=True)
def _note_epoch(words: Words, slots: np.ndarray, header: int) -> None:
    """Where a row is alive; one that a newer copy has not is gone by the end of what follows."""
    for row in range(len(slots)):
        if words[slots[row], 0] & HEADER_ALIVE:
            words[slots[row], 0] = header


def update(rows: TableRows, slots: Slots, piece: PlainBatch, epoch: int) -> None:
    """Put new values of some columns into rows that are there."""
    named = enumerate(zip(piece.shape.schema.names[1:], piece.columns[1:], strict=True), start=1)
    for place, (name, values) in named:
        field = rows.layout.field(name)
        if isinstance(values, Texts):
            buffers = [None, pa.py_buffer(values.offsets), pa.py_buffer(values.content)]
            texts = pa.Array.from_buffers(pa.string(), piece.num_rows, buffers)
            stored = rows.pool.intern(texts)
        else:
            stored = np.asarray(values)
        if stored.itemsize == WORD_BYTES:
            _put(rows.words, slots, field.offset // WORD_BYTES, stored.view(np.int64))
        else:
            rows.records[name][slots] = stored
        if field.nullable:
            put_nulls(rows.words, slots, field, piece.nulls_at(place))
    _note_epoch(rows.words, slots, (epoch << HEADER_EPOCH_SHIFT) | HEADER_ALIVE)


def numbers_of(column: pa.Array) -> np.ndarray:
    """The values of an int64 array without nulls."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]


def flags_of(column: pa.Array) -> np.ndarray:
    """The values of a boolean array without nulls."""
    out = np.empty(len(column), np.bool_)
    _read_bits(np.frombuffer(column.buffers()[1], np.uint8), column.offset, out)
    return out


def overwrite(
    rows: TableRows, slots: Slots, alive: np.ndarray, changes: pa.RecordBatch, epoch: int
) -> bool:
    """Put the rows in their slots if that is all there is to do: none comes, goes or has a new key.

    Else nothing is changed, and False says that the index needs mending, too.
    """
    pool, where = rows.pool, rows.table.name
    stored = {
        field.name: to_stored(changes.column(field.name), field.type, pool, where, field.nullable)
        for field in rows.layout.fields
    }
    values = {name: found.values for name, found in stored.items()}
    keys = rows.key_words([values[name] for name in rows.table.key])
    if not _all_stay(rows.words, slots, alive, keys):
        return False
    for field in rows.layout.fields:
        if field.is_key:
            continue
        if values[field.name].dtype.itemsize == WORD_BYTES:
            words = np.ascontiguousarray(values[field.name]).view(np.int64)
            _put(rows.words, slots, field.offset // WORD_BYTES, words)
        else:
            rows.records[field.name][slots] = values[field.name]
        if field.nullable:
            put_nulls(rows.words, slots, field, stored[field.name].nulls)
    _put_header(rows.words, slots, (epoch << HEADER_EPOCH_SHIFT) | HEADER_ALIVE)
    return True
