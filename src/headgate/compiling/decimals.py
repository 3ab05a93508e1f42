"""Decimals: exact decimal arithmetic in compiled transactions.

A decimal is a 128-bit integer scaled by a power of ten that the type knows, so sums and products
of columns are exact as in Python's `decimal`. Storing into a column rounds half up to its scale; a
value with more digits than the column is an OverflowError. `digits` bounds the size when compiling:
a product that might not fit 128 bits is refused where it is written. Sums may outgrow that bound in
a loop, so that each result is checked as well: beyond 128 bits it is an OverflowError, here and in
`Exact`, the decimals of plain functions.
"""

from __future__ import annotations

import decimal as python_decimal
import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typeconv import Conversion
from numba.extending import intrinsic, lower_cast, models, register_model

from headgate.compiling.floats import quotient
from headgate.compiling.refusals import ALWAYS, Refusal
from headgate.state.compiled import overload

I128 = ir.IntType(128)
I64 = ir.IntType(64)
INTEGER_DIGITS = 18
# 36 digits in 128 bits leave room for a sum of a hundred of the largest values.
DIGITS_MAX = 36
_CHUNK_DIGITS = 9  # the most whose power of ten fits the 32-bit steps of a long division


class DecimalType(types.Type):
    """A decimal with that many places after the point and at most that many digits."""

    def __init__(self, scale: int, digits: int) -> None:
        self.scale = scale
        self.digits = digits
        super().__init__(name=f"decimal({digits},{scale})")

    def unify(self, typing_context: Any, other: Any) -> Any:
        """What a variable is that holds this here and the other there: both exactly."""
        if isinstance(other, (types.Integer, DecimalType)):
            return _common(self, other)
        return None

    def can_convert_from(self, typing_context: Any, other: Any) -> Any:
        fits = isinstance(other, types.Integer) or (
            isinstance(other, DecimalType) and other.scale <= self.scale
        )
        return Conversion.safe if fits else None


@register_model(DecimalType)
class _DecimalModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, I128)


def _as_decimal(kind: Any) -> DecimalType | None:
    if isinstance(kind, DecimalType):
        return kind
    return DecimalType(0, INTEGER_DIGITS) if isinstance(kind, types.Integer) else None


def _common(left: Any, right: Any) -> DecimalType:
    """The type that holds both sides at the larger scale."""
    one, other = _as_decimal(left), _as_decimal(right)
    if one is None or other is None:
        raise Refusal(f"{left} and {right} do not mix")
    scale = max(one.scale, other.scale)
    digits = max(one.digits - one.scale, other.digits - other.scale) + scale
    return _bounded(scale, digits)


def _bounded(scale: int, digits: int) -> DecimalType:
    if digits > DIGITS_MAX:
        raise Refusal(
            f"a decimal of {digits} digits is too large to be exact; "
            "store the product in a column first or declare fewer digits"
        )
    return DecimalType(scale, digits)


def _scaled(context: Any, builder: Any, value: Any, kind: Any, scale: int) -> tuple[Any, Any]:
    """An integer or decimal as a 128-bit integer at this scale, and whether that lost bits."""
    have = kind.scale if isinstance(kind, DecimalType) else 0
    if isinstance(kind, types.Integer):
        value = builder.sext(context.cast(builder, value, kind, types.int64), I128)
    if scale <= have:
        return value, ir.Constant(ir.IntType(1), 0)
    return _product(builder, value, I128(10 ** (scale - have)))


def _prepare(context: Any, builder: Any, value: Any, kind: Any, scale: int) -> Any:
    """The same; OverflowError where bits are lost."""
    wide, lost = _scaled(context, builder, value, kind, scale)
    _raise_if(context, builder, lost)
    return wide


def _raise_if(context: Any, builder: Any, lost: Any) -> None:
    with builder.if_then(lost, likely=False):
        context.call_conv.return_user_exc(builder, OverflowError, ("overflow",))


def _product(builder: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """The product of 128-bit integers, and whether it is beyond them.

    LLVM would call a library for that question, which a JIT may not find. Of the magnitudes'
    halves, at most one of the upper ones may count, and its product must not leave 64 bits.
    """
    ones = []
    for value in (left, right):
        below = builder.icmp_signed("<", value, I128(0))
        ones.append((below, builder.select(below, builder.neg(value), value)))
    (negative, one), (other_negative, other) = ones
    upper, other_upper = (builder.lshr(size, I128(64)) for size in (one, other))
    lower, other_lower = (builder.and_(size, I128(2**64 - 1)) for size in (one, other))
    crossed = builder.add(builder.mul(upper, other_lower), builder.mul(lower, other_upper))
    sum_ = builder.uadd_with_overflow(
        builder.shl(crossed, I128(64)), builder.mul(lower, other_lower)
    )
    size = builder.extract_value(sum_, 0)
    is_negative = builder.xor(negative, other_negative)
    # The magnitude of the least number is one more than that of the greatest.
    bound = builder.add(I128(2**127 - 1), builder.zext(is_negative, I128))
    zero = I128(0)
    both = builder.and_(
        builder.icmp_unsigned("!=", upper, zero), builder.icmp_unsigned("!=", other_upper, zero)
    )
    far = builder.icmp_unsigned(">", crossed, I128(2**64 - 1))
    lost = builder.or_(builder.or_(both, far), builder.extract_value(sum_, 1))
    lost = builder.or_(lost, builder.icmp_unsigned(">", size, bound))
    return builder.select(is_negative, builder.neg(size), size), lost


@lower_cast(types.Integer, DecimalType)
@lower_cast(DecimalType, DecimalType)
def _cast(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return _prepare(context, builder, value, source, target.scale)


def _sum_intrinsic(instruction: str) -> Any:
    @intrinsic
    def combine(typing_context: Any, left: Any, right: Any) -> Any:
        result = _common(left, right)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            one = _prepare(context, builder, args[0], left, result.scale)
            other = _prepare(context, builder, args[1], right, result.scale)
            pair = getattr(builder, instruction)(one, other)
            _raise_if(context, builder, builder.extract_value(pair, 1))
            return builder.extract_value(pair, 0)

        return result(left, right), generate

    return combine


_add = _sum_intrinsic("sadd_with_overflow")
_sub = _sum_intrinsic("ssub_with_overflow")


@intrinsic
def _mul(typing_context: Any, left: Any, right: Any) -> Any:
    one, other = _as_decimal(left), _as_decimal(right)
    if one is None or other is None:
        raise Refusal(f"{left} and {right} do not mix")
    result = _bounded(one.scale + other.scale, one.digits + other.digits)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = _prepare(context, builder, args[0], left, one.scale)
        second = _prepare(context, builder, args[1], right, other.scale)
        product, lost = _product(builder, first, second)
        _raise_if(context, builder, lost)
        return product

    return result(left, right), generate


def _compare_intrinsic(sign: str) -> Any:
    @intrinsic
    def compare(typing_context: Any, left: Any, right: Any) -> Any:
        scale = _common(left, right).scale

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            one, is_far = _scaled(context, builder, args[0], left, scale)
            other, is_other_far = _scaled(context, builder, args[1], right, scale)
            found = builder.icmp_signed(sign, one, other)
            # At most one side changes its scale; one that is then beyond 128 bits is the farther.
            own = builder.icmp_signed(sign, _sign_of(builder, args[0], left), I128(0))
            others = builder.icmp_signed(sign, I128(0), _sign_of(builder, args[1], right))
            found = builder.select(is_far, own, found)
            return builder.select(is_other_far, others, found)

        return types.boolean(left, right), generate

    return compare


def _sign_of(builder: Any, value: Any, kind: Any) -> Any:
    """A number of the same sign in 128 bits."""
    return value if isinstance(kind, DecimalType) else builder.sext(value, I128)


def _mixes(left: Any, right: Any, always: str = "") -> bool:
    """Whether this pair is ours; a decimal beside a float is refused here."""
    if not isinstance(left, DecimalType) and not isinstance(right, DecimalType):
        return False
    for side in (left, right):
        if isinstance(side, types.Float):
            raise Refusal(
                "a decimal and a double do not mix, the result would not be exact; "
                'write the constant as hg.decimal("0.05") or convert with float()' + always
            )
    return _as_decimal(left) is not None and _as_decimal(right) is not None


def _register_binary(function: Any, implementation: Any) -> None:
    # Python compares a decimal with a float, but does not compute with the two.
    always = ALWAYS if function in (operator.add, operator.sub, operator.mul) else ""

    @overload(function)
    def binary(left: Any, right: Any) -> Any:
        if _mixes(left, right, always):
            return lambda left, right: implementation(left, right)
        return None


for _function, _implementation in (
    (operator.add, _add),
    (operator.sub, _sub),
    (operator.mul, _mul),
    (operator.lt, _compare_intrinsic("<")),
    (operator.le, _compare_intrinsic("<=")),
    (operator.gt, _compare_intrinsic(">")),
    (operator.ge, _compare_intrinsic(">=")),
    (operator.eq, _compare_intrinsic("==")),
    (operator.ne, _compare_intrinsic("!=")),
):
    _register_binary(_function, _implementation)


def _register_refusal(function: Any, name: str) -> None:
    @overload(function)
    def refuse(left: Any, right: Any) -> Any:
        if isinstance(left, DecimalType) or isinstance(right, DecimalType):
            raise Refusal(
                f"{name} of decimals has no exact result; "
                "multiply by a decimal constant, or convert with float() first"
            )
        return None


_register_refusal(operator.truediv, "division")
_register_refusal(operator.floordiv, "division")
_register_refusal(operator.mod, "the remainder")
_register_refusal(operator.pow, "a power")


@intrinsic
def _negate(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pair = builder.ssub_with_overflow(I128(0), args[0])
        _raise_if(context, builder, builder.extract_value(pair, 1))
        return builder.extract_value(pair, 0)

    return value(value), generate


@overload(operator.neg)
def _neg(value: Any) -> Any:
    return (lambda value: _negate(value)) if isinstance(value, DecimalType) else None


@overload(bool)
def _truth(value: Any) -> Any:
    return (lambda value: value != 0) if isinstance(value, DecimalType) else None


@overload(operator.not_)
def _not(value: Any) -> Any:
    return (lambda value: value == 0) if isinstance(value, DecimalType) else None


@overload(abs)
def _abs(value: Any) -> Any:
    if isinstance(value, DecimalType):
        return lambda value: -value if value < 0 else value + 0
    return None


@overload(min)
def _min(left: Any, right: Any) -> Any:
    return (lambda left, right: right if right < left else left) if _mixes(left, right) else None


@overload(max)
def _max(left: Any, right: Any) -> Any:
    return (lambda left, right: right if right > left else left) if _mixes(left, right) else None


@intrinsic(prefer_literal=True)
def decimal_constant(typing_context: Any, text: Any) -> Any:
    """A literal as a decimal with the places that it was written with."""
    try:
        number = python_decimal.Decimal(text.literal_value)
    except (python_decimal.InvalidOperation, AttributeError):
        raise Refusal(f"decimal() needs a literal like '0.05', not {text}") from None
    if not number.is_finite():
        raise Refusal(f"decimal({text.literal_value!r}) is not finite")
    exponent = number.as_tuple().exponent
    scale = max(0, -int(exponent))
    value = int(number.scaleb(scale))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return I128(value)

    return _bounded(scale, max(len(str(abs(value))), scale, 1))(text), generate


def _one_word(context: Any, builder: Any, wide: Any) -> Any:
    """The 64 bits of a 128-bit integer that fits them; else an OverflowError."""
    word = builder.trunc(wide, I64)
    lost = builder.icmp_signed("!=", builder.sext(word, I128), wide)
    with builder.if_then(lost, likely=False):
        context.call_conv.return_user_exc(builder, OverflowError, ("overflow",))
    return word


@intrinsic
def _whole(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = _shift_down(builder, args[0], value.scale, half_up=False)
        return _one_word(context, builder, whole)

    return types.int64(value), generate


@intrinsic
def _digits(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _one_word(context, builder, args[0])

    return types.int64(value), generate


@overload(int)
def _int(value: Any) -> Any:
    if isinstance(value, DecimalType):
        return lambda value: _whole(value)
    return None


@overload(float)
def _float(value: Any) -> Any:
    if not isinstance(value, DecimalType):
        return None
    if value.digits > INTEGER_DIGITS:
        raise Refusal("float() of a product of decimals; store it in a column first")
    divisor = 10**value.scale
    return lambda value: quotient(_digits(value), divisor)  # rounded once, as Python does


def _shift_down(builder: Any, value: Any, places: int, *, half_up: bool) -> Any:
    """value / 10**places towards zero, or rounded half away from zero.

    LLVM would call a library for a 128-bit division, which a JIT may not find; dividing 32-bit
    limbs by at most 10**9 at a time is plain 64-bit arithmetic.
    """
    if places == 0:
        return value
    negative = builder.icmp_signed("<", value, I128(0))
    magnitude = builder.select(negative, builder.neg(value), value)
    if half_up:
        magnitude = builder.add(magnitude, I128(5 * 10 ** (places - 1)))
    while places > 0:
        step = min(places, _CHUNK_DIGITS)
        magnitude = _divide_limbs(builder, magnitude, 10**step)
        places -= step
    return builder.select(negative, builder.neg(magnitude), magnitude)


def _divide_limbs(builder: Any, value: Any, divisor: int) -> Any:
    quotient, remainder = I128(0), I64(0)
    for limb in (3, 2, 1, 0):
        part = builder.trunc(builder.lshr(value, I128(32 * limb)), ir.IntType(32))
        current = builder.or_(builder.shl(remainder, I64(32)), builder.zext(part, I64))
        share = builder.zext(builder.udiv(current, I64(divisor)), I128)
        quotient = builder.or_(builder.shl(quotient, I128(32)), share)
        remainder = builder.urem(current, I64(divisor))
    return quotient


def store_decimal(
    context: Any, builder: Any, kind: Any, value: Any, precision: int, scale: int
) -> Any:
    """The int64 a decimal(precision, scale) column stores for this integer or decimal."""
    have = kind.scale if isinstance(kind, DecimalType) else 0
    wide = _prepare(context, builder, value, kind, max(scale, have))
    exact = _shift_down(builder, wide, max(scale, have) - scale, half_up=True)
    bound = I128(10**precision)
    over = builder.icmp_signed(">=", exact, bound)
    under = builder.icmp_signed("<=", exact, builder.neg(bound))
    with builder.if_then(builder.or_(over, under), likely=False):
        context.call_conv.return_user_exc(builder, OverflowError, ("overflow",))
    return builder.trunc(exact, I64)
