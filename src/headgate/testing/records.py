"""Records: the oracle's rows, events and outputs, ranges and the promises of tables over rows.

Invariant: a column holds what its type keeps; setting one obeys the same rules as in the engine.
Unique columns and references are judged over whole tables: it keeps no index and looks at every row
each time, so that there is nothing to forget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.state.ranges import RowRange
from headgate.state.schema import Schema
from headgate.state.table import Access, Constraint, Table, Unique
from headgate.testing.scalars import assigned, place, seen


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
        value = self._record.values[name]
        return None if value is None else seen(value, self._record.schema[name].type)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._read_only or name in self._fixed:
            raise TypeError(f"column {name!r} cannot be set")
        if name not in self._record.values:
            raise AttributeError(f"no column {name!r}")
        column = self._record.schema[name]
        is_none = value is None and column.nullable
        self._record.values[name] = None if is_none else assigned(value, column.type)
        self._record.written = True

    def __headgate_delete__(self) -> None:
        if self._read_only:
            raise TypeError("a row that is only read cannot be deleted")
        if not self._fixed:
            raise TypeError("an output is no row and cannot be deleted")
        self._record.alive = False
        self._record.written = True


Key = tuple[Any, ...]
Contents = Mapping[str, Mapping[Key, Record]]


def broken_promise(
    written: Iterable[Table], declared: Mapping[str, Table], rows: Contents
) -> str | None:
    """The reason of the first constraint that these tables do not keep, or None.

    Only constraints that the written tables take part in: table by table, its unique columns, its
    references, then the references to it by the name of the table that has them.
    """
    for table in written:
        owned: list[Constraint] = [*table.unique, *table.references]
        for name in sorted(declared):
            owned += [one for one in declared[name].references if one.parent == table.name]
        for constraint in owned:
            if not _is_kept(constraint, rows):
                return constraint.reason
    return None


def _is_kept(constraint: Constraint, rows: Contents) -> bool:
    records = rows[constraint.table].values()
    named = [tuple(record.values[name] for name in constraint.columns) for record in records]
    values = [value for value in named if None not in value]  # which is nobody's twin or child
    if isinstance(constraint, Unique):
        return len(set(values)) == len(values)
    return all(value in rows[constraint.parent] for value in values)


def keys_in_range(
    access: Access, span: RowRange, values: Mapping[str, Any], rows: Mapping[Key, Record]
) -> list[Key]:
    """The keys of all rows between two bounds, by looking at every row there is."""
    parts = [_in_order(values[column]) for column in access.columns]
    low, high, names = parts[: span.count], parts[-span.count :], span.index.words(access.table.key)
    found = []
    for key, record in rows.items():
        words = [_in_order(record.values[name]) for name in names]
        if low <= words[: span.count] <= high:
            found.append((words, key))
    found.sort(reverse=span.descending)
    return [key for _, key in found][: None if span.limit < 0 else span.limit]


def _in_order(value: Any) -> tuple[bool, Any]:
    """Where a value stands in an index: null is behind all of them."""
    return (True, 0) if value is None else (False, place(value))
