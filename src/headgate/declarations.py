"""Declarations: what a store says about its tables and streams, and whether a program fits it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.errors import DeclarationError, FormatError
from headgate.state.schema import Schema
from headgate.state.table import Table
from headgate.transactions import Transaction

FORMAT = 1


def describe_table(table: Table) -> dict[str, Any]:
    """A table's declaration as JSON."""
    check = None if table.check is None else table.check.text
    return {"columns": table.schema.ddl, "key": list(table.key), "check": check}


def read_table(name: str, description: Mapping[str, Any]) -> Table:
    """The inverse of `describe_table`."""
    return Table(name, description["columns"], description["key"], description.get("check"))


def check_format(manifest: Mapping[str, Any]) -> None:
    """Refuse declarations that a newer Headgate wrote."""
    found = manifest.get("format", FORMAT)
    if found > FORMAT:
        raise FormatError(
            f"the store's declarations have format {found}, this Headgate knows up to {FORMAT}: "
            "upgrade Headgate to open it"
        )


def merge_tables(declared: Iterable[Table], stored: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of the program and of the store; where both have one, it must be the same."""
    found = {name: read_table(name, description) for name, description in stored.items()}
    for table in declared:
        if table.name in found:
            _refuse_difference(table, found[table.name])
        found[table.name] = table
    return found


def _refuse_difference(declared: Table, stored: Table) -> None:
    """Only new columns that have a default may be added; nothing else may differ."""
    mine, theirs = describe_table(_without_new_columns(declared, stored)), describe_table(stored)
    for part in ("columns", "key", "check"):
        if mine[part] != theirs[part]:
            raise DeclarationError(
                f"table {declared.name!r}: the program declares {part} {mine[part]!r}, "
                f"the store has {theirs[part]!r}; declare it as the store has it, "
                "or open another store"
            )


def _without_new_columns(declared: Table, stored: Table) -> Table:
    kept = [
        column
        for column in declared.schema
        if column.name in stored.schema or column.default is None
    ]
    if len(kept) == len(declared.schema.columns):
        return declared
    check = None if declared.check is None else declared.check.text
    try:
        return Table(declared.name, Schema(tuple(kept)).ddl, declared.key, check)
    except DeclarationError:  # its check names a new column: that is a difference
        return declared


def merge_stream(stored: Mapping[str, Any] | None, results: Schema) -> dict[str, Any]:
    """A stream's columns when results of this schema join those it already has."""
    columns = {} if stored is None else {c.name: c for c in Schema.parse(stored["results"])}
    for column in results:
        if columns.setdefault(column.name, column).type != column.type:
            raise DeclarationError(
                f"results column {column.name!r} is a {column.type}, "
                f"the store's stream has it as a {columns[column.name].type}"
            )
    return {"results": Schema(tuple(columns.values())).ddl}


def by_name(items: Iterable[Any], what: str, kind: type) -> dict[str, Any]:
    """Things by their name; a name that occurs twice is refused."""
    found: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, kind):
            raise DeclarationError(f"{item!r} is not a {what}")
        name = getattr(item, "name", "")
        if name in found:
            raise DeclarationError(f"two {what}s are called {name!r}")
        found[name] = item
    return found


def check_tables_known(
    transactions: Mapping[str, Transaction], tables: Mapping[str, Table]
) -> None:
    """Every table a transaction uses must be one of the engine's."""
    for transaction in transactions.values():
        for table in transaction.signature.tables:
            if tables.get(table.name) != table:
                raise DeclarationError(
                    f"transaction {transaction.name!r} uses the table {table.name!r}, "
                    "which is not among the tables of this engine; add it to tables=[...]"
                )
