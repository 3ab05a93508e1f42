"""The keeper: constraints over the rows of one transaction that runs as plain Python.

It does what the lines of `kernels/constraints.py` do in a kernel, on the same indexes and counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headgate.state.index import SLOT_MASK, TAG_MASK
from headgate.state.integrity import (
    child_counts,
    enter,
    has_values,
    hash_of,
    leave,
    unique_entries,
)
from headgate.state.layout import HEADER_ALIVE
from headgate.state.rows import TableRows
from headgate.state.table import Constraint, Reference, Unique

Copies = Mapping[tuple[str, int], np.ndarray]  # by table and slot: the words before


class Keeper:
    """Keeps the constraints that one transaction may break."""

    def __init__(self, tables: Mapping[str, TableRows], constraints: Sequence[Constraint]) -> None:
        self.tables = tables
        self.constraints = constraints

    def exchange(self, copies: Copies) -> str | None:
        """Move indexes and counts to the changed rows; back again, with the reason, if broken."""
        if not self.constraints:
            return None
        changed = [
            (name, int(slot), copy, self.tables[name].words[slot].copy())
            for (name, slot), copy in copies.items()
            if not _is_same(copy, self.tables[name].words[slot])
        ]
        for name, slot, old, new in changed:
            self._move(name, slot, old, new)
        for constraint in self.constraints:
            if any(self._is_broken(constraint, name, slot) for name, slot, _, _ in changed):
                for name, slot, old, new in changed:
                    self._move(name, slot, new, old)
                return constraint.reason
        return None

    def _move(self, name: str, slot: int, old: np.ndarray, new: np.ndarray) -> None:
        for constraint in self.constraints:
            if constraint.table != name:
                continue
            if isinstance(constraint, Unique):
                entries = unique_entries(self.tables[name], constraint)
                for words, change in ((old, leave), (new, enter)):
                    if self._is_judged(constraint, words):
                        value = hash_of(self._values(constraint, words))
                        change(entries, len(entries) - 1, value, slot)
            else:
                counts = child_counts(self.tables, constraint)
                for words, step in ((old, -1), (new, 1)):
                    is_judged = self._is_judged(constraint, words)
                    parent = self._parent(constraint, words) if is_judged else -1
                    if parent >= 0:
                        counts[parent] += step

    def _is_judged(self, constraint: Constraint, words: np.ndarray) -> bool:
        """Whether a row is there and has a value in each column of the constraint."""
        rows = self.tables[constraint.table]
        return bool(has_values(rows, constraint.columns, words.reshape(1, -1))[0])

    def _values(self, constraint: Constraint, words: np.ndarray) -> np.ndarray:
        record = words.view(self.tables[constraint.table].layout.dtype)[0]
        return np.array([record[name] for name in constraint.columns], np.int64)

    def _parent(self, reference: Reference, words: np.ndarray) -> int:
        keys = self._values(reference, words).reshape(-1, 1)
        return int(self.tables[reference.parent].find(keys, np.zeros(1, np.uint8))[0])

    def _is_broken(self, constraint: Constraint, name: str, slot: int) -> bool:
        words = self.tables[name].words[slot]
        is_alive = bool(words[0] & HEADER_ALIVE)
        is_judged = name == constraint.table and self._is_judged(constraint, words)
        if isinstance(constraint, Unique):
            return is_judged and self._has_twin(constraint, slot)
        if is_judged:
            parent = self._parent(constraint, words)
            if parent < 0 or not self.tables[constraint.parent].words[parent, 0] & HEADER_ALIVE:
                return True
        is_parent = name == constraint.parent and not is_alive
        return is_parent and bool(child_counts(self.tables, constraint)[slot])

    def _has_twin(self, unique: Unique, slot: int) -> bool:
        rows = self.tables[unique.table]
        entries = unique_entries(rows, unique)
        mine = self._values(unique, rows.words[slot])
        value, mask = int(hash_of(mine)), len(entries) - 1
        place = (value >> 32) & mask
        while entries[place] != 0:
            other = int(entries[place] & SLOT_MASK) - 1
            is_like = (int(entries[place]) ^ value) & int(TAG_MASK) == 0
            others = self._values(unique, rows.words[other])
            if is_like and other != slot and np.array_equal(others, mine):
                return True
            place = (place + 1) & mask
        return False


def _is_same(one: Any, other: Any) -> bool:
    return not (one[0] ^ other[0]) & HEADER_ALIVE and bool(np.array_equal(one[1:], other[1:]))
