"""Constraints: what a table promises over several rows: unique columns, references to other rows.

A constraint is a value with a name, which is the reason of every transaction that would break it.
It must hold when a transaction ends; in between it may be broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.errors import DeclarationError, shown
from headgate.state.schema import Schema, split_list
from headgate.state.types import Column, ColumnType

# Values that are equal exactly when their stored words are: keys, and columns of constraints.
KEY_KINDS = ("int", "bigint", "string", "date", "timestamp", "decimal", "boolean")


@dataclass(frozen=True)
class Unique:
    """No two rows of a table have the same values in these columns."""

    table: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"unique {self.table}: {', '.join(self.columns)}"

    @property
    def reason(self) -> str:
        return f"unique failed: {self.table}: {', '.join(self.columns)}"


@dataclass(frozen=True)
class Reference:
    """The values in these columns of every row are the key of a row of another table."""

    table: str
    columns: tuple[str, ...]
    parent: str

    @property
    def name(self) -> str:
        return f"reference {self.table}.{', '.join(self.columns)}: {self.parent}"

    @property
    def reason(self) -> str:
        return f"reference failed: {self.table}.{', '.join(self.columns)}: {self.parent}"


Constraint = Unique | Reference


def parse_unique(name: str, given: Any, schema: Schema, where: str) -> tuple[Unique, ...]:
    """`unique=["email", ("street", "number")]`: each item a column or several together."""
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, (list, tuple)):
        raise DeclarationError(f"{where}: unique is a list of columns, not {shown(given)}")
    return tuple(
        Unique(name, _columns(item, schema, f"{where}: unique")) for item in dict.fromkeys(items)
    )


def parse_references(name: str, given: Any, schema: Schema, where: str) -> tuple[Reference, ...]:
    """`references={"customer": customers}`: a column, or several together, to a table's key."""
    if not isinstance(given, Mapping):
        raise DeclarationError(
            f"{where}: references is a dict {{column: table}}, not {type(given).__name__}"
        )
    found = []
    for item, parent in given.items():
        columns = _columns(item, schema, f"{where}: references")
        if isinstance(parent, str):
            found.append(Reference(name, columns, parent))
        elif hasattr(parent, "key_columns"):
            check_reference(columns, schema, parent.name, parent.key_columns, where)
            found.append(Reference(name, columns, parent.name))
        else:
            raise DeclarationError(
                f"{where}: references: {parent!r} is not a table; hand in the table, or its name"
            )
    return tuple(found)


def check_reference(
    columns: Sequence[str], schema: Schema, parent: str, key: Sequence[Column], where: str
) -> None:
    """Refuse columns that cannot hold the parent's key."""
    label = f"{where}: references {parent!r} by {', '.join(columns)}"
    if len(columns) != len(key):
        raise DeclarationError(
            f"{label}: its key has {len(key)} column(s): {', '.join(one.name for one in key)}"
        )
    for name, column in zip(columns, key, strict=True):
        if not fits_key(schema[name].type, column.type):
            raise DeclarationError(
                f"{label}: column {name!r} is a {schema[name].type}, "
                f"the key {parent}.{column.name} a {column.type}"
            )


def fits_key(given: ColumnType, key: ColumnType) -> bool:
    """Whether every value of the given column is a value of the key."""
    if given.kind == "decimal" and key.kind == "decimal":
        return given.scale == key.scale and given.precision <= key.precision
    return given.kind == key.kind or (given.kind, key.kind) == ("int", "bigint")


def _columns(item: Any, schema: Schema, where: str) -> tuple[str, ...]:
    names: Iterable[Any] = split_list(item) if isinstance(item, str) else item
    if not isinstance(names, (list, tuple)) or not names:
        raise DeclarationError(f"{where}: name a column or several, not {shown(item)}")
    found = tuple(name.strip() if isinstance(name, str) else name for name in names)
    for name in found:
        column = schema.require(name, where)
        if column.type.kind not in KEY_KINDS:
            raise DeclarationError(
                f"{where}: column {name!r} is a {column.type}; "
                f"it must be one of: {', '.join(KEY_KINDS)}"
            )
        if found.count(name) > 1:
            raise DeclarationError(f"{where}: column {name!r} is named twice")
    return found
