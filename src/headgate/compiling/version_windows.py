"""Windows: the versions of a row, and the columns of them, as a compiled function sees them.

A window is counted, walked and asked for a version by its place, as rows are; its columns are added
up by the trail (state/survey.py). Invariant: a version that is handed out is one of the window's.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer, signature
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)

from headgate.compiling.decimals import DIGITS_MAX, DecimalType
from headgate.compiling.floats import quotient, wide_quotient
from headgate.compiling.numba_types import I64, RecordType, load_value, value_type
from headgate.compiling.operators import CHECKED_BUILTINS
from headgate.compiling.optionals import made_optional, null_bit_of
from headgate.compiling.refusals import ALWAYS, Refusal
from headgate.state.compiled import linked, linking, overload, overload_method
from headgate.state.survey import pick, survey
from headgate.state.trail import COUNT, LOW, MAX, MIN, TOTAL, VERSIONS, head_of, real, version_row
from headgate.state.trail import words_aside as words
from headgate.state.words import word_at as get

MEMBERS = ("trail", "slot", "first", "last", "after", "until")
NO_PLACE = (
    "a window gives a version by a whole number, as window[-1], and has no slices: write a loop"
)
NOT_WALKED = "a column of a window is no list: call window.column.min(), or loop over the versions"
SUM_DIGITS = 10  # more of them than one value has: there are fewer versions than that


class WindowType(types.IterableType):
    """The versions of a row; `summed` are the columns that a trail adds up, in its order."""

    def __init__(self, row: RecordType, summed: tuple[str, ...]) -> None:
        self.row = row
        self.summed = summed
        super().__init__(name=f"window({row}, {summed})")

    @property
    def iterator_type(self) -> types.Type:
        return VersionWalkType(self)


class WindowColumnType(types.Type):
    """One column of the versions of a window."""

    def __init__(self, window: WindowType, column: str) -> None:
        self.window = window
        self.column = column
        super().__init__(name=f"column({window}, {column})")

    @property
    def field(self) -> tuple[Any, ...]:
        found = self.window.row.field(self.column)
        if found is None:
            raise Refusal(f"{self.window.row.label} has no column {self.column!r}{ALWAYS}")
        return found

    @property
    def plain(self) -> types.Type:
        """What a value of it is inside a function, where there is one."""
        _, kind, precision, scale, *_ = self.field
        return value_type(kind, precision, scale)

    def place(self, what: str) -> int:
        """Which of the sums of a trail it has."""
        if self.column not in self.window.summed:
            raise Refusal(
                f"{what} of {self.column!r}: a window adds up columns that are numbers or times "
                f"and not of the key; {self.column!r} is a {self.field[1]}: loop over the versions"
            )
        return self.window.summed.index(self.column)


class VersionWalkType(types.SimpleIteratorType):
    """The iterator over versions."""

    def __init__(self, window: WindowType) -> None:
        self.window = window
        super().__init__(name=f"walk({window})", yield_type=window.row)


class _WindowModel(models.StructModel):
    def __init__(self, manager: Any, kind: types.Type) -> None:
        super().__init__(manager, kind, [(name, types.int64) for name in MEMBERS])


register_model(WindowType)(_WindowModel)
register_model(WindowColumnType)(_WindowModel)


@register_model(VersionWalkType)
class _VersionWalkModel(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        members = [("window", kind.window), ("number", types.EphemeralPointer(types.int64))]
        super().__init__(manager, kind, members)


def window_at(window: WindowType) -> Any:
    """An intrinsic (trail, slot, first, last, after, until) -> the window."""

    @intrinsic
    def at(
        typing_context: Any, trail: Any, slot: Any, first: Any, last: Any, after: Any, until: Any
    ) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            found = cgutils.create_struct_proxy(window)(context, builder)
            for name, value in zip(MEMBERS, args, strict=True):
                setattr(found, name, value)
            return found._getvalue()

        return window(*([types.int64] * len(MEMBERS))), generate

    return at


@intrinsic
def _parts(typing_context: Any, window: Any) -> Any:
    """The words of a window, or of a column of one."""
    kind = types.UniTuple(types.int64, len(MEMBERS))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = cgutils.create_struct_proxy(window)(context, builder, value=args[0])
        return context.make_tuple(builder, kind, [getattr(found, name) for name in MEMBERS])

    return kind(window), generate


# --- versions -------------------------------------------------------------------------------------


@linked
def _count(trail: int, slot: int, first: int, last: int, after: int, until: int) -> Any:
    sums = words()
    survey(trail, slot, first, last, after, until, -1, sums)
    return get(sums, VERSIONS)


@linked
def _row(trail: int, slot: int, number: int) -> Any:
    return version_row(trail, head_of(trail, slot), number)


@intrinsic
def _record(typing_context: Any, window: Any, row: Any) -> Any:
    """The version at an address."""
    return window.row(window, types.int64), lambda context, builder, sig, args: args[1]


@overload(len)
def _length(window: Any) -> Any:
    if isinstance(window, WindowType):
        return lambda window: _count(*_parts(window))
    return None


@overload(bool)
def _truth(window: Any) -> Any:
    return (lambda window: len(window) != 0) if isinstance(window, WindowType) else None


@overload(operator.not_)
def _emptiness(window: Any) -> Any:
    return (lambda window: len(window) == 0) if isinstance(window, WindowType) else None


@overload(operator.getitem)
def _getitem(window: Any, place: Any) -> Any:
    if isinstance(window, WindowType) and isinstance(place, types.Float):  # slices never compile
        raise Refusal(NO_PLACE + ALWAYS)
    if not isinstance(window, WindowType) or not isinstance(place, types.Integer):
        return None

    def at(window: Any, place: Any) -> Any:
        trail, slot, first, last, after, until = _parts(window)
        wanted = place
        if place < 0:
            wanted = place + _count(trail, slot, first, last, after, until)
        number = -1
        if wanted >= 0:
            number = pick(trail, slot, first, last, after, until, wanted)
        if number < 0:
            raise IndexError("index out of range")
        return _record(window, _row(trail, slot, number))

    return at


@infer
class _VersionWalk(AbstractTemplate):
    key = "getiter"

    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], WindowColumnType):
            raise Refusal(NOT_WALKED + ALWAYS)
        if isinstance(args[0], WindowType):
            return signature(VersionWalkType(args[0]), args[0])
        return None


@lower_builtin("getiter", WindowType)
def _start(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    window = cgutils.create_struct_proxy(sig.args[0])(context, builder, value=args[0])
    walk = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    walk.window = args[0]
    walk.number = cgutils.alloca_once_value(builder, window.first)
    return walk._getvalue()


@lower_builtin("iternext", VersionWalkType)
def _step(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    @iternext_impl(RefType.UNTRACKED)
    def step(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
        kind = sig.args[0]
        walk = cgutils.create_struct_proxy(kind)(context, builder, value=args[0])
        window = cgutils.create_struct_proxy(kind.window)(context, builder, value=walk.window)
        trail, slot, _, last, after, until = (getattr(window, name) for name in MEMBERS)
        given = [trail, slot, builder.load(walk.number), last, after, until, I64(0)]
        number = linking(context, builder, pick, given)
        is_there = builder.icmp_signed(">=", number, I64(0))
        result.set_valid(is_there)
        with builder.if_then(is_there):
            result.yield_(linking(context, builder, _row, [trail, slot, number]))
            builder.store(builder.add(number, I64(1)), walk.number)

    return step(context, builder, sig, args)


@overload(CHECKED_BUILTINS[builtins.sum])
def _sum(items: Any, start: Any = 0) -> Any:
    if isinstance(items, WindowColumnType):
        raise Refusal(NOT_WALKED + ALWAYS)
    return None


# --- columns --------------------------------------------------------------------------------------


@infer_getattr
class _WindowAttribute(AttributeTemplate):
    key = WindowType

    def generic_resolve(self, kind: WindowType, attr: str) -> types.Type:
        if kind.row.field(attr) is None:
            names = ", ".join(field[0] for field in kind.row.fields)
            raise Refusal(
                f"a window of {kind.row.label} has no column {attr!r}; the columns are: {names}; "
                f"len(window) counts its versions{ALWAYS}"
            )
        return WindowColumnType(kind, attr)


@lower_getattr_generic(WindowType)
def _column(context: Any, builder: Any, kind: Any, value: Any, attr: str) -> Any:
    return value


@intrinsic
def _from_word(typing_context: Any, column: Any, word: Any, count: Any) -> Any:
    """A value of a column by its word among the sums; None where nothing was added."""
    plain = column.plain

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = args[1]
        if plain == types.float64:
            value = builder.bitcast(value, ir.DoubleType())
        elif isinstance(plain, DecimalType):
            value = builder.sext(value, ir.IntType(128))
        is_null = builder.icmp_signed("==", args[2], I64(0))
        return made_optional(context, builder, plain, value, is_null)

    return types.Optional(plain)(column, types.int64, types.int64), generate


@intrinsic
def _from_row(typing_context: Any, column: Any, row: Any) -> Any:
    """The value of a column in a version at an address; None where there is none, or no version."""
    _, kind, _, _, offset, stored, _, null_bit = column.field
    plain = column.plain
    found_type = types.Optional(plain)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        none = made_optional(
            context, builder, plain, context.get_constant_null(plain), cgutils.true_bit
        )
        found = cgutils.alloca_once_value(builder, none)
        with builder.if_then(builder.icmp_unsigned("!=", args[1], I64(0))):
            value = load_value(builder, builder.add(args[1], I64(offset)), kind, stored)
            is_null: Any = cgutils.false_bit
            if null_bit >= 0:
                word, bit = divmod(null_bit, 64)
                at = builder.inttoptr(builder.add(args[1], I64(8 * word)), I64.as_pointer())
                is_null = null_bit_of(builder, builder.load(at), 1 << bit)
            builder.store(made_optional(context, builder, plain, value, is_null), found)
        return builder.load(found)

    return found_type(column, types.int64), generate


@intrinsic
def _exact_sum(typing_context: Any, column: Any, total: Any, low: Any) -> Any:
    """The sum of decimals from its two halves."""
    digits = min(DIGITS_MAX, column.field[2] + SUM_DIGITS)
    found = DecimalType(column.field[3], digits)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        upper = builder.shl(builder.sext(args[1], wide), wide(32))
        return builder.add(upper, builder.sext(args[2], wide))

    return found(column, types.int64, types.int64), generate


@linked
def _whole_sum(total: int, low: int) -> Any:
    """The sum of ints from its two halves; OverflowError where 64 bits do not hold it."""
    upper = total + (low >> 32)
    if upper < -(2**31) or upper >= 2**31:
        raise OverflowError("overflow")
    return (upper << 32) | (low & 0xFFFFFFFF)


@overload_method(WindowColumnType, "count")
def _column_count(column: Any) -> Any:
    place = column.place("count()")

    def count(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        return get(sums, COUNT)

    return count


@overload_method(WindowColumnType, "sum")
def _column_sum(column: Any) -> Any:
    place, plain = column.place("sum()"), column.plain

    def sum_reals(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        return real(get(sums, TOTAL)) + 0.0

    def sum_decimals(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        return _exact_sum(column, get(sums, TOTAL), get(sums, LOW))

    def sum_wholes(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        return _whole_sum(get(sums, TOTAL), get(sums, LOW))

    if plain == types.float64:
        return sum_reals
    return sum_decimals if isinstance(plain, DecimalType) else sum_wholes


@overload_method(WindowColumnType, "mean")
def _column_mean(column: Any) -> Any:
    place, plain = column.place("mean()"), column.plain
    if isinstance(plain, DecimalType):
        raise Refusal("the mean of decimals has no exact result; use sum() and count()" + ALWAYS)

    def mean_reals(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        if get(sums, COUNT) == 0:
            return None
        return (real(get(sums, TOTAL)) + 0.0) / get(sums, COUNT)

    def mean_wholes(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        if get(sums, COUNT) == 0:
            return None
        total, low = get(sums, TOTAL), get(sums, LOW)
        upper, lower = total + (low >> 32), low & 0xFFFFFFFF
        if upper >= -(2**31) and upper < 2**31:
            return quotient((upper << 32) | lower, get(sums, COUNT))
        return wide_quotient(upper, lower, get(sums, COUNT))

    return mean_reals if plain == types.float64 else mean_wholes


@overload_method(WindowColumnType, "min")
def _column_min(column: Any) -> Any:
    place = column.place("min()")

    def least(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        return _from_word(column, get(sums, MIN), get(sums, COUNT))

    return least


@overload_method(WindowColumnType, "max")
def _column_max(column: Any) -> Any:
    place = column.place("max()")

    def greatest(column: Any) -> Any:
        sums = words()
        survey(*_parts(column), place, sums)
        return _from_word(column, get(sums, MAX), get(sums, COUNT))

    return greatest


@overload_method(WindowColumnType, "first")
def _column_first(column: Any) -> Any:
    def first_value(column: Any) -> Any:
        trail, slot, first, last, after, until = _parts(column)
        number = pick(trail, slot, first, last, after, until, 0)
        row = _row(trail, slot, number) if number >= 0 else 0
        return _from_row(column, row)

    return first_value


@overload_method(WindowColumnType, "last")
def _column_last(column: Any) -> Any:
    def last_value(column: Any) -> Any:
        trail, slot, first, last, after, until = _parts(column)
        count = _count(trail, slot, first, last, after, until)
        row = 0
        if count > 0:
            number = pick(trail, slot, first, last, after, until, count - 1)
            row = _row(trail, slot, number)
        return _from_row(column, row)

    return last_value
