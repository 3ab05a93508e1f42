"""Events: whatever a user hands in (Arrow, pandas, Spark, dicts) as one Arrow table.

A carried column is copied into every result, whatever its outcome. One that a transaction declares
has the declared type. Any other has the type in which it first came, and keeps it for as long as
the engine, or its store, knows the stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import (
    DeclarationError,
    InputError,
    StoreError,
    describe,
    did_you_mean,
    not_among,
    shown,
)
from headgate.state.fitting import conform, marked, one_array, unmarked_type
from headgate.state.objects import NULL_FAULT, are_plain, fitted, is_missing
from headgate.state.schema import Schema, split_list
from headgate.state.table import Table
from headgate.state.types import Column, ColumnType, has_struct, logical_value
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
        return _collected(data, where)
    if type(data).__module__.split(".")[0] == "pandas" and hasattr(data, "columns"):
        table = _from_pandas(data, schema, where)
        _refuse_lost(len(data), table, where)
        return table
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
    table = complete(from_dicts(items, schema, where, absent))
    _refuse_lost(len(items), table, where)
    return table


def _collected(frame: Any, where: str) -> pa.Table:
    """The rows of a Spark frame, whose session may have ended since it was made."""
    try:
        if getattr(frame, "isStreaming", False):
            raise InputError(f"{where}: a streaming frame goes through writeStream.foreachBatch")
        return frame.toArrow()
    except (OSError, EOFError, AttributeError) as error:  # the last one of a session that stopped
        why = "its session was stopped" if isinstance(error, AttributeError) else describe(error)
        raise StoreError(
            f"{where}: the Spark of this frame does not answer ({why}): begin a new session, and "
            "read the frame anew"
        ) from error


def _refuse_lost(count: int, table: pa.Table, where: str) -> None:
    """Refuse rows of no columns: an Arrow table does not know how many there are."""
    if count and not table.num_columns:
        raise InputError(f"{where}: {count} of them have no column at all")


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


def has_default(column: Column) -> bool:
    """Whether a row may say nothing of a column."""
    return column.nullable or column.default is not None


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
        elif has_default(column) and column.name not in table.key:
            columns.append(_repeated(column, given.num_rows))
        else:
            require_columns(given, [column.name], where)
    return pa.table(columns, names=list(table.schema.names))


def defaults_of(table: Table) -> dict[str, Any]:
    """What a row has in the columns of which it says nothing, if not None; a key has no default."""
    return {
        column.name: logical_value(column.type, column.default)
        for column in table.schema
        if column.default is not None and column.name not in table.key
    }


def _repeated(column: Column, count: int) -> pa.Array:
    if column.default is None:
        return pa.nulls(count, column.type.arrow)
    value = pa.scalar(logical_value(column.type, column.default), column.type.arrow)
    return pa.repeat(value, count)


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


# Names with their types; None is the type of a column that had nothing but nulls so far.
Carried = tuple[tuple[str, ColumnType | None], ...]

_WIDER = {"int": ("bigint",), "float": ("double",)}
_KINDS = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "int"),
    (pa.types.is_int16, "int"),
    (pa.types.is_int32, "int"),
    (pa.types.is_uint8, "int"),
    (pa.types.is_uint16, "int"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_uint32, "bigint"),
    (pa.types.is_float16, "float"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_date32, "date"),
)


def parse_carry(carry: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names in `carry=`, each once.

    >>> parse_carry("event_id, `shop id`")
    ('event_id', 'shop id')
    """
    given: Any = carry
    if given is not None and not isinstance(given, str | Sequence):
        raise InputError(f"carry: {shown(given)} is not a list of event columns")
    words: list[Any] = split_list(carry) if isinstance(carry, str) else list(carry or ())
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise InputError(f"carry: {shown(carry)} is not a list of event columns")
    names = tuple(dict.fromkeys(word.strip().strip("`") for word in words))
    for name in names:
        if name.startswith("__"):
            raise InputError(f"carry: column {name!r}: names in __ are reserved; rename it")
    return names


def carried_type(kind: pa.DataType, name: str) -> ColumnType | None:
    """The type of a result column for values of an Arrow type; None for one of nulls only."""
    if pa.types.is_null(kind):
        return None
    found = _column_type(kind)
    if found is not None and _can_be_declared(found):
        return found
    raise InputError(
        f"carry: column {name!r} is {kind}, which no result column can be; cast it before it "
        "reaches Headgate, to a string for instance"
    )


def _column_type(kind: pa.DataType) -> ColumnType | None:
    kind = unmarked_type(kind)
    if pa.types.is_dictionary(kind):
        return _column_type(kind.value_type)
    if pa.types.is_decimal128(kind):
        return ColumnType("decimal", kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _column_type(kind.value_type)
        return None if element is None else ColumnType("array", element=element)
    if pa.types.is_struct(kind):
        fields = [(field.name, _column_type(field.type)) for field in kind]
        found = tuple(Column(name, one) for name, one in fields if one is not None)
        return ColumnType("struct", fields=found) if found and len(found) == len(fields) else None
    return next((ColumnType(word) for is_kind, word in _KINDS if is_kind(kind)), None)


def _can_be_declared(kind: ColumnType) -> bool:
    """Whether the manifest can say this type: not more digits or deeper than it knows."""
    declared = Schema((Column("one", kind),))
    try:
        return Schema.parse(declared.ddl, structs=True) == declared
    except DeclarationError:
        return False


def carried_kinds(names: Sequence[str], given: pa.Schema | None) -> tuple[pa.DataType | None, ...]:
    """The Arrow types in which these columns come."""
    places = [-1 if given is None else given.get_field_index(name) for name in names]
    return tuple(
        None if given is None or place < 0 else given.field(place).type for place in places
    )


def resolve_carry(
    names: Sequence[str], declared: Schema, known: Mapping[str, ColumnType], given: pa.Schema | None
) -> Carried:
    """The carried columns with their types: declared, known from before, or as they come."""
    found: list[tuple[str, ColumnType | None]] = []
    for name in names:
        if name in declared:
            found.append((name, declared[name].type))
            continue
        came = None
        if given is not None and name in given.names:
            came = carried_type(given.field(name).type, name)
        before = known.get(name)
        if before is not None and came not in (None, before):
            _require_fit(name, came, before)
        found.append((name, before or came))
    return tuple(found)


def _require_fit(name: str, came: ColumnType | None, before: ColumnType) -> None:
    if came is None or before.kind not in _WIDER.get(came.kind, ()):
        raise InputError(
            f"carry: column {name!r} is {came} here and {before} in the results so far; "
            f"cast it to {before}, or carry it under another name"
        )


def carried_array(
    column: pa.ChunkedArray | pa.Array, kind: ColumnType | None, name: str
) -> pa.Array:
    """A carried column of the events in its type; a value that does not fit it is null."""
    if kind is None:
        return pa.nulls(len(column))
    if not has_struct(kind):
        return conform(column, kind, f"events: column {name!r}")
    array = one_array(column)
    return array if array.type == kind.arrow else array.cast(kind.arrow)


def with_nulls(held: pa.Table, names: Sequence[str]) -> pa.Table:
    """Held events with these columns: they may have come before anyone asked to carry them."""
    for name in names:
        if name not in held.column_names:
            held = held.append_column(name, pa.nulls(held.num_rows))
    return held


def describe_carry(carried: Carried) -> list[list[Any]]:
    """The carried columns as JSON."""
    return [[name, None if kind is None else str(kind)] for name, kind in carried]


def read_carry(described: Sequence[Sequence[Any]]) -> Carried:
    """The inverse of `describe_carry`."""
    return tuple(
        (name, None if kind is None else Schema.parse(f"one {kind}", structs=True)["one"].type)
        for name, kind in described
    )
