"""Events: whatever a user hands in (Arrow, pandas, Spark, dicts) as one Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headgate.errors import InputError, not_among
from headgate.state.schema import Column, Schema, logical_value
from headgate.state.table import Table
from headgate.transactions import Transaction

ACCEPTED = "an Arrow table, record batches, a pandas frame, a Spark frame or a list of dicts"


def as_table(data: Any, schema: Schema, where: str) -> pa.Table:
    """The data as an Arrow table; dicts take their types from the schema."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if hasattr(data, "toArrow"):  # a Spark frame
        if getattr(data, "isStreaming", False):
            raise InputError(f"{where}: a streaming frame goes through writeStream.foreachBatch")
        return data.toArrow()
    if type(data).__module__.split(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, (Mapping, str, bytes)) or not isinstance(data, Iterable):
        raise InputError(f"{where}: cannot read a {type(data).__name__}; hand in {ACCEPTED}")
    return _from_items(list(data), schema, where)


def _from_items(items: list[Any], schema: Schema, where: str) -> pa.Table:
    if items and all(isinstance(item, pa.RecordBatch) for item in items):
        return pa.Table.from_batches(items)
    if items and all(isinstance(item, pa.Table) for item in items):
        return pa.concat_tables(items)
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            kind = type(item).__name__
            raise InputError(f"{where}: item {place} is a {kind}; hand in {ACCEPTED}")
    return from_dicts(items, schema, where)


def from_dicts(rows: Sequence[Mapping[str, Any]], schema: Schema, where: str) -> pa.Table:
    """Dicts as a table: declared columns in their declared type, others as Arrow infers them."""
    present = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in schema.names if name in present or not rows]
    names += [name for name in present if name not in schema]
    arrays = {}
    for name in names:
        kind = schema[name].type.arrow if name in schema else None
        values = [row.get(name) for row in rows]
        _refuse_fractions(values, name, schema, where)
        try:
            arrays[name] = pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
            declared = schema[name].type if name in schema else "one type"
            raise InputError(f"{where}: column {name!r} should be {declared}: {error}") from None
    return pa.table(arrays)


def _refuse_fractions(values: list[Any], name: str, schema: Schema, where: str) -> None:
    """Arrow would cut 1.5 down to 1 for an integer column without a word."""
    if name not in schema or schema[name].type.kind not in ("int", "bigint"):
        return
    for value in values:
        if isinstance(value, (float, Decimal)) and value % 1 != 0:
            raise InputError(
                f"{where}: column {name!r} should be {schema[name].type}, not {value!r}"
            )


def require_columns(table: pa.Table, names: Iterable[str], where: str) -> None:
    """Refuse a table that lacks one of the columns, naming those it has."""
    found = table.column_names
    missing = [name for name in names if name not in found]
    if missing:
        among = not_among(missing[0], found, "columns")
        raise InputError(f"{where}: no column {', '.join(map(repr, missing))}; {among}")


def complete_rows(given: pa.Table, table: Table, where: str) -> pa.Table:
    """The table's columns of what was handed in; a missing one takes its default."""
    for name in given.column_names:
        if name not in table.schema:
            among = not_among(name, table.schema.names, "columns")
            raise InputError(f"{where}: no column {name!r} in the table; {among}")
    columns = []
    for column in table.schema:
        if column.name in given.column_names:
            found = given.column(column.name)
            if found.null_count and column.default is not None:
                value = logical_value(column.type, column.default)
                found = found.fill_null(pa.scalar(value, column.type.arrow))
            columns.append(found)
        elif column.default is not None and column.name not in table.key:
            columns.append(_repeated(column, given.num_rows))
        else:
            require_columns(given, [column.name], where)
    return pa.table(columns, names=list(table.schema.names))


def _repeated(column: Column, count: int) -> pa.Array:
    value = pa.scalar(logical_value(column.type, column.default), column.type.arrow)
    return pa.repeat(value, count)


def call_event(transaction: Transaction, columns: Mapping[str, Any]) -> pa.Table:
    """The one event of a call, given by keywords."""
    check_call(transaction, columns)
    return from_dicts([columns], transaction.event, f"call {transaction.name!r}")


def check_call(transaction: Transaction, columns: Mapping[str, Any]) -> None:
    """Refuse the one event of a call, given by keywords, when it has not just the columns."""
    event, where = transaction.event, f"call {transaction.name!r}"
    if len(columns) == len(event.columns) and all(one.name in columns for one in event):
        return
    unknown = [name for name in columns if name not in event]
    if unknown:
        among = not_among(unknown[0], event.names, "columns")
        raise InputError(f"{where}: no column {unknown[0]!r}; {among}")
    missing = [name for name in event.names if name not in columns]
    known = ", ".join(event.names)
    raise InputError(f"{where}: the column {missing[0]!r} is missing; an event has: {known}")
