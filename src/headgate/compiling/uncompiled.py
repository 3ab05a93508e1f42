"""Uncompiled: a user's function as Python runs it, with the numbers that compiled code has.

Every integer inside is an `Int64`: constants, module values, lengths, counters and what `int` and
`math.floor` give, so that a plain function overflows where a compiled one does. Every decimal is an
`Exact`: a sum, difference or product of columns, constants and ints is exact or an OverflowError,
at the same number as compiled; what has no compiled form, such as a quotient, is a `Decimal` again.
Every text is a `Text`, which is added to as compiled ones are: up to so many bytes. What the
function reads of its module is what was there when the form was made, as it is for compiled code.
"""

from __future__ import annotations

import builtins
import decimal
import dis
import enum
import functools
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from headgate.compiling.bytecode import is_own_code, keyword_names, references
from headgate.state.characters import MADE_BYTES_MAX, TOO_LONG
from headgate.state.types import BOUNDS

MIN, MAX = BOUNDS["bigint"]
_DECIMAL_MIN, _DECIMAL_MAX = -(2**127), 2**127 - 1
NONE_WORDS = "None where a value is needed"
EMPTY = "{}() arg is an empty sequence"
NEGATIVE_EXPONENT = "a negative power of an integer is not an integer"
_KEPT = frozenset(sys.stdlib_module_names) | {"headgate", "numpy", "numba", "pyarrow"}


# --- integers of 64 bits --------------------------------------------------------------------------


class _Kind(type):
    """The type of Int64: as `int` inside a plain function, every integer is one of it."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, int)


class Int64(int, metaclass=_Kind):
    """A Python int with the rules of compiled integers: a result beyond 64 bits raises.

    >>> Int64(2**62) * 2
    Traceback (most recent call last):
    OverflowError: overflow
    """

    __slots__ = ()

    def __new__(cls, *given: Any, **named: Any) -> Int64:
        made = super().__new__(cls, *given, **named)
        if not MIN <= made <= MAX:
            raise OverflowError("overflow")
        return made


def _wrapped(name: str) -> Any:
    plain = getattr(int, name)

    def method(self: int, *others: Any) -> Any:
        if name in ("__pow__", "__rpow__") and all(isinstance(other, int) for other in others):
            exponent = self if name == "__rpow__" else others[0]
            if exponent < 0:
                raise ValueError(NEGATIVE_EXPONENT)
            base = others[0] if name == "__rpow__" else self
            if exponent > 63 and base not in (-1, 0, 1):
                raise OverflowError("overflow")
        if name in ("__lshift__", "__rlshift__"):
            value, places = (self, others[0]) if name == "__lshift__" else (others[0], self)
            if isinstance(value, int) and places > 63 and value != 0:
                raise OverflowError("overflow")
        result = plain(self, *others)
        if name == "__neg__" and result > MAX and _is_compared():
            return result
        return Int64(result) if isinstance(result, int) else result

    return method


def _is_compared() -> bool:
    """Whether Python is comparing with a float, for which it negates a negative int itself."""
    frame = sys._getframe(2)
    step = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return step in ("COMPARE_OP", "CONTAINS_OP")


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod",
    "pow", "rpow", "lshift", "rlshift", "rshift", "rrshift", "neg", "pos", "abs", "invert",
    "and", "rand", "or", "ror", "xor", "rxor", "round",
):  # fmt: skip
    setattr(Int64, f"__{_name}__", _wrapped(f"__{_name}__"))


# --- decimals of 128 bits -------------------------------------------------------------------------


class Exact(decimal.Decimal):
    """A decimal whose sums and products leave 128 bits, counted in its last place, nowhere.

    The context in which it computes must have 76 digits, as the interpreter's has.

    >>> Exact("0.25") * 3
    Decimal('0.75')
    >>> with decimal.localcontext(prec=76):
    ...     Exact(2**126) + Exact(2**126)
    Traceback (most recent call last):
    OverflowError: overflow
    """

    __slots__ = ()


def constant(text: str) -> Exact:
    """A constant as compiled code has it: with no fewer places than a whole number."""
    found = Exact(text)
    exponent = found.as_tuple().exponent
    return Exact(int(found)) if isinstance(exponent, int) and exponent > 0 else found


def _within(found: decimal.Decimal) -> Exact:
    sign, digits, exponent = found.as_tuple()
    if isinstance(exponent, int):
        size = int("".join(map(str, digits)))
        if not _DECIMAL_MIN <= (-size if sign else size) <= _DECIMAL_MAX:
            raise OverflowError("overflow")
    return Exact(found)


def _bounded(operation: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Exact, *others: Any) -> Any:
        found = operation(self, *others)
        is_ours = all(isinstance(other, (int, Exact)) for other in others)
        return _within(found) if is_ours and isinstance(found, decimal.Decimal) else found

    return compute


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "neg", "pos", "abs"):
    setattr(Exact, f"__{_name}__", _bounded(getattr(decimal.Decimal, f"__{_name}__")))


# --- texts ----------------------------------------------------------------------------------------


class _TextKind(type):
    """The type of Text: as `str` inside a plain function, every text is one of it."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, str)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, str)


class Text(str, metaclass=_TextKind):
    """A Python text with the rule of compiled ones: what `+` makes of it has at most 16 MiB.

    >>> Text("b") + "c", "a" + Text("b")
    ('bc', 'ab')
    """

    __slots__ = ()

    def __add__(self, other: Any) -> str:
        return _joined(self, other) if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return _joined(other, self) if isinstance(other, str) else NotImplemented

    def __str__(self) -> str:
        return self

    def __format__(self, form: str) -> str:
        return self if not form else Text(super().__format__(form))


Text.__name__ = Text.__qualname__ = "str"  # errors name it, and a user knows no other text


def _joined(left: str, right: str) -> str:
    if not left or not right:
        return left or right  # which is not made here
    if len(left) + len(right) > MADE_BYTES_MAX:
        raise ValueError(TOO_LONG)
    return made_text(str.__add__(left, right))


def made_text(text: str) -> str:
    """A text that a function made, if it is not too long; one that came in may be longer."""
    may_be_long = type(text) is not Text and 4 * len(text) > MADE_BYTES_MAX
    if may_be_long and len(text.encode("utf-8", "surrogatepass")) > MADE_BYTES_MAX:
        raise ValueError(TOO_LONG)
    return Text(text)


# --- functions and what they see ------------------------------------------------------------------


def plain_form(function: Any, done: dict[Any, Any] | None = None) -> Any:
    """The function, and those it calls, with 64-bit integers.

    >>> def area(side): return side * side
    >>> plain_form(area)(Int64(2**32))
    Traceback (most recent call last):
    OverflowError: overflow
    """
    done = {} if done is None else done
    if function in done:
        return done[function]
    scope: dict[str, Any] = {"__builtins__": BUILTINS, "__name__": function.__module__}
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    code = _code(function.__code__)
    made = types.FunctionType(code, scope, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    done[function] = made
    for name, value in references(function).items():
        if "." not in name and name in function.__globals__:
            scope[name] = _value(value, function, done)
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents = _value(old.cell_contents, function, done)
        except ValueError:  # the cell is still empty
            continue
    return made


@functools.lru_cache(1024)
def _code(code: types.CodeType) -> types.CodeType:
    keywords = keyword_names(code)
    consts = (one if one in keywords else _constant(one) for one in code.co_consts)
    return code.replace(co_consts=tuple(consts))


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    if type(value) is tuple:
        return tuple(map(_constant, value))
    return frozenset(map(_constant, value)) if type(value) is frozenset else _number(value)


def _number(value: Any) -> Any:
    if type(value) is str:
        return Text(value)
    is_whole = isinstance(value, int) and type(value) in (int, Int64)
    return Int64(value) if is_whole and MIN <= value <= MAX else value


def _value(value: Any, user: Any, done: dict[Any, Any]) -> Any:
    """A value of the module or closure as the function sees it: numbers checked, lists copied."""
    if is_own_code(value):
        return plain_form(value, done)
    if isinstance(value, types.ModuleType):
        return _module(value, user, done)
    if type(value) in (tuple, list, set, frozenset):
        return type(value)(_value(item, user, done) for item in value)
    if type(value) is dict:
        return {_number(key): _value(item, user, done) for key, item in value.items()}
    if isinstance(value, type) and issubclass(value, enum.IntEnum):
        return Enumeration(value)
    if isinstance(value, enum.IntEnum):
        return member_of(value)
    if callable(value) and getattr(value, "__hash__", None) is not None and value in _FUNCTIONS:
        return _FUNCTIONS[value]
    return _number(value)


def _module(module: types.ModuleType, user: Any, done: dict[Any, Any]) -> types.ModuleType:
    if module is not math and module.__name__.split(".")[0] in _KEPT:
        return module
    if (module, user) in done:
        found: types.ModuleType = done[module, user]
        return found
    copy = done[module, user] = types.ModuleType(module.__name__)
    copy.__dict__.update(vars(module))
    names = _names(user.__code__)
    for name, value in vars(module).items():
        if name in names:
            setattr(copy, name, _value(value, user, done))
    return copy


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


# --- builtins and functions whose integers are checked --------------------------------------------


class Range:
    """`range`, with counters of 64 bits."""

    def __init__(self, *bounds: Any) -> None:
        self._range = range(*bounds)

    def __iter__(self) -> Iterator[Any]:
        return map(Int64, self._range)

    def __reversed__(self) -> Iterator[Any]:
        return map(Int64, reversed(self._range))

    def __len__(self) -> int:
        return len(self._range)

    def __contains__(self, item: Any) -> bool:
        return item in self._range

    def __getitem__(self, place: Any) -> Any:
        found = self._range[place]
        return Range(found.start, found.stop, found.step) if isinstance(found, range) else found


class Member(Int64):
    """A member of an IntEnum with 64 bits: what is left of an operator decides on the result."""

    _member: enum.IntEnum

    def __getattr__(self, name: str) -> Any:
        if name == "_member":  # it is not there yet
            raise AttributeError(name)
        return _number(getattr(self._member, name))


def member_of(member: enum.IntEnum) -> Any:
    """The member as a plain function sees it; one beyond 64 bits, which no other has, stays."""
    if not MIN <= member <= MAX:
        return member
    made = Member(member)
    made._member = member
    return made


class Enumeration:
    """An IntEnum whose members have 64 bits."""

    def __init__(self, kind: type[enum.IntEnum]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kind, name)
        return member_of(found) if isinstance(found, enum.IntEnum) else found

    def __call__(self, value: Any) -> Any:
        return member_of(self._kind(value))

    def __getitem__(self, name: str) -> Any:
        return member_of(self._kind[name])

    def __iter__(self) -> Iterator[Any]:
        return map(member_of, self._kind)

    def __len__(self) -> int:
        return len(self._kind)

    def __contains__(self, item: Any) -> bool:
        return int(item) in {int(member) for member in self._kind}

    def __instancecheck__(self, item: Any) -> bool:
        return isinstance(getattr(item, "_member", item), self._kind)


def _enumerate(items: Any, start: int = 0) -> Iterator[tuple[Any, Any]]:
    for place, item in enumerate(items, start):
        yield Int64(place), item


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its integers checked."""

    def compute(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        if type(found) is tuple:
            return tuple(Int64(part) if type(part) is int else part for part in found)
        return Int64(found) if type(found) is int else found

    compute.__name__ = function.__name__
    return compute


def _sum(items: Any, start: Any = 0) -> Any:
    """From left to right: Python's own corrects the sum of floats for lost digits since 3.12."""
    if isinstance(start, (str, bytes, bytearray)):
        return sum(items, start)  # which it refuses
    found = _number(start)
    for item in items:
        found = found + item
    return found


def _extreme(function: Any) -> Any:
    """min or max, which says the same of no values on every Python."""

    def choose(*values: Any, **named: Any) -> Any:
        if len(values) != 1 or "default" in named:
            return function(*values, **named)
        found = tuple(values[0])
        if not found:
            raise ValueError(EMPTY.format(function.__name__))
        return function(found, **named)

    choose.__name__ = function.__name__
    return choose


_FUNCTIONS: dict[Any, Any] = {
    sum: _sum,
    min: _extreme(min),
    max: _extreme(max),
    int: Int64,
    str: Text,
    range: Range,
    enumerate: _enumerate,
    **{one: _checked(one) for one in (round, len, divmod, pow, abs, ord)},
    **{
        getattr(math, name): _checked(getattr(math, name))
        for name in ("ceil", "comb", "factorial", "floor", "gcd", "isqrt", "lcm", "perm", "prod",
                     "trunc")
    },
}  # fmt: skip
BUILTINS = {
    name: _FUNCTIONS.get(value, value) if callable(value) else value
    for name, value in vars(builtins).items()
}
