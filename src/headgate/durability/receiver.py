"""Receivers: where recovery puts the rows it finds, when that is not Arrow in memory.

An engine has a place for every row already. Handing it the rows block by block saves to gather them
first, which for a large table takes longer than to read it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa


class Place(Protocol):
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

    def place(self, table: str) -> Place:
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

    def place(self, table: str) -> Place | None:
        """The place for a table's rows; None when they should come as an image."""
        ...
