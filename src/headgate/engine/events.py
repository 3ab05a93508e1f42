"""Events: whatever a user hands in (Arrow, pandas, Spark, dicts) as one Arrow table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import InputError, did_you_mean, not_among, shown
from headgate.state.fitting import marked
from headgate.state.objects import NULL_FAULT, are_plain, fitted, is_missing
from headgate.state.schema import Column, ColumnType, Schema, logical_value
from headgate.state.table import Table
from headgate.transactions import Transaction

ACCEPTED = "an Arrow table, record batches, a pandas frame, a Spark frame or a list of dicts"
Complete = Callable[[pa.Table], pa.Table]
_UNREADABLE = (pa.ArrowException, TypeError, ValueError, OverflowError)


def as_is(table: pa.Table) -> pa.Table:
    """Nothing is to be added."""
    return table


def as_table(
    data: Any,
    schema: Schema,
    where: str,
    complete: Complete = as_is,
    absent: Mapping[str, Any] | None = None,
) -> pa.Table:
    """The data as an Arrow table; dicts take their types from the schema.

    Dicts say only what they have to say: `complete` adds columns that none of them has, `absent`
    holds what a dict has in a column that others have and it has not (else null).
    """
    try:
        return _as_table(data, schema, where, complete, absent or {})
    except pa.ArrowException as error:
        raise InputError(f"{where}: cannot be read as one Arrow table: {error}") from None


def _as_table(
    data: Any, schema: Schema, where: str, complete: Complete, absent: Mapping[str, Any]
) -> pa.Table:
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
    if type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data, schema, where)
    is_column = type(data).__name__ == "Series"  # of pandas or Polars: it has no columns
    if hasattr(data, "__arrow_c_stream__") and not is_column:
        return pa.table(data)
    if is_column or isinstance(data, (Mapping, str, bytes)) or not isinstance(data, Iterable):
        raise InputError(f"{where}: cannot read a {type(data).__name__}; hand in {ACCEPTED}")
    items = list(data)
    if items and all(isinstance(item, pa.RecordBatch) for item in items):
        return pa.Table.from_batches(items)
    if items and all(isinstance(item, pa.Table) for item in items):
        return pa.concat_tables(items)
    _refuse_others(items, where)
    return complete(from_dicts(items, schema, where, absent))


def _refuse_others(items: Iterable[Any], where: str) -> None:
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            kind = type(item).__name__
            raise InputError(f"{where}: item {place} is a {kind}; hand in {ACCEPTED}")


def from_dicts(
    rows: Sequence[Mapping[str, Any]],
    schema: Schema,
    where: str,
    absent: Mapping[str, Any] = MappingProxyType({}),
) -> pa.Table:
    """Dicts as a table: declared columns in their declared type, others as Arrow infers them."""
    present = dict.fromkeys(name for row in rows for name in row)
    for name in present:
        if not isinstance(name, str):
            raise InputError(f"{where}: a column's name is a text, not {shown(name)}")
    names = [name for name in schema.names if name in present or not rows]
    names += [name for name in present if name not in schema]
    arrays = {}
    for name in names:
        kind = schema[name].type if name in schema else None
        other = absent.get(name)
        arrays[name] = _column([row.get(name, other) for row in rows], kind, name, where)
    return pa.table(arrays)


def _column(values: list[Any], kind: ColumnType | None, name: str, where: str) -> pa.Array:
    """Python values as a column of the declared type; what does not fit is its event's fault."""
    if kind is None:
        return _undeclared(values)
    if are_plain(values, kind):
        with contextlib.suppress(*_UNREADABLE):
            return pa.array(values, kind.arrow)
    found, faults = [], np.zeros(len(values), np.uint8)
    for row, value in enumerate(values):
        try:
            fit, faults[row] = fitted(value, kind)
        except TypeError as error:
            raise InputError(
                f"{where}: column {name!r} should be {kind}; in row {row} {error}"
            ) from None
        found.append(fit)
    array = pa.array(found, kind.arrow)
    return marked(array, faults) if faults.max(initial=0) > NULL_FAULT else array


def _undeclared(values: list[Any]) -> pa.Array:
    """Values of a column that no event declares; those of no one type are taken as texts."""
    try:
        return pa.array(values)
    except _UNREADABLE:
        texts = [None if value is None else str(value) for value in values]
    return _column(texts, ColumnType("string"), "", "")


def _from_pandas(frame: Any, schema: Schema, where: str) -> pa.Table:
    """A frame's columns: what pandas takes for missing (None, NaN, NaT, NA) is null."""
    arrays, names = [], [str(name) for name in frame.columns]
    for place, name in enumerate(names):
        series = frame.iloc[:, place]
        kind = schema[name].type if name in schema else None
        array = None
        if kind is None or series.dtype != object:
            with contextlib.suppress(*_UNREADABLE):
                array = pa.array(series, from_pandas=True)
        if array is None:
            values = [None if is_missing(value) else value for value in series]
            array = _column(values, kind, name, where)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, names=names)


def require_columns(table: pa.Table, names: Iterable[str], where: str) -> None:
    """Refuse a table that lacks one of the columns, or has it twice, naming those it has."""
    wanted, found = list(names), table.column_names
    if all(found.count(name) == 1 for name in wanted):
        return
    twice = [name for name in wanted if found.count(name) > 1]
    if twice:
        raise InputError(
            f"{where}: the column {twice[0]!r} is there {found.count(twice[0])} times; "
            f"drop or rename the others; the columns are: {', '.join(found)}"
        )
    missing = [name for name in wanted if name not in found]
    if missing:
        hint = did_you_mean(missing[0], [name for name in found if name not in wanted])
        raise InputError(
            f"{where}: no column {', '.join(map(repr, missing))}; "
            f"the columns are: {', '.join(found)}{hint}"
        )


def complete_rows(given: pa.Table, table: Table, where: str) -> pa.Table:
    """The table's columns of what was handed in; one that is not there takes its default."""
    for name in given.column_names:
        if name not in table.schema:
            among = not_among(name, table.schema.names, "columns")
            raise InputError(f"{where}: no column {name!r} in the table; {among}")
    columns = []
    for column in table.schema:
        if column.name in given.column_names:
            require_columns(given, [column.name], where)
            columns.append(given.column(column.name))
        elif column.default is not None and column.name not in table.key:
            columns.append(_repeated(column, given.num_rows))
        else:
            require_columns(given, [column.name], where)
    return pa.table(columns, names=list(table.schema.names))


def defaults_of(table: Table) -> dict[str, Any]:
    """What a row has in the columns of which it says nothing; a key has no default."""
    return {
        column.name: logical_value(column.type, column.default)
        for column in table.schema
        if column.default is not None and column.name not in table.key
    }


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
