"""Aggregates: what a window of a stream is to know of its rows without going through them again.

They are declared as SQL says them: "count(*) as votes, sum(amount) as total", by columns of the
stream. What cannot be kept as rows come and go is refused where it is declared, with what to write
in its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa

from headgate.errors import DeclarationError, not_among, shown
from headgate.state.schema import Schema, split_list
from headgate.state.types import Column, ColumnType

AGGREGATES = "aggregates"  # what SQL calls them
FUNCTIONS = ("count", "sum", "avg", "min", "max")
COLUMNS_MAX = 60
_NUMBERS = ("int", "bigint", "float", "double", "decimal")
_ITEM = re.compile(
    r"(?P<function>\w+)\s*\(\s*(?P<inside>\*|`[^`]+`|\w+)\s*\)\s+as\s+(?P<name>`[^`]+`|\w+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Aggregate:
    """One of them: a function over a column, without one over rows, and the name of what it is."""

    function: str
    column: Column | None
    name: str

    @cached_property
    def arrow(self) -> pa.DataType:
        """Its type: whole numbers add up to a bigint, decimals to one of 38 digits."""
        if self.function == "count":
            return pa.int64()
        if self.column is None or self.function == "avg":
            return pa.float64()
        kind = self.column.type
        if self.function != "sum":
            return kind.arrow
        if kind.kind == "decimal":
            return pa.decimal128(38, kind.scale)
        return pa.float64() if kind.kind in ("float", "double") else pa.int64()

    @property
    def text(self) -> str:
        """As it is declared."""
        return f"{self.function}({'*' if self.column is None else self.column.name}) as {self.name}"


@dataclass(frozen=True)
class Aggregates:
    """All that are declared of a window, and the columns that they are by."""

    items: tuple[Aggregate, ...]
    by: tuple[Column, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table that a procedure gets."""
        keys = [(column.name, column.type.arrow) for column in self.by]
        return pa.schema([*keys, *((one.name, one.arrow) for one in self.items)])

    @cached_property
    def of_no_rows(self) -> pa.Table:
        """What they are of a window without rows: as in SQL one row, but of groups none."""
        nothing = {one.name: 0 if one.function == "count" else None for one in self.items}
        return pa.Table.from_pylist([] if self.by else [nothing], self.schema)

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """The columns that they are over, each once."""
        return tuple(dict.fromkeys(one.column for one in self.items if one.column is not None))

    @property
    def text(self) -> str:
        """As they are declared, for a window that shows itself."""
        by = f", by={', '.join(one.name for one in self.by)!r}" if self.by else ""
        return f"aggregate={', '.join(one.text for one in self.items)!r}{by}"

    @classmethod
    def parse(cls, text: Any, by: Any, schema: Schema, where: str) -> Aggregates | None:
        """What a window declares; None when it declares none."""
        if text is None:
            if by is not None:
                raise DeclarationError(
                    f"{where}: by={shown(by)} says whose aggregates they are; say which: "
                    "aggregate='count(*) as rows'"
                )
            return None
        if not isinstance(text, str) or not text.strip():
            raise DeclarationError(
                f"{where}: aggregate is a text such as 'count(*) as votes, sum(amount) as total', "
                f"not {shown(text)}"
            )
        keys = _keys(by, schema, f"{where}: by")
        items = tuple(_item(one.strip(), schema, f"{where}: aggregate") for one in split_list(text))
        found = cls(items, keys)
        _check_names([*(one.name for one in keys), *(one.name for one in items)], where)
        if len(found.values) > COLUMNS_MAX:
            raise DeclarationError(f"{where}: aggregates of at most {COLUMNS_MAX} columns are kept")
        return found


def _keys(given: Any, schema: Schema, where: str) -> tuple[Column, ...]:
    names = split_list(given) if isinstance(given, str) else () if given is None else given
    is_list = isinstance(names, Sequence) and not isinstance(names, str)
    if not is_list or not all(isinstance(one, str) for one in names):
        raise DeclarationError(f"{where} is a column or a list of them, not {shown(given)}")
    found = tuple(schema.require(_plain(name.strip()), where) for name in names)
    for column in found:
        if column.type.element is not None or column.type.kind in ("float", "double"):
            raise DeclarationError(
                f"{where}: {column.name!r} is a {column.type}, which names no group; give the "
                "stream a column that does, such as a rounded decimal or an int"
            )
    return found


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith("`") else name


def _check_names(names: Sequence[str], where: str) -> None:
    known = [name.lower() for name in names]
    for name in names:
        if known.count(name.lower()) > 1:
            raise DeclarationError(
                f"{where}: two columns of its aggregates are called {name!r}; rename one"
            )


def _item(text: str, schema: Schema, where: str) -> Aggregate:
    match = _ITEM.fullmatch(text)
    if match is None:
        _refuse(text, schema, where)
    function, name = match["function"].lower(), _plain(match["name"])
    if function not in FUNCTIONS:
        raise DeclarationError(
            f"{where}: {match['function']}(...) cannot be kept as rows come and go: "
            f"{not_among(function, FUNCTIONS, 'functions that can')}; ask for it in SQL over batch"
        )
    if not name.isidentifier() or name.startswith("__"):
        raise DeclarationError(f"{where}: {name!r} is no name of a column; write a plain word")
    if match["inside"] == "*":
        if function != "count":
            raise DeclarationError(f"{where}: {function}(*) is of no column; name one")
        return Aggregate(function, None, name)
    column = schema.require(_plain(match["inside"]), where)
    _check_kind(function, column, where)
    return Aggregate(function, column, name)


def _check_kind(function: str, column: Column, where: str) -> None:
    kind: ColumnType = column.type
    if function in ("sum", "avg") and kind.kind not in _NUMBERS:
        raise DeclarationError(
            f"{where}: {function}({column.name}): {column.name!r} is a {kind}, and no number"
        )
    if function in ("min", "max") and kind.element is not None:
        raise DeclarationError(
            f"{where}: {function}({column.name}): {column.name!r} is an {kind}, which has no order"
        )


def _refuse(text: str, schema: Schema, where: str) -> NoReturn:
    """Say what is wrong with what is no aggregate."""
    if text in schema:
        raise DeclarationError(f"{where}: {text!r} is a column, and no aggregate: name it in by=")
    if re.fullmatch(r"\w+\s*\([^()]*\)", text):
        raise DeclarationError(f"{where}: {text!r} has no name; write '{text} as total'")
    raise DeclarationError(
        f"{where}: cannot read {text!r}: each is a function of one column with a name, such as "
        "'sum(amount) as total'. What is computed from columns is to be a column of the stream; "
        "what counts only some rows, or each value once, is asked in SQL over batch"
    )
