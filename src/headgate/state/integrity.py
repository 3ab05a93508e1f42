"""Integrity: what is kept beside the rows so that constraints can be tested at once.

For each `unique` an index from the values of its columns to the slots that have them; for each
reference how many live rows refer to each slot of the parent. Both are made from the rows alone
when first needed, so neither is logged. Invariant between transactions: they say what the rows say.

A row that has null in one of a constraint's columns has no twin and refers to nothing: it is in no
index, and counts nowhere.

The index uses open addressing as the key index does, but an entry's home comes from the part of
the hash that stands in the entry itself: entries can be moved while rows are half changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headgate.state.compiled import mix, numba
from headgate.state.index import SLOT_MASK, TAG_MASK
from headgate.state.layout import HEADER_ALIVE
from headgate.state.rows import LOAD_FACTOR, TableRows
from headgate.state.spaces import Slots, Words
from headgate.state.table import Constraint, Reference, Table, Unique

ENTRIES_MIN = 64


# --- one entry ------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def hash_of(values: np.ndarray) -> Any:
    value = np.int64(0)
    for part in range(len(values)):
        value = mix(value, values[part])
    return value


@numba.njit(cache=True, nogil=True, inline="always")
def get(entries: np.ndarray, place: int) -> Any:
    return entries[place]


@numba.njit(cache=True, nogil=True, inline="always")
def put(entries: np.ndarray, place: int, entry: int) -> None:
    entries[place] = entry


# Kernels know entries by their address: there `get` and `put` are others, see kernels/constraints.


@numba.njit(cache=True, nogil=True)
def enter(entries: np.ndarray, mask: int, value: int, slot: int) -> None:
    """Add an entry for a row whose columns have this hash; there must be room."""
    place = (value >> 32) & mask
    while get(entries, place) != 0:
        place = (place + 1) & mask
    put(entries, place, (value & TAG_MASK) | (slot + 1))


@numba.njit(cache=True, nogil=True)
def leave(entries: np.ndarray, mask: int, value: int, slot: int) -> None:
    """Take the entry of a row out and close the gap, so that no probe ends early."""
    place = (value >> 32) & mask
    while (get(entries, place) & SLOT_MASK) - 1 != slot:
        if get(entries, place) == 0:
            return
        place = (place + 1) & mask
    gap = place
    while True:
        place = (place + 1) & mask
        entry = get(entries, place)
        if entry == 0:
            break
        if ((place - (entry >> 32)) & mask) >= ((place - gap) & mask):
            put(entries, gap, entry)
            gap = place
    put(entries, gap, 0)


@numba.njit(cache=True, nogil=True)
def _fill(entries: np.ndarray, values: np.ndarray, judged: np.ndarray) -> None:
    for slot in range(values.shape[1]):
        if judged[slot]:
            enter(entries, len(entries) - 1, hash_of(values[:, slot]), slot)


@numba.njit(cache=True, nogil=True)
def _first_twin(values: np.ndarray, judged: np.ndarray, entries: np.ndarray) -> int:
    """The first judged row whose values an earlier one has, or -1; fills the empty entries."""
    mask = len(entries) - 1
    for slot in range(values.shape[1]):
        if not judged[slot]:
            continue
        value = hash_of(values[:, slot])
        place = (value >> 32) & mask
        while entries[place] != 0:
            entry = entries[place]
            if (entry ^ value) & TAG_MASK == 0:
                other = (entry & SLOT_MASK) - 1
                same = True
                for part in range(len(values)):
                    same &= values[part, other] == values[part, slot]
                if same:
                    return slot
            place = (place + 1) & mask
        entries[place] = (value & TAG_MASK) | (slot + 1)
    return -1


# --- what is kept for a table ---------------------------------------------------------------------


def constraint_values(rows: TableRows, columns: Iterable[str]) -> np.ndarray:
    """The words of these columns, of all slots: columns x slots."""
    every = slice(0, rows.count)
    return np.stack([rows.column(name, every).astype(np.int64) for name in columns])


def has_values(rows: TableRows, columns: Iterable[str], words: Words) -> np.ndarray:
    """Which of these rows of a table are there and have a value in each of the columns."""
    found: np.ndarray = (words[:, 0] & HEADER_ALIVE) != 0
    for word, bits in rows.layout.null_bits(columns).items():
        found &= (words[:, word] & bits) == 0
    return found


def judged_rows(rows: TableRows, constraint: Constraint) -> np.ndarray:
    """By slot: whether its row can break the constraint at all."""
    return has_values(rows, constraint.columns, rows.words[: rows.count])


def unique_entries(rows: TableRows, unique: Unique) -> np.ndarray:
    """The index of a constraint, with room for every slot there is."""
    entries: np.ndarray
    mark, entries = rows.kept.get(unique, (-1, np.empty(0, np.int64)))
    if mark != rows.refills or rows.count > LOAD_FACTOR * len(entries):
        entries = _empty(rows)
        values = constraint_values(rows, unique.columns)
        _fill(entries, values, judged_rows(rows, unique))
        rows.kept[unique] = (rows.refills, entries)
    return entries


def child_counts(tables: Mapping[str, TableRows], reference: Reference) -> np.ndarray:
    """How many live rows refer to each slot of the parent."""
    child, parent = tables[reference.table], tables[reference.parent]
    counts: np.ndarray
    mark, counts = parent.kept.get(reference, (None, np.empty(0, np.int64)))
    now = (child.refills, parent.refills)
    if mark != now:
        slots = parent_slots(tables, reference)
        counts = np.bincount(slots[slots >= 0], minlength=2 * parent.count + 16).astype(np.int64)
    elif len(counts) < parent.count:
        counts = np.concatenate([counts, np.zeros(parent.count + 16, np.int64)])
    parent.kept[reference] = (now, counts)
    return counts


def parent_slots(tables: Mapping[str, TableRows], reference: Reference) -> Slots:
    """By slot of the child: the parent's slot, -1 where the row is dead or has no parent."""
    child, parent = tables[reference.table], tables[reference.parent]
    skipped = (~judged_rows(child, reference)).astype(np.uint8)
    return parent.find(constraint_values(child, reference.columns), skipped)


def kept_arrays(
    constraints: Sequence[Constraint], tables: Mapping[str, TableRows]
) -> dict[str, np.ndarray | int]:
    """What the kernel keeps for each constraint, by the names it was generated with."""
    arrays: dict[str, np.ndarray | int] = {}
    for number, constraint in enumerate(constraints):
        if isinstance(constraint, Unique):
            entries = unique_entries(tables[constraint.table], constraint)
            arrays[f"unique_{number}"] = entries
            arrays[f"unique_mask_{number}"] = len(entries) - 1
        else:
            arrays[f"children_{number}"] = child_counts(tables, constraint)
    return arrays


def _empty(rows: TableRows) -> np.ndarray:
    return np.zeros(1 << int(2 * max(ENTRIES_MIN, rows.count) / LOAD_FACTOR).bit_length(), np.int64)


# --- whole tables ---------------------------------------------------------------------------------


def first_violation(tables: Mapping[str, TableRows], constraint: Constraint) -> int | None:
    """A slot of the constraint's table whose row breaks it, or None."""
    rows = tables[constraint.table]
    if isinstance(constraint, Unique):
        values = constraint_values(rows, constraint.columns)
        twin = int(_first_twin(values, judged_rows(rows, constraint), _empty(rows)))
        return twin if twin >= 0 else None
    orphans = _orphans(tables, constraint)
    return int(orphans[0]) if len(orphans) else None


def _orphans(tables: Mapping[str, TableRows], reference: Reference) -> Slots:
    """The slots of live rows that refer to no live row, ascending."""
    rows, parent = tables[reference.table], tables[reference.parent]
    slots = parent_slots(tables, reference)
    found = (slots >= 0) & ((parent.words[slots, 0] & HEADER_ALIVE) != 0)
    return np.flatnonzero(judged_rows(rows, reference) & ~found)


def violations(tables: Mapping[str, TableRows], constraint: Constraint) -> Slots:
    """The slots of all rows that break a constraint, ascending: of twins all but the first."""
    if isinstance(constraint, Reference):
        return _orphans(tables, constraint)
    slots, is_twin = _by_value(tables[constraint.table], constraint)
    return np.sort(slots[1:][is_twin])


def twins(rows: TableRows, constraint: Unique, most: int) -> tuple[list[Slots], int, int]:
    """The slots that share a value which is unique, of some values; how many values and rows do."""
    slots, is_twin = _by_value(rows, constraint)
    run = np.concatenate([[False], is_twin, [False]])
    firsts, lasts = np.flatnonzero(run[1:] & ~run[:-1]), np.flatnonzero(run[:-1] & ~run[1:])
    shown = np.argsort(slots[firsts])[:most]
    groups = [slots[firsts[place] : lasts[place] + 1] for place in shown]
    return groups, len(firsts), int((lasts - firsts + 1).sum())


def _by_value(rows: TableRows, constraint: Unique) -> tuple[np.ndarray, np.ndarray]:
    """All judged slots by their values, and whether each has those of the one before it."""
    alive = np.flatnonzero(judged_rows(rows, constraint))
    values = constraint_values(rows, constraint.columns)[:, alive]
    order = np.lexsort((alive, *values))
    sorted_values = values[:, order]
    return alive[order], (sorted_values[:, 1:] == sorted_values[:, :-1]).all(axis=0)


def constraints_on(written: Iterable[Table], tables: Iterable[Table]) -> tuple[Constraint, ...]:
    """Every constraint that a change of the written tables may break, in the order of judgement.

    Table by table as they are written: its unique columns, its references, those that refer to it.
    """
    declared = {table.name: table for table in tables}
    found: dict[Constraint, None] = {}
    for table in written:
        found.update(dict.fromkeys(table.constraints))
        for name in sorted(declared):
            refers = (one for one in declared[name].references if one.parent == table.name)
            found.update(dict.fromkeys(refers))
    return tuple(found)
