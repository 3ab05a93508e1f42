"""Writes: what the nodes of one epoch do to rows, whole columns at a time, and how it is undone.

A procedure changes rows in place, as the kernels do, so that what runs next sees it. Before a row
is first changed its words are kept; a unit that aborts puts them back, and slots, index and free
list are as if it had never run. Invariant: between units rows are sound, every dead row has left
the index, and `changed` names every slot that differs from the epoch before.

What a single row must be is judged by the statement that writes it; what holds over several rows
when the procedure ends. After a statement that failed nothing of its unit can commit, whoever
caught the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.dataflow.order_of_units import OwnTurn
from headgate.engine.elsewhere import RowsForFlows
from headgate.engine.memory import Memory
from headgate.errors import InputError, check_invariant
from headgate.kernels.building import build_check, first_failure
from headgate.kernels.pointers import address
from headgate.query.mirror import Mirror
from headgate.state.columns import to_stored
from headgate.state.fitting import fit
from headgate.state.integrity import constraints_on, violations
from headgate.state.layout import HEADER_ALIVE
from headgate.state.objects import FAULT_WORDS, NULL_FAULT
from headgate.state.row_history import ENDING
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots, Words
from headgate.state.table import Table
from headgate.state.types import Column
from headgate.state.version_rows import VersionRows

NO_SLOTS = np.empty(0, np.int64)


class WriteRefused(InputError):
    """A write that the rows do not allow; its words are the reason of the abort."""


def _together(parts: Sequence[Slots]) -> Slots:
    return parts[0] if len(parts) == 1 else np.concatenate([NO_SLOTS, *parts])


class TableWrites:
    """What one epoch does to the rows of one table."""

    def __init__(self, rows: TableRows, *, is_by_key: bool = False) -> None:
        self.rows: TableRows = rows
        self._is_by_key = is_by_key
        self._held: list[Slots] = []  # given free by units that are kept, to be taken by none
        self._freed = NO_SLOTS  # by the unit that runs
        self.changed: list[Slots] = []  # by units that are kept
        self.created: list[Slots] = []
        self._touched: list[Slots] = []  # by the unit that runs
        self._before: list[Words] = []  # the words of the same rows before it
        self._taken: list[Slots] = []  # what it created
        self._count = rows.count
        self._is_loose = False  # statements of a procedure may have left dead rows in the index
        rows.created = []

    @property
    def touched(self) -> Slots:
        """The slots that the running unit changed, each once."""
        return _together(self._touched)

    def begin(self) -> None:
        """A unit begins."""
        self._touched, self._before, self._taken = [], [], []
        self._count, self._is_loose, self._freed = self.rows.count, False, NO_SLOTS

    def note(self, slots: Slots) -> None:
        """Transactions changed these slots, and nothing will ever undo it."""
        self._touched.append(slots)

    def with_earlier(self, slots: Slots) -> Slots:
        """These slots, and those that were changed before in this epoch: dead ones among them are
        still to be released."""
        if not self.changed and not self._touched:
            return slots
        self._is_loose = True
        return np.unique(np.concatenate([slots, *self.changed, *self._touched]))

    def touch(self, slots: Slots, before: Words | None = None) -> None:
        """Keep the words of these rows, unless they are kept already; they are about to change."""
        self._is_loose = self._is_loose or before is None
        known = np.isin(slots, self.touched) if self._touched else np.zeros(len(slots), np.bool_)
        fresh = slots[~known]
        if len(fresh):
            self._touched.append(fresh)
            self._before.append(self.rows.words[fresh] if before is None else before[~known])

    def end_node(self) -> None:
        """A node has run: its dead rows leave the index, and all who must know are told."""
        if not self._touched:
            return
        touched = self.touched
        self._taken += self.rows.created  # by transactions, whose run has released its rows
        if self._is_loose:
            self.rows.release(touched)
            self._taken += self.rows.created
        self.rows.created = []
        self.rows.note_changed(touched)
        if self._is_by_key:
            self._freed = touched[(self.rows.words[touched, 0] & HEADER_ALIVE) == 0]
            self._hold(self._freed)

    def _hold(self, slots: Slots) -> None:
        """Let nobody take these slots before the epoch has ended."""
        rows = self.rows
        free = rows.free[: rows.free_count]
        if len(slots) and len(free):
            kept = free[~np.isin(free, slots)]
            rows.free[: len(kept)], rows.free_count = kept, len(kept)

    def keep(self) -> None:
        """The unit commits with the epoch."""
        self.changed += self._touched
        self.created += self._taken
        if len(self._freed):
            self._held.append(self._freed)

    def undo(self) -> None:
        """The unit aborts: rows, index and free slots are as before it."""
        touched = self.touched
        self.rows.release(touched)
        self.rows.created = []
        if len(touched) or self.rows.count != self._count:
            words = np.concatenate([self.rows.words[:0], *self._before])
            self.rows.put_back(touched, words, self._count)
            self.rows.note_changed(touched)
            self._hold(_together(self._held))

    def end(self) -> None:
        """The epoch has ended."""
        if self._held:
            self.rows.free_dead()


class Writes:
    """What one epoch does to the rows of an engine, unit after unit; under the engine's lock."""

    def __init__(
        self, memory: Memory, rows: RowsForFlows, turn: OwnTurn, checks: dict[TableRows, Any]
    ) -> None:
        self.turn = turn
        self._memory, self._rows = memory, rows
        self._checks = checks  # by the rows of a table: its compiled check, made once
        self._tables: dict[str, TableWrites] = {}
        self.has_triggers = False  # who asks what was added
        self._added: list[pa.Table] = []
        self.is_final: bool = False  # what transactions did is not kept: it cannot be undone

    @property
    def epoch(self) -> int:
        """The epoch that is under way, once it is its turn."""
        return self._memory.epoch + 1

    @property
    def has_kept(self) -> bool:
        """Whether units of the epoch are in the rows already."""
        return self._rows.has_left or any(one.changed for one in self._tables.values())

    @property
    def names(self) -> Iterable[str]:
        """The tables that there are, those of versions too."""
        return self._memory.rows

    def versioned(self, name: str) -> str | None:
        """The table whose versions are in this one, which no procedure can read."""
        if not isinstance(self._memory.rows.get(name), VersionRows):
            return None
        return name.removesuffix(ENDING)

    def of(self, name: str) -> TableWrites:
        """What is done to one table."""
        found = self._tables.get(name)
        if found is None:
            self.turn.enter()
            found = self._tables[name] = TableWrites(
                self._rows.tables[name], is_by_key=self._rows.is_by_key
            )
        return found

    def begin(self) -> None:
        """A unit begins."""
        for one in self._tables.values():
            one.begin()

    def keep(self) -> None:
        """It commits, with all that this epoch does."""
        self.is_final = False
        for one in self._tables.values():
            one.keep()

    def undo(self) -> None:
        """It aborts, and nothing of it stays."""
        check_invariant(not self.is_final, "a unit aborts that has run to its end")
        for one in self._tables.values():
            one.undo()

    def end_node(self) -> None:
        """A node of it has run."""
        for one in self._tables.values():
            one.end_node()

    def changed(self) -> dict[str, Slots]:
        """The slots that the epoch changed, by table; the rows know which it created. It has
        ended."""
        found = {}
        for name, one in self._tables.items():
            one.end()
            slots = _together(one.changed)
            slots = np.unique(slots) if len(one.changed) > 1 else slots
            one.rows.created = list(one.created)
            if len(slots):
                found[name] = slots
        return found

    # --- by transactions ----------------------------------------------------------------------

    def shadow(self, tables: Iterable[Table]) -> dict[str, Words]:
        """Copies of the rows that transactions are about to change, to undo them by."""
        found = {}
        for table in tables:
            rows = self.of(table.name).rows
            found[table.name] = rows.words[: rows.count].copy()
        return found

    def note(
        self,
        changed: Mapping[str, Slots],
        written: Iterable[Table],
        shadow: Mapping[str, Words] | None,
    ) -> None:
        """Transactions changed these slots, of tables that they write; without a shadow nothing
        will ever undo them.

        Kernels list a row once in an epoch. One that was changed before in this epoch, by another
        node, may have been changed again, or deleted, without a word.
        """
        self.is_final = self.is_final or shadow is None
        for name in dict.fromkeys([*changed, *(table.name for table in written)]):
            one = self.of(name)
            slots = one.with_earlier(changed.get(name, NO_SLOTS))
            if not len(slots):
                continue
            if shadow is None:
                one.note(slots)
                continue
            once = np.unique(slots)
            copied = shadow.get(name)
            before = np.zeros((len(once), one.rows.layout.words), np.int64)
            if copied is not None:
                before[once < len(copied)] = copied[once[once < len(copied)]]
            one.touch(once, before)

    def note_exactly(
        self, changed: Mapping[str, Slots], before: Mapping[str, Words] | None
    ) -> None:
        """The same where these are all slots that they changed, each once, with those that others
        changed before, and the dead ones released; by rows as they were they can be undone."""
        self.is_final = self.is_final or before is None
        for name, slots in changed.items():
            if before is None:
                self.of(name).note(slots)
            else:
                self.of(name).touch(slots, before[name])

    def added(self) -> list[pa.Table]:
        """The rows that the last statement added; each asked for once."""
        found, self._added = self._added, []
        return found

    # --- by procedures ------------------------------------------------------------------------

    def insert(self, table: Table, given: pa.Table) -> int:
        """Add rows, whose keys must be new."""
        one = self.of(table.name)
        rows, columns = one.rows, _fitted(table, given, table.schema.columns)
        slots = self._places(one, columns, takes=True)
        there = (rows.words[slots, 0] & HEADER_ALIVE) != 0
        if there.any():
            key = rows.key_text(int(slots[np.flatnonzero(there)[0]]))
            raise WriteRefused(f"duplicate key: {table.name}: {key}")
        self._put(one, slots, columns)
        if self.has_triggers:
            self._added.append(pa.table(columns, schema=table.schema.arrow))
        return len(slots)

    def update(self, table: Table, given: pa.Table) -> int:
        """Give rows that are there new values in some columns."""
        one = self.of(table.name)
        columns = _fitted(table, given, [table.schema[name] for name in given.column_names])
        slots = self._places(one, columns, takes=False)
        if (slots < 0).any():
            missing = given.slice(int(np.flatnonzero(slots < 0)[0]), 1).select(list(table.key))
            key = ", ".join(f"{name}={value!r}" for name, value in missing.to_pylist()[0].items())
            raise WriteRefused(f"missing key: {table.name}: {key}")
        self._put_values(one, slots, columns)
        return len(slots)

    def upsert(self, table: Table, given: pa.Table, complete: Any) -> int:
        """Update the rows that are there, and add the others; `complete` adds their defaults."""
        one = self.of(table.name)
        columns = _fitted(table, given, [table.schema[name] for name in given.column_names])
        slots = self._places(one, columns, takes=False)
        missing = pa.array(slots < 0)
        if missing.true_count:
            self.insert(table, complete(given.filter(missing)))
        there = slots >= 0
        if there.any():
            kept = pa.array(there)
            mine = {name: array.filter(kept) for name, array in columns.items()}
            self._put_values(one, slots[there], mine)
        return len(slots)

    def delete(self, table: Table, given: pa.Table) -> int:
        """Remove the rows with these keys, those that are there; returns how many were."""
        one = self.of(table.name)
        columns = _fitted(table, given, table.key_columns)
        slots = np.unique(self._places(one, columns, takes=False, is_once=False))
        slots = slots[slots >= 0]
        one.touch(slots)
        one.rows.words[slots, 0] &= ~HEADER_ALIVE
        one.rows.refills += 1
        one.rows.note_changed(slots)
        return len(slots)

    def _places(
        self,
        one: TableWrites,
        columns: Mapping[str, pa.Array],
        *,
        takes: bool,
        is_once: bool = True,
    ) -> Slots:
        """The slot of each row by its key; -1, or a new one, where there is none alive."""
        rows, table = one.rows, one.rows.table
        stored = [
            to_stored(columns[name], table.schema[name].type, rows.pool, table.name).values
            for name in table.key
        ]
        keys = rows.key_words(stored)
        skip = np.zeros(keys.shape[1], np.uint8)
        slots = rows.find_or_take(keys, skip) if takes else rows.find(keys, skip)
        if not takes:
            # A row that this unit deleted is still in the index.
            dead = (rows.words[slots, 0] & HEADER_ALIVE) == 0
            slots = np.where((slots >= 0) & dead, -1, slots)
        if is_once:
            found = slots[slots >= 0]  # two of one key that is new have the slot that it took
            if len(np.unique(found)) < len(found):
                raise WriteRefused(f"duplicate key: {table.name}: two of the rows have it")
        return slots

    def _put(self, one: TableWrites, slots: Slots, columns: Mapping[str, pa.Array]) -> None:
        one.touch(slots)
        one.rows.fill(slots, columns, self.epoch)
        self._judge(one, slots)

    def _put_values(self, one: TableWrites, slots: Slots, columns: Mapping[str, pa.Array]) -> None:
        values = {name: array for name, array in columns.items() if name not in one.rows.table.key}
        one.touch(slots)
        one.rows.put_values(slots, values, self.epoch)
        self._judge(one, slots)

    def _judge(self, one: TableWrites, slots: Slots) -> None:
        """Hold rows to the table's check; and let readers in this unit see them."""
        one.rows.note_changed(slots)
        check, rows = one.rows.table.check, one.rows
        if check is None or not len(slots):
            return
        failing = self._checks.get(rows)
        if failing is None:
            rows.pool.add_literals(sorted(check.texts))
            failing = self._checks[rows] = build_check(rows.table)
        texts = rows.pool.reach() if check.is_reaching else 0
        copies = np.ascontiguousarray(rows.words[slots])
        if first_failure(failing, texts, address(copies), range(len(copies))) is not None:
            raise WriteRefused(f"check failed: {rows.table.name}: {check.text}")

    def judge_all(self, written: Sequence[Table]) -> None:
        """Hold all rows to what must hold over several of them, when a procedure has ended."""
        mine = [table for table in written if table.name in self._tables]
        mine = [table for table in mine if len(self._tables[table.name].touched)]
        tables = self._rows.tables if mine else {}
        for constraint in constraints_on(mine, [rows.table for rows in tables.values()]):
            if len(violations(tables, constraint)):
                raise WriteRefused(constraint.reason)


def _fitted(table: Table, given: pa.Table, columns: Iterable[Column]) -> dict[str, pa.Array]:
    """The columns in their declared types; what does not fit is refused before a row changes."""
    found = {}
    for column in columns:
        where = f"table {table.name!r}: column {column.name!r}"
        try:
            one = fit(given.column(column.name), column.type, where)
        except InputError as error:
            raise WriteRefused(str(error)) from None
        if one.faults is not None:
            wrong = one.faults > NULL_FAULT if column.nullable else one.faults > 0
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                fault = FAULT_WORDS.get(int(one.faults[place]), "null")
                raise WriteRefused(f"{where}: the value in row {place} is {fault}")
        is_text = pa.types.is_dictionary(one.array.type)
        found[column.name] = one.array.cast(column.type.arrow) if is_text else one.array
    return found


def watched(rows: TableRows) -> Mirror:
    """The rows of a table as Arrow, brought forward from every change that is noted."""
    mirror = Mirror(rows)
    rows.watchers.append(mirror)
    return mirror
