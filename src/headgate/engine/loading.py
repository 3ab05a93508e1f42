"""Loading: the first rows of a table, put in place and checked before anything is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import ALIVE, SLOT, Commit
from headgate.engine.elsewhere import Elsewhere
from headgate.engine.events import as_table, complete_rows, defaults_of
from headgate.engine.journal import Guard, Journal
from headgate.engine.memory import Memory
from headgate.errors import InputError
from headgate.execution.interpreter import failures
from headgate.io import Clock
from headgate.kernels.building import build_check, first_failure
from headgate.kernels.pointers import address
from headgate.state.columns import to_stored
from headgate.state.integrity import violations
from headgate.state.row_history import ENDING
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool
from headgate.state.table import Constraint, Table, Unique
from headgate.state.version_rows import VersionRows

MODES = ("once", "missing", "skip")
OFFENDERS_SHOWN = 3
FEW_ROWS = 64  # so many are checked by the interpreter before the loop over them is compiled


class Loading:
    """Fills the tables of one engine, under its lock."""

    def __init__(
        self,
        memory: Memory,
        journal: Journal,
        guard: Guard,
        clock: Clock,
        declare: Callable[[], None],
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._memory = memory
        self._journal = journal
        self._guard = guard
        self._clock = clock
        self._declare = declare

    def load(self, name: str, given: Any, mode: str) -> int:
        """See `Engine.load`."""
        check_mode(mode)
        memory, rows = self._memory, self._memory.rows[name]
        if isinstance(rows, VersionRows):
            raise InputError(
                f"load {name!r}: transactions make these rows, versions of those of "
                f"{name.removesuffix(ENDING)!r}; load that one"
            )
        if self._elsewhere is not None:
            return self._elsewhere.load(name, given, mode, self._commit_placed)
        complete = read_rows(rows.table, given)
        if mode == "missing":
            complete = absent_rows(rows, complete)
        elif memory.is_loaded(name) or len(rows):
            check_rows(rows.table, complete)
            if mode == "once" and complete.num_rows and not memory.is_loaded(name):
                raise made_by_events(name, len(rows))
            return 0
        slots = fill(rows, complete, memory.epoch + 1, memory.rows)
        if slots:
            with self._guard.all_or_stopped():
                self._commit(rows, slots)
        return len(slots)

    def _commit(self, rows: TableRows, slots: range) -> None:
        memory, name = self._memory, rows.table.name
        # Before the rows: an epoch that the log does not have takes this back, see `note_loaded`.
        memory.loaded.setdefault(memory.storages[name].name, memory.epoch + 1)
        self._declare()
        if self._journal.store is not None:
            changes = memory.storages.to_files({name: loaded_changes(rows, slots)})
            commit = Commit(memory.epoch + 1, self._clock.time_us(), changes=changes)
            self._journal.append(commit, later=False)
        memory.advance(None, {}, {name: np.arange(slots.start, slots.stop)})
        rows.created = []  # to the next batch they are rows that were there
        self._guard.wait(memory.epoch)

    def _commit_placed(self, name: str, changes: Mapping[str, pa.RecordBatch]) -> None:
        """Commit rows that are elsewhere: what the log is to name."""
        memory = self._memory
        with self._guard.all_or_stopped():
            memory.loaded.setdefault(memory.storages[name].name, memory.epoch + 1)
            self._declare()
            commit = Commit(memory.epoch + 1, self._clock.time_us(), changes=changes)
            self._journal.append(commit, later=False)
            memory.advance(None, {}, {})
        self._guard.wait(memory.epoch)


def check_mode(mode: Any) -> None:
    """Refuse a mode that is none."""
    if mode not in MODES:
        raise InputError(
            f"load: mode is 'once' (the default), 'missing' or 'skip', not {mode!r}: 'missing' "
            "adds the rows whose keys are not there, 'skip' leaves a table that has rows alone"
        )


def made_by_events(name: str, count: int) -> InputError:
    """The error for a first load of a table that has rows already."""
    return InputError(
        f"load {name!r}: the table was never loaded, but events made {count:,} "
        f"{'row' if count == 1 else 'rows'} of it before: load it before the first events, or say "
        "what is meant: mode='missing' adds the rows whose keys are not there, mode='skip' leaves "
        "the table as it is"
    )


def read_rows(table: Table, given: Any) -> pa.Table:
    """Whatever rows a user hands in, with all columns of the table, if they can be its rows."""
    where = f"load {table.name!r}"
    found = as_table(given, table.schema, where, absent=defaults_of(table))
    return complete_rows(found, table, where)


def refuse_columns(table: Table, columns: pa.Schema) -> None:
    """Refuse rows of such columns, whatever is in them; it takes no row to see it."""
    TableRows(table, StringPool()).load(read_rows(table, columns.empty_table()), 1)


def check_rows(table: Table, given: pa.Table) -> None:
    """Refuse rows that the table could not be filled with, whatever it holds; nothing is changed.

    What they refer to in other tables is not asked: it may have come and gone since.
    """
    apart = TableRows(table, StringPool())
    slots = _put(apart, given, 1)
    _refuse_failed_check(apart, slots)
    _refuse_broken(apart, slots, {table.name: apart}, table.unique)


def absent_rows(rows: TableRows, given: pa.Table) -> pa.Table:
    """The rows whose keys the table does not have; all of them must be sound."""
    table = rows.table
    check_rows(table, given)
    keys = []
    for column in table.key_columns:
        where = f"load {table.name!r}: column {column.name!r}"
        keys.append(to_stored(given.column(column.name), column.type, rows.pool, where).values)
    slots = rows.find(rows.key_words(keys), np.zeros(given.num_rows, np.uint8))
    return given.filter(pa.array(slots < 0))


def fill(rows: TableRows, given: pa.Table, epoch: int, tables: Mapping[str, TableRows]) -> range:
    """Put rows into a table that has none of their keys, all or none; returns their slots."""
    slots = _put(rows, given, epoch)
    _refuse_failed_check(rows, slots)
    _refuse_broken(rows, slots, tables, rows.table.constraints)
    return slots


def _put(rows: TableRows, given: pa.Table, epoch: int) -> range:
    return rows.load(given, epoch) if given.num_rows else range(0)


def _refuse_failed_check(rows: TableRows, slots: range) -> None:
    check = rows.table.check
    if check is None or not slots:
        return
    rows.pool.add_literals(sorted(check.texts))
    find = failures if len(slots) <= FEW_ROWS else _compiled_failures
    failed = find(rows, slots, OFFENDERS_SHOWN + 1)
    verb = "fails" if len(failed) == 1 else "fail"
    _refuse(rows, slots, failed, f" {verb} the check {check.text!r}")


def _compiled_failures(rows: TableRows, slots: range, most: int) -> list[int]:
    failing, words, first = build_check(rows.table), address(rows.words), slots.start
    is_reaching = rows.table.check is not None and rows.table.check.is_reaching
    texts = rows.pool.reach() if is_reaching else 0
    failed: list[int] = []
    while len(failed) < most:
        found = first_failure(failing, texts, words, range(first, slots.stop))
        if found is None:
            break
        failed.append(found)
        first = found + 1
    return failed


def _refuse_broken(
    rows: TableRows,
    slots: range,
    tables: Mapping[str, TableRows],
    constraints: Iterable[Constraint],
) -> None:
    for constraint in constraints if slots else ():
        broken = violations(tables, constraint).tolist()
        hint = "" if isinstance(constraint, Unique) else f"; load {constraint.parent!r} first"
        _refuse(rows, slots, broken, f": {constraint.reason}{hint}")


def _refuse(rows: TableRows, slots: range, wrong: Sequence[int], why: str) -> None:
    """Take the rows back and name those that are wrong, if any are."""
    if not wrong:
        return
    keys = " | ".join(rows.key_text(slot) for slot in wrong[:OFFENDERS_SHOWN])
    rows.unload(slots)
    more = " and others" if len(wrong) > OFFENDERS_SHOWN else ""
    which = "row" if len(wrong) == 1 else "rows"
    raise InputError(f"load {rows.table.name!r}: the {which} {keys}{more}{why}")


def loaded_changes(rows: TableRows, slots: range) -> pa.RecordBatch:
    """The loaded rows as the log takes them."""
    arrays = [
        pa.array(np.arange(slots.start, slots.stop)),
        pa.array(np.ones(len(slots), np.bool_)),
        *rows.arrow(slice(slots.start, slots.stop)).columns,
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[SLOT, ALIVE, *rows.table.schema.names])
