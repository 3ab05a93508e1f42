"""Schemas: Spark DDL strings as typed columns, in their order; the types themselves are in `types`.

Invariant: the DDL of a schema gives the same schema again. What is not understood is refused with
its place and, where another system's word was written, with ours.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError, did_you_mean, not_among
from headgate.state.types import (
    DECIMAL_DIGITS_MAX,
    DECIMAL_NAMES,
    KINDS,
    Column,
    ColumnType,
    default_value,
    has_struct,
)

# What other systems call them: a hint for who writes one of these.
_ELSEWHERE = {
    **dict.fromkeys(("str", "text", "varchar", "char", "object", "utf8", "uuid"), "string"),
    **dict.fromkeys(("int64", "int8", "uint32", "uint64", "serial", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "int16", "smallint", "short", "tinyint", "byte"), "int"),
    **dict.fromkeys(("float64", "number"), "double"),
    **dict.fromkeys(("datetime", "datetime64", "timestamptz", "timestamp_ntz"), "timestamp"),
    **dict.fromkeys(("money",), "decimal(18,2)"),
    **dict.fromkeys(("float32",), "float"),
    **dict.fromkeys(("list",), "array<type>"),
}


def require_text(text: str, where: str) -> None:
    """Refuse what no file can hold: half of a surrogate pair is a part of no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DeclarationError(
            f"{where}: character {error.start + 1} of {text!a} is no Unicode character "
            "(a lone surrogate)"
        ) from error


def refuse_twins(names: Iterable[str], what: str, where: str) -> None:
    """Refuse names that differ in case only: to Spark and to DuckDB they are one."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(name.lower(), name)
        if other != name:
            raise DeclarationError(
                f"{where}: the {what} {other!r} and {name!r} differ in case only, and Spark and "
                "SQL take them for one; rename one of them"
            )


@dataclass(frozen=True)
class Schema:
    """Columns in the order they were declared.

    >>> Schema.parse("id bigint, balance decimal(12,2) DEFAULT 0").names
    ('id', 'balance')
    """

    columns: tuple[Column, ...]

    @classmethod
    def parse(cls, ddl: str, where: str = "schema", structs: bool = False) -> Schema:
        """Read a DDL string; columns that are structs only where they are asked for."""
        if not isinstance(ddl, str):
            kind = type(ddl).__name__
            raise DeclarationError(
                f"{where}: a schema is a DDL string such as 'id bigint, balance double', not {kind}"
            )
        require_text(ddl, where)
        columns = tuple(_parse_column(text, where) for text in split_list(ddl) if text.strip())
        if not columns:
            raise DeclarationError(
                f"{where}: the schema {ddl!r} has no columns; write 'name type, ...'"
            )
        names = [column.name for column in columns]
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(f"{where}: column {name!r} is declared twice")
            if name.startswith("__"):
                raise DeclarationError(f"{where}: column {name!r}: names in __ are reserved")
        if not structs:  # with them, it was declared before
            refuse_twins(names, "columns", where)
        for column in columns:
            if not structs and has_struct(column.type):
                raise DeclarationError(
                    f"{where}: column {column.name!r}: structs are not supported"
                )
        return cls(columns)

    def __repr__(self) -> str:
        return f"Schema({self.ddl!r})"  # all that it says: kernels are known by it

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        return ", ".join(column.ddl for column in self.columns)

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([(column.name, column.type.arrow) for column in self.columns])

    def require(self, name: str, where: str) -> Column:
        """The column of that name, or a DeclarationError that lists the names there are."""
        if name not in self:
            among = not_among(name, self.names, "columns")
            raise DeclarationError(f"{where}: no column {name!r}; {among}")
        return self[name]


def split_list(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char in "(<":
            depth += 1
        elif char in ")>":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


_COLUMN = re.compile(
    r"""\s*(?:`(?P<quoted>[^`]+)`|(?P<name>\w+))(?:\s*:\s*|\s+)
    (?P<type>[a-zA-Z_]\w*\s*(?:\([^)]*\))?(?:<.*?>+)?)
    (?P<rest>.*)$""",
    re.VERBOSE | re.DOTALL,
)
_OPTION = re.compile(
    r"""\s*(?:(?P<notnull>not\s+null\b)
    |(?P<null>null\b)
    |default\s+(?P<default>(?:date|timestamp)?\s*'(?:[^']|'')*'|[^\s']+)
    |comment\s+'(?:[^']|'')*')""",
    re.VERBOSE | re.IGNORECASE,
)


_OPTION_HINTS = (
    (r"primary\b|key\b", "; the key is named beside the schema: key='id'"),
    (r"unique\b", "; write unique=['column'] beside the schema"),
    (r"check\b", "; write check='...' beside the schema"),
    (r"references\b", "; write references={'column': table} beside the schema"),
    (r"=", "; write DEFAULT in place of ="),
    (r";", "; columns are separated by commas"),
)


def _parse_column(text: str, where: str) -> Column:
    match = _COLUMN.match(text)
    if match is None:
        raise DeclarationError(
            f"{where}: cannot read the column {text.strip()!r}; write it as 'name type'"
        )
    name = match["quoted"] or match["name"]
    if name.lower() in KINDS and match["type"].lower() not in KINDS and not match["quoted"]:
        _refuse_turned(name, match["type"], where)
    kind = _parse_type(match["type"], f"{where}: column {name!r}")
    default, nullable = _parse_options(match["rest"], kind, f"{where}: column {name!r}")
    return Column(name, kind, default, nullable)


def _refuse_turned(name: str, kind: str, where: str) -> None:
    """`bigint id`: refuse it with the right way round, if that is how it was meant."""
    try:
        _parse_type(kind, where)
    except DeclarationError:
        raise DeclarationError(
            f"{where}: cannot read the column {name + ' ' + kind!r}; the name comes first: "
            f"{kind + ' ' + name!r}"
        ) from None


def _parse_options(
    text: str, kind: ColumnType, where: str
) -> tuple[int | float | str | bool | None, bool]:
    """The default of a column, and whether it is nullable."""
    default, nulls = None, set()
    while text.strip():
        option = _OPTION.match(text)
        if option is None:
            words = text.strip()
            hint = next((told for begin, told in _OPTION_HINTS if re.match(begin, words, re.I)), "")
            raise DeclarationError(
                f"{where}: cannot read {words!r}; after the type may stand "
                f"NULL, NOT NULL, DEFAULT literal, COMMENT 'text'{hint}"
            )
        default = option["default"] or default
        nulls |= {word for word in ("null", "notnull") if option[word]}
        text = text[option.end() :]
    if len(nulls) > 1:
        raise DeclarationError(f"{where}: it is NULL or NOT NULL, not both")
    if nulls == {"null"} and (kind.element is not None or kind.fields):
        raise DeclarationError(f"{where}: an array is never null; an empty one has no elements")
    return _parse_default(default, kind, where, nulls == {"null"}), nulls == {"null"}


def _parse_type(text: str, where: str) -> ColumnType:
    word = re.sub(r"\s+", "", text).lower()
    if word in KINDS:
        return ColumnType(KINDS[word])
    if word in DECIMAL_NAMES:
        return ColumnType("decimal", 10, 0)
    if found := re.fullmatch(r"(?:decimal|dec|numeric)\((\d+)(?:,(\d+))?\)", word):
        return _decimal(int(found[1]), int(found[2] or 0), where)
    if found := re.fullmatch(r"\s*(array\s*<)?\s*struct\s*<(.+)>\s*", text, re.DOTALL):
        inner = found[2].rstrip()[:-1] if found[1] else found[2]
        fields = tuple(_parse_column(one, where) for one in split_list(inner))
        struct = ColumnType("struct", fields=fields)
        return ColumnType("array", element=struct) if found[1] else struct
    if found := re.fullmatch(r"array<(.+)>", word):
        element = _parse_type(found[1], where)
        if element.element is not None:
            raise DeclarationError(f"{where}: an array of arrays is not supported")
        return ColumnType("array", element=element)
    known = ", ".join(sorted({*KINDS.values(), "decimal(p,s)", "array<type>"}))
    meant = _ELSEWHERE.get(word.partition("(")[0])
    hint = did_you_mean(word, KINDS) if meant is None else f"; did you mean {meant!r}?"
    raise DeclarationError(f"{where}: unknown type {text.strip()!r}; the types are: {known}{hint}")


def _decimal(precision: int, scale: int, where: str) -> ColumnType:
    if not 0 < precision <= DECIMAL_DIGITS_MAX or scale > precision:
        raise DeclarationError(
            f"{where}: decimal({precision},{scale}) is out of bounds; "
            f"at most {DECIMAL_DIGITS_MAX} digits are kept exact, the scale at most the digits"
        )
    return ColumnType("decimal", precision, scale)


def _parse_default(
    text: str | None, kind: ColumnType, where: str, nullable: bool
) -> int | float | str | bool | None:
    word = "" if text is None else text.strip()
    if text is None or (nullable and word.lower() == "null"):
        return None
    if word.lower() == "null":
        raise DeclarationError(f"{where}: its default is NULL, so declare it NULL: '... NULL'")
    if found := re.fullmatch(r"(?:date|timestamp)?\s*'((?:[^']|'')*)'", word, re.IGNORECASE):
        value: Any = found[1].replace("''", "'")
    elif word.lower() in ("true", "false"):
        value = word.lower() == "true"
    else:
        try:
            value = decimal.Decimal(word)
        except decimal.InvalidOperation:
            raise DeclarationError(
                f"{where}: cannot read the default {word!r}; it is a literal: a number, true, "
                "false or 'text'"
            ) from None
    return default_value(kind, value, where)
