"""Records: what the oracle hands to a transaction's function: rows, the event, the output.

Invariant: a column holds what its type keeps; setting one obeys the same rules as in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.state.schema import Schema
from headgate.testing.scalars import kept, seen


class Record:
    """The columns of one row or one output, and whether the row exists."""

    def __init__(self, schema: Schema, values: dict[str, Any], alive: bool = True) -> None:
        self.schema = schema
        self.values = values
        self.alive = alive
        self.written = False

    def copy(self) -> Record:
        return Record(self.schema, dict(self.values), self.alive)


class View:
    """A record's columns as attributes."""

    def __init__(self, record: Record, fixed: Sequence[str], read_only: bool) -> None:
        self.__dict__.update(_record=record, _fixed=fixed, _read_only=read_only)

    def __getattr__(self, name: str) -> Any:
        if name not in self._record.values:
            raise AttributeError(f"no column {name!r}")
        return seen(self._record.values[name], self._record.schema[name].type)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._read_only or name in self._fixed:
            raise TypeError(f"column {name!r} cannot be set")
        if name not in self._record.values:
            raise AttributeError(f"no column {name!r}")
        self._record.values[name] = kept(value, self._record.schema[name].type)
        self._record.written = True

    def __headgate_delete__(self) -> None:
        if self._read_only:
            raise TypeError("a row that is only read cannot be deleted")
        if not self._fixed:
            raise TypeError("an output is no row and cannot be deleted")
        self._record.alive = False
        self._record.written = True
