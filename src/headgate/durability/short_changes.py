"""Short changes: those of a table that follow each other go to their place as one batch.

A store of many short epochs would otherwise pay for every one of them what a whole batch costs, as
it is opened and as a snapshot is made of its log. Invariant: after `flush` the place holds what it
would if each epoch had been applied by itself; and an epoch that cannot be applied is named by its
own file and offset, not by those gathered with it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headgate.durability.commit import ALIVE, SLOT, RowPlace
from headgate.durability.replay import Replay
from headgate.durability.scan import FoundFrame
from headgate.errors import InputError

SHORT_ROWS = 64
_GATHERED_BYTES = 4 << 20


class ImagePlace:
    """The place of a table that no one else has a place for: its rows become an Arrow table.

    A `partial` one has the changes behind a snapshot, without its rows.
    """

    def __init__(self, *, partial: bool = False) -> None:
        self.replay: Replay = Replay(partial=partial)

    def reserve(self, slots: int) -> None:
        self.replay.reserve(slots)

    def insert(self, batch: pa.RecordBatch, epoch: int) -> None:
        self.replay.insert(batch)

    def apply(self, batch: pa.RecordBatch, epochs: int | np.ndarray) -> None:
        self.replay.apply(batch)

    def image(self) -> pa.Table:
        return self.replay.image()


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
