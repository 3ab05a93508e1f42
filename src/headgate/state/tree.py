"""The tree: the entries of an ordered index, compiled: a B+tree in one array of words.

An entry is some words to be ordered by and the slot of its row. Nodes have one size; in a leaf each
entry has its slot, in an inner node the number of the child whose entries begin there. Leaves are
linked both ways, and all nodes know their parents. No entry is twice: their last words are the key
of a row.

By slot, `leaves` has the leaf that an entry is in, or says that it waits: then its row has changed,
and the entry is passed by until it is taken out (see entries.py). So nobody has to know its words.

A tree that is made of rows as they are has the slots in their order only, and the nodes above the
leaves. A leaf is frozen until somebody needs it: then it gets the words that its rows say, but for
those that wait, which say something else than they did. So when a leaf is needed, all entries must
wait that are not what their rows say.

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
from headgate.state.compiled import linked, prefetch, prefetch_to_write
from headgate.state.order_words import read_entry
from headgate.state.words import half_at, set_half
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

# A symbol, not a pointer, so that kernels that use it can be cached on disk.
_move_bytes = types.ExternalFunction("memmove", types.int64(types.int64, types.int64, types.int64))
CAPACITY = 30  # entries of a node
FILLED = CAPACITY - CAPACITY // 6  # at first; a sixth is empty, so that the next inserts split few
LEVELS_MAX = 24
# The words at the begin of the array.
WIDTH, ROOT, HEIGHT, FREE, FREE_COUNT, USED, ROOM, ENTRIES, TEXTS, REACH = range(10)
# Where the rows are and how many, what words they say, the leaves by slot; the slots in the order
# of the frozen leaves, and how many; how many entries wait. See OrderedIndex.bind.
ROWS, ROW_WORDS, ROW_COUNT, RECIPE, LEAVES, ORDER, FROZEN_COUNT, WAITS = range(10, 18)
WORDS_MAX = 16  # of an entry
FRESH = 18  # room for the words of an entry, and of one to come
COMING = FRESH + WORDS_MAX
TARGETS = COMING + WORDS_MAX  # the leaves of those to come
TARGETS_MAX = 16
HEADER_WORDS = TARGETS + TARGETS_MAX
# The words of a node before its slots or children, behind which its entries stand. A node that was
# given back has no entries.
COUNT, NEXT, PREVIOUS, KIND, PARENT = range(5)
NODE_WORDS = 5
FROZEN, LEAF, INNER, GIVEN_BACK = range(4)
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
    root = tree[HEADER_WORDS:]
    root[[NEXT, PREVIOUS, KIND, PARENT]] = NONE, NONE, LEAF, NONE
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
    """The address of the words of an entry of a node, itself given by its address."""
    return node + 8 * (NODE_WORDS + CAPACITY + place * get(tree, WIDTH))


@linked
def value_at(node: int, place: int) -> Any:
    """The slot, or the child, of an entry of a node."""
    return get(node, NODE_WORDS + place)


@linked
def thawed(tree: int, number: int) -> Any:
    """The address of a node that has its words, if it did not have them before."""
    node = node_at(tree, number)
    if get(node, KIND) == FROZEN:
        _thaw(tree, node, number)
    return node


@linked
def _thaw(tree: int, node: int, number: int) -> None:
    """Let a leaf have the words that its rows say now."""
    width, rows, row_bytes = get(tree, WIDTH), get(tree, ROWS), 8 * get(tree, ROW_WORDS)
    order, total, recipe = get(tree, ORDER), get(tree, FROZEN_COUNT), get(tree, RECIPE)
    first = number * FILLED
    count = min(FILLED, total - first)
    for place in range(count):
        prefetch(rows + row_bytes * half_at(order, first + place))
    there = 0
    for place in range(count):
        slot = half_at(order, first + place)
        if half_at(get(tree, LEAVES), slot) > 0:
            put(node, NODE_WORDS + there, slot)
            read_entry(width, recipe, rows + row_bytes * slot, entry_at(tree, node, there))
            there += 1
    put(tree, ENTRIES, get(tree, ENTRIES) - (count - there))
    leaves = (total + FILLED - 1) // FILLED
    put(node, COUNT, there)
    put(node, NEXT, number + 1 if number + 1 < leaves else NONE)
    put(node, PREVIOUS, number - 1)
    put(node, PARENT, leaves + number // FILLED if leaves > 1 else NONE)
    put(node, KIND, LEAF)


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
    base, step = entry_at(tree, node, 0), 8 * get(tree, WIDTH)
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
    put(node_at(tree, node), KIND, GIVEN_BACK)
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
    spot, value_spot = entry_at(tree, node, place), node + 8 * (NODE_WORDS + place)
    move(spot, spot + 8 * width, (count - place) * width)
    move(value_spot, value_spot + 8, count - place)
    move(words, spot, width)
    put(value_spot, 0, value)
    put(node, COUNT, count + 1)


@linked
def _close(tree: int, node: int, place: int) -> None:
    """Take the entry at a place of a node out."""
    width, count = get(tree, WIDTH), get(node, COUNT)
    spot, value_spot = entry_at(tree, node, place), node + 8 * (NODE_WORDS + place)
    move(spot + 8 * width, spot, (count - place - 1) * width)
    move(value_spot + 8, value_spot, count - place - 1)
    put(node, COUNT, count - 1)


@linked
def place_of(node: int, value: int) -> Any:
    """The place of a slot, or of a child, in a node; behind the last one where it is not there."""
    place = 0
    while place < get(node, COUNT) and value_at(node, place) != value:
        place += 1
    return place


@linked
def _split(tree: int, parent: int, place: int) -> None:
    """Give half of a full child to a new node behind it; the parent is not full."""
    width, above = get(tree, WIDTH), node_at(tree, parent)
    number, new = value_at(above, place), _take(tree)
    child, other = node_at(tree, number), node_at(tree, new)
    half = get(child, COUNT) >> 1
    moved = get(child, COUNT) - half
    move(entry_at(tree, child, half), entry_at(tree, other, 0), moved * width)
    move(child + 8 * (NODE_WORDS + half), other + 8 * NODE_WORDS, moved)
    put(child, COUNT, half)
    put(other, COUNT, moved)
    put(other, KIND, get(child, KIND))
    put(other, PARENT, parent)
    if get(child, KIND) == LEAF:
        after = get(child, NEXT)
        put(other, NEXT, after)
        put(other, PREVIOUS, number)
        put(child, NEXT, new)
        if after != NONE:
            put(thawed(tree, after), PREVIOUS, new)
        for one in range(moved):
            set_half(get(tree, LEAVES), value_at(other, one), new + 1)
    else:
        for one in range(moved):
            put(thawed(tree, value_at(other, one)), PARENT, new)
    _open(tree, above, place + 1, entry_at(tree, other, 0), new)


@linked
def _raise_root(tree: int) -> None:
    """A new root above the old one, which is full."""
    old, new = get(tree, ROOT), _take(tree)
    root = node_at(tree, new)
    put(root, COUNT, 0)
    put(root, KIND, INNER)
    put(root, PARENT, NONE)
    _open(tree, root, 0, entry_at(tree, node_at(tree, old), 0), old)
    put(node_at(tree, old), PARENT, new)
    put(tree, ROOT, new)
    put(tree, HEIGHT, get(tree, HEIGHT) + 1)


# --- entries --------------------------------------------------------------------------------------


@linked
def insert(tree: int, words: int, slot: int) -> None:
    """Add an entry that is not there."""
    width, number = get(tree, WIDTH), get(tree, ROOT)
    if get(thawed(tree, number), COUNT) == CAPACITY:
        _raise_root(tree)
        number = get(tree, ROOT)
    for _ in range(get(tree, HEIGHT) - 1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, width, 1) - 1, 0)
        if get(thawed(tree, value_at(node, place)), COUNT) == CAPACITY:
            _split(tree, number, place)
            if compare(tree, entry_at(tree, node, place + 1), words, width) <= 0:
                place += 1
        number = value_at(node, place)
    node = node_at(tree, number)
    _enter(tree, number, _place(tree, node, words, width, 0), words, slot)


@linked
def _enter(tree: int, leaf: int, place: int, words: int, slot: int) -> None:
    _open(tree, node_at(tree, leaf), place, words, slot)
    set_half(get(tree, LEAVES), slot, leaf + 1)
    put(tree, ENTRIES, get(tree, ENTRIES) + 1)


@linked
def insert_at(tree: int, leaf: int, words: int, slot: int) -> None:
    """The same where it belongs between the entries of a leaf, of which no other node has to know;
    else it looks for another leaf. Any node may be named."""
    width, node = get(tree, WIDTH), node_at(tree, leaf)
    count = get(node, COUNT) if leaf != NONE and get(node, KIND) == LEAF else 0
    if count == 0 or count == CAPACITY:
        insert(tree, words, slot)
        return
    place = _place(tree, node, words, width, 0)
    if place == 0 or place == count:
        insert(tree, words, slot)
    else:
        _enter(tree, leaf, place, words, slot)


@linked
def leaf_of(tree: int, words: int) -> Any:
    """The leaf in which an entry is, or into which it goes; it is asked for."""
    width, number = get(tree, WIDTH), get(tree, ROOT)
    for _ in range(get(tree, HEIGHT) - 1):
        node = node_at(tree, number)
        place = max(_place(tree, node, words, width, 1) - 1, 0)
        number = value_at(node, place)
    ask_for_leaf(tree, number)
    return number


@linked
def ask_for_leaf(tree: int, leaf: int) -> None:
    """Let the memory of a leaf be on the way."""
    node = node_at(tree, leaf)
    for line in range(0, 8 * (NODE_WORDS + CAPACITY * (get(tree, WIDTH) + 1)), LINE_BYTES):
        prefetch_to_write(node + line)


@linked
def leaf_with(tree: int, slot: int) -> Any:
    """The leaf that has the entry of a slot; NONE where there is none, or where it waits."""
    return max(half_at(get(tree, LEAVES), slot), 0) - 1


@linked
def remove(tree: int, slot: int) -> Any:
    """Take the entry of a slot out; returns whether there was one that does not wait."""
    leaf = leaf_with(tree, slot)
    if leaf != NONE:
        take_out(tree, slot, leaf)
    return leaf != NONE


@linked
def take_out(tree: int, slot: int, leaf: int) -> None:
    """Take the entry of a slot out of the leaf that has it, or had it when it was frozen."""
    node = thawed(tree, leaf)
    place = place_of(node, slot)
    if place < get(node, COUNT):
        _close(tree, node, place)
        put(tree, ENTRIES, get(tree, ENTRIES) - 1)
    set_half(get(tree, LEAVES), slot, 0)
    if get(node, COUNT) == 0 and get(node, KIND) == LEAF:
        _leave(tree, leaf)


@linked
def exchange(tree: int, leaf: int, place: int, fresh: int) -> Any:
    """Let an entry have other words, if it stays in its leaf: where it comes no earlier than the
    first entry of it and no later than the last, no other node has to know. Returns whether."""
    width, node = get(tree, WIDTH), node_at(tree, leaf)
    if compare(tree, entry_at(tree, node, 0), fresh, width) > 0:
        return False
    if compare(tree, fresh, entry_at(tree, node, get(node, COUNT) - 1), width) > 0:
        return False
    goal = _place(tree, node, fresh, width, 0)
    goal -= goal > place
    slot, spot = value_at(node, place), entry_at(tree, node, place)
    value_spot = node + 8 * (NODE_WORDS + place)
    if goal > place:
        move(spot + 8 * width, spot, (goal - place) * width)
        move(value_spot + 8, value_spot, goal - place)
    else:
        before, value_before = entry_at(tree, node, goal), node + 8 * (NODE_WORDS + goal)
        move(before, before + 8 * width, (place - goal) * width)
        move(value_before, value_before + 8, place - goal)
    move(fresh, entry_at(tree, node, goal), width)
    put(node, NODE_WORDS + goal, slot)
    return True


@linked
def _leave(tree: int, leaf: int) -> None:
    """Give back a leaf without entries, and all that is empty then."""
    number = leaf
    if number != get(tree, ROOT):
        node = node_at(tree, leaf)
        before, after = get(node, PREVIOUS), get(node, NEXT)
        if before != NONE:
            put(thawed(tree, before), NEXT, after)
        if after != NONE:
            put(thawed(tree, after), PREVIOUS, before)
    while number != get(tree, ROOT) and get(node_at(tree, number), COUNT) == 0:
        above = get(node_at(tree, number), PARENT)
        _give_back(tree, number)
        _close(tree, node_at(tree, above), place_of(node_at(tree, above), number))
        number = above
    root = node_at(tree, get(tree, ROOT))
    if get(root, COUNT) == 0:  # all is gone: the root is an empty leaf again
        put(root, NEXT, NONE)
        put(root, PREVIOUS, NONE)
        put(root, KIND, LEAF)
        put(tree, HEIGHT, 1)
    while get(tree, HEIGHT) > 1 and get(root, COUNT) == 1:
        old = get(tree, ROOT)
        put(tree, ROOT, value_at(root, 0))
        put(tree, HEIGHT, get(tree, HEIGHT) - 1)
        _give_back(tree, old)
        root = thawed(tree, get(tree, ROOT))
        put(root, PARENT, NONE)
