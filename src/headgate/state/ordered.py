"""Ordered indexes: the rows of a table by some columns, and those of equal columns by their keys.

An index is derived from the rows and never logged. It is brought forward when somebody asks it:
whoever changes rows notes their slots, and an entry whose row says another thing is exchanged. A
kernel whose transactions look into it keeps it in step itself, event by event (see entries.py).

Invariant after `ready`: there is one entry for each live row, and it says what the row says.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.state import entries, entry_looks
from headgate.state import tree as trees
from headgate.state.layout import HEADER_ALIVE
from headgate.state.order_words import entry_words
from headgate.state.ranges import Index
from headgate.state.rows import TableRows
from headgate.state.slot_order import (
    SURVEY_WORDS,
    THREADS_MAX,
    Survey,
    dealt,
    in_shares,
    sort_slots,
    surveyed,
)
from headgate.state.spaces import Slots
from headgate.state.strings import StringPool

DIRECT_BITS = 18  # words that differ in no more are sorted at once: so many places fit the caches
SHARED_MIN = 1 << 18  # rows from which on threads share the making of one index
# Rows that may wait, before their entries are brought forward: so many, or of larger tables one in
# so many, but no more than there is use for; see entries.py.
WAITING_MIN, WAITING_SHARE, WAITING_MAX = 4096, 2, 1 << 17
SAMPLE = 256  # rows that are looked at, before it is known whether to look at all of them
REBUILT_SHARE = 8  # when more than one row in so many changed, the index is made anew


class OrderedIndex:
    """One index of the rows of one table."""

    def __init__(self, rows: TableRows, index: Index) -> None:
        self.index = index
        self._rows = rows
        names = [*index.columns, *rows.table.key]
        fields = [rows.layout.field(name) for name in names]
        words = [word for one in fields for word in entry_words(one)]
        self.recipe = np.array([recipe for recipe, _ in words], np.int64)
        self._texts = sum(1 << n for n, (_, is_text) in enumerate(words) if is_text)
        self._mark: int | None = None  # the rows' `refills` when it was made
        self._pending: list[Slots] = []
        self._pending_count = 0
        self._order = np.zeros(0, np.int32)  # the slots of frozen leaves, see state/tree.py
        self.leaves = np.zeros(0, np.int32)  # by slot: one more than its leaf
        self.tree = self._empty(1)
        self.waiting = entries.waiting_in(WAITING_MIN)
        self._is_thawed = False
        self.told: Slots | None = None  # what a batch changed, if its kernel noted all of it

    @property
    def width(self) -> int:
        """How many words an entry is ordered by."""
        return len(self.recipe)

    def _empty(self, nodes: int) -> np.ndarray:
        reach = self._rows.pool.reach() if self._texts else 0
        return trees.empty_tree(self.width, nodes, self._texts, reach)

    def note(self, slots: Slots) -> None:
        """The rows in these slots have changed."""
        if slots is self.told:
            return
        self._pending.append(slots)
        self._pending_count += len(slots)
        if self._pending_count > self._rows.count:
            self._mark = None  # it is made anew when it is asked for
            self._forget_pending()

    def follow(self, slots: Slots, before: int) -> None:
        """Rows came into these slots other than by transactions, and into no others."""
        if self._mark == before:
            self._mark = self._rows.refills
        self.note(slots)

    def _forget_pending(self) -> None:
        self._pending, self._pending_count = [], 0

    def ready(self) -> OrderedIndex:
        """Bring it to the rows as they are now."""
        if self._mark != self._rows.refills:
            self._rebuild()
        self.make_room()
        is_known = self._is_thawed  # of frozen leaves nobody knows what has changed
        if self._is_much(0) and is_known:
            self._pick_stale()
        if self._is_much(0):
            self._rebuild()
            if not is_known:  # else it would be made anew each time, whatever has changed
                self._thaw()
        elif self._is_much(self._waiting_count):
            self._rebuild()
        elif self._pending or self._waiting_count:
            self.bring_all(np.concatenate([*self._pending, np.empty(0, np.int64)]))
        self._forget_pending()
        return self

    def follow_up(self) -> OrderedIndex:
        """Bring it so far that kernels can look into it: rows that have changed may wait."""
        more, room = self._waiting_count + self._pending_count, self.waiting[entries.WAITING_ROOM]
        is_left = self._mark != self._rows.refills or self.waiting[entries.WAITING_LEFT]
        if is_left or 2 * more > room:
            return self.ready()
        self.make_room()
        self._note_waiting(np.concatenate([*self._pending, np.empty(0, np.int64)]))
        self._forget_pending()
        return self

    def bind(self) -> np.ndarray:
        """The tree, told where all is that it refers to; that moves as it grows."""
        rows, tree = self._rows, self.tree
        tree[trees.ROWS], tree[trees.ROW_WORDS] = address(rows.words), rows.layout.words
        tree[trees.RECIPE], tree[trees.LEAVES] = address(self.recipe), address(self.leaves)
        tree[trees.ORDER], tree[trees.ROW_COUNT] = address(self._order), rows.count
        return tree

    @property
    def _waiting_count(self) -> int:
        return int(self.waiting[entries.WAITING_COUNT])

    def _is_much(self, others: int) -> bool:
        """Whether so many entries are to be brought forward that it is made anew."""
        return (self._pending_count + others) * REBUILT_SHARE > max(self._rows.count, 1024)

    def _pick_stale(self) -> None:
        """Leave out what is in step: the kernels of a batch may have seen to most of it."""
        slots, tree = np.concatenate(self._pending), address(self.bind())
        stale = np.empty_like(slots)
        some = slots[:: len(slots) // SAMPLE + 1].copy()
        if 2 * int(entries.pick_stale(tree, some, stale)) > len(some):
            return  # most is not in step
        count = int(entries.pick_stale(tree, slots, stale))
        self._pending, self._pending_count = [stale[:count]], count

    def make_room(self) -> None:
        """See that every slot of the table has a place."""
        count = self._rows.count
        if len(self.leaves) < count:
            leaves = np.zeros(max(count, 2 * len(self.leaves)), np.int32)
            leaves[: len(self.leaves)] = self.leaves
            self.leaves = leaves
        self._make_waiting_room(min(count // WAITING_SHARE, WAITING_MAX) // 2)
        self.bind()

    def text_codes(self) -> list[np.ndarray]:
        """The codes of the texts that entries may be compared with: those of rows that are no more,
        too, which stand above the leaves."""
        width, used = self.width, int(self.tree[trees.USED])
        size = trees.node_words(width)
        nodes = self.tree[trees.HEADER_WORDS :][: used * size].reshape(used, size)
        words = nodes[:, trees.NODE_WORDS + trees.CAPACITY :].reshape(used, trees.CAPACITY, width)
        there = np.arange(trees.CAPACITY) < nodes[:, trees.COUNT, np.newaxis]
        parts = [part for part in range(width) if self._texts >> part & 1]
        return [words[:, :, part][there] for part in parts]

    def bring_all(self, slots: Slots) -> None:
        """Bring the entries of these rows forward at once, and of all that wait: all of which the
        rows have changed."""
        self.make_room()
        if self.waiting[entries.WAITING_LEFT]:
            self._catch_up()
        self._note_waiting(slots)
        self._catch_up()

    def _note_waiting(self, slots: Slots) -> None:
        count = self._waiting_count
        self._make_waiting_room(count + len(slots))
        self.waiting[entries.WAITING_FIRST + count :][: len(slots)] = slots
        self.waiting[entries.WAITING_COUNT] = count + len(slots)

    def _catch_up(self) -> None:
        while entries.catch_up_one(address(self.bind()), address(self.waiting)):
            self._grow()

    def _make_waiting_room(self, count: int) -> None:
        if count > self.waiting[entries.WAITING_ROOM]:
            self.waiting = entries.waiting_in(2 * count, self.waiting)

    def relieve(self, changes: int) -> None:
        """Make room for an event that changes so many rows, and for whatever a kernel could not
        bring forward."""
        waiting = self.waiting
        kept, room = int(waiting[entries.WAITING_KEPT]), int(waiting[entries.WAITING_ROOM])
        if waiting[entries.WAITING_LEFT]:
            self._catch_up()
        elif kept > entries.REBUILT_MIN and kept * entries.REBUILT_SHARE > self._rows.count:
            self._rebuild()
        elif self._waiting_count + changes > room:
            self._catch_up()
        while entries.is_short_one(address(self.tree), 1):
            self._grow()
        self._make_waiting_room(changes)

    def _grow(self) -> None:
        """Twice as many nodes."""
        self.tree = trees.grown_tree(self.tree, 2 * int(self.tree[trees.ROOM]))

    def _rebuild(self) -> None:
        """Make it anew, with frozen leaves."""
        self.leaves = np.zeros(max(self._rows.count, 16), np.int32)
        self._order = self._sorted()
        alive = len(self._order)
        self.tree = self._empty(entries.nodes_for(alive))
        if alive:
            self.tree[trees.FROZEN_COUNT] = alive
            self.tree[trees.HEADER_WORDS :][: trees.NODE_WORDS] = 0
            entries.fill_above(address(self.bind()), entries.leaves_for(alive))
        self.waiting[entries.WAITING_ROOM + 1 : entries.WAITING_FIRST] = 0
        self._mark, self._is_thawed = self._rows.refills, False
        self._forget_pending()

    def _thaw(self) -> None:
        self._is_thawed = True
        tree, leaves = address(self.bind()), entries.leaves_for(len(self._order))
        in_shares(lambda *some: entries.thaw_all(tree, *some), leaves, self._is_large)

    @property
    def _is_large(self) -> bool:
        return self._rows.count >= SHARED_MIN

    def _sorted(self) -> np.ndarray:
        """The slots of all live rows in the order of their entries; their leaves are noted."""
        rows, count = (address(self._rows.words), self._rows.layout.words), self._rows.count
        found = surveyed(rows, self.recipe, count, self._is_large)
        order = spare = np.empty(0, np.int64)
        is_noted = is_ordered = False
        for part in range(self.width - 1, -1, -1):
            is_text = self._texts >> part & 1
            if not is_ordered and not is_text and found.ascends(part):
                continue
            given, is_noted = (*rows, *self.recipe[part].tolist()), False
            if not is_ordered and not is_text and found.bits(part) <= DIRECT_BITS:
                order = dealt(given, found, part, self.leaves, count, self._is_large)
                is_noted = True
            else:
                order = (order if is_ordered else self._live(found.alive)).astype(np.int64)
                column, spare = np.empty(count, np.int64), np.empty_like(order)
                entries.gather_words(*given, column)
                column = _ranks(column, self._rows.pool) if is_text else column
                order, spare = sort_slots(column, order, spare)
            is_ordered = True
        order = (order if is_ordered else self._live(found.alive)).astype(np.int32, copy=False)
        noted = order, self.leaves
        if not is_noted:
            in_shares(lambda *some: entries.note_leaves(*noted, *some), len(order), self._is_large)
        return order

    def _live(self, alive: int) -> np.ndarray:
        """The slots of all live rows."""
        count = self._rows.count
        if alive == count:
            return np.arange(count, dtype=np.int32)
        return np.flatnonzero(self._rows.words[:count, 0] & HEADER_ALIVE).astype(np.int32)

    def scan(
        self, low: Sequence[int], high: Sequence[int], limit: int = -1, *, descending: bool = False
    ) -> Slots:
        """The slots of the rows from `low` to `high`, inclusive, by as many words as are given."""
        bounds = np.array([low, high], np.int64)
        out = np.empty(64, np.int64)
        while True:
            first = address(bounds)
            asked = first, first + 8 * len(low), len(low), limit, int(descending)
            found = entry_looks.scan_one(address(self.bind()), *asked, address(out), len(out))
            if found <= len(out):
                return out[:found].copy()
            out = np.empty(found, np.int64)


def address(array: np.ndarray) -> int:
    return int(pa.py_buffer(array).address)


def ordered_index(rows: TableRows, index: Index) -> OrderedIndex:
    """An index of the rows, made once; it is brought forward by `ready`."""
    found: OrderedIndex | None = rows.ordered.get(index)
    if found is None:
        found = rows.ordered[index] = OrderedIndex(rows, index)
    return found


@functools.cache
def load_kernels() -> None:
    """Compile, or load, what a batch may call as it runs: else the first one would seem so dear
    that its events were shared among threads."""
    words, waiting, nothing = trees.empty_tree(1, 1), entries.waiting_in(1), np.empty(0, np.int64)
    tree = address(words)
    entries.is_short_one(tree, 1)
    entries.catch_up_one(tree, address(waiting))
    surveyed((0, 0), np.zeros((1, 2), np.int64), 0, False)
    one = Survey([1], [np.zeros((1, SURVEY_WORDS), np.int64)])
    order = dealt((0, 0, 0, 0), one, 0, np.empty(0, np.int32), 0, False)
    for wide in (1, 1 << 40):
        sort_slots(np.array([wide, 0]), np.arange(2), np.arange(2))
    entries.gather_words(0, 0, 0, 0, nothing)
    entries.note_leaves(order, order, 0, 0)
    entries.fill_above(tree, 1)


def make_indexes(tables: Iterable[TableRows]) -> None:
    """Make the declared indexes of all these tables, several at a time."""
    found = [ordered_index(rows, one) for rows in tables for one in rows.table.index]
    if found:
        threads = min(THREADS_MAX, len(found))
        with ThreadPoolExecutor(threads, thread_name_prefix="headgate-index") as pool:
            list(pool.map(OrderedIndex.ready, found))


def _ranks(codes: np.ndarray, pool: StringPool) -> np.ndarray:
    """For each code the place of its text among those there are."""
    known, places = np.unique(codes, return_inverse=True)
    ranks = np.empty(len(known), np.int64)
    ranks[pc.sort_indices(pool.texts(known).cast(pa.binary())).to_numpy()] = np.arange(len(known))
    return ranks[places]
