"""Floats: the operations on floats whose Python meaning is not the processor's.

Compiled functions call the very functions of the C library that CPython calls, under names of our
own, because the optimiser rewrites a `pow` that it knows; and they raise what Python raises. An int
beside a float is compared exactly, and two ints are divided with one rounding.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

from headgate.compiling.optionals import is_optional, present
from headgate.compiling.refusals import Refusal
from headgate.state.compiled import overload

_DOMAIN = "math domain error"
_RANGE = "math range error"
_EXACT_MAX = 2**53  # every integer up to here is a float
_F64 = types.float64

# name -> whether a result beyond the largest float is an OverflowError (else a ValueError)
_ONE = {
    "acos": False, "acosh": False, "asin": False, "asinh": False, "atan": False, "atanh": False,
    "cbrt": False, "cos": False, "cosh": True, "erf": False, "erfc": False, "exp": True,
    "exp2": True, "expm1": True, "log1p": False, "sin": False, "sinh": True, "sqrt": False,
    "tan": False, "tanh": False,
}  # fmt: skip
_LOGARITHMS = ("log", "log2", "log10")
_TWO = ("pow", "fmod", "atan2", "copysign")


def _library() -> Any:
    """The C library's mathematics, as this process has it."""
    everything = ctypes.CDLL(None)
    return everything if hasattr(everything, "pow") else ctypes.CDLL("libm.so.6")


def _bind(name: str, arguments: int) -> Any:
    """A function of the C library that compiled code calls under the name headgate_<name>."""
    function = getattr(_library(), name)
    address = ctypes.cast(function, ctypes.c_void_p).value
    llvmlite.binding.add_symbol(f"headgate_{name}", address)
    return types.ExternalFunction(f"headgate_{name}", _F64(*[_F64] * arguments))


def _stub(name: str, implement: Callable[..., Any], *, several: bool = False) -> Any:
    """A function that compiles to what `implement` gives for numbers, and refuses all else."""
    if several:

        def call(left: Any, right: Any) -> Any:
            return getattr(math, name)(left, right)

        def choose(left: Any, right: Any) -> Any:
            if is_optional(left, right):
                return lambda left, right: call(present(left), present(right))
            _refuse_others(name, left, right)
            return implement(left, right)
    else:

        def call(value: Any) -> Any:  # type: ignore[misc]
            return getattr(math, name)(value)

        def choose(value: Any) -> Any:  # type: ignore[misc]
            if is_optional(value):
                return lambda value: call(present(value))  # type: ignore[call-arg]
            _refuse_others(name, value)
            return implement(value)

    call.__name__ = name
    overload(call)(choose)
    return call


def _refuse_others(name: str, *kinds: Any) -> None:
    for kind in kinds:
        if not isinstance(kind, (types.Integer, types.Float)):
            raise Refusal(f"math.{name} takes ints and floats, not {kind}; convert it first")


# --- functions of one and two floats --------------------------------------------------------------


def _one_float(name: str, may_overflow: bool) -> Any:
    library = _bind(name, 1)

    def implement(value: Any) -> Any:
        def compute(value: Any) -> Any:
            given = float(value)
            result = library(given)
            if result != result and given == given:
                raise ValueError(_DOMAIN)
            if math.isinf(result) and not math.isinf(given):
                if may_overflow:
                    raise OverflowError(_RANGE)
                raise ValueError(_DOMAIN)
            return result

        return compute

    return _stub(name, implement)


def _logarithm(name: str) -> Any:
    library = _bind(name, 1)

    @register_jitable
    def compute(value: Any) -> Any:
        given = float(value)
        if given != given or given == math.inf:
            return given
        if not given > 0.0:
            raise ValueError(_DOMAIN)
        return library(given)

    return compute


_log, _log2, _log10 = (_logarithm(name) for name in _LOGARITHMS)
_power, _remainder, _angle, _signed = (_bind(name, 2) for name in _TWO)


def _log_checked(value: Any, base: Any = None) -> Any:
    return math.log(value) if base is None else math.log(value, base)


@overload(_log_checked)
def _log_chosen(value: Any, base: Any = None) -> Any:
    without = base is None or isinstance(base, (types.Omitted, types.NoneType))
    if without and is_optional(value):
        return lambda value, base=None: _log_checked(present(value))
    if is_optional(value) or (not without and is_optional(base)):
        # In this order: what is wrong with the value is said before the base is looked at.
        return lambda value, base=None: _log_checked(present(value)) / _log_checked(present(base))
    _refuse_others("log", value)
    if without:
        return lambda value, base=None: _log(value)
    _refuse_others("log", base)
    return lambda value, base=None: _log(value) / _log(base)


def _power_checked(left: Any, right: Any) -> Any:
    def compute(left: Any, right: Any) -> Any:
        base, exponent = float(left), float(right)
        result = _power(base, exponent)
        if math.isfinite(result) or not (math.isfinite(base) and math.isfinite(exponent)):
            return result
        if result != result or base == 0.0:
            raise ValueError(_DOMAIN)
        raise OverflowError(_RANGE)

    return compute


def _remainder_checked(left: Any, right: Any) -> Any:
    def compute(left: Any, right: Any) -> Any:
        value, step = float(left), float(right)
        if math.isinf(step) and math.isfinite(value):
            return value
        result = _remainder(value, step)
        if result != result and value == value and step == step:
            raise ValueError(_DOMAIN)
        return result

    return compute


@register_jitable
def power(base: float, exponent: float) -> Any:
    """`base ** exponent` of floats as CPython computes it, where the result is a real number."""
    if base == 0.0 and exponent < 0.0 and math.isfinite(exponent):
        raise ZeroDivisionError("0.0 cannot be raised to a negative power")
    result = _power(base, exponent)
    if math.isinf(result) and math.isfinite(base) and math.isfinite(exponent):
        raise OverflowError("overflow")
    return result


# --- ints beside floats ---------------------------------------------------------------------------


@intrinsic
def truncate(typing_context: Any, value: Any) -> Any:
    """A float within 64 bits towards zero, as an int."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fptosi(args[0], llvm.IntType(64))

    return types.int64(types.float64), generate


@register_jitable
def order(whole: int, other: float) -> int:
    """-1, 0 or 1 as the int is less than, equal to or greater than a float that is not NaN."""
    if other >= 9223372036854775808.0:
        return -1
    if other < -9223372036854775808.0:
        return 1
    near = truncate(other)
    if whole != near:
        return -1 if whole < near else 1
    rest = other - float(near)  # both are exact, and so is their difference
    if rest == 0.0:
        return 0
    return -1 if rest > 0.0 else 1


@intrinsic
def _to_float(typing_context: Any, value: Any) -> Any:
    """An unsigned integer as the nearest float."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.uitofp(args[0], llvm.DoubleType())

    return types.float64(types.uint64), generate


@intrinsic
def _magnitude(typing_context: Any, value: Any) -> Any:
    """The absolute value of an int, which for the least one needs all 64 bits."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        is_less = builder.icmp_signed("<", args[0], args[0].type(0))
        return builder.select(is_less, builder.neg(args[0]), args[0])

    return types.uint64(types.int64), generate


@intrinsic
def _next_bit(typing_context: Any, quotient: Any, rest: Any, divisor: Any) -> Any:
    """One step of a long division: the quotient and rest with one more binary place."""
    pair = types.UniTuple(types.uint64, 2)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one = args[0].type(1)
        doubled = builder.shl(args[1], one)  # the rest is below 2**63, so no bit is lost
        fits = builder.icmp_unsigned(">=", doubled, args[2])
        left = builder.select(fits, builder.sub(doubled, args[2]), doubled)
        bit = builder.zext(fits, args[0].type)
        return cgutils.pack_array(builder, [builder.or_(builder.shl(args[0], one), bit), left])

    return pair(types.uint64, types.uint64, types.uint64), generate


@register_jitable
def quotient(left: int, right: int) -> Any:
    """`left / right` of ints, rounded once as Python does, though neither may be a float."""
    if right == 0:
        raise ZeroDivisionError("division by zero")
    near = -_EXACT_MAX <= left <= _EXACT_MAX and -_EXACT_MAX <= right <= _EXACT_MAX
    if near:
        return float(left) / float(right)
    if left == 0:
        return -0.0 if right < 0 else 0.0
    value, divisor = _magnitude(left), _magnitude(right)
    result = _rounded_once(value // divisor, value % divisor, divisor)
    return -result if (left < 0) != (right < 0) else result


@register_jitable
def _rounded_once(bits: int, rest: int, divisor: int) -> Any:
    """The float nearest to a quotient, by its whole part and the rest."""
    # A float has 53 bits. Of the quotient there are at least 56, the last of which says whether
    # anything follows, so that turning them into a float rounds once, as the exact quotient would;
    # the scale is a power of two and changes no bit.
    scale = 1.0
    while bits < types.uint64(1 << 55):
        bits, rest = _next_bit(bits, rest, divisor)
        scale *= 0.5
    if rest != types.uint64(0):
        bits = bits | types.uint64(1)  # there is more behind: no tie
    return _to_float(bits) * scale


@register_jitable
def wide_quotient(upper: int, lower: int, count: int) -> Any:
    """`(upper * 2**32 + lower) / count`, rounded once, of a sum of `count` ints of 64 bits that
    itself may need more; `lower` has 32 bits."""
    is_negative = upper < 0
    if is_negative:
        upper, lower = (-upper, 0) if lower == 0 else (-upper - 1, 2**32 - lower)
    one, below, divisor = types.uint64(1), types.uint64(lower), types.uint64(count)
    bits, rest = types.uint64(upper) // divisor, types.uint64(upper) % divisor
    for place in range(31, -1, -1):  # the whole quotient has 64 bits, for so have the ints
        bits, rest = bits << one, (rest << one) | ((below >> types.uint64(place)) & one)
        if rest >= divisor:
            bits, rest = bits | one, rest - divisor
    result = _rounded_once(bits, rest, divisor)
    return -result if is_negative else result


# --- rounding -------------------------------------------------------------------------------------

_PLACES_MAX = 323  # from here on every float is its own rounding
_print_address = ctypes.cast(_library().snprintf, ctypes.c_void_p).value
_read_address = ctypes.cast(_library().strtod, ctypes.c_void_p).value
llvmlite.binding.add_symbol("headgate_snprintf", _print_address)
llvmlite.binding.add_symbol("headgate_strtod", _read_address)
_ROOM = 768  # bytes: 309 digits, the point, 323 places and a sign


@intrinsic
def _through_text(typing_context: Any, value: Any, places: Any) -> Any:
    """A float written with that many places and read again: both are rounded exactly once."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        byte, whole = llvm.IntType(8), llvm.IntType(64)
        pointer = byte.as_pointer()
        room = cgutils.alloca_once(builder, byte, size=_ROOM)
        form = context.insert_const_string(builder.module, "%.*f")
        print_type = llvm.FunctionType(llvm.IntType(32), [pointer, whole, pointer], var_arg=True)
        written = cgutils.get_or_insert_function(builder.module, print_type, "headgate_snprintf")
        places_32 = builder.trunc(args[1], llvm.IntType(32))
        builder.call(written, [room, whole(_ROOM), form, places_32, args[0]])
        read_type = llvm.FunctionType(llvm.DoubleType(), [pointer, pointer.as_pointer()])
        read = cgutils.get_or_insert_function(builder.module, read_type, "headgate_strtod")
        return builder.call(read, [room, pointer.as_pointer()(None)])

    return types.float64(types.float64, types.int64), generate


@register_jitable
def round_places(value: float, places: int) -> Any:
    """`round(value, places)` of a float, for places that are not negative."""
    if not math.isfinite(value) or places > _PLACES_MAX:
        return value
    return _through_text(value, places)


@register_jitable
def half_even(value: float) -> float:
    """Round to the nearest whole number, halves to the even one, as Python does."""
    if not abs(value) < 4503599627370496.0:  # no fractions from here on, nor in a NaN
        return value
    low = float(truncate(value))
    if low > value:
        low -= 1.0
    rest = value - low
    if rest > 0.5 or (rest == 0.5 and low % 2.0 != 0.0):
        return low + 1.0
    return low


@register_jitable
def whole(value: float) -> Any:
    """A float as an int, towards zero."""
    if value != value:
        raise ValueError("cannot convert float NaN to integer")
    if value >= 9223372036854775808.0 or value < -9223372036854775808.0:
        raise OverflowError("overflow")
    return truncate(value)


def _to_whole(name: str) -> Any:
    direct = getattr(math, name)

    def implement(value: Any) -> Any:
        if not isinstance(value, types.Float):
            return lambda value: int(value)

        def compute(value: Any) -> Any:
            if not abs(value) < 4503599627370496.0:
                return whole(value)
            return int(direct(value))

        return compute

    return _stub(name, implement)


# --- the table ------------------------------------------------------------------------------------


def _test(name: str, test: Any) -> Any:
    jitable = register_jitable(test)
    return _stub(name, lambda value: lambda value: jitable(float(value)))


_DEGREES, _RADIANS = 180.0 / math.pi, math.pi / 180.0
MATH: dict[Any, Any] = {
    **{getattr(math, name): _one_float(name, over) for name, over in _ONE.items()},
    math.log: _log_checked,
    math.log2: _stub("log2", lambda value: lambda value: _log2(value)),
    math.log10: _stub("log10", lambda value: lambda value: _log10(value)),
    math.pow: _stub("pow", _power_checked, several=True),
    math.fmod: _stub("fmod", _remainder_checked, several=True),
    math.atan2: _stub(
        "atan2",
        lambda left, right: lambda left, right: _angle(float(left), float(right)),
        several=True,
    ),
    math.copysign: _stub(
        "copysign",
        lambda left, right: lambda left, right: _signed(float(left), float(right)),
        several=True,
    ),
    math.fabs: _stub("fabs", lambda value: lambda value: abs(float(value))),
    math.degrees: _stub("degrees", lambda value: lambda value: float(value) * _DEGREES),
    math.radians: _stub("radians", lambda value: lambda value: float(value) * _RADIANS),
    math.isnan: _test("isnan", lambda value: value != value),
    math.isinf: _test("isinf", lambda value: value == math.inf or value == -math.inf),
    math.isfinite: _test("isfinite", lambda value: value - value == 0.0),  # else it is NaN
    math.floor: _to_whole("floor"),
    math.ceil: _to_whole("ceil"),
    math.trunc: _to_whole("trunc"),
}
