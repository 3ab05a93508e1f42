"""The order of units: who must be done with what before a unit may run, and what runs behind it.

The order of one thread is that of what came in: all that one arrival starts runs before what the
next one does, of that the oldest batch first, and it in dataflow order. A unit may run a batch when
no unit that shares a written table with it has one before that in this order, and when there is
room for what it gives. All of it is numbers that only grow, so that any thread may look at them.
Invariant: the unit that comes first in that order may always run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol, TypeAlias

import pyarrow as pa

from headgate.dataflow.nodes import FlowGraph, Unit
from headgate.dataflow.partitions import Partition
from headgate.dataflow.under_way import UnderWay
from headgate.engine.journal import EngineLock, Guard


class Counts(Protocol):
    """Which batches are whole, and done."""

    def done(self, unit: Unit) -> int: ...

    def closed(self, stream: str) -> int: ...

    def came(self, source: str, number: int) -> int: ...


Place: TypeAlias = tuple[int, int, int]  # in the order of one thread: arrival, batch, unit


class _Seen:
    """The counts of one epoch that is not committed yet."""

    def __init__(self, progress: UnderWay) -> None:
        self._progress, self.closed, self.came = progress, progress.closed, progress.came

    def done(self, unit: Unit) -> int:
        return self._progress.done(unit.first)


class Order:
    """Who must be done with what before a unit may run; made once for a graph."""

    def __init__(self, graph: FlowGraph, running: Counts, buffer: int) -> None:
        self._running, self._buffer, self._graph = running, buffer, graph
        self._sources = graph.sources_of
        self._numbers = {unit.name: number for number, unit in enumerate(graph.units)}
        self._rivals = {unit.name: self._rivals_of(unit) for unit in graph.units}
        self._takers = {
            name: [unit for unit in graph.units if name in unit.needed] for name in graph.streams
        }

    def over(self, progress: UnderWay) -> Order:
        """The same over what one epoch has under way, which nobody else sees yet."""
        found = copy.copy(self)
        found._running = _Seen(progress)
        return found

    def _rivals_of(self, unit: Unit) -> list[Unit]:
        """Units that share a table that one of the two writes."""
        return [
            other
            for other in self._graph.units
            if other is not unit
            and not unit.is_beside(other)
            and (unit.writes & (other.reads | other.writes) or other.writes & unit.reads)
        ]

    def _place(self, unit: Unit, batch: int) -> Place:
        came = max(self._running.came(name, batch) for name in self._sources[unit.name])
        return came, batch, self._numbers[unit.name]

    def _is_before(self, unit: Unit, place: Place) -> bool:
        """Whether the next batch of a unit has come in, and comes before this place."""
        batch = self._running.done(unit) + 1
        return batch <= self.last(unit) and self._place(unit, batch) < place

    def last(self, unit: Unit) -> int:
        """The last batch that can come to a unit of what has come in."""
        return min(self._running.closed(name) for name in self._sources[unit.name])

    def may_run(self, unit: Unit, batch: int) -> bool:
        """Whether a unit may run a batch that is whole on all that comes to it."""
        if not self.is_first(unit, batch) or not self._is_aligned(unit, batch):
            return False
        place = self._place(unit, batch)
        return all(self.has_room_at(stream, place) for stream in unit.inner)

    def _is_aligned(self, unit: Unit, batch: int) -> bool:
        """Whether the partitions beside one are all done with the last batch that none passes
        before the others."""
        part = unit.partition
        if part is None or part.align is None:
            return True
        floor = (batch - 1) // part.align * part.align
        others = [one for one in self._graph.units if unit.is_beside(one)]
        return all(self._running.done(one) >= floor for one in others)

    def is_first(self, unit: Unit, batch: int) -> bool:
        """Whether no unit that shares a written table with this one comes before its batch."""
        rivals = self._rivals[unit.name]
        place = self._place(unit, batch) if rivals else (0, 0, 0)
        return not any(self._is_before(rival, place) for rival in rivals)

    def has_room_at(self, stream: str, place: Place | None = None) -> bool:
        """Whether a stream may have another batch: not too many wait for any who takes it.

        Those that wait for another source are not counted: who feeds both would wait for himself.
        Nor are those of a unit that comes behind the `place` of who gives: it may be waiting for
        him, at a table.
        """
        running = self._running
        for unit in self._takers[stream]:
            there = min(running.closed(stream), self.last(unit))
            is_full = there - running.done(unit) >= self._buffer
            if is_full and (place is None or self._is_before(unit, place)):
                return False
        return True

    def is_idle(self) -> bool:
        """Whether all that has come in has run as far as it can."""
        return all(self._running.done(unit) >= self.last(unit) for unit in self._graph.units)


def composed(graph: FlowGraph) -> dict[str, Unit]:
    """By unit: the one that runs right behind it, where that is cheap or over a window.

    It takes one stream, which nobody else takes; it has no tables, or is over a window of it, whose
    rows then need not wait in a buffer as well.
    """
    found: dict[str, Unit] = {}
    for unit in graph.units:
        after = graph.followers[unit.name]
        if len(after) == 1 and len(after[0].needed) == 1:
            only = after[0]
            is_over_window = any(node.windows for node in only.nodes)
            if is_over_window or not (only.reads or only.writes):
                found[unit.name] = only
    return found


# --- turns ----------------------------------------------------------------------------------------
# When an execution has the engine to itself.
#
# Most executions have it from their first to their last moment: the engine's lock. One that a
# worker runs ahead reads before its turn: its SQL sees tables as they were at some epoch, beside
# whatever other threads do. With its first write, or when its function has ended, its turn comes:
# it takes the lock, and looks whether all that it read is still so. If it is, it goes on, and no
# one can tell it from one that ran all of it then; if not it is restarted, and has the lock from
# the beginning.


ReadTable = Callable[[str], pa.Table]


class Restarted(BaseException):
    """What was read ahead has changed. No error: functions that catch those do not see it."""


class OwnTurn:
    """The turn of one execution that has the lock already."""

    def __init__(self, read: ReadTable) -> None:
        self._read = read

    def read(self, name: str) -> pa.Table:
        """The rows of a table, own writes with them."""
        return self._read(name)

    def enter(self) -> None:
        """From here on the engine is this execution's own."""

    def check(self) -> None:
        """Nothing that it read ahead has been found to be another since."""

    def leave(self) -> None:
        """It has ended."""


class LateTurn(OwnTurn):
    """The turn of one execution that runs ahead; a partition's, if it is one."""

    def __init__(
        self, read: ReadTable, lock: EngineLock, guard: Guard, part: Partition | None = None
    ) -> None:
        super().__init__(read)
        self._lock, self._guard, self._part = lock, guard, part
        self._seen: dict[str, pa.Table] = {}
        self._is_mine = self._is_stale = False

    def read(self, name: str) -> pa.Table:
        if self._is_mine:
            return self._read(name)
        with self._lock:
            found = self._read(name)
        if not self._is_same(name, self._seen.setdefault(name, found), found):
            self._is_stale = True
            raise Restarted
        return found

    def _is_same(self, name: str, seen: pa.Table, found: pa.Table) -> bool:
        """Whether what was seen of a table is so still. It is the same object for as long as none
        of its rows has changed; those of other partitions may have."""
        if found is seen:
            return True
        part = self._part
        if part is None or name not in part.tables:
            return False
        return bool(part.view(name, seen).equals(part.view(name, found)))

    def check(self) -> None:
        if self._is_stale:  # and the function went on over it
            raise Restarted

    def enter(self) -> None:
        self.check()
        if self._is_mine:
            return
        self._lock.__enter__()
        self._is_mine = True
        self._guard.check()
        if not all(self._is_same(name, one, self._read(name)) for name, one in self._seen.items()):
            self._is_stale = True
            raise Restarted

    def leave(self) -> None:
        if self._is_mine:
            self._is_mine = False
            self._lock.release()
