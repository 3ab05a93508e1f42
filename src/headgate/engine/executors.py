"""Executors: who runs each set of transactions of an engine, made once.

A program is made of each transaction when the engine is opened, and of each set of routes when its
first batch comes; it is compiled for that batch, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.execution.program import Program
from headgate.io import Clock
from headgate.isolation.levels import Executor
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool
from headgate.transactions import Transaction


class Executors:
    """The executors of one engine."""

    def __init__(self, rows: Mapping[str, TableRows], pool: StringPool, clock: Clock) -> None:
        self._rows, self._pool, self._clock = rows, pool, clock
        self._made: dict[tuple[Any, ...], Executor] = {}
        self._turn = 0

    def of(self, transactions: Sequence[Transaction], updates: bool = False) -> Executor:
        """Who runs a set of transactions; perhaps not compiled yet."""
        key = (updates, *transactions)  # the very same ones: names may be given again
        found = self._made.get(key)
        if found is None:
            signatures = [transaction.signature for transaction in transactions]
            program = Program(signatures, self._rows, self._pool, updates)
            found = self._made[key] = Executor(program, self._clock)
        self._turn += 1
        found.turn = self._turn
        return found

    def values(self) -> list[Executor]:
        """All of them, who was asked for last at the end."""
        return sorted(self._made.values(), key=lambda one: one.turn)
