"""Selections: what one load of the data source reads, and its columns in the types of Spark.

A selection is a table at an epoch or results of epochs: a small value that travels to executors;
there it reads the store's files only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

from headgate.durability.reader import StoreReader
from headgate.errors import InputError
from headgate.io import local_folder
from headgate.query.store_tables import ALL_STREAMS, of_stream, read_table, slots_of
from headgate.state.schema import Schema
from headgate.state.types import ColumnType

BATCH_ROWS_MAX = 32_768
SLOTS_PER_PARTITION = 500_000
PARTITIONS_MAX = 32


@dataclass(frozen=True)
class NumberRange:
    """Numbers from `first` up to, not including, `end`: slots of a table or epochs of results."""

    first: int
    end: int

    def split(self, parts: int) -> list[NumberRange]:
        """At most `parts` ranges of nearly one size that together are this one."""
        count = max(1, min(parts, self.end - self.first))
        bounds = [self.first + (self.end - self.first) * i // count for i in range(count + 1)]
        return [NumberRange(first, end) for first, end in pairwise(bounds)]


@dataclass(frozen=True)
class Held:
    """From this epoch on the store keeps everything for a selection; `seconds`: for so long."""

    first_epoch: int
    seconds: float | None = None  # None: for as long as the process that took the hold lives


class Selection(Protocol):
    """What the readers need of a selection."""

    def hold_on(self) -> None:
        """Have the store keep what is selected for some more time."""
        ...

    def ranges(self, partitions: int | None) -> list[NumberRange]:
        """The shares to read in parallel."""
        ...

    def read(self, share: NumberRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """One share, in the columns and types of the schema."""
        ...


@dataclass(frozen=True)
class TableSelection:
    """The rows of one table at one epoch."""

    path: str
    table: str
    epoch: int
    held: Held | None = None

    def hold_on(self) -> None:
        hold_on(self.path, self.held)

    def ranges(self, partitions: int | None) -> list[NumberRange]:
        slots = slots_of(open_held(self.path, self.held), self.table, self.epoch)
        return NumberRange(0, slots).split(partitions or _partitions(slots, SLOTS_PER_PARTITION))

    def read(self, share: NumberRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows = read_table(
            open_held(self.path, self.held),
            self.table,
            self.epoch,
            slot_range=(share.first, share.end),
            columns=schema.names,
        )
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS_MAX):
            yield conform(batch, schema)


@dataclass(frozen=True)
class ResultsSelection:
    """The results of one stream, or of all, of the epochs in a range."""

    path: str
    stream: str
    epochs: NumberRange
    held: Held | None = None

    def hold_on(self) -> None:
        hold_on(self.path, self.held)

    def ranges(self, partitions: int | None) -> list[NumberRange]:
        return self.epochs.split(partitions or PARTITIONS_MAX)

    def read(self, share: NumberRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if share.first >= share.end:
            return
        store = open_held(self.path, self.held)
        streams = store.declared().get("streams", {})
        for epoch, results in store.results(share.first, share.end - 1):
            batch = of_stream(results, self.stream, streams, epoch)
            for first in range(0, batch.num_rows, BATCH_ROWS_MAX):
                part = batch.slice(first, BATCH_ROWS_MAX)
                numbers = pa.repeat(pa.scalar(epoch, pa.int64()), part.num_rows)
                yield conform(part.append_column("epoch", numbers), schema)


def open_held(path: str, held: Held | None) -> StoreReader:
    """Open a store to read what was held for this reader."""
    return StoreReader.open(path, held_from=None if held is None else held.first_epoch)


def hold_on(path: str, held: Held | None) -> None:
    """Take a hold over for its time once more."""
    if held is not None and held.seconds is not None:
        open_held(path, held).hold_for(held.seconds)


def _partitions(count: int, per_partition: int) -> int:
    return max(1, min(PARTITIONS_MAX, -(-count // per_partition)))


def local_path(path: str | None) -> str:
    """The absolute path of a store; executors work in folders of their own."""
    if not path:
        raise InputError('no store: give its path, as in .load("bank")')
    address = urlsplit(path)
    if address.scheme == "file":
        return os.path.abspath(unquote(address.path))
    if address.scheme and "://" in path:
        raise InputError(
            f"{path}: a store is a folder that every executor can open as a file, "
            f"not an address in {address.scheme}"
        )
    return local_folder(path)


def table_schema(store: StoreReader, table: str, epoch: int | None = None) -> Schema:
    """The columns of a table at an epoch, or an error that lists the tables there were."""
    declared = _declared(store, "tables", table, epoch)
    return Schema.parse(declared["columns"], f"table {table!r}")


def results_schema(store: StoreReader, stream: str) -> Schema:
    """The columns of a stream's results; for "*" those of all streams together."""
    if stream != ALL_STREAMS:
        return _parse_results(stream, _declared(store, "streams", stream))
    streams = store.declared().get("streams", {})
    if not streams:
        raise InputError(f"{store.path} has no streams yet: make a sink or run a transaction first")
    parsed = [(name, _parse_results(name, declared)) for name, declared in streams.items()]
    return merge_schemas(parsed)


def _parse_results(stream: str, declared: dict[str, Any]) -> Schema:
    return Schema.parse(declared["results"], f"stream {stream!r}", structs=True)


def _declared(
    store: StoreReader, section: str, name: str, epoch: int | None = None
) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = store.declared(epoch).get(section, {})
    if name not in known:
        names = ", ".join(sorted(known)) or "none yet"
        when = "" if epoch is None else f" at epoch {epoch}"
        raise InputError(
            f"no {section[:-1]} {name!r} in the store{when}; it has the {section}: {names}"
        )
    return known[name]


# --- columns between Headgate and Spark -----------------------------------------------------------
# Spark refuses a batch whose Arrow schema differs in anything, so every batch passes `conform`.


_PLAIN: dict[str, spark_types.DataType] = {
    "boolean": spark_types.BooleanType(),
    "int": spark_types.IntegerType(),
    "bigint": spark_types.LongType(),
    "float": spark_types.FloatType(),
    "double": spark_types.DoubleType(),
    "string": spark_types.StringType(),
    "timestamp": spark_types.TimestampType(),
    "date": spark_types.DateType(),
}


def spark_schema(schema: Schema) -> spark_types.StructType:
    """The columns of a declaration as Spark's own schema."""
    fields = [spark_types.StructField(column.name, _spark_type(column.type)) for column in schema]
    return spark_types.StructType(fields)


def _spark_type(kind: ColumnType) -> spark_types.DataType:
    if kind.kind == "decimal":
        return spark_types.DecimalType(kind.precision, kind.scale)
    if kind.element is not None:
        return spark_types.ArrayType(_spark_type(kind.element))
    if kind.fields:
        return spark_schema(Schema(kind.fields))
    return _PLAIN[kind.kind]


def arrow_schema(schema: spark_types.StructType) -> pa.Schema:
    """The Arrow schema in which Spark wants the batches of a frame."""
    return to_arrow_schema(schema, timezone="UTC")


def require_columns(
    asked: spark_types.StructType, offered: spark_types.StructType, what: str
) -> None:
    """Refuse a schema given with `.schema(...)` that the store does not hold."""
    types = {field.name: field.dataType for field in offered}
    for field in asked:
        if field.name not in types:
            raise InputError(
                f"{what}: no column {field.name!r}; the columns are: {', '.join(types)}"
            )
        if field.dataType != types[field.name]:
            raise InputError(
                f"{what}: column {field.name!r} is {types[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after the load"
            )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with just the columns of the schema, in its types; a missing one is null."""
    columns = [_column(batch, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = batch.schema.get_field_index(field.name)
    if place < 0:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(place)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == field.type else pc.cast(column, field.type)


def merge_schemas(schemas: Iterable[tuple[str, Schema]]) -> Schema:
    """All columns of several streams, each once; one name with two types is refused."""
    merged: dict[str, tuple[str, ColumnType]] = {}
    columns = []
    for stream, schema in schemas:
        for column in schema:
            first, kind = merged.setdefault(column.name, (stream, column.type))
            if kind != column.type:
                raise InputError(
                    f"column {column.name!r} is {kind} in stream {first!r} and {column.type} in "
                    f"stream {stream!r}; read these streams one by one"
                )
            if first == stream:
                columns.append(column)
    return Schema(tuple(columns))
