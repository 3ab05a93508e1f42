"""Exact sums of floats: what was added can be taken away again, and nothing is lost between.

A sum is a number of 2112 bits, in limbs of 32: every double is a whole number of the smallest one.
It is rounded once, when somebody reads it. So it is the same whatever order the values came in, and
whatever came and went beside them, which no sum that is rounded at each step can promise.

Invariant: each limb is the sum of what the present values have there. Carries are made in a copy,
so that taking a value away undoes its addition word by word.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.compiled import linked
from headgate.state.words import set_word as put
from headgate.state.words import word_at as get

LIMBS = 66
NANS, HIGH, LOW = LIMBS, LIMBS + 1, LIMBS + 2  # how many are no number, inf and -inf
SUM_WORDS = LIMBS + 3
SCRATCH_WORDS = LIMBS + 6
_LIMB_BITS, _LIMB_MASK = 32, np.int64(0xFFFFFFFF)
_FRACTION_BITS, _INFINITE = 52, 0x7FF
_FRACTION = np.int64((1 << 52) - 1)
_INFINITY, _NAN = np.int64(0x7FF << 52), np.int64(0x7FF8 << 48)
_SIGN = np.int64(-(2**63))


@linked
def add_exactly(total: int, bits: int, times: int) -> None:
    """Add a double to a sum, by its bits; with -1 for `times` take it away."""
    exponent, value = (bits >> _FRACTION_BITS) & _INFINITE, bits & _FRACTION
    if exponent == _INFINITE:
        place = NANS if value != 0 else (HIGH if bits >= 0 else LOW)
        put(total, place, get(total, place) + times)
        return
    if exponent > 0:
        value |= np.int64(1) << _FRACTION_BITS
        exponent -= 1
    if bits < 0:
        times = -times
    limb, shift = exponent >> 5, exponent & 31
    # No more than 63 and 52 bits: neither half of the value is cut off.
    low, high = (value & _LIMB_MASK) << shift, (value >> _LIMB_BITS) << shift
    middle = (low >> _LIMB_BITS) + (high & _LIMB_MASK)
    put(total, limb, get(total, limb) + times * (low & _LIMB_MASK))
    put(total, limb + 1, get(total, limb + 1) + times * middle)
    put(total, limb + 2, get(total, limb + 2) + times * (high >> _LIMB_BITS))


@linked
def _carried(total: int, digits: int) -> Any:
    """The digits of a sum without its sign, each of a limb's bits; returns whether it is below 0.

    Three more than there are limbs: one takes the last carry, two are read and always 0.
    """
    carry = np.int64(0)
    for place in range(LIMBS):
        value = get(total, place) + carry
        put(digits, place, value & _LIMB_MASK)
        carry = value >> _LIMB_BITS
    is_below = carry < 0
    if is_below:
        more = np.int64(1)
        for place in range(LIMBS):
            value = (get(digits, place) ^ _LIMB_MASK) + more
            put(digits, place, value & _LIMB_MASK)
            more = value >> _LIMB_BITS
        carry = ~carry + more
    put(digits, LIMBS, carry)
    put(digits, LIMBS + 1, 0)
    put(digits, LIMBS + 2, 0)
    return is_below


@linked
def rounded(total: int, digits: int) -> Any:
    """The bits of the double that is nearest to a sum, the even one of two; `digits` is scratch."""
    if get(total, NANS) != 0 or (get(total, HIGH) != 0 and get(total, LOW) != 0):
        return _NAN
    if get(total, HIGH) != 0:
        return _INFINITY
    if get(total, LOW) != 0:
        return _INFINITY | _SIGN
    sign = _SIGN if _carried(total, digits) else np.int64(0)
    top = LIMBS
    while top >= 0 and get(digits, top) == 0:
        top -= 1
    if top < 0:
        return np.int64(0)
    last = np.int64(_LIMB_BITS * top - 1)  # the highest bit that is set
    word = get(digits, top)
    while word > 0:
        word >>= 1
        last += 1
    if last <= _FRACTION_BITS:
        return get(digits, 0) | get(digits, 1) << _LIMB_BITS | sign
    drop = last - _FRACTION_BITS
    if drop + 1 >= _INFINITE:
        return _INFINITY | sign
    found = (drop << _FRACTION_BITS) + _mantissa(digits, drop)
    # Rounded up to a power of two, the fraction runs over into the exponent, as it should.
    return min(found, _INFINITY) | sign


@linked
def _mantissa(digits: int, drop: int) -> Any:
    """The bits from one on, rounded by those below it."""
    limb, shift = drop >> 5, drop & 31
    value = get(digits, limb) >> shift | get(digits, limb + 1) << (_LIMB_BITS - shift)
    if shift > 0:
        value |= get(digits, limb + 2) << (2 * _LIMB_BITS - shift)
    value &= (_FRACTION << 1) | 1
    half = drop - 1
    limb, shift = half >> 5, half & 31
    word = get(digits, limb)
    if word >> shift & 1 == 0:
        return value
    rest = word & ((np.int64(1) << shift) - 1)
    while rest == 0 and limb > 0:
        limb -= 1
        rest = get(digits, limb)
    return value + 1 if rest != 0 or value & 1 else value
