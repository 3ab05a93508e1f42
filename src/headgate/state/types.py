"""Types: every column type, in one place, and its values as rows store them and as users see them.

A column has one type everywhere: in the DDL, in Arrow, in a row's bytes and inside a transaction.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.errors import DeclarationError, InputError, shown

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
DECIMAL_NAMES = ("decimal", "dec", "numeric")
DECIMAL_DIGITS_MAX = 18  # what an int64 holds exactly
# From here on a finite double has no float of 32 bits: it would round to infinity.
FLOAT_END = 2.0**128 - 2.0**103
# Types that take another one in with every value kept exactly; decimals beside them.
WIDENINGS = {("int", "bigint"), ("int", "double"), ("float", "double")}
INT_MAX = 2**31 - 1
BIGINT_MAX = 2**63 - 1
# The least and the greatest value of each type that is stored as an integer. Times end where
# Spark's and Python's do, with the years 1 and 9999: what lies beyond could be kept, never shown.
# Of these Arrow keeps values in memory as kernels read them.
PLAIN_KINDS = frozenset(("int", "bigint", "float", "double", "timestamp", "date"))
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

    A struct has `fields`; only results have columns of that type, see `engine/results.py`.
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
    """A named, typed column; `default` is in stored form (see `stored_value`).

    One that is nullable may have no value: None to a function, and its default unless one is given.
    """

    name: str
    type: ColumnType
    default: int | float | str | bool | None = None
    nullable: bool = False

    @property
    def kept_as(self) -> str:
        """What it may hold, in words: its type, and whether it may hold nothing."""
        return f"{self.type} NULL" if self.nullable else str(self.type)

    @property
    def ddl(self) -> str:
        suffix = "" if self.default is None else f" DEFAULT {_literal(self.type, self.default)}"
        return f"{_name(self.name)} {self.kept_as}{suffix}"


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


def _name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name}`"


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
