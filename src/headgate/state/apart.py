"""Apart: functions that kernels call where they are, and do not take in.

A kernel takes in all that it calls, and is optimised with it. What is long, and the same for all
programs (a look into an index, a version that is noted), would be optimised and made machine code
in each kernel of each program: most of the time to compile those that have indexes, windows or
expiry. So it is compiled once, kept on disk by itself, and called by its name. So is the attempt at
one task, once for a program: by it all ways to go through the tasks call what the user wrote.

Invariant: the name says all that went into the function, in any process; and a kernel that comes
from the disk is taken only when all that it calls is there under the very names that it has.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from numba.core.codegen import JITCodeLibrary

_MARK = "__headgate_apart__"
_COUNTED_MAX = (
    1 << 40
)  # Numba counts functions up from 1; numbers that say what they are, are larger
_numbers: set[tuple[Any, ...]] = set()  # those given in this process


@dataclass(frozen=True)
class CalledApart:
    """A function that is called where it is: its place, its arguments' types and its symbol."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    symbol: str


JITCodeLibrary.headgate_apart = None  # what of it is called where it is, if it is such a function
JITCodeLibrary.headgate_calls = ()  # what the code in it calls elsewhere


def declare(function: FunctionType) -> None:
    """Say of a function that it is compiled by itself."""
    function.__dict__[_MARK] = True


def give_number(state: Any, versions: tuple[Any, ...]) -> None:
    """Let a function that is about to be compiled have a name that it has in every process.

    Numba counts functions, and has the count in their names.
    """
    function = state.func_id
    if versions[-1] is None:  # its sources are not known: it has a name of this process alone
        return
    word = repr((*versions, function.func_qualname)).encode()
    number = int(hashlib.sha256(word).hexdigest()[:15], 16) | _COUNTED_MAX
    if (number, state.args) not in _numbers:
        _numbers.add((number, state.args))
        function.unique_id = number
        function.unique_name = f"{function.func_qualname}${number}"


def marked(result: Any, function: FunctionType) -> Any:
    """What Numba compiled or loaded, marked if no kernel shall take it in."""
    if _MARK in function.__dict__:
        library, described = result.library, result.fndesc
        arguments = tuple(result.signature.args)
        library.headgate_apart = CalledApart(
            function.__module__, function.__name__, arguments, described.mangled_name
        )
        library._linking_libraries = []  # it has taken them in
    return result


def may_be_kept(result: Any) -> bool:
    """Not where a function that is called by its name has one of this process alone."""
    return result.library.headgate_apart is None or result.fndesc.uid >= _COUNTED_MAX


def taken_out(library: Any) -> list[Any]:
    """The libraries that a kernel takes in; the others are noted as what it calls."""
    given = dict.fromkeys(library._linking_libraries)
    apart = [one for one in given if one.headgate_apart is not None]
    if apart:
        library.headgate_calls = tuple(one.headgate_apart for one in apart)
        library._linking_libraries = [one for one in given if one.headgate_apart is None]
    return list(library._linking_libraries)


def called_by(library: Any) -> tuple[CalledApart, ...]:
    """What the code of a library calls elsewhere."""
    return tuple(library.headgate_calls)


def are_there(called: tuple[CalledApart, ...]) -> bool:
    """See to it that all that a kernel calls is compiled or loaded; whether it has those names."""
    for one in called:
        found = getattr(importlib.import_module(one.module), one.name)
        found.compile(one.arguments)
        if found.overloads[one.arguments].fndesc.mangled_name != one.symbol:
            return False
    return True
