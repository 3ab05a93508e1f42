"""Restoring: recovered rows, block by block and epoch by epoch, into the slots they had.

The rows are of use only after `end`: until then they have no index.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT
from headgate.durability.receiver import Forgotten
from headgate.state.rows import Rows
from headgate.state.storage import Storage, Storages


class RowsPlace:
    """The rows of one table while recovery fills them."""

    def __init__(self, rows: Rows, storage: Storage) -> None:
        self._rows = rows
        self._storage = storage
        kinds = [column.type.kind for column in rows.table.schema]
        # Texts go through the pool, which takes one thread at a time; tables come one by one.
        self._guard = threading.Lock() if "string" in kinds else contextlib.nullcontext()

    def reserve(self, slots: int) -> None:
        self._rows.begin_restoring(slots)

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        given = self._storage.from_files(batch, self._rows.table.schema)
        slots = batch.column(SLOT).to_numpy()
        with self._guard:
            self._rows.put(slots, given, epoch)

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        alive = batch.column(ALIVE).to_numpy(zero_copy_only=False)
        slots = batch.column(SLOT).to_numpy()
        given = self._storage.from_files(batch, self._rows.table.schema)
        self._rows.put_changes(slots, alive, given, epochs)


class Restoring:
    """Places for the rows of an engine's tables."""

    def __init__(self, rows: Mapping[str, Rows], storages: Storages) -> None:
        self._rows = rows
        self._storages = storages
        self._begun: list[Rows] = []

    def begin(self) -> None:
        for rows in self._begun:
            rows.begin_restoring(0)

    def place(self, table: str) -> RowsPlace | Forgotten | None:
        name = self._storages.declared(table)
        if name is None:
            return Forgotten()  # it was dropped
        rows = self._rows.get(name)
        if rows is None:
            return None
        self._begun.append(rows)
        return RowsPlace(rows, self._storages[name])

    def end(self) -> None:
        """Give every table that was restored its index."""
        for rows in {id(rows): rows for rows in self._begun}.values():
            rows.end_restoring()
        self._begun.clear()
