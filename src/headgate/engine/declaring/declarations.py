"""Declarations: what a store says about its tables and streams, and whether a program fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from headgate.durability.reader import stored_names
from headgate.engine.declaring.migrations import Migration, advice, filling, of_before
from headgate.engine.events import carried_kinds, resolve_carry
from headgate.engine.results import results_schema
from headgate.engine.routing import Route
from headgate.engine.terms import Terms, updated_columns
from headgate.errors import DeclarationError, FormatError, StoreError
from headgate.kernels.building import check_compiles
from headgate.query.store_tables import UNROUTED, recorded_names
from headgate.state.integrity import first_violation
from headgate.state.row_history import lost_history
from headgate.state.rows import TableRows
from headgate.state.schema import Schema, refuse_twins
from headgate.state.stored_names import Storage, fresh_name
from headgate.state.table import Constraint, Table, check_reference
from headgate.state.types import Column, ColumnType, is_wider
from headgate.transactions import Transaction, check_tables_known

# What this Headgate can read: 2 has tables with constraints over several rows, 3 declarations that
# changed with an epoch, 4 dataflows, whose inlets the log tells by their changes, 5 tables that
# keep versions, which whoever writes their rows must keep, too, 6 rows in shards.
FORMAT = 6
MIGRATED_FORMAT = 3
_FLOWING, _KEEPING, _SHARDED = 4, 5, 6


def describe_table(table: Table) -> dict[str, Any]:
    """A table's declaration as JSON."""
    check = None if table.check is None else table.check.text
    found: dict[str, Any] = {"columns": table.schema.ddl, "key": list(table.key), "check": check}
    if table.unique:
        found["unique"] = [list(one.columns) for one in table.unique]
    if table.references:
        found["references"] = [[list(one.columns), one.parent] for one in table.references]
    if table.index:
        found["index"] = [list(one.columns) for one in table.index]
    if table.history is not None:
        found["history"] = table.history.extent.text
        found |= {} if table.history.by is None else {"by": table.history.by}
    if table.shard_by:
        found["shard_by"] = list(table.shard_by)
    if table.replicate:
        found["replicate"] = True
    if table.expires is not None:
        found["expires"] = table.expires.text
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
        index=[tuple(columns) for columns in description.get("index", ())],
        history=description.get("history"),
        by=description.get("by"),
        shard_by=description.get("shard_by", ()),
        replicate=description.get("replicate", False),
        expires=description.get("expires"),
    )


def format_of(tables: Iterable[Table]) -> int:
    """The oldest format that says all of these declarations."""
    given = list(tables)
    if any(table.history is not None for table in given):
        return _KEEPING
    return 2 if any(table.constraints for table in given) else 1


def check_format(manifest: Mapping[str, Any]) -> None:
    """Refuse declarations that a newer Headgate wrote."""
    found = manifest.get("format", FORMAT)
    if found > FORMAT:
        raise FormatError(
            f"the store's declarations have format {found}, this Headgate knows up to {FORMAT}: "
            "upgrade Headgate to open it"
        )


def refuse_inputs(inputs: Sequence[int], what: str) -> None:
    """Refuse to change a store whose newest rows are not in its files."""
    if inputs:
        raise StoreError(
            f"epochs {inputs[0]} to {inputs[-1]} were logged as input (recovery='weak'), and only "
            "the program that ran them can run them again: open the store with that program, call "
            f"engine.snapshot() and close it; then {what}"
        )


def merged_manifest(
    before: Mapping[str, Any],
    tables: Mapping[str, Table],
    streams: Mapping[str, Any],
    seen: Iterable[Migration] = (),
    dataflows: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The manifest when a program's tables and streams join what the store has.

    A new store is beyond all the migrations that its program has `seen`.
    """
    kept = {name: before[name] for name in ("since", "migrations", "past") if name in before}
    if seen:
        known = {one["name"] for one in kept.get("migrations", ())}
        added = [one.record(0) for one in seen if one.name not in known]
        kept["migrations"] = [*kept.get("migrations", ()), *added]
    storages = storages_of(before, tables)
    described = {
        name: {**describe_table(table), **storages[name].describe(name)}
        for name, table in tables.items()
    }
    is_changed = kept or any("stored" in one for one in described.values())
    form = max(MIGRATED_FORMAT if is_changed else 1, format_of(tables.values()))
    flows = {**before.get("dataflows", {}), **dataflows}
    if flows:
        form, kept = max(form, _FLOWING), {**kept, "dataflows": flows}
    if any("shards" in one for one in kept.get("past", ())):
        form = max(form, _SHARDED)
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


def fit_program(
    manifest: Mapping[str, Any],
    tables: Mapping[str, Table],
    transactions: Mapping[str, Transaction],
    migrations: Iterable[Migration],
) -> tuple[dict[str, Table], dict[str, Any]]:
    """The tables and streams of a program and its store together; refused where they do not fit."""
    check_format(manifest)
    refuse_forgotten(manifest, tables, transactions, migrations)
    found = merge_tables(tables.values(), manifest)
    check_tables_known(transactions, found)
    check_parents(found)
    for table in found.values():
        check_compiles(table)
    return found, declared_streams(manifest.get("streams", {}), transactions)


def fit_tables(declared: Iterable[Table], manifest: Mapping[str, Any]) -> dict[str, Table]:
    """As `merge_tables`; and every reference leads to one of them."""
    found = merge_tables(declared, manifest)
    check_parents(found)
    return found


def merge_tables(declared: Iterable[Table], manifest: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of the program and of the store; where both have one, it must be the same."""
    stored = manifest.get("tables", {})
    found = {name: read_table(name, description) for name, description in stored.items()}
    for table in declared:
        if table.name in found:
            _refuse_difference(table, found[table.name], manifest)
        found[table.name] = table
    refuse_twins(found, "tables", "the store and the program")
    return found


def _refuse_difference(declared: Table, stored: Table, manifest: Mapping[str, Any]) -> None:
    """Only constraints, and columns for which the rows there are have a value or null, may be
    added; nothing else may differ but the indexes, which are made from the rows, and when rows
    expire, which is so from now on.

    Migrations of the manifest that have no epoch yet are to be applied: it is as after them.
    """
    pending = [one["name"] for one in manifest.get("migrations", ()) if one["epoch"] is None]
    after = f"after {named_migrations(pending)} the store would have"
    what = _difference(declared, stored, after if pending else "the store has")
    if what is None:
        return
    parted = _parted_by(declared, manifest)
    if parted is not None:
        next_step = of_before(parted)
    elif _bare_columns(declared, stored):
        next_step = filling(declared, _bare_columns(declared, stored)[0])
    else:
        next_step = advice(declared, stored, pending)
    raise DeclarationError(f"table {declared.name!r}: {what}; {next_step}")


def named_migrations(names: Sequence[str]) -> str:
    """Some migrations in a sentence."""
    said = ", ".join(map(repr, names))
    return f"the migration {said}" if len(names) == 1 else f"the migrations {said}"


def _difference(declared: Table, stored: Table, has: str = "the store has") -> str | None:
    """What a program's table does not share with the store's, in words; None: it fits."""
    for constraint in stored.constraints:
        if constraint not in declared.constraints:
            return f"{has} the constraint {constraint.name!r}, the program does not"
    kept = lost_history(declared, stored)
    if kept is not None:
        return f"{has} {kept}"
    bare = _bare_columns(declared, stored)
    if bare:
        return f"{has} no column {bare[0].name!r}, and its rows need a value for it"
    mine, theirs = describe_table(_without_new_columns(declared, stored)), describe_table(stored)
    for part in ("columns", "key", "check"):
        if mine[part] != theirs[part]:
            return f"the program declares {part} {mine[part]!r}, {has} {theirs[part]!r}"
    return None


def _bare_columns(declared: Table, stored: Table) -> list[Column]:
    """New columns without what the rows there are would have in them."""
    if any(column.name not in declared.schema for column in stored.schema):
        return []
    new = [column for column in declared.schema if column.name not in stored.schema]
    return [column for column in new if not _may_join(column)]


def _may_join(column: Column) -> bool:
    """Whether a new column needs no migration: what older rows have is its default, or null. Where
    it is nullable with a default, null in the files is null, so that has to be written."""
    return column.nullable == (column.default is None)


def _parted_by(declared: Table, manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The migration since which a program's table does not fit, when it fitted before that."""
    versions = [*manifest.get("past", ()), manifest]
    stored = Storage.read(declared.name, manifest["tables"][declared.name]).name
    for before, after in reversed(list(pairwise(versions))):
        name = stored_names(before).get(stored)
        if name == declared.name and _fits(declared, read_table(name, before["tables"][name])):
            done: Sequence[Mapping[str, Any]] = after.get("migrations", ())
            return done[-1] if done else None
    return None


def _fits(declared: Table, stored: Table) -> bool:
    return _difference(declared, stored) is None


def refuse_forgotten(
    manifest: Mapping[str, Any],
    tables: Mapping[str, Table],
    transactions: Iterable[str],
    migrations: Iterable[Migration],
) -> None:
    """Refuse a program from before a migration, for which the same names meant other things.

    What was renamed or dropped would be made anew, and empty. A program that lists the migration
    knows of it, and may well use the name for something else.
    """
    known = {one.name for one in migrations}
    versions = [*manifest.get("past", ()), manifest]
    for before, after in pairwise(versions):
        done = after.get("migrations", [{"name": "", "epoch": 0}])[-1]
        if done["name"] in known:
            continue
        gone = [f"the table {name!r}" for name in _lost(before, after, manifest, "tables", tables)]
        for name in _lost(before, after, manifest, "streams", transactions):
            gone.append(f"the transaction {name!r}")
        gone += _lost_columns(before, after, manifest, tables)
        if gone:
            raise DeclarationError(
                f"{gone[0]} was renamed or dropped by the migration {done['name']!r} at epoch "
                f"{done['epoch']}, and this program still has it: start the program that goes with "
                "the migration; if the name is meant for something new, list the migration in "
                "migrations=[...]"
            )


def _lost(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    now: Mapping[str, Any],
    what: str,
    declared: Iterable[str],
) -> list[str]:
    lost = set(before.get(what, {})) - set(after.get(what, {})) - set(now.get(what, {}))
    return [name for name in declared if name in lost]


def _lost_columns(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    now: Mapping[str, Any],
    tables: Mapping[str, Table],
) -> list[str]:
    found = []
    named = (stored_names(before), stored_names(after), stored_names(now))
    for stored in set(named[0]) & set(named[1]) & set(named[2]):
        versions = zip((before, after, now), named, strict=True)
        old, new, current = (
            Schema.parse(version["tables"][names[stored]]["columns"]) for version, names in versions
        )
        table = tables.get(named[2][stored])
        for column in table.schema.names if table is not None else ():
            if column in old and column not in new and column not in current:
                found.append(f"the column {column!r} of {named[2][stored]!r}")
    return found


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


def refuse_broken(rows: Mapping[str, TableRows], stored: Mapping[str, Any]) -> None:
    """A constraint that is new to the store must hold for the rows it has."""
    for name, found in rows.items():
        for constraint in new_constraints(found.table, stored):
            slot = first_violation(rows, constraint)
            if slot is not None:
                raise DeclarationError(
                    f"table {name!r}: the constraint {constraint.name!r} is new, and the row "
                    f"{found.key_text(slot)} breaks it; open the store without it, mend the rows "
                    "by a transaction, and declare it then"
                )


def new_constraints(table: Table, stored: Mapping[str, Any]) -> list[Constraint]:
    """The constraints of a table that the store does not have."""
    known = read_table(table.name, stored[table.name]).constraints if table.name in stored else ()
    return [constraint for constraint in table.constraints if constraint not in known]


def _without_new_columns(declared: Table, stored: Table) -> Table:
    kept = [
        column
        for column in declared.schema
        if column.name in stored.schema or not _may_join(column)
    ]
    if len(kept) == len(declared.schema.columns):
        return declared
    check = None if declared.check is None else declared.check.text
    try:
        return Table(declared.name, Schema(tuple(kept)).ddl, declared.key, check)
    except DeclarationError:  # its check names a new column: that is a difference
        return declared


def merge_stream(name: str, stored: Mapping[str, Any] | None, results: Schema) -> dict[str, Any]:
    """A stream's columns when results of this schema join those it already has."""
    text = None if stored is None else stored["results"]
    columns = {} if text is None else {c.name: c for c in Schema.parse(text, structs=True)}
    for column in results:
        if column.name not in columns:
            twins = [one for one in columns if one.lower() == column.name.lower()]
            refuse_twins([*twins[:1], column.name], "results columns", f"stream {name!r}")
        known = columns.setdefault(column.name, column).type
        joined = _joined(known, column.type)
        if joined is None:
            raise DeclarationError(
                f"results column {column.name!r} is a {column.type}, the store's stream {name!r} "
                f"has it as a {known}: give the column another name, or put the old results aside "
                f"by a migration: hg.Migration('...').rename_transaction({name!r}, '{name}_before')"
            )
        columns[column.name] = Column(column.name, joined)
    return {**(stored or {}), "results": Schema(tuple(columns.values())).ddl}


def _joined(one: ColumnType, two: ColumnType) -> ColumnType | None:
    """The type that has every value of both; of two structs the fields of both."""
    if one == two or is_wider(one, two):
        return one
    if is_wider(two, one):
        return two
    if one.element is not None and two.element is not None:
        element = _joined(one.element, two.element)
        return None if element is None else ColumnType("array", element=element)
    if not one.fields or not two.fields:
        return None
    fields = {field.name: field for field in one.fields}
    for field in two.fields:
        joined = _joined(fields.setdefault(field.name, field).type, field.type)
        if joined is None:
            return None
        fields[field.name] = Column(field.name, joined)
    return ColumnType("struct", fields=tuple(fields.values()))


def merge_streams(streams: Mapping[str, Any], terms: Terms) -> dict[str, Any]:
    """The streams of a store when results under these terms join them."""
    merged = dict(streams)
    for transaction in terms.route.transactions:
        own = {column.name for column in transaction.output or ()}
        own |= {column.name for column in updated_columns(transaction)}
        shared = {**terms.outputs, **terms.updated}
        mine = [c for c in results_schema(terms) if c.name not in shared or c.name in own]
        merged[transaction.name] = merge_stream(
            transaction.name, merged.get(transaction.name), Schema(tuple(mine))
        )
    if terms.route.column is not None:
        mine = [
            c for c in results_schema(terms) if c.name not in {**terms.outputs, **terms.updated}
        ]
        merged[UNROUTED] = merge_stream(UNROUTED, merged.get(UNROUTED), Schema(tuple(mine)))
    return merged


def carried_before(streams: Mapping[str, Any], terms: Terms) -> dict[str, ColumnType]:
    """The types of the columns that results of these streams have had so far."""
    found: dict[str, ColumnType] = {}
    for name in (*(one.name for one in terms.route.transactions), UNROUTED):
        if name in streams:
            known = Schema.parse(streams[name]["results"], structs=True)
            found.update((column.name, column.type) for column in known)
    return found


def first_names(streams: Mapping[str, Any]) -> dict[str, str]:
    """What transactions were called first, where that is not what they are called now.

    A name that another one had before is told from it by the epoch from which it means this one.
    """
    found = {}
    for name in streams:
        called, first, _ = recorded_names(streams, name)[0]
        found[name] = called if first == 0 else f"{called}@{first}"
    return {name: called for name, called in found.items() if called != name}


def with_carried(streams: Mapping[str, Any], terms: Terms, given: pa.Schema | None) -> Terms:
    """The terms with the types of what it carries, as events of this schema have them."""
    known = carried_before(streams, terms)
    return replace(terms, carried=resolve_carry(terms.carry, terms.event, known, given))


def declared_streams(
    streams: Mapping[str, Any], transactions: Mapping[str, Transaction]
) -> dict[str, Any]:
    """The streams of a store with those of all transactions, also of those that never ran yet."""
    merged = dict(streams)
    for transaction in transactions.values():
        route = Route((transaction,))
        merged = merge_streams(merged, Terms(route, (), None, "reject", None))
    return merged


class DeclaredStreams:
    """The results streams that an engine's manifest declares; changed under the engine's lock."""

    def __init__(self, columns: dict[str, Any], declare: Callable[[], None]) -> None:
        self.columns = columns  # by transaction: those of its results, as the manifest has them
        self._declare = declare

    def note(self, terms: Terms) -> None:
        """The manifest tells readers the columns of each transaction's results stream."""
        merged = merge_streams(self.columns, terms)
        if merged != self.columns:
            self.columns = merged
            self._declare()

    def carrying(self, terms: Terms, given: pa.Schema | None) -> Terms:
        """The terms with the types of what they carry; these events may be the first to say."""
        found = with_carried(self.columns, terms, given)
        self.note(found)
        if None not in dict(found.carried).values():  # else another batch may know better
            terms.carrying[carried_kinds(terms.carry, given)] = found
        return found
