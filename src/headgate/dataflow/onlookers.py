"""Onlookers: procedures that declare no table; an abort of one leaves nothing to be undone.

So many of their batches go in one execution: the function is called for each batch, or for each
window that one makes whole, and what it gives is of the batch that it was called in. One that
aborts is told of, and the next goes on. Invariant: streams, windows and results are those of one
batch after another.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.dataflow.executing import Aborted, Executing
from headgate.dataflow.kept_windows import KeptWindow
from headgate.dataflow.nodes import Node, Unit
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.recording import Recorded, Recorder, said
from headgate.dataflow.runs import BatchRun, Part, TakenBatches, apart, joined
from headgate.dataflow.under_way import NOT_KEPT, UnderWay, Windowed
from headgate.dataflow.windows import HeldRows, Slid
from headgate.dataflow.writes import Writes
from headgate.execution.run import ABORTED, COMMITTED, OUTCOMES

LOG = logging.getLogger("headgate.dataflow")
BATCHES_MAX = 1024


class CalledBatch(NamedTuple):
    """What an onlooker did with a batch that it was called in."""

    number: int
    given: dict[str, list[pa.Table]]  # by stream
    reason: str | None  # why it aborted


class Looked(NamedTuple):
    """Batches that an onlooker took, and those that it was called in."""

    taken: TakenBatches
    called: list[CalledBatch]


def is_onlooker(unit: Unit) -> bool:
    """Whether a unit is one procedure that has no tables, takes one stream and is tried once."""
    node, *others = unit.nodes
    step = node.step
    if others or not isinstance(step, Procedure) or node.tables or step.retries or step.partition:
        return False
    is_by_rows = node.window is None or node.window.size.rows is not None
    return len(unit.needed) == 1 and is_by_rows


class Onlooking:
    """The next batches of an onlooker, run at once."""

    def __init__(
        self, unit: Unit, executing: Executing, progress: UnderWay, writes: Writes
    ) -> None:
        self._node, self._stream = unit.nodes[0], unit.needed[0]
        self._step: Any = self._node.step
        self._executing, self._progress, self._writes = executing, progress, writes
        self._first = progress.next_of(unit)
        self._window = progress.window(self._node.name) if self._node.window else None

    def taken(self, count: int) -> TakenBatches | None:
        """The next batches that have come, at most so many, up to one that was aborted."""
        last = min(self._progress.closed(self._stream), self._first + count - 1)
        found = self._progress.taken(self._stream, self._first, last)
        return found if found.last >= self._first else None

    def run(self, taken: TakenBatches, is_enough: Callable[[], bool]) -> Looked:
        """Take batches, one at least, until it is enough."""
        called, window, last = list[CalledBatch](), self._window, taken.last
        kept = self._executing.kept(self._node)
        for number, batches, drops in _calls(self._node, window, taken, kept):
            try:
                called.append(self._call(number, batches))
            except Exception:
                if number == self._first:
                    raise
                last = number - 1
                if window is not None:
                    window.kept = NOT_KEPT
                break  # those before it stand; it is raised when that batch comes first
            if window is not None:
                window.drops = drops
            if is_enough():
                last = number
                break
        done = taken if last == taken.last else taken.up_to(last)
        if window is not None and done.rows.num_rows:
            window.added.append(done.rows)
        if window is not None and kept is not None:
            kept.cut(window)
        return Looked(done, called)

    def _call(self, number: int, batches: Iterable[list[pa.Table] | Slid]) -> CalledBatch:
        given: dict[str, list[pa.Table]] = {one.name: [] for one in self._node.gives}
        left = iter(batches)
        for batch in left:
            try:
                found = self._executing.called(self._node, self._step, batch, self._writes)
            except Aborted as error:
                deque(left, maxlen=0)  # the window moves on all the same
                return CalledBatch(number, given, error.reason)
            for name, one in found.items():
                given[name].append(one)
        return CalledBatch(number, given, None)

    def tell(self, looked: Looked, recorder: Recorder) -> None:
        """What was looked at is done: it is recorded, and who comes after has it, or is told."""
        name, numbers, last = self._node.name, looked.taken.numbers, looked.taken.last
        aborted = {one.number: one.reason for one in looked.called if one.reason is not None}
        done, words = np.unique(numbers), said(name)
        if aborted:
            reasons = [aborted.get(number) for number in done.tolist()]
            outcomes = [OUTCOMES[COMMITTED if one is None else ABORTED] for one in reasons]
            words = name, pa.array(outcomes, pa.string()), pa.array(reasons, pa.string())
        if len(done):
            recorder.add(Recorded(len(done), words, done, {}))
        for number, reason in aborted.items():
            LOG.warning("%s: batch %d is aborted: %s", name, number, reason)
        for stream in self._node.gives:
            parts: list[Part] = []
            for one in looked.called:
                given = [rows for rows in one.given[stream.name] if rows.num_rows]
                parts += [(one.number, None)] if one.reason is not None else [
                    (one.number, rows) for rows in given
                ]  # fmt: skip
            whole = [BatchRun.of_one(rows, number) for number, rows in parts if rows is not None]
            run = joined(whole) if whole else None
            if len(whole) < len(parts):
                self._progress.give_parts(stream, parts, last)
            else:
                self._progress.arrive(stream.name, [] if run is None else [run], last)
            if run is not None:
                recorder.rows(stream, run.numbers, run.rows)
        if self._window is not None:
            self._progress.put_window(name, self._window)
        self._count(looked, aborted)
        self._progress.finish(self._node, last)

    def _count(self, looked: Looked, aborted: Mapping[int, str | None]) -> None:
        done, meters = looked.taken, self._executing.meters
        lost = int(np.isin(done.numbers, [*aborted]).sum()) if aborted else 0
        rows_out = sum(
            rows.num_rows
            for one in looked.called if one.reason is None
            for parts in one.given.values() for rows in parts
        )  # fmt: skip
        name, count = self._node.name, done.last + 1 - self._first - len(aborted)
        meters.note_done(
            name, aborted=False, batches=count, rows=done.rows.num_rows - lost, rows_out=rows_out
        )
        meters.note_done(name, aborted=True, batches=len(aborted), rows=lost)


def _calls(
    node: Node, state: Windowed | None, taken: TakenBatches, kept: KeptWindow | None
) -> Iterator[tuple[int, Iterable[list[pa.Table] | Slid], int]]:
    """By batch in which the function is called: what with, and what then has left the window."""
    if node.window is None or state is None:
        for number, rows in apart(taken.rows, taken.numbers):
            yield number, [[rows]], 0
        return
    size, slide = node.window.size.rows or 1, node.window.slide.rows or 1
    held = HeldRows([*state.tables, taken.rows])
    ends = np.arange(state.drops + size, held.count + 1, slide)
    # The row that makes a window whole is of the batch in which the function is called.
    numbers = taken.numbers[ends - 1 - (held.count - taken.rows.num_rows)]
    for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
        first = state.drops
        found: Iterable[Slid]
        if kept is not None:
            found = kept.up_to(state, taken.rows, int(count))
        else:
            found = [Slid(partial(held.cut, first + slide * nth, size)) for nth in range(count)]
        yield int(number), found, first + slide * int(count)
