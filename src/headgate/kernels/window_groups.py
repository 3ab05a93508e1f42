"""Groups of a window: aggregates of the rows that are in it, kept as rows come and go, compiled.

The rows of a window and those staged behind it stand in a line, in the order of the window. What
enters is added to its group, and what leaves is taken away again; both take the same few steps
however long the window is. Of each list (one has all rows of a group, the others those that may yet
be its least or greatest) the first row is the one that is asked for: a row behind another one that
is less, and stays longer, is in no list of least ones.

Invariant: all that is said of a group is said by its rows in their order alone, whatever came and
went before; so it is the same when the groups are made anew from the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.kernels.exact_sums import SUM_WORDS, add_exactly, rounded
from headgate.state.characters import compare_texts
from headgate.state.compiled import linked, mix, numba
from headgate.state.order_words import double_order
from headgate.state.trail import bits, real
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

# The words of the frame. Of rows, by slot:
ROW_GROUP, ROW_TIME, ROW_NUMBER, ROW_PRESENT, ROW_WORDS, ROW_LINKS = range(6)
FREE_ROWS, FREE_ROW_COUNT = 6, 7
LINE, BEGIN, INSIDE, END = 8, 9, 10, 11  # slots in order; those before INSIDE are in the window
# Of groups:
GROUP_ROWS, GROUP_REFS, GROUP_HASH, GROUP_KEYS, GROUP_COUNTS, GROUP_SUMS = range(12, 18)
GROUP_ENDS, GROUP_EXACT, GROUP_ROUNDED, GROUP_FLAG = range(18, 22)
FREE_GROUPS, FREE_GROUP_COUNT, CELLS, MASK = range(22, 26)
ORDER, ORDER_COUNT, CHANGED, CHANGED_COUNT, SPARE = range(26, 31)
# Of the declaration, and beside all of it:
KEYS, COLUMNS, LISTS, EXACTS = range(31, 35)  # how many words a row has of each
ADDED, EXACT_OF, LIST_OF, LIST_KIND, TEXTS, SCRATCH = range(35, 41)
FRAME_WORDS = 41
NOT_EXACT = -1
WHOLE, REAL, TEXT, GREATEST = 0, 1, 2, 4  # of a list: how its words compare
# What is said of a group: a word of its key, how many rows, how many values and so on.
KEY, ROWS, VALUES, SUM, WIDE_SUM, EXACT_SUM, EXTREME, MEAN, EXACT_MEAN = range(9)
RECIPE_WORDS = 3
_MASK = np.int64(0xFFFFFFFF)
_SMALL = 1 << 53  # whole numbers below it are doubles
NULL, LONG_DIVISION = 1, 2


# --- lists ----------------------------------------------------------------------------------------
# List 0 has all rows of a group. A slot has the one before and the one behind it in each list.


@linked
def _link(frame: int, slot: int, which: int, way: int) -> Any:
    """The address of the slot before (0) or behind (1) one in a list."""
    place = 2 * (get(frame, LISTS) * slot + which) + way
    return get(frame, ROW_LINKS) + 8 * place


@linked
def _end(frame: int, group: int, which: int, way: int) -> Any:
    """The address of the first (0) or the last (1) slot of a group's list."""
    return get(frame, GROUP_ENDS) + 8 * (2 * (get(frame, LISTS) * group + which) + way)


@linked
def _word(frame: int, slot: int, column: int) -> Any:
    return get(get(frame, ROW_WORDS), get(frame, COLUMNS) * slot + column)


@linked
def _is_before(frame: int, which: int, one: int, other: int) -> Any:
    """Whether one row has the better claim on being the least, or the greatest, of a list."""
    column, kind = get(get(frame, LIST_OF), which), get(get(frame, LIST_KIND), which)
    left, right = _word(frame, one, column), _word(frame, other, column)
    if kind & GREATEST:
        left, right = right, left
    if kind & REAL:
        return double_order(left) < double_order(right)
    if kind & TEXT:
        return compare_texts(get(frame, TEXTS), left, right) < 0
    return left < right


@linked
def _insert(frame: int, group: int, which: int, slot: int) -> None:
    """Put a row into a list in its place, which is mostly the last."""
    time = get(get(frame, ROW_TIME), slot)
    before, behind = get(_end(frame, group, which, 1), 0), np.int64(-1)
    while before >= 0 and get(get(frame, ROW_TIME), before) > time:
        behind, before = before, get(_link(frame, before, which, 0), 0)
    if which > 0:
        if behind >= 0 and _is_before(frame, which, behind, slot):
            return
        while before >= 0 and _is_before(frame, which, slot, before):
            before = get(_link(frame, before, which, 0), 0)
    put(_link(frame, slot, which, 0), 0, before)
    put(_link(frame, slot, which, 1), 0, behind)
    put(_end(frame, group, which, 0) if before < 0 else _link(frame, before, which, 1), 0, slot)
    put(_end(frame, group, which, 1) if behind < 0 else _link(frame, behind, which, 0), 0, slot)


@linked
def _remove_first(frame: int, group: int, which: int, slot: int) -> None:
    """The oldest row of a group leaves a list, if it is in it."""
    if get(_end(frame, group, which, 0), 0) != slot:
        return
    behind = get(_link(frame, slot, which, 1), 0)
    put(_end(frame, group, which, 0), 0, behind)
    put(_end(frame, group, which, 1) if behind < 0 else _link(frame, behind, which, 0), 0, -1)


# --- groups ---------------------------------------------------------------------------------------


@linked
def _hash(frame: int, key: int) -> Any:
    value = np.int64(0)
    for place in range(get(frame, KEYS)):
        value = mix(value, get(key, place))
    return value


@linked
def _is_key(frame: int, group: int, key: int) -> Any:
    keys = get(frame, KEYS)
    own = get(frame, GROUP_KEYS) + 8 * keys * group
    for place in range(keys):
        if get(own, place) != get(key, place):
            return False
    return True


@linked
def _group_of(frame: int, key: int) -> Any:
    """The group with a key, made where there is none; -1 where there is no room for it."""
    cells, mask = get(frame, CELLS), get(frame, MASK)
    value = _hash(frame, key)
    place = value & mask
    group = get(cells, place)
    while group >= 0:
        if get(get(frame, GROUP_HASH), group) == value and _is_key(frame, group, key):
            return group
        place = (place + 1) & mask
        group = get(cells, place)
    left = get(frame, FREE_GROUP_COUNT) - 1
    if left < 0:
        return np.int64(-1)
    put(frame, FREE_GROUP_COUNT, left)
    group = get(get(frame, FREE_GROUPS), left)
    put(cells, place, group)
    put(get(frame, GROUP_HASH), group, value)
    _begin(frame, group, key)
    return group


@linked
def _begin(frame: int, group: int, key: int) -> None:
    """A group has no rows yet."""
    keys, columns = get(frame, KEYS), get(frame, COLUMNS)
    for place in range(keys):
        put(get(frame, GROUP_KEYS), keys * group + place, get(key, place))
    put(get(frame, GROUP_ROWS), group, 0)
    put(get(frame, GROUP_REFS), group, 0)
    for place in range(columns):
        put(get(frame, GROUP_COUNTS), columns * group + place, 0)
        put(get(frame, GROUP_SUMS), 2 * (columns * group + place), 0)
        put(get(frame, GROUP_SUMS), 2 * (columns * group + place) + 1, 0)
    for which in range(get(frame, LISTS)):
        put(_end(frame, group, which, 0), 0, -1)
        put(_end(frame, group, which, 1), 0, -1)
    words = SUM_WORDS * get(frame, EXACTS)
    for place in range(words):
        put(get(frame, GROUP_EXACT), words * group + place, 0)


@linked
def _forget(frame: int, group: int) -> None:
    """A group has lost its last row: those that were found behind it move up."""
    cells, mask = get(frame, CELLS), get(frame, MASK)
    hole = get(get(frame, GROUP_HASH), group) & mask
    while get(cells, hole) != group:
        hole = (hole + 1) & mask
    place = (hole + 1) & mask
    other = get(cells, place)
    while other >= 0:
        home = get(get(frame, GROUP_HASH), other) & mask
        if ((place - home) & mask) >= ((place - hole) & mask):
            put(cells, hole, other)
            hole = place
        place = (place + 1) & mask
        other = get(cells, place)
    put(cells, hole, -1)
    put(get(frame, FREE_GROUPS), get(frame, FREE_GROUP_COUNT), group)
    put(frame, FREE_GROUP_COUNT, get(frame, FREE_GROUP_COUNT) + 1)


@numba.njit(cache=True, nogil=True)
def place_all(frame: int, before: np.ndarray) -> None:
    """The groups of cells as they were have their places among more of them, which are empty."""
    cells, mask = get(frame, CELLS), get(frame, MASK)
    for group in before:
        if group >= 0:
            place = get(get(frame, GROUP_HASH), group) & mask
            while get(cells, place) >= 0:
                place = (place + 1) & mask
            put(cells, place, group)


@linked
def _note_changed(frame: int, group: int) -> None:
    if get(get(frame, GROUP_FLAG), group) == 0:
        put(get(frame, GROUP_FLAG), group, 1)
        put(get(frame, CHANGED), get(frame, CHANGED_COUNT), group)
        put(frame, CHANGED_COUNT, get(frame, CHANGED_COUNT) + 1)


@linked
def _add(frame: int, slot: int, times: int) -> None:
    """Add the values of a row to its group, or with -1 take them away."""
    group, columns = get(get(frame, ROW_GROUP), slot), get(frame, COLUMNS)
    _note_changed(frame, group)
    put(get(frame, GROUP_ROWS), group, get(get(frame, GROUP_ROWS), group) + times)
    present = get(get(frame, ROW_PRESENT), slot)
    for column in range(columns):
        if present >> column & 1 == 0:
            continue
        place = columns * group + column
        put(get(frame, GROUP_COUNTS), place, get(get(frame, GROUP_COUNTS), place) + times)
        exact = get(get(frame, EXACT_OF), column)
        word = _word(frame, slot, column)
        if exact >= 0:
            number = get(frame, EXACTS) * group + exact
            add_exactly(get(frame, GROUP_EXACT) + 8 * SUM_WORDS * number, word, times)
        elif get(get(frame, ADDED), column):
            sums = get(frame, GROUP_SUMS) + 16 * place
            put(sums, 0, get(sums, 0) + times * (word >> 32))
            put(sums, 1, get(sums, 1) + times * (word & _MASK))


@linked
def _enter(frame: int, slot: int) -> None:
    group, present = get(get(frame, ROW_GROUP), slot), get(get(frame, ROW_PRESENT), slot)
    _add(frame, slot, 1)
    _insert(frame, group, 0, slot)
    for which in range(1, get(frame, LISTS)):
        if present >> get(get(frame, LIST_OF), which) & 1:
            _insert(frame, group, which, slot)


@linked
def _leave(frame: int, slot: int) -> None:
    group = get(get(frame, ROW_GROUP), slot)
    _add(frame, slot, -1)
    for which in range(get(frame, LISTS)):
        _remove_first(frame, group, which, slot)


@linked
def _release(frame: int, slot: int) -> None:
    """A row is no more."""
    group, refs = get(get(frame, ROW_GROUP), slot), get(frame, GROUP_REFS)
    put(refs, group, get(refs, group) - 1)
    if get(refs, group) == 0:
        _forget(frame, group)
    put(get(frame, FREE_ROWS), get(frame, FREE_ROW_COUNT), slot)
    put(frame, FREE_ROW_COUNT, get(frame, FREE_ROW_COUNT) + 1)


# --- rows come and go -----------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def stage(frame: int, first: int, keys: np.ndarray, words: np.ndarray, present: np.ndarray,
          times: np.ndarray, numbers: np.ndarray) -> int:  # fmt: skip
    """Rows come behind the line, from the first that is named on; returns how many are there when
    it has run out of room for groups. There is room for all rows."""
    width, columns = get(frame, KEYS), get(frame, COLUMNS)
    key_address, word_address = np.int64(keys.ctypes.data), np.int64(words.ctypes.data)
    for row in range(first, len(times)):
        group = _group_of(frame, key_address + 8 * width * row)
        if group < 0:
            return row
        put(get(frame, GROUP_REFS), group, get(get(frame, GROUP_REFS), group) + 1)
        left = get(frame, FREE_ROW_COUNT) - 1
        put(frame, FREE_ROW_COUNT, left)
        slot = get(get(frame, FREE_ROWS), left)
        put(get(frame, ROW_GROUP), slot, group)
        put(get(frame, ROW_TIME), slot, times[row])
        put(get(frame, ROW_NUMBER), slot, numbers[row])
        put(get(frame, ROW_PRESENT), slot, present[row])
        for column in range(columns):
            word = get(word_address, columns * row + column)
            put(get(frame, ROW_WORDS), columns * slot + column, word)
        put(get(frame, LINE), get(frame, END), slot)
        put(frame, END, get(frame, END) + 1)
    return len(times)


@numba.njit(cache=True, nogil=True)
def merge(frame: int, count: int, entered: int, aside: np.ndarray) -> None:
    """The last rows of the line, which are in order, take their places among those before them;
    what comes among rows that have entered, all before a time, enters, too."""
    line, rows = get(frame, LINE), get(frame, ROW_TIME)
    end, begin = get(frame, END), get(frame, BEGIN)
    old = end - count - 1
    for place in range(count):
        aside[place] = get(line, end - count + place)
    place, new = end - 1, count - 1
    while new >= 0:
        if old >= begin and get(rows, get(line, old)) > get(rows, aside[new]):
            put(line, place, get(line, old))
            old -= 1
        else:
            put(line, place, aside[new])
            new -= 1
        place -= 1
    for late in range(count):
        if get(rows, aside[late]) >= entered:
            break
        _enter(frame, aside[late])
        put(frame, INSIDE, get(frame, INSIDE) + 1)


@numba.njit(cache=True, nogil=True)
def unstage(frame: int, count: int) -> None:
    """The last rows of the line, none of which has entered, have not come."""
    for _ in range(count):
        put(frame, END, get(frame, END) - 1)
        _release(frame, get(get(frame, LINE), get(frame, END)))


@numba.njit(cache=True, nogil=True)
def move(frame: int, leaving: int, inside: int) -> None:
    """So many rows leave, and then so many are to be in the window."""
    line = get(frame, LINE)
    for _ in range(leaving):
        slot = get(line, get(frame, BEGIN))
        if get(frame, INSIDE) > get(frame, BEGIN):
            _leave(frame, slot)
        else:
            put(frame, INSIDE, get(frame, INSIDE) + 1)
        put(frame, BEGIN, get(frame, BEGIN) + 1)
        _release(frame, slot)
    for place in range(get(frame, INSIDE), get(frame, BEGIN) + inside):
        _enter(frame, get(line, place))
        put(frame, INSIDE, place + 1)


@numba.njit(cache=True, nogil=True)
def rows_before(frame: int, time: int) -> int:
    """How many rows of the line are before a time."""
    line, low, high = get(frame, LINE), get(frame, BEGIN), get(frame, END)
    while low < high:
        middle = (low + high) >> 1
        if get(get(frame, ROW_TIME), get(line, middle)) < time:
            low = middle + 1
        else:
            high = middle
    return int(low - get(frame, BEGIN))


@numba.njit(cache=True, nogil=True)
def time_at(frame: int, place: int) -> int:
    """The time of a row by its place in the line."""
    slot = get(get(frame, LINE), get(frame, BEGIN) + place)
    return int(get(get(frame, ROW_TIME), slot))


# --- what is said of groups -----------------------------------------------------------------------


@linked
def _is_earlier(frame: int, one: int, other: int) -> Any:
    """Whether the first row of a group comes before that of another one."""
    left, right = get(_end(frame, one, 0, 0), 0), get(_end(frame, other, 0, 0), 0)
    times, numbers = get(frame, ROW_TIME), get(frame, ROW_NUMBER)
    if get(times, left) != get(times, right):
        return get(times, left) < get(times, right)
    return get(numbers, left) < get(numbers, right)


@linked
def _sort(frame: int, groups: int, aside: int, count: int) -> None:
    """Sort groups by their first rows."""
    length = 1
    while length < count:
        for first in range(0, count, 2 * length):
            middle, last = min(first + length, count), min(first + 2 * length, count)
            one, other = first, middle
            for place in range(first, last):
                takes_other = other < last and (
                    one >= middle or _is_earlier(frame, get(groups, other), get(groups, one))
                )
                if takes_other:
                    put(aside, place, get(groups, other))
                    other += 1
                else:
                    put(aside, place, get(groups, one))
                    one += 1
        for place in range(count):
            put(groups, place, get(aside, place))
        length *= 2


@numba.njit(cache=True, nogil=True)
def arrange(frame: int) -> int:
    """Bring the order of groups forward, by their first rows, and what is rounded of those that
    have changed; returns how many have rows."""
    changed, spare, order = get(frame, CHANGED), get(frame, SPARE), get(frame, ORDER)
    exacts = get(frame, EXACTS)
    noted, count = get(frame, CHANGED_COUNT), np.int64(0)
    for place in range(noted):  # those that have rows first
        group = get(changed, place)
        if get(get(frame, GROUP_ROWS), group) > 0:
            put(changed, place, get(changed, count))
            put(changed, count, group)
            count += 1
            for exact in range(exacts):
                total = get(frame, GROUP_EXACT) + 8 * SUM_WORDS * (exacts * group + exact)
                found = rounded(total, get(frame, SCRATCH))
                put(get(frame, GROUP_ROUNDED), exacts * group + exact, found)
    _sort(frame, changed, spare, count)
    kept, new = np.int64(0), np.int64(0)
    for place in range(get(frame, ORDER_COUNT)):
        group = get(order, place)
        if get(get(frame, GROUP_FLAG), group) != 0:
            continue
        while new < count and _is_earlier(frame, get(changed, new), group):
            put(spare, kept, get(changed, new))
            new, kept = new + 1, kept + 1
        put(spare, kept, group)
        kept += 1
    while new < count:
        put(spare, kept, get(changed, new))
        new, kept = new + 1, kept + 1
    for place in range(noted):
        put(get(frame, GROUP_FLAG), get(changed, place), 0)
    put(frame, CHANGED_COUNT, 0)
    put(frame, ORDER, spare)
    put(frame, SPARE, order)
    put(frame, ORDER_COUNT, kept)
    return int(kept)


@linked
def _whole(frame: int, place: int) -> Any:
    """A sum of whole numbers: what counts in steps of 2 ** 32, and the 32 bits below."""
    sums = get(frame, GROUP_SUMS) + 16 * place
    return get(sums, 0) + (get(sums, 1) >> 32), get(sums, 1) & _MASK


@numba.njit(cache=True, nogil=True)
def emit(frame: int, recipe: np.ndarray, out: np.ndarray, nulls: np.ndarray) -> int:
    """What is said of each group, in their order: the low word, the high one and a count.

    Returns the first part of the recipe that has a sum beyond 64 bits and must not, or -1.
    """
    columns, keys, exacts = get(frame, COLUMNS), get(frame, KEYS), get(frame, EXACTS)
    beyond = -1
    for part in range(len(recipe)):
        kind, number, unit = recipe[part, 0], recipe[part, 1], recipe[part, 2]
        for row in range(get(frame, ORDER_COUNT)):
            group = get(get(frame, ORDER), row)
            count = np.int64(0)
            if kind >= VALUES and kind != EXTREME:
                count = get(get(frame, GROUP_COUNTS), columns * group + number)
            if kind == KEY:
                out[part, 0, row] = get(get(frame, GROUP_KEYS), keys * group + number)
            elif kind == ROWS:
                out[part, 0, row] = get(get(frame, GROUP_ROWS), group)
            elif kind == VALUES:
                out[part, 0, row] = count
            elif kind == EXTREME:
                slot = get(_end(frame, group, number, 0), 0)
                nulls[part, row] = slot < 0
                if slot >= 0:
                    out[part, 0, row] = _word(frame, slot, get(get(frame, LIST_OF), number))
            elif count == 0:
                nulls[part, row] = NULL
            elif kind in (EXACT_SUM, EXACT_MEAN):
                exact = exacts * group + get(get(frame, EXACT_OF), number)
                word = get(get(frame, GROUP_ROUNDED), exact)
                out[part, 0, row] = word if kind == EXACT_SUM else bits(real(word) / count)
            else:
                high, low = _whole(frame, columns * group + number)
                word = high << 32 | low
                out[part, 0, row], out[part, 1, row] = word, high >> 32
                is_short = -(1 << 31) <= high < 1 << 31
                if kind == SUM and not is_short and beyond < 0:
                    beyond = part
                if kind == MEAN:
                    if is_short and -_SMALL < word < _SMALL and count < _SMALL // unit:
                        out[part, 0, row] = bits(float(word) / float(count * unit))
                    else:
                        out[part, 2, row], nulls[part, row] = count, LONG_DIVISION
    return beyond
