"""Binding: kernels written as plain functions, made into those of one set of transactions.

A kernel calls pieces that only a program can give: its step, its look-ups, its way to attempt a
task. The functions of a module that are marked `kernel` or `part` are made anew for a program, over
the module's own globals with those pieces put in place of the ones declared there, and compiled.
Everything else that they call is shared by all programs.

Invariant: compiled code is kept under a fingerprint of all that went into it: the pieces, the code
of every bound function, and the sources of the package.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from headgate.compiling.cache import generated_module
from headgate.errors import InvariantError
from headgate.state.compiled import cache_folder, kernel_of, linked

_ROLE = "__headgate_role__"
_BOUND: dict[tuple[str, ...], dict[str, Any]] = {}  # what this process has bound before
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Called from Python with words alone; what is compiled of it is kept on disk."""
    function.__dict__[_ROLE] = "kernel"
    return function


def part(function: Function) -> Function:
    """Called by kernels, and in need of a program's pieces itself."""
    function.__dict__[_ROLE] = "part"
    return function


def roles(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """The functions of a module that are to be bound, by name."""
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {name: one for name, one in functions if one.__module__ == module.__name__}
    return {name: one for name, one in own.items() if _ROLE in one.__dict__}


def codes(modules: Sequence[types.ModuleType]) -> tuple[types.CodeType, ...]:
    """The code of all that is bound of these modules, and of what they call, for a fingerprint."""
    found = []
    for module in modules:
        called = (getattr(one, "py_func", None) for _, one in sorted(vars(module).items()))
        functions = [*roles(module).values(), *(one for one in called if one is not None)]
        found += [one.__code__ for one in functions]
    return tuple(found)


def bind(
    modules: Sequence[types.ModuleType], pieces: Mapping[str, Any], name: str, mark: str | None
) -> dict[str, Any]:
    """The marked functions of the modules over these pieces, each a piece of the next module.

    Without a fingerprint nothing is kept, on disk or in this process.
    """
    key = name, mark or "", str(cache_folder())
    if mark is not None and key in _BOUND:
        return _BOUND[key]
    found: dict[str, Any] = {}
    for module in modules:
        bound = generated_module(f"{name}_{module.__name__.rpartition('.')[2]}", mark)
        space = bound.__dict__
        space |= _named(vars(module)) | _named(pieces) | found
        own = {key: _over(one, space, mark is not None) for key, one in roles(module).items()}
        space |= own
        found |= own
    if mark is not None:
        _BOUND[key] = found
    return found


def _named(space: Mapping[str, Any]) -> dict[str, Any]:
    """Without what Python itself keeps there, such as the name of the module."""
    return {key: value for key, value in space.items() if not key.startswith("__")}


def _over(function: types.FunctionType, space: dict[str, Any], is_kept: bool) -> Any:
    """The function over other globals, compiled when it is first called."""
    made = types.FunctionType(function.__code__, space, function.__name__)
    made.__module__ = space["__name__"]
    is_kernel = function.__dict__[_ROLE] == "kernel"
    return kernel_of(made, is_kept) if is_kernel else linked(made)


def unbound() -> NoReturn:
    """What a piece does where no program has taken its place."""
    raise InvariantError("a kernel ran without the pieces of its program")
