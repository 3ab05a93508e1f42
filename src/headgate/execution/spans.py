"""Spans: which rows an access names, event by event: those at places first..last of its slots.

Whatever the form of an access, all that runs a batch sees a span. Where it names one row for each
event, the span of event row e is e..e + 1 and there are no offsets; kernels then have no loop.
This is the one place that asks how an access names rows in order to look them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headgate.compiling.signature import Signature
from headgate.state.columns import StoredColumn
from headgate.state.entries import WAITING_COUNT, waiting_in
from headgate.state.entry_looks import scan_all
from headgate.state.order_words import order_words
from headgate.state.ordered import OrderedIndex, address, load_kernels, ordered_index
from headgate.state.ranges import Index, RowRange, bound_sizes
from headgate.state.rows import TableRows
from headgate.state.spaces import EventRows, Slots
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
    if access.is_single:
        return Spans(events, events, None)
    keys = columns[access.columns[0]]
    offsets = np.zeros(events + 1, np.int64) if keys.offsets is None else keys.offsets
    return Spans(events, len(keys.values), offsets)


# --- reaches --------------------------------------------------------------------------------------
# The rows that an index finds for the events of a batch, before it runs or as it runs.
#
# Where a program moves no entry of the index, all events are looked up at once. Else a `Reach`
# has what the look-ups of one access need and find, by kernels and by the interpreter alike.
# Invariant: the places of an event in `slots` are known when its step begins, and hold until its
# end; where results ask for the rows as each transaction left them, until the end of the batch.


SLOTS_MIN = 1024


def bound_words(access: Access, columns: Mapping[str, StoredColumn], events: int) -> np.ndarray:
    """By event row: the words of both bounds of a range, which may be the same."""
    words = []
    for name, target in access.named:
        words += [np.zeros(events, np.int64)] * target.nullable  # a bound is not null
        words.append(order_words(columns[name].values, target.type))
    return np.stack(words, axis=1)


def find_ranges(
    access: Access, span: RowRange, index: OrderedIndex,
    columns: Mapping[str, StoredColumn], skip: np.ndarray,
) -> tuple[Spans, Slots]:  # fmt: skip
    """The rows of all events, as the index is now."""
    events = len(skip)
    bounds, tree = bound_words(access, columns, events), index.ready().bind()
    offsets, out, done = np.zeros(events + 1, np.int64), np.empty(SLOTS_MIN, np.int64), 0
    asked = *bound_sizes(access, span), span.limit, int(span.descending)
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


class KeptIndex:
    """An index that the events of a batch look into and change. One that no event looks into stays
    as it is: nobody notes what is to be brought forward."""

    def __init__(self, index: OrderedIndex, *, is_asked: bool) -> None:
        if is_asked:
            load_kernels()
        self.index = index.follow_up() if is_asked else index
        self.is_asked = is_asked
        self._none = waiting_in(0)

    def tell(self, changed: Slots | None) -> None:
        """All that has changed was noted as it did."""
        if self.is_asked:
            self.index.told = changed

    @property
    def waiting(self) -> np.ndarray:
        """The rows that have changed since their entries were brought forward."""
        return self.index.waiting if self.is_asked else self._none

    def make_room(self, rows: int) -> None:
        """Room for an event that changes so many rows, and for an entry more."""
        if self.is_asked:
            self.index.relieve(rows)

    def settle(self) -> None:
        """Bring all entries forward that wait."""
        if self.waiting[WAITING_COUNT]:
            self.index.bring_all(np.empty(0, np.int64))


def kept_indexes(
    moving: Sequence[Index], tables: Mapping[str, TableRows], running: Sequence[Signature]
) -> list[KeptIndex]:
    """The indexes that transactions of a program move, of which these run in a batch."""
    accesses = [access for one in running for access in one.accesses]
    asked = {access.span.index for access in accesses if access.span is not None}
    return [
        KeptIndex(ordered_index(tables[one.table], one), is_asked=one in asked) for one in moving
    ]


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
        (_, count), bounds = bound_sizes(self._access, self._span), self.bounds[row].tolist()
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
        """Its words of `rooms`, see kernels/generating_look_ups.py."""
        return [address(self.bounds), len(self.slots), self.used]

    def roomy(self, after: Any) -> Any:
        """The rows that were kept, with room for as many as there are slots; None: none are."""
        if after is None or len(after) >= len(self.slots):
            return after
        larger = np.zeros((len(self.slots), after.shape[1]), np.int64)
        larger[: len(after)] = after
        return larger
