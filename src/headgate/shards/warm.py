"""Warm shards: the rows of a shard in the memory of a process that had them, or in its file.

They are a copy, and never the only one: the store's parts are what counts. A copy is known by the
digests of its parts of rows, and brought forward by the changes that the log has named since. When
it is not there, or its digest is none that the shard ever had, since it holds what was never
committed, it is mapped from the executor's file, or else made from the store. A
batch runs in the copy itself; until the log has named what it did, the copy is tentative, and who
finds it unnamed later throws it away.

Invariant: rows that a batch is given are exactly those of the epoch before it.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headgate.durability.lineage import Lineage
from headgate.durability.named_parts import NOTHING, Link, PartHistory
from headgate.durability.part_file import PartContent, PartName, read_part
from headgate.engine.memory import POOL_SLACK, rows_of
from headgate.execution.program import Program
from headgate.io import Disk
from headgate.isolation.levels import Executor
from headgate.state.columns import to_stored
from headgate.state.layout import HEADER_ALIVE
from headgate.state.row_history import ENDING, NUMBER
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots, Words
from headgate.state.stored_names import Storage
from headgate.state.strings import StringPool
from headgate.state.table import Table
from headgate.state.version_rows import Trail, VersionRows, trail_of
from headgate.transactions import Transaction

ROWS = "rows"
GONE = "gone"
AT_ONCE_MIN = 1 << 14  # rows of an empty table: their index is made when all of them are there


class Tentative(NamedTuple):
    """What ran in a copy and is committed only if the log names it."""

    file: str
    parts: frozenset[int]  # the parts of rows that it changed


class ShardRows:
    """The rows of a shard, or of none, in this process, and who runs transactions over them."""

    def __init__(self, tables: Mapping[str, Table], transactions: Iterable[Transaction]) -> None:
        self.pool = StringPool()
        self.tables = rows_of(tables, self.pool)
        self.executors: dict[tuple[bool, tuple[str, ...]], Executor] = {}
        self.digests: dict[int, int] = {}  # by part of rows
        self.tentative: Tentative | None = None
        self.behind = 0  # bytes of changes that the executor's file does not have
        self._mapped: dict[str, tuple[Words, np.ndarray]] = {}  # of a file, by table
        self._touched = 0  # rows that changed since: each may have made a page of it our own
        self._pool_used = 0
        for transaction in transactions:
            # Literals take their codes before any text from the store can take them.
            self.made((transaction,), updates=False)

    def note_mapped(self) -> None:
        """The rows are those of a file now, whose pages are our own only where they change."""
        self._mapped = {name: (rows.words, rows.entries) for name, rows in self.tables.items()}
        self._touched = 0

    def note_touched(self, count: int) -> None:
        """So many rows have changed."""
        self._touched += count

    def own_bytes(self) -> int:
        """About how many bytes of memory are this process's alone, and no pages of a file."""
        own = mapped = 0
        for name, rows in self.tables.items():
            for array, of_file in zip(
                (rows.words, rows.entries), self._mapped.get(name, (None, None)), strict=True
            ):
                if array is of_file:
                    mapped += array.nbytes
                else:
                    own += array.nbytes
        return own + min(mapped, self._touched * mmap.PAGESIZE)

    def executor(self, transactions: Sequence[Transaction], *, updates: bool) -> Executor:
        """Who runs a set of transactions over these rows, made and compiled once."""
        found = self.made(transactions, updates=updates)
        found.program.compile()
        return found

    def made(self, transactions: Sequence[Transaction], *, updates: bool) -> Executor:
        """The same, perhaps not compiled yet."""
        key = (updates, tuple(one.name for one in transactions))
        found = self.executors.get(key)
        if found is None:
            signatures = [one.signature for one in transactions]
            found = Executor(Program(signatures, self.tables, self.pool, updates))
            self.executors[key] = found
        return found

    def put(self, name: str, given: pa.Table, epoch: int) -> None:
        """Let these rows be as given, those that are there and those that are not."""
        rows = self._reachable(name)
        given = Storage(name).from_files(given, rows.table.schema)  # older ones lack new columns
        if not rows.count and given.num_rows >= AT_ONCE_MIN:
            slots = self._put_first(rows, given, epoch)
            rows.note_changed(slots)
            return
        slots = rows.find_or_take(self._keys(rows, given), np.zeros(given.num_rows, np.uint8))
        rows.taken, before = [], rows.refills  # they are alive in a moment
        rows.put_changes(slots, np.ones(len(slots), np.bool_), given, epoch)
        rows.created = []
        for one in rows.ordered.values():
            one.follow(slots, before)
        for one in rows.watchers:
            one.note(slots)

    def _put_first(self, rows: TableRows, given: pa.Table, epoch: int) -> Slots:
        """Have the first rows of a table, in which each key is once, and their index at once."""
        slots: Slots = np.arange(given.num_rows)
        rows.begin_restoring(len(slots))
        rows.put(slots, given, epoch)
        rows.end_restoring()
        return slots

    def remove(self, name: str, keys: pa.Table) -> None:
        """Let the rows of these keys be gone, where there are any."""
        slots = self.there(name, keys)
        rows = self.tables[name]
        rows.words[slots, 0] &= ~np.int64(HEADER_ALIVE)
        rows.release(slots)
        rows.created, before = [], rows.refills
        rows.refills += 1
        for one in rows.ordered.values():
            one.follow(slots, before)
        for one in rows.watchers:
            one.note(slots)

    def put_and_remove(self, name: str, told: Mapping[str, pa.Table], epoch: int) -> None:
        """What is told of a table: rows as they are now, and keys of those that are gone."""
        if ROWS in told:
            self.put(name, told[ROWS], epoch)
        if GONE in told:
            self.remove(name, told[GONE])

    def put_with_versions(
        self, name: str, told: Mapping[str, pa.Table], versions: Mapping[str, pa.Table], epoch: int
    ) -> None:
        """The same of a table with history, and of its versions.

        Few are put into the trails that there are; else those are made anew when they are needed.
        """
        trail, more = self.tables[name].kept.get(Trail), versions.get(ROWS)
        count = 0 if more is None else more.num_rows
        if trail is None or not trail.can_follow(count):
            self.put_and_remove(name, told, epoch)
            self.put_and_remove(name + ENDING, versions, epoch)
            return
        trail.begin(count)
        if GONE in told:
            trail.end(self.there(name, told[GONE]), epoch)
        self.put_and_remove(name, told, epoch)
        if GONE in versions:
            trail.drop(*self._numbered(name, versions[GONE]), epoch)
        if more is not None:
            schema = trail.versions.table.schema
            given = Storage(name + ENDING).from_files(more, schema)
            trail.add(*self._numbered(name, given), given, epoch)
        trail.settle()

    def _numbered(self, name: str, versions: pa.Table) -> tuple[Slots, np.ndarray]:
        """The slot of each version's row, and its number."""
        return self.find(name, versions), versions.column(NUMBER).to_numpy()

    def there(self, name: str, keys: pa.Table) -> Slots:
        """The slots of the rows of these keys, of those that there are."""
        slots = self.find(name, keys)
        return slots[slots >= 0]

    def find(self, name: str, keys: pa.Table) -> Slots:
        """The slot of each key, -1 where there is no such row."""
        rows = self._reachable(name)
        return rows.find(self._keys(rows, keys), np.zeros(keys.num_rows, np.uint8))

    def _reachable(self, name: str) -> TableRows:
        """The rows of a table, which can be found by their keys: versions, too."""
        rows = self.tables[name]
        if isinstance(rows, VersionRows):
            rows.index_now()
        return rows

    def versions(self, name: str, slots: Slots) -> tuple[str, Slots]:
        """The table of the versions of these rows, of one that keeps them, and their slots."""
        trail = trail_of(self.tables, self.tables[name].table).ready()
        return trail.versions.table.name, trail.of_rows(slots)

    def _keys(self, rows: TableRows, given: pa.Table) -> np.ndarray:
        where = f"table {rows.table.name!r}"
        columns = [
            to_stored(given.column(one.name), one.type, self.pool, where).values
            for one in rows.table.key_columns
        ]
        return rows.key_words(columns)

    def clear(self) -> None:
        """Have no rows."""
        for rows in self.tables.values():
            if rows.count:
                rows.begin_restoring(0)
                rows.end_restoring()
                rows.created, rows.taken = [], []
                rows.ordered.clear()
                rows.kept.clear()
                rows.watchers.clear()  # they have what is no more
        self.digests, self.tentative = {}, None
        self._mapped.clear()

    def settle(self) -> None:
        """After a batch: forget texts that no row has, when they are many."""
        self.pool.settle()
        if self.pool.count > 2 * self._pool_used + POOL_SLACK:
            used = [codes for rows in self.tables.values() for codes in rows.text_codes()]
            self.pool.compact(used)
            self._pool_used = self.pool.count


@dataclass
class Brought:
    """What it took to bring a shard to the epoch before a batch."""

    how: str = "warm"  # or "brought forward", "mapped", "new", "rebuilt"
    bytes: int = 0
    parts: int = 0


@dataclass
class Source:
    """Where the parts of a store are read from."""

    disk: Disk
    path: str
    lineage: Lineage

    def read(self, name: PartName) -> PartContent:
        return read_part(self.disk, self.path, self.lineage, name)


def bring(
    rows: ShardRows,
    source: Source,
    histories: Mapping[int, PartHistory],
    restore: Callable[[ShardRows], bool] | None = None,
) -> Brought:
    """Let the rows be those of these histories, one for each part of rows.

    When nothing leads there from the rows that are here, `restore` may put others in their place.
    """
    ways, brought = _ways(rows, histories), Brought()
    if ways is None and restore is not None and restore(rows):
        ways, brought.how = _ways(rows, histories), "mapped"
    if ways is None:
        rows.clear()
        is_new = all(one.digest == NOTHING for one in histories.values())
        brought.how = "new" if is_new else "rebuilt"
        ways = {part: _whole(history) for part, history in histories.items()}
    for part, links in ways.items():
        for link in links:
            for name in link.parts:
                if rows.tentative is None or name.file != rows.tentative.file:
                    brought.bytes += _apply(rows, source.read(name), part, link.epoch)
                    brought.parts += 1
        rows.digests[part] = histories[part].digest
    if brought.parts and brought.how == "warm":
        brought.how = "brought forward"
    rows.tentative, rows.behind = None, rows.behind + brought.bytes
    for table in rows.tables.values():
        table.created = []  # a batch that makes no row leaves those of the one before
    rows.settle()
    return brought


def _ways(
    rows: ShardRows, histories: Mapping[int, PartHistory]
) -> dict[int, Sequence[Link]] | None:
    """What leads to each of the histories; None when of one of them nothing does."""
    found = {part: _way(rows, part, history) for part, history in histories.items()}
    ways = {part: way for part, way in found.items() if way is not None}
    return ways if len(ways) == len(found) else None


def _way(rows: ShardRows, part: int, history: PartHistory) -> Sequence[Link] | None:
    """What leads from the rows that are here to those of the history; None when nothing does."""
    here = rows.digests.get(part)
    known = [NOTHING if history.image is None else history.image.digest]
    known += [link.digest for link in history.links]
    if here not in known:
        return None
    links = history.links[known.index(here) :]
    ran = rows.tentative
    if ran is not None and part in ran.parts and not _names(links[:1], ran.file):
        return None  # it was not committed: what is here never was
    return links


def _names(links: Sequence[Link], file: str) -> bool:
    return any(name.file == file for link in links for name in link.parts)


def _whole(history: PartHistory) -> Sequence[Link]:
    """All that a shard came to its rows by."""
    return (*(() if history.image is None else (history.image,)), *history.links)


def _apply(rows: ShardRows, part: PartContent, number: int, epoch: int) -> int:
    """Put what a part says of one part of rows into their place; how many bytes that were."""
    told: dict[str, dict[str, pa.Table]] = {name: {} for name in rows.tables}
    for name, table in part.tables.items():
        kind, _, rest = name.partition("/")
        of, _, table_name = rest.partition("/")
        if kind in (ROWS, GONE) and int(of) == number and table_name in told:
            told[table_name][kind] = table
    applied: int = sum(table.nbytes for found in told.values() for table in found.values())
    rows.note_touched(sum(table.num_rows for found in told.values() for table in found.values()))
    for name, found in told.items():
        history = rows.tables[name].table.history
        versions = {} if history is None else told.get(name + ENDING, {})
        if history is not None and (found or versions):
            rows.put_with_versions(name, found, versions, epoch)
        elif not isinstance(rows.tables[name], VersionRows):
            rows.put_and_remove(name, found, epoch)
    return applied


# --- the shards that a process holds --------------------------------------------------------------

# Of one process, beyond what its last shard takes. Who comes later is rebuilt when it comes again.
HELD_BYTES_MAX = 960 << 20  # with what a worker is without them it stays below a gibibyte

Held = tuple[int, int, str, int]  # store, lineage, the code's mark, shard


class HeldShards:
    """Copies of shards that stay in a process from one batch to the next."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[Held, ShardRows] = OrderedDict()

    def take(self, key: Held) -> ShardRows | None:
        """The copy of a shard, out of the hands of all others; it is kept again by `keep` only, so
        that one in which something failed is forgotten."""
        return self._held.pop(key, None)

    def keep(self, key: Held, rows: ShardRows) -> list[ShardRows]:
        """Keep a copy, and let go of those not used for longest, when they are too many."""
        self._held[key], let_go = rows, []
        total = sum(size_of(one) for one in self._held.values())
        while total > self._bytes_max and len(self._held) > 1:
            let_go.append(self._held.popitem(last=False)[1])
            total -= size_of(let_go[-1])
        return let_go

    def held(self) -> Mapping[Held, ShardRows]:
        """All copies that are kept now."""
        return self._held

    def forget(self) -> None:
        """Hold nothing."""
        self._held.clear()


def size_of(rows: ShardRows) -> int:
    """About how many bytes of memory a copy takes, with what it maps."""
    return sum(one.words.nbytes + one.entries.nbytes for one in rows.tables.values())
