"""SQL: read-only queries by DuckDB over the Arrow tables of one epoch, and nothing else.

DuckDB gets no access to files, the network or Python variables; only SELECT and its kin run.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from headgate.errors import InputError

_READ_ONLY = ("SELECT", "EXPLAIN")


class Answer:
    """What a query found, as Arrow, pandas or rows."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def arrow(self) -> pa.Table:
        return self._table

    def pandas(self) -> Any:
        return self._table.to_pandas()

    df = pandas

    def rows(self) -> list[tuple[Any, ...]]:
        columns = [column.to_pylist() for column in self._table.columns]
        return list(zip(*columns, strict=True))

    fetchall = rows

    def dicts(self) -> list[dict[str, Any]]:
        return list(self._table.to_pylist())

    def __repr__(self) -> str:
        return f"<answer of {self._table.num_rows} rows: {', '.join(self._table.column_names)}>"


def run_sql(
    query: str,
    tables: Mapping[str, pa.Table],
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
) -> Answer:
    """Run one read-only query over these tables."""
    connection = duckdb.connect(":memory:", config=_settings())
    try:
        _check_read_only(connection, query)
        for name, table in tables.items():
            connection.register(name, table)
        found = connection.sql(query, params=parameters)
        return Answer(found.to_arrow_table())
    except duckdb.Error as error:
        raise InputError(f"the query cannot run: {_hint(str(error), tables)}") from None
    finally:
        connection.close()


def _settings() -> dict[str, Any]:
    return {
        "enable_external_access": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "lock_configuration": "true",
    }


def _check_read_only(connection: Any, query: str) -> None:
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise InputError(f"write one query, not {len(statements)}")
    kind = str(statements[0].type).rpartition(".")[2].upper()
    if not kind.startswith(_READ_ONLY):
        raise InputError(f"only SELECT reads a store; {kind} is refused")


def _hint(message: str, tables: Mapping[str, pa.Table]) -> str:
    words = message.replace('"', " ").replace("'", " ").split()
    for word in words:
        close = difflib.get_close_matches(word, list(tables), 1)
        if close and close[0] != word and "Did you mean" not in message:
            return f"{message}\nDid you mean the table {close[0]!r}?"
    if "does not exist" in message:
        return f"{message}\nThe tables are: {', '.join(tables) or 'none'}"
    return message
