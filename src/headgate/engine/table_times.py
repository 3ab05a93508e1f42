"""Times of tables: how late it is for rows that expire, and what a batch does about it.

The time of such a table is that of the youngest event so far of any stream whose transactions name
it, or the watermark where that is later. It only moves forward, and is logged with each epoch that
moves it: in a store's files it stands among the inlets, under a name that no stream can have.
"""

from __future__ import annotations

import numpy as np

from headgate.durability import Inlet
from headgate.engine.memory import Memory
from headgate.engine.ordering import Arranged
from headgate.execution.expiring import Expiring
from headgate.execution.program import Program
from headgate.isolation.levels import Execution

_NAME = "\0time "  # then the table's name in the files


class TableTimes:
    """The times of one engine's tables; used under its lock."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.expired: dict[str, int] = {
            name: 0 for name, rows in memory.rows.items() if rows.table.expires is not None
        }
        self.overdue: dict[str, int] = dict.fromkeys(self.expired, 0)

    def time_us(self, table: str) -> int | None:
        """The time of a table; None before any event had one."""
        found = self._memory.inlets.get(self._name(table))
        return None if found is None else found.watermark_us

    def _name(self, table: str) -> str:
        return _NAME + self._memory.storages[table].name

    def moved(self, program: Program, horizon: int | None) -> dict[str, Inlet]:
        """What the times of a program's tables are behind a batch, where they are others."""
        found = {}
        for table in program.expiring if horizon is not None else ():
            before = self.time_us(table.name)
            if horizon is not None and (before is None or before < horizon):
                found[self._name(table.name)] = Inlet(horizon, None, 0)
        return found

    def of_batch(self, program: Program, arranged: Arranged) -> Expiring | None:
        """What may expire in a batch; None where no row can."""
        if not program.expiring:
            return None
        given = arranged.moments, len(arranged.order), arranged.horizon
        found = self._expiring(program, *given)
        return None if found.is_quiet else found

    def is_quiet(self, program: Program, latest: int | None) -> bool:
        """Whether no row goes in a plain batch, of which this is the last time."""
        return not program.expiring or self._expiring(program, None, 0, latest).is_quiet

    def _expiring(
        self, program: Program, moments: np.ndarray | None, count: int, horizon: int | None
    ) -> Expiring:
        return Expiring(program, self.known(program), moments, count, horizon)

    def known(self, program: Program) -> dict[str, int]:
        """The times of a program's tables before a batch, of those that have one."""
        times = {table.name: self.time_us(table.name) for table in program.expiring}
        return {name: time for name, time in times.items() if time is not None}

    def note(self, execution: Execution) -> None:
        """Count what went in a batch, and what stays though it is due."""
        for name, count in execution.expired.items():
            self.expired[name] += count
        self.overdue.update(execution.overdue)
