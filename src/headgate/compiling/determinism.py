"""Determinism: a transaction's result depends on its event and its rows, and on nothing else.

Clocks, random numbers, files, the screen and values that change while the program runs are refused
where the function is defined, with the line: in compiled functions, in plain ones, and in those
they call, as far as their code tells.
"""

from __future__ import annotations

import builtins
import functools
import io
import sys
import types
from collections.abc import Iterator
from typing import Any

from headgate.compiling.bytecode import Code, Line, codes, is_own_code, references
from headgate.compiling.uncompiled import MAX, MIN
from headgate.errors import DeclarationError

_HAND_OVER = "put it into a column of the event"
_MODULES = {
    "random": "gives another number each time", "secrets": "gives another number each time",
    "numpy.random": "gives another number each time", "uuid": "gives another value each time",
    "time": "reads the clock", "os": "asks the machine it runs on",
    "socket": "talks to the network", "urllib": "talks to the network",
    "http": "talks to the network", "requests": "talks to the network",
    "subprocess": "starts a program", "threading": "depends on other threads",
    "multiprocessing": "depends on other processes", "asyncio": "depends on other tasks",
    "tempfile": "touches files", "shutil": "touches files", "pathlib": "touches files",
    "platform": "asks the machine it runs on", "logging": "writes to a log",
}  # fmt: skip
_ENDS = "would end the program, not the transaction; use hg.abort(...) or an Exception"
_BUILTINS = {
    "print": "writes to the screen; hand values on through hg.output(...)",
    "input": f"waits for a person; {_HAND_OVER}",
    "open": f"touches files; {_HAND_OVER}",
    "id": "is another number in each run; compare values with ==",
    "hash": "of a text is another number in each run; use the text itself",
    "eval": "runs what cannot be seen here; write it out",
    "exec": "runs what cannot be seen here; write it out",
    "compile": "runs what cannot be seen here; write it out",
    "globals": "reaches what may change; name the value",
    "breakpoint": "waits for a person; leave it out",
    "SystemExit": _ENDS,
    "KeyboardInterrupt": _ENDS,
    "GeneratorExit": _ENDS,
    "BaseException": _ENDS,
    "exit": _ENDS,
    "quit": _ENDS,
    "__import__": "reaches what cannot be seen here; import it beside the function",
}
_CLOCKS = ("now", "utcnow", "today")
_CHANGING = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "add",
        "discard",
        "update",
        "setdefault",
        "popitem",
        "appendleft",
        "popleft",
        "extendleft",
        "difference_update",
        "intersection_update",
        "write",
        "writelines",
    ]
)
_NOWHERE = object()
_CONTAINERS = (list, dict, set, bytearray)


def refuse_chance(function: Any, where: str) -> None:
    """Raise a DeclarationError for the first thing that is not the same each time."""
    for one in _reached(function):
        for name, value in _defaults(one):
            if isinstance(value, _CONTAINERS):
                place = Line(one.__code__.co_filename, one.__code__.co_firstlineno)
                raise _refusal(
                    where, place, f"the default {name}={value!r} lives on from call to call",
                    "make it in the body, or use a tuple",
                )  # fmt: skip
        _Reader(one, where).read()


def _reached(function: Any) -> list[Any]:
    """The function, those it may call, and those of the user's classes that it reaches."""
    found: list[Any] = []
    waiting = [function]
    while waiting:
        one = waiting.pop(0)
        if one in found:
            continue
        found.append(one)
        for value in references(one).values():
            waiting += [value] if is_own_code(value) else _methods(value)
    return found


def _methods(value: Any) -> list[Any]:
    """The methods and properties of a user's class, or of a thing of one."""
    owner = value if isinstance(value, type) else type(value)
    made = [*vars(owner).values()] if _is_own_class(owner) else []
    parts = [getattr(one, "fget", None) or getattr(one, "__func__", one) for one in made]
    return [part for part in parts if is_own_code(part)]


def _is_own_class(owner: type) -> bool:
    root = owner.__module__.split(".")[0]
    if root in ("builtins", "numba", "numpy", "headgate") or root in sys.stdlib_module_names:
        return root == "__main__"
    file = getattr(sys.modules.get(owner.__module__), "__file__", None) or ""
    return "site-packages" not in file


def _defaults(function: Any) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    given = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(given) :], given, strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def _refusal(where: str, place: Line, what: str, remedy: str) -> DeclarationError:
    return DeclarationError(
        f"{where}: {place}: {what}; a transaction's result depends on its event and its rows only: "
        f"{remedy}"
    )


class _Reader:
    """Reads one function's code."""

    def __init__(self, function: Any, where: str) -> None:
        self.function = function
        self.where = where
        self.cells = {
            name: cell
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            )
        }

    def read(self) -> None:
        changed = changed_names(self.function.__globals__, self._plain_names())
        for code in codes(self.function.__code__):
            for number in range(len(code.steps)):
                self._judge_step(code, number)
            for number, step in enumerate(code.steps):
                if step.opname == "LOAD_GLOBAL" and step.argval in changed:
                    raise self._refuse(
                        code, number, f"{step.argval} is changed at {changed[step.argval]}",
                        "put it into the event or a table",
                    )  # fmt: skip

    def _plain_names(self) -> set[str]:
        """The names of the module that it reads and that stand for values, not for code."""
        scope, fixed = self.function.__globals__, (type, types.ModuleType, types.FunctionType)
        steps = (step for code in codes(self.function.__code__) for step in code.steps)
        read = {str(step.argval) for step in steps if step.opname == "LOAD_GLOBAL"}
        return {name for name in read if name in scope and not isinstance(scope[name], fixed)}

    def _refuse(self, code: Code, number: int, what: str, remedy: str) -> DeclarationError:
        return _refusal(self.where, code.place(number), what, remedy)

    def _judge_step(self, code: Code, number: int) -> None:
        step = code.steps[number]
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise self._refuse(
                code, number, f"global {step.argval} would change",
                "keep such values in a table",
            )  # fmt: skip
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in self.cells:
            raise self._refuse(
                code, number, f"nonlocal {step.argval} would change",
                "keep such values in a table",
            )  # fmt: skip
        if step.opname == "IMPORT_NAME" and (why := _of_module(str(step.argval))):
            raise self._refuse(code, number, f"{step.argval} {why}", _HAND_OVER)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            self._judge_name(code, number)
        if step.opname == "LOAD_CONST":
            self._judge_number(code, number, step.argval, "this")
        if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR", "DELETE_ATTR"):
            self._judge_change(code, number)
        if step.opname == "GET_ITER":
            self._judge_walk(code, number)

    # --- names ------------------------------------------------------------------------------------

    def _value(self, step: Any) -> tuple[bool, Any]:
        """(whether it is known, the value) of a name that is looked up outside the function."""
        name = step.argval
        if step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            try:
                return (True, self.cells[name].cell_contents) if name in self.cells else (False, 0)
            except ValueError:
                return False, None
        if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            return False, None
        scope = self.function.__globals__
        if name in scope:
            return True, scope[name]
        return (True, getattr(builtins, name)) if hasattr(builtins, name) else (False, None)

    def _judge_name(self, code: Code, number: int) -> None:
        """A name and the members that are read from it: `datetime.datetime.now`."""
        known, value = self._value(code.steps[number])
        words = str(code.steps[number].argval)
        while known:
            if (why := _why_not(words, value)) is not None:
                what, _, remedy = why.partition("; ")
                raise self._refuse(code, number, f"{words} {what}", remedy or _HAND_OVER)
            self._judge_number(code, number, value, words)
            number += 1
            step = code.steps[number]
            if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                return
            name = str(step.argval)
            if _changes_itself(value, name):
                raise self._refuse(
                    code, number, f"{words}.{name} changes a value of the module",
                    "keep such values in a table",
                )  # fmt: skip
            words = f"{words}.{name}"
            if isinstance(value, type) and name in _CLOCKS and value.__module__ == "datetime":
                raise self._refuse(code, number, f"{words} reads the clock", _HAND_OVER)
            known = isinstance(value, (types.ModuleType, type)) and hasattr(value, name)
            value = getattr(value, name, None)

    def _judge_number(self, code: Code, number: int, value: Any, words: str) -> None:
        parts = value if isinstance(value, (tuple, frozenset)) else (value,)
        for part in parts:
            if isinstance(part, str) and not _is_text(part):
                raise DeclarationError(
                    f"{self.where}: {code.place(number)}: {part!a} holds half of a surrogate pair, "
                    "which is no character; leave it out"
                )
            if isinstance(part, int) and not MIN <= part <= MAX:
                raise DeclarationError(
                    f"{self.where}: {code.place(number)}: {words} is an integer beyond 64 bits: "
                    f"{part}; integers of a transaction have 64 bits, use a decimal or a double"
                )

    # --- values that change -----------------------------------------------------------------------

    def _judge_change(self, code: Code, number: int) -> None:
        found = changed_global(code, number)
        if found is None:
            return
        known, value = self._value(found)
        if known and not isinstance(value, types.FunctionType):
            raise self._refuse(
                code, number, f"{found.argval} is a value of the module and would change",
                "keep such values in a table",
            )  # fmt: skip

    def _judge_walk(self, code: Code, number: int) -> None:
        """A loop over a set: texts come in another order in each run."""
        made = code.origin(number, 0)
        if made is not None and code.steps[made].opname == "LOAD_FAST":
            stored = code.stored(str(code.steps[made].argval))
            made = code.origin(stored[0], 0) if len(stored) == 1 else None
        if made is not None and self._is_unordered(code, made):
            raise self._refuse(
                code, number, "the order of a set is another one in each run",
                "walk over sorted(...) of it, or a tuple",
            )  # fmt: skip

    def _is_unordered(self, code: Code, made: int) -> bool:
        step = code.steps[made]
        if step.opname in ("BUILD_SET", "SET_UPDATE"):
            return True
        if step.opname in ("CALL", "CALL_FUNCTION"):
            callee = code.callee(made)
            known, value = self._value(code.steps[callee]) if callee is not None else (False, 0)
            return known and value in (set, frozenset)
        known, value = (True, step.argval) if step.opname == "LOAD_CONST" else self._value(step)
        is_set = known and isinstance(value, (set, frozenset))
        return is_set and not all(isinstance(item, (int, float)) for item in value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_module(name: str) -> str | None:
    for module, why in _MODULES.items():
        if name == module or name.startswith(f"{module}."):
            return why
    return None


def _why_not(words: str, value: Any) -> str | None:
    """Why a value may not be used: 'what it does; what to do instead'."""
    for name, why in _BUILTINS.items():
        if value is getattr(builtins, name, _NOWHERE):
            return why
    if isinstance(value, io.IOBase):
        return _BUILTINS["open"]
    if isinstance(value, functools.partial):
        return _why_not(words, value.func)
    if isinstance(value, (list, tuple, dict)):
        parts = list(value.values()) if isinstance(value, dict) else value
        return next((found for part in parts if (found := _why_not(words, part))), None)
    if isinstance(value, Iterator):
        return "gives another value each time it is asked"
    if isinstance(value, types.ModuleType):
        return _of_module(value.__name__)
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        return _of_module(type(owner).__module__) or _clock_of(value, owner)
    if callable(value):
        return _ENDS if value is sys.exit else _of_module(_home(value))
    kind = type(value).__module__
    is_chance = kind in ("random", "os") or kind.startswith("numpy.random")
    return _of_module(kind) if is_chance else None


def _home(value: Any) -> str:
    """The module of a callable; the operating system's go by names of their own."""
    found = str(getattr(value, "__module__", "") or "")
    return {"posix": "os", "nt": "os", "_io": "", "_thread": "threading"}.get(found, found)


def _clock_of(value: Any, owner: Any) -> str | None:
    named = getattr(value, "__name__", "")
    is_clock = isinstance(owner, type) and owner.__module__ == "datetime" and named in _CLOCKS
    return "reads the clock" if is_clock else None


def _changes_itself(value: Any, method: str) -> bool:
    """Whether calling this method changes the value."""
    if isinstance(value, (types.ModuleType, type, types.FunctionType)):
        return False
    if isinstance(value, _CONTAINERS) or type(value).__module__ in ("collections", "array"):
        return method in _CHANGING
    found = getattr(type(value), method, None)
    return isinstance(found, types.FunctionType) and _sets_its_own(found.__code__)


def _sets_its_own(code: types.CodeType) -> bool:
    """Whether a method sets attributes or elements of what it belongs to."""
    if not code.co_argcount:
        return False
    own, body = code.co_varnames[0], Code(code)
    for number, step in enumerate(body.steps):
        if step.opname in ("STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_SUBSCR"):
            made = _root(body, number)
            if made is not None and body.steps[made].argval == own:
                return True
    return False


def _root(code: Code, number: int) -> int | None:
    """The step that loaded the value whose element or attribute is set, through members of it."""
    depth = 1 if code.steps[number].opname in ("STORE_SUBSCR", "DELETE_SUBSCR") else 0
    made = code.origin(number, depth)
    while made is not None and code.steps[made].opname in ("LOAD_ATTR", "BINARY_SUBSCR"):
        made = code.origin(made, 1 if code.steps[made].opname == "BINARY_SUBSCR" else 0)
    return made


def changed_global(code: Code, number: int) -> Any:
    """The look-up of the outer value that a step changes, or None."""
    made = _root(code, number)
    if made is None:
        return None
    step = code.steps[made]
    return step if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") else None


def changed_names(scope: dict[str, Any], names: set[str]) -> dict[str, Line]:
    """Those of the names that functions of the module change, as far as these are there already."""
    found: dict[str, Line] = {}
    for value in list(scope.values()):
        if not isinstance(value, types.FunctionType) or value.__globals__ is not scope:
            continue
        for code in codes(value.__code__) if names.intersection(_all_names(value)) else ():
            for number, step in enumerate(code.steps):
                name = _changed_at(code, number, step)
                if name in names:
                    found.setdefault(name, code.place(number))
    return found


def _all_names(function: Any) -> set[str]:
    return {name for code in codes(function.__code__) for name in code.code.co_names}


def _changed_at(code: Code, number: int, step: Any) -> str:
    """The name of the module's value that a step changes, or nothing."""
    if step.opname == "STORE_GLOBAL":
        return str(step.argval)
    if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
        changed = changed_global(code, number)
        is_global = changed is not None and changed.opname == "LOAD_GLOBAL"
        return str(changed.argval) if is_global else ""
    before = code.steps[number - 1]
    is_method = step.opname == "LOAD_METHOD" and step.argval in _CHANGING
    return str(before.argval) if is_method and before.opname == "LOAD_GLOBAL" else ""
