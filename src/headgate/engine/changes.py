"""Changes: what a batch did to the rows of a table, as the log and the replica take it.

Rows that were there before and are there still are gathered by slot with the columns that may have
been written, without their keys; new rows whole; of those that are gone only the slots. Invariant:
what is gathered is a copy, so that the next batch may run while it is written and read. A row that
came with the batch is never taken for one that was there; the other way round only costs bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT
from headgate.durability.describing import BatchShape, texts_of
from headgate.durability.plain_batches import PlainBatch, Texts
from headgate.errors import InvariantError
from headgate.state import index
from headgate.state.layout import HEADER_ALIVE, WORD_BYTES, Field
from headgate.state.rows import TableRows, field_values
from headgate.state.spaces import Slots
from headgate.state.storage import Storage

# By table: the columns that the batch may have written, where not all of them may be. A row that
# was there can be deleted and created anew by a batch, with the defaults in all columns: a list
# must name all columns of a table of which the transactions both delete and create rows.
Written = Mapping[str, tuple[str, ...]]
ALL_COLUMNS: Written = MappingProxyType({})

_GONE = np.zeros(1, np.uint8)
_THERE = np.ones(1, np.uint8)


class Gatherer:
    """Gathers some columns of one table's rows; made once, used for every batch."""

    def __init__(self, rows: TableRows, fields: Sequence[Field], begin: Sequence[str]) -> None:
        self._rows = rows
        self._fields = fields
        words = sorted({field.offset // WORD_BYTES for field in fields})
        self._places = np.array(words, np.int64)
        self._lines = [words.index(field.offset // WORD_BYTES) for field in fields]
        self._begin = [(name, {SLOT: pa.int64(), ALIVE: pa.bool_()}[name]) for name in begin]
        self.shape = self._shape([field.name for field in fields])

    def _shape(self, names: Sequence[str]) -> BatchShape:
        kinds = zip(names, (field.type.arrow for field in self._fields), strict=True)
        found = BatchShape.of(pa.schema([*self._begin, *kinds]))
        if found is None:
            raise InvariantError(f"columns of table {self._rows.table.name!r} have no shape")
        return found

    def named(self, storage: Storage) -> BatchShape:
        """The same columns by their names in the files."""
        return self._shape([storage.column(field.name) for field in self._fields])

    def gather(self, slots: Slots) -> tuple[int, np.ndarray, list[np.ndarray | Texts]]:
        """How many of these rows are alive, their slots in 32 bits, and their columns."""
        narrow = np.empty(len(slots), np.uint32)
        lines = np.empty((len(self._places), len(slots)), np.int64)
        words = self._rows.words
        alive = index.gather_words(words, slots, self._places, narrow, lines)
        columns = zip(self._fields, self._lines, strict=True)
        return alive, narrow, [self._column(field, lines[line]) for field, line in columns]

    def _column(self, field: Field, words: np.ndarray) -> np.ndarray | Texts:
        values = field_values(field, words)
        return self.texts(values) if field.type.kind == "string" else values

    def texts(self, codes: np.ndarray) -> Texts:
        return Texts(*texts_of(self._rows.pool.texts(codes)))


class ChangedRows:
    """What batches do to one table, and under which names the files have it."""

    def __init__(self, rows: TableRows, storage: Storage) -> None:
        self._rows = rows
        self._storage = storage
        self._updates: dict[tuple[str, ...] | None, Gatherer] = {}
        self._created = Gatherer(rows, rows.layout.fields, (SLOT, ALIVE))
        self._gone = Gatherer(rows, (), (SLOT, ALIVE))
        self._filed: dict[bytes, BatchShape] = {}  # by the description of the declared one
        for one in (self._created, self._gone):
            self._note(one)

    def gathered(self, slots: Slots, written: tuple[str, ...] | None) -> tuple[PlainBatch, ...]:
        """The rows in these slots, each of which changed, as of now."""
        created, self._rows.created = self._rows.created, []
        if not created:
            alive, narrow, columns = self._update(written).gather(slots)
            if alive == len(slots):
                return (PlainBatch(self._update(written).shape, alive, [narrow, *columns]),)
        return self._sorted_out(slots, np.concatenate([*created, slots[:0]]), written)

    def _update(self, written: tuple[str, ...] | None) -> Gatherer:
        found = self._updates.get(written)
        if found is None:
            fields = [
                field
                for field in self._rows.layout.fields
                if not field.is_key and (written is None or field.name in written)
            ]
            found = self._updates[written] = Gatherer(self._rows, fields, (SLOT,))
            self._note(found)
        return found

    def _sorted_out(
        self, slots: Slots, created: Slots, written: tuple[str, ...] | None
    ) -> tuple[PlainBatch, ...]:
        alive = (self._rows.words[slots, 0] & HEADER_ALIVE) != 0
        is_new = np.isin(slots, created)
        found = []
        for gatherer, mine, flag in (
            (self._gone, slots[~alive], _GONE),
            (self._created, slots[alive & is_new], _THERE),
            (self._update(written), slots[alive & ~is_new], None),
        ):
            if len(mine):
                _, narrow, columns = gatherer.gather(mine)
                begin = [narrow] if flag is None else [narrow, flag]
                found.append(PlainBatch(gatherer.shape, len(mine), [*begin, *columns]))
        return tuple(found)

    def _note(self, gatherer: Gatherer) -> None:
        self._filed[gatherer.shape.description] = gatherer.named(self._storage)

    def filed(self, pieces: Sequence[PlainBatch]) -> tuple[PlainBatch, ...]:
        """The same with the names that the files have."""
        if self._storage.is_plain:
            return tuple(pieces)
        return tuple(
            PlainBatch(self._filed[piece.shape.description], piece.num_rows, piece.columns)
            for piece in pieces
        )
