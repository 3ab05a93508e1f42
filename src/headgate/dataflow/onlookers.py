"""Onlookers: procedures that declare no table; an abort of one leaves nothing to be undone.

So many of their batches go in one execution: the function is called for each batch, or for each
window that one makes whole, and what it gives is of the batch that it was called in. One that
aborts is told of, and the next goes on. Invariant: streams, windows and results are those of one
batch after another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.dataflow.executing import Aborted, Executing
from headgate.dataflow.nodes import Node, Unit
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.recording import Recorded, Recorder, said
from headgate.dataflow.under_way import UnderWay, Windowed, together
from headgate.dataflow.writes import Writes
from headgate.execution.run import ABORTED, COMMITTED, OUTCOMES

LOG = logging.getLogger("headgate.dataflow")
BATCHES_MAX = 1024


class Looked(NamedTuple):
    """A batch that an onlooker took."""

    number: int
    rows: int
    given: dict[str, list[pa.Table]]  # by stream
    reason: str | None  # why it aborted


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

    def batches(self, count: int) -> list[tuple[int, pa.Table]]:
        """The next batches that have come, at most so many, up to one that was aborted."""
        last = min(self._progress.closed(self._stream), self._first + count - 1)
        found = []
        for number, rows in self._progress.batches(self._stream, range(self._first, last + 1)):
            if rows is None:
                break
            found.append((number, rows))
        return found

    def run(
        self, batches: Sequence[tuple[int, pa.Table]], is_enough: Callable[[], bool]
    ) -> list[Looked]:
        """Take batches, one at least, until it is enough."""
        looked, window = list[Looked](), self._window
        calls = _calls(self._node, window, batches)
        for number, rows in batches:
            before = 0 if window is None else window.drops
            try:
                looked.append(self._take(number, rows.num_rows, next(calls)))
            except Exception:
                if not looked:
                    raise
                if window is not None:
                    window.drops = before
                break  # those before it stand; it is raised when that batch comes first
            if is_enough():
                break
        if window is not None:
            window.added += [rows for _, rows in batches[: len(looked)] if rows.num_rows]
        return looked

    def _take(self, number: int, rows: int, calls: Sequence[pa.Table]) -> Looked:
        given: dict[str, list[pa.Table]] = {one.name: [] for one in self._node.gives}
        for batch in calls:
            try:
                found = self._executing.called(self._node, self._step, [batch], self._writes)
            except Aborted as error:
                return Looked(number, rows, given, error.reason)
            for name, one in found.items():
                given[name].append(one)
        return Looked(number, rows, given, None)

    def tell(self, looked: Sequence[Looked], recorder: Recorder) -> None:
        """What was looked at is done: it is recorded, and who comes after has it, or is told."""
        name, last = self._node.name, looked[-1].number
        done = [one for one in looked if one.rows]
        words, reasons = said(name), [one.reason for one in done]
        if any(reason is not None for reason in reasons):
            outcomes = [OUTCOMES[COMMITTED if one is None else ABORTED] for one in reasons]
            words = name, pa.array(outcomes, pa.string()), pa.array(reasons, pa.string())
        if done:
            numbers = np.array([one.number for one in done])
            recorder.add(Recorded(len(done), words, numbers, {}))
        for one in done:
            if one.reason is not None:
                LOG.warning("%s: batch %d is aborted: %s", name, one.number, one.reason)
        for stream in self._node.gives:
            given = [(one.number, rows) for one in looked if one.reason is None
                     for rows in one.given[stream.name] if rows.num_rows]  # fmt: skip
            aborted = [(one.number, None) for one in looked if one.reason is not None]
            self._progress.arrive(stream.name, sorted([*given, *aborted], key=_number), last)
            joined = together(given) if stream.recorded else None
            if joined is not None:
                recorder.rows(stream, joined[1], joined[0])
        if self._window is not None:
            self._progress.put_window(name, self._window)
        self._progress.finish(self._node, last)
        self._count(looked)

    def _count(self, looked: Sequence[Looked]) -> None:
        for is_aborted in (False, True):
            mine = [one for one in looked if (one.reason is not None) == is_aborted]
            given = [parts for one in mine if not is_aborted for parts in one.given.values()]
            self._executing.meters.note_done(
                self._node.name, aborted=is_aborted, batches=len(mine),
                rows=sum(one.rows for one in mine),
                rows_out=sum(one.num_rows for parts in given for one in parts),
            )  # fmt: skip


def _number(part: tuple[int, pa.Table | None]) -> int:
    return part[0]


def _calls(
    node: Node, state: Windowed | None, batches: Sequence[tuple[int, pa.Table]]
) -> Iterator[list[pa.Table]]:
    """By batch: what the function is called with, the state of a window moving along."""
    if node.window is None or state is None:
        for _, rows in batches:
            yield [rows] if rows.num_rows else []
        return
    size, slide = node.window.size.rows or 1, node.window.slide.rows or 1
    held = [] if state.before.held is None else [state.before.held]
    whole = pa.concat_tables([*held, *state.added, *(rows for _, rows in batches)])
    whole = whole.combine_chunks()
    end = whole.num_rows - sum(rows.num_rows for _, rows in batches)
    for _, rows in batches:
        found, end = list[pa.Table](), end + rows.num_rows
        while end - state.drops >= size:
            found.append(whole.slice(state.drops, size))
            state.drops += slide
        yield found
