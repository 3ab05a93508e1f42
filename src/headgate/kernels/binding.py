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
from headgate.state.compiled import cache_folder, compiled_apart, kernel_of, linked
from headgate.state.templates import templated

_ROLE = "__headgate_role__"
_BOUND: dict[tuple[str, ...], dict[str, Any]] = {}  # what this process has bound before
_SHARED: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # parts that are the same for all programs
Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Called from Python with words alone; what is compiled of it is kept on disk."""
    function.__dict__[_ROLE] = "kernel"
    return function


def part(function: Function) -> Function:
    """Called by kernels, and in need of a program's pieces itself."""
    function.__dict__[_ROLE] = "part"
    return function


def apart(function: Function) -> Function:
    """A part that is long: kernels of the program call it where it is, see state/apart.py."""
    function.__dict__[_ROLE] = "apart"
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
        own = {
            key: _over(one, space, vars(module), mark is not None)
            for key, one in roles(module).items()
        }
        space |= own
        found |= own
    if mark is not None:
        _BOUND[key] = found
    return found


def _named(space: Mapping[str, Any]) -> dict[str, Any]:
    """Without what Python itself keeps there, such as the name of the module."""
    return {key: value for key, value in space.items() if not key.startswith("__")}


def _over(
    function: types.FunctionType, space: dict[str, Any], own: Mapping[str, Any], is_kept: bool
) -> Any:
    """The function over other globals, compiled when it is first called.

    A part that names nothing but what its own module has is the same for all programs: it is made
    once, for as long as those names mean the same things.
    """
    made = types.FunctionType(function.__code__, space, function.__name__)
    made.__module__ = space["__name__"]
    if function.__dict__[_ROLE] == "kernel":
        return kernel_of(_calling(made, templated(made)), is_kept)
    if function.__dict__[_ROLE] == "apart":
        return compiled_apart(_calling(made, templated(made)))
    named = {name: space[name] for name in function.__code__.co_names if name in space}
    if any(value is not own.get(name) or _is_bound(value) for name, value in named.items()):
        return templated(made)
    key = function, *((name, id(value)) for name, value in named.items())
    if key not in _SHARED:
        _SHARED[key] = linked(function), named  # which keeps those things, and their ids
    return _SHARED[key][0]


def _calling(function: types.FunctionType, body: Any) -> types.FunctionType:
    """A function of the same place and arguments that only calls the other: what Python calls."""
    names = ", ".join(inspect.signature(function).parameters)
    scope: dict[str, Any] = {"body": body, "__name__": function.__module__}
    exec(f"def {function.__name__}({names}):\n    return body({names})", scope)
    found: types.FunctionType = scope[function.__name__]
    place = function.__code__.co_filename, function.__code__.co_firstlineno
    found.__code__ = found.__code__.replace(co_filename=place[0], co_firstlineno=place[1])
    found.__module__ = function.__module__
    return found


def _is_bound(value: Any) -> bool:
    """Whether it is itself made anew for a program, or given by one."""
    plain = isinstance(value, types.FunctionType)
    return plain and (_ROLE in value.__dict__ or value.__module__ == __name__)


def unbound() -> NoReturn:
    """What a piece does where no program has taken its place."""
    raise InvariantError("a kernel ran without the pieces of its program")


# --- what only a set of transactions can give -----------------------------------------------------
# They are declared here so that kernels are ordinary typed functions; `bind` puts the
# program's own in their place. `e` is an event row, `i` a position, `frame` the address of a frame;
# `k` is where the slots of the event stand that kernels look up: its place in a block, or `e`.


def seek(e: int, k: int, frame: int) -> int:
    """Ask for the index entries that the look-ups of one event begin at."""
    unbound()


def match(e: int, k: int, frame: int) -> int:
    """Find the rows of one event by the tags of their entries."""
    unbound()


def touch(e: int, k: int, frame: int) -> int:
    """Ask for the rows of one event that were found."""
    unbound()


def confirm(e: int, k: int, frame: int) -> int:
    """See to it that the rows that were found have the keys of the event; 1 if one had not."""
    unbound()


def compute(e: int, k: int, frame: int) -> int:
    """Find the rows of one event whose keys depend on others; the reason where one is missing."""
    unbound()


def guess(e: int, k: int, frame: int) -> int:
    """Ask for the index entries of rows whose keys depend on others, as these are now."""
    unbound()


def ask(e: int, k: int, frame: int) -> int:
    """Ask for those rows themselves."""
    unbound()


def foresee(e: int, k: int, frame: int) -> int:
    """Find them on the rows as they are now, at `e`; 1 where events of section `k` before this one
    may write what decides on that."""
    unbound()


def stamp(e: int, k: int, frame: int) -> int:
    """Note what the event of section `k` may write that decides on the rows of others."""
    unbound()


def step(e: int, k: int, i: int, epoch: int, frame: int) -> int:
    """Run one transaction in the tables; 0 when it committed, else its reason and no trace."""
    unbound()


def is_due(i: int, frame: int) -> bool:
    """Whether a row expires before the event at this position; see timely.py."""
    unbound()


def sweep_due(i: int, frame: int) -> int:
    """Let the rows go that expire before the event at this position; 1 where not all are known."""
    unbound()


def note_dues(e: int, k: int, frame: int) -> int:
    """Note which of the rows that one event may have written expire within the batch."""
    unbound()


def undo(e: int, k: int, frame: int) -> int:
    """Put the rows of one event back as they were before its step."""
    unbound()


def list_rows(e: int, first: int, frame: int) -> int:
    """List the operations of one event from place `first` on; returns the place after them."""
    unbound()


def deal_rows(e: int, first: int, thread: int, threads: int, frame: int) -> int:
    """Deal the operations of one event out, see shares.py; returns the place behind its links."""
    unbound()


def list_units(
    e: int, i: int, whole: int, k: int, u: int, r: int, frame: int
) -> tuple[int, int, int]:
    """List the operations, units and reads of one event; returns the places after them."""
    unbound()


def perform(u: int, i: int, e: int, keys: int, frame: int) -> int:
    """Run one unit over versions, or with `keys` only see to its keys; its reason, or 0."""
    unbound()


def approach(e: int, frame: int) -> int:
    """Ask for the locks or stamps of the rows of one event."""
    unbound()


def gather(e: int, frame: int) -> int:
    """The operations of one event, each row once; returns how many."""
    unbound()


def point(e: int, frame: int) -> int:
    """Let the thread's own frame find the rows of one event at their private slots."""
    unbound()


def attempt(task: int, eager: int, frame: int) -> int:
    """Run one task; 1 when an abort must be settled before others go on."""
    unbound()


def is_run(task: int, frame: int) -> bool:
    """Whether all of a task has run."""
    unbound()


def finish(task: int, frame: int) -> int:
    """Tell those that wait for a task; returns one that may run at once, or -1."""
    unbound()


def next_stratum(stratum: int, eager: int, frame: int) -> int:
    """Where all threads go on when they have met at the end of a stratum."""
    unbound()


def is_over(threads: int, is_queued: int, frame: int) -> int:
    """Meet when nothing seems left to run; whether that is so once aborts are settled."""
    unbound()
