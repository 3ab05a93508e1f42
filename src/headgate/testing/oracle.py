"""The serial oracle: one event after another in plain Python, slow and obviously right.

Invariant: a transaction works on copies of its rows, which become the rows when it commits; so
nothing an aborted transaction did can remain. The engine, compiled or not, on Spark or not, must
give what the oracle gives: `difference` (see `comparing`) says in words where it does not.

>>> from headgate.state.table import Table
>>> from headgate.transactions import transaction
>>> seats = Table("seats", "id bigint, taken boolean", key="id")
>>> @transaction(event="seat bigint", compiled=False)
... def book(event, seat=seats.at("seat", create=True)):
...     seat.taken = True
>>> oracle = SerialOracle([seats], [book])
>>> oracle.run(book, [{"seat": 7}])[0]["outcome"]
'committed'
>>> oracle.table("seats")
[{'id': 7, 'taken': True}]
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate.compiling.actions import Abort, watched
from headgate.compiling.signature import OutputColumns, Signature
from headgate.state.row_history import versions_of, with_histories
from headgate.state.table import Access, Table
from headgate.testing.arrival import (
    ArrivingEvent,
    Rules,
    WaitingEvents,
    examine,
    in_order,
    make_rules,
    result,
)
from headgate.testing.body import body
from headgate.testing.passing import PassingTime, Ticking
from headgate.testing.records import Record, View, broken_promise, keys_in_range
from headgate.testing.row_versions import SeenWindow, event_time, keep_version
from headgate.testing.scalars import EXACT, arrived, assigned, blank, default, shown

if TYPE_CHECKING:
    from headgate.transactions import Transaction

Key = tuple[Any, ...]
_FIXED_ERRORS = {
    ZeroDivisionError: "division by zero",
    OverflowError: "overflow",
    IndexError: "index out of range",
}


class SerialOracle:
    """The judge: tables as dicts of rows, transactions one by one, in plain Python.

    It takes declarations and options to be sound: what the engine refuses, it does not judge.
    """

    def __init__(self, tables: Iterable[Table], transactions: Iterable[Transaction] = ()) -> None:
        self.declared: dict[str, Table] = with_histories(tables)
        self.transactions: dict[str, Transaction] = {
            transaction.name: transaction for transaction in transactions
        }
        self.rows: dict[str, dict[Key, Record]] = {name: {} for name in self.declared}
        self.loaded: set[str] = set()  # the tables that were ever loaded
        self.inlets: dict[str, WaitingEvents] = {}
        self.passing: PassingTime = PassingTime(self.declared, self.rows)
        self.ticking: Ticking = Ticking()
        self.epoch: int = 0

    # --- what a user calls ------------------------------------------------------------------------

    def load(
        self, table: Table | str, rows: Sequence[Mapping[str, Any]], mode: str = "once"
    ) -> int:
        """Fill a table once; returns how many rows it took. Raises ValueError for a bad row, and
        where events made rows of a table that was never loaded."""
        name = table if isinstance(table, str) else table.name
        there = {} if mode != "missing" else self.rows[name]
        is_loaded, has_rows = name in self.loaded, bool(self.rows[name])
        found: dict[Key, Record] = {}
        for row in rows:
            record = judged_row(self.declared[name], row)
            key = tuple(record.values[column] for column in self.declared[name].key)
            if key in found:
                raise ValueError(f"two rows have the key {key}")
            found[key] = record
        if mode == "once" and has_rows and found and not is_loaded:
            raise ValueError(f"table {name!r}: events made rows of it before")
        found = {key: record for key, record in found.items() if key not in there}
        if not found or (mode != "missing" and (is_loaded or has_rows)):
            return 0
        added = {(name, key): record for key, record in found.items()}
        broken = self._broken([self.declared[name]], added)
        if broken is not None:
            raise ValueError(f"the rows of table {name!r}: {broken}")
        self.rows[name].update(found)
        self.loaded.add(name)
        self.epoch += 1
        return len(found)

    def run(
        self,
        transaction: Transaction | Mapping[Any, Transaction],
        events: Sequence[Mapping[str, Any]],
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
        batch_size: int | None = None,
        updates: bool = False,
        carry: str | Sequence[str] | None = None,
        ticks: Sequence[Transaction] = (),
    ) -> list[dict[str, Any]]:
        """The results that `engine.run` must give for these events, as dicts in order.

        A value that does not fit its column rejects its event, however the events come in.
        """
        rules = make_rules(transaction, order_by, route_by, watermark, late, name, carry)
        rules = replace(rules, updates=updates, ticks=tuple(ticks))
        size = batch_size or max(1, len(events))
        results = []
        for first in range(0, len(events), size):
            batch = [ArrivingEvent(columns) for columns in events[first : first + size]]
            results += self._batch(rules, batch)
        return results

    def call(self, transaction: Transaction, /, **columns: Any) -> dict[str, Any]:
        """The result of one event by itself."""
        return self.run(transaction, [columns])[0]

    def flush(
        self,
        transaction: Transaction | Mapping[Any, Transaction],
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
        carry: str | Sequence[str] | None = None,
        ticks: Sequence[Transaction] = (),
    ) -> list[dict[str, Any]]:
        """Run what is held back, as if the time of the last of it had passed."""
        rules = make_rules(transaction, order_by, route_by, watermark, late, name, carry)
        rules, inlet = replace(rules, ticks=tuple(ticks)), self.inlets.get(rules.name)
        if inlet is None or not inlet.held:
            return []
        timely, inlet.held = in_order(inlet.held), []
        inlet.watermark_us = timely[-1].time(rules.order_by)
        return self._finish(rules, self.ticking.among(rules, timely, None), [])

    def table(self, name: Table | str) -> list[dict[str, Any]]:
        """The rows of a table as dicts, sorted by their key."""
        found = name if isinstance(name, Table) else self.declared[name]
        return [_shown_row(self.rows[found.name][key]) for key in sorted(self.rows[found.name])]

    # --- a batch ----------------------------------------------------------------------------------

    def _batch(self, rules: Rules, arriving: list[ArrivingEvent]) -> list[dict[str, Any]]:
        for event in arriving:
            examine(rules, event)
        if rules.delay_us is None:
            timely = [event for event in arriving if not event.outcome]
            running = self.ticking.among(rules, in_order(timely), None)
            return self._finish(rules, running, [e for e in arriving if e.outcome])
        return self._watermarked_batch(rules, rules.delay_us, arriving)

    def _watermarked_batch(
        self, rules: Rules, delay_us: int, arriving: list[ArrivingEvent]
    ) -> list[dict[str, Any]]:
        inlet = self.inlets.setdefault(rules.name, WaitingEvents())
        before = inlet.watermark_us
        sound = [event for event in arriving if not event.outcome]
        late = [e for e in sound if before is not None and e.time(rules.order_by) < before]
        waiting = inlet.held + [event for event in sound if event not in late]
        times = [event.time(rules.order_by) - delay_us for event in sound]
        marks = times if before is None else [*times, before]
        inlet.watermark_us = max(marks, default=None)
        mark = inlet.watermark_us or 0  # none yet: nothing waits
        # One more event of the watermark's own time may still come, so those of that time wait.
        passed = [event for event in waiting if event.time(rules.order_by) < mark]
        inlet.held = [event for event in waiting if event not in passed]
        running = in_order(passed)
        if rules.late == "append":
            running += in_order(late)
            for event in late:
                event.moment = inlet.watermark_us
        else:
            for event in late:
                event.outcome = "late"
                event.reason = f"late: {rules.order_by[0].name} is before the watermark"
        aside = [event for event in arriving if event.outcome]
        running = self.ticking.among(rules, running, inlet.watermark_us)
        return self._finish(rules, running, aside, inlet.watermark_us)

    def _finish(
        self,
        rules: Rules,
        running: list[ArrivingEvent],
        aside: list[ArrivingEvent],
        mark: int | None = None,
    ) -> list[dict[str, Any]]:
        """Run the events one after another; one epoch; those aside come last in the results."""
        tables = [table for one in rules.transactions for table in one.signature.tables]
        for event in running:
            self.passing.move(tables, rules.moment(event))
            self._execute(event)
        self.passing.move(tables, mark)
        self.epoch += 1
        events = enumerate([*running, *aside])
        return [result(rules, self.epoch, number, event) for number, event in events]

    # --- one transaction --------------------------------------------------------------------------

    def _execute(self, event: ArrivingEvent) -> None:
        """Run one event on copies of its rows, and put the copies in place when it commits."""
        copies: dict[tuple[str, Key], Record] = {}
        event.reason = self._attempt(event, copies)
        event.outcome = "committed" if event.reason is None else "aborted"
        if event.reason is not None:
            return
        event.left = {name: _shown_rows(found) for name, found in event.left.items()}
        for (name, key), record in copies.items():
            if record.alive:
                self.rows[name][key] = record
            else:
                self.rows[name].pop(key, None)
            self._keep(event, self.declared[name], key, record)

    def _keep(self, event: ArrivingEvent, table: Table, key: Key, record: Record) -> None:
        """Keep a version of a row that the event wrote, where the table has a history."""
        versions = versions_of(table)
        if versions is not None and record.written and event.transaction is not None:
            time = event_time(table, event.transaction.event, event.values())
            keep_version(table, key, record, time, self.rows[versions.name])

    def _attempt(self, event: ArrivingEvent, copies: dict[tuple[str, Key], Record]) -> str | None:
        """Run the function over the copies; returns why it must not commit, or None."""
        if event.transaction is None:
            raise ValueError("an event without a transaction cannot run")
        signature, values = event.transaction.signature, event.values()
        rows: list[list[Record]] = []
        for access in signature.accesses:
            try:
                keys = _keys(signature, access, values, rows, self.rows[access.table.name])
            except Exception as error:
                return _error_reason(error)
            rows.append(self._copies(access.table, keys, copies))
            may_lack = access.create or access.window is not None
            if not may_lack and not all(record.alive for record in rows[-1]):
                return f"missing key: {access.table.name}"
        for access, records in zip(signature.accesses, rows, strict=True):
            if access.create:
                _create(access.table, records)
        try:
            event.left = _left(signature, rows)
            with decimal.localcontext(EXACT), watched() as made:
                answer = body(signature.function)(*self._arguments(signature, event, values, rows))
                if isinstance(answer, Abort):
                    return answer.reason
                if made:
                    lost = f"abort({made[0].reason!r}) was not returned; return hg.abort(...)"
                    return f"error: LostAbort: {lost}"
                if answer is not None:
                    raise TypeError("a transaction returns nothing or hg.abort('why')")
                failed = _failed_check(signature.accesses, rows)
        except Exception as error:
            return _error_reason(error)
        written = [access.table for access in signature.accesses if not access.read_only]
        return failed if failed is not None else self._broken(written, copies)

    def _arguments(
        self,
        signature: Signature,
        event: ArrivingEvent,
        values: Mapping[str, Any],
        rows: Sequence[Sequence[Record]],
    ) -> list[Any]:
        """The function's arguments, windows among them."""
        arguments = _arguments(signature, event, values, rows)
        for number, parameter in enumerate(signature.parameters):
            role = parameter.stands_for
            versions = versions_of(role.table) if isinstance(role, Access) else None
            if isinstance(role, Access) and role.window is not None and versions is not None:
                key = tuple(values[column] for column in role.columns)
                time = event_time(role.table, signature.event, values)
                arguments[number] = SeenWindow(role, key, time, self.rows[versions.name])
        return arguments

    def _broken(
        self, written: Sequence[Table], copies: Mapping[tuple[str, Key], Record]
    ) -> str | None:
        """The constraint that would not hold with these copies in place, or None."""
        if not any(table.unique or table.references for table in self.declared.values()):
            return None
        after = {name: dict(rows) for name, rows in self.rows.items()}
        for (name, key), record in copies.items():
            after[name].pop(key, None)
            if record.alive:
                after[name][key] = record
        return broken_promise(written, self.declared, after)

    def _copies(
        self, table: Table, keys: Sequence[Key], copies: dict[tuple[str, Key], Record]
    ) -> list[Record]:
        """The copies of the rows with these keys, each made once."""
        found = []
        for key in keys:
            row = self.rows[table.name].get(key)
            nothing = Record(table.schema, dict(zip(table.key, key, strict=True)), alive=False)
            copies.setdefault((table.name, key), nothing if row is None else row.copy())
            found.append(copies[table.name, key])
        return found


def _keys(
    signature: Signature,
    access: Access,
    values: Mapping[str, Any],
    before: Sequence[Sequence[Record]],
    there: Mapping[Key, Record],
) -> list[Key]:
    """The keys that an access names: in the event, computed from the rows found before, or of
    those that there are."""
    if access.span is not None:
        return keys_in_range(access, access.span, values, there)
    if not access.keys:
        parts = [values[column] for column in access.columns]
        return list(zip(*parts, strict=True)) if access.form == "each" else [tuple(parts)]
    known: dict[str, Any] = {signature.parameters[0].name: _event_view(signature, values)}
    for name, role, records in zip(signature.row_names, signature.accesses, before, strict=False):
        shown = [_as_created(role.table, record) for record in records]
        views = [View(record, role.table.key, read_only=True) for record in shown]
        known[name] = views[0] if role.is_single else tuple(views)
    if access.form == "each":  # of each row of the one parameter that has several
        names = {name for one in access.functions for name in one.parameters}
        several = next(name for name in names if isinstance(known[name], tuple))
        each = [{**known, several: view} for view in known[several]]
        return [_computed(access, values, one) for one in each]
    return [_computed(access, values, known)]


def _computed(access: Access, values: Mapping[str, Any], known: Mapping[str, Any]) -> Key:
    """The key that functions of these views give."""
    with decimal.localcontext(EXACT):
        found = [
            values[one] if isinstance(one, str)
            else body(one.function)(*(known[name] for name in one.parameters))
            for one in access.keys
        ]  # fmt: skip
    key = found[0] if access.gives_tuple else tuple(found)
    if not isinstance(key, tuple) or len(key) != len(access.table.key):
        label = f"the key of table {access.table.name!r}"
        raise TypeError(f"{label} is a tuple of {len(access.table.key)} values, not {key!r}")
    pairs = zip(key, access.table.key_columns, strict=True)
    return tuple(assigned(value, column.type) for value, column in pairs)


def _as_created(table: Table, record: Record) -> Record:
    """A row as it will be made, where there is none yet."""
    if record.alive:
        return record
    made = record.copy()
    _create(table, [made])
    return made


def _event_view(signature: Signature, values: Mapping[str, Any]) -> View:
    return View(Record(signature.event, dict(values)), (), read_only=True)


def _create(table: Table, records: Iterable[Record]) -> None:
    for record in records:
        if not record.alive:
            others = [column for column in table.schema if column.name not in table.key]
            record.values.update({column.name: default(column) for column in others})
            record.alive = record.written = True


def _left(signature: Signature, rows: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """By parameter that may be written: the copies it works on, one for `at`, else a list.

    Where another transaction of the stream writes under the same name, what this one only reads
    is no row that it left behind.
    """
    named = zip(signature.row_names, signature.accesses, rows, strict=True)
    return {
        name: found[0] if access.is_single else list(found)
        for name, access, found in named
        if not access.read_only
    }


def _shown_rows(found: Record | list[Record]) -> Any:
    """Rows as results show them; a deleted one is None."""
    if isinstance(found, list):
        return [_shown_rows(record) for record in found]
    return _shown_row(found) if found.alive else None


def _arguments(
    signature: Signature,
    event: ArrivingEvent,
    values: Mapping[str, Any],
    rows: Sequence[Sequence[Record]],
) -> list[Any]:
    """The function's arguments in the order of its parameters; makes the event's output."""
    arguments: list[Any] = []
    remaining = iter(rows)
    for parameter in signature.parameters:
        role = parameter.stands_for
        if isinstance(role, Access):
            views = [View(record, role.table.key, role.read_only) for record in next(remaining)]
            arguments.append(views[0] if role.is_single else tuple(views))
        elif isinstance(role, OutputColumns):
            zeros = {
                column.name: None if column.nullable else blank(column.type)
                for column in role.schema
            }
            event.output = Record(role.schema, zeros)
            arguments.append(View(event.output, (), read_only=False))
        else:
            arguments.append(_event_view(signature, values))
    return arguments


def _failed_check(accesses: Sequence[Access], rows: Sequence[Sequence[Record]]) -> str | None:
    for access, records in zip(accesses, rows, strict=True):
        for record in records:
            judged = record.written and record.alive and not access.read_only
            if judged and not _passes(access.table, record):
                text = access.table.check.text if access.table.check is not None else ""
                return f"check failed: {access.table.name}: {text}"
    return None


def _passes(table: Table, record: Record) -> bool:
    if table.check is None:
        return True
    check = eval(f"lambda row: {table.check.python}", {"decimal": decimal.Decimal})
    with decimal.localcontext(EXACT):
        return bool(body(check)(View(record, table.key, read_only=True)))


def _error_reason(error: Exception) -> str:
    is_of_none = isinstance(error, AttributeError) and "'NoneType' object has" in str(error)
    if is_of_none or (isinstance(error, TypeError) and "NoneType" in str(error)):
        return "error: TypeError: None where a value is needed"
    for kind, words in _FIXED_ERRORS.items():
        if isinstance(error, kind):
            return f"error: {kind.__name__}: {words}"
    try:
        words = str(error)
    except Exception as fault:
        words = f"its text cannot be made ({type(fault).__name__})"
    return f"error: {type(error).__name__}: {words}".encode("utf-8", "backslashreplace").decode()


def judged_row(table: Table, row: Mapping[str, Any]) -> Record:
    """A record of the row; raises ValueError when its check fails or cannot be computed."""
    values = {}
    for column in table.schema:
        given = column.name in row or not (column.nullable or column.default is not None)
        is_none = given and column.nullable and row[column.name] is None
        value = default(column) if not given else None if is_none else row[column.name]
        values[column.name] = arrived(value, column.type) if given and not is_none else value
    record = Record(table.schema, values)
    try:
        passes = _passes(table, record)
    except ArithmeticError:
        passes = False
    if not passes:
        raise ValueError(f"the row {row} fails the check of table {table.name!r}")
    return record


def _shown_row(record: Record) -> dict[str, Any]:
    return {
        name: shown(record.values[name], record.schema[name].type) for name in record.schema.names
    }
