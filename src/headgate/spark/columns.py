"""Columns between Headgate and Spark: schemas, and batches in exactly the shape Spark asks for.

Spark refuses a batch whose Arrow schema differs in anything, so every batch passes `conform`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark_types
from pyspark.sql.pandas.types import to_arrow_schema

from headgate.errors import InputError
from headgate.state.schema import Schema
from headgate.state.types import ColumnType

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
