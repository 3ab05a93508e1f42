"""Objects: Python values as a declared column takes them: exactly, or not at all.

Invariant: a value that fits comes back equal to what was handed in; one that is of the right kind
but cannot be held has a fault, which is its event's own; any other type of value is a TypeError.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from headgate.errors import shown
from headgate.state.types import BOUNDS, ColumnType, fits_float

# Why a value cannot be used; of an array's elements the lowest counts.
NULL_FAULT = 1
RANGE_FAULT = 2
EXACT_FAULT = 3
TEXT_FAULT = 4
FAULT_WORDS = {RANGE_FAULT: "out of range", EXACT_FAULT: "not exact", TEXT_FAULT: "not UTF-8"}

Fitted = tuple[Any, int]
MISSING: Fitted = (None, NULL_FAULT)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# NumPy's units of time as a fraction of microseconds.
_UNITS_US: dict[str, tuple[int, int]] = {
    "h": (3_600_000_000, 1),
    "m": (60_000_000, 1),
    "s": (1_000_000, 1),
    "ms": (1_000, 1),
    "us": (1, 1),
    "ns": (1, 10**3),
    "ps": (1, 10**6),
    "fs": (1, 10**9),
    "as": (1, 10**12),
}
# Arrow reads values of just these types, for a column of the kind, as they are or not at all; for
# a float of 32 bits it reads what is too large as infinite.
_PLAIN_TYPES: dict[str, set[type]] = {
    "boolean": {bool},
    "int": {int},
    "bigint": {int},
    "float": set(),
    "double": {float, int},
    "string": {str},
    "timestamp": {datetime.datetime, int},
    "date": {datetime.date, int},
    "decimal": {decimal.Decimal, int},
}


def are_plain(values: Sequence[Any], kind: ColumnType) -> bool:
    """Whether all values are of the types that Arrow itself reads exactly."""
    found = set(map(type, values)) - {type(None)}
    if kind.element is None:
        return found <= _PLAIN_TYPES[kind.kind]
    if not found <= {list, tuple}:
        return False
    elements = chain.from_iterable(value for value in values if value is not None)
    return set(map(type, elements)) - {type(None)} <= _PLAIN_TYPES[kind.element.kind]


def fitted(value: Any, kind: ColumnType) -> Fitted:
    """The value as a column of the kind has it and 0, or None and the fault that it is.

    >>> fitted(3.0, ColumnType("bigint")), fitted(2**31, ColumnType("int"))
    ((3, 0), (None, 2))
    """
    value = unwrapped(value)
    has_nan = kind.kind in ("float", "double") and isinstance(value, float)
    if is_missing(value) and not has_nan:
        return MISSING
    if kind.element is not None:
        return _fitted_array(value, kind.element)
    found = _FITTERS[kind.kind](value, kind)
    if found is None:
        raise TypeError(f"{shown(value)} is a {type(value).__name__}")
    return found


def unwrapped(value: Any) -> Any:
    """The Python value inside a scalar of NumPy or Arrow; times of NumPy stay what they are."""
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    if hasattr(value, "as_py"):
        return value.as_py()
    if isinstance(value, datetime.datetime) and hasattr(value, "to_datetime64"):
        return value.to_datetime64()  # of pandas, which may have nanoseconds
    return value


def is_missing(value: Any) -> bool:
    """None, and what stands for it elsewhere: NaN, NaT, NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    return isinstance(value, decimal.Decimal) and value.is_nan()


def _fitted_array(value: Any, element: ColumnType) -> Fitted:
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise TypeError(f"{shown(value)} is a {type(value).__name__}")
    items = [fitted(item, element) for item in value]
    fault = min((fault for _, fault in items if fault), default=0)
    return (None, fault) if fault else ([item for item, _ in items], 0)


def _fitted_boolean(value: Any, _kind: ColumnType) -> Fitted | None:
    return (value, 0) if isinstance(value, bool) else None


def _fitted_integer(value: Any, kind: ColumnType) -> Fitted | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (float, decimal.Decimal)):
        # The exponent first: a number of a billion digits is not worth making.
        is_huge = isinstance(value, decimal.Decimal) and value and value.adjusted() > 30
        if is_huge or not math.isfinite(value):
            return None, RANGE_FAULT
        return _within(int(value), kind.kind, is_exact=value == int(value))
    if hasattr(value, "__index__"):
        return _within(value.__index__(), kind.kind)
    return None


def _within(number: int, kind: str, is_exact: bool = True) -> Fitted:
    least, greatest = BOUNDS[kind]
    if not least <= number <= greatest:
        return None, RANGE_FAULT
    return (number, 0) if is_exact else (None, EXACT_FAULT)


def _fitted_float(value: Any, kind: ColumnType) -> Fitted | None:
    """A float as it is (a column of 32 bits rounds it), an integer that a double has exactly."""
    if isinstance(value, float):
        return (value, 0) if fits_float(value, kind) else (None, RANGE_FAULT)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    number = value.__index__()
    try:
        found = float(number)
    except OverflowError:
        return None, RANGE_FAULT
    if not fits_float(found, kind):
        return None, RANGE_FAULT
    return (found, 0) if int(found) == number else (None, EXACT_FAULT)


def _fitted_text(value: Any, _kind: ColumnType) -> Fitted | None:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None, TEXT_FAULT
    return str(value), 0


def _fitted_decimal(value: Any, kind: ColumnType) -> Fitted | None:
    if isinstance(value, bool):
        return None
    if hasattr(value, "__index__"):
        value = decimal.Decimal(value.__index__())
    if not isinstance(value, decimal.Decimal):
        return None
    if value.is_infinite() or (value and value.adjusted() >= kind.precision - kind.scale):
        return None, RANGE_FAULT
    digits = value.as_tuple()
    step = -kind.scale - int(digits.exponent)
    if step > 0 and any(digits.digits[-step:]):
        return None, EXACT_FAULT
    return value.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=_WIDE), 0


_WIDE = decimal.Context(prec=64)


def _fitted_timestamp(value: Any, kind: ColumnType) -> Fitted | None:
    """Microseconds since 1970; a time without a zone is in UTC."""
    if isinstance(value, np.datetime64):
        return _fitted_moment(value)
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return (moment - _EPOCH) // datetime.timedelta(microseconds=1), 0
    if isinstance(value, (float, decimal.Decimal)):
        return None
    return _fitted_integer(value, kind)


def _fitted_moment(value: np.datetime64) -> Fitted | None:
    unit, step = np.datetime_data(value.dtype)
    if unit not in _UNITS_US:
        return None  # a day, or longer: not a time but a date
    times, parts = _UNITS_US[unit]
    number, rest = divmod(int(value.astype(np.int64)) * step * times, parts)
    return _within(number, "timestamp", is_exact=rest == 0)


def _fitted_date(value: Any, kind: ColumnType) -> Fitted | None:
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype) == ("D", 1):
        return _within(int(value.astype(np.int64)), "date")
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return (value - _EPOCH.date()).days, 0
    if isinstance(value, (float, decimal.Decimal)):
        return None
    return _fitted_integer(value, kind)


_FITTERS: dict[str, Callable[[Any, ColumnType], Fitted | None]] = {
    "boolean": _fitted_boolean,
    "int": _fitted_integer,
    "bigint": _fitted_integer,
    "float": _fitted_float,
    "double": _fitted_float,
    "string": _fitted_text,
    "timestamp": _fitted_timestamp,
    "date": _fitted_date,
    "decimal": _fitted_decimal,
}
