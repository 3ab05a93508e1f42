"""Trails: the versions of each row in their order, and sums over any stretch of them, compiled.

The versions of a row are numbered from 0 on as they are written. Its trail is a radix tree over
these numbers: a leaf has eight versions (slot in the table of versions, time), every other node
eight nodes below it, and with each of them the times and the sums over the whole of it, made when
its last version came. A window is a stretch of numbers, less those whose time is outside of it
(late events leave such ones); it takes whole nodes where all of their versions are inside, so that
it costs as many steps as the tree is high, and the same additions in the same order everywhere.

Invariant: the numbers from FIRST to NEXT of a row are there, no others; what a node says of one
below it holds when all eight of that one's children were written, and counts only where none of
them has been dropped since.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.extending import intrinsic

from headgate.state.compiled import compiled_apart, linked, numba
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT
from headgate.state.order_words import DOUBLE, SINGLE, WHOLE, double_order
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

# The words of a trail: those of all rows of one table. A pool of nodes has four of them: its
# address, the first of its free nodes, how many were ever used, how many are left.
HEADS = 0  # by slot of the row: its head
LEAVES, INNERS = 1, 5  # pools
FREE_NODE, USED_NODES, LEFT_NODES = 1, 2, 3  # of a pool
ENTRY = 9  # the words of an entry of an inner node
ROWS, WIDTH = 10, 11  # of the table of versions
SPARE, SPARE_USED, SPARE_COUNT = 12, 13, 14  # its slots that are set aside
CHANGED, CHANGED_COUNT = 15, 16  # its slots that the batch changed
LIMIT, IS_TIMED = 17, 18  # how long versions are kept
KEY_WORDS, ROW_WIDTH = 19, 20  # of the table that the versions are of
COLUMNS, RECIPE = 21, 22  # those that are added up: offset, kind, word and mask of the null bit
TURN = 23  # which batch runs, counted from 1
TRAIL_WORDS = 24
# The words of a head. A height of 0: there are no versions.
ROOT, HEIGHT, FIRST, NEXT, LATEST, LAST_TURN, POSITION = range(7)
HEAD_WORDS = 8
FAN, FAN_BITS = 8, 3
LEAF_SLOT, LEAF_TIME, LEAF_ENTRY = 0, 1, 2
CHILD, LEAST, GREATEST, SUMS = range(4)  # of an entry of an inner node
COUNT, TOTAL, LOW, MIN, MAX, SUM_WORDS = range(6)  # of a column; of ints in two halves
VERSIONS = SUM_WORDS  # the word behind the sums that a survey counts versions in
RECIPE_WORDS = 4
HEIGHT_MAX = 21  # numbers are below 2 ** 63
_LOW_BITS = 0xFFFFFFFF
_BEGIN, _END = np.int64(-(2**63)), np.int64(2**63 - 1)
_I64, _DOUBLE, _FLOAT = llvm.IntType(64), llvm.DoubleType(), llvm.FloatType()


@intrinsic
def real(typing_context: Any, word: Any) -> Any:
    """The double whose bits these are."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _DOUBLE)

    return types.float64(types.int64), generate


@intrinsic
def bits(typing_context: Any, value: Any) -> Any:
    """The bits of a double."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), generate


@intrinsic
def _widened(typing_context: Any, word: Any) -> Any:
    """The bits of the double that a float of 32 bits is, by the bits of that."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = builder.bitcast(builder.trunc(args[0], llvm.IntType(32)), _FLOAT)
        return builder.bitcast(builder.fpext(half, _DOUBLE), _I64)

    return types.int64(types.int64), generate


@intrinsic
def words_aside(typing_context: Any) -> Any:
    """The address of some words that are the caller's own until it returns."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        made = cgutils.alloca_once(builder, _I64, size=HEIGHT_MAX + 3)
        return builder.ptrtoint(made, _I64)

    return types.int64(), generate


# --- nodes ----------------------------------------------------------------------------------------


@linked
def head_of(trail: int, slot: int) -> Any:
    return get(trail, HEADS) + 8 * HEAD_WORDS * slot


@linked
def leaf_entry(trail: int, leaf: int, number: int) -> Any:
    return get(trail, LEAVES) + 8 * LEAF_ENTRY * (FAN * leaf + (number & (FAN - 1)))


@linked
def entry_at(trail: int, inner: int, number: int, level: int) -> Any:
    """The entry of a node at this level for what is below it and has the number."""
    place = (number >> (FAN_BITS * (level - 1))) & (FAN - 1)
    return get(trail, INNERS) + 8 * get(trail, ENTRY) * (FAN * inner + place)


@linked
def _new_node(trail: int, pool: int, node_words: int, entry_words: int) -> Any:
    """A node of a pool whose entries lead nowhere; there must be one left."""
    node = get(trail, pool + FREE_NODE)
    if node >= 0:
        put(trail, pool + FREE_NODE, get(get(trail, pool), node * node_words))
    else:
        node = get(trail, pool + USED_NODES)
        put(trail, pool + USED_NODES, node + 1)
    put(trail, pool + LEFT_NODES, get(trail, pool + LEFT_NODES) - 1)
    for place in range(FAN):
        put(get(trail, pool), node * node_words + place * entry_words, -1)
    return node


@linked
def _new_below(trail: int, level: int) -> Any:
    """A node of this level."""
    if level == 1:
        return _new_node(trail, LEAVES, FAN * LEAF_ENTRY, LEAF_ENTRY)
    entry = get(trail, ENTRY)
    return _new_node(trail, INNERS, FAN * entry, entry)


@linked
def free(trail: int, node: int, level: int) -> None:
    pool, words = LEAVES, FAN * LEAF_ENTRY
    if level > 1:
        pool, words = INNERS, FAN * get(trail, ENTRY)
    put(get(trail, pool), node * words, get(trail, pool + FREE_NODE))
    put(trail, pool + FREE_NODE, node)
    put(trail, pool + LEFT_NODES, get(trail, pool + LEFT_NODES) + 1)


@linked
def _node_of(trail: int, head: int, number: int, level: int) -> Any:
    """The node at this level on the way to a number; -1 where there is none."""
    node = get(head, ROOT)
    for above in range(get(head, HEIGHT), level, -1):
        if node < 0:  # all below it was dropped, and given back with it
            return node
        node = get(entry_at(trail, node, number, above), CHILD)
    return node


@linked
def version_at(trail: int, head: int, number: int) -> Any:
    """The entry of a version in its leaf."""
    return leaf_entry(trail, _node_of(trail, head, number, 1), number)


@linked
def version_row(trail: int, head: int, number: int) -> Any:
    """The address of a version's row."""
    slot = get(version_at(trail, head, number), LEAF_SLOT)
    return get(trail, ROWS) + 8 * get(trail, WIDTH) * slot


# --- sums -----------------------------------------------------------------------------------------


@linked
def merged(
    is_real: int,
    known: int, total: int, low: int, least: int, greatest: int,
    count: int, more: int, more_low: int, smallest: int, largest: int,
) -> Any:  # fmt: skip
    """Sums and what stands behind all that they are of; of equal values the first one counts."""
    if count == 0:
        return known, total, low, least, greatest
    if known == 0:
        return count, more, more_low, smallest, largest
    if is_real:
        more = bits(real(total) + real(more))
        if double_order(smallest) < double_order(least):
            least = smallest
        if double_order(largest) > double_order(greatest):
            greatest = largest
        return known + count, more, low, least, greatest
    extremes = min(least, smallest), max(greatest, largest)
    return known + count, total + more, low + more_low, extremes[0], extremes[1]


@linked
def is_real_column(trail: int, column: int) -> Any:
    """Whether a column has floats; 0 for none."""
    if column < 0:
        return 0
    kind = get(get(trail, RECIPE), RECIPE_WORDS * column + 1)
    return 1 if kind in (DOUBLE, SINGLE) else 0


@linked
def value_of(trail: int, column: int, row: int) -> Any:
    """The value of a column as sums of its own: how many, both halves of the sum, the extremes."""
    recipe = get(trail, RECIPE) + 8 * RECIPE_WORDS * column
    mask = get(recipe, 3)
    if mask != 0 and get(row, get(recipe, 2)) & mask:
        return 0, 0, 0, 0, 0
    offset, kind = get(recipe, 0), get(recipe, 1)
    word = get(row + (offset & ~7), 0)
    if kind == DOUBLE:
        return 1, word, 0, word, word
    if kind != WHOLE:
        word = word << (32 - 8 * (offset & 7)) >> 32
    if kind == SINGLE:
        word = _widened(word)
        return 1, word, 0, word, word
    return 1, word >> 32, word & _LOW_BITS, word, word


@linked
def sums_at(sums: int) -> Any:
    """The sums that stand at an address."""
    extremes = get(sums, MIN), get(sums, MAX)
    return get(sums, COUNT), get(sums, TOTAL), get(sums, LOW), extremes[0], extremes[1]


@linked
def put_sums(sums: int, count: int, total: int, low: int, least: int, greatest: int) -> None:
    put(sums, COUNT, count)
    put(sums, TOTAL, total)
    put(sums, LOW, low)
    put(sums, MIN, least)
    put(sums, MAX, greatest)


@linked
def _summarise(trail: int, node: int, level: int, entry: int) -> None:
    """Let the entry of a node above say what is below it."""
    columns = get(trail, COLUMNS)
    for word in range(SUM_WORDS * columns):
        put(entry, SUMS + word, 0)
    least, greatest = _END, _BEGIN
    for place in range(FAN):
        if level == 1:
            below = leaf_entry(trail, node, place)
            slot, time = get(below, LEAF_SLOT), get(below, LEAF_TIME)
            if slot < 0:
                continue
            least, greatest = min(least, time), max(greatest, time)
            row = get(trail, ROWS) + 8 * get(trail, WIDTH) * slot
            for column in range(columns):
                sums = entry + 8 * (SUMS + SUM_WORDS * column)
                given = sums_at(sums), value_of(trail, column, row)
                put_sums(sums, *merged(is_real_column(trail, column), *given[0], *given[1]))
        else:
            below = get(trail, INNERS) + 8 * get(trail, ENTRY) * (FAN * node + place)
            if get(below, CHILD) < 0:
                continue
            least = min(least, get(below, LEAST))
            greatest = max(greatest, get(below, GREATEST))
            for column in range(columns):
                shift = 8 * (SUMS + SUM_WORDS * column)
                given = sums_at(entry + shift), sums_at(below + shift)
                is_real = is_real_column(trail, column)
                put_sums(entry + shift, *merged(is_real, *given[0], *given[1]))
    put(entry, LEAST, least)
    put(entry, GREATEST, greatest)


# --- what is written ------------------------------------------------------------------------------


@linked
def _place(trail: int, head: int, number: int, slot: int, time: int) -> None:
    """Put a version behind all others of its row; there must be nodes left."""
    height = get(head, HEIGHT)
    if height == 0:
        height = 1
        while number >> (FAN_BITS * height):
            height += 1
        put(head, ROOT, _new_below(trail, height))
        put(head, HEIGHT, height)
    elif number >> (FAN_BITS * height):
        height += 1
        root = _new_below(trail, height)
        entry = entry_at(trail, root, 0, height)
        put(entry, CHILD, get(head, ROOT))
        _summarise(trail, get(head, ROOT), height - 1, entry)
        put(head, ROOT, root)
        put(head, HEIGHT, height)
    node = get(head, ROOT)
    for level in range(height, 1, -1):
        entry = entry_at(trail, node, number, level)
        node = get(entry, CHILD)
        if node < 0:
            node = _new_below(trail, level - 1)
            put(entry, CHILD, node)
    entry = leaf_entry(trail, node, number)
    put(entry, LEAF_SLOT, slot)
    put(entry, LEAF_TIME, time)
    level = 1
    while level < height and (number + 1) & ((1 << (FAN_BITS * level)) - 1) == 0:
        above = _node_of(trail, head, number, level + 1)
        entry = entry_at(trail, above, number, level + 1)
        _summarise(trail, get(entry, CHILD), level, entry)
        level += 1


@linked
def _list(trail: int, slot: int) -> None:
    count = get(trail, CHANGED_COUNT)
    put(get(trail, CHANGED), count, slot)
    put(trail, CHANGED_COUNT, count + 1)


@linked
def _drop_first(trail: int, head: int, epoch: int) -> None:
    """Let the oldest version of a row be no more, and the nodes that have nothing but such."""
    first = get(head, FIRST)
    slot = get(version_at(trail, head, first), LEAF_SLOT)
    row = get(trail, ROWS) + 8 * get(trail, WIDTH) * slot
    if get(row, 0) >> HEADER_EPOCH_SHIFT != epoch:
        _list(trail, slot)
    put(row, 0, epoch << HEADER_EPOCH_SHIFT)
    put(head, FIRST, first + 1)
    level = 1
    while level < get(head, HEIGHT) and (first + 1) & ((1 << (FAN_BITS * level)) - 1) == 0:
        entry = entry_at(trail, _node_of(trail, head, first, level + 1), first, level + 1)
        free(trail, get(entry, CHILD), level)
        put(entry, CHILD, -1)
        level += 1


@linked
def end(trail: int, slot: int, epoch: int) -> None:
    """A row is no more, and so are its versions."""
    head = head_of(trail, slot)
    if get(head, HEIGHT) == 0:
        return
    while get(head, FIRST) < get(head, NEXT):
        _drop_first(trail, head, epoch)
    for level in range(1, get(head, HEIGHT) + 1):
        node = _node_of(trail, head, get(head, NEXT) - 1, level)
        if node >= 0:
            free(trail, node, level)
    for word in range(HEAD_WORDS):
        put(head, word, 0)


@linked
def is_crowded(trail: int, versions: int) -> Any:
    """Whether there may be too little room for so many versions more."""
    spare = get(trail, SPARE_COUNT) - get(get(trail, SPARE_USED), 0)
    nodes = versions * (HEIGHT_MAX - 1)
    return (
        spare < versions
        or get(trail, LEAVES + LEFT_NODES) < versions
        or get(trail, INNERS + LEFT_NODES) < nodes
    )


@compiled_apart
def note_version(trail: int, slot: int, row: int, time: int, epoch: int, position: int) -> None:
    """Keep a changed row as the transaction at this position leaves it, however many of its
    parameters name it, and drop what is too old beside it."""
    if get(row, 0) & HEADER_ALIVE == 0:
        end(trail, slot, epoch)
        return
    head = head_of(trail, slot)
    is_first = get(head, HEIGHT) == 0
    turn = get(trail, TURN)
    if not is_first and get(head, LAST_TURN) == turn and get(head, POSITION) == position:
        return
    put(head, LAST_TURN, turn)
    put(head, POSITION, position)
    used, number = get(trail, SPARE_USED), get(head, NEXT)
    own = get(get(trail, SPARE), get(used, 0))
    put(used, 0, get(used, 0) + 1)
    _copy(trail, row, own, number, time, epoch)
    _list(trail, own)
    latest = time if is_first else max(get(head, LATEST), time)
    put(head, LATEST, latest)
    _place(trail, head, number, own, time)
    put(head, NEXT, number + 1)
    limit, is_timed = get(trail, LIMIT), get(trail, IS_TIMED)
    while get(head, FIRST) < number:
        first = get(head, FIRST)
        if is_timed:
            if get(version_at(trail, head, first), LEAF_TIME) > latest - limit:
                return
        elif number + 1 - first <= limit:
            return
        _drop_first(trail, head, epoch)


@linked
def _copy(trail: int, row: int, slot: int, number: int, time: int, epoch: int) -> None:
    """Make a row of the table of versions: the key, the number, the time, and the rest."""
    version = get(trail, ROWS) + 8 * get(trail, WIDTH) * slot
    put(version, 0, (epoch << HEADER_EPOCH_SHIFT) | HEADER_ALIVE)
    keys, is_timed = get(trail, KEY_WORDS), get(trail, IS_TIMED)
    for word in range(1, keys + 1):
        put(version, word, get(row, word))
    put(version, keys + 1, number)
    if is_timed:
        put(version, keys + 2, time)
    for word in range(keys + 1, get(trail, ROW_WIDTH)):
        put(version, word + 1 + is_timed, get(row, word))


# --- the same, called from Python -----------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def note_one(trail: int, slot: int, row: int, time: int, epoch: int, position: int) -> None:
    note_version(trail, slot, row, time, epoch, position)


@numba.njit(cache=True, nogil=True)
def is_crowded_one(trail: int, versions: int) -> bool:
    return bool(is_crowded(trail, versions))


@numba.njit(cache=True, nogil=True)
def end_all(trail: int, slots: np.ndarray, epoch: int) -> None:
    """These rows are no more, and so are their versions."""
    for slot in slots:
        end(trail, slot, epoch)


@numba.njit(cache=True, nogil=True)
def versions_of(trail: int, slots: np.ndarray) -> np.ndarray:
    """The slots of the versions of these rows, row after row, each row's in their order."""
    total = 0
    for slot in slots:
        head = head_of(trail, slot)
        total += get(head, NEXT) - get(head, FIRST)
    found, count = np.empty(total, np.int64), 0
    for slot in slots:
        head = head_of(trail, slot)
        for number in range(get(head, FIRST), get(head, NEXT)):
            found[count] = get(version_at(trail, head, number), LEAF_SLOT)
            count += 1
    return found


@numba.njit(cache=True, nogil=True)
def end_before(trail: int, slots: np.ndarray, numbers: np.ndarray, epoch: int) -> None:
    """End the versions of each row that begins anew: one of a number that it had already comes."""
    for place in range(len(slots)):
        head = head_of(trail, slots[place])
        if get(head, HEIGHT) != 0 and numbers[place] < get(head, NEXT):
            end(trail, slots[place], epoch)


@numba.njit(cache=True, nogil=True)
def drop_through(trail: int, slots: np.ndarray, numbers: np.ndarray, epoch: int) -> None:
    """Drop the versions of these rows, of each up to such a number; where all went, those that
    come next need not be the next ones by number."""
    for place in range(len(slots)):
        head = head_of(trail, slots[place])
        if get(head, HEIGHT) != 0 and numbers[place] < get(head, NEXT):
            while get(head, FIRST) <= numbers[place]:
                _drop_first(trail, head, epoch)
            if get(head, FIRST) == get(head, NEXT):
                end(trail, slots[place], epoch)


@numba.njit(cache=True, nogil=True)
def fill(
    trail: int, owners: np.ndarray, numbers: np.ndarray, times: np.ndarray, slots: np.ndarray
) -> None:
    """Put versions into trails that are empty, those of one row in the order of their numbers."""
    for place in range(len(owners)):
        head, number, time = head_of(trail, owners[place]), numbers[place], times[place]
        if get(head, HEIGHT) == 0:
            put(head, FIRST, number)
            put(head, LATEST, time)
        put(head, LATEST, max(get(head, LATEST), time))
        _place(trail, head, number, slots[place], time)
        put(head, NEXT, number + 1)
