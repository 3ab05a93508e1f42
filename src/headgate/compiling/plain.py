"""Plain: a user's function as Python runs it, with the integers that compiled code has.

Every integer inside is an `Int64`: constants, module values, lengths, counters and what `int` and
`math.floor` give, so that a plain function overflows where a compiled one does. What the function
reads of its module is what was there when the form was made, as it is for compiled code.
"""

from __future__ import annotations

import builtins
import enum
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from headgate.compiling.bytecode import is_own_code
from headgate.compiling.compiler import references
from headgate.compiling.integers import MAX, MIN, Int64

_KEPT = frozenset(sys.stdlib_module_names) | {"headgate", "numpy", "numba", "pyarrow"}


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


def _code(code: types.CodeType) -> types.CodeType:
    return code.replace(co_consts=tuple(map(_constant, code.co_consts)))


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    if type(value) is tuple:
        return tuple(map(_constant, value))
    return frozenset(map(_constant, value)) if type(value) is frozenset else _number(value)


def _number(value: Any) -> Any:
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


_FUNCTIONS: dict[Any, Any] = {
    int: Int64,
    range: Range,
    enumerate: _enumerate,
    **{one: _checked(one) for one in (round, sum, len, divmod, pow, abs, ord)},
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
