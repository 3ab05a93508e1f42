"""Surveys: the versions of a row that a window has: how many, their sums, and each by its place.

A window is the numbers of a row's trail from a first to a last one, less those whose time is not
behind `after`, or behind `until`. Where the times of a whole node are inside, the node is taken at
once; floats are added node by node from left to right, so that all who ask add in the same order.
"""

from __future__ import annotations

from typing import Any

from headgate.state.compiled import compiled_apart, linked, numba
from headgate.state.trail import (
    CHILD,
    FAN_BITS,
    FIRST,
    GREATEST,
    HEIGHT,
    LEAF_SLOT,
    LEAF_TIME,
    LEAST,
    NEXT,
    ROOT,
    ROWS,
    SUM_WORDS,
    SUMS,
    VERSIONS,
    WIDTH,
    entry_at,
    head_of,
    is_real_column,
    leaf_entry,
    merged,
    put_sums,
    sums_at,
    value_of,
    version_at,
    words_aside,
)
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get


@linked
def first_of(trail: int, slot: int, versions: int) -> Any:
    """The number that the window of a row begins with: of its last so many, or of all (0)."""
    if slot < 0:
        return 0
    head = head_of(trail, slot)
    if versions == 0:
        return get(head, FIRST)
    return max(get(head, FIRST), get(head, NEXT) - versions)


@linked
def last_of(trail: int, slot: int) -> Any:
    """The number behind the last version of a row."""
    return 0 if slot < 0 else get(head_of(trail, slot), NEXT)


@compiled_apart
def survey(
    trail: int, slot: int, first: int, last: int, after: int, until: int, column: int, sums: int
) -> None:
    """Count the versions from `first` to `last` whose time is behind `after` and not behind
    `until`, and add a column of them up (-1: none)."""
    found, versions, is_real = (0, 0, 0, 0, 0), 0, is_real_column(trail, column)
    put(sums, VERSIONS, 0)
    put_sums(sums, *found)
    if first >= last:
        return
    head, path, number = head_of(trail, slot), words_aside(), first
    height = level = get(head, HEIGHT)
    put(path, level, get(head, ROOT))
    while number < last:
        node, size = get(path, level), 1 << (FAN_BITS * (level - 1))
        if level == 1:
            entry = leaf_entry(trail, node, number)
            if after < get(entry, LEAF_TIME) and get(entry, LEAF_TIME) <= until:
                versions += 1
                if column >= 0:
                    row = get(trail, ROWS) + 8 * get(trail, WIDTH) * get(entry, LEAF_SLOT)
                    found = merged(is_real, *found, *value_of(trail, column, row))
        else:
            entry = entry_at(trail, node, number, level)
            is_whole = number & (size - 1) == 0 and number + size <= last
            if is_whole and after < get(entry, LEAST) and get(entry, GREATEST) <= until:
                versions += size
                if column >= 0:
                    whole = sums_at(entry + 8 * (SUMS + SUM_WORDS * column))
                    found = merged(is_real, *found, *whole)
            elif not is_whole or (after < get(entry, GREATEST) and get(entry, LEAST) <= until):
                level -= 1
                put(path, level, get(entry, CHILD))
                continue
        behind = number + size
        while level < height and (number ^ behind) >> (FAN_BITS * level):
            level += 1
        number = behind
    put(sums, VERSIONS, versions)
    put_sums(sums, *found)


@compiled_apart
def pick(trail: int, slot: int, first: int, last: int, after: int, until: int, wanted: int) -> Any:
    """The number of a version by its place among those of a window; -1 where there is none."""
    if first >= last:
        return -1
    head, path, number = head_of(trail, slot), words_aside(), first
    height = level = get(head, HEIGHT)
    put(path, level, get(head, ROOT))
    while number < last:
        node, size = get(path, level), 1 << (FAN_BITS * (level - 1))
        if level == 1:
            time = get(leaf_entry(trail, node, number), LEAF_TIME)
            if after < time and time <= until:
                if wanted == 0:
                    return number
                wanted -= 1
        else:
            entry = entry_at(trail, node, number, level)
            is_whole = number & (size - 1) == 0 and number + size <= last
            is_outside = after >= get(entry, GREATEST) or get(entry, LEAST) > until
            is_inside = after < get(entry, LEAST) and get(entry, GREATEST) <= until
            if is_whole and is_inside and wanted >= size:
                wanted -= size
            elif not (is_whole and is_outside):
                level -= 1
                put(path, level, get(entry, CHILD))
                continue
        behind = number + size
        while level < height and (number ^ behind) >> (FAN_BITS * level):
            level += 1
        number = behind
    return -1


# --- the same, called from Python -----------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def survey_one(
    trail: int, slot: int, first: int, last: int, after: int, until: int, column: int, sums: int
) -> None:
    survey(trail, slot, first, last, after, until, column, sums)


@numba.njit(cache=True, nogil=True)
def pick_one(
    trail: int, slot: int, first: int, last: int, after: int, until: int, wanted: int
) -> int:
    return int(pick(trail, slot, first, last, after, until, wanted))


@numba.njit(cache=True, nogil=True)
def row_of(trail: int, slot: int, number: int) -> int:
    """The slot of a version in the table of versions."""
    return int(get(version_at(trail, head_of(trail, slot), number), LEAF_SLOT))
