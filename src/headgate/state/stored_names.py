"""Stored names: those under which a table's rows are in a store's files, and what older rows lack.

A name in the files is never changed and never given twice. So a table or a column is renamed, or
dropped and made again, without touching a row, and every past epoch stays readable: the
declarations of that epoch say which names were meant.

Invariant: rows that were written before a column was added show the value it had as its default
then, whatever its default is now. In a nullable column null is a value like others, so nothing is
filled there: where older rows must not be null, the migration writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headgate.errors import InputError
from headgate.state.schema import Schema
from headgate.state.types import Column, logical_value

Value = int | float | str | bool

# No name of a user has it: identifiers cannot, and a quoted column ends with it.
_MARK = "`"


@dataclass(frozen=True)
class Storage:
    """Where one table is: `columns` by declared name, `fill` what rows lack that are older."""

    name: str
    columns: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, Value] = field(default_factory=dict)
    gone: tuple[str, ...] = ()  # names of columns that were dropped

    @classmethod
    def read(cls, name: str, description: Mapping[str, Any]) -> Storage:
        """Out of a table's description in the manifest; mostly it is where its name says."""
        stored = description.get("stored", {})
        columns, fill = stored.get("columns", {}), stored.get("fill", {})
        return cls(stored.get("name", name), columns, fill, tuple(stored.get("gone", ())))

    def describe(self, name: str) -> dict[str, Any]:
        """The part of the description that `read` takes; nothing where the names are the same."""
        columns = {one: stored for one, stored in self.columns.items() if one != stored}
        found: dict[str, Any] = {}
        if self.name != name:
            found["name"] = self.name
        if columns:
            found["columns"] = columns
        if self.fill:
            found["fill"] = dict(self.fill)
        if self.gone:
            found["gone"] = list(self.gone)
        return {"stored": found} if found else {}

    def column(self, name: str) -> str:
        """The name of a declared column in the files."""
        return self.columns.get(name, name)

    def with_new(self, name: str, taken: Iterable[str]) -> Storage:
        """The same with a new column, under a name that none ever had."""
        used = {*self.gone, *(self.column(one) for one in taken)}
        return replace(self, columns={**self.columns, name: fresh_name(name, used)})

    def without(self, name: str) -> Storage:
        """The same when a column is dropped."""
        columns = {one: stored for one, stored in self.columns.items() if one != name}
        fill = {one: value for one, value in self.fill.items() if one != name}
        return replace(self, columns=columns, fill=fill, gone=(*self.gone, self.column(name)))

    def renamed(self, old: str, new: str) -> Storage:
        """The same when a column has another name."""
        columns = {one: stored for one, stored in self.columns.items() if one != old}
        fill = {new if one == old else one: value for one, value in self.fill.items()}
        return replace(self, columns={**columns, new: self.column(old)}, fill=fill)

    def filled(self, column: str, value: Value) -> Storage:
        """The same with a value for rows older than the column."""
        return replace(self, fill={**self.fill, column: value})

    def unfilled(self, column: str) -> Storage:
        """The same when null means null in a column."""
        return replace(self, fill={one: v for one, v in self.fill.items() if one != column})

    @property
    def is_plain(self) -> bool:
        """Whether the columns are in the files under their own names."""
        return all(name == stored for name, stored in self.columns.items())

    def to_files(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the names that the files have."""
        if self.is_plain:
            return batch
        return batch.rename_columns([self.column(name) for name in batch.schema.names])

    def from_files(self, given: pa.Table | pa.RecordBatch, columns: Iterable[Column]) -> pa.Table:
        """The declared columns of rows as the files have them, in their declared types."""
        if isinstance(given, pa.RecordBatch):
            given = pa.Table.from_batches([given])
        wanted = list(columns)
        arrays = [self._array(given, column) for column in wanted]
        return pa.table(arrays, schema=Schema(tuple(wanted)).arrow)

    def _array(self, given: pa.Table, column: Column) -> pa.ChunkedArray:
        kind, place = column.type.arrow, given.schema.get_field_index(self.column(column.name))
        if place < 0:
            array = pa.chunked_array([pa.nulls(given.num_rows, kind)])
        else:
            array = given.column(place)
            array = array if array.type == kind else array.cast(kind)
        fill = self.fill.get(column.name, None if column.nullable else column.default)
        if array.null_count and fill is not None:
            array = array.fill_null(pa.scalar(logical_value(column.type, fill), kind))
        return array


def fresh_name(name: str, used: Iterable[str]) -> str:
    """The name, or the name with a number when it was used before."""
    taken, number, found = set(used), 1, name
    while found in taken:
        number += 1
        found = f"{name}{_MARK}{number}"
    return found


class Storages:
    """The storage of every table of an engine, both ways: declared names and names in the files."""

    def __init__(self, by_name: Mapping[str, Storage]) -> None:
        self._by_name = dict(by_name)
        self._by_stored = {one.name: name for name, one in by_name.items()}
        self._is_plain = all(
            name == one.name and one.is_plain for name, one in self._by_name.items()
        )

    def __getitem__(self, name: str) -> Storage:
        return self._by_name.get(name, Storage(name))

    def to_files(self, changes: Mapping[str, pa.RecordBatch]) -> Mapping[str, pa.RecordBatch]:
        """Changed rows by table, as the log takes them."""
        if self._is_plain:
            return changes
        return {self[name].name: self[name].to_files(batch) for name, batch in changes.items()}

    def declared(self, stored: str) -> str | None:
        """The table that has this name in the files; None when it was dropped."""
        if stored.startswith("__"):
            return stored
        return self._by_stored.get(stored)


def require_table(tables: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """The description of a table, or an error that lists the tables there are."""
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise InputError(f"no table {name!r} in {where}; the tables are: {known}")
    found: Mapping[str, Any] = tables[name]
    return found
