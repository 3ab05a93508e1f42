"""Ordered indexes: the rows of a table by some columns, and those of equal columns by their keys.

An index is derived from the rows and never logged. It is brought forward when somebody asks it:
whoever changes rows notes their slots, and an entry whose row says another thing is exchanged. A
kernel whose transactions look into it keeps it in step itself, event by event (see entries.bring).

Invariant after `ready`: there is one entry for each live row, and it says what the row says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.state import entries
from headgate.state import tree as trees
from headgate.state.compiled import numba
from headgate.state.layout import Field
from headgate.state.ranges import Index
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots
from headgate.state.strings import StringPool
from headgate.state.types import ColumnType

KINDS = {"i8": entries.WHOLE, "i4": entries.HALF, "u1": entries.BYTE, "f8": entries.DOUBLE}
KINDS["f4"] = entries.SINGLE
DIGIT_BITS = 11
SLOT_BITS = 32  # a slot stands in half a word, as in the index of keys
REBUILT_SHARE = 8  # when more than one row in so many changed, the index is made anew
THREADS_MAX = 4
SHARED_MIN = 1 << 18  # rows from which on threads share the making of one index
T = TypeVar("T")


def kind_of(field: Field) -> int:
    """How a column stands in a row, see entries.order_word."""
    if not field.nullable:
        return KINDS[field.format]
    return KINDS[field.format] | entries.NULLABLE | field.null_bit << entries.NULL_SHIFT


def entry_words(field: Field) -> list[tuple[tuple[int, int], bool]]:
    """The words of a column in an entry, each an offset and a kind, and whether it is a text."""
    value = (field.offset, KINDS[field.format]), field.type.kind == "string"
    if not field.nullable:
        return [value]
    return [((0, kind_of(field) & ~(entries.NULLABLE - 1) | entries.IS_NULL), False), value]


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
        self.tree = self._empty(1)
        self.held = np.zeros((0, self.width + 2), np.int64)

    @property
    def width(self) -> int:
        """How many words an entry is ordered by."""
        return len(self.recipe)

    def _empty(self, nodes: int) -> np.ndarray:
        reach = self._rows.pool.reach() if self._texts else 0
        return trees.empty_tree(self.width, nodes, self._texts, reach)

    def note(self, slots: Slots) -> None:
        """The rows in these slots have changed."""
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
        if self._is_much:
            self._pick_stale()
        if self._is_much:
            self._rebuild()
        for slots in self._pending:
            self._bring(slots)
        self._forget_pending()
        return self

    @property
    def _is_much(self) -> bool:
        """Whether so many entries are to be brought forward that it is made anew."""
        return self._pending_count * REBUILT_SHARE > max(self._rows.count, 1024)

    def _pick_stale(self) -> None:
        """Leave out what is in step: the kernels of a batch may have seen to most of it."""
        slots = np.concatenate(self._pending)
        rows, stale = self._rows, np.empty_like(slots)
        given = address(self.tree), address(self.held), address(self.recipe)
        words = address(rows.words), rows.layout.words
        count = int(entries.pick_stale(*given, *words, slots, stale))
        self._pending, self._pending_count = [stale[:count]], count

    def make_room(self) -> None:
        """See that every slot of the table has a place."""
        rows = self._rows
        if len(self.held) < rows.count:
            held = np.zeros((max(rows.count, 2 * len(self.held)), self.width + 2), np.int64)
            held[: len(self.held)] = self.held
            self.held = held

    def text_codes(self) -> list[np.ndarray]:
        """The codes of the texts in its entries: those of rows that are no more, too."""
        return [self.held[:, part + 1] for part in range(self.width) if self._texts >> part & 1]

    def bring(self, slot: int) -> None:
        """Bring the entry of one row forward at once."""
        self.bring_all(np.array([slot], np.int64))

    def bring_all(self, slots: Slots) -> None:
        """Bring the entries of these rows forward at once."""
        self.make_room()
        self._bring(slots)

    def _bring(self, slots: Slots) -> None:
        rows, done = self._rows, 0
        while done < len(slots):
            words = address(rows.words), rows.layout.words
            done = int(
                entries.bring_some(
                    address(self.tree),
                    address(self.held),
                    address(self.recipe),
                    *words,
                    slots,
                    done,
                )
            )
            if done < len(slots):
                self._grow()

    def make_room_for(self, inserts: int) -> None:
        """Nodes enough for so many entries."""
        while entries.is_short_one(address(self.tree), inserts):
            self._grow()

    def _grow(self) -> None:
        """Twice as many nodes."""
        self.tree = trees.grown_tree(self.tree, 2 * int(self.tree[trees.ROOM]))

    def _rebuild(self) -> None:
        rows = self._rows
        self.held = np.zeros((max(rows.count, 16), self.width + 2), np.int64)
        self.tree = self._empty(1)
        given = address(self.tree), address(self.held), address(self.recipe)
        words = address(rows.words), rows.layout.words
        is_large = rows.count >= SHARED_MIN
        alive = sum(
            in_shares(lambda *some: int(entries.hold(*given, *words, *some)), rows.count, is_large)
        )
        order, leaves = self._sorted(alive), entries.leaves_for(alive)
        self.tree = self._empty(entries.nodes_for(alive))
        filled = address(self.tree), address(self.held), address(order), alive, leaves
        in_shares(lambda *some: entries.fill_leaves(*filled, *some), leaves, is_large)
        entries.fill_above(address(self.tree), alive, leaves)
        self._mark = rows.refills
        self._forget_pending()

    def _sorted(self, alive: int) -> Slots:
        """The slots of all live rows in the order of their entries."""
        held, count = self.held[: self._rows.count], self._rows.count
        order = np.arange(count) if alive == count else np.flatnonzero(held[:, 0])
        spare = np.empty_like(order)
        for part in range(self.width, 0, -1):
            column = held[:, part]
            if self._texts >> (part - 1) & 1:
                column = _ranks(column, self._rows.pool)
            order, spare = sort_slots(column, order, spare)
        return order

    def scan(
        self, low: Sequence[int], high: Sequence[int], limit: int = -1, *, descending: bool = False
    ) -> Slots:
        """The slots of the rows from `low` to `high`, inclusive, by as many words as are given."""
        bounds = np.array([low, high], np.int64)
        out = np.empty(64, np.int64)
        while True:
            first = address(bounds)
            asked = first, first + 8 * len(low), len(low), limit, int(descending)
            found = entries.scan_one(address(self.tree), *asked, address(out), len(out))
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


def in_shares(work: Callable[[int, int], T], count: int, is_large: bool) -> list[T]:
    """Do the work for so many, from one to another; where it is much, threads share them."""
    threads = min(THREADS_MAX, os.cpu_count() or 1) if is_large else 1
    edges = np.linspace(0, count, threads + 1).astype(int).tolist()
    if len(edges) == 2:
        return [work(0, count)]
    with ThreadPoolExecutor(len(edges) - 1, thread_name_prefix="headgate-index") as pool:
        return list(pool.map(work, edges[:-1], edges[1:]))


def make_indexes(tables: Iterable[TableRows]) -> None:
    """Make the declared indexes of all these tables, several at a time."""
    found = [ordered_index(rows, one) for rows in tables for one in rows.table.index]
    if found:
        threads = min(THREADS_MAX, len(found))
        with ThreadPoolExecutor(threads, thread_name_prefix="headgate-index") as pool:
            list(pool.map(OrderedIndex.ready, found))


def order_words(values: np.ndarray, kind: ColumnType) -> np.ndarray:
    """Stored values of a column as words to be ordered by, as entries.order_word makes them."""
    if kind.kind not in ("float", "double"):
        return values.astype(np.int64)
    last = np.int64(0x7FFFFFFFFFFFFFFF)
    width, bits = (np.int32, 0x7FFFFFFF) if kind.kind == "float" else (np.int64, last)
    plain = np.where(values == 0, np.zeros_like(values), values)  # -0.0 is 0.0
    words = np.ascontiguousarray(plain).view(width).astype(np.int64)
    words = np.where(words < 0, words ^ np.int64(bits), words)
    return np.where(np.isnan(values), last, words)


def _ranks(codes: np.ndarray, pool: StringPool) -> np.ndarray:
    """For each code the place of its text among those there are."""
    known, places = np.unique(codes, return_inverse=True)
    ranks = np.empty(len(known), np.int64)
    ranks[pc.sort_indices(pool.texts(known).cast(pa.binary())).to_numpy()] = np.arange(len(known))
    return ranks[places]


def sort_slots(column: np.ndarray, order: Slots, spare: Slots) -> tuple[Slots, Slots]:
    """Sort slots by a column, those of equal values as they were; returns both arrays again."""
    values = np.empty(len(order), np.int64)
    is_sorted, least, greatest = _gather(column, order, values)
    if is_sorted:
        return order, spare
    others, bits = np.empty_like(values), (int(greatest) - int(least)).bit_length()
    if bits <= SLOT_BITS:
        return _sort_packed(values, others, int(least), bits, order), spare
    values -= least  # may wrap around: the difference counts as a number without a sign
    for shift in range(0, bits, DIGIT_BITS):
        _sort_digit(values.view(np.uint64), others.view(np.uint64), shift, order, spare)
        order, spare, values, others = spare, order, others, values
    return order, spare


def _sort_packed(
    values: np.ndarray, others: np.ndarray, least: int, bits: int, order: Slots
) -> Slots:
    """The same where a value and its slot go into one word: so half as much has to be moved."""
    _pack(values, least, order)
    for shift in range(SLOT_BITS, SLOT_BITS + bits, DIGIT_BITS):
        _sort_words(values.view(np.uint64), others.view(np.uint64), shift)
        values, others = others, values
    order[:] = values & ((1 << SLOT_BITS) - 1)
    return order


@numba.njit(cache=True, nogil=True)
def _pack(values: np.ndarray, least: int, order: Slots) -> None:
    for place in range(len(values)):
        values[place] = (values[place] - least) << SLOT_BITS | order[place]


@numba.njit(cache=True, nogil=True)
def _sort_words(words: np.ndarray, others: np.ndarray, shift: int) -> None:
    """Sort words by one digit into the other array."""
    mask, places = np.uint64((1 << DIGIT_BITS) - 1), np.zeros((1 << DIGIT_BITS) + 1, np.int64)
    for word in words:
        places[np.int64((word >> np.uint64(shift)) & mask) + 1] += 1
    for digit in range(1, len(places)):
        places[digit] += places[digit - 1]
    for word in words:
        mine = np.int64((word >> np.uint64(shift)) & mask)
        others[places[mine]] = word
        places[mine] += 1


@numba.njit(cache=True, nogil=True)
def _gather(column: np.ndarray, order: Slots, out: np.ndarray) -> tuple[bool, int, int]:
    """The values in this order; whether they ascend, the least and the greatest of them."""
    if len(order) == 0:
        return True, 0, 0
    before = least = greatest = column[order[0]]
    is_sorted = True
    for place in range(len(order)):
        value = column[order[place]]
        out[place] = value
        is_sorted &= before <= value
        least, greatest, before = min(least, value), max(greatest, value), value
    return is_sorted, least, greatest


@numba.njit(cache=True, nogil=True)
def _sort_digit(
    values: np.ndarray, others: np.ndarray, shift: int, order: Slots, spare: Slots
) -> None:
    """Sort values and their slots by one digit into the other arrays."""
    mask, places = np.uint64((1 << DIGIT_BITS) - 1), np.zeros((1 << DIGIT_BITS) + 1, np.int64)
    for place in range(len(values)):
        places[np.int64((values[place] >> np.uint64(shift)) & mask) + 1] += 1
    for digit in range(1, len(places)):
        places[digit] += places[digit - 1]
    for place in range(len(values)):
        mine = np.int64((values[place] >> np.uint64(shift)) & mask)
        target = places[mine]
        others[target], spare[target] = values[place], order[place]
        places[mine] = target + 1
