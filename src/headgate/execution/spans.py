"""Spans: which rows an access names, event by event: those at places first..last of its slots.

Whatever the form of an access, all that runs a batch sees a span. Where it names one row for each
event, the span of event row e is e..e + 1 and there are no offsets; kernels then have no loop.
This is the one place that asks how an access names rows in order to look them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headgate.state.columns import StoredColumn
from headgate.state.spaces import EventRows
from headgate.state.table import Access


@dataclass(frozen=True)
class Spans:
    """The spans of one access over the events of a batch."""

    events: int
    total: int  # how many slots there are
    offsets: np.ndarray | None  # by event row: its first place, one more than there are; or None

    @cached_property
    def lengths(self) -> np.ndarray:
        """By event row: how many rows it names."""
        if self.offsets is None:
            return np.ones(self.events, np.int64)
        return np.diff(self.offsets)

    @property
    def firsts(self) -> np.ndarray:
        """By event row: its first place."""
        return np.arange(self.events) if self.offsets is None else self.offsets[:-1]

    def of(self, row: int) -> slice:
        """The places of one event."""
        if self.offsets is None:
            return slice(row, row + 1)
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def count(self, rows: EventRows) -> int:
        """How many rows these events name."""
        return len(rows) if self.offsets is None else int(self.lengths[rows].sum())

    @property
    def most(self) -> int:
        """How many rows one event names at most."""
        return 1 if self.offsets is None else int(self.lengths.max(initial=0))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """A value of each event for each of its places."""
        return values if self.offsets is None else np.repeat(values, self.lengths)


def spans_of(access: Access, columns: Mapping[str, StoredColumn], events: int) -> Spans:
    """The spans of an access whose keys are in these event columns."""
    if access.form == "at":
        return Spans(events, events, None)
    keys = columns[access.columns[0]]
    offsets = np.zeros(events + 1, np.int64) if keys.offsets is None else keys.offsets
    return Spans(events, len(keys.values), offsets)
