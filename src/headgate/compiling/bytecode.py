"""Bytecode: what can be told from a function's code alone.

Who made a value, what is surely set, which functions and values of its module it refers to. It
needs no source, so functions of a shell or of `exec` are judged like any other.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_ENDING = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_MEMBER_DEPTH = 3  # package.module.name: deeper is no way to a constant
_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")


@dataclass(frozen=True)
class Line:
    """A line of a function."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Code:
    """The steps of one code object, with their lines."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.steps = list(dis.get_instructions(code))
        self.index = {step.offset: number for number, step in enumerate(self.steps)}
        self.handlers = list(dis.Bytecode(code).exception_entries)  # type: ignore[attr-defined]

    def place(self, number: int) -> Line:
        positions = self.steps[number].positions
        line = None if positions is None else positions.lineno
        return Line(self.code.co_filename, line or self.code.co_firstlineno)

    def origin(self, number: int, depth: int) -> int | None:
        """The step that made the operand `depth` below the top of the stack before a step.

        Steps are read backward in a straight line, so a value that two ways may have made counts
        as made on the later one.
        """
        for back in range(number - 1, -1, -1):
            step = self.steps[back]
            if step.opname == "SWAP":
                top = int(step.arg or 0) - 1
                depth = {0: top, top: 0}.get(depth, depth)
            elif step.opname == "COPY":
                depth = int(step.arg or 0) - 1 if depth == 0 else depth - 1
            elif step.opname not in ("RESUME", "NOP", "CACHE", "KW_NAMES"):
                pushed = _pushed(step)
                if depth < pushed:
                    return back
                depth += dis_effect(step, pushed)
        return None

    def callee(self, number: int) -> int | None:
        """The step that loaded what a call calls."""
        if self.steps[number - 1].opname == "PRECALL":  # it took the arguments
            return self.origin(number, 0)
        below = 1 if sys.version_info >= (3, 13) else 0
        return self.origin(number, int(self.steps[number].arg or 0) + below)

    def stored(self, name: str) -> list[int]:
        """The steps that set a local variable."""
        return [
            n for n, s in enumerate(self.steps) if s.opname == "STORE_FAST" and s.argval == name
        ]


def _pushed(step: dis.Instruction) -> int:
    """How many values a step leaves on the stack."""
    if step.opname == "LOAD_GLOBAL":
        return 1 + (int(step.arg or 0) & 1)
    if step.opname == "LOAD_METHOD":
        return 2
    if step.opname.startswith(("STORE_", "DELETE_", "POP_", "RETURN_", "JUMP_", "LIST_", "SET_")):
        return 0
    silent = ("MAKE_CELL", "COPY_FREE_VARS", "DICT_UPDATE", "MAP_ADD", "PRECALL")
    return 0 if step.opname in silent else 1


def dis_effect(step: dis.Instruction, pushed: int) -> int:
    """How much deeper an operand lies before a step than after it."""
    arg = step.arg if step.opcode >= dis.HAVE_ARGUMENT else None
    net = dis.stack_effect(step.opcode, arg, jump=False)
    return -net if pushed == 0 else (pushed - net) - pushed


def codes(code: types.CodeType) -> Iterator[Code]:
    """A code object and those inside it."""
    yield Code(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


# The same functions are read at each opening of an engine, each time to the same end.
_CODES_MAX = 4096


@functools.lru_cache(_CODES_MAX)
def keyword_names(code: types.CodeType) -> frozenset[Any]:
    """The constants of a code that are the names of keywords in calls, which Python reads."""
    steps = list(dis.get_instructions(code))
    found = {code.co_consts[int(one.arg or 0)] for one in steps if one.opname == "KW_NAMES"}
    for before, step in itertools.pairwise(steps):
        if step.opname == "CALL_KW":  # since Python 3.13
            found.add(before.argval)
    return frozenset(found)


# --- functions and what they refer to -------------------------------------------------------------


def references(function: types.FunctionType) -> dict[str, Any]:
    """The global and closure values a function's code names, module members as 'module.name'."""
    code = function.__code__
    names = _code_names(code)
    loaded = _loaded_names(code)
    found = {name: function.__globals__[name] for name in loaded if name in function.__globals__}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found.update({name: cell.cell_contents for name, cell in cells if is_filled(cell)})
    found.update(_members(found, names))
    return found


def _members(found: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """What the code may reach through modules and classes: 'module.name', 'package.module.name'."""
    members: dict[str, Any] = {}
    for owner, value in found.items():
        if isinstance(value, (types.ModuleType, type)):
            for name in names:
                if f"{owner}.{name}".count(".") <= _MEMBER_DEPTH and hasattr(value, name):
                    members[f"{owner}.{name}"] = getattr(value, name)
    if members:
        members.update(_members(members, names))
    return members


def _code_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _code_names(constant)
    return names


@functools.lru_cache(_CODES_MAX)
def _loaded_names(code: types.CodeType) -> frozenset[str]:
    """The names it looks up as globals; attribute names are not among them."""
    names = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _loaded_names(constant)
    return frozenset(names)


def is_filled(cell: Any) -> bool:
    """Whether a closure's cell has its value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def is_user_function(value: Any) -> bool:
    """Whether a plain Python function is to be compiled along (not ours, not a library's)."""
    if not isinstance(value, types.FunctionType):
        return False
    root = value.__module__.split(".")[0] if value.__module__ else ""
    return root not in ("numba", "numpy", "headgate")


def mended_code(code: types.CodeType) -> types.CodeType:
    """The code with `(q := value)` and `a = b = value` in a form that Numba reads rightly.

    Of a value that is copied and stored Numba forgets the original: store it and load it again.
    """
    steps = bytearray(code.co_code)
    copy, store, load = (dis.opmap[name] for name in ("COPY", "STORE_FAST", "LOAD_FAST"))
    for place in range(0, len(steps) - 2, 2):
        if steps[place] == copy and steps[place + 1] == 1 and steps[place + 2] == store:
            steps[place], steps[place + 1] = store, steps[place + 3]
            steps[place + 2] = load
    inner = tuple(
        mended_code(one) if isinstance(one, types.CodeType) else one for one in code.co_consts
    )
    return code.replace(co_code=bytes(steps), co_consts=inner)


def mended(function: Any) -> Any:
    """The same function with mended code, for Numba's frontend."""
    code = mended_code(function.__code__)
    clone = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    clone.__module__ = function.__module__
    return clone


def is_own_code(function: Any) -> bool:
    """Whether a function is the user's, not one of Python's library or of an installed package."""
    if not is_user_function(function):
        return False
    root = (function.__module__ or "").split(".")[0]
    if root == "__main__":
        return True
    installed = "site-packages" in function.__code__.co_filename
    return root not in sys.stdlib_module_names and not installed


def called_functions(function: Any) -> list[Any]:
    """The function and the user's functions that it may call, each once."""
    found: list[Any] = []
    waiting = [function]
    while waiting:
        one = waiting.pop(0)
        if one not in found:
            found.append(one)
            waiting += [value for value in references(one).values() if is_own_code(value)]
    return found


@dataclass(frozen=True)
class Effects:
    """What a function and those it calls may do to rows, at the most."""

    stored: frozenset[str]  # the names of columns that it may set
    may_delete: bool


def effects_of(function: Any, delete: Any) -> Effects:
    """The names that are set as attributes anywhere, and whether `delete` is within reach.

    A column is set in no other way: `setattr` is refused, and so is what hides a function.
    """
    stored: set[str] = set()
    may_delete = False
    waiting, seen = [function], {function}
    while waiting:
        one = waiting.pop()
        for code in codes(one.__code__):
            stored |= {str(step.argval) for step in code.steps if step.opname == "STORE_ATTR"}
            may_delete |= "delete" in code.code.co_names or "delete" in code.code.co_consts
        for value in references(one).values():
            may_delete |= value is delete
            if is_user_function(value) and value not in seen:
                seen.add(value)
                waiting.append(value)
    return Effects(frozenset(stored), may_delete)


# --- definite assignment --------------------------------------------------------------------------


def first_unset(code: types.CodeType) -> tuple[str, Line] | None:
    """The first use of a local variable that not every way there has set, or None."""
    body = Code(code)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + _extra(code)]
    before: dict[int, frozenset[str]] = {0: frozenset(names)}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        after = _after(body.steps[number], before[number])
        for target, state in _ways(body, number, before[number], after):
            known = before.get(target)
            joined = state if known is None else known & state
            if joined != known:
                before[target] = joined
                waiting.append(target)
    for number in sorted(before):
        for name in _used(body.steps[number], code):
            if name not in before[number]:
                return name, body.place(number)
    return None


def _extra(code: types.CodeType) -> int:
    return bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **keywords


def _names(step: dis.Instruction) -> tuple[str, ...]:
    return step.argval if isinstance(step.argval, tuple) else (str(step.argval),)


def _used(step: dis.Instruction, code: types.CodeType) -> tuple[str, ...]:
    if step.opname in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST"):
        return _names(step)
    if step.opname in ("LOAD_DEREF", "LOAD_CLOSURE") and step.argval in code.co_cellvars:
        return _names(step)
    return ()


def _after(step: dis.Instruction, state: frozenset[str]) -> frozenset[str]:
    if step.opname in ("STORE_FAST", "STORE_DEREF", "STORE_FAST_STORE_FAST"):
        return state | set(_names(step))
    if step.opname == "STORE_FAST_LOAD_FAST":
        return state | {_names(step)[0]}
    if step.opname in ("DELETE_FAST", "DELETE_DEREF"):
        return state - set(_names(step))
    return state


def _ways(
    body: Code, number: int, before: frozenset[str], after: frozenset[str]
) -> Iterator[tuple[int, frozenset[str]]]:
    """The steps that may follow, each with what is set on the way there."""
    step = body.steps[number]
    if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
        yield body.index[step.argval], after
    if step.opname not in _ENDING and step.opname not in _ALWAYS and number + 1 < len(body.steps):
        yield number + 1, after
    for entry in body.handlers:
        if entry.start <= step.offset < entry.end:
            yield body.index[entry.target], before & after
