"""Batches: the way of events from their arrival to a committed epoch.

    arrive     who runs, in what order, who waits or is late         ordering.py
    resolve    keys to row slots                                     execution/program.py, state/
    execute    compiled kernels over the rows                        isolation/levels.py and below
    commit     results; append to the log, sync, publish             results.py, journal.py

One commit point: the synced log record of the epoch. If anything fails between the first change of
a row and that point, the engine stops: what is in memory is then in doubt, and reopening recovers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from headgate.durability import Commit, Inlet
from headgate.durability.commit import Changes
from headgate.engine import periodic
from headgate.engine.calls.few import FewCalls
from headgate.engine.calls.keyed import keyed, keyed_few
from headgate.engine.calls.values import FewEvents
from headgate.engine.declaring.declarations import DeclaredStreams
from headgate.engine.elsewhere import Elsewhere, RowsForFlows, WholeHere
from headgate.engine.events import carried_kinds, with_nulls
from headgate.engine.executors import Executors, RowsHere
from headgate.engine.journal import EngineLock, Guard, Journal, OpenRecord
from headgate.engine.memory import ALL_COLUMNS, Memory, Written
from headgate.engine.metrics import Meter, StreamMetrics
from headgate.engine.ordering import (
    Arranged,
    arranger_of,
    figures_of,
    in_commit_order,
    latest_time_us,
)
from headgate.engine.origins import Applied, Caller, Origins
from headgate.engine.reading import ahead_of_readers
from headgate.engine.rerun import Border, check_same_results, is_code_changed, read_terms
from headgate.engine.results import (
    Result,
    build_results,
    by_event,
    event_rows,
    results_arrow,
    with_epoch,
)
from headgate.engine.straight_path import Plain, StraightBatch, StraightPath, straight_of
from headgate.engine.stream import Idle, Streams, check_flush, latest_seen_us
from headgate.engine.terms import Origin, Terms
from headgate.execution.straight_run import is_straight
from headgate.io import Clock
from headgate.isolation.levels import Execution, Executor
from headgate.parallel.figures import Figures
from headgate.state.spaces import EventRows, Slots
from headgate.state.table import Table
from headgate.transactions import Transaction

NO_BORDER = Border()


class Processed(NamedTuple):
    """A batch that ran and is in the log, and is not yet known to be durable."""

    results: pa.Table
    epoch: int
    rows: EventRows  # the event row that each result is of


class Changed(NamedTuple):
    """The slots that an epoch changed, by table; any column of their rows may be another."""

    changed: Mapping[str, Slots]
    written: Written = ALL_COLUMNS


NOWHERE = Changed({})  # no row of this process


class Lazy(Protocol):
    """Results that are made one batch when somebody asks."""

    num_rows: int

    def batch(self) -> pa.RecordBatch: ...

    def logged(self) -> Changes: ...


class Called(NamedTuple):
    """Calls that ran as one epoch, which is in the log and not yet known to be durable."""

    epoch: int
    results: Callable[[], list[Result]]  # in the order in which they were handed in


class Batches:
    """Runs the batches of one engine, one after another.

    `engine` is there to be kept: whoever holds a stream, a sink or a call that is on its way holds
    the engine, which is not taken for dropped, and closed, before that is done.
    """

    def __init__(
        self,
        memory: Memory,
        journal: Journal,
        guard: Guard,
        lock: EngineLock,
        clock: Clock,
        declared: DeclaredStreams,
        *,
        logs_input: bool,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.engine: object = None
        self._memory, self._journal, self._guard, self._lock = memory, journal, guard, lock
        self.clock: Clock = clock
        self._now = clock.monotonic
        self._declared = declared
        self._logs_input = logs_input  # weak recovery: the input, not what it changed
        self._elsewhere = elsewhere
        self.is_rerunning: bool = False
        self.streams: Streams = Streams(memory)
        self.origins: Origins = Origins(memory, journal)
        self.idle: Idle = Idle(self.flush, clock)
        self.executors: Executors = Executors(memory.rows, memory.pool, clock)
        self._few: dict[Transaction, FewCalls] = {}
        self.expiry = self.streams.expiry
        self._flow_rows: RowsForFlows = RowsHere(memory.rows, self.executor)

    # --- what comes in ------------------------------------------------------------------------

    def apply(
        self,
        terms: Terms,
        events: pa.Table,
        origin: Origin | None = None,
        caller: Caller | None = None,
    ) -> pa.Table:
        """One batch, one epoch, exactly once per origin; returns its results when durable."""
        terms = self.carrying(terms, events.schema)
        with self._lock, self._guard.running():
            inlet = terms.inlet_name(origin)
            self.streams.note(terms, inlet)
            if origin is not None and self.origins.has_applied(origin, caller):
                self.idle.note(terms, inlet, self._memory.inlets)
                return self.origins.recorded(terms, origin, self._guard.wait)
            if events.num_rows == 0:
                return results_arrow(terms).empty_table()
            results, epoch, _ = self.process(terms, events, origin)
        self.await_durable(terms, epoch)
        return results

    def apply_pipelined(self, terms: Terms, events: pa.Table, batch_size: int) -> pa.Table:
        """One batch after another; the log of one is written while the next one runs."""
        terms = self.carrying(terms, events.schema)
        parts, epoch = [], 0
        self.streams.note(terms, terms.inlet_name(None))
        for first in range(0, events.num_rows, batch_size):
            self._journal.await_room()  # no further ahead of the disk than a few epochs
            with self._lock, self._guard.running():
                batch = events.slice(first, batch_size)
                results, epoch, _ = self.process(terms, batch, later=True)
            parts.append(results)
        self.await_durable(terms, epoch)
        return pa.concat_tables(parts)

    def run_calls(self, terms: Terms, events: pa.Table | FewEvents) -> Called:
        """Run the events of calls as one batch, up to the sync."""
        with self._lock, self._guard.running():
            self.streams.note(terms, terms.inlet_name(None))
            if isinstance(events, FewEvents):
                few = self._few_calls(terms)
                if few.is_able and not self._logs_input and self._elsewhere is None:
                    with few:
                        return self._run_few(terms, few, events)
                events = events.table(terms.route.transactions[0])
            results, epoch, rows = self.process(terms, events)
            return Called(epoch, lambda: by_event(results, rows))

    def flush(
        self, terms: Terms, inlet: str, is_due: Callable[[], bool] = lambda: True
    ) -> pa.Table:
        """Run what an inlet holds, if it is still time for it, as an epoch of its own."""
        with self._lock, self._guard.running():
            state = self.streams.state(inlet)
            if state is None or state.held is None or not is_due():
                return results_arrow(self.carrying(terms, None)).empty_table()
            self.streams.bind(terms, inlet)
            check_flush(terms, state.held)
            free = replace(self.carrying(terms, state.held.schema), watermark_us=None)
            after = latest_time_us(state.held, terms)
            flushed = {inlet: Inlet(after, None, state.arrivals)}
            held = with_nulls(state.held, terms.carry)
            results, epoch, _ = self.process(free, held, flushed=flushed)
        self.await_durable(terms, epoch)
        return results

    def rerun(
        self, commit: Commit, given: pa.RecordBatch, known: Mapping[str, Transaction], accept: bool
    ) -> None:
        """Run the logged input of an epoch through the same code; nothing is logged."""
        terms = read_terms(commit, known)
        changed = is_code_changed(commit, terms, accept=accept)
        with self.rerunning():
            results, _, _ = self.process(terms, pa.Table.from_batches([given]), commit.origin)
        if not changed:
            check_same_results(commit, results)

    def check(self, terms: Terms, given: pa.Schema) -> None:
        """Refuse events of this schema as a batch of them would be; nothing runs."""
        with self._lock, self._guard.running():
            executor = self.executor(terms.route.transactions, terms.updates)
            arranger_of(terms, executor.program).check(given)
            self.carrying(terms, given)  # readers may know the results' columns from now on

    def explain(self, terms: Terms, events: pa.Table) -> Figures:
        """The figures of the graph these events would make now, none of them held back."""
        free = terms if terms.watermark_us is None else replace(terms, watermark_us=None)
        with self._lock, self._guard.running():
            executor = self.executor(terms.route.transactions)
            if self._elsewhere is not None:
                return self._elsewhere.explain(free, events, executor)
            return figures_of(free, events, executor)

    # --- the way of a batch -------------------------------------------------------------------

    @ahead_of_readers
    def process(
        self,
        terms: Terms,
        events: pa.Table,
        origin: Origin | None = None,
        *,
        flushed: Mapping[str, Inlet] | None = None,
        later: bool = False,
    ) -> Processed:
        """Arrive, resolve, execute, commit: all of one batch but the wait for its sync.

        `flushed` is what becomes of the inlet whose held events these are. With `later` another
        thread writes the log.
        """
        executor, meter = self.executor(terms.route.transactions, terms.updates), self._meter(terms)
        program, inlet, began = executor.program, terms.inlet_name(origin), self._now()
        if flushed is None and inlet not in self._memory.inlets and not self._logs_input:
            path, whole = self._straight(terms, executor, events.num_rows)
            plain = path.take(events) if path is not None else None
            is_quiet = plain is None or self.expiry.is_quiet(program, plain.latest)
            if path is not None and plain is not None and is_quiet:
                given = (path, plain, terms, origin, began)
                return self._process_plain(*given, whole, later=later)
        inlet = inlet if flushed is None else next(iter(flushed))
        arranger, known = arranger_of(terms, program), self._memory.inlets
        arranged, ticked = periodic.arrange(arranger, events, known.get(inlet), inlet, known)
        inlets = {**(flushed or {}), **ticked}
        if arranged.state is not None:
            inlets[inlet] = arranged.state
        inlets |= self.expiry.moved(program, arranged.horizon)
        ordered, epoch = self._now(), self._memory.epoch + 1
        with self._guard.all_or_stopped():
            execution = self._execute(terms, arranged, executor, epoch)
            arranged = in_commit_order(arranged, execution, terms)
            batch, tally = build_results(terms, arranged, execution, program)
            border = self._border(events, terms, flushed is not None)
            rows, results = event_rows(arranged), with_epoch(batch, epoch)
            known = self._memory.calls.note(keyed(events, rows, results))
            known.update(execution.named)
            executed = self._now()
            self._commit(execution, batch, origin, inlets, border, known, meter, later=later)
        if not self.is_rerunning:
            latest_us, times = latest_seen_us(terms, arranged, batch), (began, ordered, executed)
            meter.note_batch(tally, latest_us, times, is_flush=flushed is not None)
            self.origins.note(origin, batch, tally, epoch, meter.name, inlet)
            self.expiry.note(execution)
            if flushed is None:
                self.idle.note(terms, inlet, self._memory.inlets)
        return Processed(results, epoch, rows)

    def _execute(
        self, terms: Terms, arranged: Arranged, executor: Executor, epoch: int
    ) -> Execution:
        """Run an arranged batch over the rows of this process, or where its rows are."""
        if self._elsewhere is not None:
            times = self.expiry.known(executor.program)
            return self._elsewhere.execute(terms, arranged, executor, epoch, times)
        expiring = self.expiry.of_batch(executor.program, arranged)
        executor.program.resolve(arranged.works)
        return executor.execute(
            arranged.works, arranged.order, arranged.route, epoch, terms.scheme,
            terms.isolation, terms.record is not None, expiring,
        )  # fmt: skip

    def _straight(
        self, terms: Terms, executor: Executor, events: int
    ) -> tuple[StraightPath | None, WholeHere | None]:
        """The straight path of so many events, and of rows that are elsewhere, who brings them."""
        if self._elsewhere is None:
            return straight_of(terms, executor), None
        program = executor.program
        may_be = is_straight(program) and not program.expiring
        whole = self._elsewhere.whole(terms, events, self._memory.epoch + 1) if may_be else None
        if whole is None:
            return None, None
        if whole.executor not in terms.straight:
            terms.straight.clear()  # of rows that are here no more
        return straight_of(terms, whole.executor), whole

    def _process_plain(
        self,
        path: StraightPath,
        plain: Plain,
        terms: Terms,
        origin: Origin | None,
        began: float,
        whole: WholeHere | None,
        *,
        later: bool,
    ) -> Processed:
        """The same for a batch that goes the straight path."""
        meter, inlet = self._meter(terms), terms.inlet_name(origin)
        moved = self.expiry.moved(path.program, plain.latest)
        ordered, epoch, begun = self._now(), self._memory.epoch + 1, None
        known: Mapping[str, pa.RecordBatch] = {}
        with self._guard.all_or_stopped():
            if whole is not None:
                self.executor(terms.route.transactions).decisions.append(whole.decision)
                whole.begin()
            if path.is_long(plain):
                # Results of its first events are written while the others run, and the rest of
                # them made while the record is synced, by as many threads as there may be.
                begun = self._journal.begin(epoch, later=later or path.threads > 1)
            ran = path.run(plain, epoch, begun)
            if whole is not None:
                known = whole.end(ran.changed, plain.given.count)
            changed: StraightBatch | Changed = ran if whole is None else NOWHERE
            executed = self._now()
            if begun is not None:
                behind = later or begun.is_beside
                given = (origin, moved, NO_BORDER, known, meter)
                self._commit(changed, None, *given, begun, later=behind)
                made = ran.made()
            else:
                made = ran.made()
                logged = None if self._journal.store is None else ran.logged(made)
                given = (origin, moved, NO_BORDER, known, meter)
                self._commit(changed, logged, *given, later=later)
        meter.note_batch(made.tally, plain.latest, (began, ordered, executed))
        self.origins.note(origin, made, made.tally, epoch, meter.name, inlet)
        self.idle.note(terms, inlet, self._memory.inlets)
        return Processed(made.table(epoch), epoch, path.rows(made.num_rows))

    @ahead_of_readers
    def _run_few(self, terms: Terms, few: FewCalls, events: FewEvents) -> Called:
        """The same for few calls, which need no order: no column of them is made an Arrow array."""
        meter, began = self._meter(terms), self._now()
        few.put(events.rows)
        ordered, epoch = self._now(), self._memory.epoch + 1
        with self._guard.all_or_stopped():
            execution, answers = few.run(len(events.rows), epoch)
            known = self._memory.calls.note(keyed_few(events.keys, answers.results))
            executed = self._now()
            logged = answers if self._journal.store is None else answers.logged()
            self._commit(execution, logged, None, {}, NO_BORDER, known, meter, later=False)
        tally = answers.tally()
        meter.note_batch(tally, None, (began, ordered, executed))
        self.origins.note(None, answers, tally, epoch, meter.name, terms.inlet_name(None))
        return Called(epoch, answers.results)

    def _commit(
        self,
        execution: Execution | StraightBatch | Changed,
        batch: Changes | None,
        origin: Origin | None,
        inlets: Mapping[str, Inlet],
        border: Border,
        known: Mapping[str, pa.RecordBatch],
        meter: Meter | None,
        begun: OpenRecord | None = None,
        *,
        later: bool,
    ) -> None:
        """Append the epoch to the log, where it may be begun, and make it the engine's own."""
        memory, gathered = self._memory, None
        if self._journal.store is not None and not self.is_rerunning:
            is_input = border.input is not None
            if not is_input:
                gathered = memory.gathered(execution.changed, execution.written)
            commit = Commit(
                memory.epoch + 1, self.clock.time_us(), origin,
                {**memory.filed(gathered), **known} if gathered is not None else {}, batch, inlets,
                border.input, border.fingerprint, memory.used_slots() if is_input else {},
            )  # fmt: skip
            self._journal.append(commit, later=later, meter=meter, begun=begun)
        memory.advance(origin, inlets, execution.changed, gathered)
        if not self.is_rerunning:
            images = memory.images if self._logs_input else None
            self._journal.snapshot_when_due(memory.epoch, images)

    def await_durable(self, terms: Terms, epoch: int) -> None:
        """Return when the epoch is durable and published."""
        began = self._now()
        self._guard.wait(epoch)
        self._meter(terms).steps["sync"].note(self._now() - began)

    # --- for dataflows ------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Whether there is a store, and so somebody who reads what is logged."""
        return self._journal.store is not None

    def flow_rows(self, tables: Iterable[Table], alone: Sequence[Transaction]) -> RowsForFlows:
        """The rows of dataflows over these tables, of which some transactions are in no nest."""
        if (there := self._elsewhere) is not None:
            self._flow_rows = there.flow_rows(tables, alone, self.executors.of)
        return self._flow_rows

    def commit_flow(
        self,
        changed: Mapping[str, Slots],
        results: Lazy | None,
        origin: Origin | None,
        inlets: Mapping[str, Inlet],
        border: Border,
    ) -> None:
        """Commit what executions of a dataflow did as one epoch, but for the wait for its sync."""
        logged = None if results is None or not self.is_durable else results.logged()
        named: dict[str, pa.RecordBatch] = {}
        if self._elsewhere is not None and (changed or self._flow_rows.has_left):
            named, changed = self._flow_rows.hand_over(self._memory.epoch + 1, changed), {}
        self._commit(Changed(changed), logged, origin, inlets, border, named, None, later=False)
        if not self.is_durable and results is not None:
            self._memory.keep_results(results)

    @contextlib.contextmanager
    def rerunning(self) -> Iterator[None]:
        """What runs inside is in the log already."""
        self.is_rerunning = True
        try:
            yield
        finally:
            self.is_rerunning = False

    # --- what was seen ------------------------------------------------------------------------

    def metrics_of(self, stream: str) -> StreamMetrics:
        """What was counted of a stream, and where it stands now."""
        return self.streams.metrics_of(stream, self.clock.time_us())

    def applied(self, query: str, batch: int) -> tuple[Applied, ...]:
        """What became of a micro-batch of a query."""
        return self.origins.applied(query, batch)

    def held(self, inlet: str) -> int:
        """How many events an inlet holds back now."""
        return self.streams.held().get(inlet, 0)

    def who_holds(self) -> str:
        """Who holds events, and how to have them run."""
        return self.streams.who_holds()

    # --- what a batch needs -------------------------------------------------------------------

    def carrying(self, terms: Terms, given: pa.Schema | None) -> Terms:
        """The terms with the types of what they carry, as events of this schema have them."""
        if not terms.carry or terms.carried:
            return terms
        found = terms.carrying.get(carried_kinds(terms.carry, given))
        if found is not None:
            return found
        with self._lock, self._guard.running():
            return self._declared.carrying(terms, given)

    def executor(self, transactions: Sequence[Transaction], updates: bool = False) -> Executor:
        """Who runs a set of transactions, made and compiled once."""
        found = self.executors.of(transactions, updates)
        found.program.compile()
        return found

    def _few_calls(self, terms: Terms) -> FewCalls:
        """Who runs few calls of a transaction, made once."""
        transaction = terms.route.transactions[0]
        found = self._few.get(transaction)
        if found is None:
            executor = self.executor((transaction,), terms.updates)
            found = self._few[transaction] = FewCalls(transaction, executor, terms)
        return found

    def _border(self, events: pa.Table, terms: Terms, is_flush: bool) -> Border:
        """What weak recovery logs of a batch; a flush is logged by what it changes."""
        return Border.of(events, terms) if self._logs_input and not is_flush else Border()

    def _meter(self, terms: Terms) -> Meter:
        return self.streams.meter(terms)
