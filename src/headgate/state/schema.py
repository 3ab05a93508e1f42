"""Schemas: Spark DDL strings as typed columns, the one place that knows every column type.

A column has one type everywhere: in the DDL, in Arrow, in a row's bytes and inside a transaction.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError, InputError, did_you_mean, not_among, shown

# The Spark names and their common aliases, each with the one kind Headgate stores.
KINDS = {
    "boolean": "boolean",
    "bool": "boolean",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "date": "date",
}
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
DECIMAL_NAMES = ("decimal", "dec", "numeric")
DECIMAL_DIGITS_MAX = 18  # what an int64 holds exactly
# Types that take another one in with every value kept exactly; decimals beside them.
# From here on a finite double has no float of 32 bits: it would round to infinity.
FLOAT_END = 2.0**128 - 2.0**103
WIDENINGS = {("int", "bigint"), ("int", "double"), ("float", "double")}
INT_MAX = 2**31 - 1
BIGINT_MAX = 2**63 - 1
# The least and the greatest value of each type that is stored as an integer. Times end where
# Spark's and Python's do, with the years 1 and 9999: what lies beyond could be kept, never shown.
BOUNDS = {
    "int": (-INT_MAX - 1, INT_MAX),
    "bigint": (-BIGINT_MAX - 1, BIGINT_MAX),
    "date": (-719_162, 2_932_896),
    "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999),
}

_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class ColumnType:
    """One column's type; `element` is set for an array, `precision` and `scale` for a decimal.

    A struct has `fields`; only results have columns of that type, see `results.py`.
    """

    kind: str
    precision: int = 0
    scale: int = 0
    element: ColumnType | None = None
    fields: tuple[Column, ...] = ()

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.element is not None:
            return f"array<{self.element}>"
        if self.fields:
            return f"struct<{', '.join(f'{_name(one.name)}: {one.type}' for one in self.fields)}>"
        return self.kind

    @property
    def arrow(self) -> pa.DataType:
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if self.element is not None:
            return pa.list_(self.element.arrow)
        if self.fields:
            return pa.struct([(one.name, one.type.arrow) for one in self.fields])
        return _ARROW[self.kind]


@dataclass(frozen=True)
class Column:
    """A named, typed column; `default` is in stored form (see `stored_value`)."""

    name: str
    type: ColumnType
    default: int | float | str | bool | None = None

    @property
    def ddl(self) -> str:
        suffix = "" if self.default is None else f" DEFAULT {_literal(self.type, self.default)}"
        return f"{_name(self.name)} {self.type}{suffix}"


def is_wider(new: ColumnType, old: ColumnType) -> bool:
    """Whether a type has every value of another one exactly, and more.

    >>> is_wider(ColumnType("bigint"), ColumnType("int"))
    True
    >>> is_wider(ColumnType("decimal", 12, 4), ColumnType("decimal", 10, 2))
    True
    """
    if new.kind == "decimal" and old.kind == "decimal" and new != old:
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    return (old.kind, new.kind) in WIDENINGS


def widened_value(new: ColumnType, old: ColumnType, stored: Any) -> int | float | str | bool:
    """A stored value of a type as one of a wider type is stored."""
    return stored_value(new, logical_value(old, stored), f"a {old} as a {new}")


def has_struct(kind: ColumnType) -> bool:
    """Whether the type is a struct, or an array of them."""
    return bool(kind.fields) or (kind.element is not None and has_struct(kind.element))


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


def _name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name}`"


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
    r"""\s*(?:(?P<notnull>not\s+null)
    |default\s+(?P<default>(?:date|timestamp)?\s*'(?:[^']|'')*'|[^\s']+)
    |comment\s+'(?:[^']|'')*')""",
    re.VERBOSE | re.IGNORECASE,
)


_OPTION_HINTS = (
    (r"primary\b|key\b", "; the key is named beside the schema: key='id'"),
    (r"unique\b", "; write unique=['column'] beside the schema"),
    (r"check\b", "; write check='...' beside the schema"),
    (r"references\b", "; write references={'column': table} beside the schema"),
    (r"null\b", "; columns are never null"),
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
    default = _parse_options(match["rest"], kind, f"{where}: column {name!r}")
    return Column(name, kind, default)


def _refuse_turned(name: str, kind: str, where: str) -> None:
    """`bigint id`: refuse it with the right way round, if that is how it was meant."""
    try:
        _parse_type(kind, where)
    except DeclarationError:
        raise DeclarationError(
            f"{where}: cannot read the column {name + ' ' + kind!r}; the name comes first: "
            f"{kind + ' ' + name!r}"
        ) from None


def _parse_options(text: str, kind: ColumnType, where: str) -> int | float | str | bool | None:
    default = None
    while text.strip():
        option = _OPTION.match(text)
        if option is None:
            words = text.strip()
            hint = next((told for begin, told in _OPTION_HINTS if re.match(begin, words, re.I)), "")
            raise DeclarationError(
                f"{where}: cannot read {words!r}; after the type may stand "
                f"NOT NULL, DEFAULT literal, COMMENT 'text'{hint}"
            )
        if option["default"] is not None:
            default = _parse_default(option["default"], kind, where)
        text = text[option.end() :]
    return default


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


def _parse_default(text: str, kind: ColumnType, where: str) -> int | float | str | bool:
    word = text.strip()
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


def default_value(kind: ColumnType, value: Any, where: str) -> int | float | str | bool:
    """A default as it is stored, from a DDL literal or a Python value."""
    is_time = isinstance(value, str) and kind.kind == "timestamp"
    if is_time and re.search(r"[.,]\d{6}0*[1-9]", value):  # Python would cut it off
        raise DeclarationError(
            f"{where}: {value!r} is more exact than a timestamp, which has microseconds"
        )
    try:
        if isinstance(value, decimal.Decimal) and kind.kind in ("int", "bigint", "float", "double"):
            value = int(value) if value == int(value) and "int" in kind.kind else float(value)
        if isinstance(value, str) and kind.kind == "date":
            value = datetime.date.fromisoformat(value)
        if isinstance(value, str) and kind.kind == "timestamp":
            value = datetime.datetime.fromisoformat(value)
        stored = stored_value(kind, value, where)
        if isinstance(stored, float) and not math.isfinite(stored):
            raise ValueError(f"{value} is not finite")
        return stored
    except (ValueError, TypeError, OverflowError) as error:
        raise DeclarationError(f"{where}: the default {shown(value)} is not a {kind}") from error


def stored_value(kind: ColumnType, value: Any, where: str) -> int | float | str | bool:
    """A Python value in the form a row stores it: micros, days, scaled ints, text, numbers."""
    converter = _CONVERTERS.get(kind.kind)
    converted = None if converter is None or value is None else converter(value, kind)
    if converted is None:
        raise InputError(f"{where}: {shown(value)} is not a {kind}")
    return converted


def _stored_bool(value: Any, _kind: ColumnType) -> bool | None:
    return bool(value) if isinstance(value, bool) or type(value).__name__ == "bool" else None


def _stored_int(value: Any, kind: ColumnType) -> int | None:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    least, greatest = BOUNDS[kind.kind]
    return int(value) if least <= int(value) <= greatest else None


def _stored_float(value: Any, kind: ColumnType) -> float | None:
    numeric = isinstance(value, (int, float, decimal.Decimal)) or hasattr(value, "__float__")
    if not numeric or isinstance(value, (bool, str)):
        return None
    return float(value) if fits_float(float(value), kind) else None


def fits_float(value: float, kind: ColumnType) -> bool:
    """Whether a column of the kind has the value or, of 32 bits, one near to it.

    >>> fits_float(1e300, ColumnType("double")), fits_float(1e300, ColumnType("float"))
    (True, False)
    """
    return kind.kind != "float" or not math.isfinite(value) or abs(value) < FLOAT_END


def _stored_text(value: Any, _kind: ColumnType) -> str | None:
    return value if isinstance(value, str) else None


def _stored_timestamp(value: Any, kind: ColumnType) -> int | None:
    if isinstance(value, datetime.datetime):
        # Arrow and Spark read a naive time as UTC here; so does Headgate.
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    return _stored_int(value, kind)


def _stored_date(value: Any, kind: ColumnType) -> int | None:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return (value - _EPOCH.date()).days
    return _stored_int(value, kind)


def _stored_decimal(value: Any, kind: ColumnType) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal, str)):
        return None
    try:
        scaled = decimal.Decimal(value).scaleb(kind.scale)
    except decimal.InvalidOperation:
        return None
    exact = scaled.is_finite() and scaled == scaled.to_integral_value()
    return int(scaled) if exact and abs(scaled) < 10**kind.precision else None


_CONVERTERS = {
    "boolean": _stored_bool,
    "int": _stored_int,
    "bigint": _stored_int,
    "float": _stored_float,
    "double": _stored_float,
    "string": _stored_text,
    "timestamp": _stored_timestamp,
    "date": _stored_date,
    "decimal": _stored_decimal,
}


def logical_value(kind: ColumnType, stored: Any) -> Any:
    """The Python value a user sees for a stored one; the inverse of `stored_value`."""
    if kind.kind == "timestamp":
        return _EPOCH + datetime.timedelta(microseconds=int(stored))
    if kind.kind == "date":
        return _EPOCH.date() + datetime.timedelta(days=int(stored))
    if kind.kind == "decimal":
        return decimal.Decimal(int(stored)).scaleb(-kind.scale)
    return stored


def _literal(kind: ColumnType, stored: Any) -> str:
    if kind.kind in ("string", "date", "timestamp"):
        text = str(logical_value(kind, stored)).replace("'", "''")
        prefix = "" if kind.kind == "string" else kind.kind
        return f"{prefix}'{text}'"
    if isinstance(stored, bool):
        return str(stored).lower()
    return str(logical_value(kind, stored))
