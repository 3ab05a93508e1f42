"""Row histories: which versions of its rows a table keeps, and which of them a window has.

A version is a row as one committed transaction left it; a row that it deleted has none any more.
Versions stand in a table of their own, beside the one they are of: log, snapshots, recovery, time
travel and SQL need to know nothing else of them. Both values here hold no versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import DeclarationError, shown
from headgate.state.durations import parse_duration
from headgate.state.schema import Schema
from headgate.state.types import Column, ColumnType

if TYPE_CHECKING:
    from headgate.state.table import Table

NUMBER, TIME = "version_number", "version_time"  # columns of versions beside those of the row
ENDING = "_history"  # of the name of the table that has the versions
_ROWS = re.compile(r"\s*(\d+)\s+(?:rows?|versions?)\s*")


@dataclass(frozen=True)
class Extent:
    """How far back something goes: so many microseconds of event time, or so many versions."""

    text: str  # as it was said
    size: int
    is_timed: bool

    def __repr__(self) -> str:
        return repr(self.text)


TICK_COLUMNS = ("start", "end")  # of the events that the engine makes as time passes


@dataclass(frozen=True)
class RowHistory:
    """What a table keeps of the versions of each row."""

    extent: Extent
    by: str | None  # the event column that has a version's time; None: its only timestamp

    def time_column(self, event: Schema, where: str) -> str | None:
        """The event column that tells the time of what an event writes and of its windows."""
        if not self.extent.is_timed:
            return None
        if event.names == TICK_COLUMNS and self.by not in TICK_COLUMNS:
            column = event[TICK_COLUMNS[-1]]  # a tick's time, whatever the events of others have
        elif self.by is None:
            times = [column for column in event if column.type.kind == "timestamp"]
            if len(times) != 1:
                many = f"has {len(times)} of them" if times else "has none"
                raise DeclarationError(
                    f"{where}: history by time takes the time of an event from its timestamp "
                    f"column, and this event {many}; "
                    + ("name it: hg.Table(..., by='ts')" if times else "give it a 'ts timestamp'")
                )
            column = times[0]
        else:
            column = event.require(self.by, f"{where}: history by={self.by!r}: event")
        if column.type.kind != "timestamp" or column.nullable:
            kind = f"{column.type} NULL" if column.nullable else str(column.type)
            raise DeclarationError(
                f"{where}: the time of a version is a timestamp that is never null, and event "
                f"column {column.name!r} is a {kind}"
            )
        return column.name


@dataclass(frozen=True)
class RowWindow:
    """The versions of one row that an event sees: as of its time, or the last so many."""

    extent: Extent

    @property
    def stated(self) -> tuple[Any, ...]:
        """All that was said of it, as plain values."""
        return (self.extent.text,)


def parse_extent(given: Any, where: str) -> Extent:
    """A time like "10 minutes", or a number of versions like "100 rows"."""
    if not isinstance(given, str):
        raise DeclarationError(
            f"{where} is a time like '10 minutes' or a number like '100 rows', not {shown(given)}"
        )
    rows = _ROWS.fullmatch(given)
    size = int(rows[1]) if rows else parse_duration(given, where, DeclarationError)
    if not 0 < size < 2**62:
        told = "more than nothing" if size <= 0 else "less; it is beyond all times and counts"
        raise DeclarationError(f"{where}: {given!r} must be {told}")
    return Extent(given, size, rows is None)


def parse_history(given: Any, by: Any, schema: Schema, where: str) -> RowHistory | None:
    """`history="10 minutes"`, or `history="100 rows"`."""
    if given is None:
        if by is not None:
            raise DeclarationError(f"{where}: by= goes with history='10 minutes'")
        return None
    extent = parse_extent(given, f"{where}: history")
    if by is not None and not (isinstance(by, str) and by and extent.is_timed):
        raise DeclarationError(
            f"{where}: by= names the event column with the time, of history='10 minutes'; "
            f"not {shown(by)} with history={given!r}"
        )
    for column in schema:
        if column.name.lower() in (NUMBER, TIME):
            raise DeclarationError(
                f"{where}: its versions have a column {column.name!r} of their own; rename it"
            )
    return RowHistory(extent, by)


def parse_window(table: Table, size: Any, where: str) -> RowWindow:
    """The window of a parameter; no larger than what the table keeps."""
    history = table.history
    if history is None:
        raise DeclarationError(
            f"{where}: the table keeps no versions; declare it: hg.Table({table.name!r}, ..., "
            "history='10 minutes')"
        )
    extent = parse_extent(size, f"{where}: size")
    if extent.is_timed != history.extent.is_timed:
        kinds = ("a number of versions", "a time")
        raise DeclarationError(
            f"{where}: size={size!r} is {kinds[extent.is_timed]}, the table's history="
            f"{history.extent.text!r} {kinds[history.extent.is_timed]}; say both in the same way"
        )
    if extent.size > history.extent.size:
        raise DeclarationError(
            f"{where}: size={size!r} goes beyond the table's history={history.extent.text!r}; "
            "make that longer, or the window shorter"
        )
    return RowWindow(extent)


def versions_of(table: Table) -> Table | None:
    """The table of its versions: the key of the row and a running number, then the rest of it.

    Behind its key and header such a row has the same words as the row itself, see state/trail.py.
    """
    if table.history is None:
        return None
    own = [Column(NUMBER, ColumnType("bigint"))]
    own += [Column(TIME, ColumnType("timestamp"))] if table.history.extent.is_timed else []
    columns = [
        *table.key_columns,
        *own,
        *(column for column in table.schema if column.name not in table.key),
    ]
    return type(table)(table.name + ENDING, Schema(tuple(columns)).ddl, (*table.key, NUMBER))


def with_histories(tables: Iterable[Table]) -> dict[str, Table]:
    """All these tables by name, and those of their versions."""
    given = {table.name: table for table in tables}
    found = dict(given)
    for table in given.values():
        versions = versions_of(table)
        if versions is None:
            continue
        if versions.name in given and given[versions.name] != versions:
            raise DeclarationError(
                f"table {table.name!r}: its versions would be in {versions.name!r}, and there is "
                "another table of that name; rename one of the two"
            )
        found[versions.name] = versions
    return found


def lost_history(declared: Table, stored: Table) -> str | None:
    """What a store has and a program would lose: versions may be kept from now on, or longer, or
    shorter, but not lose their times without a word."""
    if stored.history is None:
        return None
    has, extent = f"history={stored.history.extent.text!r}", stored.history.extent
    if declared.history is None:
        return f"{has}, the program none"
    if declared.history.extent.is_timed != extent.is_timed:
        return f"{has}, the program {declared.history.extent.text!r}, which is of another kind"
    return None
