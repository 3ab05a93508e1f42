"""The interpreter: one transaction over one event as plain Python, with the kernel's meaning.

It works on the same rows and arrays as the kernel, so `compiled=False` gives the same bytes.
"""

from __future__ import annotations

import decimal
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.compiling.actions import DELETES, verdict, watched
from headgate.compiling.keys import key_parts, source_names
from headgate.compiling.signature import OutputColumns, Signature
from headgate.compiling.uncompiled import NONE_WORDS, Exact, Int64, Text, made_text, plain_form
from headgate.execution.keeper import Keeper
from headgate.execution.window_views import WindowView
from headgate.kernels.building import check_function
from headgate.state.integrity import constraints_on
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT, HEADER_WRITTEN, Layout
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool
from headgate.state.table import Access, Table
from headgate.state.types import BOUNDS, ColumnType, fits_float
from headgate.state.version_rows import trail_of

# Products of two 18-digit decimals stay exact, as they do compiled.
EXACT = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


def error_reason(error: BaseException) -> str:
    """The reason of a transaction that raised, in the same words compiled and interpreted."""
    fixed = {
        ZeroDivisionError: "division by zero",
        OverflowError: "overflow",
        IndexError: "index out of range",
    }
    if has_met_none(error):
        return f"error: TypeError: {NONE_WORDS}"
    for kind, words in fixed.items():
        if isinstance(error, kind):
            return f"error: {kind.__name__}: {words}"
    try:
        words = str(error)
    except Exception as fault:  # of a user's own exception: its words are made by a method of it
        words = f"its text cannot be made ({type(fault).__name__})"
    # Half of a surrogate pair is no text that can be stored.
    return f"error: {type(error).__name__}: {words}".encode("utf-8", "backslashreplace").decode()


def has_met_none(error: BaseException) -> bool:
    """Whether None stood where a value is needed, which Python words by the operation."""
    if isinstance(error, AttributeError):  # None has no method: that is, of a text, `startswith`
        return error.name is not None and error.obj is None
    words = error.args[0] if isinstance(error, TypeError) and error.args else None
    is_said = isinstance(words, str) and ("NoneType" in words or words.endswith("got None"))
    return is_said or words == NONE_WORDS


def has_lost_its_error(error: BaseException) -> bool:
    """Whether Numba forgot what was raised, as it does for what is raised inside an `except`."""
    return isinstance(error, AssertionError) and "op code RERAISE" in str(error)


def function_value(stored: Any, kind: ColumnType, pool: StringPool) -> Any:
    """A stored value as the function sees it: int, float, bool, str or Decimal."""
    if kind.kind == "string":
        return Text(pool.text(int(stored)))
    if kind.kind == "boolean":
        return bool(stored)
    if kind.kind in ("float", "double"):
        return float(stored)
    if kind.kind == "decimal":
        return Exact(decimal.Decimal(int(stored)).scaleb(-kind.scale, EXACT))
    return Int64(stored)


def stored_result(value: Any, kind: ColumnType, pool: StringPool, where: str) -> Any:
    """A function's value as its column stores it; what does not fit raises, as when compiled."""
    if isinstance(value, np.generic):
        value = value.item()
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if kind.kind == "string" and isinstance(value, str):
        return pool.intern(pa.array([made_text(value)], pa.string()))[0]
    if kind.kind == "boolean" and isinstance(value, bool):
        return value
    if kind.kind in ("float", "double") and (is_number or isinstance(value, float)):
        if not fits_float(float(value), kind):
            raise OverflowError("overflow")
        return float(value)
    if kind.kind == "decimal" and (is_number or isinstance(value, decimal.Decimal)):
        return _scaled(value, kind)
    if kind.kind in ("int", "bigint", "timestamp", "date") and is_number:
        least, greatest = BOUNDS[kind.kind]
        if not least <= value <= greatest:
            raise OverflowError("overflow")
        return value
    raise TypeError(f"{where} is {kind}, and a {type(value).__name__} cannot be stored in it")


def _scaled(value: int | decimal.Decimal, kind: ColumnType) -> int:
    scaled = decimal.Decimal(value).scaleb(kind.scale, EXACT)
    whole = int(scaled.to_integral_value(decimal.ROUND_HALF_UP))
    if abs(whole) >= 10**kind.precision:
        raise OverflowError("overflow")
    return whole


class RecordView:
    """One record's columns as attributes: a row of a table or an output."""

    __slots__ = ("_is_watched", "_label", "_layout", "_pool", "_read_only", "_record")

    def __init__(
        self,
        record: Any,
        layout: Layout,
        pool: StringPool,
        label: str,
        read_only: bool = False,
        is_watched: bool = False,
    ) -> None:
        object.__setattr__(self, "_is_watched", is_watched)
        object.__setattr__(self, "_record", record)
        object.__setattr__(self, "_layout", layout)
        object.__setattr__(self, "_pool", pool)
        object.__setattr__(self, "_label", label)
        object.__setattr__(self, "_read_only", read_only)

    def __getattr__(self, name: str) -> Any:
        field = self._field(name)
        if field.nullable and self._record[field.null_word] & field.null_mask:
            return None
        return function_value(self._words()[name], field.type, self._pool)

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._field(name)
        if self._read_only or field.is_key:
            why = "a key column" if field.is_key else "declared mode='read'"
            raise TypeError(f"{self._label}.{name} is {why} and cannot be set")
        if value is None and field.nullable:
            self._words()[name] = 0
            self._record[field.null_word] |= field.null_mask
            self._note_written()
            return
        where = f"{self._label}.{name}"
        self._words()[name] = stored_result(value, field.type, self._pool, where)
        if field.nullable:
            self._record[field.null_word] &= ~field.null_mask
        self._note_written()

    def _note_written(self) -> None:
        if self._is_watched:
            self._record[0] |= HEADER_WRITTEN

    def __headgate_delete__(self) -> None:
        if self._read_only:
            raise TypeError(f"{self._label} was declared mode='read' and cannot be deleted")
        if not any(field.is_key for field in self._layout.fields):  # an output
            raise TypeError(f"{DELETES}, not {self._label}")
        self._record[0] &= ~np.int64(1)

    def _words(self) -> Any:
        return self._record.view(self._layout.dtype)[0]

    def _field(self, name: str) -> Any:
        for field in self._layout.fields:
            if field.name == name:
                return field
        names = ", ".join(field.name for field in self._layout.fields)
        raise AttributeError(f"{self._label} has no column {name!r}; the columns are: {names}")


class EventView:
    """One event's columns as attributes."""

    __slots__ = ("_columns", "_event", "_pool", "_row")

    def __init__(self, event: Any, columns: dict[str, Any], row: int, pool: StringPool) -> None:
        self._event = event
        self._columns = columns
        self._row = row
        self._pool = pool

    def __headgate_delete__(self) -> None:
        raise TypeError(f"{DELETES}, not the event")

    def __getattr__(self, name: str) -> Any:
        if name not in self._event:
            raise AttributeError(f"the event has no column {name!r}")
        kind, column = self._event[name].type, self._columns[name]
        if column.nulls is not None and column.nulls[self._row]:
            return None
        if kind.element is None:
            return function_value(column.values[self._row], kind, self._pool)
        first, last = column.offsets[self._row], column.offsets[self._row + 1]
        return tuple(
            function_value(item, kind.element, self._pool) for item in column.values[first:last]
        )


class Interpreter:
    """Runs one transaction's function over single events of a prepared batch."""

    def __init__(
        self, signature: Signature, tables: dict[str, TableRows], pool: StringPool
    ) -> None:
        self.signature = signature
        self.function = plain_form(signature.function)
        keys = (one for access in signature.accesses for one in access.functions)
        self.key_functions = {one: plain_form(one.function) for one in keys}
        self.tables = tables
        self.pool = pool
        checks = {table.name: check_function(table) for table in signature.tables}
        self.checks = {name: one and plain_form(one) for name, one in checks.items()}
        declared = [rows.table for rows in tables.values()]
        changing = (access.table for access in signature.accesses if not access.read_only)
        self.keeper = Keeper(tables, constraints_on(dict.fromkeys(changing), declared))

    def run(self, work: Any, event_row: int, position: int, epoch: int) -> str | None:
        """Run one event; returns None when it committed, else the reason why not."""
        slots = work.slots_of(event_row)
        missing = self._find(work, event_row, slots)
        if missing is not None:
            return missing
        copies = {
            (access.table.name, slot): self._words(access, slot).copy()
            for access, found in zip(self.signature.accesses, slots, strict=True)
            for slot in found
            if slot >= 0 and not access.read_only
        }
        reason = self._attempt(work, event_row, position, slots, copies)
        work.touched = list(copies)
        for (name, slot), copy in copies.items():
            words = self.tables[name].words[slot]
            if reason is not None:
                words[:] = copy
            elif self._differs(words, copy):
                self._mark(work, name, slot, epoch)
                self._keep_version(work, name, slot, event_row, epoch, position)
        if reason is None:
            self._keep(work, event_row, slots)
        return reason

    # --- versions -----------------------------------------------------------------------------

    def _keep_version(
        self, work: Any, name: str, slot: int, row: int, epoch: int, position: int
    ) -> None:
        """Keep a changed row as the transaction leaves it, where the table has a history."""
        table = self.tables[name].table
        if table.history is not None:
            time = self._time(table, work, row)
            trail_of(self.tables, table).note(slot, time, epoch, position)

    def _time(self, table: Table, work: Any, row: int) -> int:
        """The time of an event, as a table with history takes it."""
        if table.history is None:
            return 0
        name = table.history.time_column(self.signature.event, self.signature.name)
        return 0 if name is None else int(work.columns[name].values[row])

    def _window(self, access: Access, work: Any, row: int, slot: int) -> Any:
        """What a function gets for a window."""
        kept = trail_of(self.tables, access.table)
        label, layout = f"the versions of table {access.table.name!r}", kept.versions.layout

        def shown(words: Any) -> RecordView:
            return RecordView(words, layout, self.pool, label, True)

        time = self._time(access.table, work, row)
        return access.window and WindowView(kept, access.window, slot, time, shown)

    # --- rows whose keys depend on others -----------------------------------------------------

    def _find(self, work: Any, row: int, slots: list[Any]) -> str | None:
        """Find what depends on the rows as they are now; returns why there is no such row.

        A static key may have got its row since it was looked for: by an event that computed it.
        """
        accesses = self.signature.accesses
        last = max((place for place, one in enumerate(accesses) if one.is_dynamic), default=-1)
        for place, (access, found) in enumerate(zip(accesses, slots, strict=True)):
            rows = self.tables[access.table.name]
            if access.follows:
                try:
                    found = slots[place] = self._follow(access, place, work, row, slots)
                except Exception as error:
                    return error_reason(error)
            elif access.is_dynamic:
                try:
                    key = self._key(access, work, row, slots)
                except Exception as error:
                    return error_reason(error)
                found[0] = rows.take(key) if access.create else rows.find_one(key)
            elif rows.spare_used[0] and not access.create and (found < 0).any():
                words = [one.values[work.spans[place].of(row)] for one in work.key_columns(access)]
                found[:] = rows.find(rows.key_words(words), np.zeros(len(found), np.uint8))
            if place < last and self._is_missing(access, found):
                return f"missing key: {access.table.name}"
        return None

    def _follow(self, access: Access, place: int, work: Any, row: int, slots: list[Any]) -> Any:
        """A row for each row of the access that this one follows."""
        count, rows = len(slots[self.signature.source_of(place)]), self.tables[access.table.name]
        keys = (self._key(access, work, row, slots, one) for one in range(count))
        return np.array([rows.find_one(key) for key in keys], np.int64)

    def _key(
        self, access: Access, work: Any, row: int, slots: list[Any], at: int | None = None
    ) -> list[int]:
        """The words of a computed key; of row `at` of the access that it follows."""
        event = EventView(self.signature.event, work.columns, row, self.pool)
        known: dict[str, Any] = {self.signature.parameters[0].name: event}
        named = zip(self.signature.row_names, self.signature.accesses, slots, strict=True)
        for name, role, found in named:
            if role is access:
                break
            if name in source_names(access):
                known[name] = self._source(role, found)
                if at is not None and not role.is_single:
                    known[name] = known[name][at]
        with decimal.localcontext(EXACT):
            values = [
                getattr(event, one) if isinstance(one, str)
                else self.key_functions[one](*(known[name] for name in one.parameters))
                for one in access.keys
            ]  # fmt: skip
        columns, label = access.table.key_columns, f"the key of table {access.table.name!r}"
        if access.gives_tuple:
            values = key_parts(values[0], len(columns), label)
        return [
            int(stored_result(value, column.type, self.pool, f"{label}.{column.name}"))
            for value, column in zip(values, columns, strict=True)
        ]

    def _source(self, access: Access, slots: Any) -> Any:
        """Rows as the function of a key sees them: one that is to be made has its defaults."""
        for slot in slots if access.create else ():
            words = self._words(access, slot)
            if not words[0] & HEADER_ALIVE:
                first = 1 + len(access.table.key)
                words[first:] = self.tables[access.table.name].defaults[first:]
        views = tuple(self._view(replace(access, read_only=True), slot) for slot in slots)
        return views[0] if access.is_single else views

    # --- one event ----------------------------------------------------------------------------

    def _keep(self, work: Any, event_row: int, slots: list[Any]) -> None:
        """Copies of the rows as the transaction leaves them, where results ask for them."""
        accesses = zip(self.signature.accesses, work.spans, slots, work.after, strict=True)
        for access, spans, found, after in accesses:
            if after is not None and len(found):
                after[spans.of(event_row)] = self.tables[access.table.name].words[found]

    def _attempt(
        self, work: Any, event_row: int, position: int, slots: list[Any], copies: dict[Any, Any]
    ) -> str | None:
        # A row that the event itself creates is no row for a parameter that needs one.
        for access, found in zip(self.signature.accesses, slots, strict=True):
            if self._is_missing(access, found):
                return f"missing key: {access.table.name}"
        for access, found in zip(self.signature.accesses, slots, strict=True):
            for slot in found if access.create else ():
                self._create(access, slot)
        try:
            with decimal.localcontext(EXACT), watched() as made:
                record = self._blank(work)
                answer = self.function(*self._arguments(work, event_row, record, slots))
                if record is not None:
                    work.out[:, position] = record
                reason = verdict(answer, made)
                if reason is not None:
                    return reason
                if answer is not None:
                    raise TypeError("a transaction returns nothing or hg.abort('why')")
                failed = self._failed_check(slots, copies)
                return failed if failed is not None else self.keeper.exchange(copies)
        except Exception as error:
            return error_reason(error)

    def _blank(self, work: Any) -> np.ndarray | None:
        """An output as a transaction finds it."""
        if work.out is None:
            return None
        record = np.zeros(len(work.out), np.int64)
        for word, bits in work.out_layout.all_null.items():
            record[word] = bits
        return record

    def _arguments(self, work: Any, row: int, record: Any, slots: list[Any]) -> list[Any]:
        found = iter(slots)
        arguments: list[Any] = []
        for parameter in self.signature.parameters:
            role = parameter.stands_for
            if role is None:
                arguments.append(EventView(self.signature.event, work.columns, row, self.pool))
            elif isinstance(role, OutputColumns):
                label = f"the output of {self.signature.name!r}"
                arguments.append(RecordView(record, work.out_layout, self.pool, label))
            elif role.window is not None:
                arguments.append(self._window(role, work, row, int(next(found)[0])))
            else:
                views = [self._view(role, slot) for slot in next(found)]
                arguments.append(views[0] if role.is_single else tuple(views))
        return arguments

    def _view(self, access: Access, slot: int) -> RecordView:
        label = f"table {access.table.name!r}"
        layout = self.tables[access.table.name].layout
        is_watched = access.table.history is not None
        words = self._words(access, slot)
        return RecordView(words, layout, self.pool, label, access.read_only, is_watched)

    def _words(self, access: Access, slot: int) -> Any:
        return self.tables[access.table.name].words[slot]

    def _is_missing(self, access: Access, slots: Any) -> bool:
        """Whether the access needs rows, and one of them is not there."""
        if access.create or access.window is not None:
            return False
        return not all(self._is_there(access, slot) for slot in slots)

    def _is_there(self, access: Access, slot: int) -> bool:
        return slot >= 0 and bool(self._words(access, slot)[0] & HEADER_ALIVE)

    def _create(self, access: Access, slot: int) -> None:
        words = self._words(access, slot)
        if not words[0] & HEADER_ALIVE:
            words[0] |= 1
            first = 1 + len(access.table.key)
            words[first:] = self.tables[access.table.name].defaults[first:]

    def _failed_check(self, slots: list[Any], copies: dict[Any, Any]) -> str | None:
        for access, found in zip(self.signature.accesses, slots, strict=True):
            check = self.checks[access.table.name]
            for slot in found if check is not None and not access.read_only else ():
                words = self._words(access, slot)
                changed = self._differs(words, copies[access.table.name, slot])
                if changed and words[0] & HEADER_ALIVE and not check(self._view(access, slot)):
                    text = access.table.check.text if access.table.check else ""
                    return f"check failed: {access.table.name}: {text}"
        return None

    def _differs(self, words: Any, copy: Any) -> bool:
        changed = (words[0] ^ copy[0]) & (HEADER_ALIVE | HEADER_WRITTEN)
        return bool(changed) or not np.array_equal(words[1:], copy[1:])

    def _mark(self, work: Any, name: str, slot: int, epoch: int) -> None:
        words = self.tables[name].words[slot]
        if words[0] >> HEADER_EPOCH_SHIFT != epoch:
            words[0] = (epoch << HEADER_EPOCH_SHIFT) | (words[0] & HEADER_ALIVE)
            work.note_change(name, slot)
        words[0] &= ~np.int64(HEADER_WRITTEN)


def failures(rows: TableRows, slots: range, most: int) -> list[int]:
    """The first so many of these slots whose row fails its table's check, or makes it raise."""
    check = plain_form(check_function(rows.table))
    label, found = f"table {rows.table.name!r}", []
    for slot in slots:
        view = RecordView(rows.words[slot], rows.layout, rows.pool, label, read_only=True)
        try:
            is_kept = bool(check(view))
        except Exception:
            is_kept = False
        if not is_kept:
            found.append(slot)
            if len(found) == most:
                break
    return found
