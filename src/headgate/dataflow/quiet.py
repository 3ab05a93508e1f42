"""Quiet batches: those of a unit in which no procedure runs, so that nothing aborts them.

Transactions run event by event, and one that aborts is an outcome of its event alone; a window that
only takes rows in calls nobody. Batches of which that is all need no way back, and as many as wait
run at once: each node over the rows of all of them, as if they were one batch. Invariant: rows,
streams and results are those of one batch after another. So the transactions of the unit share no
table that one of them writes, and no window can become whole before the last batch is behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.dataflow.executing import Attempted, Executing, flowing
from headgate.dataflow.nodes import Node, Unit
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.recording import Recorded, Recorder, one_or_each, recorded_rows, said
from headgate.dataflow.runs import TakenBatches, apart, repeated
from headgate.dataflow.under_way import UnderWay
from headgate.dataflow.writes import Writes
from headgate.engine.straight_path import Until

BATCHES_MAX = 4096  # at once: calls wait for them
ROWS_MAX = 65_536
AHEAD_ROWS = 64  # that may be looked up for nothing, beside as many as a window takes

Staged: TypeAlias = Mapping[str, int]  # by node: how many rows are to join its window
NONE_STAGED: Staged = MappingProxyType({})
Rows: TypeAlias = tuple[pa.Table, np.ndarray]  # and the batch of each
_NO_NUMBERS = np.empty(0, np.int64)
# The quiet batches from a number on, at most so many, when these are staged, or all that come.
More: TypeAlias = Callable[[int, int, Staged | None], TakenBatches | None]


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


def quiet_batches(
    unit: Unit, progress: UnderWay, first: int, count: int, staged: Staged | None = NONE_STAGED
) -> TakenBatches | None:
    """Batches of a unit from one on, at most so many, up to the first that is not quiet; some have
    run before them, and their rows are staged. None staged: those that come, quiet or not."""
    stream = unit.needed[0]
    room = ROWS_MAX if staged is None else min(ROWS_MAX, rows_to_fill(unit, progress, staged))
    taken = progress.taken(stream, first, min(progress.closed(stream), first + count - 1))
    if taken.rows.num_rows >= room:  # the row that fills it makes its batch another
        taken = taken.up_to(int(taken.numbers[room - 1]) - 1 if room > 0 else first - 1)
    return taken if taken.last >= first else None


def rows_to_fill(unit: Unit, progress: UnderWay, staged: Staged) -> int:
    """How many rows make a window of a unit whole; where it has none, more than there can be."""
    rooms = [_room(node, progress) - staged.get(node.name, 0) for node in unit.nodes if node.window]
    return min(rooms, default=sys.maxsize)


def _room(node: Node, progress: UnderWay) -> int:
    """How many rows make the next window of a node whole."""
    state, window = progress.window(node.name), node.window
    held = 0 if state.before.held is None else state.before.held.num_rows
    there: int = held + sum(rows.num_rows for rows in state.added) - state.drops
    size = None if window is None else window.size.rows
    return 0 if size is None else size - there


class QuietRun:
    """The quiet batches of a unit from its next one on, run at once.

    How many are quiet is known when those before them have run: not all of their rows come to a
    window. So what it is begun with is followed by what there is room for then, piece by piece, and
    all of it is told of at the end.
    """

    def __init__(
        self, unit: Unit, executing: Executing, progress: UnderWay, writes: Writes,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self._unit, self._executing = unit, executing
        self._progress, self._writes, self._recorder = progress, writes, recorder
        self._first = progress.next_of(unit)
        self._last = self._first - 1
        # What is to be told when all nodes have run: one that fails before it changes a row leaves
        # nothing.
        self._recorded: list[Recorded] = []
        self._came: dict[str, list[Rows]] = {}  # by stream, piece by piece
        self._staged: dict[str, int] = {}  # by node: rows that join its window
        self._changes = self._rows = 0  # how often nodes changed rows, and over how many they ran
        self._now: dict[str, Rows] = {}  # of the piece that runs: what came, by stream
        self._has_windows = any(node.window is not None for node in unit.nodes)
        # Whether all that comes to windows comes by the first node, a transaction.
        first, *others = unit.nodes
        is_first = first.window is None and first.gives
        self._is_led = bool(is_first) and not any(unit.needed[0] in one.taken for one in others)

    def run(self, taken: TakenBatches, more: More) -> None:
        """Run all nodes over batches, and then over those behind them that are quiet, too; what
        they did is in the progress and the record of the epoch."""
        began = self._executing.now()
        self._writes.begin()
        left: TakenBatches | None = taken
        while left is not None and self._is_run(self._run_all, left, more):
            left = self._more(more, self._staged)
        self._writes.keep()
        waited = self._progress.waited(self._unit, self._last, began)
        self._executing.meters.note_queue(self._unit.nodes, waited)
        self._tell()

    def _more(self, more: More, staged: Staged | None) -> TakenBatches | None:
        """What may run behind that which has: where a window decides on it, all that may is known
        only now."""
        room = BATCHES_MAX - (self._last + 1 - self._first)
        if not self._has_windows or room <= 0 or self._rows >= ROWS_MAX:
            return None
        is_all = self._progress.closed(self._unit.needed[0]) <= self._last
        return None if is_all else more(self._last + 1, room, staged)

    def _is_run(self, run: Callable[..., None], taken: TakenBatches, *given: Any) -> bool:
        """Run some batches; False where they cannot run, but those before have: what is wrong is
        raised when they come first."""
        changes, last = self._changes, self._last
        try:
            run(taken, *given)
        except Exception:
            if self._changes != changes or last < self._first or self._executing.is_stopped:
                raise
            self._last = last
            return False
        return True

    def _run_all(self, taken: TakenBatches, more: More) -> None:
        """Run all nodes over some batches."""
        first, *others = self._unit.nodes
        is_all = self._progress.closed(self._unit.needed[0]) <= taken.last
        ahead = self._ahead(more) if self._is_led and not is_all else None
        if ahead is None or not self._run_led(first, ahead):
            self._run_first(first, taken)
        for node in others:
            self._run_node(node)
        for name, piece in self._now.items():
            self._came.setdefault(name, []).append(piece)

    def _run_first(self, first: Node, taken: TakenBatches) -> None:
        self._now = {self._unit.needed[0]: (taken.rows, taken.numbers)}
        self._run_node(first)
        self._last, self._rows = taken.last, self._rows + taken.rows.num_rows

    def _ahead(self, more: More) -> TakenBatches | None:
        """The batches that come next: some more than a window takes if all of their rows came to
        it."""
        limit = AHEAD_ROWS + 2 * rows_to_fill(self._unit, self._progress, self._staged)
        found = self._more(more, None)
        if found is not None and found.rows.num_rows > limit:
            found = found.up_to(int(found.numbers[limit]) - 1)
        return found

    def _run_led(self, first: Node, ahead: TakenBatches) -> bool:
        """Have the first node run the batches ahead for as long as no window can be whole by what
        it gives, of which those behind it give no more; False where it cannot be told."""
        numbers, fill = ahead.numbers, rows_to_fill(self._unit, self._progress, self._staged)
        count = len(numbers)

        def until(done: int, committed: int) -> int:
            filled = done + fill - committed - 1  # that row would fill it, if all came to it
            if filled >= count:
                return count
            return int(np.searchsorted(numbers, numbers[filled])) if filled > done else done

        if not count or not until(0, 0):
            return False
        self._now = {self._unit.needed[0]: (ahead.rows, numbers)}
        ran = self._run_node(first, until)
        if ran is None:
            return False
        self._now[self._unit.needed[0]] = ahead.rows.slice(0, ran), numbers[:ran]
        self._last = ahead.last if ran == count else int(numbers[ran]) - 1
        self._rows += ran
        return True

    def _run_node(self, node: Node, until: Until | None = None) -> int | None:
        """Run a node over what came on its stream, or the first of it; returns how many rows, None
        where it is not told how many it can."""
        rows, numbers = self._now.get(node.taken[0], (None, None))
        if rows is None or numbers is None or not rows.num_rows:
            return 0
        now, ran = self._executing.now, int(rows.num_rows)
        began = now()
        if node.window is not None:
            self._staged[node.name] = self._staged.get(node.name, 0) + ran
        elif until is None:
            self._run(node, self._attempts(node, rows, numbers))
        else:
            self._writes_of(node)
            epoch = self._writes.epoch
            part = self._executing.attempt_plain(
                node, numbers, rows, epoch, keeps=False, until=until
            )
            if part is None:
                return None
            ran = part.recorded.count
            self._run(node, [part])
        self._executing.meters.note_run(node.name, now() - began)
        return ran

    def _writes_of(self, node: Node) -> None:
        for table in node.tables:
            self._writes.of(table.name)

    def _tell(self) -> None:
        """What the nodes did stands, with the epoch."""
        count, meters = self._last + 1 - self._first, self._executing.meters
        for part in self._recorded:
            self._recorder.add(part)
        came = {name: _joined(pieces) for name, pieces in self._came.items()}
        for node in self._unit.nodes:
            rows, numbers = came.get(node.taken[0], (node.streams[0].empty, _NO_NUMBERS))
            if node.window is not None and rows.num_rows:
                self._stage(node, rows, numbers)
            rows_out = 0
            for stream in node.gives:
                given, its = came.get(stream.name, (stream.empty, _NO_NUMBERS))
                self._progress.give_several(self._unit, stream, given, its, self._last)
                rows_out += given.num_rows
            meters.note_done(
                node.name, aborted=False, rows=rows.num_rows, rows_out=rows_out, batches=count
            )
            self._progress.finish(node, self._last)

    def _stage(self, node: Node, rows: pa.Table, numbers: np.ndarray) -> None:
        """Rows join a window that they do not make whole."""
        window = self._progress.window(node.name)
        window.added.append(rows)
        self._progress.put_window(node.name, window)
        taken = np.unique(numbers)
        self._recorder.add(Recorded(len(taken), said(node.name), taken, {}))

    def _run(self, node: Node, parts: Iterable[Attempted]) -> None:
        """A transaction runs events, batch after batch; what it gives comes now."""
        given: dict[str, list[Rows]] = {one.name: [] for one in node.gives}
        for part in parts:
            self._changes += 1
            self._executing.note(part, node, self._writes, None)
            self._writes.end_node()
            self._recorded.append(part.recorded)
            mine = part.recorded.batch
            count = part.recorded.count
            of_each = repeated(mine, count) if isinstance(mine, int) else np.asarray(mine, np.int64)
            for stream in node.gives:
                kept = of_each if part.kept is None else of_each[part.kept.to_numpy(False)]
                given[stream.name].append((flowing(stream, part), kept))
        for stream in node.gives:
            rows, numbers = self._now[stream.name] = _joined(given[stream.name])
            if rows.num_rows and stream.recorded:
                self._recorded.append(recorded_rows(stream, numbers, rows))

    def _attempts(self, node: Node, rows: pa.Table, numbers: np.ndarray) -> Iterator[Attempted]:
        """All at once where the events are plain and in order as they are, or where they run
        elsewhere; else by batch."""
        is_alone = len(self._unit.nodes) == 1 and not self._writes.has_kept
        if is_alone and self._executing.leaves(node, rows):
            yield self._executing.attempt_there(node, numbers, rows)
            return
        self._writes_of(node)
        epoch = self._writes.epoch
        mine = one_or_each(numbers)
        whole = self._executing.attempt_plain(node, mine, rows, epoch, keeps=False)
        if whole is not None:
            yield whole
            return
        for number, batch in apart(rows, numbers):
            yield self._executing.attempt(node, number, batch, epoch)


def _joined(pieces: list[Rows]) -> Rows:
    if len(pieces) == 1:
        return pieces[0]
    rows = pa.concat_tables([one for one, _ in pieces]).combine_chunks()
    return rows, np.concatenate([numbers for _, numbers in pieces])
