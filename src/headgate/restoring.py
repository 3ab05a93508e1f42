"""Restoring: recovered rows, block by block and epoch by epoch, into the slots they had.

The rows are of use only after `end`: until then they have no index.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

import pyarrow as pa

from headgate.durability import ALIVE, SLOT
from headgate.events import complete_rows
from headgate.state.rows import Rows
from headgate.state.table import Table


class RowsPlace:
    """The rows of one table while recovery fills them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        kinds = [column.type.kind for column in rows.table.schema]
        # Texts go through the pool, which takes one thread at a time; tables come one by one.
        self._guard = threading.Lock() if "string" in kinds else contextlib.nullcontext()

    def reserve(self, slots: int) -> None:
        self._rows.begin_restoring(slots)

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        given = completed(self._rows.table, batch)
        slots = batch.column(SLOT).to_numpy()
        with self._guard:
            self._rows.put(slots, given, epoch)

    def apply(self, batch: pa.RecordBatch, epoch: int) -> None:
        alive = batch.column(ALIVE).to_numpy(zero_copy_only=False)
        slots = batch.column(SLOT).to_numpy()
        self._rows.put_changes(slots, alive, completed(self._rows.table, batch), epoch)


class Restoring:
    """Places for the rows of an engine's tables."""

    def __init__(self, rows: Mapping[str, Rows]) -> None:
        self._rows = rows
        self._begun: list[Rows] = []

    def begin(self) -> None:
        for rows in self._begun:
            rows.begin_restoring(0)

    def place(self, table: str) -> RowsPlace | None:
        rows = self._rows.get(table)
        if rows is None:
            return None
        self._begun.append(rows)
        return RowsPlace(rows)

    def end(self) -> None:
        """Give every table that was restored its index."""
        for rows in {id(rows): rows for rows in self._begun}.values():
            rows.end_restoring()
        self._begun.clear()


def completed(table: Table, given: pa.RecordBatch | pa.Table) -> pa.Table:
    """A table's columns; rows from before a column was declared take its default."""
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    names = [column for column in given.column_names if column not in (SLOT, ALIVE)]
    return complete_rows(given.select(names), table, f"recovery of {table.name!r}")
