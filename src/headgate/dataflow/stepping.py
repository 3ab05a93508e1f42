"""Stepping: one execution of a unit from the rows that it takes to the epoch that it commits.

What an execution took, gave and changed is one record of the log: it is there once, or not at all.
With weak recovery an epoch is all that the graph does with one batch, and the log has what came in.
An abort is undone, tried again as often as the node may be, and then recorded, and told to all who
would have taken what it gives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from headgate.dataflow import onlookers
from headgate.dataflow.arriving import Arrival, tally_of, youngest_us
from headgate.dataflow.executing import Aborted, Executing, UnitRan, record
from headgate.dataflow.handles import Aligned, NodeMeters
from headgate.dataflow.joined_windows import move_joined_past
from headgate.dataflow.nodes import FlowGraph, Node, Unit
from headgate.dataflow.onlookers import Onlooking, is_onlooker
from headgate.dataflow.order_of_units import LateTurn, Order, OwnTurn, Restarted
from headgate.dataflow.procedures import Procedure
from headgate.dataflow.quiet import (
    BATCHES_MAX,
    NONE_STAGED,
    QuietRun,
    Staged,
    quiet_batches,
    quiet_count,
)
from headgate.dataflow.recording import RecordedEpoch, Recorder, SameColumns, border_of
from headgate.dataflow.runs import TakenBatches
from headgate.dataflow.signals import Interrupts
from headgate.dataflow.under_way import News, Standing, UnderWay
from headgate.dataflow.windows import move_past
from headgate.dataflow.writes import Writes, watched
from headgate.engine.batch import Batches
from headgate.engine.journal import EngineLock, Guard
from headgate.engine.memory import Memory
from headgate.engine.reading import ahead_of_readers
from headgate.engine.rerun import Border
from headgate.errors import InvariantError
from headgate.query.mirror import Mirror
from headgate.state.rows import TableRows
from headgate.transactions import Transaction

LOG = logging.getLogger("headgate.dataflow")


# So long an epoch may take in executions that wait: what costs less than its commit shares one. Who
# would come in between ends it before that.
TOGETHER_SECONDS = 0.02

Behind = Callable[[UnderWay, Unit], Unit | None]  # who runs next, when a unit has run


class Stepped(NamedTuple):
    """One epoch that the dataflows made, in the log and not yet known to be durable."""

    epoch: int
    recorded: RecordedEpoch | None
    news: list[News]
    # Of an execution that was to be in it, too, and of which there is nothing: it is raised when
    # the epoch has been noted.
    error: BaseException | None = None


class Stepping:
    """Runs the units of an engine's dataflows, one execution at a time."""

    def __init__(
        self, graph: FlowGraph, memory: Memory, guard: Guard, lock: EngineLock, batches: Batches,
        order: Order, fingerprint: str | None,
    ) -> None:  # fmt: skip
        self.graph, self._order = graph, order
        self._quiet = {unit.name: quiet_count(unit) for unit in graph.units}
        self._parts: dict[str, list[Unit]] = {}
        for unit in graph.units:
            if unit.partition is not None:
                self._parts.setdefault(unit.needed[0], []).append(unit)
        self.aligned: dict[str, Aligned] = {}
        self._onlookers = {unit.name for unit in graph.units if is_onlooker(unit)}
        self._memory, self._guard, self._lock, self._batches = memory, guard, lock, batches
        self._is_weak, self._fingerprint = fingerprint is not None, fingerprint
        self.has_workers = False
        self._checks: dict[TableRows, Any] = {}
        self._mirrors: dict[str, Mirror] = {}
        self.standing: Standing = Standing(graph, by_arrival=not self._is_weak)
        self.same: SameColumns = SameColumns()
        self.meters: NodeMeters = NodeMeters()
        bound = [one for unit in graph.units if _alone(unit) is None for one in unit.nodes]
        tables = {table.name: table for node in bound for table in node.tables}
        alone = [one for one in map(_alone, graph.units) if one is not None]
        self._rows = batches.flow_rows(tables.values(), alone)
        self._executing = Executing(batches, self._rows, self.meters, guard)
        self.interrupts: Interrupts = self._executing.interrupts

    def close(self) -> None:
        """Nothing runs any more."""
        self._executing.close()

    def read(self, name: str) -> pa.Table:
        """The rows of a table as they are; under the engine's lock."""
        rows, mirror = self._rows.tables[name], self._mirrors.get(name)
        if mirror is None or mirror not in rows.watchers:  # which are none of rows made anew
            mirror = self._mirrors[name] = watched(rows)
        return mirror.table()

    def _have_rows(self, unit: Unit) -> None:
        """What a unit runs over is here, or it is said why not, before anything runs."""
        tables = [table for node in unit.nodes for table in node.tables]
        if tables:
            self._rows.ready(tables, _alone(unit))

    def _is_apart(self, unit: Unit, progress: UnderWay, writes: Writes) -> bool:
        """Whether a unit cannot be in an epoch that others have changed rows in: who runs where
        its rows are sees what is committed."""
        if self._rows.has_left or not writes.has_kept:
            return self._rows.has_left
        name = unit.needed[0]
        taken = progress.taken(name, progress.next_of(unit), progress.closed(name))
        return self._executing.leaves(unit.nodes[0], taken.rows) if _alone(unit) else False

    def under_way(self) -> UnderWay:
        """What is under way, for an epoch to change; under the engine's lock."""
        self.standing.follow(self._memory.inlets)
        return UnderWay(self.standing)

    # --- one epoch ----------------------------------------------------------------------------

    def run_unit(self, unit: Unit, number: int) -> Stepped:
        """A worker runs a unit's next batch: what it reads ahead of its turn, where that may pay.

        Read ahead is what one procedure asks of tables; transactions change rows from the start.
        """
        if len(unit.nodes) == 1 and isinstance(unit.nodes[0].step, Procedure):
            turn = LateTurn(self.read, self._lock, self._guard, unit.partition)
            with self._lock:  # not between another's commit and what it notes of it
                progress = self.under_way()
                _check_next(unit, number, progress)
                self._have_rows(unit)
            try:
                return self._run(unit, progress, Recorder(self.same), turn)
            except Restarted:
                self.meters.of(unit.first).restarts += 1
            finally:
                turn.leave()
        with self._lock, self._guard.running():
            _check_next(unit, number, self.under_way())
            return self.step(unit=unit)

    @ahead_of_readers
    def step(
        self, arrival: Arrival | None = None, unit: Unit | None = None, behind: Behind | None = None
    ) -> Stepped:
        """Take what came in, or run a unit's next batch, or both, as one epoch; under the lock.

        With `behind`, which says who runs next, it is that of executions behind them, too.
        """
        recorder, progress = Recorder(self.same), self.under_way()
        if arrival is not None:
            take(arrival, progress, recorder)
        if unit is not None:
            self._have_rows(unit)
        return self._run(unit, progress, recorder, OwnTurn(self.read), arrival, behind)

    def _run(
        self, unit: Unit | None, progress: UnderWay, recorder: Recorder, turn: OwnTurn,
        arrival: Arrival | None = None, behind: Behind | None = None,
    ) -> Stepped:  # fmt: skip
        writes, batch, origin = Writes(self._memory, self._rows, turn, self._checks), 0, None
        error: BaseException | None = None
        if unit is not None:
            batch = progress.next_of(unit)
            try:
                self._execute_all(unit, progress, writes, recorder)
                if behind is not None:
                    error = self._execute_behind(unit, behind, progress, writes, recorder)
            except BaseException:
                if writes.has_kept:  # an interrupt: executions are in the rows, and in no record
                    with self._guard.all_or_stopped():
                        raise
                raise
            origin = unit.origin, progress.done(unit.first)
        if arrival is not None and arrival.origin is not None:
            origin = arrival.origin
        turn.enter()
        with self._guard.all_or_stopped():
            recorded = recorder.recorded()
            border = Border()
            if batch and self._is_weak:
                border = border_of(arrival, batch, self._fingerprint)
            inlets = progress.inlets() if self._batches.is_durable else {}
            self._batches.commit_flow(writes.changed(), recorded, origin, inlets, border)
            now = self._batches.clock.monotonic()
            news = progress.settle(now, self._memory.inlets, has_takers=self.has_workers)
            self.standing.note(self._memory.inlets)
            self._note_aligned()
        if arrival is not None and not self._batches.is_rerunning:
            self._batches.streams.source_meter(arrival.stream.name).note_batch(
                tally_of(arrival), youngest_us(arrival), is_flush=arrival.is_flush
            )
        return Stepped(self._memory.epoch, recorded, news, error)

    def aligned_at(self, stream: str) -> Aligned | None:
        """The newest of these epochs, of a stream; under the lock."""
        self.under_way()
        if stream not in self.aligned:  # as it was when the store was opened
            self._note_aligned()
        return self.aligned.get(stream)

    def _note_aligned(self) -> None:
        """Remember at which epoch all partitions were done with the same batches, by stream."""
        for stream, units in self._parts.items():
            done = {self.standing.done[unit.first] for unit in units}
            if len(done) == 1:
                self.aligned[stream] = Aligned(done.pop(), self._memory.epoch)

    def takes_many(self, unit: Unit) -> bool:
        """Whether a unit may run many batches at once."""
        return self._quiet[unit.name] > 1 or unit.name in self._onlookers

    def _execute_behind(
        self, ran: Unit, behind: Behind, progress: UnderWay, writes: Writes, recorder: Recorder
    ) -> BaseException | None:
        """Run what waits in the same epoch, as long as that takes no time and nobody else waits;
        returns what an execution raised that there is nothing of."""
        now = self._batches.clock.monotonic
        end = now() + TOGETHER_SECONDS
        while now() < end and not self._lock.is_wanted:
            unit = behind(progress, ran)
            if unit is None or self._is_apart(unit, progress, writes):
                return None
            try:
                self._have_rows(unit)
                self._execute_all(unit, progress, writes, recorder)
                ran = unit
            except Exception as error:
                if self._guard.reason is not None:
                    raise
                return error  # those before it are to be committed first
        return None

    def _execute_all(
        self, unit: Unit, progress: UnderWay, writes: Writes, recorder: Recorder
    ) -> None:
        """Run a unit, and what cannot be apart from it."""
        batch, left = progress.next_of(unit), [unit]
        while left:
            try:
                self._execute(left[0], progress, writes, recorder)
            except BaseException:
                if self._is_weak and writes.has_kept:
                    # Units before it in a weak epoch are in the rows, and in no record.
                    with self._guard.all_or_stopped():
                        raise
                raise
            left = self._beside(left, progress, batch)

    def _beside(self, left: list[Unit], progress: UnderWay, batch: int) -> list[Unit]:
        """Who is still to run in this epoch, the first of `left` being done: with weak recovery
        all that can of the batch; else only who has nothing to run, or is to be told of an
        abort."""
        if self.has_workers:  # to whom their units are their own
            return []
        others = self.graph.units if self._is_weak else self.graph.followers[left[0].name]
        found = {one.name: one for one in left[1:]}
        for unit in others:
            is_next = progress.next_of(unit) == batch and progress.is_ready(unit)
            if is_next and (self._is_weak or self._is_passed(unit, batch, progress)):
                found[unit.name] = unit
        # In the order of one thread: who is ready only now may come before who was already.
        return [unit for unit in self.graph.units if unit.name in found]

    def _is_passed(self, unit: Unit, batch: int, progress: UnderWay) -> bool:
        given = [progress.batch(stream.name, batch) for stream in unit.needs]
        counts = [-1 if one is None else one.num_rows for one in given]
        return min(counts) < 0 or max(counts) == 0

    def _execute(self, unit: Unit, progress: UnderWay, writes: Writes, recorder: Recorder) -> None:
        """A unit is done with its next batch: it commits, or aborts, or there is nothing to do;
        or with several that are quiet."""
        batch, now = progress.next_of(unit), self._batches.clock.monotonic()
        quiet = self._quiet_batches(unit, progress, batch, BATCHES_MAX)
        if quiet is not None:
            self._run_quiet(unit, quiet, progress, writes, recorder)
            return
        self.meters.note_queue(unit.nodes, progress.waited(unit, batch, now))
        if unit.name in self._onlookers and self._look(unit, progress, writes, recorder):
            return
        told = [one.name for one in unit.needs if progress.batch(one.name, batch) is None]
        if told:
            giver = self.graph.givers.get(told[0])
            by = told[0] if giver is None else giver.name
            self._move_windows(unit, batch, UnitRan(), progress)
            self._give_up(unit, batch, f"not run: {by} aborted batch {batch}", progress, recorder)
        else:
            self._try(unit, batch, progress, writes, recorder)
        for node in unit.nodes:
            progress.finish(node, batch)

    def _quiet_batches(
        self, unit: Unit, progress: UnderWay, first: int, count: int,
        staged: Staged | None = NONE_STAGED,
    ) -> TakenBatches | None:  # fmt: skip
        """Batches of a unit from one on that it may run at once, because nothing aborts them."""
        count = min(count, self._quiet[unit.name])
        if not count or unit.name in self._onlookers:
            return None
        count = 1 if self._is_one_by_one else count
        found = quiet_batches(unit, progress, first, count, staged)
        if found is None or found.last == first:
            return found
        order = self._order.over(progress)
        if order.is_first(unit, found.last):
            return found
        return found.up_to(first) if order.is_first(unit, first) else None

    @property
    def _is_one_by_one(self) -> bool:
        """With weak recovery an epoch is of one batch, and a worker was given one."""
        return self._is_weak or self.has_workers

    def _look(self, unit: Unit, progress: UnderWay, writes: Writes, recorder: Recorder) -> bool:
        """An onlooker takes its next batches; False where its next one was aborted."""
        look, now = Onlooking(unit, self._executing, progress, writes), self._executing.now
        taken = look.taken(1 if self._is_one_by_one else onlookers.BATCHES_MAX)
        if taken is None:
            return False
        began = now()
        end = began + TOGETHER_SECONDS
        try:
            looked = look.run(taken, lambda: now() >= end or self._lock.is_wanted)
        finally:
            self.meters.note_run(unit.first, now() - began)
        look.tell(looked, recorder)
        return True

    def _run_quiet(
        self, unit: Unit, taken: TakenBatches, progress: UnderWay, writes: Writes,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        def more(first: int, count: int, staged: Staged | None) -> TakenBatches | None:
            is_alone = self._is_one_by_one or self._quiet[unit.name] == 1
            if is_alone or self._lock.is_wanted:
                return None
            return self._quiet_batches(unit, progress, first, count, staged)

        try:
            QuietRun(unit, self._executing, progress, writes, recorder).run(taken, more)
        except BaseException:
            if writes.is_final:  # there is no way back
                with self._guard.all_or_stopped():
                    raise
            self._undo(writes)
            raise

    def _try(
        self, unit: Unit, batch: int, progress: UnderWay, writes: Writes, recorder: Recorder
    ) -> None:
        """Run a unit, and again as often as the node that aborted may be tried."""
        tries: dict[str, int] = {}
        while True:
            writes.begin()
            ran = UnitRan()
            try:
                self._executing.run(unit, batch, progress, writes, ran)
            except Aborted as error:
                writes.turn.enter()  # what it read before its turn may have been another
                self._undo(writes)
                node, reason = error.node, error.reason
                tries[node.name] = tries.get(node.name, 0) + 1
                if isinstance(node.step, Procedure) and tries[node.name] <= node.step.retries:
                    LOG.info("%s: batch %d is tried again: %s", node.name, batch, reason)
                    self.meters.note_retry(node.name)
                    continue
                self._move_windows(unit, batch, ran, progress)
                self._give_up(unit, batch, reason, progress, recorder, node, ran)
                return
            except BaseException:
                self._undo(writes)  # of one that did not come to its turn there is nothing
                raise
            writes.keep()
            record(unit, batch, ran, recorder)
            for node in unit.nodes:
                rows_out = 0
                for stream in node.gives:
                    given = ran.given[stream.name]
                    progress.give(stream, batch, given)
                    rows_out += given.num_rows
                rows = ran.taken.get(node.name, 0)
                self.meters.note_done(node.name, aborted=False, rows=rows, rows_out=rows_out)
            for name, window in ran.windows.items():
                progress.put_window(name, window)
            return

    def _move_windows(self, unit: Unit, batch: int, ran: UnitRan, progress: UnderWay) -> None:
        """A unit did not commit a batch for good: the windows of its nodes move on all the same."""
        for node in unit.nodes:
            if node.joined:
                self._move_joined(node, unit, batch, ran, progress)
            if node.window is None:
                continue
            name = node.streams[0].name
            is_given = name not in unit.inner
            rows = progress.batch(name, batch) if is_given else ran.given.get(name)
            if rows is not None and rows.num_rows:
                window = progress.window(node.name)
                kept = self._executing.kept(node)
                move_past(node.window, window, rows, is_given=is_given, kept=kept)
                progress.put_window(node.name, window)

    def _move_joined(
        self, node: Node, unit: Unit, batch: int, ran: UnitRan, progress: UnderWay
    ) -> None:
        taken = [
            ran.given.get(name) if name in unit.inner else progress.batch(name, batch)
            for name in node.taken
        ]
        if any(rows is not None and rows.num_rows for rows in taken):
            states = {key: progress.window(key) for key in node.joined}
            kept = self._executing.kept_joined(node)
            moved = move_joined_past(node, states, taken, unit.inner, kept)
            for key, window in moved.items():
                progress.put_window(key, window)

    def _undo(self, writes: Writes) -> None:
        with self._guard.all_or_stopped():
            writes.undo()

    def _give_up(
        self,
        unit: Unit,
        batch: int,
        reason: str,
        progress: UnderWay,
        recorder: Recorder,
        culprit: Node | None = None,
        ran: UnitRan | None = None,
    ) -> None:
        """A batch is aborted for good: it is recorded, and who comes after is told."""
        LOG.warning("%s: batch %d is aborted: %s", unit.name, batch, reason)
        for node in unit.nodes:
            told = reason
            if culprit is not None and node is not culprit:
                told = f"not run: {culprit.name} aborted batch {batch}"
            recorder.execution(node.name, batch, told)
            rows = 0 if ran is None else ran.taken.get(node.name, 0)
            self.meters.note_done(node.name, aborted=True, rows=rows)
            for stream in node.gives:
                if culprit is not None and unit.partition is not None:  # the others go on
                    progress.give(stream, batch, stream.empty)
                else:
                    progress.give_up(stream, batch)


def _alone(unit: Unit) -> Transaction | None:
    """The transaction that a unit is, if it is one by itself."""
    step = unit.nodes[0].step
    return step if len(unit.nodes) == 1 and isinstance(step, Transaction) else None


def _check_next(unit: Unit, number: int, progress: UnderWay) -> None:
    """A worker was given this batch because its turn has come: it must be the next one still."""
    found = progress.next_of(unit)
    if found != number:
        raise InvariantError(f"batch {number} of {unit.name} was to run, and {found} is its next")


def take(arrival: Arrival, progress: UnderWay, recorder: Recorder) -> None:
    """What came in joins its stream, and is recorded."""
    name = arrival.stream.name
    recorder.rejected(name, arrival.outcomes, arrival.reasons, arrival.aside)
    progress.arrive(name, arrival.runs, arrival.closed, arrival.flushed_us)
    recorder.rows(arrival.stream, arrival.numbers, arrival.rows)
