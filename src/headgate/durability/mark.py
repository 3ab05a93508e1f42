"""Marks: what a store remembers after an epoch, carried on from commit to commit.

Invariant: a mark follows its predecessor by exactly one epoch, and its slots never shrink.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability.commit import ALIVE, SLOT, Commit, Mark
from headgate.durability.format import Position
from headgate.errors import InvariantError

_BEGIN_TYPES = (pa.int64(), pa.bool_())


def next_mark(last: Mark, commit: Commit) -> Mark:
    """What the store remembers after the commit; InvariantError when the commit does not fit."""
    if commit.epoch != last.epoch + 1:
        raise InvariantError(f"epoch {commit.epoch} cannot follow epoch {last.epoch}")
    if commit.input is not None and commit.changes:
        raise InvariantError(f"epoch {commit.epoch} has both input and changed rows")
    sources, inlets, slots = last.sources, last.inlets, dict(last.slots)
    if commit.source is not None:
        query, batch = commit.source
        sources = {**sources, query: (batch, commit.epoch)}
    if commit.inlets:
        inlets = {**inlets, **commit.inlets}
    for table, changes in commit.changes.items():
        slots[table] = max(slots.get(table, 0), _slot_bound(table, changes))
    for table, bound in commit.slots.items():
        slots[table] = max(slots.get(table, 0), bound)
    return Mark(last.position, commit.time_us, sources, inlets, slots)


def mark_at(mark: Mark, position: Position) -> Mark:
    """The same mark at the place behind its frame."""
    return Mark(position, mark.time_us, mark.sources, mark.inlets, mark.slots)


def _slot_bound(table: str, changes: pa.RecordBatch) -> int:
    """One more than the highest slot of a batch of changes."""
    if changes.schema.names[:2] != [SLOT, ALIVE] or _begin_types(changes) != _BEGIN_TYPES:
        begin = [(field.name, field.type) for field in list(changes.schema)[:2]]
        raise InvariantError(
            f"changes of table {table} begin with {begin} in place of {SLOT} int64, {ALIVE} bool"
        )
    if changes.num_rows == 0:
        return 0
    # Seen as unsigned, a negative slot is the highest: one pass checks and finds the bound.
    highest = int(changes.column(0).to_numpy().view(np.uint64).max())
    if highest >= 1 << 63:
        raise InvariantError(f"changes of table {table} have slot {highest - (1 << 64)}")
    return highest + 1


def _begin_types(changes: pa.RecordBatch) -> tuple[pa.DataType, pa.DataType]:
    return changes.column(0).type, changes.column(1).type


def check_images(mark: Mark, epoch: int, images: Mapping[str, Any]) -> None:
    """InvariantError unless the images are of the mark's epoch and of all its tables."""
    if epoch != mark.epoch:
        raise InvariantError(f"a snapshot of epoch {epoch} after epoch {mark.epoch} was appended")
    missing = sorted(set(mark.slots) - set(images))
    if missing:
        raise InvariantError(f"the snapshot of epoch {epoch} lacks the tables {missing}")
