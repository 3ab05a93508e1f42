"""Parameters: what a transaction's parameters are to a type checker.

def pay(event: hg.Event, src: hg.Row = accounts.at("src"), out: hg.Output = hg.output("n int"))

Columns are declared in DDL, which no checker reads, so a column is Any; what can be set, iterated
or counted is known. Nothing is ever made of these classes: a running function gets records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any


class Event:
    """The event of a transaction: its columns can be read, and never set."""

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> Any: ...


class Row:
    """The row that `table.at(...)` stands for: its columns can be read and set."""

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> Any: ...

        def __setattr__(self, column: str, value: Any) -> None: ...


class Rows:
    """The rows that `table.each(...)` stands for, in the order of the event's array; or those of
    `table.where(...)` and `table.between(...)`, in the order of their index."""

    if TYPE_CHECKING:

        def __len__(self) -> int: ...

        def __getitem__(self, place: int) -> Row: ...

        def __iter__(self) -> Iterator[Row]: ...


class Versions:
    """The versions of a row that `table.window(...)` stands for, in the order they were written."""

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> VersionColumn: ...

        def __len__(self) -> int: ...

        def __getitem__(self, place: int) -> Row: ...

        def __iter__(self) -> Iterator[Row]: ...


class VersionColumn:
    """A column of a window's versions: sums over those that have a value in it."""

    if TYPE_CHECKING:

        def sum(self) -> Any: ...

        def mean(self) -> Any: ...

        def min(self) -> Any: ...

        def max(self) -> Any: ...

        def count(self) -> int: ...

        def first(self) -> Any: ...

        def last(self) -> Any: ...


class Output:
    """The columns that `hg.output(...)` adds to the result: they can be read and set."""

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> Any: ...

        def __setattr__(self, column: str, value: Any) -> None: ...
