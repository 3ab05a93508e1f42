"""Expiring: rows that are no more from a moment on, removed between the events of a batch.

Before the event that comes at that moment or later, the rows that are due go, as if a transaction
had deleted them. Which ones those are is known before the batch from the rows by their moments
(state/due_rows.py), and of what events of the batch leave it is noted as they run. The loop itself
lets them go (kernels/sweeping.py); here is what it needs for that, and the events in between that
are interpreted.

A row that another one refers to stays as long as that one does, however long it has been due.

Invariant: when an event's turn has come, no row of the program's tables is due but those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from headgate.errors import check_invariant
from headgate.kernels import sweeping
from headgate.kernels.sweeping import AT_ONCE
from headgate.state.due_rows import DueRows, due_rows
from headgate.state.durations import Expiry
from headgate.state.integrity import child_counts, constraints_on, unique_entries
from headgate.state.order_words import kind_of
from headgate.state.ordered import address
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots
from headgate.state.table import Reference, Unique

if TYPE_CHECKING:
    from headgate.execution.program import Program
    from headgate.execution.run import Run

NOTED_ROOM_MIN = 4096  # entries for rows that events leave and that expire within the batch
NOTED_ROOM_MAX = 1 << 20  # where there are more, all due rows are looked up anew
NO_SLOTS = np.empty(0, np.int64)


class ExpiringTable:
    """One table whose rows expire, by the moments at which they do."""

    def __init__(self, rows: TableRows, expires: Expiry, floor: int | None, aside: Slots) -> None:
        self.rows, self.expires = rows, expires
        self.name = rows.table.name
        self._aside = aside  # rows that are another's in this batch, who lets them go
        self.floor = AT_ONCE if floor is None else floor  # its time before the batch

    @property
    def by_moment(self) -> DueRows:
        return due_rows(self.rows, self.expires)

    def due(self, time_us: int) -> tuple[np.ndarray, Slots]:
        """The moments and slots of rows that are due at a time: at once where that is past."""
        moments, slots = self.by_moment.due(max(time_us, self.floor))
        moments[moments <= self.floor] = AT_ONCE
        if len(self._aside):
            mine = ~np.isin(slots, self._aside)
            moments, slots = moments[mine], slots[mine]
        return moments, slots

    def is_any(self, time_us: int) -> bool:
        """Whether a row is due at a time."""
        return self.by_moment.is_any(max(time_us, self.floor))


class Expiring:
    """What expires in one batch of a program; `moments` is by position how late it is, at last
    `horizon`. A stream without a time has neither."""

    def __init__(
        self,
        program: Program,
        times: Mapping[str, int],
        moments: np.ndarray | None,
        count: int,
        horizon: int | None,
        aside: Mapping[str, Slots] = MappingProxyType({}),
    ) -> None:
        self._program = program
        self.tables = [
            ExpiringTable(
                program.tables[table.name],
                table.expires,
                times.get(table.name),
                aside.get(table.name, NO_SLOTS),
            )
            for table in program.expiring
            if table.expires is not None
        ]
        self.moments = np.full(count, AT_ONCE) if moments is None else moments
        self.horizon = AT_ONCE if horizon is None else horizon
        self.expired: Counter[str] = Counter()  # by table
        self.overdue: dict[str, int] = {}  # by table: those that stay, since others refer to them
        self._numbers = {table.name: number for number, table in enumerate(self.tables)}
        self._gone: list[np.ndarray] = []  # tables and slots, of those that no event had changed

    @property
    def is_quiet(self) -> bool:
        """Whether no row can go in this batch, so that any scheme may run it as it is."""
        if self._program.sets_expiry:
            return False
        return not any(table.is_any(self.horizon) for table in self.tables)

    # --- what the loop needs ------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        """Tell the loop where everything is, and which rows are due when the batch has ended."""
        self._run = run
        self._arrays: list[np.ndarray] = []  # which live as long as the loop may use them
        self._records = np.zeros((len(self.tables), sweeping.TABLE_WORDS), np.int64)
        constraints = constraints_on(self._program.expiring, self._program.declared)
        for table, record in zip(self.tables, self._records, strict=True):
            uniques = [one for one in table.rows.table.constraints if isinstance(one, Unique)]
            record[: sweeping.EXPIRED] = self._place(table)
            references = [one for one in constraints if isinstance(one, Reference)]
            above = [self._reference(one) for one in references if one.table == table.name]
            mine = [one for one in references if one.parent == table.name]
            counts = [[self._at(child_counts(self._program.tables, one))] for one in mine]
            self._arrays += [
                self._tell(record, sweeping.UNIQUES, map(self._unique, uniques)),
                self._tell(record, sweeping.REFERENCES, above),
                self._tell(record, sweeping.CHILDREN, counts),
            ]
            trails = [one.address for one in run.trails if one.rows is table.rows]
            record[sweeping.TRAIL] = trails[0] if trails else 0
        self.refresh()
        self.wakes = np.zeros(sweeping.WAKES_WORDS, np.int64)
        self.wakes[sweeping.HORIZON], self.wakes[sweeping.EPOCH] = self.horizon, run.epoch
        self.wakes[sweeping.IS_REFERRED] = self._records[:, sweeping.CHILDREN_COUNT].any()
        self.wakes[sweeping.TABLES] = address(self._records)
        self._address = address(self.wakes)
        self._look_up()

    def _at(self, array: np.ndarray) -> int:
        """The address of an array that lives on."""
        self._arrays.append(array)
        return address(array)

    def _tell(self, record: np.ndarray, word: int, found: Iterable[Sequence[int]]) -> np.ndarray:
        """A list of so many things in two words of a table: where it is, and how many there are."""
        listed = np.array([*found], np.int64)
        record[word : word + 2] = address(listed), len(listed)
        return listed

    def _place(self, table: ExpiringTable) -> list[int]:
        """Where the rows of a table are, and when each of them expires."""
        words = table.rows.words
        return [table.floor, address(words), 8 * words.shape[1], *table.by_moment.recipe]

    def _columns(self, rows: TableRows, names: Sequence[str]) -> list[int]:
        fields = [rows.layout.field(name) for name in names]
        found = np.array([[one.offset, kind_of(one)] for one in fields], np.int64)
        return [self._at(found), len(found)]

    def _unique(self, unique: Unique) -> list[int]:
        rows = self._program.tables[unique.table]
        entries = unique_entries(rows, unique)  # made while they say what the rows say
        return [self._at(entries), len(entries) - 1, *self._columns(rows, unique.columns)]

    def _reference(self, reference: Reference) -> list[int]:
        tables = self._program.tables
        rows, parents = tables[reference.table], tables[reference.parent]
        counts, words = child_counts(tables, reference), parents.words
        found = [address(parents.entries), len(parents.entries) - 1]
        number = self._numbers.get(reference.parent, -1)
        place = [self._at(counts), address(words), 8 * words.shape[1], *found, number]
        return [*place, *self._columns(rows, reference.columns)]

    def refresh(self) -> None:
        """Tell where the indexes are that events look into: they move as they grow."""
        self._indexes = []
        for table, record in zip(self.tables, self._records, strict=True):
            kept = [one for one in self._run.indexes if one.is_asked]
            mine = [one for one in kept if one.index.index.table == table.name]
            found = [[address(one.index.bind()), address(one.waiting)] for one in mine]
            self._indexes.append(self._tell(record, sweeping.INDEXES, found))

    # --- what is due --------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Let all entries be those of the rows as they are now, and make room for others."""
        known = self._known()
        noted = min(NOTED_ROOM_MAX, max(NOTED_ROOM_MIN, self._settings()))
        rows = (len(known) + noted) * sweeping.ROW
        kept = rows if self.wakes[sweeping.IS_REFERRED] else 0
        sizes = {sweeping.QUEUE: noted * sweeping.ENTRY, sweeping.HEAP: noted * sweeping.ENTRY}
        sizes |= {sweeping.REMOVED: rows, sweeping.DUE: kept, sweeping.KEPT: kept}
        sizes |= {sweeping.STACK: kept}
        self._lists = {word: np.empty(size, np.int64) for word, size in sizes.items()}
        self._lists[sweeping.KNOWN] = known
        self.wakes[sweeping.IS_FULL : sweeping.IS_REFERRED] = 0
        for word, array in self._lists.items():
            self.wakes[word] = address(array)
        self.wakes[sweeping.KNOWN_LAST], self.wakes[sweeping.NOTED_ROOM] = len(known), noted
        self.wakes[sweeping.WAKE], self.wakes[sweeping.IS_STIRRED] = AT_ONCE, 1

    def _known(self) -> np.ndarray:
        """The entries of rows that are due when the batch has ended, by moment."""
        found = [table.due(self.horizon) for table in self.tables]
        known = np.empty((sum(len(slots) for _, slots in found), sweeping.ENTRY), np.int64)
        first = 0
        for number, (moments, slots) in enumerate(found):
            last = first + len(slots)
            known[first:last, 0], known[first:last, 2] = moments, slots
            known[first:last, 1] = number
            first = last
        is_sorted = bool((known[1:, 0] >= known[:-1, 0]).all())
        return known if is_sorted else known[np.argsort(known[:, 0], kind="stable")]

    def _settings(self) -> int:
        """How often rows are set that may expire, as far as that is known before."""
        return sum(spans.total for work in self._run.works for spans in work.spans)

    def _look_up_again(self) -> None:
        """The same where events have left more rows than there was room to note."""
        changed = self._run.changed()
        for table in self.tables:
            table.by_moment.note(changed.get(table.name, NO_SLOTS))
        self._gone.append(self._removed())
        self._look_up()

    def _removed(self) -> np.ndarray:
        """Tables and slots of the rows that went since all was looked up."""
        removed = self._lists[sweeping.REMOVED].reshape(-1, sweeping.ROW)
        return removed[: self.wakes[sweeping.REMOVED_COUNT]].copy()

    def has_removed(self, name: str) -> bool:
        """Whether rows of a table went."""
        return name in self._numbers and self._records[self._numbers[name], sweeping.EXPIRED] > 0

    @property
    def removed(self) -> Mapping[str, Slots]:
        """By table of which rows went: those that no event had changed before."""
        found = np.concatenate([*self._gone, self._removed()])
        return {
            name: found[found[:, 0] == number, 1]
            for name, number in self._numbers.items()
            if self.has_removed(name)
        }

    # --- a batch ------------------------------------------------------------------------------

    def all(self) -> None:
        """Run the batch in its order; each row goes before the event that finds it due."""
        run, position, count = self._run, 0, len(self.moments)
        while position < count:
            self._sweep(int(self.moments[position]))
            reached = run.some(position, count)
            check_invariant(reached > position, "an event waits for a row that does not expire")
            position = reached
            if self.wakes[sweeping.IS_FULL]:
                self._look_up_again()
        self._sweep(self.horizon)
        for table, record in zip(self.tables, self._records, strict=True):
            self.expired[table.name] = int(record[sweeping.EXPIRED])
        kept = self._lists[sweeping.KEPT].reshape(-1, sweeping.ROW)
        stay = Counter(kept[: self.wakes[sweeping.KEPT_COUNT], 0].tolist())
        self.overdue = {table.name: stay[number] for number, table in enumerate(self.tables)}

    def _sweep(self, time_us: int) -> None:
        """Let the rows go that are due at a time."""
        sweeping.sweep_once(self._address, time_us)

    def note_touched(self, touched: Sequence[tuple[str, int]]) -> None:
        """Rows that the interpreter may have changed."""
        for name, slot in touched:
            if name in self._numbers:
                sweeping.note_once(self._address, self._numbers[name], slot)
            if self._program.tables[name].table.references:
                sweeping.stir_once(self._address)
