"""Changes: what a batch did to the rows of shards, as the tables of a part.

Rows that are there go whole, with the name of their table; of those that are gone the keys. Each
is told by the part of rows that it belongs to: its shard, or what all shards have. Invariant: what
is told is a copy, and each changed row is in it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from headgate.shards.placement import Placement
from headgate.shards.warm import GONE, ROWS, ShardRows
from headgate.state.columns import to_arrow
from headgate.state.index import count_alive
from headgate.state.layout import HEADER_ALIVE
from headgate.state.rows import TableRows, stored_column
from headgate.state.spaces import Slots
from headgate.state.version_rows import VersionRows

SORTED_MIN = 1 << 12  # of fewer slots the order costs more than it gains


class ShardChanges:
    """What a batch changed in the rows of shards: dealt out at once, gathered one by one."""

    def __init__(
        self, shard_rows: ShardRows, placement: Placement, changed: Mapping[str, Slots]
    ) -> None:
        self._shard_rows = shard_rows
        changed = {
            name: slots if any(map(len, shard_rows.tables[name].created)) else in_slot_order(slots)
            for name, slots in changed.items()
        }
        self._dealt = {
            name: dealt_rows(shard_rows.tables[name], placement, slots)
            for name, slots in changed.items()
        }
        self._changed = changed
        # By part of rows that changes, by table: how much it has grown, once all is gathered.
        self.grown: dict[int, dict[str, int]] = {}

    @property
    def is_empty(self) -> bool:
        return not any(self._dealt.values())

    def names(self) -> list[str]:
        """The names that tables may have."""
        return [
            f"{kind}/{part}/{name}"
            for name, dealt in self._dealt.items()
            for part in dealt
            for kind in (ROWS, GONE)
        ]

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """The changed rows, and the keys of those that are gone, by the part of rows."""
        for name, slots in self._changed.items():
            rows = self._shard_rows.tables[name]
            created = np.concatenate([*rows.created, slots[:0]])
            stay = not len(created) and count_alive(rows.words, slots) == len(slots)
            for part, mine in self._dealt[name].items():
                there, gone, more = (mine, mine[:0], 0) if stay else _settled(rows, mine, created)
                self.grown.setdefault(part, {})[name] = more
                if isinstance(rows, VersionRows):
                    gone = rows.ended(there, gone)
                elif len(gone):  # a row may be there again, in another slot
                    keys = np.ascontiguousarray(rows.words[gone, 1 : 1 + len(rows.table.key)].T)
                    gone = gone[rows.find(keys, np.zeros(len(gone), np.uint8)) < 0]
                if len(there):
                    yield f"{ROWS}/{part}/{name}", pa.Table.from_batches([rows.arrow(there)])
                if len(gone):
                    yield f"{GONE}/{part}/{name}", keys_of(rows, gone)
            rows.note_changed(slots)
            self._shard_rows.note_touched(len(slots))


def in_slot_order(slots: Slots) -> Slots:
    """The same slots as they lie in memory: rows that are read so come from it sooner.

    Where rows were made, the order in which they came says what slots they take elsewhere.
    """
    if len(slots) < SORTED_MIN:
        return slots
    is_changed = np.zeros(int(slots.max()) + 1, np.bool_)
    is_changed[slots] = True
    found: Slots = np.flatnonzero(is_changed)
    return found


def dealt_rows(rows: TableRows, placement: Placement, slots: Slots) -> dict[int, Slots]:
    """These rows by the part of rows that each of them belongs to, in their order."""
    name = rows.table.name
    if not len(slots):
        return {}
    if name in placement.replicated or placement.count == 1:
        return {placement.everywhere if name in placement.replicated else 0: slots}
    return placement.dealt(rows, slots)


def _settled(rows: TableRows, slots: Slots, created: Slots) -> tuple[Slots, Slots, int]:
    """Which of these rows are there now, which are gone, and how many more there are."""
    alive = (rows.words[slots, 0] & HEADER_ALIVE) != 0
    is_new = np.isin(slots, created)
    more = np.count_nonzero(alive & is_new) - np.count_nonzero(~alive & ~is_new)
    return slots[alive], slots[~alive], int(more)


def keys_of(rows: TableRows, slots: Slots) -> pa.Table:
    """The keys of the rows in these slots, whether they are alive or not."""
    arrays = [
        to_arrow(stored_column(rows.column(one.name, slots), one.type), one.type, rows.pool)
        for one in rows.table.key_columns
    ]
    return pa.table(arrays, names=[one.name for one in rows.table.key_columns])


def alive_of(rows: TableRows) -> Slots:
    """The slots of all rows that are there."""
    found: Slots = np.flatnonzero(rows.words[: rows.count, 0] & HEADER_ALIVE)
    return found
