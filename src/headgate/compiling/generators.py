"""Generators: a generator expression that sum, min, max, any or all takes, as the loop that it is.

Numba has no generator expressions. Here the loop inside one is put in the place of the call that
takes it, in Numba's form of the function and before anything judges or compiles that: aborts,
slices, exactness and types see the loop that a user could have written. So no source is needed, and
the meaning is Python's: values are made one by one, and `any` and `all` stop at the first that
decides. An iterable that is no generator expression, as in `max(event.amounts)`, is walked alike.

Sums are made from left to right, one `+` after the other, on every version of Python.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import types as python_types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba.core import ir, types
from numba.core.compiler import run_frontend
from numba.core.ir_utils import (
    add_offset_to_labels,
    build_definitions,
    get_definition,
    guard,
    rename_labels,
    replace_vars,
)

from headgate.compiling.bytecode import Code, mended
from headgate.compiling.refusals import Refusal
from headgate.compiling.uncompiled import EMPTY
from headgate.state.compiled import overload

_TAKERS = (builtins.sum, builtins.min, builtins.max, builtins.any, builtins.all)
_KEYWORDS = {builtins.sum: "start", builtins.min: "default", builtins.max: "default"}
_MISUSED = "a generator expression stands only in sum, min, max, any or all; write a loop"
_IN_TRY = "a generator expression beside try has no compiled form; write a loop"


def frontend(function: Any) -> Any:
    """Numba's form of a function, generator expressions as loops."""
    func_ir = run_frontend(mended(function))
    inline_generators(func_ir)
    return func_ir


def inline_generators(func_ir: Any) -> bool:
    """Put loops in the place of generator expressions; returns whether there were any."""
    count = 0
    while (site := _next_site(func_ir)) is not None:
        _Loop(func_ir, site).write()
        func_ir._definitions = build_definitions(func_ir.blocks)
        count += 1
    for block in func_ir.blocks.values():
        for made in block.find_exprs(op="make_function"):
            if made.code.co_flags & inspect.CO_GENERATOR:
                is_in_try = bool(Code(func_ir.func_id.code).handlers)
                raise Refusal(_IN_TRY if is_in_try else _MISUSED, loc=made.loc)
    if count == 0:
        return False
    for block in func_ir.blocks.values():
        block.body = [one for one in block.body if not _is_generator_code(one)]
    func_ir.blocks = rename_labels(func_ir.blocks)
    func_ir._definitions = build_definitions(func_ir.blocks)
    return True


def _is_generator_code(statement: Any) -> bool:
    """Whether a statement only loads the code of a generator expression."""
    value = getattr(statement, "value", None)
    code = value.value if isinstance(value, ir.Const) else None
    return isinstance(code, python_types.CodeType) and bool(code.co_flags & inspect.CO_GENERATOR)


# --- where they are -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Site:
    """A call that takes a generator expression, or another iterable as if it were one."""

    label: int
    place: int  # of the call in its block
    taker: Any  # sum, min, max, any or all
    code: python_types.CodeType
    iterated: Any  # the variable that it walks over, or whose elements
    is_generator: bool
    beside: Any  # the variable of `start` or `default`, or None
    dead: frozenset[str]  # variables that nobody needs any more


def _elements(items: Any) -> Any:
    return (item for item in items)


_ELEMENTS = next(
    one for one in _elements.__code__.co_consts if isinstance(one, python_types.CodeType)
)


def _next_site(func_ir: Any) -> _Site | None:
    for label in sorted(func_ir.blocks):
        for place, statement in enumerate(func_ir.blocks[label].body):
            value = getattr(statement, "value", None)
            if isinstance(value, ir.Expr) and value.op == "call":
                site = _site(func_ir, label, place, value)
                if site is not None:
                    return site
    return None


def _site(func_ir: Any, label: int, place: int, call: Any) -> _Site | None:
    found = guard(get_definition, func_ir, call.func)
    known = isinstance(found, (ir.Global, ir.FreeVar))
    taker = next((one for one in _TAKERS if known and found.value is one), None)
    if taker is None or call.vararg is not None or not call.args:
        return None
    given, made = call.args[0], _made(func_ir, call.args[0])
    named, keyword = dict(call.kws), _KEYWORDS.get(taker)
    others = [*call.args[1:], *(named[name] for name in named if name == keyword)]
    is_sum = taker is builtins.sum
    is_known = set(named) <= {keyword} and len(call.args) <= (2 if is_sum else 1)
    if not is_known or len(others) > 1 or (is_sum and made is None):
        return None
    if Code(func_ir.func_id.code).handlers:
        raise Refusal(_IN_TRY, loc=call.loc)
    beside = others[0] if others else None
    dead = {call.func.name} if _uses(func_ir, call.func.name) == 1 else set()
    if made is None:
        return _Site(label, place, taker, _ELEMENTS, given, False, beside, frozenset(dead))
    maker = func_ir._definitions[made.func.name][0]
    closure = () if maker.closure is None else (getattr(maker.closure, "name", ""),)
    dead |= {given.name, made.func.name, *closure}
    return _Site(label, place, taker, maker.code, made.args[0], True, beside, frozenset(dead))


def _made(func_ir: Any, given: Any) -> Any:
    """The call that made a generator, where it stands nowhere but here; or None."""
    found = func_ir._definitions.get(given.name, ())
    if len(found) != 1 or not isinstance(found[0], ir.Expr) or found[0].op != "call":
        return None
    maker = func_ir._definitions.get(found[0].func.name, ())
    is_made = len(maker) == 1 and isinstance(maker[0], ir.Expr) and maker[0].op == "make_function"
    if not is_made or not maker[0].code.co_flags & inspect.CO_GENERATOR:
        return None
    return found[0] if _uses(func_ir, given.name) == 1 else None


def _uses(func_ir: Any, name: str) -> int:
    """How often a variable is looked at."""
    return sum(
        variable.name == name
        for block in func_ir.blocks.values()
        for statement in block.body
        for variable in _looked_at(statement)
    )


def _looked_at(statement: Any) -> list[Any]:
    if not isinstance(statement, ir.Assign):
        return list(statement.list_vars())
    value = statement.value
    return [value] if isinstance(value, ir.Var) else list(getattr(value, "list_vars", list)())


# --- the loop -------------------------------------------------------------------------------------


class _Loop:
    """Writes the loop of one site into a function."""

    def __init__(self, func_ir: Any, site: _Site) -> None:
        self.func_ir, self.site = func_ir, site
        self.block = func_ir.blocks[site.label]
        self.statement = self.block.body[site.place]
        self.scope, self.loc = self.block.scope, self.statement.loc
        self.target = self.statement.target
        self.free: int = max(func_ir.blocks) + 1
        self.after, self.end = self._label(), self._label()

    def _label(self) -> int:
        self.free += 1
        return self.free - 1

    def _new(self, name: str) -> Any:
        return self.scope.redefine(name, self.loc)

    def write(self) -> None:
        """The call's block up to the call, the loop, what it comes to, and the block's rest."""
        before = self.block.body[: self.site.place]
        rest = self.block.body[self.site.place + 1 :]
        begin, iterator = self._begin()
        blocks = self._blocks(iterator)
        self.block.body = [*before, *begin, ir.Jump(min(blocks), self.loc)]
        self._add(self.after, rest)
        self.func_ir.blocks.update(blocks)
        for block in self.func_ir.blocks.values():
            block.body = [
                one
                for one in block.body
                if not (isinstance(one, ir.Assign) and one.target.name in self.site.dead)
            ]

    def _add(self, label: int, body: list[Any]) -> int:
        block = ir.Block(self.scope, self.loc)
        block.body = body
        self.func_ir.blocks[label] = block
        return label

    def _set(self, target: Any, value: Any) -> Any:
        return ir.Assign(value, target, self.loc)

    def _call(self, target: Any, function: Any, *args: Any) -> list[Any]:
        callee = self._new("$taker")
        call = ir.Expr.call(callee, args, (), self.loc)
        found = ir.Global(function.__name__, function, self.loc)
        return [self._set(callee, found), self._set(target, call)]

    def _begin(self) -> tuple[list[Any], Any]:
        """What goes before the loop, and its iterator."""
        site, lines = self.site, []
        iterator = site.iterated
        if not site.is_generator:
            iterator = self._new("$items")
            lines.append(self._set(iterator, ir.Expr.getiter(site.iterated, self.loc)))
        if site.taker in (builtins.any, builtins.all):
            return lines, iterator
        if site.taker is builtins.sum:
            self.found = self._new("$total")
            if site.beside is None:
                return [*lines, self._set(self.found, ir.Const(0, self.loc))], iterator
            if self._is_number(site.beside):
                return [*lines, self._set(self.found, site.beside)], iterator
            return [*lines, *self._call(self.found, start_of_sum, site.beside)], iterator
        self.found, self.has = self._new("$best"), self._new("$has")
        return [*lines, self._set(self.has, ir.Const(False, self.loc))], iterator

    def _is_number(self, variable: Any) -> bool:
        found = guard(get_definition, self.func_ir, variable)
        return isinstance(found, ir.Const) and isinstance(found.value, (int, float))

    # --- its blocks -----------------------------------------------------------------------------

    def _blocks(self, iterator: Any) -> dict[int, Any]:
        """The blocks of the generator with the variables of this function, by free labels."""
        code = self.site.code
        scope = self.func_ir.func_id.func.__globals__
        cells = tuple(python_types.CellType(None) for _ in code.co_freevars)
        inner = run_frontend(python_types.FunctionType(code, scope, "loop", None, cells))
        inline_generators(inner)
        blocks: dict[int, Any] = add_offset_to_labels(inner.blocks, self.free)
        self.free = max(blocks) + 1
        names = {name for block in blocks.values() for name in _names(block)}
        replace_vars(blocks, {name: self._new(name) for name in sorted(names)})
        for block in blocks.values():
            block.scope = self.scope
            if not self.site.is_generator:
                for one in block.body:
                    one.loc = self.loc
            block.body = [self._bound(one, iterator) for one in block.body]
        for label in list(blocks):
            self._take(blocks, label)
        self._close()
        return blocks

    def _bound(self, statement: Any, iterator: Any) -> Any:
        """A statement with what it has from outside: the iterator, and captured variables."""
        value = getattr(statement, "value", None)
        if isinstance(statement, ir.Return):
            return ir.Jump(self.end, statement.loc)
        if isinstance(value, ir.Arg):
            return ir.Assign(iterator, statement.target, statement.loc)
        if isinstance(value, ir.FreeVar):
            return ir.Assign(self._captured(value), statement.target, statement.loc)
        return statement

    def _captured(self, free: Any) -> Any:
        """A variable of this function, or one that it has from outside itself."""
        outer = self.func_ir.func_id.func
        if free.name in outer.__code__.co_cellvars:
            return self.scope.get_exact(free.name)
        place = outer.__code__.co_freevars.index(free.name)
        return ir.FreeVar(place, free.name, outer.__closure__[place].cell_contents, free.loc)

    def _take(self, blocks: dict[int, Any], label: int) -> None:
        """What is done with each value in the place where it is yielded."""
        body = blocks[label].body
        places = [n for n, one in enumerate(body) if isinstance(getattr(one, "value", 0), ir.Yield)]
        for place in places:  # a generator expression yields at one place
            value, rest = body[place].value.value, body[place + 1 :]
            if self.site.taker is builtins.sum:
                added = ir.Expr.binop(operator.add, self.found, value, body[place].loc)
                blocks[label].body = [*body[:place], self._set(self.found, added), *rest]
                continue
            after = self._add(self._label(), rest)
            blocks[label].body = [*body[:place], *self._chosen(value, after)]

    def _chosen(self, value: Any, after: int) -> list[Any]:
        """The end of a block with a value for `any`, `all`, `min` or `max`; `after` goes on."""
        taker = self.site.taker
        if taker in (builtins.any, builtins.all):
            test = self._new("$test")
            decided = [self._set(self.target, ir.Const(taker is builtins.any, self.loc))]
            out = self._add(self._label(), [*decided, ir.Jump(self.after, self.loc)])
            ways = (out, after) if taker is builtins.any else (after, out)
            return [*self._call(test, bool, value), ir.Branch(test, *ways, self.loc)]
        first = [self._set(self.found, value), self._set(self.has, ir.Const(True, self.loc))]
        better = self._call(self.found, taker, self.found, value)
        begin = self._add(self._label(), [*first, ir.Jump(after, self.loc)])
        go_on = self._add(self._label(), [*better, ir.Jump(after, self.loc)])
        return [ir.Branch(self.has, go_on, begin, self.loc)]

    def _close(self) -> None:
        """What the call comes to when all values were taken."""
        taker, leave = self.site.taker, ir.Jump(self.after, self.loc)
        if taker is builtins.sum:
            self._add(self.end, [self._set(self.target, self.found), leave])
        elif taker in (builtins.any, builtins.all):
            self._add(
                self.end,
                [self._set(self.target, ir.Const(taker is builtins.all, self.loc)), leave],
            )
        else:
            none = self._call(self.target, _NOTHING[taker], self.found)
            if self.site.beside is not None:
                none = [self._set(self.target, self.site.beside)]
            some = self._add(self._label(), [self._set(self.target, self.found), leave])
            nothing = self._add(self._label(), [*none, leave])
            self._add(self.end, [ir.Branch(self.has, some, nothing, self.loc)])


def _names(block: Any) -> Iterator[str]:
    for statement in block.body:
        if isinstance(statement, ir.Assign):
            yield statement.target.name
        yield from (one.name for one in _looked_at(statement))


# --- what is called in between --------------------------------------------------------------------


def start_of_sum(start: Any) -> Any:
    """What a sum begins with, which is no text."""
    return start


@overload(start_of_sum)
def _start_of_sum(start: Any) -> Any:
    if str(start) == "text" or isinstance(start, types.Boolean):
        raise Refusal("sum begins with a number; write a loop")
    return lambda start: start


def _nothing(name: str) -> Callable[[Any], Any]:
    """min or max of no values: it raises, where it would give one of this kind."""
    words = EMPTY.format(name)

    def raise_empty(best: Any) -> Any:
        raise ValueError(words)

    def compiled(best: Any) -> Any:
        if True:
            raise ValueError(words)
        return best

    raise_empty.__name__ = name
    overload(raise_empty)(lambda best: compiled)
    return raise_empty


_NOTHING = {builtins.min: _nothing("min"), builtins.max: _nothing("max")}
PLAIN = (start_of_sum, *_NOTHING.values())  # calls that neither read nor change a row
