"""Reaches: the rows that an index finds for the events of a batch, before it runs or as it runs.

Where a program moves no entry of the index, all events are looked up at once. Else a `Reach` has
what the look-ups of one access need and find, by kernels and by the interpreter alike. Invariant:
the places of an event in `slots` are known when its step begins, and hold until its end; where
results ask for the rows as each transaction left them, until the end of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headgate.execution.spans import Spans
from headgate.state.columns import StoredColumn
from headgate.state.entries import scan_all
from headgate.state.ordered import OrderedIndex, address, order_words
from headgate.state.ranges import RowRange
from headgate.state.spaces import Slots
from headgate.state.table import Access

SLOTS_MIN = 1024


def bound_words(access: Access, columns: Mapping[str, StoredColumn], events: int) -> np.ndarray:
    """By event row: the words of both bounds of a range, which may be the same."""
    words = np.empty((events, len(access.columns)), np.int64)
    for place, (name, target) in enumerate(access.named):
        words[:, place] = order_words(columns[name].values, target.type)
    return words


def find_ranges(
    access: Access, span: RowRange, index: OrderedIndex,
    columns: Mapping[str, StoredColumn], skip: np.ndarray,
) -> tuple[Spans, Slots]:  # fmt: skip
    """The rows of all events, as the index is now."""
    events = len(skip)
    bounds, tree = bound_words(access, columns, events), index.ready().tree
    offsets, out, done = np.zeros(events + 1, np.int64), np.empty(SLOTS_MIN, np.int64), 0
    asked = len(access.columns), span.count, span.limit, int(span.descending)
    while done < events:
        done = scan_all(address(tree), bounds, *asked, skip, offsets, out, done)
        if done < events:
            out = np.concatenate([out, np.empty(len(out), np.int64)])
    total = int(offsets[-1])
    return Spans(events, total, offsets), out[:total]


class ReachSpans(Spans):
    """The spans of an access that is looked up event by event: known when it has run, or foreseen
    where it does not run."""

    def __init__(self, events: int, foreseen: Spans | None = None) -> None:
        places = np.zeros(2 * events, np.int64)
        if foreseen is not None:
            places[::2], places[1::2] = foreseen.firsts, foreseen.firsts + foreseen.lengths
        super().__init__(events, 0 if foreseen is None else foreseen.total, places)

    @property
    def lengths(self) -> np.ndarray:
        found: np.ndarray = self.places[1::2] - self.places[::2]
        return found

    @property
    def places(self) -> np.ndarray:
        """By event row: its first place, and the one behind its last."""
        return np.empty(0, np.int64) if self.offsets is None else self.offsets

    @property
    def firsts(self) -> np.ndarray:
        return self.places[::2]

    def of(self, row: int) -> slice:
        return slice(int(self.places[2 * row]), int(self.places[2 * row + 1]))


class Reach:
    """One access of a batch whose rows are looked up event by event."""

    def __init__(
        self, access: Access, span: RowRange, index: OrderedIndex,
        columns: Mapping[str, StoredColumn], events: int, *, is_kept: bool,
    ) -> None:  # fmt: skip
        self.index = index
        self.spans = ReachSpans(events)
        self.slots: Slots = np.empty(SLOTS_MIN, np.int64)
        self.bounds = bound_words(access, columns, events)
        self.used = 0  # of the slots, where they are kept
        self._access, self._span = access, span
        self._is_kept = is_kept

    def find(self, row: int) -> Slots:
        """The rows of one event, as the index is now."""
        count, bounds = self._span.count, self.bounds[row].tolist()
        low, high = bounds[:count], bounds[-count:]
        found = self.index.scan(low, high, self._span.limit, descending=self._span.descending)
        first = self.used if self._is_kept else 0
        self.spans.places[2 * row : 2 * row + 2] = first, first + len(found)
        self.make_room(first + len(found))
        self.slots[first : first + len(found)] = found
        self.used = first + len(found)
        return found

    def make_room(self, need: int) -> None:
        """Room for so many slots."""
        if need > len(self.slots):
            slots = np.empty(max(need, 2 * len(self.slots)), np.int64)
            slots[: len(self.slots)] = self.slots
            self.slots = slots

    def rooms(self) -> list[int]:
        """Its words of `rooms`, see kernels/generating_ranges.py."""
        return [address(self.bounds), len(self.slots), self.used]

    def roomy(self, after: Any) -> Any:
        """The rows that were kept, with room for as many as there are slots; None: none are."""
        if after is None or len(after) >= len(self.slots):
            return after
        larger = np.zeros((len(self.slots), after.shape[1]), np.int64)
        larger[: len(after)] = after
        return larger
