"""Due rows: the rows of a table whose rows expire, by the moment at which each of them does.

Derived from the rows and never logged. Whoever changes rows notes their slots; when somebody asks,
the moments of those rows become one more run of entries, sorted by moment. Where runs are many the
youngest are merged, and entries that their rows have left behind are dropped then: so a row that is
set again and again costs a few words each time, and no search. Most of the time nothing is due, and
that is known from the first entry of each run.

Invariant after `ready`: of every live row that expires there is an entry with its moment, and an
entry whose row says another moment than `noted` does for its slot counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.state.compiled import linked, numba
from headgate.state.durations import Expiry
from headgate.state.layout import HEADER_ALIVE
from headgate.state.order_words import kind_of, order_word
from headgate.state.ordered import address
from headgate.state.rows import TableRows
from headgate.state.slot_order import sort_slots
from headgate.state.spaces import Slots
from headgate.state.types import BIGINT_MAX

NEVER = BIGINT_MAX  # the moment of a row that does not expire, or is not there
RUNS_MAX = 16  # each is looked at when somebody asks; where there are more, they are merged
SPARE_ENTRIES = 4096  # so many more than twice as many as rows, before all is made anew


@linked
def moment_of(row: int, offset: int, kind: int, unit: int, delay: int) -> int:
    """When a row expires, by where its column stands and what is added to it."""
    value = order_word(row, offset, kind)
    return NEVER if value == NEVER else value * unit + delay  # null is the last of all words


@numba.njit(cache=True, nogil=True)
def _take(
    rows: int, row_bytes: int, offset: int, kind: int, unit: int, delay: int,
    slots: Slots, noted: np.ndarray, out: Slots,
) -> int:  # fmt: skip
    """Note the moments of these rows; those of which there is no such entry yet go to `out`."""
    found = 0
    for place in range(len(slots)):
        slot = slots[place]
        row = rows + row_bytes * slot
        moment = NEVER
        if order_word(row, 0, 0) & HEADER_ALIVE:
            moment = moment_of(row, offset, kind, unit, delay)
        if noted[slot] != moment:
            noted[slot] = moment
            out[found] = slot
            found += moment != NEVER
    return found


@numba.njit(cache=True, nogil=True)
def _keep_true(moments: np.ndarray, slots: Slots, noted: np.ndarray, first: int, last: int) -> int:
    """Move the entries of first..last that still count to the end; returns where they begin."""
    target = last
    for place in range(last - 1, first - 1, -1):
        if noted[slots[place]] == moments[place]:
            target -= 1
            moments[target], slots[target] = moments[place], slots[place]
    return target


@numba.njit(cache=True, nogil=True)
def _first_true(
    moments: np.ndarray, slots: Slots, noted: np.ndarray, first: int, time_us: int
) -> int:
    """The first entry from a place on that counts, or that is not due at a time."""
    while first < len(slots) and moments[first] <= time_us:
        if noted[slots[first]] == moments[first]:
            break
        first += 1
    return first


@dataclass
class DueRun:
    """Entries by their moments, from place `first` on."""

    moments: np.ndarray
    slots: Slots
    first: int = 0

    def __len__(self) -> int:
        return len(self.slots) - self.first


class DueRows:
    """The rows of one table by the moment at which they expire."""

    def __init__(self, rows: TableRows, expires: Expiry) -> None:
        self._rows = rows
        field = rows.layout.field(expires.column)
        self.recipe = field.offset, kind_of(field), expires.unit_us, expires.delay_us
        self._mark: int | None = None  # the rows' `refills` when it was made
        self._pending: list[Slots] = []
        self._noted = np.empty(0, np.int64)  # by slot: the moment of its entry
        self._runs: list[DueRun] = []

    # --- what an index of the rows is told, see TableRows.ordered -----------------------------

    def note(self, slots: Slots) -> None:
        """The rows in these slots have changed."""
        self._pending.append(slots)

    def follow(self, slots: Slots, before: int) -> None:
        """Rows came into these slots other than by transactions, and into no others."""
        if self._mark == before:
            self._mark = self._rows.refills
        self.note(slots)

    def text_codes(self) -> list[np.ndarray]:
        """It keeps no texts."""
        return []

    # --- entries ------------------------------------------------------------------------------

    def ready(self) -> DueRows:
        """Bring it to the rows as they are now."""
        count = self._rows.count
        entries = sum(map(len, self._runs)) + sum(map(len, self._pending))
        if self._mark != self._rows.refills or entries > 2 * count + SPARE_ENTRIES:
            self._mark = self._rows.refills
            self._noted, self._runs = np.full(count, NEVER), []
            self._pending = [np.arange(count)]
        if len(self._noted) < count:
            more = np.full(max(count, 2 * len(self._noted)) - len(self._noted), NEVER)
            self._noted = np.concatenate([self._noted, more])
        for slots in self._pending:
            self._add(slots)
        self._pending = []
        return self

    def _add(self, slots: Slots) -> None:
        out, words = np.empty_like(slots), self._rows.words
        given = address(words), 8 * words.shape[1], *self.recipe
        found = out[: _take(*given, slots, self._noted, out)]
        if not len(found):
            return
        found, _ = sort_slots(self._noted, found, np.empty_like(found))
        self._runs.append(DueRun(self._noted[found], found))
        if len(self._runs) > RUNS_MAX:
            self._merge()

    def _merge(self) -> None:
        """Make one run of the youngest half of all, and of older ones that are not much longer."""
        first, total = len(self._runs), 0
        while first and (first > RUNS_MAX // 2 or len(self._runs[first - 1]) <= 2 * total):
            first -= 1
            total += len(self._runs[first])
        merged, self._runs = self._runs[first:], self._runs[:first]
        moments = np.concatenate([run.moments[run.first :] for run in merged])
        slots = np.concatenate([run.slots[run.first :] for run in merged])
        places = np.flatnonzero(self._noted[slots] == moments)
        places = places[np.argsort(moments[places], kind="stable")]  # it sees runs that ascend
        self._runs.append(DueRun(moments[places], slots[places]))

    # --- what is due --------------------------------------------------------------------------

    def due(self, time_us: int) -> tuple[np.ndarray, Slots]:
        """The moments and slots of all rows that are due at a time, by moment; a row may be there
        twice."""
        parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for run in self.ready()._runs:
            ahead = run.moments[run.first :]
            last = run.first + int(np.searchsorted(ahead, time_us, side="right"))
            if last > run.first:
                given = run.moments, run.slots, self._noted
                run.first = int(_keep_true(*given, run.first, last))
                parts.append((run.moments[run.first : last], run.slots[run.first : last]))
        moments, slots = (np.concatenate(found) for found in zip(*parts, strict=True))
        order = np.argsort(moments, kind="stable")
        return moments[order], slots[order]

    def is_any(self, time_us: int) -> bool:
        """Whether a row is due at a time."""
        for run in self.ready()._runs:
            run.first = int(_first_true(run.moments, run.slots, self._noted, run.first, time_us))
            if len(run) and run.moments[run.first] <= time_us:
                return True
        return False

    def first(self) -> int:
        """The moment of the row that expires next; NEVER where none does."""
        found = NEVER
        for run in self.ready()._runs:
            run.first = int(_first_true(run.moments, run.slots, self._noted, run.first, NEVER))
            if len(run):
                found = min(found, int(run.moments[run.first]))
        return found


def due_rows(rows: TableRows, expires: Expiry) -> DueRows:
    """The rows by moment, made once; they are brought forward by `ready`."""
    found: DueRows | None = rows.ordered.get(expires)
    if found is None:
        found = rows.ordered[expires] = DueRows(rows, expires)
    return found
