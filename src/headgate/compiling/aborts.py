"""Aborts: every abort that a function makes, or gets from one it calls, must be returned.

An abort that is dropped would commit what it was meant to undo. The judgement follows values
through Numba's form of the bytecode, so it needs no source: `abort(...)` as a statement, the result
of a function that may abort and is not looked at, one that a loop overwrites. A value that was
tested to be None is no abort any more.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numba.core import ir

from headgate.compiling import actions
from headgate.compiling.bytecode import called_functions, is_own_code, references
from headgate.compiling.generators import frontend
from headgate.errors import DeclarationError

Site = tuple[int, str]  # the line and what is called there


def refuse_lost_aborts(function: Any, where: str) -> None:
    """Raise a DeclarationError for the first abort that is not returned."""
    known: dict[Any, bool] = {}
    for one in called_functions(function):
        _may_abort(one, known, where)


def _may_abort(function: Any, known: dict[Any, bool], where: str) -> bool:
    """Whether a function may return an abort; refuses it when it loses one."""
    if function in known:
        return known[function]
    known[function] = _names_abort(function)
    if not known[function]:
        return False
    try:
        func_ir = frontend(function)
    except Exception:  # what Numba cannot read runs as Python, which notices a lost abort itself
        return True
    tracker = _Tracker(function, func_ir, known, where)
    known[function] = tracker.track()
    return known[function]


def _names_abort(function: Any) -> bool:
    """Whether the function, or one it calls, mentions abort at all."""
    return any(
        value is actions.abort
        for one in called_functions(function)
        for value in references(one).values()
    )


@dataclass
class _State:
    """What holds at one point: which variables hold what was made where, and what is pending."""

    holds: dict[str, frozenset[Site]] = field(default_factory=dict)
    pending: frozenset[Site] = frozenset()

    def copy(self) -> _State:
        return _State(dict(self.holds), self.pending)

    def join(self, other: _State) -> bool:
        """Take in what holds on another way; returns whether that was new."""
        before = (dict(self.holds), self.pending)
        self.pending |= other.pending
        for name, sites in other.holds.items():
            self.holds[name] = self.holds.get(name, frozenset()) | sites
        return before != (self.holds, self.pending)


class _Tracker:
    def __init__(self, function: Any, func_ir: Any, known: dict[Any, bool], where: str) -> None:
        self.function = function
        self.func_ir = func_ir
        self.known = known
        self.where = where
        self.returns_abort = False

    def track(self) -> bool:
        """Follow every way through the function; returns whether it may return an abort."""
        blocks = self.func_ir.blocks
        first = min(blocks)
        before = {first: _State()}
        waiting = [first]
        while waiting:
            label = waiting.pop()
            for target, state in self._through(label, before[label].copy()):
                if target not in before:
                    before[target] = state.copy()
                    waiting.append(target)
                elif before[target].join(state):
                    waiting.append(target)
        return self.returns_abort

    def _through(self, label: int, state: _State) -> Iterator[tuple[int, _State]]:
        last = self.func_ir.blocks[label].terminator
        for statement in self.func_ir.blocks[label].body:
            if isinstance(statement, ir.Assign):
                self._assign(statement, state)
        if isinstance(last, ir.Return):
            self._return(last, state)
        tested = self._tested(last.cond.name) if isinstance(last, ir.Branch) else None
        for target in last.get_targets():
            way = state.copy()
            if tested is not None:
                name, none_when = tested
                if target == (last.truebr if none_when else last.falsebr):
                    way.pending -= state.holds.get(name, frozenset())
            yield target, way

    def _assign(self, statement: Any, state: _State) -> None:
        target, value = statement.target.name, statement.value
        held: frozenset[Site] = frozenset()
        if isinstance(value, ir.Var):
            held = state.holds.get(value.name, held)
        elif isinstance(value, ir.Expr) and value.op == "cast":
            held = state.holds.get(value.value.name, held)
        elif isinstance(value, ir.Expr) and value.op == "call" and self._aborts(value):
            site = (statement.loc.line, self._name_of(value))
            if site in state.pending:  # made before on a way round, and not looked at
                raise self._lost(site)
            held = frozenset({site})
            state.pending |= held
        state.holds[target] = held

    def _return(self, statement: Any, state: _State) -> None:
        held = state.holds.get(statement.value.name, frozenset())
        self.returns_abort |= bool(held)
        lost = state.pending - held
        if lost and not self._is_abort(statement.value.name):
            raise self._lost(min(lost))

    # --- what a variable stands for ---------------------------------------------------------------

    def _definition(self, name: str) -> Any:
        found = self.func_ir._definitions.get(name, ())
        if len(found) != 1:
            return None
        if isinstance(found[0], ir.Var):
            return self._definition(found[0].name)
        if isinstance(found[0], ir.Expr) and found[0].op == "cast":
            return self._definition(found[0].value.name)
        return found[0]

    def _value(self, name: str) -> Any:
        found = self._definition(name)
        if isinstance(found, (ir.Global, ir.FreeVar, ir.Const)):
            return found.value
        if isinstance(found, ir.Expr) and found.op == "getattr":
            owner = self._value(found.value.name)
            if isinstance(owner, (python_types.ModuleType, type)):
                return getattr(owner, found.attr, None)
        return None

    def _is_abort(self, name: str) -> bool:
        """Whether a variable is an abort on every way."""
        found = self._definition(name)
        is_call = isinstance(found, ir.Expr) and found.op == "call"
        return is_call and self._value(found.func.name) is actions.abort

    def _aborts(self, call: Any) -> bool:
        callee = self._value(call.func.name)
        if callee is actions.abort:
            return True
        return is_own_code(callee) and _may_abort(callee, self.known, self.where)

    def _name_of(self, call: Any) -> str:
        callee = self._value(call.func.name)
        return "abort" if callee is actions.abort else str(callee.__name__)

    def _tested(self, name: str) -> tuple[str, bool] | None:
        """(variable, whether it is None when the condition holds) of a test for None."""
        found = self._definition(name)
        if not isinstance(found, ir.Expr):
            return None
        if found.op == "call" and self._value(found.func.name) is bool:
            inner = self._tested(found.args[0].name)
            return inner if inner is not None else (found.args[0].name, False)
        if found.op == "unary" and str(getattr(found.fn, "__name__", found.fn)) == "not_":
            inner = self._tested(found.value.name)
            return (inner[0], not inner[1]) if inner is not None else (found.value.name, True)
        if found.op != "binop":
            return None
        sign = str(getattr(found.fn, "__name__", found.fn))
        if sign not in ("is_", "is_not"):
            return None
        for one, other in ((found.lhs, found.rhs), (found.rhs, found.lhs)):
            constant = self._definition(other.name)
            if isinstance(constant, ir.Const) and constant.value is None:
                return one.name, sign == "is_"
        return None

    def _lost(self, site: Site) -> DeclarationError:
        line, name = site
        place = f"{self.function.__code__.co_filename}:{line}"
        if name == "abort":
            return DeclarationError(
                f"{self.where}: {place}: abort(...) without return has no effect; "
                "write return hg.abort(...)"
            )
        return DeclarationError(
            f"{self.where}: {place}: {name}(...) may abort, and what it returns is not returned; "
            f"write verdict = {name}(...), then: if verdict is not None: return verdict"
        )
