"""Receiving: where recovery puts the rows it finds, when that is not Arrow in memory.

An engine has a place for every row already. Handing it the rows block by block saves to gather them
first, which for a large table takes longer than to read it. Short changes of a table that follow
each other go to their place as one batch: a store of many short epochs would otherwise pay for
every one of them what a whole batch costs. Invariant: after `flush` the place holds what it would
if each epoch had been applied by itself; and an epoch that cannot be applied is named by its own
file and offset, not by those gathered with it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headgate.durability.commit import ALIVE, SLOT
from headgate.durability.scan import FoundFrame
from headgate.errors import InputError


class RowPlace(Protocol):
    """Where the rows of one table go."""

    def reserve(self, slots: int) -> None:
        """Have room for the slots below this one; the first call, and made once."""
        ...

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        """Take rows of the snapshot of an epoch: "__slot", ascending, and the table's columns.

        Several threads call it at once, each with other slots. The batch's memory is used again
        when it returns.
        """
        ...

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        """Take changes of an epoch, or of an epoch for each row: "__slot", "__alive" and columns.

        Without "__alive" they are new values of rows that are there; ValueError when one is not.
        They come in the order of the epochs, no slot twice in a batch.
        """
        ...


class Nowhere:
    """A receiver that forgets all rows, for who wants to know only where a store stands."""

    def begin(self) -> None:
        pass

    def place(self, table: str) -> RowPlace:
        return Forgotten()


class Forgotten:
    """The place of a table whose rows no one wants."""

    def reserve(self, slots: int) -> None:
        pass

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        pass

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        pass


class Receiver(Protocol):
    """Places for the tables of a store."""

    def begin(self) -> None:
        """Forget what was received: recovery begins, perhaps anew from an older snapshot."""
        ...

    def place(self, table: str) -> RowPlace | None:
        """The place for a table's rows; None when they should come as an image."""
        ...


SHORT_ROWS = 64
_GATHERED_BYTES = 4 << 20


class ShortChanges:
    """The changes of one table on their way to its place.

    Whole rows and new values of rows wait apart. The whole ones go first, so nothing may come to
    them for a slot that has new values waiting.
    """

    def __init__(self, place: RowPlace) -> None:
        self.place = place
        self._rows: list[_Waiting] = []
        self._values: list[_Waiting] = []
        self._valued: set[int] = set()  # slots
        self._bytes = 0

    def add(self, frame: FoundFrame, batch: pa.RecordBatch) -> None:
        """Take the changes of a frame, in the order of the frames."""
        if batch.num_rows > SHORT_ROWS:
            self.flush()
            self._apply(frame, batch)
            return
        slots: list[int] = batch.column(SLOT).to_pylist()
        is_update = ALIVE not in batch.schema.names
        waiting = self._values if is_update else self._rows
        is_other = bool(waiting) and not waiting[0].batch.schema.equals(batch.schema)
        if is_other or (not is_update and not self._valued.isdisjoint(slots)):
            self.flush()
            waiting = self._values if is_update else self._rows
        waiting.append(_Waiting(frame, batch))
        if is_update:
            self._valued.update(slots)
        self._bytes += frame.header.payload_length  # all of it stays in memory until then
        if self._bytes >= _GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Let everything taken so far be in its place."""
        rows, values = self._rows, self._values
        self._rows, self._values, self._valued, self._bytes = [], [], set(), 0
        for waiting in (rows, values):
            if len(waiting) < 2 or not self._apply_together(waiting):
                for frame, batch in waiting:
                    self._apply(frame, batch)

    def _apply(self, frame: FoundFrame, batch: pa.RecordBatch) -> None:
        with frame.decoding():
            try:
                self.place.apply(batch, frame.header.epoch)
            except InputError as error:  # a row that no one could have written
                raise ValueError(str(error)) from error

    def _apply_together(self, waiting: list[_Waiting]) -> bool:
        """Apply the last change of each slot; False when one of them is not as it should be."""
        batches = [batch for _, batch in waiting]
        epochs = np.array([frame.header.epoch for frame, _ in waiting], np.int64)
        try:
            whole = pa.concat_batches(batches)
            last = _last_of_each(whole.column(SLOT).to_numpy())
            epochs = np.repeat(epochs, [batch.num_rows for batch in batches])
            self.place.apply(whole.take(pa.array(last)), epochs[last])
        except Exception:  # whatever it is: one by one it comes again, with its place
            return False
        return True


class _Waiting(NamedTuple):
    frame: FoundFrame
    batch: pa.RecordBatch


def _last_of_each(slots: np.ndarray) -> np.ndarray:
    """Where each slot stands for the last time, by ascending slots."""
    _, first = np.unique(slots[::-1], return_index=True)
    found: np.ndarray = len(slots) - 1 - first
    return found
