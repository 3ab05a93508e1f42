"""Kept questions: who asks the same few queries again and again over tables that change.

To make a connection, to name a table to DuckDB and to read a query each take longer than a short
query itself. So all three are kept: a small table is named once by a stand-in, which gives the rows
that it has now to each run; a query without parameters that is asked again is prepared, and then
only run. Invariant: a run sees the tables that it was given, and whoever asks gives all that the
query can name.

The rows of a prepared query come as NumPy arrays where these hold the same values as Arrow's: to
have DuckDB make Arrow of them is a statement of its own, which takes longer than they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import DeclarationError, InputError
from headgate.query.connections import connect
from headgate.query.sql import (
    FAILURES,
    Limit,
    Parameters,
    check_read_only,
    failed,
    is_wrong_query,
    settings_of,
)

QUERIES_MAX = 64
# DuckDB reads all of a stand-in: of a table with more rows it is better told which columns and
# rows it needs, for which it must have the table itself.
STAND_IN_ROWS_MAX = 4096


class StandIn:
    """A table under one name, whichever it is just now."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_schema__(self) -> Any:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether NumPy has the values of a type as they are."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    is_moment = pa.types.is_timestamp(kind) and kind.unit == "us"
    return bool(is_number or is_moment or pa.types.is_string(kind) or pa.types.is_boolean(kind))


class KeptQuestion:
    """A query that was read, and from its second run on is prepared."""

    def __init__(self, query: str, relation: Any, tables: frozenset[str]) -> None:
        self.tables: frozenset[str] = tables
        self._query, self._relation = query, relation
        self._schema: pa.Schema | None = None  # of the rows, where it is to be prepared
        self._name: str | None = None  # as which it is

    def first(self) -> pa.Table:
        """Its rows, the first time."""
        found: pa.Table = self._relation.to_arrow_table()
        names, text = found.schema.names, self._query.lower()
        # NumPy's columns are known by their names, and those of a pivot are others each time.
        is_fixed = len(set(names)) == len(names) and "pivot" not in text and "query" not in text
        if is_fixed and all(_is_plain(one.type) for one in found.schema):
            self._schema = found.schema
        return found

    def rows(self, connection: Any) -> pa.Table:
        """Its rows as of now."""
        schema = self._schema
        if schema is None:
            found: pa.Table = self._relation.to_arrow_table()
            return found
        if self._name is None:
            name = f"kept_{id(self)}"
            connection.execute(f"prepare {name} as {self._query}")
            self._name = name
        columns = connection.execute(f"execute {self._name}").fetchnumpy()
        arrays = [_arrow(columns[one.name], one.type) for one in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def forget(self, connection: Any) -> None:
        """It is not asked any more."""
        if self._name is not None:
            connection.execute(f"deallocate {self._name}")


def _arrow(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, kind, mask=np.ma.getmaskarray(values))
    return pa.array(values, kind)


class KeptQuestions:
    """One connection and what it knows; for one thread at a time, and no other of DuckDB's: to
    wake one takes longer than a short query."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._there: dict[str, pa.Table | StandIn] = {}
        self._read: dict[str, KeptQuestion] = {}  # by query

    def run(
        self, query: str, tables: Mapping[str, pa.Table], parameters: Parameters = None
    ) -> pa.Table:
        """Run one read-only query over these tables."""
        limit = Limit(threads=1)
        if self._connection is None:
            self._connection = connect(settings_of(limit))
        try:
            for name, table in tables.items():
                self._name(name, table)
            kept = self._read.get(query)
            if kept is not None and kept.tables == tables.keys() and not parameters:
                return kept.rows(self._connection)
            if kept is None:
                self._check_kind(query)
            return self._keep(query, self._connection.sql(query, params=parameters), tables).first()
        except FAILURES as error:
            self.close()
            told = failed(error, tables, limit)
            if is_wrong_query(error):
                raise DeclarationError(str(told)) from None
            raise told from None

    def _check_kind(self, query: str) -> None:
        try:
            check_read_only(self._connection, query)
        except InputError as error:
            raise DeclarationError(str(error)) from None

    def _keep(self, query: str, found: Any, tables: Mapping[str, pa.Table]) -> KeptQuestion:
        while len(self._read) >= QUERIES_MAX or query in self._read:
            oldest = query if query in self._read else next(iter(self._read))
            self._read.pop(oldest).forget(self._connection)
        kept = self._read[query] = KeptQuestion(query, found, frozenset(tables))
        return kept

    def _name(self, name: str, table: pa.Table) -> None:
        there = self._there.get(name)
        is_small = table.num_rows <= STAND_IN_ROWS_MAX
        if isinstance(there, StandIn) and is_small and there.table.schema.equals(table.schema):
            there.table = table
        elif there is not table:
            given = StandIn(table) if is_small else table
            self._forget(name)
            self._connection.register(name, given)
            self._there[name] = given

    def _forget(self, name: str) -> None:
        """A name means something else: queries that it stands in are to be read again."""
        self._there.pop(name, None)
        for text in [text for text, one in self._read.items() if name in one.tables]:
            self._read.pop(text).forget(self._connection)

    def close(self) -> None:
        """Forget the tables; the next query begins with a new connection."""
        self._read.clear()
        if self._connection is not None:
            self._connection.close()
        self._connection, self._there = None, {}
