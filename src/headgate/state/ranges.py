"""Ranges: the indexes that a table declares, and the rows that an event names by way of one.

An index orders rows by some columns, and those of equal columns by their keys: so the rows of a
range come in one order, whatever their slots; what is null comes behind all values. A range is a
value, which holds no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headgate.errors import DeclarationError, did_you_mean, shown
from headgate.state.schema import Schema, split_list

if TYPE_CHECKING:
    from headgate.state.table import Access, Table
    from headgate.state.types import Column

# Values that are equal exactly when their stored words are: keys, and columns of constraints.
KEY_KINDS = ("int", "bigint", "string", "date", "timestamp", "decimal", "boolean")
LIMIT_MAX = (1 << 63) - 1  # rows of a range, as kernels count them
INDEX_WORDS_MAX = 16  # columns of an index and of the key, see state/tree.py


@dataclass(frozen=True)
class Index:
    """The rows of a table in the order of these columns, then of its key; of none: by key alone."""

    table: str
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"index {self.table}: {', '.join(self.columns) or 'key'}"

    def words(self, key: Sequence[str]) -> tuple[str, ...]:
        """All columns that it is ordered by."""
        return (*self.columns, *key)


@dataclass(frozen=True)
class RowRange:
    """Rows that an index finds, from one bound to another, in its order or the reverse."""

    index: Index
    count: int  # of the index's first columns, which bounds are compared by
    descending: bool
    limit: int  # how many rows at most; -1: all

    @property
    def stated(self) -> tuple[Any, ...]:
        """All that was said of it, as plain values."""
        return (self.index.columns, self.count, self.descending, self.limit)


def words_of(column: Column) -> int:
    """How many words of an entry a column takes: whether it is null stands before its value."""
    return 1 + column.nullable


def bound_sizes(access: Access, span: RowRange) -> tuple[int, int]:
    """How many words both bounds of a range have together, which may be the same, and one has."""
    sizes = [words_of(column) for _, column in access.named]
    return sum(sizes), sum(sizes[: span.count])


def parse_index(
    name: str, given: Any, schema: Schema, key: Sequence[str], where: str
) -> tuple[Index, ...]:
    """`index=["customer", ("city", "ts")]`: each item a column or several together."""
    items = [given] if isinstance(given, str) else given
    if not isinstance(items, (list, tuple)):
        raise DeclarationError(f"{where}: index is a list of columns, not {shown(given)}")
    kinds = (*KEY_KINDS, "float", "double")
    found = [Index(name, named_columns(item, schema, f"{where}: index", kinds)) for item in items]
    for one in found:
        words = sum(map(words_of, map(schema.__getitem__, one.words(key))))
        if words > INDEX_WORDS_MAX:
            raise DeclarationError(
                f"{where}: {one.name}: with the key it has {words} columns (one that may be null "
                f"counts twice), an index has at most {INDEX_WORDS_MAX}"
            )
    return tuple(dict.fromkeys(found))


def bound_columns(given: str | Sequence[str], where: str) -> tuple[str, ...]:
    """The event columns of one bound."""
    names: Any = split_list(given) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not names:
        raise DeclarationError(
            f"{where}: a bound is an event column or several, not {shown(given)}"
        )
    return tuple(name.strip() if isinstance(name, str) else name for name in names)


def check_named(table: str, given: Iterable[Any], where: str) -> None:
    """DeclarationError where a function stands for a column of the event."""
    if any(map(callable, given)):
        raise DeclarationError(
            f"{where}: a function computes the key of one row: {table}.at(function), or of one for "
            f"each row of another parameter: {table}.each(function); here, name columns of the "
            "event"
        )


def check_limit(limit: Any, where: str) -> int:
    """The limit of a range; -1 for none."""
    if limit is None:
        return -1
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise DeclarationError(
            f"{where}: limit is a whole number from 1 to {LIMIT_MAX}, not {shown(limit)}"
        )
    return limit


def _named_index(table: Table, index: str | Sequence[str], where: str) -> Index:
    columns = bound_columns(index, where)
    for one in table.index:
        if one.columns == columns:
            return one
    if columns == table.key:
        return Index(table.name, ())
    raise DeclarationError(f"{where}: no index ({', '.join(columns)}); {_known_indexes(table)}")


def _known_indexes(table: Table) -> str:
    known = ", ".join(f"({', '.join(one.columns)})" for one in table.index)
    declared = f"the table has {known}" if known else "the table has none"
    return (
        f"{declared}, and its key ({', '.join(table.key)}); declare it: hg.Table(..., index=[...])"
    )


def where_index(
    table: Table,
    columns: Sequence[str],
    named: Mapping[str, str],
    index: str | Sequence[str] | None,
    where: str,
) -> tuple[Index, tuple[str, ...]]:
    """The index of a `where`, and the event columns in the order of its columns."""
    if index is not None:
        if named or not columns:
            raise DeclarationError(f"{where}: with index=, name the event's columns in its order")
        chosen = _named_index(table, index, where)
        if len(columns) > len(chosen.words(table.key)):
            raise DeclarationError(f"{where}: {chosen.name} has fewer columns than are named")
        return chosen, tuple(columns)
    if not columns and not named:
        raise DeclarationError(f"{where}: name a column of the table and of the event")
    given = {**{name: name for name in columns}, **named}
    for name in given:
        table.schema.require(name, where)
    candidates = [*table.index, Index(table.name, ())]
    candidates.sort(key=lambda one: len(one.columns) != len(given))
    for one in candidates:
        first = one.words(table.key)[: len(given)]
        if set(first) == set(given):
            return one, tuple(given[name] for name in first)
    raise DeclarationError(
        f"{where}: no index begins with {', '.join(given)}; {_known_indexes(table)}"
    )


def between_index(
    table: Table,
    low: Sequence[str],
    high: Sequence[str],
    index: str | Sequence[str] | None,
    where: str,
) -> Index:
    """The index of a `between`."""
    chosen = Index(table.name, ()) if index is None else _named_index(table, index, where)
    columns = chosen.columns or table.key
    if len(low) != len(high) or len(low) > len(columns):
        raise DeclarationError(
            f"{where}: low and high have as many columns as each other, and at most the "
            f"{len(columns)} of {chosen.name}"
        )
    return chosen


def named_columns(
    item: Any, schema: Schema, where: str, kinds: Sequence[str] = KEY_KINDS
) -> tuple[str, ...]:
    """A column or several, as a constraint or an index names them."""
    names: Iterable[Any] = split_list(item) if isinstance(item, str) else item
    if not isinstance(names, (list, tuple)) or not names:
        raise DeclarationError(f"{where}: name a column or several, not {shown(item)}")
    found = tuple(name.strip() if isinstance(name, str) else name for name in names)
    for name in found:
        column = schema.require(name, where)
        if column.type.kind not in kinds:
            raise DeclarationError(
                f"{where}: column {name!r} is a {column.type}; "
                f"it must be one of: {', '.join(kinds)}"
            )
        if found.count(name) > 1:
            raise DeclarationError(f"{where}: column {name!r} is named twice")
    return found


def parse_shard_by(given: Any, replicate: bool, key: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of the key that say which shard a row is on; none: all of them."""
    names = split_list(given) if isinstance(given, str) else given
    names = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in names):
        raise DeclarationError(
            f"{where}: shard_by is a column of the key or a list of them, not {shown(given)}"
        )
    found = tuple(name.strip() for name in names)
    if found and replicate:
        raise DeclarationError(
            f"{where}: with replicate=True every shard has all rows, and with shard_by each row is "
            "on one; leave one of the two out"
        )
    for name in found:
        if name not in key:
            raise DeclarationError(
                f"{where}: shard_by names columns of the key ({', '.join(key)}), by which events "
                f"find rows; {name!r} is none of them{did_you_mean(name, key)}"
            )
        if found.count(name) > 1:
            raise DeclarationError(f"{where}: shard_by: column {name!r} is named twice")
    return found
