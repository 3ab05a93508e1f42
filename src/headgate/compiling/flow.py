"""Flow: the blocks of a function, which branch decides on which block, and where aborts are.

A block is doomed when every way from it ends in an abort; a guard is a branch into a doomed block.
Without the doomed blocks a guard decides nothing, which is what lets an operation leave it out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cached_property
from typing import Any

from numba.core import ir
from numba.core.controlflow import CFGraph
from numba.core.ir_utils import get_definition, guard

EXIT = -1


class Unsliceable(Exception):
    """Why a function stays whole."""


class Flow:
    """The control flow of a function without its aborts."""

    def __init__(self, func_ir: Any, returns_abort: Callable[[str], bool | None]) -> None:
        self.blocks = func_ir.blocks
        self.returned: set[str] = set()  # variables on the way to a return
        aborting: set[int] = set()
        for label, block in self.blocks.items():
            last = block.terminator
            if isinstance(last, ir.Return):
                self._note_returned(func_ir, last.value.name)
                kind = returns_abort(last.value.name)
                if kind is None:
                    raise _unsliceable(last, "it returns what may be an abort or not")
                if kind:
                    aborting.add(label)
        self.doomed = self._doomed(aborting)
        self.guards: dict[int, str] = {}  # block -> the variable of its condition
        for label, block in self.blocks.items():
            last = block.terminator
            if label in self.doomed or not isinstance(last, ir.Branch):
                continue
            if sum(target in self.doomed for target in (last.truebr, last.falsebr)) == 1:
                self.guards[label] = last.cond.name

    def _note_returned(self, func_ir: Any, name: str) -> None:
        if name in self.returned:
            return
        self.returned.add(name)
        for found in func_ir._definitions.get(name, ()):
            if isinstance(found, ir.Expr) and found.op == "cast":
                self._note_returned(func_ir, found.value.name)
            elif isinstance(found, ir.Var):
                self._note_returned(func_ir, found.name)

    def _targets(self, label: int) -> list[int]:
        return list(self.blocks[label].terminator.get_targets())

    def _doomed(self, aborting: set[int]) -> set[int]:
        doomed = set(aborting)
        changed = True
        while changed:
            changed = False
            for label in self.blocks:
                targets = self._targets(label)
                if label not in doomed and targets and all(one in doomed for one in targets):
                    doomed.add(label)
                    changed = True
        return doomed

    def leads(self, first: int, last: int) -> bool:
        """Whether the end of one block may come before the beginning of another."""
        seen: set[int] = set()
        waiting = self._targets(first)
        while waiting:
            block = waiting.pop()
            if block == last:
                return True
            if block not in seen:
                seen.add(block)
                waiting += self._targets(block)
        return False

    def doomed_from(self, label: int) -> set[int]:
        """The doomed blocks that a guard leads to."""
        found: set[int] = set()
        waiting = [target for target in self._targets(label) if target in self.doomed]
        while waiting:
            block = waiting.pop()
            if block not in found:
                found.add(block)
                waiting += self._targets(block)
        return found

    @cached_property
    def _after(self) -> dict[int, list[int]]:
        """The blocks that may follow, aborts left out; EXIT after a return."""
        found = {}
        for label in self.blocks:
            if label not in self.doomed:
                ways = [target for target in self._targets(label) if target not in self.doomed]
                found[label] = ways or [EXIT]
        return found

    @cached_property
    def _post_dominators(self) -> dict[int, set[int]]:
        graph = CFGraph()
        graph.add_node(EXIT)
        for label in self._after:
            graph.add_node(label)
        for label, targets in self._after.items():
            for target in targets:
                graph.add_edge(label, target)
        graph.set_entry_point(min(self.blocks) if min(self.blocks) in self._after else EXIT)
        graph.process()
        found: dict[int, set[int]] = graph.post_dominators()
        return found

    @cached_property
    def _deciders(self) -> dict[int, set[int]]:
        """Block -> the branches on which it depends whether the block is reached."""
        found: dict[int, set[int]] = {label: set() for label in self._after}
        for branch, targets in self._after.items():
            if len(targets) < 2:
                continue
            for label in self._after:
                behind = [label in self._post_dominators.get(t, ()) for t in targets]
                always = label in self._post_dominators.get(branch, ()) and label != branch
                if any(behind) and not always:
                    found[label].add(branch)
        return found

    def conditions(self, label: int) -> set[str]:
        """The conditions on which it depends whether a block is reached, aborts aside."""
        found: set[str] = set()
        waiting, seen = [label], set()
        while waiting:
            for branch in self._deciders.get(waiting.pop(), ()):
                if branch not in seen:
                    seen.add(branch)
                    found.add(self.blocks[branch].terminator.cond.name)
                    waiting.append(branch)
        return found

    def decides(self, branch: int, labels: set[int]) -> bool:
        """Whether one of these blocks is reached or not by this branch."""
        return any(branch in self._closed(label) for label in labels)

    def _closed(self, label: int) -> set[int]:
        found: set[int] = set()
        waiting = [label]
        while waiting:
            for branch in self._deciders.get(waiting.pop(), ()):
                if branch not in found:
                    found.add(branch)
                    waiting.append(branch)
        return found

    def way_on(self, label: int) -> int:
        """Where to go from a branch that decides nothing."""
        targets = self._after[label]
        if len(targets) == 1:
            return targets[0]
        behind = self._post_dominators.get(label, set()) - {label, EXIT}
        nearest = [b for b in behind if behind - {b} <= self._post_dominators[b]]
        return nearest[0] if nearest else min(targets, key=self._steps_to_exit)

    def _steps_to_exit(self, label: int) -> int:
        steps, level, seen = 0, {label}, {label}
        while level and EXIT not in level:
            level = {t for one in level for t in self._after.get(one, ())} - seen
            seen |= level
            steps += 1
        return steps


def _unsliceable(statement: Any, why: str) -> Exception:
    return Unsliceable(f"line {statement.loc.line}: {why}")


# --- tests for None ------------------------------------------------------------------------------


def tested_for_none(func_ir: Any) -> dict[int, list[tuple[str, Any]]]:
    """By block: the variables that a branch to it, the only way there, found not to be None."""
    before: dict[int, int] = {}
    for block in func_ir.blocks.values():
        for target in block.terminator.get_targets():
            before[target] = before.get(target, 0) + 1
    found: dict[int, list[tuple[str, Any]]] = {}
    for block in func_ir.blocks.values():
        test = _none_test(func_ir, block)
        if test is not None:
            name, target = test
            if before[target] == 1 and target != min(func_ir.blocks):
                found.setdefault(target, []).append((name, block.terminator.loc))
    return found


def _none_test(func_ir: Any, block: Any) -> tuple[str, int] | None:
    """The variable that a block ends by testing for None, and where it goes when it is not."""
    branch = block.terminator
    if not isinstance(branch, ir.Branch):
        return None
    truth = guard(get_definition, func_ir, branch.cond)
    if not isinstance(truth, ir.Expr) or truth.op != "call" or len(truth.args) != 1:
        return None
    test = guard(get_definition, func_ir, truth.args[0])
    if not isinstance(test, ir.Expr) or test.op != "binop":
        return None
    other = guard(get_definition, func_ir, test.rhs)
    is_none = isinstance(other, ir.Const) and other.value is None
    if not is_none or test.fn not in (operator.is_, operator.is_not):
        return None
    places = [place for place, one in enumerate(block.body) if getattr(one, "value", None) is test]
    name = test.lhs.name
    if not places or name.startswith("$"):
        return None
    after = block.body[places[0] :]
    if any(isinstance(one, ir.Assign) and one.target.name == name for one in after):
        return None
    return name, branch.truebr if test.fn is operator.is_not else branch.falsebr
