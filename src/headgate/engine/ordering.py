"""Ordering: the events of a stream become an arranged batch: who runs now, and in what order.

An arranger finds each event's transaction, sorts the events, holds back what the watermark has not
passed, and says who is late and who is malformed and why. It changes no state: an error up to here
costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.compiling.signature import Signature
from headgate.durability import Inlet
from headgate.engine.events import carried_array, require_columns
from headgate.engine.periodic import NO_TICKS, TickRows
from headgate.engine.routing import Routing
from headgate.engine.sorting import is_sorted_throughout, sort_key, sort_rows
from headgate.engine.terms import Terms
from headgate.errors import InputError
from headgate.execution.program import Program
from headgate.execution.run import LATE, REJECTED, Work
from headgate.isolation.levels import Execution, Executor
from headgate.parallel.figures import Figures
from headgate.state.columns import StoredColumn, to_stored
from headgate.state.fitting import conform, decoded, joined, one_array, unmarked
from headgate.state.objects import FAULT_WORDS, TEXT_FAULT
from headgate.state.schema import Schema
from headgate.state.spaces import EventRows
from headgate.state.types import ColumnType

NO_ROWS = np.empty(0, np.int64)


@dataclass
class Arranged:
    """A batch in order: `order` runs now; the others get their outcome without running."""

    events: pa.Table
    works: list[Work]
    route: np.ndarray  # by event row: the number of its transaction in the program
    order: EventRows  # event rows in serial order
    is_whole: bool  # every event runs, in the order it arrived
    aside: EventRows  # event rows that are late or rejected, in arrival order
    aside_outcome: np.ndarray
    aside_reason: list[str]
    held: EventRows  # event rows that wait for the watermark
    state: Inlet | None  # the inlet's state after this batch, None when it has none
    moments: np.ndarray | None  # by position: how late it is, None where the order has no time
    horizon: int | None  # how late it is behind the batch, None where that is not known
    # Of a stream with ticks: the times of those that run, the least of all, the watermark.
    clock: tuple[np.ndarray, int | None] | None = None


@dataclass(frozen=True)
class _Needs:
    """What one transaction takes of the events."""

    signature: Signature
    columns: tuple[tuple[str, str], ...]  # name and type
    keys: frozenset[str]  # those of them that are keys
    aligned: tuple[tuple[str, ...], ...]  # array columns that together name keys

    @staticmethod
    def of(signature: Signature) -> _Needs:
        lists = (one.columns for one in signature.accesses if one.is_by_list)
        return _Needs(
            signature,
            tuple((column.name, column.kept_as) for column in signature.event),
            frozenset(name for access in signature.accesses for name in access.columns),
            tuple(names for names in lists if len(names) > 1),
        )


def arranger_of(terms: Terms, program: Program) -> Arranger:
    """Who applies these terms for the program, made once."""
    found: Arranger | None = terms.arrangers.get(program)
    if found is None:
        found = terms.arrangers[program] = Arranger(terms, program)
    return found


def figures_of(terms: Terms, events: pa.Table, executor: Executor) -> Figures:
    """The figures of the graph that events would make over the rows of an executor; none runs."""
    arranged = arranger_of(terms, executor.program).arrange(events, None)
    executor.program.resolve(arranged.works, is_foreseen=True)
    return executor.explain(arranged.works, arranged.order, arranged.route)


class Arranger:
    """Applies terms to tables of events, for one program."""

    def __init__(self, terms: Terms, program: Program) -> None:
        self.terms = terms
        self.program = program
        self.routing: Routing | None = None
        if terms.route.column is not None:
            values = [value for value, _ in terms.route.values]
            numbers = [program.number(transaction.name) for _, transaction in terms.route.values]
            self.routing = Routing(values, numbers)
        schemas = [*(signature.event for signature in program.signatures), Schema(terms.order_by)]
        self._needed = {
            (column.name, column.kept_as): (
                column.type,
                f"events: column {column.name!r}",
                column.nullable,
            )
            for schema in schemas
            for column in schema
        }
        self._order = [(column, (column.name, column.kept_as)) for column in terms.order_by]
        self._needs = [_Needs.of(signature) for signature in program.signatures]

    def arrange(
        self,
        events: pa.Table,
        state: Inlet | None,
        ticks: TickRows = NO_TICKS,
        route: np.ndarray | None = None,
    ) -> Arranged:
        """Arrange ticks, held-back events and the new ones; the state is that before the batch.

        Events that were arranged before, ticks among them, come with the `route` that was found.
        """
        if state is not None and state.held is not None:
            check_held(state.held, self.terms)
        require_columns(events, self.terms.columns, "events")
        events = self._with_held(decoded(events), state)
        if self.terms.route.ticks and route is None:
            events = ticks.before(events, self.terms)
        rejects = _Rejects(events.num_rows, len(ticks))
        if route is None:
            route = self._route(events, rejects)
            route[: len(ticks)] = ticks.numbers
        stored = self._stored(events)
        keys = self._order_keys(events, stored, rejects)
        works = [
            self._work(number, need, stored, route, rejects)
            for number, need in enumerate(self._needs)
        ]
        return self._split(events, works, route, keys, rejects, state, ticks)

    def check(self, given: pa.Schema) -> None:
        """Refuse events of this schema as `arrange` would, before there are any."""
        column = self.terms.route.column
        if column is not None and self.routing is not None and column in given.names:
            self.routing.check(given.field(column).type, column)
        self.arrange(given.empty_table(), None)

    def _with_held(self, events: pa.Table, state: Inlet | None) -> pa.Table:
        if state is None or state.held is None or self.terms.watermark_us is None:
            return events
        # What was held comes first: it arrived earlier.
        before, columns = state.held, {}
        for name in self.terms.columns:
            known = name in before.column_names
            held = before.column(name) if known else pa.nulls(before.num_rows)
            columns[name] = self._joined(name, held, events.column(name))
        return pa.table(columns)

    def _joined(self, name: str, held: pa.ChunkedArray, new: pa.ChunkedArray) -> Any:
        """A column of the held events and of the new ones, which may have come in another type."""
        kind, where = self._declared[name], f"events: column {name!r}"
        if kind is None:
            parts = [pa.table({name: held}), pa.table({name: self._typed(name, new)})]
            return pa.concat_tables(parts, promote_options="permissive").column(name)
        return joined(conform(held, kind, where), new, kind, where)

    @cached_property
    def _declared(self) -> dict[str, ColumnType | None]:
        """The type of each needed column; None where they declare none, or several."""
        found: dict[str, ColumnType | None] = {}
        for transaction in self.terms.route.taking:
            for column in transaction.event:
                same = found.setdefault(column.name, column.type) == column.type
                found[column.name] = column.type if same else None
        return {name: found.get(name) for name in self.terms.columns}

    def _in_declared_types(self, events: pa.Table) -> pa.Table:
        """The needed columns in their declared types, so that events of two batches fit together.

        A column that two transactions declare differently stays as it came.
        """
        return pa.table({name: self._typed(name, events.column(name)) for name in self._declared})

    def _typed(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        kind, carried = self._declared[name], dict(self.terms.carried)
        if kind is not None:
            return conform(column, kind, f"events: column {name!r}")
        if name in carried and name not in self.terms.event:
            return carried_array(column, carried[name], name)
        array = one_array(column)
        return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array

    def _route(self, events: pa.Table, rejects: _Rejects) -> np.ndarray:
        column = self.terms.route.column
        if column is None or self.routing is None:
            return np.zeros(events.num_rows, np.int64)
        values, faults = unmarked(one_array(events.column(column)))
        route = self.routing.numbers(values)
        if faults is not None:
            rejects.add_faults(faults, column, "route", None)
        for row in np.flatnonzero(route < 0) if route.min(initial=0) < 0 else ():
            rejects.add_one(int(row), _unrouted(values[int(row)], column))
        return route

    def _stored(self, events: pa.Table) -> dict[tuple[str, str], StoredColumn]:
        """Every needed column in every type a transaction declares it with, stored once."""
        pool = self.program.pool
        return {
            key: to_stored(events.column(key[0]), kind, pool, where, nullable)
            for key, (kind, where, nullable) in self._needed.items()
        }

    def _work(
        self,
        number: int,
        need: _Needs,
        stored: Mapping[tuple[str, str], StoredColumn],
        route: np.ndarray,
        rejects: _Rejects,
    ) -> Work:
        columns = {key[0]: stored[key] for key in need.columns}
        is_alone = self.routing is None and not self.terms.route.ticks
        others = None if is_alone else route != number
        for name, column in columns.items():
            if column.faults is not None:
                mine = None if others is None else ~others
                role = "key" if name in need.keys else "value"
                rejects.add_faults(column.faults, name, role, mine)
        for names in need.aligned:
            mine = None if others is None else ~others
            columns.update(_aligned(columns, names, rejects, mine))
        return Work(need.signature, columns, rejects.skip(others))

    def _order_keys(
        self,
        events: pa.Table,
        stored: Mapping[tuple[str, str], StoredColumn],
        rejects: _Rejects,
    ) -> list[np.ndarray]:
        keys = []
        for column, key in self._order:
            found = stored[key]
            if found.faults is not None:
                rejects.add_faults(found.faults, column.name, "order column", None)
            texts = None
            if column.type.kind == "string":
                texts = conform(events.column(column.name), column.type, "order_by")
            keys.append(sort_key(found.values, column.type, texts))
        return keys

    def _split(
        self,
        events: pa.Table,
        works: list[Work],
        route: np.ndarray,
        keys: list[np.ndarray],
        rejects: _Rejects,
        state: Inlet | None,
        ticks: TickRows,
    ) -> Arranged:
        count, new_state, late_count, mark = events.num_rows - len(ticks), None, 0, None
        aside, aside_reason, held = rejects.rows(), rejects.reasons(), NO_ROWS
        aside_outcome = np.full(len(aside), REJECTED, np.int8)
        for work in works:
            work.skip = rejects.skip(None) | work.skip if len(aside) else work.skip
        if self.terms.watermark_us is None:
            is_whole = not len(aside) and len(keys) <= 1 and all(map(is_sorted_throughout, keys))
            is_whole = is_whole and not len(ticks)
            order = self.program.counted(count)
            if not is_whole:
                order = sort_rows(keys, rejects.accepted())
        else:
            is_whole = False
            before = state.watermark_us if state is not None else None
            order, late, held, mark = self._by_watermark(keys, rejects.accepted(), before)
            if self.terms.late == "append":
                order, late, late_count = np.concatenate([order, late]), NO_ROWS, len(late)
            if len(late):
                rows = np.concatenate([aside, late])
                arrival = np.argsort(rows, kind="stable")
                outcomes = np.concatenate([aside_outcome, np.full(len(late), LATE, np.int8)])
                words = f"late: {self.terms.order_by[0].name} is before the watermark"
                reasons = [*aside_reason, *[words] * len(late)]
                aside, aside_outcome = rows[arrival], outcomes[arrival]
                aside_reason = [reasons[place] for place in arrival]
            kept = self._in_declared_types(events.take(held)) if len(held) else None
            arrivals = (state.arrivals if state is not None else 0) + count
            new_state = Inlet(mark, kept, arrivals)
        clock = None
        if self.terms.route.ticks and keys:
            clock = keys[0][order[: len(order) - late_count]], mark
            order = ticks.in_order(keys[0], order, late_count)
        moments, horizon = self._moments(keys, order, late_count, mark)
        return Arranged(events, works, route, order, is_whole, aside, aside_outcome, aside_reason,
                        held, new_state, moments, horizon, clock)  # fmt: skip

    def _moments(
        self, keys: list[np.ndarray], order: EventRows, late: int, mark: int | None
    ) -> tuple[np.ndarray | None, int | None]:
        """By position how late it is, and behind all: by the events so far, and by the watermark,
        which has passed when events run that are late."""
        if not self.program.expiring or not self.terms.is_timed:
            return None, mark
        moments = keys[0][order]
        if late and mark is not None:
            moments[len(order) - late :] = mark
        moments = np.maximum.accumulate(moments)
        last = [int(one) for one in moments[-1:]] + ([] if mark is None else [mark])
        return moments, max(last, default=None)

    def _by_watermark(
        self, keys: list[np.ndarray], rows: EventRows, before: int | None
    ) -> tuple[EventRows, EventRows, EventRows, int | None]:
        """Rows to run in order, late rows, held rows, and the watermark after them."""
        times, after = keys[0], before
        if len(rows):
            reached = int(times[rows].max()) - (self.terms.watermark_us or 0)
            after = reached if before is None else max(before, reached)
        late = rows[times[rows] < before] if before is not None else NO_ROWS
        timely = rows[times[rows] >= before] if before is not None else rows
        # What is at the watermark itself waits: an event may still come that ties with it in time
        # and goes before it by a further order column.
        passed = times[timely] < (after if after is not None else 0)
        order = sort_rows(keys, timely[passed])
        late = sort_rows(keys, late) if self.terms.late == "append" else late
        return order, late, timely[~passed], after


def in_commit_order(arranged: Arranged, execution: Execution, terms: Terms) -> Arranged:
    """The batch in the serial order in which it ran, if a protocol chose one of its own."""
    isolated = execution.isolated
    if isolated is None:
        return arranged
    if terms.record is not None and isolated.recording is not None:
        terms.record.append(isolated.recording)
    is_whole = arranged.is_whole and terms.isolation == "PL4"
    return replace(arranged, order=isolated.order, is_whole=is_whole)


def check_held(held: pa.Table, terms: Terms) -> None:
    """Refuse to go on when events are held that were of other columns than the program has now."""
    try:
        for transaction in terms.route.taking:
            for column in transaction.event:
                require_columns(held, [column.name], "they")
                if column.type.element is None:
                    conform(
                        one_array(held.column(column.name)), column.type, f"column {column.name!r}"
                    )
    except InputError as error:
        raise InputError(
            f"{held.num_rows} events are held back that are of other columns than the program's "
            f"({error}): let that program run them, by engine.flush(...), before this one goes on"
        ) from None


def latest_time_us(held: pa.Table, terms: Terms) -> int:
    """The largest time among held events: where the watermark stands once they have run."""
    times = held.column(terms.order_by[0].name).cast(pa.timestamp("us", tz="UTC"))
    return int(pc.max(times.cast(pa.int64())).as_py())


def _aligned(
    columns: Mapping[str, StoredColumn],
    names: Sequence[str],
    rejects: _Rejects,
    mine: np.ndarray | None,
) -> dict[str, StoredColumn]:
    """Array columns that together name keys: events where they differ in length are rejected."""
    found = {name: columns[name] for name in names}
    lengths = {name: column.lengths for name, column in found.items()}
    first = lengths[names[0]]
    ragged = np.zeros(len(first), np.bool_)
    for other in lengths.values():
        ragged |= other != first
    for row in np.flatnonzero(ragged if mine is None else ragged & mine):
        rejects.add_one(int(row), f"arrays of different length: {', '.join(names)}")
    if not ragged.any():
        return {}
    return {name: _emptied(column, lengths[name], ragged) for name, column in found.items()}


def _emptied(column: StoredColumn, lengths: np.ndarray, ragged: np.ndarray) -> StoredColumn:
    kept = np.where(ragged, 0, lengths)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    values = np.ascontiguousarray(column.values[np.repeat(~ragged, lengths)])
    return StoredColumn(values, column.faults, offsets)


def _unrouted(value: pa.Scalar, column: str) -> str:
    """Why an event has no route."""
    try:
        found = value.as_py()
    except UnicodeDecodeError:
        return f"{FAULT_WORDS[TEXT_FAULT]}: {column}"
    return f"null route: {column}" if found is None else f"unknown route: {found}"


class _Rejects:
    """The malformed events of a batch, each with the first reason found."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count = count
        self._first = first  # before it there are ticks, with which nothing is wrong
        self.by_row: dict[int, str] = {}
        self._nothing = np.zeros(count, np.uint8)

    def add_one(self, row: int, reason: str) -> None:
        if row >= self._first:
            self.by_row.setdefault(row, reason)

    def add_faults(self, faults: np.ndarray, name: str, role: str, mine: np.ndarray | None) -> None:
        rows = np.flatnonzero(faults if mine is None else faults * mine)
        for row in rows:
            fault = FAULT_WORDS.get(int(faults[row]), f"null {role}")
            self.add_one(int(row), f"{fault}: {name}")

    def skip(self, others: np.ndarray | None) -> np.ndarray:
        """By event row: 1 where it is malformed or another transaction's."""
        if not self.by_row:
            return self._nothing if others is None else others.view(np.uint8)
        skip = self._nothing.copy() if others is None else others.astype(np.uint8)
        skip[list(self.by_row)] = 1
        return skip

    def rows(self) -> EventRows:
        return np.array(sorted(self.by_row), np.int64)

    def reasons(self) -> list[str]:
        return [self.by_row[row] for row in sorted(self.by_row)]

    def accepted(self) -> EventRows:
        found = np.flatnonzero(self.skip(None) == 0)
        return found[found >= self._first]
