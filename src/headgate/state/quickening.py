"""Quickening: what Numba does most often while it compiles, with the same result in less time.

Three quarters of the time to compile a program are Numba's Python, and a third of that is in five
functions, which ask the same question again and again. They are put in place of Numba's own, for
everything that this process compiles; and Python's garbage collector waits until it is compiled.

Invariant: each gives what Numba's function would give; `tests/unit/state/test_quickening.py` holds
the one against the other, and compiles the same program to the same code with both.
"""

from __future__ import annotations

import gc
import operator
import os
import threading
from typing import Any

from numba.core import ir, types
from numba.core.base import BaseContext
from numba.core.dispatcher import Dispatcher
from numba.core.targetconfig import TargetConfig
from numba.core.types.functions import BaseFunction
from numba.core.typing.templates import _IntrinsicTemplate

__all__ = ["NUMBAS_OWN", "OURS"]

# --- the variables that a statement names ---------------------------------------------------------
# Asked for every statement a dozen times, by each pass that changes a function. Numba tests every
# value of a statement against five classes, though nearly all of them are known by their own.

_without: set[type] = set()  # classes of values that were found to name none


def _variables(self: Any, value: Any) -> list[Any]:
    found: list[Any] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Any]) -> None:
    kind = type(value)
    if kind is ir.Var:
        found.append(value)
    elif kind in _without:
        return
    elif kind is ir.Expr:
        _collect(value._kws, found)
    elif kind is dict or isinstance(value, dict):
        for part in value.values():
            _collect(part, found)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _collect(part, found)
    elif isinstance(value, ir.Inst):
        found += value.list_vars()
    elif isinstance(value, ir.Var):
        found.append(value)
    else:
        _without.add(kind)


# --- the type of an intrinsic's call --------------------------------------------------------------
# Numba first looks for new declarations in all its registries, and then whether it knows the call.

_numbas_intrinsic = _IntrinsicTemplate.generic


def _intrinsic(self: Any, args: Any, kws: Any) -> Any:
    args = tuple(args)  # where one may be None, Numba asks again with a list, which is no key
    found = self._impl_cache.get((self.context, args, tuple(kws.items())))
    return _numbas_intrinsic(self, args, kws) if found is None else found


# --- the type of an operator on numbers -----------------------------------------------------------
# Numba tries what is declared for an operator, one after the other, NumPy's loops among it, and
# collects why each does not fit. What is declared is part of the key: more of it is asked anew.

_numbas_call_type = BaseFunction.get_call_type
_OPERATORS = frozenset(one for one in vars(operator).values() if callable(one))
_NUMBERS = frozenset({types.Integer, types.IntegerLiteral, types.Boolean, types.Float})
_known: dict[tuple[Any, ...], tuple[Any, Any]] = {}


def _call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
    if kws or self.typing_key not in _OPERATORS or not _NUMBERS.issuperset(map(type, args)):
        return _numbas_call_type(self, context, args, kws)
    key = self, context, tuple(args)
    found = _known.get(key)
    if found is None:
        signature = _numbas_call_type(self, context, args, kws)
        found = _known[key] = signature, self._impl_keys[signature.args]
    self._impl_keys[found[0].args] = found[1]
    return found[0]


# --- the size of a value --------------------------------------------------------------------------
# Asked for each variable, for the sake of debuggers. Numba has LLVM read a module with one variable
# of that type. Names of structures, which begin with %, may mean another one elsewhere.

_numbas_size = BaseContext.get_abi_sizeof
_sizes: dict[tuple[Any, str], int] = {}


def _size(self: Any, kind: Any) -> int:
    text = str(kind)
    if "%" in text:
        return int(_numbas_size(self, kind))
    key = self.target_data, text
    found = _sizes.get(key)
    if found is None:
        found = _sizes[key] = _numbas_size(self, kind)
    return found


# --- the options of a compilation -----------------------------------------------------------------
# Compared for each function that is called, by asking for all forty of them one after the other.

_defaults: dict[type, dict[str, Any]] = {}


def _values(self: Any) -> dict[str, Any]:
    found = _defaults.get(type(self))
    if found is None:
        found = {name: option.default for name, option in self.options.items()}
        _defaults[type(self)] = found
    return {**found, **self._values}


# --- a compilation --------------------------------------------------------------------------------
# It makes hundreds of thousands of objects that stay as long as it lasts, and Python's collector
# would look through them all, again and again: a fifth of the time. So that waits until it is over.

_numbas_compile = Dispatcher.compile


class _Collector:
    """Python's garbage collector, paused while any thread compiles or forks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may fork
        self._compiling = 0
        self._is_paused = False

    def __enter__(self) -> None:
        with self._lock:
            self._compiling += 1
            if self._compiling == 1 and gc.isenabled():
                self._is_paused = True
                gc.disable()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._compiling -= 1
            if self._compiling == 0 and self._is_paused:
                self._is_paused = False
                gc.enable()

    def after_fork(self) -> None:
        """In a child no thread goes on but the one that forked, and that one does not compile.

        What the parent left to the collector stays where it is: to end some of it takes threads
        that are not here, and a child in which DuckDB waits for them is ended by a fault.
        """
        gc.freeze()
        if self._is_paused:
            gc.enable()
        self.__init__()  # type: ignore[misc]


_collector = _Collector()
os.register_at_fork(
    before=_collector.__enter__,
    after_in_parent=_collector.__exit__,
    after_in_child=_collector.after_fork,
)


def _compile(self: Any, signature: Any) -> Any:
    with _collector:
        return _numbas_compile(self, signature)


OURS = {
    (Dispatcher, "compile"): _compile,
    (BaseContext, "get_abi_sizeof"): _size,
    (TargetConfig, "values"): _values,
    (ir.Inst, "_rec_list_vars"): _variables,
    (_IntrinsicTemplate, "generic"): _intrinsic,
    (BaseFunction, "get_call_type"): _call_type,
}
NUMBAS_OWN = {place: getattr(*place) for place in OURS}

for (_owner, _name), _function in OURS.items():
    setattr(_owner, _name, _function)
