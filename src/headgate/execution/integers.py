"""Integers: 64-bit arithmetic that raises OverflowError where Numba's would wrap around.

A transaction that leaves 64 bits aborts; it never goes on with a wrong number. `Int64` is the same
rule for functions that run as plain Python.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir as llvm
from numba.core import types
from numba.extending import intrinsic, overload

MIN, MAX = -(2**63), 2**63 - 1
_NEGATIVE_EXPONENT = "a negative power of an integer is not an integer"
_NEGATIVE_SHIFT = "negative shift count"


def _is_integer(*kinds: Any) -> bool:
    """Whether these are integers or booleans, at least one of them an integer."""
    plain = all(isinstance(kind, (types.Integer, types.Boolean)) for kind in kinds)
    return plain and any(isinstance(kind, types.Integer) for kind in kinds)


def _exact(instruction: str) -> Any:
    @intrinsic
    def exact(typing_context: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            sides = [
                context.cast(builder, arg, kind, types.int64)
                for arg, kind in zip(args, sig.args, strict=True)
            ]
            pair = getattr(builder, instruction)(*sides)
            with builder.if_then(builder.extract_value(pair, 1), likely=False):
                context.call_conv.return_user_exc(builder, OverflowError, ("overflow",))
            return builder.extract_value(pair, 0)

        return types.int64(left, right), generate

    return exact


_add = _exact("sadd_with_overflow")
_sub = _exact("ssub_with_overflow")
_mul = _exact("smul_with_overflow")


def _binary(function: Callable[[Any, Any], Any], checked: Any) -> Any:
    """`function`, but `checked` for two integers."""

    def combine(left: Any, right: Any) -> Any:
        return function(left, right)

    combine.__name__ = function.__name__  # messages name the operation

    @overload(combine, strict=False)
    def choose(left: Any, right: Any) -> Any:
        if _is_integer(left, right):
            return lambda left, right: checked(left, right)
        return lambda left, right: function(left, right)

    return combine


def _divide(left: int, right: int) -> int:
    if left == MIN and right == -1:
        raise OverflowError("overflow")
    return left // right


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise ValueError(_NEGATIVE_EXPONENT)
    result, square = 1, int(base)
    remaining = int(exponent)
    while True:
        if remaining & 1:
            result = _mul(result, square)
        remaining >>= 1
        if remaining == 0:
            return result
        square = _mul(square, square)


def _shift(value: int, places: int) -> int:
    if places < 0:
        raise ValueError(_NEGATIVE_SHIFT)
    if places > 62:
        if value == 0:
            return 0
        raise OverflowError("overflow")
    return _mul(value, 1 << places)


def _register(function: Any) -> Any:
    from numba.extending import register_jitable

    return register_jitable(function)


_add_checked = _binary(operator.add, _add)
_sub_checked = _binary(operator.sub, _sub)
_mul_checked = _binary(operator.mul, _mul)
_divide_checked = _binary(operator.floordiv, _register(_divide))
_power_checked = _binary(operator.pow, _register(_power))
_shift_checked = _binary(operator.lshift, _register(_shift))


def _negate_checked(value: Any) -> Any:
    return -value


@overload(_negate_checked, strict=False)
def _negate(value: Any) -> Any:
    if isinstance(value, types.Integer):
        return lambda value: _sub(0, value)
    return lambda value: -value


def _abs_checked(value: Any) -> Any:
    return abs(value)


@overload(_abs_checked, strict=False)
def _abs(value: Any) -> Any:
    if isinstance(value, types.Integer):
        return lambda value: _sub(0, value) if value < 0 else value
    return lambda value: abs(value)


@intrinsic
def _truncate(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fptosi(args[0], llvm.IntType(64))

    return types.int64(types.float64), generate


@_register
def _whole(value: float) -> int:
    if value != value:
        raise ValueError("cannot convert float NaN to integer")
    if value >= 9223372036854775808.0 or value < -9223372036854775808.0:
        raise OverflowError("overflow")
    return _truncate(value)


def _int_checked(value: Any) -> Any:
    return int(value)


@overload(_int_checked, strict=False)
def _int(value: Any) -> Any:
    if isinstance(value, types.Float):
        return lambda value: _whole(value)
    return lambda value: int(value)


def _round_checked(value: Any, places: Any = None) -> Any:
    return round(value) if places is None else round(value, places)


@overload(_round_checked, strict=False)
def _round(value: Any, places: Any = None) -> Any:
    without = places is None or isinstance(places, (types.Omitted, types.NoneType))
    if without and isinstance(value, types.Float):
        return lambda value, places=None: _whole(_half_even(value))
    if without:
        return lambda value, places=None: round(value)
    return lambda value, places=None: round(value, places)


@_register
def _half_even(value: float) -> float:
    """Round to the nearest whole number, halves to the even one, as Python does."""
    if not abs(value) < 4503599627370496.0:  # no fractions from here on, nor in a NaN
        return value
    low = float(_truncate(value))
    if low > value:
        low -= 1.0
    rest = value - low
    if rest > 0.5 or (rest == 0.5 and low % 2.0 != 0.0):
        return low + 1.0
    return low


CHECKED_OPERATORS = {
    operator.add: _add_checked,
    operator.iadd: _add_checked,
    operator.sub: _sub_checked,
    operator.isub: _sub_checked,
    operator.mul: _mul_checked,
    operator.imul: _mul_checked,
    operator.floordiv: _divide_checked,
    operator.ifloordiv: _divide_checked,
    operator.pow: _power_checked,
    operator.ipow: _power_checked,
    operator.lshift: _shift_checked,
    operator.ilshift: _shift_checked,
    operator.neg: _negate_checked,
}
CHECKED_BUILTINS = {
    builtins.abs: _abs_checked,
    builtins.int: _int_checked,
    builtins.round: _round_checked,
}


class Int64(int):
    """A Python int with the rules of compiled integers: a result beyond 64 bits raises.

    >>> Int64(2**62) * 2
    Traceback (most recent call last):
    OverflowError: overflow
    """

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Int64:
        if not MIN <= value <= MAX:
            raise OverflowError("overflow")
        return super().__new__(cls, value)


def _wrapped(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: int, *others: Any) -> Any:
        if name in ("__pow__", "__rpow__") and all(isinstance(other, int) for other in others):
            exponent = self if name == "__rpow__" else others[0]
            if exponent < 0:
                raise ValueError(_NEGATIVE_EXPONENT)
            base = others[0] if name == "__rpow__" else self
            if exponent > 63 and base not in (-1, 0, 1):
                raise OverflowError("overflow")
        if name in ("__lshift__", "__rlshift__"):
            value, places = (self, others[0]) if name == "__lshift__" else (others[0], self)
            if places > 63 and value != 0:
                raise OverflowError("overflow")
        result = plain(self, *others)
        return Int64(result) if isinstance(result, int) else result

    return method


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod",
    "pow", "rpow", "lshift", "rlshift", "rshift", "rrshift", "neg", "pos", "abs", "invert",
    "and", "rand", "or", "ror", "xor", "rxor", "round",
):  # fmt: skip
    setattr(Int64, f"__{_name}__", _wrapped(f"__{_name}__"))
