"""Integers: 64-bit arithmetic that raises OverflowError where Numba's would wrap around.

A transaction that leaves 64 bits aborts; it never goes on with a wrong number. `plain.Int64` is the
same rule for functions that run as plain Python.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic, register_jitable

from headgate.compiling.floats import quotient
from headgate.compiling.uncompiled import MIN, NEGATIVE_EXPONENT

_NEGATIVE_SHIFT = "negative shift count"


def is_integer(*kinds: Any) -> bool:
    """Whether these are integers or booleans."""
    return all(isinstance(kind, (types.Integer, types.Boolean)) for kind in kinds)


def is_mixed(left: Any, right: Any) -> bool:
    """Whether one is an integer or boolean and the other a float."""
    pair = (left, right)
    return any(isinstance(kind, types.Float) for kind in pair) and any(map(is_integer, pair))


# --- sums, products, quotients --------------------------------------------------------------------


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


add = _exact("sadd_with_overflow")
subtract = _exact("ssub_with_overflow")
multiply = _exact("smul_with_overflow")


@register_jitable
def divide(left: int, right: int) -> int:
    if right == -1:  # the processor traps at the least integer
        return subtract(0, left)
    return int(left) // int(right)


@register_jitable
def whole_quotient(left: int, right: int) -> Any:
    return quotient(int(left), int(right))


@register_jitable
def rest(left: int, right: int) -> int:
    return 0 if right == -1 else int(left) % int(right)


@register_jitable
def whole_power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise ValueError(NEGATIVE_EXPONENT)
    result, square = 1, int(base)
    remaining = int(exponent)
    while True:
        if remaining & 1:
            result = multiply(result, square)
        remaining >>= 1
        if remaining == 0:  # before the next square: one that is not needed might overflow
            return result
        square = multiply(square, square)


@register_jitable
def shift(value: int, places: int) -> int:
    if places < 0:
        raise ValueError(_NEGATIVE_SHIFT)
    if places > 62:
        if value == 0:
            return 0
        if value == -1 and places == 63:
            return MIN
        raise OverflowError("overflow")
    return multiply(value, 1 << places)


@register_jitable
def shift_down(value: int, places: int) -> int:
    if places < 0:
        raise ValueError(_NEGATIVE_SHIFT)
    return value >> min(places, 63)


@register_jitable
def negate(value: int) -> int:
    return subtract(0, value)


@register_jitable
def absolute(value: int) -> int:
    return subtract(0, value) if value < 0 else value


@register_jitable
def itself(value: int) -> int:
    return value
