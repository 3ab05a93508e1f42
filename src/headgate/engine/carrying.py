"""Carrying: event columns that are copied into every result, whatever its outcome.

A carried column that a transaction declares has the declared type. Any other has the type in which
it first came, and keeps it for as long as the engine, or its store, knows the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError, InputError, shown
from headgate.state.fitting import conform, one_array, unmarked_type
from headgate.state.schema import Column, ColumnType, Schema, has_struct, split_list

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
