"""Executors: who runs each set of transactions of an engine, made once.

A program is made of each transaction when the engine is opened, and of each set of routes when its
first batch comes; it is compiled for that batch, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.engine.terms import Terms
from headgate.errors import InvariantError
from headgate.execution.program import Program
from headgate.io import Clock
from headgate.isolation.levels import Executor
from headgate.state.rows import TableRows
from headgate.state.spaces import EventRows, Slots
from headgate.state.strings import StringPool
from headgate.state.table import Table
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


class RowsHere(NamedTuple):
    """The rows of an engine that has them in its own memory, as dataflows run over them."""

    tables: Mapping[str, TableRows]
    executor: Callable[..., Executor]
    is_by_key: bool = False
    has_left: bool = False

    def ready(self, tables: Iterable[Table], alone: Transaction | None) -> None:
        """They are always here."""

    def leaves(self, transaction: Transaction, rows: int, seconds_each: float | None) -> bool:
        """Nothing runs elsewhere."""
        return False

    def run_there(
        self, terms: Terms, events: pa.Table, numbers: np.ndarray
    ) -> tuple[pa.RecordBatch, EventRows]:
        raise InvariantError("an engine that has its rows ran events elsewhere")

    def hand_over(self, epoch: int, changed: Mapping[str, Slots]) -> dict[str, pa.RecordBatch]:
        """The log has them, and nothing else does."""
        return {}
