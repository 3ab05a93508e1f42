"""The fingerprint of a dataflow: what weak recovery must find unchanged to run batches again.

It has the graph, the transactions, and of each procedure its code with the constants that it goes
by: values that cannot change by themselves, under names that it does not set, in it and in the
functions, methods and classes of the same program that it calls. Of all else (a list, a client, a
model) only the type is known: what is in it may be another every time.

Invariant: rows are run and logged only while the constants are those of the digest.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import enum
import functools
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headgate.compiling.bytecode import is_filled, references
from headgate.compiling.cache import code_fingerprint
from headgate.dataflow.declared import Declared
from headgate.dataflow.procedures import Procedure
from headgate.durability import Commit
from headgate.engine.rerun import fingerprint_of
from headgate.errors import DeclarationError, StoreError, shown
from headgate.state.table import Table
from headgate.transactions import Transaction

_CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), np.generic, enum.Enum, Table,
)  # fmt: skip
_SHOWN = (decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, range)
_WATCHED = (*_CONSTANTS, *_SHOWN, tuple, frozenset, types.FunctionType, types.MethodType, type)
_OF_EVERY_CLASS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
     "__static_attributes__", "__abstractmethods__", "_abc_impl", "__match_args__", "__hash__")
)  # fmt: skip
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_SETTING = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")


class Fingerprint:
    """A digest of a graph and of the code of its nodes; and the constants, so that rows are not run
    by others than it stands for."""

    def __init__(self, declared: Declared) -> None:
        self._watched: list[Watched] = []
        self.mark: str = _mark(declared, self._watched)

    def check(self) -> None:
        """Refuse rows when a constant is another than at the opening: batches would be run again
        with whatever it is then."""
        for one in self._watched:
            if not one.is_same():
                raise DeclarationError(
                    f"weak recovery runs batches again with what their code goes by, and "
                    f"{one.where} is another now than when the engine was opened: "
                    f"{shown(one.value)} became {shown(one.read())}; take engine.snapshot() and "
                    "open the engine again to go on with it, or keep what changes in a table or in "
                    "the rows"
                )


def _mark(declared: Declared, watched: list[Watched]) -> str:
    graph = declared.graph
    functions = [
        (node.name, _Forms(node.name, watched).of(node.step.function), *map(repr, node.tables))
        for node in graph.nodes
        if isinstance(node.step, Procedure)
    ]
    functions += [
        (
            one.name,
            _Forms(one.name, watched).of(one.function),
            *map(repr, (one.table, *one.tables)),
        )
        for flow in declared.flows.values()
        for one in flow.triggers
    ]
    transactions = [node.step for node in graph.nodes if isinstance(node.step, Transaction)]
    said = [repr(one) for one in graph.streams.values()]
    shown_all = [flow.show() for flow in declared.flows.values()]
    mark = code_fingerprint(tuple(functions), fingerprint_of(transactions), said, shown_all)
    if mark is None:
        raise DeclarationError(
            "weak recovery needs procedures whose code can be fingerprinted; open with "
            "recovery='strong'"
        )
    return mark


def check_code(commit: Commit, fingerprint: str | None, *, accept: bool) -> None:
    """Refuse to run an epoch again by code that has changed."""
    if commit.fingerprint != fingerprint and not accept:
        raise StoreError(
            f"epoch {commit.epoch} was logged as input of a dataflow that has changed since, or of "
            "a constant that its code goes by: open with the old code, whose engine.snapshot() "
            "leaves nothing to run again, or with changed_code='accept'"
        )


class Watched(NamedTuple):
    """A name that code goes by, and what it stood for when the engine was opened."""

    where: str
    read: Callable[[], Any]
    value: Any

    def is_same(self) -> bool:
        now = self.read()
        if now is self.value:
            return True
        return type(now) is type(self.value) and bool(now == self.value)


class _Forms:
    """Functions with the constants that they go by, as plain values and code."""

    def __init__(self, name: str, watched: list[Watched]) -> None:
        self._name, self._watched = name, watched
        self._program, self._seen = "", set[int]()

    def of(self, function: Callable[..., Any]) -> Any:
        """The form of what a node calls: a function, or an object that can be called."""
        target: Any = function
        while isinstance(target, functools.partial):
            target = target.func
        module = getattr(target, "__module__", None) or type(target).__module__
        self._program = str(module).partition(".")[0]
        if isinstance(function, types.FunctionType):
            return self._code(function)
        return self._value(function)

    def _code(self, function: types.FunctionType) -> Any:
        if id(function) in self._seen:
            return function.__qualname__
        self._seen.add(id(function))
        set_by_itself = set(_names_set(function.__code__))
        named = []
        for name, value in sorted(references(function).items()):
            if name not in set_by_itself:
                named.append((name, self._value(value)))
                if isinstance(value, _WATCHED):
                    read = functools.partial(_read, function, name)
                    self._watched.append(Watched(f"{name!r} of {self._name!r}", read, value))
        named += [(name, code) for name in _imported(function) if (code := _module_code(name))]
        by_name = tuple(sorted((function.__kwdefaults__ or {}).items()))
        return function.__code__, self._value((function.__defaults__ or (), by_name)), named

    def _value(self, value: Any) -> Any:
        if isinstance(value, (_CONSTANTS, types.ModuleType)):
            return value
        if isinstance(value, tuple):
            return tuple(map(self._value, value))
        if isinstance(value, frozenset):
            return sorted(map(self._value, value), key=repr)
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, _SHOWN):
            return kind, repr(value)
        if isinstance(value, functools.partial):
            given = (value.args, tuple(sorted(value.keywords.items())))
            return kind, self._value(value.func), self._value(given)
        if isinstance(value, types.MethodType):
            return kind, self._value(value.__func__), self._value(value.__self__)
        if isinstance(value, types.FunctionType) and self._is_of_program(value):
            return self._code(value)
        if isinstance(value, type) and self._is_of_program(value):
            return self._class(value)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        # What is in an object may change by itself; what its class does may not.
        return (kind, self._class(type(value))) if self._is_of_program(type(value)) else kind

    def _is_of_program(self, value: Any) -> bool:
        """Whether it stands beside the function or in another module that is no library's."""
        module = str(value.__module__ or "")
        if module.partition(".")[0] == self._program:
            return True
        return _is_of_no_library(getattr(sys.modules.get(module), "__file__", None))

    def _class(self, given: type) -> Any:
        """What a class of the program and those that it is made of say and do."""
        name = f"{given.__module__}.{given.__qualname__}"
        if id(given) in self._seen or not self._is_of_program(given):
            return name
        self._seen.add(id(given))
        members = [
            (said, self._value(_function_of(member)))
            for said, member in sorted(vars(given).items())
            if said not in _OF_EVERY_CLASS
        ]
        return name, members, [self._class(base) for base in given.__bases__]


def _function_of(member: Any) -> Any:
    """The function behind a member of a class."""
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget, member.fset
    if isinstance(member, functools.cached_property):
        return member.func
    return member


def _read(function: types.FunctionType, name: str) -> Any:
    """What a name of a function's code stands for now."""
    owner, *members = name.split(".")
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if owner in cells:
        found = cells[owner].cell_contents if is_filled(cells[owner]) else None
    else:
        found = function.__globals__.get(owner)
    for member in members:
        found = getattr(found, member, None)
    return found


@functools.cache
def _is_of_no_library(file: str | None) -> bool:
    """Whether a module's file is none of Python's own, of what is installed, or of ours."""
    if file is None:
        return False
    ours = Path(__file__).resolve().parents[1]
    libraries = [Path(sysconfig.get_path(name)).resolve() for name in _LIBRARIES]
    return not any(Path(file).resolve().is_relative_to(one) for one in (*libraries, ours))


def _imported(function: types.FunctionType) -> list[str]:
    """The modules that a function imports when it runs."""
    package = str(function.__globals__.get("__package__") or "")
    found, level = list[str](), 0
    for step in dis.get_instructions(function.__code__):
        if step.opname == "LOAD_CONST" and isinstance(step.argval, int):
            level = step.argval  # how many packages up, two steps before the import
        if step.opname == "IMPORT_NAME":
            found.append(f"{package.rsplit('.', level - 1)[0]}.{step.argval}" if level else
                         str(step.argval))  # fmt: skip
    return found


def _module_code(name: str) -> types.CodeType | None:
    """The code of a module of the program, which need not be loaded yet."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the procedure will say so
        return None
    if spec is None or spec.origin is None or not _is_of_no_library(spec.origin):
        return None
    loader: Any = spec.loader
    found: types.CodeType | None = loader.get_code(spec.name) if spec.has_location else None
    return found


def _names_set(code: types.CodeType) -> Iterator[str]:
    """The names that it gives values itself, beyond its own."""
    for step in dis.get_instructions(code):
        if step.opname in _SETTING:
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_set(constant)
