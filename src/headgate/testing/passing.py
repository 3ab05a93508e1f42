"""Passing: how the oracle lets time pass: rows that expire, and events made at each boundary.

Invariant: the time of a table only moves forward.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headgate.state.row_history import ENDING, NUMBER, versions_of
from headgate.state.table import Table
from headgate.testing.arrival import ArrivingEvent, Rules, microseconds
from headgate.testing.records import Record
from headgate.testing.row_versions import history_of

if TYPE_CHECKING:
    from headgate.transactions import Transaction


Key = tuple[Any, ...]
Row = tuple[str, Key]  # a table's name and a key
_DAY_US = 86_400_000_000


class PassingTime:
    """The times of all tables, by which their rows expire."""

    def __init__(self, declared: Mapping[str, Table], rows: dict[str, dict[Key, Record]]) -> None:
        self.declared = declared
        self.rows = rows
        self.times: dict[str, int] = {}  # by table: of its youngest event so far

    def move(self, tables: Iterable[Table], moment: int | None) -> None:
        """It is so late for these tables now: rows that are due go, unless rows that stay refer to
        them."""
        named = [one for one in (self.declared[table.name] for table in tables) if one.expires]
        for table in named:
            if moment is not None:
                self.times[table.name] = max(self.times.get(table.name, moment), int(moment))
        due = {
            (table.name, key)
            for table in named
            for key, record in self.rows[table.name].items()
            if table.name in self.times and _is_due(table, record, self.times[table.name])
        }
        while due:  # until none of them is needed by a row that stays
            needed = due & self._named_by_others(due)
            if not needed:
                break
            due -= needed
        for name, key in due:
            del self.rows[name][key]
            versions = versions_of(self.declared[name])
            for one in history_of(key, self.rows[versions.name]) if versions is not None else ():
                del self.rows[name + ENDING][(*key, one.values[NUMBER])]

    def _named_by_others(self, due: set[Row]) -> set[Row]:
        """All rows that those refer to which are not due."""
        found = set()
        for table in self.declared.values():
            for key, record in self.rows[table.name].items():
                if (table.name, key) not in due:
                    for one in table.references:
                        parent = tuple(record.values[name] for name in one.columns)
                        found.add((one.parent, parent))
        return found


def _is_due(table: Table, record: Record, time_us: int) -> bool:
    if table.expires is None:
        raise ValueError(f"the rows of table {table.name!r} do not expire")
    column, _, delay = table.expires.text.partition("+")
    name = column.strip().strip("`")
    value = record.values[name]
    if value is None:
        return False
    if table.schema[name].type.kind == "date":
        value = value * _DAY_US
    return int(value) + (microseconds(delay) if delay else 0) <= time_us


# --- ticking --------------------------------------------------------------------------------------
# How the oracle makes events as time passes, boundary by boundary.
#
# Invariant: a stream ticks once at each multiple of a period that it passes, in order.


_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_YEAR_ONE = (datetime.datetime(1, 1, 1, tzinfo=datetime.UTC) - _START) // datetime.timedelta(
    microseconds=1
)
_IDLE_MAX = 10_000  # periods in a row without an event that have a tick


class Ticking:
    """How far each stream has ticked, by its name and that of the transaction."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, str], int] = {}
        self.idle: dict[tuple[str, str], int] = {}  # how often since an event

    def among(
        self,
        rules: Rules,
        running: list[ArrivingEvent],
        mark: int | None,
    ) -> list[ArrivingEvent]:
        """The events that run now and, among them, the ticks that are due."""
        if not rules.ticks:
            return running
        found = []
        for event in running:
            if event.moment is None:  # else it is late
                found += self._up_to(rules, event.time(rules.order_by), is_event=True)
                found.append(event)
        found += [] if mark is None else self._up_to(rules, mark, is_event=False)
        return found + [event for event in running if event.moment is not None]

    def _up_to(self, rules: Rules, time: int, is_event: bool) -> list[ArrivingEvent]:
        """The ticks from the last ones on, up to a time and at it; none before the first event."""
        found = []
        for place, tick in enumerate(rules.ticks):
            name = rules.name, tick.name
            every, size = _period(tick)
            if not is_event and name not in self.last:
                continue
            last = self.last.setdefault(name, time // every * every)
            # One more than periods without an event: the first tick is that of its own.
            ends = range(last + every, time + 1, every)[: 1 + _IDLE_MAX - self.idle.get(name, 0)]
            self.idle[name] = 0 if is_event else self.idle[name] + len(ends)
            self.last[name] = max(last, time // every * every)
            for end in ends:
                if end - size < _YEAR_ONE:
                    continue
                columns = {"start": _moment(end - size), "end": _moment(end)}
                event = ArrivingEvent(columns, tick)
                event.order = dict.fromkeys((column.name for column in rules.order_by), None)
                event.order[rules.order_by[0].name] = end
                found.append((end, place, event))
        return [event for _, _, event in sorted(found, key=lambda one: one[:2])]


def _period(tick: Transaction) -> tuple[int, int]:
    period = tick.signature.tick
    if period is None:
        raise ValueError(f"transaction {tick.name!r} has no period")
    return period.every_us, period.size_us


def _moment(time_us: int) -> datetime.datetime:
    return _START + datetime.timedelta(microseconds=time_us)
