"""Stored tables: a store's rows and results in its files, as any process reads and queries them.

Names and columns are those of the declarations at that epoch. Rows that were written before a
column was declared show the default it was declared with, as they do to the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import StoreReader
from headgate.durability.format import MANIFEST_NAME
from headgate.durability.manifest import read_lineage
from headgate.durability.named_parts import PartHistory
from headgate.durability.part_file import PartName, read_part
from headgate.errors import InputError
from headgate.query.answer import Answer
from headgate.query.connections import shared
from headgate.query.sql import run_sql
from headgate.state.row_history import ENDING
from headgate.state.schema import Schema
from headgate.state.stored_names import Storage, require_table

# --- tables in shards -----------------------------------------------------------------------------
# The rows of a table that is in shards, out of the parts that an epoch names.
#
# Nothing runs here and no key index is made: of each key the last word counts, a row or that it
# is gone. What is read is what the log named at the epoch, so every process sees the same.


SHARDS = "shards"  # in the manifest: how many there are
_PLACE = "__place"


def shard_count(declared: Mapping[str, Any]) -> int | None:
    """How many shards a store has; None where its rows are in the log itself."""
    found: int | None = declared.get(SHARDS)
    return found


def parts_of(declared: Mapping[str, Any], name: str) -> range:
    """The parts of rows that a declared table can be in; versions are where their rows are."""
    count, tables = shard_count(declared) or 0, declared["tables"]
    is_everywhere = tables[owner_of(name, tables)].get("replicate")
    return range(count, count + 1) if is_everywhere else range(count)


def owner_of(name: str, tables: Mapping[str, Any]) -> str:
    """The table whose versions a described table has, or its own name where it has rows."""
    owner = name.removesuffix(ENDING)
    return owner if owner != name and "history" in tables.get(owner, ()) else name


def read_sharded(
    reader: StoreReader, name: str, described: Mapping[str, Any], epoch: int, parts: range
) -> pa.Table:
    """The rows of a table in these parts of rows, part after part."""
    with reader.hold():  # else the parts could be trimmed before they are read
        known, keys = reader.parts(epoch), {name: described["key"]}
        found = [part_rows(reader, known.history(part), part, keys) for part in parts]
    tables = [tables[name] for tables in found if name in tables]
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})


def part_rows(
    reader: StoreReader, history: PartHistory, part: int, keys: Mapping[str, Sequence[str]]
) -> dict[str, pa.Table]:
    """The rows of a part of rows, of the tables with these keys; of those that had any."""
    lineage = read_lineage(reader.disk, os.path.join(reader.path, MANIFEST_NAME))
    # What was said of each table's rows, the oldest first: rows, or keys of those that are gone.
    pieces: dict[str, list[tuple[pa.Table, bool]]] = {name: [] for name in keys}
    for file in _files(history):
        tables = read_part(reader.disk, reader.path, lineage, file).tables
        for name, found in pieces.items():
            for kind, is_there in (("rows", True), ("gone", False)):
                piece = tables.get(f"{kind}/{part}/{name}")
                if piece is not None:
                    found.append((piece, is_there))
    rows = {name: _rows(found, keys[name]) for name, found in pieces.items()}
    return {name: table for name, table in rows.items() if table is not None}


def in_parts(storage: Storage) -> Storage:
    """The same table in parts, which have its columns under their declared names."""
    return Storage(storage.name, fill=storage.fill)


def _files(history: PartHistory) -> Iterator[PartName]:
    if history.image is not None:
        yield from history.image.parts
    for link in history.links:
        yield from link.parts


def _rows(pieces: Sequence[tuple[pa.Table, bool]], key: Sequence[str]) -> pa.Table | None:
    """The rows that are there in the end."""
    there = [table for table, is_there in pieces if is_there]
    if not there:
        return None
    if len(pieces) == 1:
        return there[0]
    keys = pa.concat_tables([table.select(key) for table, _ in pieces])
    keys = keys.append_column(_PLACE, pa.array(np.arange(keys.num_rows)))
    last = keys.group_by(list(key)).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max")
    places = np.sort(last.to_numpy())
    # Where each place is among the rows that are there, -1 for the key of one that is gone.
    marks = np.concatenate([np.full(table.num_rows, is_there) for table, is_there in pieces])
    row_of = np.where(marks, np.cumsum(marks) - 1, -1)[places]
    # A column that was declared later is null in what is older.
    return pa.concat_tables(there, promote_options="default").take(row_of[row_of >= 0])


ALL_STREAMS = "*"  # the name under which a reader finds the results of all streams
UNROUTED = "unrouted"  # and that of events that no route took: they have no transaction
RESULTS = "results"
RESULT_COLUMNS = "epoch bigint, position bigint, transaction string, outcome string, reason string"


def of_stream(
    results: pa.RecordBatch,
    stream: str,
    streams: Mapping[str, Any] = MappingProxyType({}),
    epoch: int = 0,
) -> pa.RecordBatch:
    """The recorded results of an epoch that belong to a stream.

    `streams` are those declared; they say under which names its results are recorded.
    """
    if stream == ALL_STREAMS:
        return results
    names = results.column("transaction")
    if stream == UNROUTED:
        return results.filter(names.is_null())
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    meant = [
        name
        for name, first, last in recorded_names(streams, stream)
        if first <= epoch and (last is None or epoch <= last)
    ]
    return results.filter(pc.is_in(names, pa.array(meant, pa.string())))


def read_table(
    reader: StoreReader,
    name: str,
    epoch: int | None = None,
    *,
    slot_range: tuple[int, int] | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """The declared columns, or those named, also of rows older than their declaration."""
    epoch = reader.last_epoch() if epoch is None else epoch
    declarations = reader.declared(epoch)
    described = require_table(declarations.get("tables", {}), name, f"epoch {epoch}")
    storage = Storage.read(name, described)
    declared = Schema.parse(described["columns"])
    wanted = [column for column in declared if columns is None or column.name in columns]
    stored = None if columns is None else [storage.column(column.name) for column in wanted]
    if shard_count(declarations) is not None:  # then a share of a table is some of its shards
        parts = parts_of(declarations, name)
        parts = parts if slot_range is None else parts[slot_range[0] : slot_range[1]]
        sharded = read_sharded(reader, name, described, epoch, parts)
        return in_parts(storage).from_files(sharded, wanted)
    found = reader.table(storage.name, epoch, slot_range=slot_range, columns=stored)
    return storage.from_files(found, wanted)


def recorded_names(streams: Mapping[str, Any], name: str) -> list[tuple[str, int, int | None]]:
    """Under which names a stream's results are recorded: name, its first and its last epoch.

    A name that another stream had before means this one only after that.
    """
    known = streams.get(name, {}).get("names")
    if known is not None:
        return [(one, first, last) for one, first, last in known]
    others = [entry for one in streams.values() for entry in one.get("names", ())]
    ended = [last + 1 for one, _, last in others if one == name and last is not None]
    return [(name, max(ended, default=0), None)]


Origin = tuple[str, int]  # a stream by the first name it had, and the epoch from which on it had it


def origin_of(streams: Mapping[str, Any], name: str, epoch: int) -> Origin | None:
    """The stream that had a name which none has any more; None when none ever had it.

    Of several it is the one that had it at an epoch, or was the last before to get it.
    """
    had = [
        (first <= epoch, first if first <= epoch else -first, other)
        for other, one in streams.items()
        for recorded, first, _ in one.get("names", ())
        if recorded == name
    ]
    return recorded_names(streams, max(had)[2])[0][:2] if had else None


def name_of(streams: Mapping[str, Any], origin: Origin) -> str:
    """What a stream is called among those declared, whatever names it had before."""
    found = (name for name in streams if recorded_names(streams, name)[0][:2] == origin)
    return next(found, origin[0])


def slots_of(reader: StoreReader, name: str, epoch: int) -> int:
    """One more than the highest slot that a table has used up to an epoch."""
    described = require_table(reader.declared(epoch).get("tables", {}), name, f"epoch {epoch}")
    return reader.slots(Storage.read(name, described).name, epoch)


def shards_of(reader: StoreReader, name: str, epoch: int) -> int | None:
    """In how many parts a table's rows are; None where the log itself has them."""
    declarations = reader.declared(epoch)
    require_table(declarations.get("tables", {}), name, f"epoch {epoch}")
    return None if shard_count(declarations) is None else len(parts_of(declarations, name))


# Tables in shards of so many bytes are read into one process for a query: beyond, Spark is asked.
READ_BYTES_MAX = 1 << 28


def row_bytes(columns: int) -> int:
    """About how many bytes a row of so many columns takes in memory, with its place in an index."""
    return 8 * (4 + columns)


def too_large(columns: Mapping[str, int], rows: Mapping[str, int]) -> str | None:
    """Why these tables are not read into one process: by name how many columns and rows there are;
    None when they may be."""
    found = {name: row_bytes(count) * rows.get(name, 0) for name, count in columns.items()}
    total = sum(found.values())
    if total <= READ_BYTES_MAX:
        return None
    largest = max(found, key=lambda name: found[name])
    return (
        f"the tables that it names take about {total >> 20:,} MiB, most of it {largest!r}, and "
        f"{READ_BYTES_MAX >> 20:,} MiB at most are read into one process"
    )


def too_large_at(reader: StoreReader, named: Iterable[str], epoch: int) -> str | None:
    """The same of these tables of a store at an epoch; of rows that are not in shards it is None,
    as any process that opens the store has them."""
    declarations = reader.declared(epoch)
    if shard_count(declarations) is None:
        return None
    tables = {name: declarations["tables"][name] for name in named}
    columns = {name: len(list(Schema.parse(one["columns"]))) for name, one in tables.items()}
    return too_large(columns, reader.parts(epoch).counts())


# --- SQL over a store's files ---------------------------------------------------------------------


def query_store(
    store: StoreReader, text: str, parameters: Any = None, epoch: int | None = None
) -> Answer:
    """Run one SQL query over the tables at one epoch, and over the results up to it.

    Only what the query names is read. The results stand under the name "results", unless a table
    of the store has that name.
    """
    found, at = gather_store(store, named_tables(store, text, epoch), epoch)
    return run_sql(text, found, parameters, epoch=at)


def gather_store(
    store: StoreReader, named: Iterable[str], epoch: int | None
) -> tuple[dict[str, pa.Table], int]:
    """All tables of a store, and their epoch; those that are not named are empty."""
    with store.hold():
        at = checked_epoch(store, epoch)
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


def checked_epoch(store: StoreReader, epoch: int | None) -> int:
    """The epoch that is meant, the newest for None; InputError when it is not there."""
    first, last = store.first_epoch(), store.last_epoch()
    if epoch is not None and not first <= epoch <= last:
        raise InputError(f"no epoch {epoch} in {store.path}: it has epochs {first} to {last}")
    return last if epoch is None else epoch


def named_tables(store: StoreReader, text: str, epoch: int | None) -> set[str]:
    """The tables of a store that a query names, in lower case.

    DuckDB cannot say it of every query, one with parameters for instance; then it is every table
    whose name stands anywhere in the text.
    """
    known = [*tables_of(store, epoch), RESULTS]
    try:
        with shared.one() as connection:
            return {name.lower() for name in connection.get_table_names(text)}
    except duckdb.Error:
        lower = text.lower()
        return {name.lower() for name in known if name.lower() in lower}


def _read_table(store: StoreReader, name: str, epoch: int, empty: pa.Table) -> pa.Table:
    found = read_table(store, name, epoch)
    return found if found.num_rows else empty


def read_results(
    store: StoreReader, epoch: int, streams: Mapping[str, Any] | None = None
) -> pa.Table:
    """All recorded results up to an epoch, in the columns of all streams together; `streams` are
    those of a writer, which notes a stream in the store when it has its first result."""
    streams = {**store.declared(epoch).get("streams", {}), **(streams or {})}
    with store.hold() as held:  # else the oldest could be trimmed before it is read
        return unite_results(streams, store.results(held.first_epoch + 1, epoch, held))


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
