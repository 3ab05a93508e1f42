"""Forms: what a function's code alone shows to have no compiled form, said with its line.

Numba would refuse these too, in words of its own about opcodes and closures. What is no ordinary
function at all, a generator or a coroutine, is refused compiled or not: calling it runs nothing.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from headgate.compiling.bytecode import Code, Place, called_functions
from headgate.compiling.compiler import AS_PYTHON
from headgate.errors import DeclarationError

_STEPS = {
    "UNPACK_EX": "a name with a star takes what is left over; take the values one by one",
    "IMPORT_NAME": "an import inside the function; write it at the top of the module",
    "DELETE_ATTR": "del of a column; set it to another value, or remove the row: hg.delete(row)",
    "DICT_MERGE": "keywords from a dict; write them out",
    "LIST_EXTEND": "a list made of the items of another; write a loop",
}


def refuse_no_function(function: Any, where: str) -> None:
    """Refuse a generator or a coroutine, whose body would never run."""
    flags, code = function.__code__.co_flags, function.__code__
    what = "is async" if flags & _ASYNC else "yields"
    if flags & (_ASYNC | inspect.CO_GENERATOR):
        raise DeclarationError(
            f"{where}: {code.co_filename}:{code.co_firstlineno}: the function {what}, so that a "
            "call of it does not run it; a transaction is an ordinary function, and hands values "
            "on through hg.output(...)"
        )


_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def refuse_forms(function: Any, where: str) -> None:
    """Refuse the first thing in a function, or in one that it calls, that is never compiled."""
    for one in called_functions(function):
        found = _first(one.__code__)
        if found is not None:
            place, what = found
            raise DeclarationError(f"{where} cannot be compiled: at {place}: {what}; {AS_PYTHON}")


def _first(code: types.CodeType) -> tuple[Place, str] | None:
    if code.co_flags & inspect.CO_GENERATOR:
        what = "a generator has no compiled form; write a loop"
        return Place(code.co_filename, code.co_firstlineno), what
    body = Code(code)
    for number, step in enumerate(body.steps):
        if step.opname in _STEPS and not _is_literal(body, number):
            return body.place(number), f"{_STEPS[step.opname]}"
        if step.opname == "LOAD_CONST" and isinstance(step.argval, types.CodeType):
            found = _first(step.argval)
            if found is not None:
                return found
    return None


def _is_literal(body: Code, number: int) -> bool:
    """Whether a list is made of constants: [1, 2, 3] is extended by a tuple of them."""
    return (
        body.steps[number].opname == "LIST_EXTEND" and body.steps[number - 1].opname == "LOAD_CONST"
    )
