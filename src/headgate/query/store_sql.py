"""SQL over a store's files: its tables at one epoch, and all results up to it, in any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from headgate.durability import StoreReader
from headgate.errors import InputError
from headgate.query.answer import Answer
from headgate.query.sql import run_sql
from headgate.query.stored import read_table
from headgate.state.schema import Schema

RESULTS = "results"
RESULT_COLUMNS = "epoch bigint, position bigint, transaction string, outcome string, reason string"


def query_store(
    store: StoreReader, text: str, parameters: Any = None, epoch: int | None = None
) -> Answer:
    """Run one SQL query over the tables at one epoch, and over the results up to it.

    Only what the query names is read. The results stand under the name "results", unless a table
    of the store has that name.
    """
    known = [*tables_of(store, epoch), RESULTS]
    found, at = gather_store(store, _named_tables(text, known), epoch)
    return run_sql(text, found, parameters, epoch=at)


def gather_store(
    store: StoreReader, named: Iterable[str], epoch: int | None
) -> tuple[dict[str, pa.Table], int]:
    """All tables of a store, and their epoch; those that are not named are empty."""
    with store.hold():
        at = _checked_epoch(store, epoch)
        return _read_named(store, {name.lower() for name in named}, at), at


def tables_of(store: StoreReader, epoch: int | None = None) -> Mapping[str, Any]:
    """The declarations of the store's tables by name, at an epoch or now."""
    found: Mapping[str, Any] = store.declared(epoch).get("tables", {})
    return found


def _read_named(store: StoreReader, named: set[str], epoch: int) -> dict[str, pa.Table]:
    """All tables of the store by name; those that are not named are empty."""
    found: dict[str, pa.Table] = {}
    if RESULTS in named:
        found[RESULTS] = read_results(store, epoch)
    for name, declared in tables_of(store, epoch).items():
        empty = Schema.parse(declared["columns"]).arrow.empty_table()
        found[name] = _read_table(store, name, epoch, empty) if name.lower() in named else empty
    return found


def _checked_epoch(store: StoreReader, epoch: int | None) -> int:
    first, last = store.first_epoch(), store.last_epoch()
    if epoch is not None and not first <= epoch <= last:
        raise InputError(f"no epoch {epoch} in {store.path}: it has epochs {first} to {last}")
    return last if epoch is None else epoch


def _named_tables(text: str, known: Iterable[str]) -> set[str]:
    """The tables that a query names, in lower case.

    DuckDB cannot say it of every query, one with parameters for instance; then it is every table
    whose name stands anywhere in the text.
    """
    with duckdb.connect(":memory:") as connection:
        try:
            return {name.lower() for name in connection.get_table_names(text)}
        except duckdb.Error:
            lower = text.lower()
            return {name.lower() for name in known if name.lower() in lower}


def _read_table(store: StoreReader, name: str, epoch: int, empty: pa.Table) -> pa.Table:
    found = read_table(store, name, epoch)
    return found if found.num_rows else empty


def read_results(store: StoreReader, epoch: int) -> pa.Table:
    """All recorded results up to an epoch, in the columns of all streams together."""
    streams = store.declared(epoch).get("streams", {})
    return unite_results(streams, store.results(store.first_epoch() + 1, epoch))


def unite_results(
    declared: Mapping[str, Any], recorded: Iterable[tuple[int, pa.RecordBatch]]
) -> pa.Table:
    """Results of epochs as one table, with the columns of all declared streams."""
    streams = [one["results"] for one in declared.values()]
    schemas = [Schema.parse(columns, structs=True).arrow for columns in [RESULT_COLUMNS, *streams]]
    fields = {field.name: field for schema in schemas for field in schema}
    parts = [pa.schema(list(fields.values())).empty_table()]
    parts += [_with_epoch(batch, number) for number, batch in recorded]
    return _united(parts)


def _united(parts: list[pa.Table]) -> pa.Table:
    """Results with the columns of all; one whose types do not go together is a text in all."""
    types: dict[str, set[pa.DataType]] = {}
    for part in parts:
        for field in part.schema:
            types.setdefault(field.name, set()).add(field.type)
    mixed = [name for name, found in types.items() if len(found) > 1 and not _go_together(found)]
    try:
        return pa.concat_tables(
            [_as_texts(part, mixed) for part in parts], promote_options="permissive"
        )
    except pa.ArrowNotImplementedError as error:
        raise InputError(f"the results of all streams do not go together: {error}") from None


def _go_together(types: Iterable[pa.DataType]) -> bool:
    try:
        pa.unify_schemas([pa.schema([("", one)]) for one in types], promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return False
    return True


def _as_texts(table: pa.Table, names: Iterable[str]) -> pa.Table:
    for name in names:
        place = table.schema.get_field_index(name)
        if place >= 0:
            table = table.set_column(place, name, table.column(place).cast(pa.string()))
    return table


def _with_epoch(batch: pa.RecordBatch, epoch: int) -> pa.Table:
    table = pa.Table.from_batches([batch])
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    numbers = pa.repeat(pa.scalar(epoch, pa.int64()), table.num_rows)
    return table.add_column(0, "epoch", numbers)
