"""The fingerprint of a dataflow: what weak recovery must find unchanged to run batches again.

It has the graph, the transactions, and of each procedure its code with the constants that it goes
by: values that cannot change by themselves, under names that it does not set, in it and in the
functions of the same program that it calls. Of all else (a list, a client, a model) only the type
is known: what is in it may be another every time.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headgate.compiling.bytecode import references
from headgate.compiling.cache import code_fingerprint
from headgate.dataflow.declared import Declared
from headgate.dataflow.procedures import Procedure
from headgate.durability import Commit
from headgate.engine.rerun import fingerprint_of
from headgate.errors import DeclarationError, StoreError
from headgate.state.table import Table
from headgate.transactions import Transaction

_CONSTANTS = (
    bool, int, float, complex, str, bytes, type(None), np.generic, enum.Enum, Table,
)  # fmt: skip
_SHOWN = (decimal.Decimal, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, range)
_SETTING = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")


def fingerprint(declared: Declared) -> str:
    """A digest of the graph and of the code of its nodes."""
    graph = declared.graph
    functions = [
        (node.name, _form(node.step.function), *map(repr, node.tables))
        for node in graph.nodes
        if isinstance(node.step, Procedure)
    ]
    functions += [
        (one.name, _form(one.function), *map(repr, (one.table, *one.tables)))
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


def _form(function: Callable[..., Any]) -> Any:
    """A function with the constants that it goes by, as plain values and code."""
    if not isinstance(function, types.FunctionType):  # an object that can be called, a partial
        return _value(function, "", set())
    return _code(function, function.__module__.partition(".")[0], set())


def _code(function: types.FunctionType, program: str, seen: set[int]) -> Any:
    if id(function) in seen:
        return function.__qualname__
    seen.add(id(function))
    set_by_itself = set(_names_set(function.__code__))
    named = [
        (name, _value(value, program, seen))
        for name, value in sorted(references(function).items())
        if name not in set_by_itself
    ]
    defaults = (function.__defaults__ or (), tuple(sorted((function.__kwdefaults__ or {}).items())))
    return function.__code__, _value(defaults, program, seen), named


def _value(value: Any, program: str, seen: set[int]) -> Any:
    if isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, tuple):
        return tuple(_value(one, program, seen) for one in value)
    if isinstance(value, frozenset):
        return sorted((_value(one, program, seen) for one in value), key=repr)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _SHOWN):
        return kind, repr(value)
    if isinstance(value, types.ModuleType):
        return value
    if isinstance(value, types.FunctionType):
        if value.__module__ and value.__module__.partition(".")[0] == program:
            return _code(value, program, seen)
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, type | types.BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return kind


def _names_set(code: types.CodeType) -> Iterator[str]:
    """The names that it gives values itself, beyond its own."""
    for step in dis.get_instructions(code):
        if step.opname in _SETTING:
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_set(constant)
