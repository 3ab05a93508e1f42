"""Slicing: a transaction's function cut into operations, one for the rows of each parameter.

An operation computes the new version of its rows and nothing else, so it waits only for the rows
that this needs. The analysis follows data and control through Numba's IR without regard to the
order of statements, so it may find a dependency too many and never one too few. One operation, the
head, also decides on the function's aborts and fills the output; another one leaves out an abort
that it could only test by reading more rows, because the head's verdict then undoes it.
"""

from __future__ import annotations

import builtins
import dis
import types as python_types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numba.core import ir

from headgate.compiling import actions
from headgate.compiling.bytecode import is_user_function, references
from headgate.compiling.flow import Flow, Unsliceable
from headgate.compiling.generators import PLAIN, frontend
from headgate.compiling.signature import OutputColumns, Signature
from headgate.state.table import Access

_CONTAINERS = ("build_list", "build_set", "build_map", "make_function", "yield", "undef")
_STATEMENTS = (ir.Assign, ir.SetAttr, ir.Jump, ir.Branch, ir.Return, ir.Del)

# A variable; ("row", parameter): the values in its rows; ("old", parameter): before any change.
Node = str | tuple[str, str]


@dataclass(frozen=True)
class Slice:
    """One operation of a transaction, by the names of the function's parameters."""

    writes: frozenset[str]  # whose rows it gives a new version
    reads: frozenset[str]  # whose rows it looks at, its own among them
    is_head: bool  # it decides on aborts and fills the output


@dataclass(frozen=True)
class Slicing:
    """The operations of a transaction; a single one that is all of it when `whole` says why."""

    slices: tuple[Slice, ...]
    whole: str | None  # why the function was not cut
    may_hang: bool  # it has a loop that values of an undone transaction might keep going


@dataclass(frozen=True)
class KeptSlice:
    """A slice with what it keeps of the function's variables and guards."""

    slice: Slice
    kept: set[Node]
    guards: set[int]


@dataclass(frozen=True)
class Cut:
    """What the compiler needs to keep one slice of a function."""

    roles: Mapping[str, Access | OutputColumns | None]
    part: Slice

    def apply(self, func_ir: Any) -> None:
        """Leave only the slice in the function's IR."""
        Cutter(func_ir, self).apply()


def slice_transaction(signature: Signature) -> Slicing:
    """Cut a transaction into operations, or say why it must stay whole."""
    roles = {parameter.name: parameter.stands_for for parameter in signature.parameters}
    may_hang = _may_hang(signature.function, set())
    try:
        if may_hang:
            raise Unsliceable("it has a while loop or calls itself")
        func_ir = frontend(signature.function)
        parts = Analysis(func_ir, roles).parts()
        return Slicing(tuple(part.slice for part in parts), None, False)
    except Unsliceable as reason:
        return Slicing((whole_slice(signature),), str(reason), may_hang)


def whole_slice(signature: Signature) -> Slice:
    """The transaction as one operation on all of its rows."""
    rows = {p.name: p.stands_for for p in signature.parameters if isinstance(p.stands_for, Access)}
    written = frozenset(name for name, access in rows.items() if not access.read_only)
    return Slice(written, frozenset(rows), True)


def _may_hang(function: Any, seen: set[Any]) -> bool:
    """Whether it, or a function it calls, has a loop other than `for`, or recursion."""
    if function in seen:
        return True
    steps = list(dis.get_instructions(function.__code__))
    loops = sum(step.opname == "FOR_ITER" for step in steps)
    targets = {s.argval for s in steps if s.opname.startswith("JUMP_BACKWARD")}
    targets |= {s.argval for s in steps if "BACKWARD" in s.opname or _goes_back(s)}
    heads = {step.offset for step in steps if step.opname == "FOR_ITER"}
    if len(targets - heads) > 0 or len(targets) > loops:
        return True
    called = [value for value in references(function).values() if is_user_function(value)]
    return any(_may_hang(value, seen | {function}) for value in called)


def _goes_back(step: dis.Instruction) -> bool:
    is_jump = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
    return is_jump and isinstance(step.argval, int) and step.argval <= step.offset


class Analysis:
    """What every variable and every row of a function depends on."""

    def __init__(self, func_ir: Any, roles: Mapping[str, Access | OutputColumns | None]) -> None:
        self.func_ir = func_ir
        self.roles = roles
        self.flow = Flow(func_ir, self._returns_abort)
        self.roots: dict[str, set[str]] = {}  # variable -> parameters it may refer to
        self.uses: dict[Node, set[Node]] = {}
        self.assigned: dict[Node, set[int]] = {}  # where a node gets its values
        self.writers: list[tuple[int, Any, set[str]]] = []  # (block, statement, parameters)
        self._refuse_unknown()
        self._find_roots()
        self._find_uses()

    # --- reading the function -----------------------------------------------------------------

    def _refuse_unknown(self) -> None:
        for block in self.func_ir.blocks.values():
            for statement in block.body:
                if not isinstance(statement, _STATEMENTS):
                    what = type(statement).__name__
                    raise Unsliceable(f"line {statement.loc.line}: {what} is not cut apart")
                value = getattr(statement, "value", None)
                if isinstance(value, ir.Expr) and value.op in _CONTAINERS:
                    raise Unsliceable(f"line {statement.loc.line}: {value.op} is not cut apart")

    def definition(self, name: str) -> list[Any]:
        return list(self.func_ir._definitions.get(name, ()))

    def value_of(self, name: str) -> Any:
        """The Python object a variable stands for, or None."""
        found = self.definition(name)
        if len(found) != 1:
            return None
        if isinstance(found[0], (ir.Global, ir.FreeVar, ir.Const)):
            return found[0].value
        if isinstance(found[0], ir.Var):
            return self.value_of(found[0].name)
        if isinstance(found[0], ir.Expr) and found[0].op == "getattr":
            owner = self.value_of(found[0].value.name)
            if isinstance(owner, (python_types.ModuleType, type)):
                return getattr(owner, found[0].attr, None)
        return None

    def _returns_abort(self, name: str) -> bool | None:
        """Whether a returned variable is an abort; None when it may be one or not."""
        kinds: set[bool | None] = set()
        for found in self.definition(name):
            if isinstance(found, ir.Expr) and found.op == "cast":
                kinds.add(self._returns_abort(found.value.name))
            elif isinstance(found, ir.Var):
                kinds.add(self._returns_abort(found.name))
            elif isinstance(found, ir.Expr) and found.op == "call":
                kinds.add(True if self.value_of(found.func.name) is actions.abort else None)
            else:
                kinds.add(False if isinstance(found, ir.Const) and found.value is None else None)
        return kinds.pop() if len(kinds) == 1 else None

    def _statements(self) -> Iterable[tuple[int, Any]]:
        for label, block in self.func_ir.blocks.items():
            for statement in block.body:
                yield label, statement

    def _find_roots(self) -> None:
        """Which variables may refer to which rows, through loops and tuples, to a fixed point."""
        for _, statement in self._statements():
            if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Arg):
                name = statement.value.name
                if self.roles.get(name) is not None:
                    self.roots[statement.target.name] = {name}
        changed = True
        while changed:
            changed = False
            for _, statement in self._statements():
                if not isinstance(statement, ir.Assign):
                    continue
                if isinstance(statement.value, ir.Expr) and statement.value.op == "getattr":
                    continue  # a column's value, not a row
                if not isinstance(statement.value, (ir.Expr, ir.Var)):
                    continue
                found: set[str] = set()
                for variable in _operands(statement.value):
                    found |= self.roots.get(variable.name, set())
                before = self.roots.setdefault(statement.target.name, set())
                changed |= not found <= before
                before |= found

    def _find_uses(self) -> None:
        written = self._written_at()
        for label, statement in self._statements():
            if isinstance(statement, ir.Assign):
                self._note_assign(label, statement)
                self._note_columns(label, statement, written)
            elif isinstance(statement, ir.SetAttr):
                roots = self.roots.get(statement.target.name, set())
                if not roots:
                    raise Unsliceable(f"line {statement.loc.line}: .{statement.attr} of no row")
                self._note_write(label, statement, roots, [statement.target, statement.value])

    def _note_assign(self, label: int, statement: Any) -> None:
        target, value = statement.target.name, statement.value
        self.assigned.setdefault(target, set()).add(label)
        uses = self.uses.setdefault(target, set())
        if not isinstance(value, (ir.Expr, ir.Var)):
            return
        operands = _operands(value)
        uses |= {variable.name for variable in operands}
        if not isinstance(value, ir.Expr):
            return
        if value.op == "call" and not _is_plain(self.value_of(value.func.name)):
            roots: set[str] = set().union(*(self.roots.get(v.name, set()) for v in operands))
            uses |= {("row", root) for root in roots}
            if roots:
                self._note_write(label, statement, roots, operands)

    def _written_at(self) -> dict[str, list[tuple[int, int]]]:
        """Parameter -> the blocks and places where its rows may be changed."""
        found: dict[str, list[tuple[int, int]]] = {}
        for label, block in self.func_ir.blocks.items():
            for place, statement in enumerate(block.body):
                operands: list[Any] = []
                if isinstance(statement, ir.SetAttr):
                    operands = [statement.target]
                elif isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr):
                    call = statement.value
                    if call.op == "call" and not _is_plain(self.value_of(call.func.name)):
                        operands = _operands(call)
                for variable in operands:
                    for root in self.roots.get(variable.name, ()):
                        found.setdefault(root, []).append((label, place))
        return found

    def _note_columns(
        self, label: int, statement: Any, written: Mapping[str, list[tuple[int, int]]]
    ) -> None:
        """Reading a column needs what was written to its rows on the way to it, if anything was."""
        value = statement.value
        if not isinstance(value, ir.Expr) or value.op != "getattr":
            return
        here = next(
            place for place, one in enumerate(self.func_ir.blocks[label].body) if one is statement
        )
        for root in self.roots.get(value.value.name, ()):
            is_changed = any(
                (block == label and place < here) or self.flow.leads(block, label)
                for block, place in written.get(root, ())
            )
            self.uses[statement.target.name].add(("row" if is_changed else "old", root))

    def _note_write(self, label: int, statement: Any, roots: set[str], operands: Any) -> None:
        """A statement that may change the rows of these parameters."""
        written = {root for root in roots if not _is_read_only(self.roles[root])}
        self.writers.append((label, statement, written))
        for root in written:
            self.uses.setdefault(("row", root), set()).update(v.name for v in operands)
            self.assigned.setdefault(("row", root), set()).add(label)

    # --- what a slice needs -------------------------------------------------------------------

    def closure(self, seeds: Iterable[Node]) -> set[Node]:
        """All that these nodes depend on, the conditions under which they are set included."""
        found: set[Node] = set()
        waiting = list(seeds)
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            waiting += self.uses.get(node, ())
            for label in self.assigned.get(node, ()):
                waiting += self.flow.conditions(label)
        return found

    def guard_needs(self, label: int) -> set[Node]:
        """What testing one guard needs: its condition, those before it, and the reason's text."""
        seeds: list[Node] = [self.flow.guards[label], *self.flow.conditions(label)]
        for doomed in self.flow.doomed_from(label):
            for statement in self.func_ir.blocks[doomed].body:
                seeds += [variable.name for variable in statement.list_vars()]
        return self.closure(seeds)

    def parts(self) -> list[KeptSlice]:
        """One slice for each set of rows that are written together; the cheapest is the head."""
        accesses = {n: role for n, role in self.roles.items() if isinstance(role, Access)}
        groups = self._groups(accesses) or [frozenset[str]()]
        needs = [self._needs(group, accesses) for group in groups]
        guards = {label: self.guard_needs(label) for label in self.flow.guards}
        verdict = set().union(*guards.values()) if guards else set[Node]()
        verdict |= self.closure(
            ("row", n) for n, r in self.roles.items() if isinstance(r, OutputColumns)
        )
        added = [len(_rows(need | verdict, accesses) - _rows(need, accesses)) for need in needs]
        head = added.index(min(added))
        needs[head] |= verdict | self._left_over(verdict.union(*needs))
        reads = [_rows(need, accesses) | group for need, group in zip(needs, groups, strict=True)]
        # A row that no operation looks at must still be there: the head sees to it.
        reads[head] |= set(accesses).difference(*reads)
        found = []
        for place, (group, read) in enumerate(zip(groups, reads, strict=True)):
            tested = {one for one, need in guards.items() if _rows(need, accesses) <= read}
            kept = needs[place].union(*(guards[label] for label in tested))
            part = Slice(group, frozenset(read), place == head)
            found.append(KeptSlice(part, kept, tested))
        return found

    def _groups(self, accesses: Mapping[str, Access]) -> list[frozenset[str]]:
        """The parameters whose rows change, those together that one statement may change."""
        groups = {name: {name} for name, access in accesses.items() if access.create}
        for _, _, written in self.writers:
            rows = sorted(written & set(accesses))
            for name in rows:
                groups.setdefault(name, {name})
            merged = set().union(*(groups[name] for name in rows)) if rows else set()
            for name in merged:
                groups[name] = merged
        ordered = [frozenset(groups[name]) for name in accesses if name in groups]
        return list(dict.fromkeys(ordered))

    def _needs(self, group: frozenset[str], accesses: Mapping[str, Access]) -> set[Node]:
        stated = [("row", other) for name in group for other in accesses[name].reads]
        return self.closure([*(("row", name) for name in group), *stated])

    def _left_over(self, kept: set[Node]) -> set[Node]:
        """Statements that no slice keeps may still raise, so the head keeps them."""
        seeds: set[Node] = set()
        writers = {id(statement) for _, statement, written in self.writers if written}
        for label, statement in self._statements():
            if label in self.flow.doomed or not isinstance(statement, ir.Assign):
                continue
            if id(statement) in writers:
                continue  # the slice of the rows it changes keeps it
            value = statement.value
            if not isinstance(value, ir.Expr) or value.op in ("getattr", "cast"):
                continue
            if statement.target.name not in kept and not self._is_bool(value):
                seeds |= {statement.target.name, *self.flow.conditions(label)}
        return self.closure(seeds)

    def _is_bool(self, value: Any) -> bool:
        return value.op == "call" and self.value_of(value.func.name) is bool


def _operands(value: Any) -> list[Any]:
    return [value] if isinstance(value, ir.Var) else list(value.list_vars())


def _rows(nodes: set[Node], accesses: Mapping[str, Access]) -> set[str]:
    return {node[1] for node in nodes if isinstance(node, tuple) and node[1] in accesses}


def _is_read_only(role: Access | OutputColumns | None) -> bool:
    return isinstance(role, Access) and role.read_only


def _is_plain(function: Any) -> bool:
    """Whether calling it with rows cannot change or read their columns."""
    if function is actions.abort or function is actions.decimal or function in PLAIN:
        return True
    return isinstance(function, (type, python_types.BuiltinFunctionType)) and (
        getattr(builtins, getattr(function, "__name__", ""), None) is function
    )


class Cutter:
    """Leaves in a function's IR only what one slice needs."""

    def __init__(self, func_ir: Any, cut: Cut) -> None:
        self.func_ir = func_ir
        self.analysis = Analysis(func_ir, cut.roles)
        part = next(one for one in self.analysis.parts() if one.slice == cut.part)
        self.kept, self.kept_guards = part.kept, part.guards

    def apply(self) -> None:
        """Drop statements, bend branches that decide nothing, and forget blocks never reached."""
        blocks = self.func_ir.blocks
        for label, block in blocks.items():
            if label not in self.analysis.flow.doomed:
                block.body = [new for old in block.body for new in self._statement(label, old)]
        reached, waiting = set(), [min(blocks)]
        while waiting:
            label = waiting.pop()
            if label not in reached:
                reached.add(label)
                waiting += blocks[label].terminator.get_targets()
        for label in set(blocks) - reached:
            del blocks[label]

    def _statement(self, label: int, statement: Any) -> list[Any]:
        if isinstance(statement, ir.Assign):
            return [statement] if self._keeps_assign(label, statement) else []
        if isinstance(statement, ir.SetAttr):
            roots = self.analysis.roots.get(statement.target.name, set())
            return [statement] if any(("row", root) in self.kept for root in roots) else []
        if isinstance(statement, ir.Branch) and not self._keeps_branch(label, statement):
            return [ir.Jump(self.analysis.flow.way_on(label), statement.loc)]
        return [statement]

    def _keeps_assign(self, label: int, statement: Any) -> bool:
        if statement.target.name in self.kept or isinstance(statement.value, ir.Arg):
            return True
        if statement.target.name in self.analysis.flow.returned:
            return True
        for at, writer, written in self.analysis.writers:
            if writer is statement and at == label:
                return any(("row", root) in self.kept for root in written)
        return False

    def _keeps_branch(self, label: int, statement: Any) -> bool:
        if label in self.analysis.flow.guards:
            return label in self.kept_guards
        return statement.cond.name in self.kept and self.analysis.flow.decides(label, self._labels)

    @property
    def _labels(self) -> set[int]:
        """Blocks in which something is kept."""
        nodes = [node for node in self.analysis.assigned if node in self.kept]
        found = {label for node in nodes for label in self.analysis.assigned[node]}
        return found | self.kept_guards
