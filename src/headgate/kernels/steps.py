"""Steps: what every generated kernel does with a row, whatever its table: copy, compare, mark.

Rows are named by the address of a table's words, a slot, and the width of a row in words; the copy
to undo a transaction stands at place `u` of its `undo`.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT


@njit(nogil=True)
def is_alive(words: int, slot: int, width: int) -> Any:
    return get(words, slot * width) & HEADER_ALIVE != 0


@njit(nogil=True)
def save(words: int, slot: int, undo: int, u: int, width: int) -> int:
    """Keep the row as it is before the transaction; returns the place after it."""
    for w in range(width):
        put(undo, u + w, get(words, slot * width + w))
    return u + width


@njit(nogil=True)
def put_back(words: int, slot: int, undo: int, u: int, width: int) -> int:
    """Make the row what it was before the transaction; returns the place after it."""
    for w in range(width):
        put(words, slot * width + w, get(undo, u + w))
    return u + width


@njit(nogil=True)
def keep(words: int, slot: int, after: int, place: int, width: int) -> None:
    """Copy the row as the transaction leaves it, for its results."""
    for w in range(width):
        put(after, place * width + w, get(words, slot * width + w))


@njit(nogil=True)
def create(words: int, slot: int, defaults: int, key_words: int, width: int) -> None:
    """Bring a dead row to life, with the defaults of its columns."""
    if get(words, slot * width) & HEADER_ALIVE == 0:
        put(words, slot * width, get(words, slot * width) | 1)
        for w in range(1 + key_words, width):
            put(words, slot * width + w, get(defaults, w))


@njit(nogil=True)
def differs(words: int, slot: int, undo: int, u: int, width: int) -> bool:
    """Whether the transaction changed the row."""
    if (get(words, slot * width) ^ get(undo, u)) & HEADER_ALIVE:
        return True
    for w in range(1, width):
        if get(words, slot * width + w) != get(undo, u + w):
            return True
    return False


@njit(nogil=True)
def mark(
    words: int, slot: int, epoch: int, changed: int, images: int, counts: int, table: int,
    undo: int, u: int, width: int,
) -> None:  # fmt: skip
    """List the row as changed in this epoch, once, with what it was before where that is kept."""
    header = get(words, slot * width)
    if header & HEADER_ALIVE == 0:
        put(counts, 2 * table + 1, 1)  # a row was deleted
    if header >> HEADER_EPOCH_SHIFT != epoch:
        put(words, slot * width, (epoch << HEADER_EPOCH_SHIFT) | (header & HEADER_ALIVE))
        count = get(counts, 2 * table)
        put(changed, count, slot)
        if images != 0:
            for w in range(width):
                put(images, count * width + w, get(undo, u + w))
        put(counts, 2 * table, count + 1)


# --- versions of rows -------------------------------------------------------------------------


@njit(nogil=True)
def copy(source: int, target: int, width: int) -> int:
    for w in range(width):
        put(target, w, get(source, w))
    return 0


@njit(nogil=True)
def differ(one: int, other: int, width: int) -> int:
    """Whether two versions of a row are not the same."""
    if (get(one, 0) ^ get(other, 0)) & HEADER_ALIVE:
        return 1
    for w in range(1, width):
        if get(one, w) != get(other, w):
            return 1
    return 0


STEPS = (is_alive, save, put_back, keep, create, differs, mark, copy, differ)
