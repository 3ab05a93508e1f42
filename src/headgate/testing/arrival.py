"""Arrival: how the oracle routes and orders events, rejects malformed ones and words results.

Invariant: every event leaves with one outcome and stands in the results once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.errors import InputError, not_among
from headgate.state.schema import split_list
from headgate.state.table import Access
from headgate.state.types import Column, ColumnType
from headgate.testing.records import Record
from headgate.testing.scalars import Unfit, arrived, has_null, place, shown

if TYPE_CHECKING:
    from headgate.transactions import Transaction

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


@dataclass(eq=False)  # two equal events are two events
class ArrivingEvent:
    """One event on its way: what arrived, which transaction it runs, what became of it."""

    columns: Mapping[str, Any]  # as handed in
    transaction: Transaction | None = None
    order: dict[str, Any] = field(default_factory=dict)  # the order columns; None where malformed
    outcome: str = ""
    reason: str | None = None
    output: Record | None = None
    left: dict[str, Any] = field(default_factory=dict)  # by parameter: its rows after the commit
    moment: int | None = None  # how late it is, where that is not its own time

    def reject(self, reason: str) -> None:
        if not self.outcome:
            self.outcome, self.reason = "rejected", reason

    def values(self) -> dict[str, Any]:
        """The columns its transaction declares, as they are kept."""
        schema = () if self.transaction is None else self.transaction.event
        return {column.name: self._value(column) for column in schema}

    def _value(self, column: Column) -> Any:
        value = self.columns.get(column.name)
        return None if value is None and column.nullable else arrived(value, column.type)

    def time(self, order_by: Sequence[Column]) -> Any:
        return self.order[order_by[0].name]

    def place(self) -> tuple[Any, ...]:
        return tuple(place(value) for value in self.order.values())


@dataclass(frozen=True)
class Rules:
    """How the events of one stream find their transaction and their order."""

    routes: Mapping[Any, Transaction]
    route_by: str | None
    order_by: tuple[Column, ...]
    delay_us: int | None
    late: str
    name: str
    updates: bool = False
    carry: tuple[str, ...] = ()
    ticks: tuple[Transaction, ...] = ()

    @property
    def transactions(self) -> list[Transaction]:
        return [*dict.fromkeys(self.routes.values()), *self.ticks]

    def moment(self, event: ArrivingEvent) -> int | None:
        """How late it is when an event runs; None where the order is not one of time."""
        if not self.order_by or self.order_by[0].type.kind != "timestamp":
            return None
        return event.time(self.order_by) if event.moment is None else event.moment

    @property
    def outputs(self) -> dict[str, ColumnType]:
        schemas = [transaction.output for transaction in self.transactions]
        return {column.name: column.type for schema in schemas if schema for column in schema}


@dataclass
class WaitingEvents:
    """What a stream remembers between batches: its watermark and the events that wait for it."""

    watermark_us: int | None = None
    held: list[ArrivingEvent] = field(default_factory=list)


def make_rules(
    transaction: Transaction | Mapping[Any, Transaction],
    order_by: str | Sequence[str] | None,
    route_by: str | None,
    watermark: str | None,
    late: str,
    name: str | None,
    carry: str | Sequence[str] | None = None,
) -> Rules:
    """The rules that the options of a `run` amount to."""
    routes = transaction if isinstance(transaction, Mapping) else {None: transaction}
    schemas = [found.event for found in routes.values()]
    declared = {column.name: column for schema in reversed(schemas) for column in schema}
    columns = tuple(_order_column(name, declared) for name in _names(order_by))
    delay_us = None if watermark is None else microseconds(watermark)
    label = name or "run " + ", ".join(dict.fromkeys(found.name for found in routes.values()))
    carried = tuple(_names(carry))
    return Rules(routes, route_by, columns, delay_us, late, label, carry=carried)


def _names(words: str | Sequence[str] | None) -> list[str]:
    """Columns as an option names them: in a list, or in one text with commas."""
    parts = split_list(words) if isinstance(words, str) else words or ()
    return [part.strip().strip("`") for part in parts]


def _order_column(name: str, declared: Mapping[str, Column]) -> Column:
    if name not in declared:
        among = not_among(name, declared, "columns")
        raise InputError(f"order_by: no event column {name!r}; {among}")
    return declared[name]


def microseconds(duration: str) -> int:
    parts = re.findall(r"([\d.]+)\s*([a-z]+?)s?\b", duration.lower())
    return round(sum(float(amount) * _SECONDS[unit] for amount, unit in parts) * 1_000_000)


def examine(rules: Rules, event: ArrivingEvent) -> None:
    """Route the event, read its order columns, and reject it if anything about it is malformed."""
    event.transaction = rules.routes.get(None)
    if rules.route_by is not None:
        value = event.columns.get(rules.route_by)
        event.transaction = rules.routes.get(value) if value is not None else None
        if event.transaction is None:
            event.reject(
                f"null route: {rules.route_by}" if value is None else f"unknown route: {value}"
            )
    for column in rules.order_by:
        event.order[column.name] = _value_or_reject(event, column, "order column")
    if event.transaction is None:
        return
    accesses = event.transaction.signature.accesses
    keys = {name for access in accesses for name in access.columns}
    for column in event.transaction.event:
        _value_or_reject(event, column, "key" if column.name in keys else "value")
    for access in accesses if not event.outcome else ():
        _examine_keys(event, access)


def _value_or_reject(event: ArrivingEvent, column: Column, role: str) -> Any:
    value = event.columns.get(column.name)
    if value is None and column.nullable:
        return None
    if has_null(value):
        event.reject(f"null {role}: {column.name}")
        return None
    try:
        return arrived(value, column.type)
    except Unfit as how:
        event.reject(f"{how}: {column.name}")
        return None


def _examine_keys(event: ArrivingEvent, access: Access) -> None:
    """Key columns must fit the table's, and arrays that together name keys have one length."""
    values = [event.columns[name] for name in access.columns]
    if access.form == "each" and len({len(value) for value in values}) > 1:
        event.reject(f"arrays of different length: {', '.join(access.columns)}")
        return
    for (name, column), value in zip(access.named, values, strict=True):
        for item in value if access.form == "each" else [value]:
            try:
                arrived(item, column.type)
            except Unfit as how:
                event.reject(f"{how}: {name}")


def _carried(rules: Rules, event: ArrivingEvent, name: str) -> Any:
    """A column as it came; one that a transaction declares in its type, or null."""
    value = event.columns.get(name)
    declared = [found.event[name] for found in rules.transactions if name in found.event]
    if not declared or value is None:
        return value
    try:
        return shown(arrived(value, declared[0].type), declared[0].type)
    except Unfit:
        return None


def in_order(events: Sequence[ArrivingEvent]) -> list[ArrivingEvent]:
    """In the order of their order columns; Python's sort leaves ties as they arrived."""
    return sorted(events, key=ArrivingEvent.place)


def result(rules: Rules, epoch: int, position: int, event: ArrivingEvent) -> dict[str, Any]:
    """One row of the results: what became of the event at this position."""
    found = {
        "epoch": epoch,
        "position": position,
        "transaction": None if event.transaction is None else event.transaction.name,
        "outcome": event.outcome,
        "reason": event.reason,
    }
    for column in rules.order_by:
        value = event.order[column.name]
        found[column.name] = None if value is None else shown(value, column.type)
    for name in rules.carry:
        if name not in found:
            found[name] = _carried(rules, event, name)
    committed = event.output if event.outcome == "committed" else None
    values = {} if committed is None else committed.values
    for name, kind in rules.outputs.items():
        found[name] = shown(values[name], kind) if name in values else None
    for transaction in rules.transactions if rules.updates else ():
        for parameter in transaction.signature.parameters:
            access = parameter.stands_for
            if isinstance(access, Access) and not access.read_only:
                left = event.left if event.outcome == "committed" else {}
                found.setdefault(parameter.name, left.get(parameter.name))
    return found
