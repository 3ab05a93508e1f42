"""Selections: what one load of the data source reads, its columns as Spark's types, its filters.

A selection is a table at an epoch or results of epochs: a small value that travels to executors;
there it reads the store's files only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from itertools import pairwise
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark_filters
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

from headgate.durability.reader import StoreReader
from headgate.errors import InputError
from headgate.io import local_folder
from headgate.query.store_tables import ALL_STREAMS, of_stream, read_table, shards_of, slots_of
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
        store = open_held(self.path, self.held)
        shards = shards_of(store, self.table, self.epoch)
        if shards is not None:
            return NumberRange(0, shards).split(partitions or shards)
        slots = slots_of(store, self.table, self.epoch)
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


# --- filters --------------------------------------------------------------------------------------
# Filters that Spark hands to the reader, applied to Arrow batches with Spark's own meaning.
#
# A filter is taken over only when Arrow can give exactly Spark's answer; any other goes back to
# Spark. Masks are three-valued: null means unknown, and an unknown row is dropped, also under
# NOT.


_COMPARISONS: dict[type, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    spark_filters.EqualTo: pc.equal,
    spark_filters.GreaterThan: pc.greater,
    spark_filters.GreaterThanOrEqual: pc.greater_equal,
    spark_filters.LessThan: pc.less,
    spark_filters.LessThanOrEqual: pc.less_equal,
}
_TEXT_SEARCHES: dict[type, Callable[[pa.Array, str], pa.Array]] = {
    spark_filters.StringStartsWith: pc.starts_with,
    spark_filters.StringEndsWith: pc.ends_with,
    spark_filters.StringContains: pc.match_substring,
}
# Spark orders NaN above every number and equal to itself.
_TRUE_FOR_NAN_COLUMN = (spark_filters.GreaterThan, spark_filters.GreaterThanOrEqual)


def is_supported(condition: spark_filters.Filter, schema: pa.Schema) -> bool:
    """Whether `select_rows` gives exactly Spark's answer for this filter."""
    if isinstance(condition, spark_filters.Not):
        return is_supported(condition.child, schema)
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.names:
        return False
    return _is_answerable(condition, schema.field(attribute[0]).type)


def select_rows(
    batch: pa.RecordBatch, conditions: Sequence[spark_filters.Filter]
) -> pa.RecordBatch:
    """The rows for which every condition is true."""
    if not conditions:
        return batch
    return batch.filter(reduce(pc.and_kleene, (_mask(each, batch) for each in conditions)))


def _is_answerable(condition: spark_filters.Filter, kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return False
    if isinstance(condition, (spark_filters.IsNull, spark_filters.IsNotNull)):
        return True
    if type(condition) in _TEXT_SEARCHES:
        return pa.types.is_string(kind) and isinstance(getattr(condition, "value", None), str)
    if isinstance(condition, spark_filters.In):
        # Spark tells 0.0 from -0.0 in some forms of IN and not in others; it may decide itself.
        values = [value for value in condition.value if value is not None]
        return not pa.types.is_floating(kind) and all(_fits(value, kind) for value in values)
    if isinstance(condition, spark_filters.EqualNullSafe):
        return condition.value is None or _fits(condition.value, kind)
    return type(condition) in _COMPARISONS and _fits(getattr(condition, "value", None), kind)


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None or isinstance(value, bool) != pa.types.is_boolean(kind):
        return False
    if isinstance(value, datetime):
        # A time without a zone is not an instant, and only Spark knows the session's zone.
        return pa.types.is_timestamp(kind) and value.tzinfo is not None
    if isinstance(value, date) != pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return False
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
        return False
    return True


def _mask(condition: spark_filters.Filter, batch: pa.RecordBatch) -> pa.Array:
    if isinstance(condition, spark_filters.Not):
        return pc.invert(_mask(condition.child, batch))
    column = batch.column(getattr(condition, "attribute", ("",))[0])
    if isinstance(condition, spark_filters.IsNull):
        return pc.is_null(column)
    if isinstance(condition, spark_filters.IsNotNull):
        return pc.is_valid(column)
    if isinstance(condition, spark_filters.In):
        return _mask_in(column, condition.value)
    if isinstance(condition, spark_filters.EqualNullSafe):
        if condition.value is None:
            return pc.is_null(column)
        same = _compare(spark_filters.EqualTo, column, condition.value)
        return pc.fill_null(same, False)
    value = getattr(condition, "value", None)
    if type(condition) in _TEXT_SEARCHES:
        return _TEXT_SEARCHES[type(condition)](column, str(value))
    return _compare(type(condition), column, value)


def _compare(comparison: type, column: pa.Array, value: Any) -> pa.Array:
    if isinstance(value, float) and math.isnan(value):
        return _compare_to_nan(comparison, column)
    mask = _COMPARISONS[comparison](column, pa.scalar(value, column.type))
    if pa.types.is_floating(column.type) and comparison in _TRUE_FOR_NAN_COLUMN:
        mask = pc.or_(mask, pc.is_nan(column))
    return mask


def _compare_to_nan(comparison: type, column: pa.Array) -> pa.Array:
    is_nan = pc.is_nan(column)
    if comparison is spark_filters.LessThan:
        return pc.invert(is_nan)
    if comparison is spark_filters.LessThanOrEqual:
        return pc.or_(is_nan, pc.invert(is_nan))
    if comparison is spark_filters.GreaterThan:
        return pc.and_(is_nan, pc.invert(is_nan))
    return is_nan


def _mask_in(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    known = pa.array([value for value in values if value is not None], column.type)
    found = pc.is_in(column, value_set=known)
    unknown = pa.scalar(None, pa.bool_())
    if len(known) < len(values):
        # With a null in the list a value that is not found may still be equal to it.
        found = pc.if_else(found, found, unknown)
    return pc.if_else(pc.is_null(column), unknown, found)
