"""Entry looks: those of an index from one bound to another, in its tree and among those that wait.

What waits is not sorted. A look goes through its first words, and puts what it finds there among
what it found in the tree; where that is much, all that wait are brought forward first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.compiled import compiled_apart, linked, numba
from headgate.state.entries import (
    BRINGING_COST,
    TEXT_COST,
    WAITING_COUNT,
    WAITING_FIRST,
    WAITING_KEPT,
    WAITING_LEFT,
    WAITING_ROOM,
    WAITING_SPENT,
    lead_of,
    read,
    row_at,
    settle,
    take_up,
)
from headgate.state.layout import HEADER_ALIVE
from headgate.state.spaces import Slots
from headgate.state.tree import (
    COMING,
    COUNT,
    FRESH,
    HEIGHT,
    LEAVES,
    NEXT,
    NONE,
    PREVIOUS,
    ROOT,
    TEXTS,
    WAITS,
    WIDTH,
    _place,
    compare,
    entry_at,
    move,
    node_at,
    thawed,
    value_at,
)
from headgate.state.words import any_between, half_at
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

BLOCK = 8  # words that are compared before one of them is looked at
MATCHES_MAX = 64  # of those that wait, in one look
SHORT = -1


@linked
def _find(tree: int, words: int, count: int, behind: int) -> Any:
    """The leaf, and the place in it, behind all entries that come before these words; see _place.

    The place may be behind the last entry of the leaf.
    """
    number = get(tree, ROOT)
    for _ in range(get(tree, HEIGHT) - 1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, count, behind) - 1, 0)
        number = value_at(node, place)
    return number, _place(tree, thawed(tree, number), words, count, behind)


@linked
def _found(tree: int, slot: int, out: int, found: int, room: int) -> Any:
    """Note a slot that was found, unless it waits; returns how many there are."""
    if get(tree, WAITS) > 0 and half_at(get(tree, LEAVES), slot) < 0:
        return found
    if found < room:
        put(out, found, slot)
    return found + 1


@compiled_apart
def scan(
    tree: int, low: int, high: int, count: int, limit: int, descending: int, out: int, room: int
) -> Any:
    """The slots of the entries from `low` to `high`, both inclusive, by their first `count` words.

    In order, or in the reverse of it; not more than `limit` unless that is negative. Returns how
    many there are; those for which there is room are in `out`. Entries that wait are passed by.
    """
    if compare(tree, low, high, count) > 0:
        return 0
    if descending:
        return _scan_back(tree, low, high, count, limit, out, room)
    found = 0
    number, place = _find(tree, low, count, 0)
    while number != NONE and found != limit:
        node = thawed(tree, number)
        # All of a leaf is in the range when its last entry is.
        last = get(node, COUNT)
        if last > place and compare(tree, entry_at(tree, node, last - 1), high, count) > 0:
            last = _place(tree, node, high, count, 1)
            number = NONE
        else:
            number = get(node, NEXT)
        while place < last and found != limit:
            found = _found(tree, value_at(node, place), out, found, room)
            place += 1
        place = 0
    return found


@linked
def _scan_back(tree: int, low: int, high: int, count: int, limit: int, out: int, room: int) -> Any:
    """The same from the highest on."""
    found = 0
    number, place = _find(tree, high, count, 1)
    while number != NONE and found != limit:
        node = thawed(tree, number)
        first = 0
        if place > 0 and compare(tree, entry_at(tree, node, 0), low, count) < 0:
            first = _place(tree, node, low, count, 0)
            number = NONE
        else:
            number = get(node, PREVIOUS)
        while place > first and found != limit:
            place -= 1
            found = _found(tree, value_at(node, place), out, found, room)
        if number != NONE:
            place = get(thawed(tree, number), COUNT)
    return found


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


# --- those that wait ----------------------------------------------------------------------------


@compiled_apart
def look(
    tree: int, waiting: int, low: int, high: int, count: int, limit: int, descending: int,
    out: int, room: int,
) -> Any:  # fmt: skip
    """As `scan`, through the tree and those that wait; SHORT where these have to be settled, and
    there is too little room for that."""
    if get(waiting, WAITING_COUNT) > 0:
        if get(waiting, WAITING_LEFT):
            return SHORT
        take_up(tree, waiting)
        is_due = get(waiting, WAITING_SPENT) > get(waiting, WAITING_KEPT) * BRINGING_COST
        if is_due and settle(tree, waiting):
            return SHORT
    found = scan(tree, low, high, count, limit, descending, out, room)
    if get(tree, WAITS) == 0 or found > room:
        return found
    found = _look_among(tree, waiting, low, high, count, limit, descending, out, room, found)
    if found == SHORT:
        if settle(tree, waiting):
            return SHORT
        found = scan(tree, low, high, count, limit, descending, out, room)
    return found


@linked
def _look_among(
    tree: int, waiting: int, low: int, high: int, count: int, limit: int, descending: int,
    out: int, room: int, found: int,
) -> Any:  # fmt: skip
    """Put those that wait and are from `low` to `high` where they belong among what was found;
    SHORT where they are too many."""
    slots, kept = waiting + 8 * WAITING_FIRST, get(waiting, WAITING_KEPT)
    words, lead = slots + 8 * get(waiting, WAITING_ROOM), lead_of(tree)
    is_text = get(tree, TEXTS) >> lead & 1
    put(waiting, WAITING_SPENT, get(waiting, WAITING_SPENT) + kept * (TEXT_COST if is_text else 1))
    if compare(tree, low, high, count) > 0:
        return found
    least, most, matches = get(low, lead), get(high, lead), 0
    for begin in range(0, kept, BLOCK):
        end = min(begin + BLOCK, kept)
        if not is_text and not any_between(words + 8 * begin, least, most):
            continue
        for number in range(begin, end):
            word = get(words, number)
            if (is_text or (least <= word and word <= most)) and _is_inside(
                tree, get(slots, number), low, high, count
            ):
                if matches == MATCHES_MAX:
                    return SHORT
                matches += 1
                found = _put_among(tree, get(slots, number), limit, descending, out, room, found)
    return found


@linked
def _is_inside(tree: int, slot: int, low: int, high: int, count: int) -> Any:
    """Whether a row is there and its entry is from `low` to `high`; that is in FRESH then."""
    row, fresh = row_at(tree, slot), tree + 8 * FRESH
    if get(row, 0) & HEADER_ALIVE == 0:
        return False
    read(tree, row, fresh)
    return compare(tree, low, fresh, count) <= 0 and compare(tree, fresh, high, count) <= 0


@linked
def _put_among(
    tree: int, slot: int, limit: int, descending: int, out: int, room: int, found: int
) -> Any:
    """Put a slot where the entry in FRESH belongs among those that were found, all of which are
    what their rows say; returns how many there are. What is beyond the limit falls off."""
    if found >= room:
        return found + 1  # there is too little room: all will be looked for again
    first, last = 0, found
    while first < last:
        middle = (first + last) >> 1
        read(tree, row_at(tree, get(out, middle)), tree + 8 * COMING)
        order = compare(tree, tree + 8 * COMING, tree + 8 * FRESH, get(tree, WIDTH))
        if (order > 0) == (descending != 0):
            first = middle + 1
        else:
            last = middle
    is_over = found == limit
    if first < found - is_over:
        move(out + 8 * first, out + 8 * (first + 1), found - is_over - first)
    if first < found or not is_over:
        put(out, first, slot)
    return found + (not is_over)
