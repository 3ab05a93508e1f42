"""Steps: what every generated kernel does with a row, whatever its table: copy, compare, mark.

Rows are named by the address of a table's words, a slot, and the width of a row in words; the copy
to undo a transaction stands at place `u` of its `undo`.
"""

from __future__ import annotations

from typing import Any

from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.compiled import linked
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT


@linked
def event_row(order: int, i: int) -> Any:
    """The event at a position; an order of 0 is that of the event rows."""
    return get(order, i) if order != 0 else i


@linked
def is_alive(words: int, slot: int, width: int) -> Any:
    return get(words, slot * width) & HEADER_ALIVE != 0


@linked
def keep(words: int, slot: int, after: int, place: int, width: int) -> None:
    """Copy the row as the transaction leaves it, for its results."""
    for w in range(width):
        put(after, place * width + w, get(words, slot * width + w))


@linked
def create(words: int, slot: int, defaults: int, key_words: int, width: int) -> None:
    """Bring a dead row to life, with the defaults of its columns."""
    if get(words, slot * width) & HEADER_ALIVE == 0:
        put(words, slot * width, get(words, slot * width) | 1)
        for w in range(1 + key_words, width):
            put(words, slot * width + w, get(defaults, w))


@linked
def differs(words: int, slot: int, undo: int, u: int, width: int) -> bool:
    """Whether the transaction changed the row."""
    if (get(words, slot * width) ^ get(undo, u)) & HEADER_ALIVE:
        return True
    for w in range(1, width):
        if get(words, slot * width + w) != get(undo, u + w):
            return True
    return False


@linked
def fresh(row: int, epoch: int, counts: int, table: int) -> Any:
    """The place of a row among the changed ones of its table, if this is its first change in this
    epoch, else -1."""
    return get(counts, 2 * table) if get(row, 0) >> HEADER_EPOCH_SHIFT != epoch else -1


@linked
def mark(row: int, slot: int, epoch: int, changed: int, counts: int, table: int) -> None:
    """List a row as changed in this epoch, once.

    It is written behind the others in any case, and counted when it is new: a branch that nobody
    can foresee would cost more.
    """
    header, count = get(row, 0), get(counts, 2 * table)
    put(changed, count, slot)
    put(counts, 2 * table, count + (header >> HEADER_EPOCH_SHIFT != epoch))
    put(row, 0, (epoch << HEADER_EPOCH_SHIFT) | (header & HEADER_ALIVE))


# --- look-ups ---------------------------------------------------------------------------------


@linked
def tagged(entries: int, mask: int, value: int) -> Any:
    """The slot of the first entry with the tag of this hash, -1 when an empty one comes before.

    Two entries at once: which of them it is cannot be foreseen, that it is one of them can.
    """
    place = value & mask
    entry, other = get(entries, place), get(entries, (place + 1) & mask)
    if entry != 0 and (entry ^ value) >> 32 != 0:
        entry = other
    if entry != 0 and (entry ^ value) >> 32 != 0:
        place += 2
        entry = get(entries, place & mask)
        while entry != 0 and (entry ^ value) >> 32 != 0:
            place += 1
            entry = get(entries, place & mask)
    return (entry & 0xFFFFFFFF) - 1


# --- versions of rows -------------------------------------------------------------------------


@linked
def copy(source: int, target: int, width: int) -> int:
    for w in range(width):
        put(target, w, get(source, w))
    return 0


@linked
def differ(one: int, other: int, width: int) -> int:
    """Whether two versions of a row are not the same."""
    if (get(one, 0) ^ get(other, 0)) & HEADER_ALIVE:
        return 1
    for w in range(1, width):
        if get(one, w) != get(other, w):
            return 1
    return 0


STEPS = (is_alive, keep, create, differs, fresh, mark, tagged, copy, differ)
