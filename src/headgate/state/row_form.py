"""Row forms: what a declaration says of the rows of a table: its key, the defaults of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from headgate.errors import DeclarationError, shown
from headgate.state.ranges import KEY_KINDS
from headgate.state.schema import Schema, split_list
from headgate.state.types import default_value


def parse_key(key: str | Iterable[str], schema: Schema, where: str) -> tuple[str, ...]:
    given: Any = key
    names: Any = split_list(key) if isinstance(key, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(
            f"{where}: a key is a column name or a list of them, not {shown(key)}"
        )
    names = [name.strip() for name in names]
    if not names or not all(names):
        raise DeclarationError(f"{where}: a table needs a key")
    for name in names:
        column = schema.require(name, f"{where}: key")
        if column.type.kind not in KEY_KINDS:
            raise DeclarationError(
                f"{where}: key column {name!r} is a {column.type}; "
                f"a key is one of: {', '.join(KEY_KINDS)}"
            )
        if column.nullable:
            raise DeclarationError(
                f"{where}: key column {name!r} is declared NULL, and a key is never null"
            )
        if names.count(name) > 1:
            raise DeclarationError(f"{where}: key column {name!r} is named twice")
    return tuple(names)


def with_defaults(schema: Schema, defaults: Mapping[str, Any], where: str) -> Schema:
    given: Any = defaults
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{where}: defaults is a dict {{column: value}}, not {shown(given)}")
    for name in defaults:
        schema.require(name, f"{where}: defaults")
    columns = []
    for column in schema:
        if column.name in defaults:
            place = f"{where}: column {column.name!r}"
            given = defaults[column.name]
            is_null = column.nullable and given is None
            value = None if is_null else default_value(column.type, given, place)
            column = replace(column, default=value)
        columns.append(column)
    return Schema(tuple(columns))


def refuse_arrays(schema: Schema, where: str) -> None:
    for column in schema:
        if column.type.element is not None:
            raise DeclarationError(
                f"{where}: column {column.name!r} is an array; arrays belong in events, not in rows"
            )
