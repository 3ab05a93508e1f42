"""The tree: the entries of an ordered index, compiled: a B+tree in one array of words.

An entry is some words to be ordered by and the slot of its row. Nodes have one size; in a leaf an
entry is followed by its slot, in an inner node by the number of the child whose entries begin
there. Leaves are linked both ways. No entry is twice: their last words are the key of a row.

Most of what a change costs is the way down, once to where an entry was and once to where it goes.
So who keeps the tree may remember the leaf of an entry (`hint`), and look for the leaf of another
one some changes ahead (`leaf_of`), so that memory is on the way meanwhile. Neither has to be right
when it is used: a leaf says itself whether an entry is in it, or belongs between those that are.

The words are compared where they stand, never in the rows: these may be half changed while entries
move. Invariant: kernels never allocate. Whoever inserts sees to it before that there are nodes
enough (`is_short`); an array that has too few is copied into a larger one, as it is.

A node is split on the way down when it is full, and given back when its last entry leaves: trees
that shrink keep some air, as rows that left keep their slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from headgate.state.characters import compare_texts
from headgate.state.compiled import linked, prefetch_to_write
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

# A symbol, not a pointer, so that kernels that use it can be cached on disk.
_move_bytes = types.ExternalFunction("memmove", types.int64(types.int64, types.int64, types.int64))
CAPACITY = 30  # entries of a node
LEVELS_MAX = 24
# The words at the begin of the array.
WIDTH, ROOT, HEIGHT, FREE, FREE_COUNT, USED, ROOM, ENTRIES, TEXTS, REACH = range(10)
PATH = 16  # by level: a node and a place in it
WORDS_MAX = 16  # of an entry
FRESH = PATH + 2 * LEVELS_MAX  # room for the words of an entry, and of one to come
COMING = FRESH + WORDS_MAX
TARGETS = COMING + WORDS_MAX  # the leaves of those to come
TARGETS_MAX = 16
HEADER_WORDS = TARGETS + TARGETS_MAX
# The words of a node before its entries. A node that was given back has none of these, but for a
# root that had one child: so a hint may name any node, if what is no leaf is passed by.
COUNT, NEXT, PREVIOUS, KIND = range(4)
NODE_WORDS = 4
LEAF, INNER = range(2)
NONE = -1
LINE_BYTES = 64  # of a cache


def node_words(width: int) -> int:
    """How many words a node takes whose entries have so many to be ordered by."""
    return NODE_WORDS + CAPACITY * (width + 1)


def empty_tree(width: int, nodes: int, texts: int = 0, reach: int = 0) -> np.ndarray:
    """A tree without entries; bit i of `texts` is set when word i is the code of a text, whose
    characters are found by `reach`, see characters.py."""
    tree = np.zeros(HEADER_WORDS + nodes * node_words(width), np.int64)
    tree[[WIDTH, ROOT, HEIGHT, FREE, USED, ROOM, TEXTS]] = width, 0, 1, NONE, 1, nodes, texts
    tree[REACH] = reach
    tree[HEADER_WORDS + NEXT] = tree[HEADER_WORDS + PREVIOUS] = NONE
    return tree


def grown_tree(tree: np.ndarray, nodes: int) -> np.ndarray:
    """The same tree with room for so many nodes."""
    size = HEADER_WORDS + nodes * node_words(int(tree[WIDTH]))
    larger = np.zeros(size, np.int64)
    larger[: len(tree)] = tree
    larger[ROOM] = nodes
    return larger


# --- the order ------------------------------------------------------------------------------------


@linked
def compare(tree: int, one: int, other: int, count: int) -> Any:
    """-1, 0 or 1: how the first `count` words at an address are to those at another."""
    for part in range(count):
        a, b = get(one, part), get(other, part)
        if a != b:
            if get(tree, TEXTS) >> part & 1:
                return -1 if compare_texts(get(tree, REACH), a, b) < 0 else 1
            return -1 if a < b else 1
    return 0


# --- nodes ----------------------------------------------------------------------------------------


@linked
def node_at(tree: int, node: int) -> Any:
    """The address of a node."""
    size = NODE_WORDS + CAPACITY * (get(tree, WIDTH) + 1)
    return tree + 8 * (HEADER_WORDS + node * size)


@linked
def entry_at(tree: int, node: int, place: int) -> Any:
    """The address of an entry of a node, itself given by its address."""
    return node + 8 * (NODE_WORDS + place * (get(tree, WIDTH) + 1))


@linked
def _place(tree: int, node: int, words: int, count: int, behind: int) -> Any:
    """How many entries of a node come before these words; with `behind` those equal to them, too.

    Of entries the first `count` words count.
    """
    first, last = 0, get(node, COUNT)
    lead, is_plain = get(words, 0), get(tree, TEXTS) & 1 == 0
    # An entry has a second word, for the key is behind its columns, unless it is by the key alone.
    has_second = count > 1 and get(tree, TEXTS) & 2 == 0
    second = get(words, 1) if has_second else 0
    base, step = entry_at(tree, node, 0), 8 * (get(tree, WIDTH) + 1)
    while first < last:
        middle = (first + last) >> 1
        spot = base + step * middle
        if is_plain and get(spot, 0) != lead:  # mostly the first word tells
            is_before = get(spot, 0) < lead
        elif is_plain and has_second and get(spot, 1) != second:  # where many have the first one
            is_before = get(spot, 1) < second
        else:
            order = compare(tree, spot, words, count)
            is_before = order < 0 or (order == 0 and behind != 0)
        if is_before:
            first = middle + 1
        else:
            last = middle
    return first


@linked
def _take(tree: int) -> Any:
    """The number of a node that was not in use."""
    node = get(tree, FREE)
    if node != NONE:
        put(tree, FREE, get(node_at(tree, node), NEXT))
        put(tree, FREE_COUNT, get(tree, FREE_COUNT) - 1)
        return node
    node = get(tree, USED)
    put(tree, USED, node + 1)
    return node


@linked
def _give_back(tree: int, node: int) -> None:
    put(node_at(tree, node), NEXT, get(tree, FREE))
    put(tree, FREE, node)
    put(tree, FREE_COUNT, get(tree, FREE_COUNT) + 1)


@linked
def is_short(tree: int, inserts: int) -> Any:
    """Whether so many inserts might need more nodes than there are."""
    left = get(tree, ROOM) - get(tree, USED) + get(tree, FREE_COUNT)
    # Each may split a node of every level, and add one: only then is there one level more.
    return left < inserts * (get(tree, HEIGHT) + 2) + 2


@linked
def move(source: int, target: int, words: int) -> None:
    """Copy words to where some of them may be."""
    _move_bytes(target, source, 8 * words)


@linked
def _open(tree: int, node: int, place: int, words: int, value: int) -> None:
    """Put an entry at a place of a node that is not full."""
    width, count = get(tree, WIDTH), get(node, COUNT)
    spot = entry_at(tree, node, place)
    move(spot, spot + 8 * (width + 1), (count - place) * (width + 1))
    move(words, spot, width)
    put(spot, width, value)
    put(node, COUNT, count + 1)


@linked
def _close(tree: int, node: int, place: int) -> None:
    """Take the entry at a place of a node out."""
    width, count = get(tree, WIDTH), get(node, COUNT)
    spot = entry_at(tree, node, place)
    move(spot + 8 * (width + 1), spot, (count - place - 1) * (width + 1))
    put(node, COUNT, count - 1)


@linked
def _split(tree: int, parent: int, place: int, is_leaf: int) -> None:
    """Give half of a full child to a new node behind it; the parent is not full."""
    width = get(tree, WIDTH)
    number, new = get(entry_at(tree, parent, place), width), _take(tree)
    child, other = node_at(tree, number), node_at(tree, new)
    half = get(child, COUNT) >> 1
    moved = get(child, COUNT) - half
    move(entry_at(tree, child, half), entry_at(tree, other, 0), moved * (width + 1))
    put(child, COUNT, half)
    put(other, COUNT, moved)
    put(other, KIND, LEAF if is_leaf else INNER)
    if is_leaf:
        after = get(child, NEXT)
        put(other, NEXT, after)
        put(other, PREVIOUS, number)
        put(child, NEXT, new)
        if after != NONE:
            put(node_at(tree, after), PREVIOUS, new)
    _open(tree, parent, place + 1, entry_at(tree, other, 0), new)


@linked
def _raise_root(tree: int) -> None:
    """A new root above the old one, which is full."""
    old, new = get(tree, ROOT), _take(tree)
    root = node_at(tree, new)
    put(root, COUNT, 0)
    put(root, KIND, INNER)
    _open(tree, root, 0, entry_at(tree, node_at(tree, old), 0), old)
    put(tree, ROOT, new)
    put(tree, HEIGHT, get(tree, HEIGHT) + 1)


# --- entries --------------------------------------------------------------------------------------


@linked
def insert(tree: int, words: int, slot: int) -> Any:
    """Add an entry that is not there; returns its leaf."""
    width, number = get(tree, WIDTH), get(tree, ROOT)
    if get(node_at(tree, number), COUNT) == CAPACITY:
        _raise_root(tree)
        number = get(tree, ROOT)
    for level in range(get(tree, HEIGHT) - 1, 0, -1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, width, 1) - 1, 0)
        if get(node_at(tree, get(entry_at(tree, node, place), width)), COUNT) == CAPACITY:
            _split(tree, node, place, level == 1)
            if compare(tree, entry_at(tree, node, place + 1), words, width) <= 0:
                place += 1
        number = get(entry_at(tree, node, place), width)
    node = node_at(tree, number)
    _open(tree, node, _place(tree, node, words, width, 0), words, slot)
    put(tree, ENTRIES, get(tree, ENTRIES) + 1)
    return number


@linked
def insert_at(tree: int, leaf: int, words: int, slot: int) -> Any:
    """The same where it belongs between the entries of a leaf, of which no other node has to know;
    else it looks for another leaf."""
    width, node = get(tree, WIDTH), node_at(tree, leaf)
    count = get(node, COUNT) if leaf != NONE and get(node, KIND) == LEAF else 0
    if count == 0 or count == CAPACITY:
        return insert(tree, words, slot)
    place = _place(tree, node, words, width, 0)
    if place == 0 or place == count:
        return insert(tree, words, slot)
    _open(tree, node, place, words, slot)
    put(tree, ENTRIES, get(tree, ENTRIES) + 1)
    return leaf


@linked
def leaf_of(tree: int, words: int) -> Any:
    """The leaf in which an entry is, or into which it goes; it is asked for."""
    width, number = get(tree, WIDTH), get(tree, ROOT)
    for _ in range(get(tree, HEIGHT) - 1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, width, 1) - 1, 0)
        number = get(entry_at(tree, node, place), width)
    ask_for_leaf(tree, number)
    return number


@linked
def ask_for_leaf(tree: int, leaf: int) -> None:
    """Let the memory of a leaf be on the way."""
    node = node_at(tree, leaf)
    for line in range(0, 8 * (NODE_WORDS + CAPACITY * (get(tree, WIDTH) + 1)), LINE_BYTES):
        prefetch_to_write(node + line)


@linked
def remove(tree: int, words: int) -> Any:
    """Take an entry out; returns its slot, -1 when it is not there."""
    width, number = get(tree, WIDTH), get(tree, ROOT)
    path = tree + 8 * PATH
    for level in range(get(tree, HEIGHT) - 1, 0, -1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, width, 1) - 1, 0)
        put(path, 2 * level, number)
        put(path, 2 * level + 1, place)
        number = get(entry_at(tree, node, place), width)
    node = node_at(tree, number)
    place = _place(tree, node, words, width, 0)
    spot = entry_at(tree, node, place)
    if place == get(node, COUNT) or compare(tree, spot, words, width) != 0:
        return NONE
    slot = get(spot, width)
    _close(tree, node, place)
    put(tree, ENTRIES, get(tree, ENTRIES) - 1)
    if get(node, COUNT) == 0:
        _leave(tree, number)
    return slot


@linked
def _located(tree: int, words: int, hint: int) -> tuple[int, int]:
    """The leaf of an entry and its place in it; NONE when it is not there. The hint is the leaf
    that it was in, half of which may have gone to the next one since."""
    width = get(tree, WIDTH)
    for step in range(3):
        if hint == NONE or step == 2:  # neither there nor in the next one
            hint = leaf_of(tree, words)
        node = node_at(tree, hint)
        if get(node, KIND) == LEAF:
            place = _place(tree, node, words, width, 0)
            is_inside = place < get(node, COUNT)
            if is_inside and compare(tree, entry_at(tree, node, place), words, width) == 0:
                return hint, place
        hint = get(node, NEXT) if get(node, KIND) == LEAF else NONE
    return NONE, 0


@linked
def take_out(tree: int, words: int, hint: int) -> None:
    """As `remove`, with a hint."""
    leaf, place = _located(tree, words, hint)
    _take_out(tree, leaf, place, words)


@linked
def _take_out(tree: int, leaf: int, place: int, words: int) -> None:
    if leaf == NONE or get(node_at(tree, leaf), COUNT) == 1:
        remove(tree, words)  # its leaf goes, too
    else:
        _close(tree, node_at(tree, leaf), place)
        put(tree, ENTRIES, get(tree, ENTRIES) - 1)


@linked
def exchange(tree: int, words: int, hint: int, fresh: int, target: int, slot: int) -> Any:
    """Let an entry have other words; returns the leaf that it is in then. Both leaves are hints.

    It stays in its leaf where it comes no earlier than the first entry of it and no later than the
    last: no other node has to know.
    """
    width, (leaf, place) = get(tree, WIDTH), _located(tree, words, hint)
    node = node_at(tree, leaf)
    count = get(node, COUNT) if leaf != NONE else 0
    is_behind = count > 0 and compare(tree, entry_at(tree, node, 0), fresh, width) <= 0
    if not is_behind or compare(tree, fresh, entry_at(tree, node, count - 1), width) > 0:
        _take_out(tree, leaf, place, words)
        return insert_at(tree, target, fresh, slot)
    spot, step = entry_at(tree, node, place), 8 * (width + 1)
    goal = _place(tree, node, fresh, width, 0)
    if goal > place:
        goal -= 1
        move(spot + step, spot, (goal - place) * (width + 1))
    else:
        before = entry_at(tree, node, goal)
        move(before, before + step, (place - goal) * (width + 1))
    move(fresh, entry_at(tree, node, goal), width)
    put(entry_at(tree, node, goal), width, slot)
    return leaf


@linked
def _leave(tree: int, leaf: int) -> None:
    """Give back a leaf without entries, at the end of the path, and all that is empty then."""
    path, number, level = tree + 8 * PATH, leaf, 1
    if get(tree, HEIGHT) > 1:
        node = node_at(tree, leaf)
        before, after = get(node, PREVIOUS), get(node, NEXT)
        if before != NONE:
            put(node_at(tree, before), NEXT, after)
        if after != NONE:
            put(node_at(tree, after), PREVIOUS, before)
    while level < get(tree, HEIGHT) and get(node_at(tree, number), COUNT) == 0:
        _give_back(tree, number)
        number = get(path, 2 * level)
        _close(tree, node_at(tree, number), get(path, 2 * level + 1))
        level += 1
    root = node_at(tree, get(tree, ROOT))
    if get(root, COUNT) == 0:  # all is gone: the root is an empty leaf again
        put(root, NEXT, NONE)
        put(root, PREVIOUS, NONE)
        put(root, KIND, LEAF)
        put(tree, HEIGHT, 1)
    while get(tree, HEIGHT) > 1 and get(root, COUNT) == 1:
        old = get(tree, ROOT)
        put(tree, ROOT, get(entry_at(tree, root, 0), get(tree, WIDTH)))
        put(tree, HEIGHT, get(tree, HEIGHT) - 1)
        _give_back(tree, old)
        root = node_at(tree, get(tree, ROOT))


# --- ranges ---------------------------------------------------------------------------------------


@linked
def _find(tree: int, words: int, count: int, behind: int) -> Any:
    """The leaf, and the place in it, behind all entries that come before these words; see _place.

    The place may be behind the last entry of the leaf.
    """
    width, number = get(tree, WIDTH), get(tree, ROOT)
    for _ in range(get(tree, HEIGHT) - 1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, count, behind) - 1, 0)
        number = get(entry_at(tree, node, place), width)
    return number, _place(tree, node_at(tree, number), words, count, behind)


@linked
def scan(
    tree: int, low: int, high: int, count: int, limit: int, descending: int, out: int, room: int
) -> Any:
    """The slots of the entries from `low` to `high`, both inclusive, by their first `count` words.

    In order, or in the reverse of it; not more than `limit` unless that is negative. Returns how
    many there are; those for which there is room are in `out`.
    """
    if compare(tree, low, high, count) > 0:
        return 0
    if descending:
        return _scan_back(tree, low, high, count, limit, out, room)
    width, found = get(tree, WIDTH), 0
    number, place = _find(tree, low, count, 0)
    while number != NONE and found != limit:
        node = node_at(tree, number)
        # All of a leaf is in the range when its last entry is.
        last = get(node, COUNT)
        if last > place and compare(tree, entry_at(tree, node, last - 1), high, count) > 0:
            last = _place(tree, node, high, count, 1)
            number = NONE
        else:
            number = get(node, NEXT)
        while place < last and found != limit:
            if found < room:
                put(out, found, get(entry_at(tree, node, place), width))
            found += 1
            place += 1
        place = 0
    return found


@linked
def _scan_back(tree: int, low: int, high: int, count: int, limit: int, out: int, room: int) -> Any:
    """The same from the highest on."""
    width, found = get(tree, WIDTH), 0
    number, place = _find(tree, high, count, 1)
    while number != NONE and found != limit:
        node = node_at(tree, number)
        first = 0
        if place > 0 and compare(tree, entry_at(tree, node, 0), low, count) < 0:
            first = _place(tree, node, low, count, 0)
            number = NONE
        else:
            number = get(node, PREVIOUS)
        while place > first and found != limit:
            place -= 1
            if found < room:
                put(out, found, get(entry_at(tree, node, place), width))
            found += 1
        if number != NONE:
            place = get(node_at(tree, number), COUNT)
    return found
