"""Inlets: where events of one stream come in: which transaction each runs, and in what order.

An inlet turns a table of events into an `Arranged` batch: what runs now and in which order, what is
held back until the watermark passes, what is late and what is rejected. It changes no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.compiling.signature import Signature
from headgate.durability import Inlet as InletState
from headgate.engine.events import Carried, carried_array, parse_carry, require_columns
from headgate.engine.order import is_sorted_throughout, parse_duration, sort_key, sort_rows
from headgate.engine.routing import Routing
from headgate.errors import DeclarationError, InputError, not_among, shown
from headgate.execution.program import Program
from headgate.execution.run import LATE, REJECTED, Work
from headgate.isolation.executor import Execution
from headgate.isolation.levels import PROTOCOLS, Recording
from headgate.parallel.scheme import SERIAL, Scheme
from headgate.query.stored import UNROUTED
from headgate.state.columns import StoredColumn, to_stored
from headgate.state.fitting import conform, decoded, joined, one_array, unmarked
from headgate.state.objects import FAULT_WORDS, TEXT_FAULT
from headgate.state.schema import Column, ColumnType, Schema, refuse_twins, split_list
from headgate.state.table import Access
from headgate.transactions import RESULT_COLUMNS, Transaction, find_route

NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Route:
    """How events find their transaction: all to one, or by the value of a column."""

    transactions: tuple[Transaction, ...]
    values: tuple[Any, ...] = ()
    column: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a user said about a stream of events."""

    route: Route
    order_by: tuple[Column, ...]
    watermark_us: int | None
    late: str
    name: str | None
    scheme: Scheme = SERIAL
    isolation: str = "PL4"
    updates: bool = False
    idle_us: int | None = None  # without events for so long, what is held back runs
    carry: tuple[str, ...] = ()  # event columns for every result
    carried: Carried = ()  # the same with their types, once events were seen
    record: list[Recording] | None = field(default=None, compare=False)
    _arrangers: dict[Program, Arranger] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    # This plan with the types of what it carries, by the types of events that came.
    carrying: dict[tuple[pa.DataType | None, ...], Plan] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def arranger(self, program: Program) -> Arranger:
        """Who applies this plan for the program, made once."""
        if program not in self._arrangers:
            self._arrangers[program] = Arranger(self, program)
        return self._arrangers[program]

    @cached_property
    def columns(self) -> list[str]:
        """The event columns it needs, each once."""
        names = [name for found in self.route.transactions for name in found.event.names]
        names += [column.name for column in self.order_by]
        names += [self.route.column] if self.route.column is not None else []
        names += self.carry
        return list(dict.fromkeys(names))

    @cached_property
    def event(self) -> Schema:
        """The event columns of all its transactions, each as the first one declares it."""
        found: dict[str, Column] = {}
        for transaction in self.route.transactions:
            for column in transaction.event:
                found.setdefault(column.name, column)
        return Schema(tuple(found.values()))

    def with_unneeded(self, events: pa.Table) -> pa.Table:
        """The events with nulls for declared columns that no route taken by one of them needs."""
        there, route = events.column_names, self.route
        missing = [column for column in self.event if column.name not in there]
        if not missing or route.column not in there:
            return events
        values, _ = unmarked(one_array(events.column(route.column)))
        routing = Routing([value for value, _ in route.values], range(len(route.values)))
        taken = np.unique(routing.numbers(values)).tolist()
        used = [route.values[place][1].event for place in taken if place >= 0]
        needed = {name for event in used for name in event.names}
        needed |= {*(column.name for column in self.order_by), *self.carry}
        for column in missing:
            if column.name not in needed:
                nulls = pa.nulls(events.num_rows, column.type.arrow)
                events = events.append_column(column.name, nulls)
        return events

    @cached_property
    def label(self) -> str:
        """The name under which the stream is counted."""
        if self.name is not None:
            return self.name
        return ", ".join(transaction.name for transaction in self.route.transactions)

    def inlet_name(self, source: tuple[str, int] | None) -> str:
        """Order state belongs to the name a user gave, or to the query, or to the transactions."""
        if self.name is not None:
            return self.name
        if source is not None:
            return f"query {source[0]}"
        return f"run {self.label}"

    @cached_property
    def updated(self) -> dict[str, Column]:
        """With `updates`: for each parameter that may be written, the rows it leaves behind."""
        found: dict[str, Column] = {}
        for transaction in self.route.transactions if self.updates else ():
            for column in updated_columns(transaction):
                if found.setdefault(column.name, column).type != column.type:
                    raise InputError(
                        f"updates: the parameter {column.name!r} names rows of different tables in "
                        "the transactions of one sink; rename it in one of them"
                    )
        return found

    @cached_property
    def outputs(self) -> dict[str, Column]:
        """The out columns of all its transactions, in order."""
        found: dict[str, Column] = {}
        for transaction in self.route.transactions:
            for column in transaction.output or ():
                if found.setdefault(column.name, column).type != column.type:
                    raise DeclarationError(
                        f"transactions of one sink give output column {column.name!r} "
                        f"different types: {found[column.name].type} and {column.type}"
                    )
        return found


def updated_columns(transaction: Transaction) -> list[Column]:
    """A struct for each parameter that may be written, an array of them for `each`."""
    columns = []
    for parameter in transaction.signature.parameters:
        access = parameter.stands_for
        if isinstance(access, Access) and not access.read_only:
            fields = tuple(Column(one.name, one.type) for one in access.table.schema)
            kind = ColumnType("struct", fields=fields)
            if access.form == "each":
                kind = ColumnType("array", element=kind)
            columns.append(Column(parameter.name, kind))
    return columns


def make_plan(
    transactions: Transaction | Mapping[Any, Transaction],
    known: Mapping[str, Transaction],
    *,
    route_by: str | None,
    order_by: str | Sequence[str] | None,
    watermark: str | None,
    late: str,
    name: str | None,
    scheme: Scheme = SERIAL,
    isolation: str = "PL4",
    updates: bool = False,
    carry: str | Sequence[str] | None = None,
    idle: str | None = None,
) -> Plan:
    """Check the words of `run` and `sink` and say what they mean."""
    route = _make_route(transactions, known, route_by)
    if route_by is not None and UNROUTED in known:
        raise InputError(
            f"a transaction is called {UNROUTED!r}, as is the stream of events that no route "
            "takes; rename it"
        )
    columns = tuple(_order_column(column, route) for column in _order_names(order_by))
    given: Any = name
    if given is not None and not isinstance(given, str):
        raise InputError(f"name is a text that tells streams apart, not {shown(given)}")
    if late not in ("reject", "append"):
        raise InputError(f"late is 'reject' or 'append', not {shown(late)}")
    delay = None
    if watermark is not None:
        delay = parse_duration(watermark, "watermark")
        if not columns or columns[0].type.kind != "timestamp":
            raise InputError("a watermark needs order_by to begin with a timestamp column")
    idle_us = None if idle is None else parse_duration(idle, "idle")
    if idle_us is not None and (delay is None or idle_us < 1):
        raise InputError("idle is a time above zero, of a stream with a watermark")
    ordered = {column.name for column in columns}  # they are in the results anyway
    copied = tuple(one for one in parse_carry(carry) if one not in ordered)
    plan = Plan(route, columns, delay, late, name, scheme, isolation, updates, idle_us, copied)
    refuse_twins(plan.columns, "event columns", "the transactions of one stream")
    taken = {*RESULT_COLUMNS, *plan.outputs, *ordered}
    refuse_twins([*taken, *copied, *plan.updated], "results columns", "one stream")
    for one in copied:
        if one in taken or one in plan.updated:
            raise InputError(
                f"carry: the results have a column {one!r} already; rename the event's column"
            )
    for parameter in plan.updated:
        if parameter in taken:
            raise InputError(
                f"updates: the results have a column {parameter!r} already; rename the parameter"
            )
    for column in columns:
        if column.name in RESULT_COLUMNS:
            raise InputError(
                f"order_by: every result has a column {column.name!r} of its own; "
                "rename the event's column"
            )
        if column.name in plan.outputs:
            raise DeclarationError(
                f"column {column.name!r} is an order column and an output column: rename the output"
            )
    return plan


def _make_route(transactions: Any, known: Mapping[str, Transaction], route_by: Any) -> Route:
    found = find_route(transactions, known)
    if isinstance(found, Transaction):
        if route_by is not None:
            raise InputError("route_by goes with a dict of transactions: {value: transaction}")
        return Route((found,))
    if not found:
        raise InputError("the dict of transactions is empty; hand in {value: transaction}")
    if not isinstance(route_by, str):
        told = "" if route_by is None else f", not {route_by!r}"
        raise InputError(f"a dict of transactions needs route_by, the column with its keys{told}")
    return Route(tuple(dict.fromkeys(found.values())), tuple(found.items()), route_by)


def _order_names(order_by: Any) -> list[str]:
    names = split_list(order_by) if isinstance(order_by, str) else order_by or ()
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise InputError(f"order_by is an event column or a list of them, not {shown(order_by)}")
    return [name.strip().strip("`") for name in names]


def _order_column(name: str, route: Route) -> Column:
    for transaction in route.transactions:
        if name in transaction.event:
            column = transaction.event[name]
            if column.type.element is not None:
                raise InputError(f"order_by: column {name!r} is an array")
            return column
    known = dict.fromkeys(n for t in route.transactions for n in t.event.names)
    if name.partition(" ")[0] in known:
        raise InputError(f"order_by: {name!r} is no column; name columns only, they order upwards")
    raise InputError(f"order_by: no event column {name!r}; {not_among(name, known, 'columns')}")


@dataclass
class Arranged:
    """A batch in order: `order` runs now; the others get their outcome without running."""

    events: pa.Table
    works: list[Work]
    route: np.ndarray  # by event row: the number of its transaction in the program
    order: np.ndarray  # event rows in serial order
    is_whole: bool  # every event runs, in the order it arrived
    aside: np.ndarray  # event rows that are late or rejected, in arrival order
    aside_outcome: np.ndarray
    aside_reason: list[str]
    held: np.ndarray  # event rows that wait for the watermark
    state: InletState | None  # the inlet's state after this batch, None when it has none


@dataclass(frozen=True)
class _Part:
    """What one transaction takes of the events."""

    signature: Signature
    columns: tuple[tuple[str, str], ...]  # name and type
    keys: frozenset[str]  # those of them that are keys
    aligned: tuple[tuple[str, ...], ...]  # array columns that together name keys

    @staticmethod
    def of(signature: Signature) -> _Part:
        lists = (one.columns for one in signature.accesses if one.form == "each")
        return _Part(
            signature,
            tuple((column.name, str(column.type)) for column in signature.event),
            frozenset(name for access in signature.accesses for name in access.columns),
            tuple(names for names in lists if len(names) > 1),
        )


class Arranger:
    """Applies a plan to tables of events, for one program."""

    def __init__(self, plan: Plan, program: Program) -> None:
        self.plan = plan
        self.program = program
        self.routing: Routing | None = None
        if plan.route.column is not None:
            values = [value for value, _ in plan.route.values]
            numbers = [program.number(transaction.name) for _, transaction in plan.route.values]
            self.routing = Routing(values, numbers)
        schemas = [*(signature.event for signature in program.signatures), Schema(plan.order_by)]
        self._needed = {
            (column.name, str(column.type)): (column.type, f"events: column {column.name!r}")
            for schema in schemas
            for column in schema
        }
        self._order = [(column, (column.name, str(column.type))) for column in plan.order_by]
        self._parts = [_Part.of(signature) for signature in program.signatures]

    def arrange(self, events: pa.Table, state: InletState | None) -> Arranged:
        """Arrange the held-back events and the new ones; the state is that before the batch."""
        if state is not None and state.held is not None:
            check_held(state.held, self.plan)
        require_columns(events, self.plan.columns, "events")
        events = self._with_held(decoded(events), state)
        rejects = _Rejects(events.num_rows)
        route = self._route(events, rejects)
        stored = self._stored(events)
        keys = self._order_keys(events, stored, rejects)
        works = [
            self._work(number, part, stored, route, rejects)
            for number, part in enumerate(self._parts)
        ]
        return self._split(events, works, route, keys, rejects, state)

    def check(self, given: pa.Schema) -> None:
        """Refuse events of this schema as `arrange` would, before there are any."""
        column = self.plan.route.column
        if column is not None and self.routing is not None and column in given.names:
            self.routing.check(given.field(column).type, column)
        self.arrange(given.empty_table(), None)

    def _with_held(self, events: pa.Table, state: InletState | None) -> pa.Table:
        if state is None or state.held is None or self.plan.watermark_us is None:
            return events
        # What was held comes first: it arrived earlier.
        before, columns = state.held, {}
        for name in self.plan.columns:
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
        for transaction in self.plan.route.transactions:
            for column in transaction.event:
                same = found.setdefault(column.name, column.type) == column.type
                found[column.name] = column.type if same else None
        return {name: found.get(name) for name in self.plan.columns}

    def _in_declared_types(self, events: pa.Table) -> pa.Table:
        """The needed columns in their declared types, so that events of two batches fit together.

        A column that two transactions declare differently stays as it came.
        """
        return pa.table({name: self._typed(name, events.column(name)) for name in self._declared})

    def _typed(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        kind, carried = self._declared[name], dict(self.plan.carried)
        if kind is not None:
            return conform(column, kind, f"events: column {name!r}")
        if name in carried and name not in self.plan.event:
            return carried_array(column, carried[name], name)
        array = one_array(column)
        return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array

    def _route(self, events: pa.Table, rejects: _Rejects) -> np.ndarray:
        column = self.plan.route.column
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
            key: to_stored(events.column(key[0]), kind, pool, where)
            for key, (kind, where) in self._needed.items()
        }

    def _work(
        self,
        number: int,
        part: _Part,
        stored: Mapping[tuple[str, str], StoredColumn],
        route: np.ndarray,
        rejects: _Rejects,
    ) -> Work:
        columns = {key[0]: stored[key] for key in part.columns}
        others = None if self.routing is None else route != number
        for name, column in columns.items():
            if column.faults is not None:
                mine = None if others is None else ~others
                role = "key" if name in part.keys else "value"
                rejects.add_faults(column.faults, name, role, mine)
        for names in part.aligned:
            mine = None if others is None else ~others
            columns.update(_aligned(columns, names, rejects, mine))
        return Work(part.signature, columns, rejects.skip(others))

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
        state: InletState | None,
    ) -> Arranged:
        count = events.num_rows
        new_state = None
        aside, aside_reason, held = rejects.rows(), rejects.reasons(), NO_ROWS
        aside_outcome = np.full(len(aside), REJECTED, np.int8)
        for work in works:
            work.skip = rejects.skip(None) | work.skip if len(aside) else work.skip
        if self.plan.watermark_us is None:
            is_whole = not len(aside) and len(keys) <= 1 and all(map(is_sorted_throughout, keys))
            order = self.program.counted(count)
            if not is_whole:
                order = sort_rows(keys, rejects.accepted())
        else:
            is_whole = False
            before = state.watermark_us if state is not None else None
            order, late, held, after = self._by_watermark(keys, rejects.accepted(), before)
            if len(late):
                rows = np.concatenate([aside, late])
                arrival = np.argsort(rows, kind="stable")
                outcomes = np.concatenate([aside_outcome, np.full(len(late), LATE, np.int8)])
                words = f"late: {self.plan.order_by[0].name} is before the watermark"
                reasons = [*aside_reason, *[words] * len(late)]
                aside, aside_outcome = rows[arrival], outcomes[arrival]
                aside_reason = [reasons[place] for place in arrival]
            kept = self._in_declared_types(events.take(held)) if len(held) else None
            arrivals = (state.arrivals if state is not None else 0) + count
            new_state = InletState(after, kept, arrivals)
        return Arranged(events, works, route, order, is_whole, aside, aside_outcome, aside_reason,
                        held, new_state)  # fmt: skip

    def _by_watermark(
        self, keys: list[np.ndarray], rows: np.ndarray, before: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int | None]:
        """Rows to run in order, late rows, held rows, and the watermark after them."""
        times, after = keys[0], before
        if len(rows):
            reached = int(times[rows].max()) - (self.plan.watermark_us or 0)
            after = reached if before is None else max(before, reached)
        late = rows[times[rows] < before] if before is not None else NO_ROWS
        timely = rows[times[rows] >= before] if before is not None else rows
        # What is at the watermark itself waits: an event may still come that ties with it in time
        # and goes before it by a further order column.
        passed = times[timely] < (after if after is not None else 0)
        order = sort_rows(keys, timely[passed])
        if self.plan.late == "append":
            order, late = np.concatenate([order, sort_rows(keys, late)]), NO_ROWS
        return order, late, timely[~passed], after


def recorded(plan: Plan, record: list[Recording]) -> Plan:
    """The plan, with a list for what its transactions are seen to read and write.

    A batch that has to run serially, because a function raised or a constraint is at stake, adds
    nothing to it.
    """
    if plan.scheme.name not in PROTOCOLS:
        raise InputError(
            f"record= needs a scheme that sees reads and writes: {' or '.join(PROTOCOLS)}; "
            f"not {plan.scheme.name!r}"
        )
    return replace(plan, record=record)


def in_commit_order(arranged: Arranged, execution: Execution, plan: Plan) -> Arranged:
    """The batch in the serial order in which it ran, if a protocol chose one of its own."""
    isolated = execution.isolated
    if isolated is None:
        return arranged
    if plan.record is not None and isolated.recording is not None:
        plan.record.append(isolated.recording)
    is_whole = arranged.is_whole and plan.isolation == "PL4"
    return replace(arranged, order=isolated.order, is_whole=is_whole)


def check_held(held: pa.Table, plan: Plan) -> None:
    """Refuse to go on when events are held that were of other columns than the program has now."""
    try:
        for transaction in plan.route.transactions:
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


def latest_time_us(held: pa.Table, plan: Plan) -> int:
    """The largest time among held events: where the watermark stands once they have run."""
    times = held.column(plan.order_by[0].name).cast(pa.timestamp("us", tz="UTC"))
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


def _emptied(column: StoredColumn, lengths: np.ndarray, rows: np.ndarray) -> StoredColumn:
    kept = np.where(rows, 0, lengths)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    values = np.ascontiguousarray(column.values[np.repeat(~rows, lengths)])
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

    def __init__(self, count: int) -> None:
        self.count = count
        self.by_row: dict[int, str] = {}
        self._nothing = np.zeros(count, np.uint8)

    def add_one(self, row: int, reason: str) -> None:
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

    def rows(self) -> np.ndarray:
        return np.array(sorted(self.by_row), np.int64)

    def reasons(self) -> list[str]:
        return [self.by_row[row] for row in sorted(self.by_row)]

    def accepted(self) -> np.ndarray:
        return np.flatnonzero(self.skip(None) == 0)
