"""Sweeping: rows that are due go, one after another, with all that is kept beside them, compiled.

One block of words (`wakes`) tells what a batch knows of its due rows: those that were known when it
began, by moment; those that its events have left since, as a queue while their moments ascend and
as a heap where they do not. An entry whose row is no longer due when its moment comes is passed
over: a row that was set again has a later entry.

A row that another one refers to stays as long as that one does. So all that is due at a time is
taken out of the counts of its parents first; what is still referred to then is put back, and with
it what it refers to itself; the others go together. What stays is kept, and looked at again when
rows that refer to others have changed, or are due themselves.

Invariant between two calls: no row has the mark, and unique entries, counts of children, versions
and the indexes that events look into say what the rows say.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.kernels.constraints import leave
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.compiled import compiled_apart, linked, mix, numba
from headgate.state.due_rows import NEVER, moment_of
from headgate.state.entries import take_up
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT, HEADER_EXCHANGED
from headgate.state.order_words import NULL_SHIFT, NULLABLE, order_word
from headgate.state.trail import end
from headgate.state.tree import remove

AT_ONCE = -(1 << 63)  # a moment that has come, whatever the time
# The words of `wakes`. Entries are a moment, the number of a table and a slot; of rows alone, only
# the last two. All lists have room for the known entries and for as many as may be noted.
(
    WAKE, HORIZON, EPOCH, IS_STIRRED, IS_FULL,  # the next moment; whether kept rows may go now
    NOTED_COUNT, NOTED_ROOM,
    KNOWN, KNOWN_FIRST, KNOWN_LAST,
    QUEUE, QUEUE_FIRST, QUEUE_LAST,
    HEAP, HEAP_COUNT,
    REMOVED, REMOVED_COUNT,  # those that no event of the batch had changed
    DUE, DUE_COUNT, KEPT, KEPT_COUNT, STACK,  # where rows may be kept by others
    IS_REFERRED, TABLES, WAKES_WORDS,
) = range(25)  # fmt: skip
ENTRY, ROW = 3, 2
# The words of a table.
(
    FLOOR, ROWS, ROW_BYTES, OFFSET, KIND, UNIT, DELAY, EXPIRED, TRAIL, UNIQUES, UNIQUE_COUNT,
    REFERENCES, REFERENCE_COUNT, CHILDREN, CHILDREN_COUNT, INDEXES, INDEX_COUNT, TABLE_WORDS,
) = range(18)  # fmt: skip
# Of a unique constraint: its entries. Of a reference: how many children each parent has, and where
# parents are found. Both: the offsets and kinds of their columns. Of an index: its tree,
# and what waits.
UNIQUE_ENTRIES, UNIQUE_MASK, UNIQUE_COLUMNS, UNIQUE_WIDTH, UNIQUE_WORDS = range(5)
(
    COUNTS, PARENT_ROWS, PARENT_BYTES, PARENT_ENTRIES, PARENT_MASK, PARENT_TABLE,
    PARENT_COLUMNS, PARENT_WIDTH, REFERENCE_WORDS,
) = range(9)  # fmt: skip
INDEX_TREE, INDEX_WAITING, INDEX_WORDS = range(3)


# --- entries --------------------------------------------------------------------------------------


@linked
def _before(one: int, other: int) -> Any:
    """Whether an entry of the heap comes before another one."""
    if get(one, 0) != get(other, 0):
        return get(one, 0) < get(other, 0)
    if get(one, 1) != get(other, 1):
        return get(one, 1) < get(other, 1)
    return get(one, 2) < get(other, 2)


@linked
def _swap(one: int, other: int) -> None:
    for word in range(ENTRY):
        held = get(one, word)
        put(one, word, get(other, word))
        put(other, word, held)


@linked
def _set(entry: int, moment: int, table: int, slot: int) -> None:
    put(entry, 0, moment)
    put(entry, 1, table)
    put(entry, 2, slot)


@linked
def _push(wakes: int, moment: int, table: int, slot: int) -> None:
    heap, place = get(wakes, HEAP), get(wakes, HEAP_COUNT)
    put(wakes, HEAP_COUNT, place + 1)
    _set(heap + 8 * ENTRY * place, moment, table, slot)
    while place > 0:
        above = (place - 1) // 2
        one, other = heap + 8 * ENTRY * place, heap + 8 * ENTRY * above
        if not _before(one, other):
            return
        _swap(one, other)
        place = above


@linked
def _drop_least(wakes: int) -> None:
    """Take the first entry of the heap out."""
    heap, count = get(wakes, HEAP), get(wakes, HEAP_COUNT) - 1
    put(wakes, HEAP_COUNT, count)
    _swap(heap, heap + 8 * ENTRY * count)
    place = 0
    while 2 * place + 1 < count:
        least = 2 * place + 1
        if least + 1 < count and _before(heap + 8 * ENTRY * (least + 1), heap + 8 * ENTRY * least):
            least += 1
        one, other = heap + 8 * ENTRY * least, heap + 8 * ENTRY * place
        if not _before(one, other):
            return
        _swap(one, other)
        place = least


@linked
def _head(wakes: int, list_word: int) -> Any:
    """The moment of the first entry of a list that ascends."""
    first = get(wakes, list_word + 1)
    if first == get(wakes, list_word + 2):
        return NEVER
    return get(get(wakes, list_word), ENTRY * first)


@linked
def _next(wakes: int) -> Any:
    """The next moment at which a row may be due."""
    found = min(_head(wakes, KNOWN), _head(wakes, QUEUE))
    return min(found, get(get(wakes, HEAP), 0)) if get(wakes, HEAP_COUNT) > 0 else found


@linked
def _pop(wakes: int, moment: int) -> tuple[int, int]:
    """Take an entry of this moment out, which is the next; returns its table and slot."""
    entry = get(wakes, HEAP)
    if _head(wakes, KNOWN) == moment:
        first = get(wakes, KNOWN_FIRST)
        put(wakes, KNOWN_FIRST, first + 1)
        entry = get(wakes, KNOWN) + 8 * ENTRY * first
    elif _head(wakes, QUEUE) == moment:
        first = get(wakes, QUEUE_FIRST)
        put(wakes, QUEUE_FIRST, first + 1)
        entry = get(wakes, QUEUE) + 8 * ENTRY * first
    else:
        table, slot = get(entry, 1), get(entry, 2)
        _drop_least(wakes)
        return table, slot
    return get(entry, 1), get(entry, 2)


@compiled_apart
def note_due(row: int, slot: int, table: int, wakes: int) -> int:
    """Note a row that an event leaves, if it expires before the batch has ended; at once where its
    table's time is later. Where there is no room to note it, the loop ends, and all is looked up.
    """
    moment = _moment(_table(wakes, table), row)
    if moment > get(wakes, HORIZON) or moment == NEVER:
        return 0
    count, last = get(wakes, NOTED_COUNT), get(wakes, QUEUE_LAST)
    queue = get(wakes, QUEUE)
    if count >= get(wakes, NOTED_ROOM):
        put(wakes, IS_FULL, 1)
        moment = AT_ONCE
    elif last == get(wakes, QUEUE_FIRST) or get(queue, ENTRY * (last - 1)) <= moment:
        _set(queue + 8 * ENTRY * last, moment, table, slot)
        put(wakes, QUEUE_LAST, last + 1)
        put(wakes, NOTED_COUNT, count + 1)
    else:
        _push(wakes, moment, table, slot)
        put(wakes, NOTED_COUNT, count + 1)
    if moment < get(wakes, WAKE):
        put(wakes, WAKE, moment)
    return 0


@compiled_apart
def stir(wakes: int) -> int:
    """A row that may refer to others has changed: those that it kept are looked at again."""
    if get(wakes, KEPT_COUNT) > 0:
        put(wakes, IS_STIRRED, 1)
        put(wakes, WAKE, AT_ONCE)
    return 0


# --- rows -----------------------------------------------------------------------------------------


@linked
def _table(wakes: int, number: int) -> Any:
    return get(wakes, TABLES) + 8 * TABLE_WORDS * number


@linked
def _moment(table: int, row: int) -> Any:
    """When a row expires, as it is now."""
    if get(row, 0) & HEADER_ALIVE == 0:
        return NEVER
    said = get(table, OFFSET), get(table, KIND), get(table, UNIT), get(table, DELAY)
    moment = moment_of(row, said[0], said[1], said[2], said[3])
    return AT_ONCE if moment <= get(table, FLOOR) else moment


@linked
def _row(table: int, slot: int) -> Any:
    return get(table, ROWS) + get(table, ROW_BYTES) * slot


@linked
def _has_values(row: int, columns: int, width: int) -> bool:
    """Whether a row has no null in these columns."""
    for part in range(width):
        kind = get(columns, 2 * part + 1)
        bit = kind >> NULL_SHIFT
        if kind & NULLABLE and get(row, bit >> 6) >> (bit & 63) & 1:
            return False
    return True


@linked
def _hash(row: int, columns: int, width: int) -> Any:
    value = np.int64(0)
    for part in range(width):
        value = mix(value, order_word(row, get(columns, 2 * part), get(columns, 2 * part + 1)))
    return value


@linked
def _parent(reference: int, row: int) -> Any:
    """The slot of the row that this one refers to, or -1."""
    columns, width = get(reference, PARENT_COLUMNS), get(reference, PARENT_WIDTH)
    if not _has_values(row, columns, width):
        return -1
    value, mask = _hash(row, columns, width), get(reference, PARENT_MASK)
    place = value & mask
    while True:
        entry = get(get(reference, PARENT_ENTRIES), place)
        if entry == 0:
            return -1
        if (entry ^ value) >> 32 == 0:
            slot = (entry & 0xFFFFFFFF) - 1
            parent, is_same = get(reference, PARENT_ROWS), True
            parent += get(reference, PARENT_BYTES) * slot
            for part in range(width):
                kind = get(columns, 2 * part + 1)
                is_same &= get(parent, 1 + part) == order_word(row, get(columns, 2 * part), kind)
            if is_same:
                return slot
        place = (place + 1) & mask


@linked
def _count_parents(wakes: int, table: int, row: int, more: int, top: int) -> int:
    """Let a row count for so many more with all that it refers to. Those of them that have the mark
    lose it and go on the stack, if they are counted up; returns the top of that."""
    for number in range(get(table, REFERENCE_COUNT)):
        reference = get(table, REFERENCES) + 8 * REFERENCE_WORDS * number
        parent = _parent(reference, row)
        if parent < 0:
            continue
        counts = get(reference, COUNTS)
        put(counts, parent, get(counts, parent) + more)
        owner = get(reference, PARENT_TABLE)
        if more > 0 and owner >= 0:
            above = _row(_table(wakes, owner), parent)
            if get(above, 0) & HEADER_EXCHANGED:
                put(above, 0, get(above, 0) ^ HEADER_EXCHANGED)
                put(get(wakes, STACK), ROW * top, owner)
                put(get(wakes, STACK), ROW * top + 1, parent)
                top += 1
    return top


@linked
def _is_referred(table: int, slot: int) -> Any:
    for number in range(get(table, CHILDREN_COUNT)):
        if get(get(get(table, CHILDREN), number), slot) != 0:
            return True
    return False


@linked
def _remove(wakes: int, table_number: int, slot: int) -> None:
    """Let a row be gone that counts with no parent any more, as a transaction would."""
    table = _table(wakes, table_number)
    row = _row(table, slot)
    for number in range(get(table, UNIQUE_COUNT)):
        unique = get(table, UNIQUES) + 8 * UNIQUE_WORDS * number
        columns, width = get(unique, UNIQUE_COLUMNS), get(unique, UNIQUE_WIDTH)
        if _has_values(row, columns, width):
            value = _hash(row, columns, width)
            leave(get(unique, UNIQUE_ENTRIES), get(unique, UNIQUE_MASK), value, slot)
    epoch = get(wakes, EPOCH)
    if get(row, 0) >> HEADER_EPOCH_SHIFT != epoch:
        count, removed = get(wakes, REMOVED_COUNT), get(wakes, REMOVED)
        put(removed, ROW * count, table_number)
        put(removed, ROW * count + 1, slot)
        put(wakes, REMOVED_COUNT, count + 1)
    put(row, 0, epoch << HEADER_EPOCH_SHIFT)
    put(table, EXPIRED, get(table, EXPIRED) + 1)
    if get(table, TRAIL) != 0:
        end(get(table, TRAIL), slot, epoch)
    for number in range(get(table, INDEX_COUNT)):
        index = get(table, INDEXES) + 8 * INDEX_WORDS * number
        take_up(get(index, INDEX_TREE), get(index, INDEX_WAITING))
        remove(get(index, INDEX_TREE), slot)


# --- what is due at a time ------------------------------------------------------------------------


@compiled_apart
def sweep(wakes: int, time: int) -> int:
    """Let all rows go that are due at a time, but those that are kept; 1 where some may have not
    been noted, and nothing was done."""
    if get(wakes, IS_FULL):
        return 1
    if get(wakes, IS_REFERRED):
        _sweep_referred(wakes, time)
    else:
        moment = _next(wakes)
        while moment <= time and moment != NEVER:
            number, slot = _pop(wakes, moment)
            table = _table(wakes, number)
            if _moment(table, _row(table, slot)) <= time:
                _count_parents(wakes, table, _row(table, slot), -1, 0)
                _remove(wakes, number, slot)
            moment = _next(wakes)
    put(wakes, WAKE, _next(wakes))
    return 0


@linked
def _list_due(wakes: int, number: int, slot: int, time: int) -> Any:
    """Mark and list a row that is due; whether it may refer to others."""
    table = _table(wakes, number)
    row, count = _row(table, slot), get(wakes, DUE_COUNT)
    if get(row, 0) & HEADER_EXCHANGED or _moment(table, row) > time:
        return False
    put(row, 0, get(row, 0) | HEADER_EXCHANGED)
    put(get(wakes, DUE), ROW * count, number)
    put(get(wakes, DUE), ROW * count + 1, slot)
    put(wakes, DUE_COUNT, count + 1)
    return get(table, REFERENCE_COUNT) > 0


@linked
def _sweep_referred(wakes: int, time: int) -> None:
    """The same where rows may refer to rows that are due."""
    put(wakes, DUE_COUNT, 0)
    is_stirred, moment = get(wakes, IS_STIRRED) != 0, _next(wakes)
    while moment <= time and moment != NEVER:
        number, slot = _pop(wakes, moment)
        if _list_due(wakes, number, slot, time):
            is_stirred = True
        moment = _next(wakes)
    if is_stirred:
        for place in range(get(wakes, KEPT_COUNT)):
            number, slot = (
                get(get(wakes, KEPT), ROW * place),
                get(get(wakes, KEPT), ROW * place + 1),
            )
            _list_due(wakes, number, slot, time)
        put(wakes, KEPT_COUNT, 0)
        put(wakes, IS_STIRRED, 0)
    due, count = get(wakes, DUE), get(wakes, DUE_COUNT)
    for place in range(count):
        table = _table(wakes, get(due, ROW * place))
        _count_parents(wakes, table, _row(table, get(due, ROW * place + 1)), -1, 0)
    for place in range(count):
        _put_back(wakes, get(due, ROW * place), get(due, ROW * place + 1))
    for place in range(count):
        _go_or_stay(wakes, get(due, ROW * place), get(due, ROW * place + 1))


@linked
def _put_back(wakes: int, number: int, slot: int) -> None:
    """Take the mark off a row that is referred to, and off all that it refers to in its turn."""
    stack, top = get(wakes, STACK), 0
    row = _row(_table(wakes, number), slot)
    if get(row, 0) & HEADER_EXCHANGED == 0 or not _is_referred(_table(wakes, number), slot):
        return
    put(row, 0, get(row, 0) ^ HEADER_EXCHANGED)
    put(stack, 0, number)
    put(stack, 1, slot)
    top = 1
    while top > 0:
        top -= 1
        table = _table(wakes, get(stack, ROW * top))
        top = _count_parents(wakes, table, _row(table, get(stack, ROW * top + 1)), 1, top)


@linked
def _go_or_stay(wakes: int, number: int, slot: int) -> None:
    """Remove a row that still has the mark, and keep the others in mind."""
    row = _row(_table(wakes, number), slot)
    if get(row, 0) & HEADER_EXCHANGED:
        _remove(wakes, number, slot)
    else:
        count, kept = get(wakes, KEPT_COUNT), get(wakes, KEPT)
        put(kept, ROW * count, number)
        put(kept, ROW * count + 1, slot)
        put(wakes, KEPT_COUNT, count + 1)


# --- the same, called from Python -----------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def sweep_once(wakes: int, time: int) -> int:
    return int(sweep(wakes, time))


@numba.njit(cache=True, nogil=True)
def note_once(wakes: int, table: int, slot: int) -> None:
    note_due(_row(_table(wakes, table), slot), slot, table, wakes)


@numba.njit(cache=True, nogil=True)
def stir_once(wakes: int) -> None:
    stir(wakes)
