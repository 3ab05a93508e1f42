"""Entries: what rows say to an ordered index, and whole trees made of them, compiled.

A column is a word whose order is that of its values: floats by their value, 0.0 like -0.0 and NaN
last; texts by their codes, which the tree compares as texts. One that may be null has a word before
it that says whether it is, and the value of zeros then. `held` has the entry of every slot as
it is in the tree: 1 if there is one, and its words. So an entry is found again when its row has
changed, and to bring one forward twice changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.compiled import linked, numba, prefetch, prefetch_to_write
from headgate.state.layout import HEADER_ALIVE
from headgate.state.spaces import Slots
from headgate.state.tree import (
    CAPACITY,
    COMING,
    COUNT,
    ENTRIES,
    FRESH,
    HEIGHT,
    INNER,
    KIND,
    LEVELS_MAX,
    NEXT,
    NONE,
    PREVIOUS,
    ROOT,
    TARGETS,
    TARGETS_MAX,
    USED,
    WIDTH,
    ask_for_leaf,
    entry_at,
    exchange,
    insert,
    insert_at,
    is_short,
    leaf_of,
    move,
    node_at,
    remove,
    scan,
    take_out,
)
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

AHEAD = 32  # entries that are asked for before the first of them is copied
# How a column stands in a row; the last: not its value, but whether it is null.
WHOLE, HALF, BYTE, DOUBLE, SINGLE, IS_NULL = range(6)
# Of a nullable one with more: from which bit of the row on its null bit stands. Null is the last.
NULLABLE, NULL_SHIFT = 8, 4
_LAST = np.int64(0x7FFFFFFFFFFFFFFF)


@linked
def double_order(bits: int) -> Any:
    """The bits of a double as a word of the same order: 0.0 is -0.0, and NaN is the last."""
    if (bits & _LAST) > 0x7FF0000000000000:
        return _LAST
    if bits < 0:
        return np.int64(0) if bits << 1 == 0 else bits ^ _LAST
    return bits


@linked
def single_order(bits: int) -> Any:
    """The same for a float of 32 bits."""
    if (bits & 0x7FFFFFFF) > 0x7F800000:
        return _LAST
    if bits < 0:
        return np.int64(0) if bits & 0x7FFFFFFF == 0 else bits ^ 0x7FFFFFFF
    return bits


@linked
def order_word(row: int, offset: int, kind: int) -> Any:
    """A column of a row, by its offset in bytes, as a word to be ordered by."""
    word = get(row + (offset & ~7), 0)
    if kind == WHOLE:
        return word
    if kind & NULLABLE:
        bit = kind >> NULL_SHIFT
        is_null = get(row, bit >> 6) >> (bit & 63) & 1
        kind = kind & (NULLABLE - 1)
        if kind == IS_NULL:
            return is_null
        if is_null:
            return _LAST
        if kind == WHOLE:
            return word
    if kind == DOUBLE:
        return double_order(word)
    shift = 8 * (offset & 7)
    if kind == BYTE:
        return word >> shift & 0xFF
    half = word << (32 - shift) >> 32
    return half if kind == HALF else single_order(half)


@linked
def read_entry(tree: int, recipe: int, row: int, out: int) -> None:
    """The words of the entry that a row says.

    The `recipe` has the offset and the kind of each word in a row.
    """
    for part in range(get(tree, WIDTH)):
        put(out, part, order_word(row, get(recipe, 2 * part), get(recipe, 2 * part + 1)))


@linked
def _is_same(tree: int, entry: int, words: int) -> Any:
    """Whether an entry has these words."""
    for part in range(get(tree, WIDTH)):
        if get(entry, part + 1) != get(words, part):
            return False
    return True


@linked
def bring(tree: int, held: int, recipe: int, slot: int, row: int, target: int) -> None:
    """Let the entry of a slot be what its row says now: none, if it is not alive. The `target` is
    the leaf in which it seems to come to stand, or NONE."""
    width = get(tree, WIDTH)
    entry, fresh, leaf = held + 8 * slot * (width + 2), tree + 8 * FRESH, target
    was_alive, is_alive = get(entry, 0), get(row, 0) & HEADER_ALIVE
    if is_alive:
        read_entry(tree, recipe, row, fresh)
    if was_alive and is_alive:
        if _is_same(tree, entry, fresh):
            return
        leaf = exchange(tree, entry + 8, get(entry, width + 1), fresh, target, slot)
    elif was_alive:
        take_out(tree, entry + 8, get(entry, width + 1))
    elif is_alive:
        leaf = insert_at(tree, target, fresh, slot)
    put(entry, 0, is_alive)
    if is_alive:
        move(fresh, entry + 8, width)
        put(entry, width + 1, leaf)


# --- entries that wait ----------------------------------------------------------------------------
# A batch brings no entry forward before somebody looks into the index: the slots of rows that have
# changed wait until then. Rows that change often, or that nobody asks for, then cost one word each.
# The words of `waiting`; a room of 0 is that of an index into which no event of the batch looks.
WAITING_ROOM, WAITING_COUNT, WAITING_DONE, WAITING_FIRST = range(4)
WAITING_AHEAD = 4


@linked
def note_moved(waiting: int, slot: int) -> None:
    """Note that a row has changed; there is room for it."""
    if get(waiting, WAITING_ROOM) > 0:
        count = get(waiting, WAITING_COUNT)
        put(waiting, WAITING_FIRST + count, slot)
        put(waiting, WAITING_COUNT, count + 1)


@linked
def catch_up(tree: int, held: int, recipe: int, waiting: int, rows: int, row_words: int) -> Any:
    """Bring all entries forward that wait; returns whether nodes ran short before the last.

    To begin again where it ended then is right: an entry says what its row says at that moment.
    """
    first, count = get(waiting, WAITING_DONE), get(waiting, WAITING_COUNT)
    slots = waiting + 8 * WAITING_FIRST
    done = _bring_all(tree, held, recipe, rows, row_words, slots, first, count)
    put(waiting, WAITING_DONE, done if done < count else 0)
    put(waiting, WAITING_COUNT, count if done < count else 0)
    return done < count


@linked
def _bring_all(
    tree: int, held: int, recipe: int, rows: int, row_words: int, slots: int, first: int, count: int
) -> Any:
    """Bring those forward from place `first` on; returns the place where nodes ran short."""
    given, mask = (tree, held, recipe, rows, row_words), TARGETS_MAX - 1
    for place in range(first, min(first + WAITING_AHEAD, count)):
        put(tree + 8 * TARGETS, place & mask, _prepare(given, slots, place, count))
    for place in range(first, count):
        if is_short(tree, 1):
            return place
        target, ahead = get(tree + 8 * TARGETS, place & mask), place + WAITING_AHEAD
        if ahead < count:
            put(tree + 8 * TARGETS, ahead & mask, _prepare(given, slots, ahead, count))
        slot = get(slots, place)
        bring(tree, held, recipe, slot, rows + 8 * row_words * slot, target)
    return count


@linked
def _prepare(given: tuple[int, ...], slots: int, place: int, count: int) -> Any:
    """Ask for what `bring` will need of the tree for the slot at a place; returns its target. The
    entry and the row of a later one are asked for first."""
    tree, held, recipe, rows, row_words = given
    width, coming = get(tree, WIDTH), tree + 8 * COMING
    later = get(slots, min(place + WAITING_AHEAD, count - 1))
    for word in (0, width + 1):  # which may lie in two lines of the cache
        prefetch_to_write(held + 8 * (width + 2) * later + 8 * word)
    for word in (0, row_words - 1):
        prefetch(rows + 8 * row_words * later + 8 * word)
    slot = get(slots, place)
    entry, row = held + 8 * (width + 2) * slot, rows + 8 * row_words * slot
    is_alive = get(row, 0) & HEADER_ALIVE
    if is_alive:
        read_entry(tree, recipe, row, coming)
    if get(entry, 0):
        if is_alive and _is_same(tree, entry, coming):
            return NONE
        ask_for_leaf(tree, get(entry, width + 1))
    return leaf_of(tree, coming) if is_alive else NONE


@linked
def is_full(waiting: int, more: int) -> Any:
    """Whether there is no room for so many more."""
    room = get(waiting, WAITING_ROOM)
    return room > 0 and get(waiting, WAITING_COUNT) + more > room


# --- whole trees ----------------------------------------------------------------------------------


FILLED = CAPACITY - CAPACITY // 6  # a sixth stays empty, so that the next inserts split few


def leaves_for(count: int) -> int:
    """Into how many leaves so many entries are filled."""
    return max(1, -(-count // FILLED))


@numba.njit(cache=True, nogil=True)
def fill_leaves(
    tree: int, held: int, order: int, count: int, leaves: int, begin: int, end: int
) -> None:
    """Fill some of the leaves of an empty tree with the entries of these slots, in their order;
    see `bring` for `held`. Each share of them may be filled by a thread of its own."""
    width = get(tree, WIDTH)
    for leaf in range(begin, end):
        node = node_at(tree, leaf)
        first = leaf * count // leaves
        last = (leaf + 1) * count // leaves
        for place in range(first, last):
            ahead = get(order, min(place + AHEAD, count - 1))
            prefetch_to_write(held + 8 * ahead * (width + 2))
            slot = get(order, place)
            entry, spot = held + 8 * slot * (width + 2), entry_at(tree, node, place - first)
            move(entry + 8, spot, width)
            put(spot, width, slot)
            put(entry, width + 1, leaf)
        put(node, COUNT, last - first)
        put(node, NEXT, leaf + 1 if leaf + 1 < leaves else NONE)
        put(node, PREVIOUS, leaf - 1)


@numba.njit(cache=True, nogil=True)
def fill_above(tree: int, count: int, leaves: int) -> None:
    """The nodes above the leaves, when all of these are filled."""
    width, height = get(tree, WIDTH), 1
    level_first, level_count = 0, leaves
    while level_count > 1:
        above_first, above_count = level_first + level_count, -(-level_count // FILLED)
        for number in range(above_count):
            node = node_at(tree, above_first + number)
            put(node, KIND, INNER)
            first = number * level_count // above_count
            last = (number + 1) * level_count // above_count
            for child in range(first, last):
                spot = entry_at(tree, node, child - first)
                move(entry_at(tree, node_at(tree, level_first + child), 0), spot, width)
                put(spot, width, level_first + child)
            put(node, COUNT, last - first)
        level_first, level_count, height = above_first, above_count, height + 1
    put(tree, ROOT, level_first)
    put(tree, HEIGHT, height)
    put(tree, USED, level_first + 1)
    put(tree, ENTRIES, count)


def nodes_for(count: int) -> int:
    """Enough nodes to fill, and for as many entries to come as a small batch has."""
    leaves = count // FILLED + 2
    return leaves + leaves // 12 + 2 * LEVELS_MAX


@numba.njit(cache=True, nogil=True)
def hold(
    tree: int, held: int, recipe: int, rows: int, row_words: int, first: int, last: int
) -> int:
    """Note the entries of all live rows in these slots, as `bring` does; returns how many."""
    width, alive = get(tree, WIDTH), 0
    for slot in range(first, last):
        row, entry = rows + 8 * slot * row_words, held + 8 * slot * (width + 2)
        is_alive = get(row, 0) & HEADER_ALIVE
        put(entry, 0, is_alive)
        alive += is_alive
        if is_alive:
            read_entry(tree, recipe, row, entry + 8)
    return alive


@numba.njit(cache=True, nogil=True)
def bring_some(
    tree: int, held: int, recipe: int, rows: int, row_words: int, slots: Slots, first: int
) -> int:
    """As `bring`, for the slots from place `first` on; returns the place where nodes ran short."""
    base = np.int64(slots.ctypes.data)
    return int(_bring_all(tree, held, recipe, rows, row_words, base, first, len(slots)))


@linked
def _is_true(tree: int, held: int, recipe: int, slot: int, row: int) -> Any:
    """Whether the entry of a slot is what its row says."""
    width = get(tree, WIDTH)
    entry = held + 8 * slot * (width + 2)
    is_alive = get(row, 0) & HEADER_ALIVE
    if get(entry, 0) != is_alive:
        return False
    for part in range(width if is_alive else 0):
        word = order_word(row, get(recipe, 2 * part), get(recipe, 2 * part + 1))
        if get(entry, part + 1) != word:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def pick_stale(
    tree: int, held: int, recipe: int, rows: int, row_words: int, slots: Slots, out: Slots
) -> int:
    """Those of the slots whose entries are not what their rows say; returns how many."""
    width, found = get(tree, WIDTH), 0
    for place in range(len(slots)):
        ahead = slots[min(place + AHEAD, len(slots) - 1)]
        prefetch(held + 8 * ahead * (width + 2))
        prefetch(rows + 8 * row_words * ahead)
        slot = slots[place]
        out[found] = slot
        found += not _is_true(tree, held, recipe, slot, rows + 8 * row_words * slot)
    return found


@numba.njit(cache=True, nogil=True)
def insert_one(tree: int, words: int, slot: int) -> None:
    """As `insert`, from Python."""
    insert(tree, words, slot)


@numba.njit(cache=True, nogil=True)
def remove_one(tree: int, words: int) -> int:
    """As `remove`, from Python."""
    return int(remove(tree, words))


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
