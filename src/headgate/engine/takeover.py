"""Takeover: whether a program may have a store that another engine of this process has open.

Invariant: whatever would refuse the program at its start is said before the other engine is
stopped, in the same words; so a cell of a notebook that is wrong costs nothing but its message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headgate.durability import StoreReader
from headgate.engine.declaring.declarations import fit_program, new_constraints, refuse_broken
from headgate.engine.declaring.migrating import declared_after
from headgate.engine.declaring.migrations import Migration
from headgate.engine.events import complete_rows
from headgate.engine.rerun import fingerprint_of, is_code_changed, read_plan
from headgate.io import Disk
from headgate.query.answer import Answer
from headgate.state.rows import Rows
from headgate.state.strings import StringPool
from headgate.state.table import Table
from headgate.transactions import Transaction


class Running(Protocol):
    """The engine that has the store, as far as it is asked."""

    @property
    def path(self) -> str | None: ...

    @property
    def stopped(self) -> str | None: ...

    def scan(self, table: str) -> Answer: ...


@dataclass(frozen=True)
class Newcomer:
    """The program that is to have the store."""

    tables: Mapping[str, Table]
    transactions: Mapping[str, Transaction]
    migrations: Sequence[Migration]
    is_weak: bool
    accepts_changed_code: bool
    disk: Disk | None

    def judge(self, running: Running) -> None:
        """Refuse what the start of this program would; an engine that has stopped has no say."""
        if running.stopped is not None or running.path is None:
            return
        reader = StoreReader.open(running.path, self.disk)
        before = reader.declared()
        manifest = declared_after(reader, self.migrations, [*self.tables.values()])
        tables, _ = fit_program(manifest, self.tables, self.transactions, self.migrations)
        if self.is_weak:
            for transaction in self.transactions.values():
                fingerprint_of((transaction,))
        for commit in reader.inputs():
            plan = read_plan(commit, self.transactions)
            is_code_changed(commit, plan, accept=self.accepts_changed_code)
        if manifest == before:  # else the rows were held to what is new by the trials
            self._judge_rows(running, tables, manifest.get("tables", {}))

    def _judge_rows(
        self, running: Running, tables: Mapping[str, Table], stored: Mapping[str, Any]
    ) -> None:
        """Hold the rows that there are to the constraints that are new to the store."""
        needed: set[str] = set()
        for table in tables.values():
            for constraint in new_constraints(table, stored):
                needed |= {table.name, getattr(constraint, "parent", table.name)}
        pool = StringPool()
        refuse_broken({name: _rows(running, tables[name], stored, pool) for name in needed}, stored)


def _rows(running: Running, table: Table, stored: Mapping[str, Any], pool: StringPool) -> Rows:
    """The rows of a table as the new program has them: new columns take their defaults."""
    rows = Rows(table, pool)
    if table.name in stored:
        found = complete_rows(running.scan(table.name).arrow(), table, table.name)
        rows.restore(np.arange(found.num_rows), found, 0)
    return rows
