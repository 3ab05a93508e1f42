"""Scalars: the oracle's own rules for values: what arrives, what is kept, what a function sees.

Nothing here is shared with the engine, so that an error in one is not an error in both. Inside a
function a timestamp is an int of microseconds, a date an int of days, a decimal a `decimal.Decimal`
and an integer an `Int64`, which raises where 64 bits do not hold the result.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import math
import struct
import sys
from collections.abc import Callable
from typing import Any

from headgate.state.types import Column, ColumnType

# Wide enough that no sum or product of columns is ever rounded before it is stored.
EXACT = decimal.Context(prec=120, rounding=decimal.ROUND_HALF_UP)
_START = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BITS = {"int": 32, "date": 32, "bigint": 64, "timestamp": 64}


class Unfit(Exception):
    """A value that arrives is of the right type, but its column cannot hold it: says how."""


class Int64(int):
    """An integer as a transaction sees it: arithmetic that leaves 64 bits raises OverflowError.

    >>> Int64(2**62) + Int64(2**62)
    Traceback (most recent call last):
    OverflowError: overflow
    """


def _checked(operation: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*operands: Any) -> Any:
        result = operation(*operands)
        if isinstance(result, int) and not isinstance(result, bool):
            return Int64(within(result, 64))
        return result  # a float, or NotImplemented: the other operand's turn

    return compute


def _signed(value: int) -> int:
    frame = sys._getframe(2)
    if dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("COMPARE_OP", "CONTAINS_OP"):
        # A float is being compared with it, for which Python takes the sign away by itself.
        return -int(value)
    return Int64(within(int.__neg__(value), 64))


def _power(base: int, exponent: Any) -> Any:
    if not isinstance(base, int):
        return NotImplemented
    if isinstance(exponent, int) and exponent < 0:
        raise ValueError("a negative power of an integer is not an integer")
    if isinstance(exponent, int) and exponent > 63 and abs(int(base)) > 1:
        raise OverflowError("overflow")  # known before the huge number is made
    return int.__pow__(base, exponent)


def _shifted(value: int, places: Any) -> Any:
    if not isinstance(value, int):
        return NotImplemented
    if isinstance(places, int) and places > 63 and value != 0:
        raise OverflowError("overflow")
    return int.__lshift__(value, places)


for _name in ("add", "sub", "mul", "floordiv", "mod", "rshift", "and", "or", "xor"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(Int64, _form, _checked(getattr(int, _form)))
for _name in ("pos", "abs", "invert", "round"):
    setattr(Int64, f"__{_name}__", _checked(getattr(int, f"__{_name}__")))
Int64.__neg__ = lambda self: _signed(self)  # type: ignore[method-assign]
Int64.__lshift__ = _checked(_shifted)  # type: ignore[method-assign]
_reversed_shift = _checked(lambda places, value: _shifted(value, places))
Int64.__rlshift__ = _reversed_shift  # type: ignore[method-assign]
Int64.__pow__ = _checked(_power)  # type: ignore[method-assign]
_reversed_power = _checked(lambda exponent, base: _power(base, exponent))
Int64.__rpow__ = _reversed_power  # type: ignore[method-assign]


class Decimal128(decimal.Decimal):
    """A decimal as a transaction sees it: what its last place counts has 128 bits, or it raises."""


class Characters(str):
    """A text as a transaction sees it: what is made of it by `+` has 16 MiB at most."""

    def __add__(self, other: Any) -> str:
        return _made(self, other) if isinstance(other, str) else str.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        return _made(other, self) if isinstance(other, str) else NotImplemented

    def __str__(self) -> str:
        return self

    def __format__(self, form: str) -> str:
        return self if form == "" else str.__format__(self, form)


def _made(one: str, other: str) -> str:
    if len(one) == 0 or len(other) == 0:
        return one if len(other) == 0 else other
    return measured("".join((one, other)))


def measured(text: str) -> str:
    """A text that a function made; ValueError where its UTF-8 has more than 16 MiB."""
    if len(text) > 2**24 or len(text.encode("utf-8", "surrogatepass")) > 2**24:
        raise ValueError("a function makes no text of more than 16 MiB")
    return Characters(text)


def _counted(operation: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*operands: Any) -> Any:
        result = operation(*operands)
        # A quotient, which is not compiled, has more places than any product of columns.
        is_short = all(isinstance(one, int) or _places(one) <= 36 for one in operands)
        if not isinstance(result, decimal.Decimal) or not is_short:
            return result
        places = _places(result)
        within(int(result.scaleb(places, EXACT)), 128)
        return Decimal128(result)

    return compute


def _places(number: Any) -> int:
    exponent = number.as_tuple().exponent if isinstance(number, decimal.Decimal) else None
    return max(0, -exponent) if isinstance(exponent, int) else 10**6


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "neg", "abs"):
    setattr(Decimal128, f"__{_name}__", _counted(getattr(decimal.Decimal, f"__{_name}__")))


def within(number: int, bits: int) -> int:
    """The number, if a signed integer of that many bits holds it."""
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise OverflowError("overflow")
    return number


def single(number: float) -> float:
    """The float of 32 bits nearest to the number; OverflowError beyond the largest.

    >>> single(0.1)
    0.10000000149011612
    """
    try:
        found = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        raise OverflowError("overflow") from None
    return float(found)


def rounded(number: int | decimal.Decimal, kind: ColumnType) -> decimal.Decimal:
    """A number as a decimal column keeps it: rounded half up, refused where digits are lacking."""
    step = decimal.Decimal(1).scaleb(-kind.scale, EXACT)
    found = decimal.Decimal(number).quantize(step, decimal.ROUND_HALF_UP, EXACT)
    if abs(found) >= decimal.Decimal(10) ** (kind.precision - kind.scale):
        raise OverflowError("overflow")
    return found


# --- what arrives ---------------------------------------------------------------------------------


def arrived(value: Any, kind: ColumnType) -> Any:
    """A value handed in by a user, as its column keeps it. Raises Unfit, or ValueError."""
    if kind.element is not None:
        return tuple(arrived(item, kind.element) for item in value)
    try:
        found = kept(_plain(value, kind), kind)
    except OverflowError:
        raise Unfit("out of range") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    is_exact = kind.kind in ("double", "decimal") and isinstance(value, (int, decimal.Decimal))
    if is_exact and decimal.Decimal(found) != value:
        raise Unfit("not exact")
    if isinstance(found, str) and found.encode("utf-8", "replace").decode() != found:
        raise Unfit("not UTF-8")
    return found


def _plain(value: Any, kind: ColumnType) -> Any:
    if isinstance(value, datetime.datetime) and kind.kind == "timestamp":
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return (moment - _START) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date) and kind.kind == "date":
        return (value - _START.date()).days
    if isinstance(value, (float, decimal.Decimal)) and kind.kind in ("int", "bigint"):
        if not math.isfinite(value):
            raise OverflowError("overflow")
        if value != int(value):
            within(int(value), _BITS[kind.kind])
            raise Unfit("not exact")
        return int(value)
    return value


def has_null(value: Any) -> bool:
    """Whether a value, or an element of an array, is missing."""
    return value is None or (isinstance(value, (list, tuple)) and any(map(has_null, value)))


# --- what is kept ---------------------------------------------------------------------------------


def kept(value: Any, kind: ColumnType) -> Any:
    """A value as its column keeps it; raises TypeError or OverflowError where it does not fit."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind.kind in _BITS and is_whole:
        return _in_time(within(int(value), _BITS[kind.kind]), kind)
    if kind.kind == "boolean" and isinstance(value, bool):
        return value
    if kind.kind == "string" and isinstance(value, str):
        return value
    if kind.kind in ("float", "double") and (is_whole or isinstance(value, float)):
        return single(float(value)) if kind.kind == "float" else float(value)
    if kind.kind == "decimal" and (is_whole or isinstance(value, decimal.Decimal)):
        return rounded(value, kind)
    raise TypeError(f"a {type(value).__name__} cannot be stored in a column of type {kind}")


def assigned(value: Any, kind: ColumnType) -> Any:
    """A value that a function gives, as its column keeps it."""
    is_made = isinstance(value, str) and not isinstance(value, Characters)
    return kept(measured(value) if is_made else value, kind)


def _in_time(number: int, kind: ColumnType) -> int:
    """A time must be one that Python can show: of the years 1 to 9999."""
    try:
        shown(number, kind)
    except OverflowError:
        raise OverflowError("overflow") from None
    return number


def seen(value: Any, kind: ColumnType) -> Any:
    """A kept value as a function sees it."""
    if kind.element is not None:
        return tuple(seen(item, kind.element) for item in value)
    if kind.kind == "decimal":
        return Decimal128(value)
    if kind.kind == "string":
        return Characters(value)
    return Int64(value) if kind.kind in _BITS else value


def blank(kind: ColumnType) -> Any:
    """What a column holds that nobody has set."""
    if kind.kind == "decimal":
        return rounded(0, kind)
    return {"boolean": False, "float": 0.0, "double": 0.0, "string": ""}.get(kind.kind, 0)


def default(column: Column) -> Any:
    """What a column of a created row holds."""
    if column.default is None:
        return None if column.nullable else blank(column.type)
    if column.type.kind == "decimal":
        # The declaration holds the default of a decimal as an integer of its last place.
        return rounded(
            decimal.Decimal(column.default).scaleb(-column.type.scale, EXACT), column.type
        )
    return kept(column.default, column.type)


# --- what a user sees -----------------------------------------------------------------------------


def shown(value: Any, kind: ColumnType) -> Any:
    """A kept value as it stands in results and tables."""
    if value is None:
        return None
    if kind.kind == "timestamp":
        return _START + datetime.timedelta(microseconds=value)
    if kind.kind == "date":
        return _START.date() + datetime.timedelta(days=value)
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two shown values are the same: NaN is itself, 0.0 is not -0.0, True is not 1."""
    if isinstance(one, float) and isinstance(other, float):
        both_missing = math.isnan(one) and math.isnan(other)
        return both_missing or struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def place(value: Any) -> Any:
    """A value to sort by: as the value itself, with NaN after every other number."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value
