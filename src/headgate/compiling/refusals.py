"""Refusals: why a function cannot be compiled, in words with the line and what to do instead.

A `Refusal` is our own reason, raised while Numba types a function; `describe_error` turns any of
Numba's long messages into one line. What a function's code alone shows to have no compiled form is
refused before Numba sees it, for its own words are about opcodes and closures; what is no ordinary
function at all, a generator or a coroutine, is refused compiled or not: calling it runs nothing.
What Numba would compile to another meaning than Python's is refused in `exactness`, an abort that
is not returned in `aborts`, clocks and chance in `determinism`.
"""

from __future__ import annotations

import dis
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

from numba.core.errors import TypingError

from headgate.compiling.bytecode import Code, Line, called_functions
from headgate.errors import DeclarationError

AS_PYTHON = "change that line, or declare the transaction with compiled=False to run it as Python"
ALWAYS = " [always]"  # ends the words of a refusal that holds for plain Python, too


class Refusal(TypingError):
    """Our own reason to refuse a line; its name tells it from Numba's many in one message."""


# --- Numba's messages in our words ----------------------------------------------------------------


def describe_error(error: Exception, function: Any = None) -> str:
    """Numba's long message as one line: the source line and the innermost reason."""
    reason = reason_of(error)
    if reason.endswith(ALWAYS):  # it would fail as Python, too
        return f"cannot be compiled: {_place_of(error, function)}{reason.removesuffix(ALWAYS)}"
    return f"cannot be compiled: {_place_of(error, function)}{reason}; {AS_PYTHON}"


def _place_of(error: Exception, function: Any) -> str:
    """The innermost line the message names, else where the function stands."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = re.findall(r'File "([^"]+)", line (\d+)', text)
    ours = ("/numba/", "headgate/compiling/", "headgate/kernels/")
    lines = [line for line in lines if not any(part in line[0] for part in ours)]
    if "unify return type" in text:  # Numba names the returns in any order: take the last one
        lines.sort(key=lambda line: -int(line[1]))
    if lines:
        return f"at {_file_of(lines[0][0], function)}:{lines[0][1]}: "
    if function is None:
        return ""
    code = function.__code__
    missing = re.search(r"name '(\w+)' is not defined", text)
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = line if step.starts_line is None else int(step.starts_line)
        if missing is not None and step.argval == missing[1]:
            return f"at {code.co_filename}:{line}: "
        if "context manager" in text and step.opname == "BEFORE_WITH":
            return f"at {code.co_filename}:{line}: "
    return f"at {code.co_filename}:{code.co_firstlineno}: "


def _file_of(shown: str, function: Any) -> str:
    """A file as Python names it: Numba shows it relative to where the process stands."""
    if (
        function is not None
        and shown.rpartition("/")[2] == function.__code__.co_filename.rpartition("/")[2]
    ):
        return str(function.__code__.co_filename)
    return shown


def reason_of(error: Exception) -> str:
    """The reason of Numba's long message: ours if there is one, else the operation it refused."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if found := re.search(r"Refusal: (.+)", text):
        return _in_words(found[1].strip())
    if mixed := re.search(r"Cannot unify (.+?) and (.+?) for '([^']+)'", text):
        return _mixed_reason(mixed[3], [mixed[1], mixed[2]])
    if mixed := re.search(r"Can't unify return type from the following types: (.+)", text):
        return _mixed_reason("return", mixed[1].split(", "))
    if unset := re.search(r"cannot be determined, operation: ([\w$.]+), location", text):
        return _unset_reason(unset[1])
    called = re.search(r">>> (.+)", text)
    if caught := re.search(r"exception_match\(\w+, (\w+)\)", text):
        return f"except {caught[1]} has no compiled form, except Exception has"
    if missing := re.search(r"name '(\w+)' is not defined", text):
        return f"the name {missing[1]} is not defined before this function{ALWAYS}"
    if "No implementation of function" in text and called is not None:
        return f"there is no compiled form of {_in_words(called[1].strip())}"
    return next((line.strip() for line in text.splitlines() if _is_reason(line)), "unknown reason")


def _in_words(reason: str) -> str:
    """Types as a user knows them: what may be None, a constant, rows and a row of a table.

    >>> _in_words("round(OptionalType(decimal(9,2)), Literal[int](1))")
    'round(decimal(9,2) or None, 1)'
    >>> _in_words("bool(rows(record(table 't', write, (('id', 'bigint', 0),)), 32))")
    "bool(rows of table 't')"
    """
    reason = reason.replace("(texts, ", "(")  # the pool, which the compiler hands along
    for opening, meant in _FORMS:
        while opening in reason:
            first = reason.index(opening)
            inside, after = _bracketed(reason, reason.index("(", first))
            reason = reason[:first] + meant(inside) + after
    return reason


def _bracketed(text: str, first: int) -> tuple[str, str]:
    """What is within the bracket that opens at a place, and what is behind it."""
    depth = 0
    for place in range(first, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return text[first + 1 : place], text[place + 1 :]
    return text[first + 1 :], ""


# As Numba shows our types and its own, from the outermost in, and what a user calls them.
_FORMS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("rows(record(", lambda inside: f"rows of {inside.partition(',')[0].removeprefix('record(')}"),
    ("record(", lambda inside: f"a row of {inside.partition(',')[0]}"),
    ("OptionalType(", lambda inside: f"{inside} or None"),
    ("Literal[int](", lambda inside: inside),
    ("Literal[str](", lambda inside: inside),
)


def _unset_reason(name: str) -> str:
    """Why a value has no type: no statement that could set it is ever reached."""
    if name.startswith("$best"):
        return "min or max of values of which there are none: no value passes the condition"
    return f"{name.partition('.')[0]} has no value: what sets it is never reached"


def _mixed_reason(name: str, kinds: list[str]) -> str:
    """Why a name, or what is returned, that is one thing here and another there is refused."""
    if any("abort" in kind for kind in kinds):
        others = " or ".join(f"a {kind}" for kind in kinds if "abort" not in kind)
        return (
            f"hg.abort(...) on one way and {others} on another; write if ...: return hg.abort(...)"
        )
    said = ", ".join(f"a {kind}" for kind in kinds)
    what = "it" if name.startswith("$") or name == "return" else name.partition(".")[0]
    verb = "returns" if name == "return" else "is"
    return f"{what} {verb} values of several kinds: {said}; give it one kind on every way"


def _is_reason(line: str) -> bool:
    skipped = ("Failed in", "During:", "File ", "-", "No implementation of function Function(<intr")
    return bool(line.strip()) and not line.strip().startswith(skipped)


# --- what the code alone shows --------------------------------------------------------------------

_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_F_STRING = "a format or a conversion in an f-string has no compiled form; write {value} alone"
_STEPS = {
    "UNPACK_EX": "a name with a star takes what is left over; take the values one by one",
    "IMPORT_NAME": "an import inside the function; write it at the top of the module",
    "DELETE_ATTR": "del of a column; set it to another value, or remove the row: hg.delete(row)",
    "DICT_MERGE": "keywords from a dict; write them out",
    "FORMAT_VALUE": _F_STRING,
    "FORMAT_SIMPLE": _F_STRING,  # these are their names since Python 3.13
    "FORMAT_WITH_SPEC": _F_STRING,
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


def refuse_forms(function: Any, where: str) -> None:
    """Refuse the first thing in a function, or in one that it calls, that is never compiled."""
    for one in called_functions(function):
        found = _first(one.__code__)
        if found is not None:
            place, what = found
            raise DeclarationError(f"{where} cannot be compiled: at {place}: {what}; {AS_PYTHON}")


def _first(code: types.CodeType) -> tuple[Line, str] | None:
    # What a generator expression stands in is judged in `generators`.
    if code.co_flags & inspect.CO_GENERATOR and code.co_name != "<genexpr>":
        what = "a generator has no compiled form; write a loop"
        return Line(code.co_filename, code.co_firstlineno), what
    body = Code(code)
    for number, step in enumerate(body.steps):
        is_plain = _is_literal(body, number) or (step.opname == "FORMAT_VALUE" and step.arg == 0)
        if step.opname == "STORE_DEREF" and step.argval in code.co_freevars:
            return body.place(number), "a name that is set in a generator expression; write a loop"
        if step.opname in _STEPS and not is_plain:
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
