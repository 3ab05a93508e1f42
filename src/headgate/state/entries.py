"""Entries: what rows say to an ordered index, brought forward when they change, and whole trees.

An entry is found by its slot, so that its row may have changed; and to bring one forward twice
changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.compiled import compiled_apart, linked, numba, prefetch, prefetch_to_write
from headgate.state.layout import HEADER_ALIVE
from headgate.state.order_words import IS_NULL, NULLABLE, order_word, read_entry
from headgate.state.spaces import Slots
from headgate.state.tree import (
    COMING,
    COUNT,
    ENTRIES,
    FILLED,
    FRESH,
    FROZEN,
    FROZEN_COUNT,
    HEIGHT,
    INNER,
    KIND,
    LEAVES,
    LEVELS_MAX,
    NODE_WORDS,
    NONE,
    ORDER,
    PARENT,
    RECIPE,
    ROOT,
    ROW_COUNT,
    ROW_WORDS,
    ROWS,
    TARGETS,
    TARGETS_MAX,
    USED,
    WAITS,
    WIDTH,
    ask_for_leaf,
    entry_at,
    exchange,
    insert,
    insert_at,
    is_short,
    leaf_of,
    leaf_with,
    move,
    node_at,
    place_of,
    remove,
    take_out,
    thawed,
)
from headgate.state.words import half_at, set_half
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

at: Any = np.uint64  # an index that cannot count from the end: the kernels need not ask
AHEAD = 32  # rows that are asked for before the first of them is looked at


@linked
def row_at(tree: int, slot: int) -> Any:
    """The address of the row in a slot."""
    return get(tree, ROWS) + 8 * get(tree, ROW_WORDS) * slot


@linked
def read(tree: int, row: int, out: int) -> None:
    """The words of the entry that a row says."""
    read_entry(get(tree, WIDTH), get(tree, RECIPE), row, out)


@linked
def _is_same(tree: int, one: int, other: int) -> Any:
    """Whether two entries have the same words."""
    for part in range(get(tree, WIDTH)):
        if get(one, part) != get(other, part):
            return False
    return True


# --- entries that wait ----------------------------------------------------------------------------
# An entry whose row has changed is not brought forward at once. Whoever changes a row notes its
# slot (`note_moved`). Whoever looks takes up what was noted: such an entry stays where it is and
# waits, its slot and the first word that its row says stand in a list of their own, and a look goes
# through tree and list (entry_looks.py). That is some nanoseconds for a row that changed, and a
# tenth of one for each that waits at a look; to bring one forward is more than a hundred. So all
# that wait are brought forward together (`catch_up`), when looks have cost as much as that does, or
# when they are many.
#
# The words of `waiting`: how many slots there is room for, which come first, then their words, then
# the leaves that they had; how many slots there are, and how many of them have been taken up; how
# far a `catch_up` came, and whether all have left; what looks have cost since the last one. A room
# of 0 is that of an index into which no event of the batch looks.
(WAITING_ROOM, WAITING_COUNT, WAITING_KEPT, WAITING_DONE, WAITING_LEFT, WAITING_SPENT,
 WAITING_FIRST) = range(7)  # fmt: skip
WAITING_AHEAD = 4
# In what a look costs for each that waits, where the first words are compared as they stand.
TEXT_COST, BRINGING_COST = 16, 256
REBUILT_MIN = 4096  # when so many wait, and more than one row in so many, the tree is made anew
REBUILT_SHARE = 8


def waiting_in(room: int, before: np.ndarray | None = None) -> np.ndarray:
    """Room for so many entries that wait, with those that waited before."""
    waiting = np.zeros(WAITING_FIRST + 3 * room, np.int64)
    if before is not None:
        waiting[:WAITING_FIRST] = before[:WAITING_FIRST]
        count = int(before[WAITING_ROOM])
        lists = waiting[WAITING_FIRST:].reshape(3, room)
        lists[:, :count] = before[WAITING_FIRST:].reshape(3, count)
    waiting[WAITING_ROOM] = room
    return waiting


@linked
def note_moved(waiting: int, slot: int) -> None:
    """Note that a row has changed; there is room for it."""
    if get(waiting, WAITING_ROOM) > 0:
        count = get(waiting, WAITING_COUNT)
        put(waiting, WAITING_FIRST + count, slot)
        put(waiting, WAITING_COUNT, count + 1)


@linked
def lead_of(tree: int) -> Any:
    """Which word of an entry the list has: that of the first column. Bounds are never null."""
    return get(get(tree, RECIPE), 1) & (NULLABLE - 1) == IS_NULL


@compiled_apart
def take_up(tree: int, waiting: int) -> None:
    """Let the entries of all rows that were noted wait, but for those that are what their rows say
    or can be made so in their leaf."""
    count, kept = get(waiting, WAITING_COUNT), get(waiting, WAITING_KEPT)
    slots, lead = waiting + 8 * WAITING_FIRST, 8 * lead_of(tree)
    words = slots + 8 * get(waiting, WAITING_ROOM)
    homes, leaves, fresh = (
        words + 8 * get(waiting, WAITING_ROOM),
        get(tree, LEAVES),
        tree + 8 * FRESH,
    )
    for number in range(kept, count):
        slot, far = get(slots, number), get(slots, min(number + AHEAD, count - 1))
        prefetch_to_write(leaves + 4 * far)
        prefetch(row_at(tree, far))
        home, row = half_at(leaves, slot), row_at(tree, slot)
        is_alive = get(row, 0) & HEADER_ALIVE != 0
        if home == 0 and not is_alive:
            continue
        read(tree, row, fresh)
        if home < 0:
            put(words, -1 - home, get(fresh + lead, 0))
        elif home == 0 or not is_alive or not _can_stay(tree, slot, home - 1):
            put(slots, kept, slot)
            put(words, kept, get(fresh + lead, 0))
            put(homes, kept, home)
            kept += 1
            set_half(leaves, slot, -kept)
    put(waiting, WAITING_COUNT, kept)
    put(waiting, WAITING_KEPT, kept)
    put(tree, WAITS, kept)


@linked
def _can_stay(tree: int, slot: int, leaf: int) -> Any:
    """Whether the entry of a slot is what its row says, or has been made so in its leaf."""
    node, fresh = node_at(tree, leaf), tree + 8 * FRESH
    if get(node, KIND) == FROZEN:
        return False
    place = place_of(node, slot)
    return _is_same(tree, entry_at(tree, node, place), fresh) or exchange(tree, leaf, place, fresh)


@compiled_apart
def catch_up(tree: int, waiting: int) -> Any:
    """Bring all entries forward that wait; returns whether nodes ran short before the last: then it
    goes on from there. First all leave that are misplaced, then they come in again."""
    if get(waiting, WAITING_LEFT) == 0:
        take_up(tree, waiting)
        _take_all_out(tree, waiting)
    done = _enter_all(tree, waiting, get(waiting, WAITING_DONE))
    is_done = done == get(waiting, WAITING_KEPT)
    put(waiting, WAITING_DONE, 0 if is_done else done)
    if is_done:
        for word in (WAITING_COUNT, WAITING_KEPT, WAITING_LEFT, WAITING_SPENT):
            put(waiting, word, 0)
    return not is_done


@linked
def _take_all_out(tree: int, waiting: int) -> None:
    """Let all entries that wait leave the tree."""
    slots, count = waiting + 8 * WAITING_FIRST, get(waiting, WAITING_KEPT)
    homes = slots + 16 * get(waiting, WAITING_ROOM)
    for number in range(count):
        ahead = get(homes, min(number + 2 * WAITING_AHEAD, count - 1))
        if ahead > 0:
            ask_for_leaf(tree, ahead - 1)
        slot, home = get(slots, number), get(homes, number)
        if home > 0:
            take_out(tree, slot, home - 1)
        else:
            set_half(get(tree, LEAVES), slot, 0)
    put(tree, WAITS, 0)
    put(waiting, WAITING_LEFT, 1)


@linked
def _enter_all(tree: int, waiting: int, first: int) -> Any:
    """Let entries come in from number `first` on; returns the one where nodes ran short."""
    mask, targets, fresh = TARGETS_MAX - 1, tree + 8 * TARGETS, tree + 8 * FRESH
    slots, count = waiting + 8 * WAITING_FIRST, get(waiting, WAITING_KEPT)
    for number in range(first, min(first + WAITING_AHEAD, count)):
        put(targets, number & mask, _target(tree, get(slots, number)))
    for number in range(first, count):
        if is_short(tree, 1):
            return number
        prefetch(row_at(tree, get(slots, min(number + 2 * WAITING_AHEAD, count - 1))))
        target, ahead = get(targets, number & mask), number + WAITING_AHEAD
        if ahead < count:
            put(targets, ahead & mask, _target(tree, get(slots, ahead)))
        slot = get(slots, number)
        if get(row_at(tree, slot), 0) & HEADER_ALIVE:
            read(tree, row_at(tree, slot), fresh)
            insert_at(tree, target, fresh, slot)
    return count


@linked
def _target(tree: int, slot: int) -> Any:
    """The leaf into which an entry seems to come."""
    read(tree, row_at(tree, slot), tree + 8 * COMING)
    return leaf_of(tree, tree + 8 * COMING)


@compiled_apart
def settle(tree: int, waiting: int) -> Any:
    """As `catch_up`; but where very many wait, the tree had better be made anew, by Python."""
    kept = get(waiting, WAITING_KEPT)
    is_much = kept > REBUILT_MIN and kept * REBUILT_SHARE > get(tree, ROW_COUNT)
    return is_much or catch_up(tree, waiting)


@linked
def is_full(tree: int, waiting: int, more: int) -> Any:
    """Whether there is no room for so many more, nor can be made."""
    room = get(waiting, WAITING_ROOM)
    if room == 0 or get(waiting, WAITING_COUNT) + more <= room:
        return False
    if get(waiting, WAITING_LEFT):
        return True
    take_up(tree, waiting)
    # Else the next few would have to be taken up at once.
    if 2 * (get(waiting, WAITING_KEPT) + more) <= room:
        return False
    return settle(tree, waiting) or more > room


# --- whole trees ----------------------------------------------------------------------------------


def leaves_for(count: int) -> int:
    """Into how many leaves so many entries are filled."""
    return max(1, -(-count // FILLED))


def nodes_for(count: int) -> int:
    """Enough nodes to fill, and for as many entries to come as a small batch has."""
    leaves = count // FILLED + 2
    return leaves + leaves // 12 + 2 * LEVELS_MAX


@numba.njit(cache=True, nogil=True)
def gather_words(rows: int, row_words: int, offset: int, kind: int, out: np.ndarray) -> None:
    """A word of each live row, by slot."""
    for slot in range(len(out)):
        row = rows + 8 * row_words * slot
        out[slot] = order_word(row, offset, kind) if get(row, 0) & HEADER_ALIVE else 0


@numba.njit(cache=True, nogil=True)
def note_leaves(order: np.ndarray, leaves: np.ndarray, first: int, last: int) -> None:
    """Note the leaf of each slot from one place of the order to another."""
    base = np.int64(leaves.ctypes.data)
    for place in range(first, last):
        prefetch_to_write(base + 4 * np.int64(order[min(place + AHEAD, len(order) - 1)]))
        leaves[at(order[place])] = place // FILLED + 1


@numba.njit(cache=True, nogil=True)
def thaw_all(tree: int, first: int, last: int) -> None:
    """Let these leaves have their words."""
    for leaf in range(first, last):
        thawed(tree, leaf)


@numba.njit(cache=True, nogil=True)
def fill_above(tree: int, leaves: int) -> None:
    """The nodes above the leaves, which are frozen."""
    width, order, height = get(tree, WIDTH), get(tree, ORDER), 1
    level_first, level_count = 0, leaves
    while level_count > 1:
        above_first, above_count = level_first + level_count, -(-level_count // FILLED)
        for number in range(above_count):
            node, count = node_at(tree, above_first + number), 0
            put(node, KIND, INNER)
            for child in range(number * FILLED, min((number + 1) * FILLED, level_count)):
                spot, below = entry_at(tree, node, count), node_at(tree, level_first + child)
                if height == 1:
                    ahead = min(child + AHEAD, leaves - 1) * FILLED
                    prefetch(row_at(tree, half_at(order, ahead)))
                    read(tree, row_at(tree, half_at(order, child * FILLED)), spot)
                else:
                    move(entry_at(tree, below, 0), spot, width)
                    put(below, PARENT, above_first + number)
                put(node, NODE_WORDS + count, level_first + child)
                count += 1
            put(node, COUNT, count)
        level_first, level_count, height = above_first, above_count, height + 1
    put(tree, ROOT, level_first)
    put(tree, HEIGHT, height)
    put(tree, USED, level_first + 1)
    put(tree, ENTRIES, get(tree, FROZEN_COUNT))
    if height > 1:
        put(node_at(tree, level_first), PARENT, NONE)


@numba.njit(cache=True, nogil=True)
def catch_up_one(tree: int, waiting: int) -> bool:
    """As `catch_up`, from Python."""
    return bool(catch_up(tree, waiting))


@numba.njit(cache=True, nogil=True)
def pick_stale(tree: int, slots: Slots, out: Slots) -> int:
    """Those of the slots whose entries are not known to be what their rows say; how many."""
    found = 0
    for place in range(len(slots)):
        ahead = slots[min(place + AHEAD, len(slots) - 1)]
        prefetch(get(tree, LEAVES) + 4 * ahead)
        prefetch(row_at(tree, ahead))
        out[found] = slots[place]
        found += not _is_true(tree, slots[place])
    return found


@linked
def _is_true(tree: int, slot: int) -> Any:
    """Whether the entry of a slot is known to be what its row says."""
    row, leaf = row_at(tree, slot), leaf_with(tree, slot)
    is_alive = get(row, 0) & HEADER_ALIVE != 0
    if leaf == NONE or not is_alive:
        return half_at(get(tree, LEAVES), slot) == 0 and not is_alive
    node = node_at(tree, leaf)
    if get(node, KIND) == FROZEN:
        return False
    read(tree, row, tree + 8 * FRESH)
    return _is_same(tree, entry_at(tree, node, place_of(node, slot)), tree + 8 * FRESH)


@numba.njit(cache=True, nogil=True)
def insert_one(tree: int, words: int, slot: int) -> None:
    """As `insert`, from Python."""
    insert(tree, words, slot)


@numba.njit(cache=True, nogil=True)
def remove_one(tree: int, slot: int) -> bool:
    """As `remove`, from Python."""
    return bool(remove(tree, slot))


@numba.njit(cache=True, nogil=True)
def is_short_one(tree: int, inserts: int) -> bool:
    """As `is_short`, from Python."""
    return bool(is_short(tree, inserts))
