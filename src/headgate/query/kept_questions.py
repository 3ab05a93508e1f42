"""Kept questions: who asks the same few queries again and again over tables that change.

To make a connection, to name a table to DuckDB and to read a query each take longer than a short
query itself. So all three are kept: a small table is named once by a stand-in, which gives the rows
that it has now to each run; a query without parameters is read once, and then only run. Invariant:
a run sees the tables that it was given, and whoever asks gives all that the query can name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa

from headgate.query.sql import (
    FAILURES,
    Limit,
    Parameters,
    check_read_only,
    failed,
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


class KeptQuestions:
    """One connection and what it knows; for one thread at a time, and no other of DuckDB's: to
    wake one takes longer than a short query."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._there: dict[str, pa.Table | StandIn] = {}
        self._read: dict[str, tuple[Any, frozenset[str]]] = {}  # by query: it, and its tables

    def run(
        self, query: str, tables: Mapping[str, pa.Table], parameters: Parameters = None
    ) -> pa.Table:
        """Run one read-only query over these tables."""
        limit = Limit(threads=1)
        if self._connection is None:
            self._connection = duckdb.connect(":memory:", config=settings_of(limit))
        try:
            for name, table in tables.items():
                self._name(name, table)
            kept = self._read.get(query)
            if kept is not None and kept[1] == tables.keys() and not parameters:
                return kept[0].to_arrow_table()
            if kept is None:
                check_read_only(self._connection, query)
            found = self._connection.sql(query, params=parameters)
            self._keep(query, found, tables)
            return found.to_arrow_table()
        except FAILURES as error:
            self.close()
            raise failed(error, tables, limit) from None

    def _keep(self, query: str, found: Any, tables: Mapping[str, pa.Table]) -> None:
        while len(self._read) >= QUERIES_MAX:
            del self._read[next(iter(self._read))]
        self._read[query] = found, frozenset(tables)

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
        self._read = {text: one for text, one in self._read.items() if name not in one[1]}

    def close(self) -> None:
        """Forget the tables; the next query begins with a new connection."""
        self._read.clear()
        if self._connection is not None:
            self._connection.close()
        self._connection, self._there = None, {}
