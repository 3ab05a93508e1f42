"""Operators: Python's operators, builtins and functions of whole numbers, as they compile.

The tables at the end say what is called instead of each. Invariant: what is called gives Python's
own result for values of these kinds, or raises what Python raises; where it cannot, the line is
refused. Integers go to `integers`, floats to `floats`, and all other kinds to what Numba has.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.extending import register_jitable

from headgate.compiling.floats import (
    MATH,
    half_even,
    order,
    power,
    round_places,
    whole,
)
from headgate.compiling.integers import (
    absolute,
    add,
    divide,
    is_integer,
    is_mixed,
    itself,
    multiply,
    negate,
    rest,
    shift,
    shift_down,
    subtract,
    whole_power,
    whole_quotient,
)
from headgate.compiling.optionals import (
    holds_none,
    inner_of,
    is_none,
    is_none_type,
    is_optional,
    opposite,
    present,
)
from headgate.compiling.refusals import Refusal
from headgate.state.compiled import overload

_SIGNS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.lshift: "<<", operator.rshift: ">>",
}  # fmt: skip
Choice = Callable[..., Any]


def _binary(function: Choice, on_integers: Any) -> Any:
    """`function`, but `on_integers` for two integers; a boolean counts as a number on the right."""

    def combine(left: Any, right: Any) -> Any:
        return function(left, right)

    combine.__name__ = function.__name__  # messages name the operation

    @overload(combine)
    def choose(left: Any, right: Any) -> Any:
        if is_optional(left, right):
            return lambda left, right: combine(present(left), present(right))
        if isinstance(left, types.Boolean) and is_integer(right) and function in _SIGNS:
            # Python's own integer would come of it in a plain function, which has no 64 bits.
            sign = _SIGNS[function]
            raise Refusal(f"a boolean stands left of {sign}; write int(...) around it")
        if is_integer(left, right):
            return lambda left, right: on_integers(left, right)
        return lambda left, right: function(left, right)

    return combine


def real_power(left: Any, right: Any) -> Any:
    """`left ** right` where the result is known to be real: of a constant whole exponent, say."""
    return left**right


def _power_checked(left: Any, right: Any) -> Any:
    return left**right


def _power_of_floats(left: Any, right: Any) -> Any:
    return lambda left, right: power(float(left), float(right))


@overload(real_power)
def _choose_real_power(left: Any, right: Any) -> Any:
    if is_optional(left, right):
        return lambda left, right: real_power(present(left), present(right))
    if is_mixed(left, right) or (isinstance(left, types.Float) and isinstance(right, types.Float)):
        return _power_of_floats(left, right)
    return lambda left, right: _power_checked(left, right)


@overload(_power_checked)
def _choose_power(left: Any, right: Any) -> Any:
    if is_optional(left, right):
        return lambda left, right: _power_checked(present(left), present(right))
    if isinstance(left, types.Boolean) and is_integer(right):
        raise Refusal("a boolean stands left of **; write int(...) around it")
    if is_integer(left, right):
        return lambda left, right: whole_power(left, right)
    if isinstance(right, types.Float):
        raise Refusal(
            "a negative number to a fractional power is a complex number in Python; "
            "use math.pow(x, y), which raises there, or math.sqrt(x)"
        )
    if isinstance(left, types.Float) and is_integer(right):
        return _power_of_floats(left, right)
    return lambda left, right: left**right


_power_checked.__name__ = real_power.__name__ = "pow"


def _unary(function: Choice, name: str, on_integers: Any) -> Any:
    def compute(value: Any) -> Any:
        return function(value)

    compute.__name__ = name

    @overload(compute)
    def choose(value: Any) -> Any:
        if is_optional(value):
            return lambda value: compute(present(value))
        if isinstance(value, types.Boolean):
            raise Refusal(f"{name} of a boolean; write int(...) around it")
        if isinstance(value, types.Integer):
            return lambda value: on_integers(value)
        return lambda value: function(value)

    return compute


# --- comparisons ----------------------------------------------------------------------------------


def _comparison(function: Choice) -> Any:
    """`function`, exact also between an integer and a float."""

    def compare(left: Any, right: Any) -> Any:
        return function(left, right)

    compare.__name__ = function.__name__
    unequal = function is operator.ne

    def of_optionals(left: Any, right: Any) -> Any:
        """None is equal to itself alone, and is neither less nor more than anything."""
        if function not in (operator.eq, operator.ne):
            return lambda left, right: compare(present(left), present(right))
        if is_none_type(left) or is_none_type(right):
            return lambda left, right: (is_none(left) == is_none(right)) != unequal

        def compare_values(left: Any, right: Any) -> Any:
            if is_none(left) or is_none(right):
                return (is_none(left) == is_none(right)) != unequal
            return compare(present(left), present(right))

        return compare_values

    @overload(compare)
    def choose(left: Any, right: Any) -> Any:
        if any(holds_none(kind) for kind in (left, right)):
            raise Refusal("a tuple with what may be None is compared; compare its parts")
        if is_optional(left, right):
            return of_optionals(left, right)
        if not is_mixed(left, right):
            return lambda left, right: function(left, right)
        if isinstance(right, types.Float):

            def to_float(left: Any, right: Any) -> Any:
                if right != right:
                    return unequal
                return function(order(int(left), right), 0)

            return to_float

        def to_integer(left: Any, right: Any) -> Any:
            if left != left:
                return unequal
            return function(0, order(int(right), left))

        return to_integer

    return compare


def _identity(function: Choice) -> Any:
    """`is`: of None and of booleans; two equal numbers may be two objects in Python."""
    equal, negated = _equal_checked, function is operator.is_not

    def compare(left: Any, right: Any) -> Any:
        return function(left, right)

    compare.__name__ = function.__name__

    @overload(compare)
    def choose(left: Any, right: Any) -> Any:
        if is_none_type(left) or is_none_type(right):
            return lambda left, right: (is_none(left) and is_none(right)) != negated
        for kind in map(inner_of, (left, right)):
            is_value = isinstance(kind, (types.Number, types.Literal)) or str(kind) == "text"
            if is_value and not isinstance(kind, types.Boolean):
                raise Refusal("`is` compares objects, not values; write == or !=")
        if is_optional(left, right):  # of booleans, of which there is one each, as of None
            return lambda left, right: equal(left, right) != negated
        return lambda left, right: function(left, right)

    return compare


def _contains_checked(container: Any, item: Any) -> Any:
    return item in container


@overload(_contains_checked)
def _contains(container: Any, item: Any) -> Any:
    if holds_none(container) or is_none_type(item):
        raise Refusal("`in` among what may be None; compare with == one by one")
    if is_optional(item):
        return lambda container, item: False if is_none(item) else present(item) in container
    kinds = [item, *(container.types if isinstance(container, types.BaseTuple) else ())]
    if isinstance(container, types.List):
        kinds.append(container.dtype)
    if any(isinstance(kind, types.Float) for kind in kinds):
        raise Refusal("`in` among floats; compare with == one by one")
    if type(container).__name__ == "ItemsType":
        raise Refusal("`in` an array; write a loop that compares with ==")
    return lambda container, item: item in container


# --- builtins -------------------------------------------------------------------------------------


def _int_checked(value: Any) -> Any:
    return int(value)


@overload(_int_checked)
def _int(value: Any) -> Any:
    if is_optional(value):
        return lambda value: _int_checked(present(value))
    if isinstance(value, types.Float):
        return lambda value: whole(value)
    return lambda value: int(value)


def _float_checked(value: Any) -> Any:
    return float(value)


@overload(_float_checked)
def _float(value: Any) -> Any:
    if is_optional(value):
        return lambda value: _float_checked(present(value))
    if isinstance(value, types.Boolean):
        return lambda value: 1.0 if value else 0.0
    return lambda value: float(value)


def _round_checked(value: Any, places: Any = None) -> Any:
    return round(value) if places is None else round(value, places)


@overload(_round_checked, prefer_literal=True)
def _round(value: Any, places: Any = None) -> Any:
    without = places is None or isinstance(places, (types.Omitted, types.NoneType))
    if is_optional(value):
        if without:
            return lambda value, places=None: _round_checked(present(value))
        return lambda value, places=None: _round_checked(present(value), places)
    if without and isinstance(value, types.Float):
        return lambda value, places=None: whole(half_even(value))
    if without and is_integer(value):
        return lambda value, places=None: int(value)
    if isinstance(value, types.Float) and is_integer(places):
        if not isinstance(places, types.IntegerLiteral) or places.literal_value < 0:
            raise Refusal("the places of round must be a constant, 0 or more")
        return lambda value, places=None: round_places(value, places)
    return None


def _sum_checked(items: Any, start: Any = 0) -> Any:
    return sum(items, start)


@overload(_sum_checked)
def _sum(items: Any, start: Any = 0) -> Any:
    if not isinstance(items, (types.IterableType, types.BaseTuple)):
        return None
    element = items.iterator_type.yield_type if not isinstance(items, types.Tuple) else None
    if isinstance(element, types.Boolean):
        raise Refusal("sum of booleans; add up int(...) of each in a loop")

    def total(items: Any, start: Any = 0) -> Any:
        found = start
        for item in items:
            found = _add_checked(found, item)
        return found

    def total_of_floats(items: Any, start: Any = 0) -> Any:
        found = float(start)
        for item in items:
            found = found + item
        return found

    return total_of_floats if isinstance(element, types.Float) else total


def _divmod_checked(left: Any, right: Any) -> Any:
    return divmod(left, right)


@overload(_divmod_checked)
def _divmod(left: Any, right: Any) -> Any:
    if is_optional(left, right):
        return lambda left, right: _divmod_checked(present(left), present(right))
    if isinstance(left, types.Boolean) and is_integer(right):
        raise Refusal("divmod of a boolean; write int(...) around it")
    return lambda left, right: (_divide_checked(left, right), _rest_checked(left, right))


def _extreme(builtin: Any, is_better: Any) -> Any:
    """min or max of two or more values: the first of them that no other one beats."""

    def choose_of(*values: Any) -> Any:
        return builtin(*values)

    choose_of.__name__ = builtin.__name__

    @overload(choose_of)
    def choose(*values: Any) -> Any:
        kinds = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
        if len(kinds) < 2:
            raise Refusal(f"{builtin.__name__} takes two values or more here")
        for kind in map(inner_of, kinds):
            if isinstance(kind, types.Boolean):
                raise Refusal(f"{builtin.__name__} of a boolean; write int(...) around it")
        if len(kinds) == 2:

            def of_two(*values: Any) -> Any:
                return values[1] if is_better(values[1], values[0]) else values[0]

            return of_two
        if len(kinds) == 3:

            def of_three(*values: Any) -> Any:
                best = values[1] if is_better(values[1], values[0]) else values[0]
                return values[2] if is_better(values[2], best) else best

            return of_three

        def of_many(*values: Any) -> Any:
            best = choose_of(values[0], values[1], values[2])
            return choose_of(best, *values[3:])

        return of_many

    return choose_of


# --- the tables -----------------------------------------------------------------------------------

_add_checked = _binary(operator.add, add)
_sub_checked = _binary(operator.sub, subtract)
_mul_checked = _binary(operator.mul, multiply)
_divide_checked = _binary(operator.floordiv, divide)
_rest_checked = _binary(operator.mod, rest)
_quotient_checked = _binary(operator.truediv, whole_quotient)
_shift_checked = _binary(operator.lshift, shift)
_shift_down_checked = _binary(operator.rshift, shift_down)
_absolute_checked = _unary(abs, "abs", absolute)
_equal_checked = _comparison(operator.eq)
_less_checked = _comparison(operator.lt)
_greater_checked = _comparison(operator.gt)

CHECKED_OPERATORS = {
    operator.add: _add_checked,
    operator.iadd: _add_checked,
    operator.sub: _sub_checked,
    operator.isub: _sub_checked,
    operator.mul: _mul_checked,
    operator.imul: _mul_checked,
    operator.truediv: _quotient_checked,
    operator.itruediv: _quotient_checked,
    operator.floordiv: _divide_checked,
    operator.ifloordiv: _divide_checked,
    operator.mod: _rest_checked,
    operator.imod: _rest_checked,
    operator.pow: _power_checked,
    operator.ipow: _power_checked,
    operator.lshift: _shift_checked,
    operator.ilshift: _shift_checked,
    operator.rshift: _shift_down_checked,
    operator.irshift: _shift_down_checked,
    operator.neg: _unary(operator.neg, "the negative", negate),
    operator.pos: _unary(operator.pos, "plus", itself),
    operator.invert: _unary(operator.invert, "~", register_jitable(lambda value: ~value)),
    operator.lt: _less_checked,
    operator.le: _comparison(operator.le),
    operator.gt: _greater_checked,
    operator.ge: _comparison(operator.ge),
    operator.eq: _equal_checked,
    operator.ne: _comparison(operator.ne),
    operator.is_: _identity(operator.is_),
    operator.is_not: _identity(operator.is_not),
    operator.contains: _contains_checked,
    operator.not_: opposite,
}
CHECKED_BUILTINS: dict[Any, Any] = {
    builtins.abs: _absolute_checked,
    builtins.float: _float_checked,
    builtins.int: _int_checked,
    builtins.round: _round_checked,
    builtins.sum: _sum_checked,
    builtins.pow: _power_checked,
    builtins.divmod: _divmod_checked,
    builtins.min: _extreme(builtins.min, _less_checked),
    builtins.max: _extreme(builtins.max, _greater_checked),
}


for _builtin, _checked in CHECKED_BUILTINS.items():
    _checked.__name__ = _builtin.__name__  # messages name it


# --- functions of whole numbers in math -----------------------------------------------------------


def _gcd_checked(left: Any, right: Any) -> Any:
    return math.gcd(left, right)


@overload(_gcd_checked)
def _gcd(left: Any, right: Any) -> Any:
    if is_optional(left, right):
        return lambda left, right: _gcd_checked(present(left), present(right))
    if not is_integer(left, right):
        raise Refusal(f"math.gcd takes integers, not {left} and {right}")

    def divisor(left: Any, right: Any) -> Any:
        one, other = int(left), int(right)
        while other != 0:
            one, other = other, rest(one, other)
        return absolute(one)

    return divisor


def _isqrt_checked(value: Any) -> Any:
    return math.isqrt(value)


@overload(_isqrt_checked)
def _isqrt(value: Any) -> Any:
    if is_optional(value):
        return lambda value: _isqrt_checked(present(value))
    if not is_integer(value):
        raise Refusal(f"math.isqrt takes an integer, not {value}")

    def root(value: Any) -> Any:
        if value < 0:
            raise ValueError("isqrt() argument must be nonnegative")
        found = min(int(math.sqrt(float(value))), 3037000499)  # the root of the largest integer
        while found * found > value:
            found -= 1
        while found < 3037000499 and (found + 1) * (found + 1) <= value:
            found += 1
        return found

    return root


CHECKED_MATH = {**MATH, math.gcd: _gcd_checked, math.isqrt: _isqrt_checked}
