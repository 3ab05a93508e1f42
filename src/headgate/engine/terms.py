"""Terms: what was said about a stream of events, and what that means.

`Options` is the one list of what can be said, with what each word means and what is meant when it
is not said. `understood` checks the words once, and names the option that is wrong; what it makes
of them, the terms, is a value that never changes. The same words mean the same terms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import pyarrow as pa

from headgate.engine.events import Carried, parse_carry
from headgate.engine.routing import Route, Routing, make_route
from headgate.errors import DeclarationError, InputError, did_you_mean, not_among, shown
from headgate.isolation.levels import Recording, make_isolation
from headgate.parallel.scheme import PROTOCOLS, SERIAL, Scheme, make_scheme
from headgate.state.durations import parse_duration
from headgate.state.fitting import one_array, unmarked
from headgate.state.schema import Schema, refuse_twins, split_list
from headgate.state.table import Access
from headgate.state.types import Column, ColumnType
from headgate.transactions import RESULT_COLUMNS, Transaction, find_transaction

# A transaction or its name, or several of them by the value of the column `route_by`.
Routes = Transaction | str | Mapping[Any, Transaction | str]
Origin = tuple[str, int]  # of a batch that must not run twice: a query's id, the batch's number


class Options(TypedDict, total=False):
    """What can be said of a stream, beside the transactions that its events run."""

    order_by: str | Sequence[str] | None
    """The event columns that make the serial order; ties, and all without it, as they arrive."""

    route_by: str | None
    """With a dict of transactions: the event column that has its keys."""

    watermark: str | None
    """How long older events may still come, as in "10 seconds"; None waits for none."""

    late: str
    """What becomes of an event behind the watermark: "reject", or "append" to run it last."""

    name: str | None
    """What tells this stream from others, in the store, in metrics and between two sinks."""

    scheme: str
    """How threads share a batch; "auto" chooses by what was measured."""

    threads: int | None
    """How many threads may share a batch; None is one for each core."""

    isolation: str
    """What events may see of each other: "PL4", as if one ran after another in order, to "PL1"."""

    updates: bool
    """Whether results have the rows, too, as each transaction left them."""

    carry: str | Sequence[str] | None
    """Event columns that every result gets, whatever became of the event."""

    idle: str | None
    """With a watermark: run what it holds back once no events came for so long."""

    ticks: Any
    """Transactions with every=, run at each multiple of that time which the order passes."""


DEFAULTS: Options = {
    "order_by": None,
    "route_by": None,
    "watermark": None,
    "late": "reject",
    "name": None,
    "scheme": "auto",
    "threads": None,
    "isolation": "PL4",
    "updates": False,
    "carry": None,
    "idle": None,
    "ticks": (),
}

F = TypeVar("F", bound=Callable[..., Any])


def with_options(method: F) -> F:
    """Show a method that takes `**options` with each of them by name, in help and in notebooks."""
    signature = inspect.signature(method)
    known = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    kinds: dict[str, Any] = Options.__annotations__
    said = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default,
            annotation=getattr(kinds[name], "__forward_arg__", kinds[name]),
        )
        for name, default in DEFAULTS.items()
    ]  # fmt: skip
    shown: Any = method
    shown.__signature__ = signature.replace(parameters=[*known, *said])
    return method


@dataclass(frozen=True)
class Terms:
    """What a user said about a stream of events, understood."""

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
    # Who applies these terms for a program, made once (ordering.py).
    arrangers: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    # The short way of plain batches, by who runs them, made once (straight_path.py).
    straight: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    # These terms with the types of what it carries, by the types of events that came.
    carrying: dict[tuple[pa.DataType | None, ...], Terms] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def columns(self) -> list[str]:
        """The event columns it needs, each once."""
        names = [name for found in self.route.taking for name in found.event.names]
        names += [column.name for column in self.order_by]
        names += [self.route.column] if self.route.column is not None else []
        names += self.carry
        return list(dict.fromkeys(names))

    @cached_property
    def event(self) -> Schema:
        """The event columns of all its transactions, each as the first one declares it."""
        found: dict[str, Column] = {}
        for transaction in self.route.taking:
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
    def is_timed(self) -> bool:
        """Whether its events are in the order of a time."""
        return bool(self.order_by) and self.order_by[0].type.kind == "timestamp"

    @cached_property
    def label(self) -> str:
        """The name under which the stream is counted."""
        if self.name is not None:
            return self.name
        return ", ".join(transaction.name for transaction in self.route.taking)

    @cached_property
    def told(self) -> str:
        """Who runs, and in what order, in words."""
        told = ", ".join(transaction.name for transaction in self.route.taking)
        told += f" by {self.route.column}" if self.route.column is not None else ""
        order = ", ".join(column.name for column in self.order_by)
        return told + (f" in the order of {order}" if order else "")

    def inlet_name(self, origin: Origin | None) -> str:
        """Order state belongs to the name a user gave, or to the query, or to the transactions."""
        if self.name is not None:
            return self.name
        if origin is not None:
            return f"query {origin[0]}"
        return f"run {self.label}"

    @cached_property
    def updated(self) -> dict[str, Column]:
        """With `updates`: for each parameter that may be written, the rows it leaves behind."""
        found: dict[str, Column] = {}
        for transaction in self.route.transactions if self.updates else ():
            for column in updated_columns(transaction):
                if found.setdefault(column.name, column).type != column.type:
                    raise InputError(
                        f"updates: the parameter {column.name!r} names rows of different tables, "
                        "or one row here and several there, in the transactions of one stream; "
                        "rename it in one of them"
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
            if not access.is_single:
                kind = ColumnType("array", element=kind)
            columns.append(Column(parameter.name, kind))
    return columns


def understood(
    transactions: Any, known: Mapping[str, Transaction], **options: Unpack[Options]
) -> Terms:
    """Check what was said of a stream, and say what it means."""
    said: Options = {**DEFAULTS, **_checked_names(options)}
    chosen = make_scheme(said["scheme"], said["threads"])
    level = make_isolation(said["isolation"])
    route = make_route(transactions, known, said["route_by"])
    columns = tuple(_order_column(column, route) for column in _order_names(said["order_by"]))
    name, late = _checked_name(said["name"]), said["late"]
    if late not in ("reject", "append"):
        raise InputError(f"late is 'reject' or 'append', not {shown(late)}")
    delay = _delay_us(said["watermark"], columns)
    route = _with_ticks(route, said["ticks"], known, columns, level)
    idle_us = None if said["idle"] is None else parse_duration(said["idle"], "idle")
    if idle_us is not None and (delay is None or idle_us < 1):
        raise InputError("idle is a time above zero, of a stream with a watermark")
    ordered = {column.name for column in columns}  # they are in the results anyway
    copied = tuple(one for one in parse_carry(said["carry"]) if one not in ordered)
    terms = Terms(
        route, columns, delay, late, name, chosen, level, said["updates"], idle_us, copied
    )
    _check_columns(terms)
    return terms


def _with_ticks(
    route: Route, given: Any, known: Mapping[str, Transaction], order: Sequence[Column], level: str
) -> Route:
    """The route with the transactions that run by time."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    ticks = tuple(find_transaction(one, known) for one in listed)
    for one in ticks:
        if one.signature.tick is None or [*ticks, *route.transactions].count(one) > 1:
            raise InputError(f"ticks: {one.name!r} is to be a transaction with every=, named once")
    if ticks and (not order or order[0].type.kind != "timestamp" or level != "PL4"):
        raise InputError("ticks need order_by to begin with a timestamp column, and isolation PL4")
    taken = {"start", "end"} & {name for one in route.transactions for name in one.event.names}
    if ticks and taken:
        raise InputError(f"ticks have a column {taken.pop()!r} of their own; rename the event's")
    return route.with_ticks(ticks) if ticks else route


def of_calls(transaction: Transaction) -> Terms:
    """The terms of single calls: as they come, one after another."""
    return understood(transaction, {transaction.name: transaction}, scheme="serial")


def _checked_names(options: Options) -> Options:
    for name in options:
        if name not in DEFAULTS:
            hint = did_you_mean(name, DEFAULTS)
            raise TypeError(f"a stream has no option {name!r}{hint}; it has: {', '.join(DEFAULTS)}")
    return options


def _checked_name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InputError(f"name is a text that tells streams apart, not {shown(name)}")
    return name


def _delay_us(watermark: str | None, columns: Sequence[Column]) -> int | None:
    if watermark is None:
        return None
    delay = parse_duration(watermark, "watermark")
    if not columns or columns[0].type.kind != "timestamp":
        raise InputError("a watermark needs order_by to begin with a timestamp column")
    return delay


def _check_columns(terms: Terms) -> None:
    """Refuse terms whose events or results would have two columns of one name."""
    ordered = {column.name for column in terms.order_by}
    refuse_twins(terms.columns, "event columns", "the transactions of one stream")
    taken = {*RESULT_COLUMNS, *terms.outputs, *ordered}
    refuse_twins([*taken, *terms.carry, *terms.updated], "results columns", "one stream")
    for one in terms.carry:
        if one in taken or one in terms.updated:
            raise InputError(
                f"carry: the results have a column {one!r} already; rename the event's column"
            )
    for parameter in terms.updated:
        if parameter in taken:
            raise InputError(
                f"updates: the results have a column {parameter!r} already; rename the parameter"
            )
    for name in ordered:
        if name in RESULT_COLUMNS:
            raise InputError(
                f"order_by: every result has a column {name!r} of its own; "
                "rename the event's column"
            )
        if name in terms.outputs:
            raise DeclarationError(
                f"column {name!r} is an order column and an output column: rename the output"
            )


def words_key(said: Iterable[Any]) -> tuple[Any, ...]:
    """What was said as a key, also where a list or a dict is none.

    Equal for the very same transactions behind the same values only: 1 and True are two values.
    """
    return tuple(_word_key(word) for word in said)


def _word_key(word: Any) -> Any:
    if isinstance(word, Mapping):
        return tuple((type(value), value, one) for value, one in word.items())
    if isinstance(word, tuple) and word and isinstance(word[-1], list):  # an option's name, a list
        return (*word[:-1], "list", *word[-1])
    return word


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
            _refuse_null(name, route)
            return column
    known = dict.fromkeys(n for t in route.transactions for n in t.event.names)
    if name.partition(" ")[0] in known:
        raise InputError(f"order_by: {name!r} is no column; name columns only, they order upwards")
    raise InputError(f"order_by: no event column {name!r}; {not_among(name, known, 'columns')}")


def _refuse_null(name: str, route: Route) -> None:
    for transaction in route.transactions:
        if name in transaction.event and transaction.event[name].nullable:
            raise InputError(
                f"order_by: transaction {transaction.name!r} declares {name!r} NULL, and what has "
                "no value has no place in an order; declare it without NULL"
            )


def recorded(terms: Terms, record: list[Recording]) -> Terms:
    """The terms, with a list for what their transactions are seen to read and write.

    A batch that has to run serially, because a function raised or a constraint is at stake, adds
    nothing to it.
    """
    if not terms.scheme.is_protocol:
        raise InputError(
            f"record= needs a scheme that sees reads and writes: {' or '.join(PROTOCOLS)}; "
            f"not {terms.scheme.name!r}"
        )
    return replace(terms, record=record)
