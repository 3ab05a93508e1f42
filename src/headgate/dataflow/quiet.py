"""Quiet batches: those of a unit in which no procedure runs, so that nothing aborts them.

Transactions run event by event, and one that aborts is an outcome of its event alone; a window that
only takes rows in calls nobody. Batches of which that is all need no way back, and as many as wait
run at once: each node over the rows of all of them, as if they were one batch. Invariant: rows,
streams and results are those of one batch after another. So the transactions of the unit share no
table that one of them writes, and no window can become whole before the last batch is behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pyarrow as pa

from headgate.dataflow.executing import Attempted, Executing, flowing
from headgate.dataflow.nodes import Node, Unit
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.recording import Recorded, Recorder, one_or_each, recorded_rows, said
from headgate.dataflow.runs import TakenBatches, apart
from headgate.dataflow.streams import Stream
from headgate.dataflow.under_way import UnderWay, Windowed
from headgate.dataflow.writes import Writes

BATCHES_MAX = 4096  # at once: calls wait for them
ROWS_MAX = 65_536


def quiet_count(unit: Unit) -> int:
    """How many of its batches a unit may run at once, where nothing of it can abort; 0: none.

    One, where nodes of it must see what the next batch changes.
    """
    windows = [node.window for node in unit.nodes if isinstance(node.step, Procedure)]
    if len(unit.needed) != 1 or any(one is None or one.size.rows is None for one in windows):
        return 0
    silent = {stream.name for node in unit.nodes if node.window for stream in node.gives}
    steps = []
    for node in unit.nodes:
        if silent & {*node.taken}:  # what no window gives comes to nobody
            silent |= {stream.name for stream in node.gives}
        elif not isinstance(node.step, Procedure):
            steps.append(node)
    return 1 if any(_share(one, other) for one, other in combinations(steps, 2)) else BATCHES_MAX


def _share(one: Node, other: Node) -> bool:
    """Whether two nodes share a table that one of them writes, or must keep a promise over both."""
    return bool(_written(one) & _held(other) or _written(other) & _held(one))


def _written(node: Node) -> set[str]:
    return {table.name for table in node.written}


def _held(node: Node) -> set[str]:
    parents = {one.parent for table in node.tables for one in table.references}
    return {table.name for table in node.tables} | parents


def quiet_batches(unit: Unit, progress: UnderWay, count: int) -> TakenBatches | None:
    """The next batches of a unit, at most so many, up to the first that is not quiet."""
    stream, first = unit.needed[0], progress.next_of(unit)
    room = min([ROWS_MAX, *(_room(node, progress) for node in unit.nodes if node.window)])
    taken = progress.taken(stream, first, min(progress.closed(stream), first + count - 1))
    if taken.rows.num_rows >= room:  # the row that fills it makes its batch another
        taken = taken.up_to(int(taken.numbers[room - 1]) - 1 if room > 0 else first - 1)
    return taken if taken.last >= first else None


def _room(node: Node, progress: UnderWay) -> int:
    """How many rows make the next window of a node whole."""
    state, window = progress.window(node.name), node.window
    held = 0 if state.before.held is None else state.before.held.num_rows
    there: int = held + sum(rows.num_rows for rows in state.added) - state.drops
    size = None if window is None else window.size.rows
    return 0 if size is None else size - there


class QuietRun:
    """The quiet batches of a unit from its next one to the last, run at once."""

    def __init__(
        self, unit: Unit, taken: TakenBatches, executing: Executing,
        progress: UnderWay, writes: Writes, recorder: Recorder,
    ) -> None:  # fmt: skip
        self._unit, self._taken, self._executing = unit, taken, executing
        self._progress, self._writes, self._recorder = progress, writes, recorder
        self._first, self._last = progress.next_of(unit), taken.last
        # What is to be told when all nodes have run: one that fails before it changes a row leaves
        # nothing.
        self._recorded: list[Recorded] = []
        self._given: dict[str, tuple[pa.Table, np.ndarray]] = {}  # by stream: rows, their batches
        self._windows: dict[str, Windowed] = {}

    def run(self) -> None:
        """Run all nodes; what they did is in the progress and the record of the epoch."""
        self._writes.begin()
        self._given[self._unit.needed[0]] = self._taken.rows, self._taken.numbers
        for node in self._unit.nodes:
            rows, numbers = self._given[node.taken[0]]
            began = self._executing.now()
            if node.window is not None:
                self._stage(node, rows, numbers)
            else:
                self._run(node, rows, numbers)
            self._executing.meters.note_run(node.name, self._executing.now() - began)
        self._writes.keep()
        self._tell()

    def _tell(self) -> None:
        """What the nodes did stands, with the epoch."""
        count = self._last + 1 - self._first
        for part in self._recorded:
            self._recorder.add(part)
        for name, window in self._windows.items():
            self._progress.put_window(name, window)
        for node in self._unit.nodes:
            rows, rows_out = self._given[node.taken[0]][0].num_rows, 0
            for stream in node.gives:
                given, numbers = self._given[stream.name]
                self._progress.give_several(self._unit, stream, given, numbers, self._last)
                rows_out += given.num_rows
            meters = self._executing.meters
            meters.note_done(node.name, aborted=False, rows=rows, rows_out=rows_out, batches=count)
            self._progress.finish(node, self._last)

    def _stage(self, node: Node, rows: pa.Table, numbers: np.ndarray) -> None:
        """Rows join a window that they do not make whole."""
        if rows.num_rows:
            window = self._windows[node.name] = self._progress.window(node.name)
            window.added.append(rows)
            taken = np.unique(numbers)
            self._recorded.append(Recorded(len(taken), said(node.name), taken, {}))
        for stream in node.gives:
            self._give(stream, [])

    def _run(self, node: Node, rows: pa.Table, numbers: np.ndarray) -> None:
        """A transaction runs all events, batch after batch."""
        given: dict[str, list[tuple[pa.Table, np.ndarray]]] = {one.name: [] for one in node.gives}
        for table in node.tables if rows.num_rows else ():
            self._writes.of(table.name)
        for part in self._attempts(node, rows, numbers):
            self._writes.note(part.changed, node.written, None)
            self._writes.end_node()
            self._recorded.append(part.recorded)
            mine = part.recorded.batch
            of_each = np.broadcast_to(np.asarray(mine, np.int64), part.recorded.count)
            for stream in node.gives:
                kept = of_each if part.kept is None else of_each[part.kept.to_numpy(False)]
                given[stream.name].append((flowing(stream, part), kept))
        for stream in node.gives:
            self._give(stream, given[stream.name])

    def _attempts(self, node: Node, rows: pa.Table, numbers: np.ndarray) -> Iterator[Attempted]:
        """All at once where the events are plain and in order as they are; else by batch."""
        if not rows.num_rows:
            return
        epoch = self._writes.epoch
        whole = self._executing.attempt_plain(node, one_or_each(numbers), rows, epoch)
        if whole is not None:
            yield whole
            return
        for number, batch in apart(rows, numbers):
            yield self._executing.attempt(node, number, batch, epoch)

    def _give(self, stream: Stream, parts: list[tuple[pa.Table, np.ndarray]]) -> None:
        """What a node gives, to those behind it here and elsewhere."""
        rows, numbers = stream.empty, np.empty(0, np.int64)
        if len(parts) == 1:
            rows, numbers = parts[0]
        elif parts:
            rows = pa.concat_tables([one for one, _ in parts]).combine_chunks()
            numbers = np.concatenate([one for _, one in parts])
        self._given[stream.name] = rows, numbers
        if rows.num_rows and stream.recorded:
            self._recorded.append(recorded_rows(stream, numbers, rows))
