"""Bodies: a transaction's function as the oracle runs it, where every integer has 64 bits.

Names are looked up through a mapping that hands out checked integers, so nothing of the engine's
way to do the same is shared.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import itertools
import types
from collections.abc import Iterable
from typing import Any

from headgate.testing.scalars import Characters, Int64, within

_OWN = ("headgate", "numpy", "pyarrow", "datetime", "decimal")


def whole(value: Any) -> Any:
    """A value whose integers, also within tuples, are those of a transaction."""
    if type(value) is int:
        return Int64(within(value, 64))
    if type(value) is str:
        return Characters(value)
    return tuple(whole(part) for part in value) if type(value) is tuple else value


class _Names(dict[str, Any]):
    """The globals of a function as its body sees them."""

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__({"__builtins__": BUILTINS})
        self.known = known

    def __missing__(self, name: str) -> Any:
        return seen(self.known[name])


class _Members:
    """A module as a body sees it."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return seen(getattr(self._module, name))


class _Member(Int64):
    """A member of an enumeration, which counts as an integer of a transaction."""

    def __new__(cls, member: enum.IntEnum) -> _Member:
        return super().__new__(cls, within(int(member), 64))

    def __init__(self, member: enum.IntEnum) -> None:
        self.name, self.value = member.name, Int64(member)


class _Enumeration:
    """An enumeration of integers as a body sees it."""

    def __init__(self, kind: type[enum.IntEnum]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return seen(getattr(self._kind, name))

    def __call__(self, value: Any) -> Any:
        return seen(self._kind(value))

    def __iter__(self) -> Any:
        return map(seen, self._kind)


def seen(value: Any) -> Any:
    """A value of a module or a closure as a body sees it."""
    if isinstance(value, types.FunctionType):
        return value if value.__module__.split(".")[0] in _OWN else body(value)
    if isinstance(value, types.ModuleType):
        return value if value.__name__.split(".")[0] in _OWN else _Members(value)
    if isinstance(value, types.BuiltinFunctionType) and value.__module__ in ("math", "builtins"):
        return _counted(value)
    if isinstance(value, type) and issubclass(value, enum.IntEnum):
        return _Enumeration(value)
    if isinstance(value, enum.IntEnum):
        return _Member(value)
    for own, checked in ((range, _range), (enumerate, _enumerate), (int, Whole), (str, Words)):
        if value is own:
            return checked
    return whole(value)


def body(function: Any) -> Any:
    """The function with checked integers.

    >>> def square(number): return number * number
    >>> body(square)(Int64(2**40))
    Traceback (most recent call last):
    OverflowError: overflow
    """
    code = _checked_code(function.__code__)
    names = _Names(function.__globals__)
    cells = tuple(_cell(cell, function) for cell in function.__closure__ or ())
    made = types.FunctionType(code, names, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    for name, cell in zip(code.co_freevars, cells, strict=True):
        if name == function.__name__ and not _is_filled(cell):
            cell.cell_contents = made  # it calls itself
    return made


def _cell(cell: types.CellType, function: Any) -> types.CellType:
    if not _is_filled(cell) or cell.cell_contents is function:
        return types.CellType()
    return types.CellType(seen(cell.cell_contents))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@functools.lru_cache(1024)  # a body is made for each event
def _checked_code(code: types.CodeType) -> types.CodeType:
    steps = [*dis.get_instructions(code)]
    names = {code.co_consts[step.arg or 0] for step in steps if step.opname == "KW_NAMES"}
    names |= {old.argval for old, new in itertools.pairwise(steps) if new.opname == "CALL_KW"}
    inner = [
        _checked_code(one) if isinstance(one, types.CodeType) else _literal(one)
        for one in code.co_consts
    ]
    known = zip(inner, code.co_consts, strict=True)
    return code.replace(co_consts=tuple(old if old in names else new for new, old in known))


def _literal(value: Any) -> Any:
    try:
        return whole(value)
    except OverflowError:
        return value


# --- builtins -------------------------------------------------------------------------------------


class _WholeKind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)


class Whole(metaclass=_WholeKind):
    """`int` inside a body."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return whole(int(*given, **named))


class _WordsKind(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, str)


class Words(metaclass=_WordsKind):
    """`str` inside a body."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        return Characters(str(*given, **named))


def _counted(function: Any) -> Any:
    def compute(*given: Any, **named: Any) -> Any:
        return whole(function(*given, **named))

    return compute


def _range(*bounds: Any) -> list[Any] | Iterable[Any]:
    counters = range(*bounds)
    return [whole(one) for one in counters] if len(counters) < 10_000 else map(whole, counters)


def _enumerate(items: Iterable[Any], start: int = 0) -> Iterable[tuple[Any, Any]]:
    return ((whole(place), item) for place, item in enumerate(items, start))


def _sum(items: Iterable[Any], start: Any = 0) -> Any:
    """One + after the other; Python's own has another result for floats since 3.12."""
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    total = whole(start)
    for item in items:
        total = total + item
    return whole(total)


def _choice(function: Any) -> Any:
    def compute(*given: Any, **named: Any) -> Any:
        if len(given) == 1 and "default" not in named:
            given = ([*given[0]],)
            if not given[0]:
                raise ValueError(f"{function.__name__}() arg is an empty sequence")
        return whole(function(*given, **named))

    return compute


_COUNTED = (abs, divmod, len, ord, pow, round)
BUILTINS: dict[str, Any] = {
    **vars(builtins),
    **{one.__name__: _counted(one) for one in _COUNTED},
    "sum": _sum,
    "min": _choice(min),
    "max": _choice(max),
    "range": _range,
    "enumerate": _enumerate,
    "int": Whole,
    "str": Words,
}
