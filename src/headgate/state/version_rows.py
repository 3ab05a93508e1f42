"""Versions: the rows of a table of versions, and the trails that are made from them.

The rows are what is logged; the trails are derived, as an index is: made anew when rows came in
other than by transactions, and else kept in step by whoever commits one (trail.note_version).

Invariant between batches: each live version is in the trail of its row, at its number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headgate.errors import InvariantError
from headgate.state import trail as trails
from headgate.state.layout import HEADER_ALIVE, HEADER_RELEASED
from headgate.state.order_words import KINDS
from headgate.state.ordered import address
from headgate.state.row_history import NUMBER, TIME, RowHistory, versions_of
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots
from headgate.state.strings import StringPool
from headgate.state.table import Table

SUMMED = ("int", "bigint", "float", "double", "decimal", "timestamp", "date")
_NODES_MIN = 64
_RESERVED = 4096  # versions that nodes are had for, beyond what a batch was seen to need


class VersionRows(TableRows):
    """The versions of one table's rows; no event looks one up by its key, so there is no index.

    Where versions come from elsewhere they are told apart by their keys: `index_now` makes an index
    for that, which the next batch that changes versions lets go.
    """

    def __init__(self, table: Table, pool: StringPool) -> None:
        super().__init__(table, pool, is_indexed=False)

    def make_index(self) -> int:
        """Make none; returns how many slots are dead."""
        return int(np.count_nonzero((self.words[: self.count, 0] & HEADER_ALIVE) == 0))

    def index_now(self) -> None:
        """Have an index of the versions as they are now."""
        if not self.is_indexed:
            super().make_index()

    def set_aside(self, more: int) -> None:
        """A batch begins, which keeps no index in step."""
        if self.is_indexed:
            self.is_indexed, self.entries = False, np.zeros(1, np.int64)
        super().set_aside(more)

    def release(self, changed: Slots) -> None:
        """After a batch: versions that it dropped, or took a slot for in vain, go."""
        if self.is_indexed:
            super().release(changed)
            return
        if len(self.spare):
            self._give_back()
        for slots in (changed, *self.taken):
            dead = slots[(self.words[slots, 0] & (HEADER_ALIVE | HEADER_RELEASED)) == 0]
            self.words[dead, 0] |= HEADER_RELEASED
            self.free = np.concatenate([self.free[: self.free_count], dead])
            self.free_count += len(dead)
        self.created, self.taken = self.taken, []
        self._order_free()

    def ended(self, there: Slots, gone: Slots) -> Slots:
        """Of the versions that went, one for each key that none has which is there.

        The numbers of a row that came again begin anew: a version that went may have the key of one
        that is there, or of another one that went.
        """
        keys = self.words[np.concatenate([there, gone]), 1 : 1 + len(self.table.key)]
        _, first = np.unique(keys, axis=0, return_index=True)
        return gone[np.sort(first[first >= len(there)]) - len(there)]

    def set_aside_more(self, more: int) -> None:
        """Let that many slots more be spare, behind those that are."""
        self.reserve(more)
        fresh = np.arange(self.count, self.count + more)
        self.spare = np.concatenate([self.spare, fresh])
        self.count += more


class Trail:
    """The trails of all rows of one table, for kernels: one block of words, see state/trail.py."""

    def __init__(self, rows: TableRows, versions: VersionRows, history: RowHistory) -> None:
        self.rows, self.versions, self.history = rows, versions, history
        self.columns = summed_columns(rows.table)
        self.words = np.zeros(trails.TRAIL_WORDS, np.int64)
        self.address = address(self.words)
        self._mark: int | None = None  # the versions' `refills` when it was made
        self._heads = np.zeros((0, trails.HEAD_WORDS), np.int64)
        entry = trails.SUMS + trails.SUM_WORDS * len(self.columns)
        self._sizes = {
            trails.LEAVES: trails.FAN * trails.LEAF_ENTRY, trails.INNERS: trails.FAN * entry
        }  # fmt: skip
        self._nodes = {pool: np.zeros((0, size), np.int64) for pool, size in self._sizes.items()}
        self._changed = np.empty(0, np.int64)
        self._recipe = self._make_recipe()
        words, extent = self.words, history.extent
        words[trails.ENTRY], words[trails.COLUMNS] = entry, len(self.columns)
        words[trails.WIDTH] = versions.layout.words
        words[trails.RECIPE] = address(self._recipe)
        words[trails.LIMIT], words[trails.IS_TIMED] = extent.size, extent.is_timed
        words[trails.KEY_WORDS] = len(rows.table.key)
        words[trails.ROW_WIDTH] = rows.layout.words
        self._check_layout()

    def _make_recipe(self) -> np.ndarray:
        found = []
        for name in self.columns:
            field = self.versions.layout.field(name)
            null = (field.null_word, int(field.null_mask)) if field.nullable else (-1, 0)
            found.append((field.offset, KINDS[field.format], *null))
        return np.array(found or [(0, 0, 0, 0)], np.int64)

    def _check_layout(self) -> None:
        """Behind its key a version has the words of its row, which the kernels rely on."""
        shift = 8 * (1 + self.history.extent.is_timed)
        for field in self.rows.layout.fields:
            own = self.versions.layout.field(field.name)
            moved = 0 if field.is_key else shift
            bit = field.null_bit + 8 * moved if field.nullable else -1
            if (own.offset, own.null_bit) != (field.offset + moved, bit):
                raise InvariantError(f"a version of {self.rows.table.name!r} has another layout")

    # --- room ---------------------------------------------------------------------------------

    def ready(self) -> Trail:
        """Bring it to the versions as they are, and have a head for each slot of the table."""
        if self._mark != self.versions.refills:
            self._rebuild()
        self._make_heads()
        self._place_rows()
        return self

    def begin(self, versions: int) -> None:
        """A batch begins that makes so many versions at the most, as far as is known."""
        self.ready()
        if len(self.versions.spare):
            raise InvariantError("a batch begins while another one still has slots set aside")
        self.versions.set_aside(versions)
        self.words[trails.CHANGED_COUNT] = 0
        self.words[trails.TURN] += 1
        self._make_nodes(min(versions, _RESERVED), 0)
        self._place_rows()

    def make_room(self, versions: int) -> None:
        """Room for so many versions more: slots and nodes."""
        more = max(versions, _NODES_MIN)
        self.versions.set_aside_more(more)
        self._make_nodes(more, trails.HEIGHT_MAX * more)
        self._place_rows()

    def _make_heads(self) -> None:
        need = len(self.rows.words)
        if len(self._heads) < need:
            heads = np.zeros((need, trails.HEAD_WORDS), np.int64)
            heads[: len(self._heads)] = self._heads
            self._heads = heads
            self.words[trails.HEADS] = address(heads)

    def _make_nodes(self, leaves: int, inners: int) -> None:
        for pool, need in ((trails.LEAVES, leaves), (trails.INNERS, inners)):
            left = int(self.words[pool + trails.LEFT_NODES])
            if left >= need and len(self._nodes[pool]):
                continue
            before = self._nodes[pool]
            more = max(need - left, len(before), _NODES_MIN)
            nodes = np.zeros((len(before) + more, self._sizes[pool]), np.int64)
            nodes[: len(before)] = before
            self._nodes[pool] = nodes
            self.words[pool] = address(nodes)
            self.words[pool + trails.LEFT_NODES] = left + more
            if not len(before):
                self.words[pool + trails.FREE_NODE] = -1

    def _place_rows(self) -> None:
        """Where the table of versions is now, and its spare slots; room to list all of it."""
        rows, words = self.versions, self.words
        if len(self._changed) < len(rows.words):
            changed = np.empty(len(rows.words), np.int64)
            changed[: len(self._changed)] = self._changed
            self._changed = changed
        words[trails.ROWS], words[trails.CHANGED] = address(rows.words), address(self._changed)
        words[trails.SPARE], words[trails.SPARE_COUNT] = address(rows.spare), len(rows.spare)
        words[trails.SPARE_USED] = address(rows.spare_used)

    # --- from the rows ------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Make all trails anew from the versions there are."""
        rows = self.versions
        self._heads = np.zeros((0, trails.HEAD_WORDS), np.int64)
        for pool in self._sizes:
            self._nodes[pool] = self._nodes[pool][:0]
            self.words[pool + 1 : pool + 4] = -1, 0, 0
        self._make_heads()
        slots = np.flatnonzero((rows.words[: rows.count, 0] & HEADER_ALIVE) != 0)
        keys = len(self.rows.table.key)
        words = np.ascontiguousarray(rows.words[slots, 1 : 1 + keys].T)
        owners = self.rows.find(words, np.zeros(len(slots), np.uint8))
        if (owners < 0).any():
            lost = rows.key_text(int(slots[np.flatnonzero(owners < 0)[0]]))
            raise InvariantError(f"table {rows.table.name!r}: the version {lost} has no row")
        numbers = rows.column(NUMBER, slots)
        timed = self.history.extent.is_timed
        times = rows.column(TIME, slots) if timed else np.zeros(len(slots), np.int64)
        order = np.lexsort((numbers, owners))
        distinct = len(np.unique(owners))
        inners = len(slots) // 7 + (trails.HEIGHT_MAX + 1) * distinct
        self._make_nodes(len(slots) // 8 + 2 * distinct + 1, inners)
        self._place_rows()
        given = (np.ascontiguousarray(one[order]) for one in (owners, numbers, times, slots))
        trails.fill(self.address, *given)
        self._mark = rows.refills

    # --- versions that come from elsewhere -----------------------------------------------------

    def can_follow(self, versions: int) -> bool:
        """Whether it is in step, and so many versions are few beside those that there are."""
        return self._mark == self.versions.refills and versions <= self.versions.count // 4

    def drop(self, owners: Slots, numbers: np.ndarray, epoch: int) -> None:
        """Versions of these rows are no more, of each those up to such a number."""
        there = owners >= 0  # those of others went with their rows
        trails.drop_through(self.address, owners[there], numbers[there], epoch)

    def add(self, owners: Slots, numbers: np.ndarray, given: pa.Table, epoch: int) -> None:
        """More versions of these rows, of each those behind its others, or of a row that came again
        from the first on; a batch has begun that has room for them."""
        self.ready()  # heads for rows that are new
        trails.end_before(self.address, owners, numbers, epoch)
        rows, count = self.versions, len(owners)
        slots, rows.spare_used[0] = rows.spare[:count].copy(), count
        rows.fill(slots, given, epoch)
        self._mark = rows.refills
        timed = self.history.extent.is_timed
        times = rows.column(TIME, slots) if timed else np.zeros(count, np.int64)
        order = np.lexsort((numbers, owners))
        self._make_nodes(count, trails.HEIGHT_MAX * count)
        parts = (np.ascontiguousarray(one[order]) for one in (owners, numbers, times, slots))
        trails.fill(self.address, *parts)

    def settle(self) -> None:
        """What came has its place: slots of versions that went are free."""
        self.versions.release(self.changed())
        self.versions.created = []

    # --- a batch ------------------------------------------------------------------------------

    def note(self, slot: int, time: int, epoch: int, position: int) -> None:
        """Keep a row as a transaction left it, from Python."""
        words = self.rows.words
        if trails.is_crowded_one(self.address, 1):
            self.make_room(1)
        row = address(words) + 8 * words.shape[1] * slot
        trails.note_one(self.address, slot, row, time, epoch, position)

    def end(self, slots: Slots, epoch: int) -> None:
        """Rows in these slots went other than by a transaction; a batch has begun."""
        trails.end_all(self.address, slots, epoch)

    def head(self, slot: int) -> np.ndarray:
        """The head of a row's trail; of no row, that of an empty one."""
        return self._heads[slot] if slot >= 0 else np.zeros(trails.HEAD_WORDS, np.int64)

    def of_rows(self, slots: Slots) -> Slots:
        """The slots of all versions of these rows."""
        found: Slots = trails.versions_of(self.address, slots)
        return found

    def changed(self) -> Slots:
        """The slots of the versions that the batch made or dropped."""
        return self._changed[: int(self.words[trails.CHANGED_COUNT])].copy()


def summed_columns(table: Table) -> tuple[str, ...]:
    """The columns that windows add up."""
    found = (column for column in table.schema if column.name not in table.key)
    return tuple(column.name for column in found if column.type.kind in SUMMED)


def trail_of(tables: Mapping[str, TableRows], table: Table) -> Trail:
    """The trail of a table with history, made once; it is brought forward by `ready`."""
    rows, declared = tables[table.name], versions_of(table)
    versions = None if declared is None else tables[declared.name]
    if table.history is None or not isinstance(versions, VersionRows):
        raise InvariantError(f"table {table.name!r} keeps no versions")
    found: Trail | None = rows.kept.get(Trail)
    if found is None or found.versions is not versions:
        found = rows.kept[Trail] = Trail(rows, versions, table.history)
    return found
