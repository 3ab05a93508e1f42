"""Entries: what rows say to an ordered index, brought forward when they change, and whole trees.

An entry is found by its slot, so that its row may have changed; and to bring one forward twice
changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.compiled import linked, numba, prefetch, prefetch_to_write
from headgate.state.layout import HEADER_ALIVE
from headgate.state.order_words import order_word, read_entry
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
    ROUND,
    ROW_WORDS,
    ROWS,
    TARGETS,
    TARGETS_MAX,
    THAWED,
    USED,
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
    scan,
    thawed,
)
from headgate.state.words import half_at
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


@linked
def leave(tree: int, slot: int) -> Any:
    """Let the entry of a slot be gone, but where it is what its row says or can be made so in its
    leaf; returns whether it has to come in again. Nothing is compared with misplaced entries."""
    row, fresh, leaf = row_at(tree, slot), tree + 8 * FRESH, leaf_with(tree, slot)
    is_alive = get(row, 0) & HEADER_ALIVE != 0
    if leaf == NONE:
        return is_alive
    node = thawed(tree, leaf)
    # What a leaf got in this round may be of rows that had changed already.
    if is_alive and get(node, THAWED) != get(tree, ROUND):
        read(tree, row, fresh)
        place = place_of(node, slot)
        if _is_same(tree, entry_at(tree, node, place), fresh) or exchange(tree, leaf, place, fresh):
            return False
    remove(tree, slot)
    return is_alive


# --- entries that wait ----------------------------------------------------------------------------
# A batch brings no entry forward before somebody looks into the index: the slots of rows that have
# changed wait until then. Rows that change often, or that nobody asks for, then cost one word each.
# The words of `waiting`; a room of 0 is that of an index into which no event of the batch looks.
WAITING_ROOM, WAITING_COUNT, WAITING_DONE, WAITING_LEFT, WAITING_FIRST = range(5)
WAITING_AHEAD = 4


@linked
def note_moved(waiting: int, slot: int) -> None:
    """Note that a row has changed; there is room for it."""
    if get(waiting, WAITING_ROOM) > 0:
        count = get(waiting, WAITING_COUNT)
        put(waiting, WAITING_FIRST + count, slot)
        put(waiting, WAITING_COUNT, count + 1)


@linked
def catch_up(tree: int, waiting: int) -> Any:
    """Bring all entries forward that wait; returns whether nodes ran short before the last: then it
    goes on from there. First all that are misplaced leave, then they come in again."""
    if get(waiting, WAITING_COUNT) == 0:
        return False
    slots = waiting + 8 * WAITING_FIRST
    if get(waiting, WAITING_LEFT) == 0:
        put(waiting, WAITING_COUNT, _leave_all(tree, slots, get(waiting, WAITING_COUNT)))
        put(waiting, WAITING_LEFT, 1)
    count = get(waiting, WAITING_COUNT)
    done = _enter_all(tree, slots, get(waiting, WAITING_DONE), count)
    put(waiting, WAITING_DONE, done if done < count else 0)
    if done < count:
        return True
    put(waiting, WAITING_COUNT, 0)
    put(waiting, WAITING_LEFT, 0)
    put(tree, ROUND, get(tree, ROUND) + 1)
    return False


@linked
def _leave_all(tree: int, slots: int, count: int) -> Any:
    """Let entries leave; those that have to come in again are the first then. Returns how many."""
    left = 0
    for place in range(count):
        far = get(slots, min(place + 4 * WAITING_AHEAD, count - 1))
        prefetch(get(tree, LEAVES) + 4 * far)
        prefetch(row_at(tree, far))
        near = leaf_with(tree, get(slots, min(place + 2 * WAITING_AHEAD, count - 1)))
        if near != NONE:
            ask_for_leaf(tree, near)
        slot = get(slots, place)
        put(slots, left, slot)
        left += leave(tree, slot)
    return left


@linked
def _enter_all(tree: int, slots: int, first: int, count: int) -> Any:
    """Let entries come in from place `first` on; returns the place where nodes ran short."""
    mask = TARGETS_MAX - 1
    for place in range(first, min(first + WAITING_AHEAD, count)):
        put(tree + 8 * TARGETS, place & mask, _target(tree, get(slots, place)))
    for place in range(first, count):
        if is_short(tree, 1):
            return place
        target, ahead = get(tree + 8 * TARGETS, place & mask), place + WAITING_AHEAD
        if ahead < count:
            put(tree + 8 * TARGETS, ahead & mask, _target(tree, get(slots, ahead)))
        slot = get(slots, place)
        if leaf_with(tree, slot) == NONE:  # it may be named twice
            read(tree, row_at(tree, slot), tree + 8 * FRESH)
            insert_at(tree, target, tree + 8 * FRESH, slot)
    return count


@linked
def _target(tree: int, slot: int) -> Any:
    """The leaf into which an entry seems to come."""
    read(tree, row_at(tree, slot), tree + 8 * COMING)
    return leaf_of(tree, tree + 8 * COMING)


@linked
def is_full(waiting: int, more: int) -> Any:
    """Whether there is no room for so many more."""
    room = get(waiting, WAITING_ROOM)
    return room > 0 and get(waiting, WAITING_COUNT) + more > room


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
        return leaf == NONE and not is_alive
    node = node_at(tree, leaf)
    if get(node, KIND) == FROZEN or get(node, THAWED) == get(tree, ROUND):
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
def scan_one(
    tree: int, low: int, high: int, count: int, limit: int, descending: int, out: int, room: int
) -> int:
    """As `scan`, from Python."""
    return int(scan(tree, low, high, count, limit, descending, out, room))


@numba.njit(cache=True, nogil=True)
def scan_all(
    tree: int,
    bounds: np.ndarray,
    width: int,
    count: int,
    limit: int,
    descending: int,
    skip: np.ndarray,
    offsets: np.ndarray,
    out: Slots,
    first: int,
) -> int:
    """As `scan`, for the bounds of every event from `first` on that is not to be skipped.

    Returns the event for which there was no room in `out`.
    """
    base, target = np.int64(bounds.ctypes.data), np.int64(out.ctypes.data)
    for event in range(first, len(skip)):
        done, found = offsets[event], 0
        if not skip[event]:
            low = base + 8 * width * event
            high, left = low + 8 * (width - count), len(out) - done
            found = scan(tree, low, high, count, limit, descending, target + 8 * done, left)
            if found > left:
                return event
        offsets[event + 1] = done + found
    return len(skip)


@numba.njit(cache=True, nogil=True)
def is_short_one(tree: int, inserts: int) -> bool:
    """As `is_short`, from Python."""
    return bool(is_short(tree, inserts))
