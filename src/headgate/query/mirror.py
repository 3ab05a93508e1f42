"""The mirror: a table's rows of one committed epoch as Arrow columns.

It is kept in chunks of slots; a refresh makes new chunks in place of those that changed and leaves
the old ones to whoever still reads them. So a reader's table never changes under it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.state.layout import HEADER_ALIVE
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots

CHUNK_SLOTS = 1 << 16


class Mirror:
    """Columnar copies of one table's rows; used under the engine's lock."""

    def __init__(self, rows: TableRows) -> None:
        self._rows = rows
        self._chunks: list[pa.RecordBatch] = []
        self._dirty: set[int] = set()
        self._table: pa.Table | None = None

    def note(self, changed: Slots) -> None:
        """Remember that these slots changed since the last refresh."""
        known = len(self._chunks)
        if len(self._dirty) < known:
            marks = np.zeros(known + 1, np.bool_)
            marks[np.minimum(changed // CHUNK_SLOTS, known)] = True
            # Beyond the known chunks nothing is to be made anew: it is made when first asked for.
            self._dirty.update(np.flatnonzero(marks[:known]).tolist())

    def table(self) -> pa.Table:
        """The rows of the last committed epoch; the same object as long as none changed."""
        count = -(-self._rows.count // CHUNK_SLOTS)
        known = len(self._chunks)
        if self._table is not None and not self._dirty and count == known:
            return self._table
        for chunk in range(count):
            if chunk >= known:
                self._chunks.append(self._make(chunk))
            elif chunk in self._dirty:
                self._chunks[chunk] = self._make(chunk)
        self._dirty.clear()
        self._table = pa.Table.from_batches(self._chunks, schema=self._rows.table.schema.arrow)
        return self._table

    def _make(self, chunk: int) -> pa.RecordBatch:
        first = chunk * CHUNK_SLOTS
        last = min(first + CHUNK_SLOTS, self._rows.count)
        alive = (self._rows.words[first:last, 0] & HEADER_ALIVE) != 0
        slots = slice(first, last) if alive.all() else first + np.flatnonzero(alive)
        return self._rows.arrow(slots)
