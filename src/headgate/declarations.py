"""Declarations: what a store says about its tables and streams, and whether a program fits it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.durability.reader import stored_names
from headgate.errors import DeclarationError, FormatError
from headgate.inlet import Plan, Route, updated_columns
from headgate.migrations import Migration
from headgate.query.stored import UNROUTED
from headgate.results import results_schema
from headgate.state.constraint import check_reference
from headgate.state.integrity import first_violation
from headgate.state.rows import Rows
from headgate.state.schema import Column, ColumnType, Schema
from headgate.state.storage import Storage, fresh_name
from headgate.state.table import Table
from headgate.suggestion import advice
from headgate.transactions import Transaction

# What this Headgate can read: 2 has tables with constraints over several rows, 3 declarations that
# changed with an epoch.
FORMAT = 3


def describe_table(table: Table) -> dict[str, Any]:
    """A table's declaration as JSON."""
    check = None if table.check is None else table.check.text
    found: dict[str, Any] = {"columns": table.schema.ddl, "key": list(table.key), "check": check}
    if table.unique:
        found["unique"] = [list(one.columns) for one in table.unique]
    if table.references:
        found["references"] = [[list(one.columns), one.parent] for one in table.references]
    return found


def read_table(name: str, description: Mapping[str, Any]) -> Table:
    """The inverse of `describe_table`."""
    return Table(
        name,
        description["columns"],
        description["key"],
        description.get("check"),
        unique=[tuple(columns) for columns in description.get("unique", ())],
        references={tuple(columns): to for columns, to in description.get("references", ())},
    )


def format_of(tables: Iterable[Table]) -> int:
    """The oldest format that says all of these declarations."""
    return 2 if any(table.constraints for table in tables) else 1


def check_format(manifest: Mapping[str, Any]) -> None:
    """Refuse declarations that a newer Headgate wrote."""
    found = manifest.get("format", FORMAT)
    if found > FORMAT:
        raise FormatError(
            f"the store's declarations have format {found}, this Headgate knows up to {FORMAT}: "
            "upgrade Headgate to open it"
        )


def merged_manifest(
    before: Mapping[str, Any],
    tables: Mapping[str, Table],
    streams: Mapping[str, Any],
    seen: Iterable[Migration] = (),
) -> dict[str, Any]:
    """The manifest when a program's tables and streams join what the store has.

    A new store is beyond all the migrations that its program has `seen`.
    """
    kept = {name: before[name] for name in ("since", "migrations", "past") if name in before}
    if seen:
        known = {one["name"] for one in kept.get("migrations", ())}
        added = [{"name": one.name, "epoch": 0} for one in seen if one.name not in known]
        kept["migrations"] = [*kept.get("migrations", ()), *added]
    storages = storages_of(before, tables)
    described = {
        name: {**describe_table(table), **storages[name].describe(name)}
        for name, table in tables.items()
    }
    is_changed = kept or any("stored" in one for one in described.values())
    form = FORMAT if is_changed else format_of(tables.values())
    return {"format": form, "tables": described, "streams": dict(streams), **kept}


def storages_of(manifest: Mapping[str, Any], tables: Mapping[str, Table]) -> dict[str, Storage]:
    """Where the rows of each table are; what is new gets a name that nothing had before."""
    versions = [manifest, *manifest.get("past", ())]
    used = {stored for version in versions for stored in stored_names(version)}
    found = {}
    for name, table in tables.items():
        known = manifest.get("tables", {}).get(name)
        if known is None:
            found[name] = Storage(fresh_name(name, used))
            continue
        storage, columns = Storage.read(name, known), Schema.parse(known["columns"]).names
        for column in table.schema.names:
            if column not in columns:
                storage = storage.with_new(column, columns)
                columns = (*columns, column)
        found[name] = storage
    return found


def fit_tables(declared: Iterable[Table], stored: Mapping[str, Any]) -> dict[str, Table]:
    """As `merge_tables`; and every reference leads to one of them."""
    found = merge_tables(declared, stored)
    check_parents(found)
    return found


def merge_tables(declared: Iterable[Table], stored: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of the program and of the store; where both have one, it must be the same."""
    found = {name: read_table(name, description) for name, description in stored.items()}
    for table in declared:
        if table.name in found:
            _refuse_difference(table, found[table.name])
        found[table.name] = table
    return found


def _refuse_difference(declared: Table, stored: Table) -> None:
    """Only columns that have a default and constraints may be added; nothing else may differ."""
    for constraint in stored.constraints:
        if constraint not in declared.constraints:
            raise DeclarationError(
                f"table {declared.name!r}: the store has the constraint {constraint.name!r}, "
                f"the program does not; {advice(declared, stored)}"
            )
    _refuse_bare_columns(declared, stored)
    mine, theirs = describe_table(_without_new_columns(declared, stored)), describe_table(stored)
    for part in ("columns", "key", "check"):
        if mine[part] != theirs[part]:
            raise DeclarationError(
                f"table {declared.name!r}: the program declares {part} {mine[part]!r}, "
                f"the store has {theirs[part]!r}; {advice(declared, stored)}"
            )


def _refuse_bare_columns(declared: Table, stored: Table) -> None:
    """A new column needs a default, which the rows that are there take."""
    bare = [c for c in declared.schema if c.name not in stored.schema and c.default is None]
    if bare and all(column.name in declared.schema for column in stored.schema):
        name = bare[0].name
        raise DeclarationError(
            f"table {declared.name!r}: the store has no column {name!r}, and its rows need a value "
            f"for it; declare a default, as in: {bare[0].ddl} {_zero_default(bare[0])}, or compute "
            f"it: migrations=[hg.Migration('...').add_column({declared.name!r}, {bare[0].ddl!r}, "
            "value='an SQL expression over the row')]"
        )


def _zero_default(column: Column) -> str:
    zeros = {"string": "''", "boolean": "false", "date": "date '1970-01-01'"}
    zeros["timestamp"] = "timestamp '1970-01-01 00:00:00'"
    return f"DEFAULT {zeros.get(column.type.kind, '0')}"


def check_parents(tables: Mapping[str, Table]) -> None:
    """Every reference must lead to a table of the engine, by columns that fit its key."""
    for table in tables.values():
        where = f"table {table.name!r}"
        for reference in table.references:
            parent = tables.get(reference.parent)
            if parent is None:
                raise DeclarationError(
                    f"{where}: references the table {reference.parent!r}, "
                    "which is not among the tables of this engine; add it to tables=[...]"
                )
            key = parent.key_columns
            check_reference(reference.columns, table.schema, parent.name, key, where)


def refuse_broken(rows: Mapping[str, Rows], stored: Mapping[str, Any]) -> None:
    """A constraint that is new to the store must hold for the rows it has."""
    for name, found in rows.items():
        table = found.table
        before = read_table(name, stored[name]) if name in stored else None
        known = () if before is None else before.constraints
        for constraint in table.constraints:
            slot = None if constraint in known else first_violation(rows, constraint)
            if slot is not None:
                raise DeclarationError(
                    f"table {name!r}: the constraint {constraint.name!r} is new, and the row "
                    f"{found.key_text(slot)} breaks it; mend the rows first, without it"
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
    text = None if stored is None else stored["results"]
    columns = {} if text is None else {c.name: c for c in Schema.parse(text, structs=True)}
    for column in results:
        if columns.setdefault(column.name, column).type == column.type:
            continue
        if _is_wider(column.type, columns[column.name].type):
            columns[column.name] = column  # the table has got new columns since
        else:
            raise DeclarationError(
                f"results column {column.name!r} is a {column.type}, "
                f"the store's stream has it as a {columns[column.name].type}"
            )
    return {**(stored or {}), "results": Schema(tuple(columns.values())).ddl}


def _is_wider(new: ColumnType, old: ColumnType) -> bool:
    """Whether a struct has all fields of another, and more."""
    if new.element is not None and old.element is not None:
        return _is_wider(new.element, old.element)
    return bool(old.fields) and set(old.fields) < set(new.fields)


def merge_streams(streams: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The streams of a store when a plan's results join them."""
    merged = dict(streams)
    for transaction in plan.route.transactions:
        own = {column.name for column in transaction.output or ()}
        own |= {column.name for column in updated_columns(transaction)}
        shared = {**plan.outputs, **plan.updated}
        mine = [c for c in results_schema(plan) if c.name not in shared or c.name in own]
        merged[transaction.name] = merge_stream(merged.get(transaction.name), Schema(tuple(mine)))
    if plan.route.column is not None:
        mine = [c for c in results_schema(plan) if c.name not in {**plan.outputs, **plan.updated}]
        merged[UNROUTED] = merge_stream(merged.get(UNROUTED), Schema(tuple(mine)))
    return merged


def carried_before(streams: Mapping[str, Any], plan: Plan) -> dict[str, ColumnType]:
    """The types of the columns that results of the plan's streams have had so far."""
    found: dict[str, ColumnType] = {}
    for name in (*(one.name for one in plan.route.transactions), UNROUTED):
        if name in streams:
            known = Schema.parse(streams[name]["results"], structs=True)
            found.update((column.name, column.type) for column in known)
    return found


def declared_streams(
    streams: Mapping[str, Any], transactions: Mapping[str, Transaction]
) -> dict[str, Any]:
    """The streams of a store with those of all transactions, also of those that never ran yet."""
    merged = dict(streams)
    for transaction in transactions.values():
        route = Route((transaction,))
        merged = merge_streams(merged, Plan(route, (), None, "reject", None))
    return merged
