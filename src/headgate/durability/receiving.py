"""Receiving: where recovery puts the rows it finds, when that is not Arrow in memory.

An engine has a place for every row already. Handing it the rows block by block saves to gather them
first, which for a large table takes longer than to read it. Short changes of a table that follow
each other go to their place as one batch: a store of many short epochs would otherwise pay for
every one of them what a whole batch costs. Invariant: after `flush` the place holds what it would
if each epoch had been applied by itself; and an epoch that cannot be applied is named by its own
file and offset, not by those gathered with it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from headgate.durability.commit import SLOT
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
    """The changes of one table on their way to its place."""

    def __init__(self, place: RowPlace) -> None:
        self.place = place
        self._waiting: list[tuple[FoundFrame, pa.RecordBatch]] = []
        self._bytes = 0

    def add(self, frame: FoundFrame, batch: pa.RecordBatch) -> None:
        """Take the changes of a frame, in the order of the frames."""
        is_short = batch.num_rows <= SHORT_ROWS
        if self._waiting and not (is_short and self._waiting[0][1].schema.equals(batch.schema)):
            self.flush()
        self._waiting.append((frame, batch))
        self._bytes += frame.header.payload_length  # all of it stays in memory until then
        if not is_short or self._bytes >= _GATHERED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Let everything taken so far be in its place."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len(waiting) < 2 or not self._apply_together(waiting):
            for frame, batch in waiting:
                self._apply(frame, batch)

    def _apply(self, frame: FoundFrame, batch: pa.RecordBatch) -> None:
        with frame.decoding():
            try:
                self.place.apply(batch, frame.header.epoch)
            except InputError as error:  # a row that no one could have written
                raise ValueError(str(error)) from error

    def _apply_together(self, waiting: list[tuple[FoundFrame, pa.RecordBatch]]) -> bool:
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


def _last_of_each(slots: np.ndarray) -> np.ndarray:
    """Where each slot stands for the last time, by ascending slots."""
    _, first = np.unique(slots[::-1], return_index=True)
    found: np.ndarray = len(slots) - 1 - first
    return found
