"""The engine: the way of a batch of events, from arrival to a committed epoch.

    order      who runs, in what order, who waits or is late         inlet.py, engine/order.py
    resolve    keys to row slots                                     execution/program.py, state/
    execute    compiled kernels over the rows                        execution/
    commit     append to the log, sync, publish                      durability/

One commit point: the synced log record of the epoch. If anything fails between the first change of
a row and that point, the engine stops: what is in memory is then in doubt, and reopening recovers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.durability import Commit, Retention
from headgate.durability import Inlet as InletState
from headgate.engine import opening
from headgate.engine.calls.calling import Call, Calling, event_columns
from headgate.engine.calls.gathering import Gathering
from headgate.engine.calls.once import Once
from headgate.engine.calls.remembered import checked_key, keyed
from headgate.engine.declaring.declarations import (
    first_names,
    fit_program,
    merge_streams,
    merged_manifest,
    refuse_broken,
    storages_of,
    with_carried,
)
from headgate.engine.declaring.migrating import checked, migrated
from headgate.engine.declaring.migrations import Migration
from headgate.engine.events import as_table, call_event, carried_kinds, with_nulls
from headgate.engine.inlet import Plan, in_commit_order, latest_time_us, make_plan, recorded
from headgate.engine.journal import CLOSED, EngineLock, Guard, Journal
from headgate.engine.loading import Loading
from headgate.engine.memory import Memory, Source
from headgate.engine.metrics import Meter, Metrics
from headgate.engine.opening import Newcomer
from headgate.engine.origins import Applied, Caller, EngineInlet, Sources
from headgate.engine.reading import Getter, Reading, ahead_of_readers
from headgate.engine.rerun import (
    Border,
    check_recovery,
    check_same_results,
    fingerprint_of,
    is_code_changed,
    read_plan,
)
from headgate.engine.results import (
    Result,
    as_results,
    build_results,
    event_rows,
    results_arrow,
    with_epoch,
)
from headgate.engine.streams import Idle, Streams, check_flush, latest_seen_us
from headgate.errors import InputError, shown
from headgate.execution.program import Program
from headgate.io import Clock, Disk, RealClock
from headgate.isolation.executor import Execution, Executor
from headgate.isolation.levels import Recording, make_isolation, make_protocol
from headgate.parallel.decision import Decision
from headgate.parallel.figures import Figures
from headgate.parallel.scheme import SERIAL, Scheme
from headgate.query.answer import Answer
from headgate.query.sql import Parameters
from headgate.state.display import html_table, names
from headgate.state.storage import Storages
from headgate.state.table import Table
from headgate.transactions import Transaction, by_name, find_route, find_table, find_transaction

if TYPE_CHECKING:
    from headgate.spark.sink import Sink

# A transaction or its name, or several of them by the value of the column `route_by`.
Routes = Transaction | str | Mapping[Any, Transaction | str]

LOG = logging.getLogger("headgate.engine.engine")


def open_engine(
    path: str | Path | None,
    tables: Table | Iterable[Table] = (),
    transactions: Transaction | Iterable[Transaction] = (),
    *,
    durability: str = "sync",
    retain: Retention | None = None,
    recovery: str = "strong",
    changed_code: str = "refuse",
    migrations: Iterable[Migration] = (),
    takeover: bool = False,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Engine:
    """Open a store (made when it is not there), or an engine in memory for `path=None`.

    `durability` is "sync" (an answer means synced), "group" (the same, but commits of several
    threads share a sync) or "none" (survives a killed process, not a power cut). `retain` says
    which past epochs to keep; None keeps all. `recovery` is "strong" (the log holds changed rows)
    or "weak" (it holds the input, which is run again; refused when the code has changed since,
    unless `changed_code="accept"`). `migrations` lead from what the store declares to what this
    program does; those that the store has not seen are applied first, each as one epoch. With
    `takeover` an engine of this process that has the store open is stopped and gives it free, so
    that a cell of a notebook can run twice; a program that would be refused is, before that.

    >>> accounts = Table("accounts", "id bigint, balance double", key="id")
    >>> with open_engine(None, tables=[accounts]) as engine:
    ...     engine.load(accounts, [{"id": 1, "balance": 10.0}])
    1
    """
    opening.check_place(path, retain)
    check_recovery(recovery, changed_code)
    clock = clock or RealClock()
    named = by_name(tables, "table", Table)
    functions = by_name(transactions, "transaction", Transaction)
    given = checked(migrations)
    program = Newcomer(named, functions, given, recovery == "weak", changed_code == "accept", disk)
    open_journal = functools.partial(Journal.open, path, disk, clock, durability, retain)
    judge = program.judge if takeover else None
    journal = opening.open_owned(open_journal, path, disk, judge)
    journal = migrated(journal, open_journal, given, list(named.values()), clock)
    try:
        return Engine(journal, program, clock)
    except BaseException:
        journal.close()
        raise


def _told_apart(routes: Mapping[Any, Transaction]) -> tuple[Any, ...]:
    """Routes as a key: equal for the very same transactions behind the same values only."""
    return tuple((type(value), value, transaction) for value, transaction in routes.items())


class Engine:
    """Tables and the transactions over them; made by `hg.open`."""

    def __init__(
        self,
        journal: Journal,
        program: Newcomer,
        clock: Clock,
    ) -> None:
        self._clock, self._now = clock, clock.monotonic
        self._journal = journal
        self._is_weak = program.is_weak and journal.store is not None
        self._accepts_changed_code = program.accepts_changed_code
        self._is_replaying = False
        self._is_closed = True  # until it is whole
        self._guard = Guard(journal)
        self._lock = EngineLock(self._guard)
        self._gathering = Gathering(self._run_calls, self._guard.wait)
        self._migrations = program.migrations
        self.transactions: dict[str, Transaction] = dict(program.transactions)
        self._begin(program.tables)
        self._is_closed = False
        opening.note(self)

    def _begin(self, declared: Mapping[str, Table]) -> None:
        """Fit the program to the store, recover its state and note what is new."""
        manifest = self._journal.manifest
        fitted = fit_program(manifest, declared, self.transactions, self._migrations)
        self.tables: dict[str, Table] = fitted[0]
        self._streams = fitted[1]
        self._memory = Memory(self.tables, Storages(storages_of(manifest, self.tables)))
        self._streams_seen = Streams(self._memory)
        self._idle = Idle(self._flush, self._clock)
        self._loading = Loading(
            self._memory, self._journal, self._guard, self._clock, self._declare
        )
        self._sources = Sources(self._memory, self._journal)
        once = Once(self._memory.calls)
        called = first_names(self._streams)
        self.calling: Calling = Calling(
            self._run_calls_of, self._guard, self._lock, once, self.transactions, called
        )
        self._reading = Reading(self._memory, self._journal, self._guard, self._lock)
        self._getters: dict[Any, Getter] = {}  # by name and by identity of our tables
        self._executors: dict[tuple[Any, ...], Executor] = {}
        self._plans: dict[Any, Plan] = {}
        for transaction in self.transactions.values():
            # Literals take their codes before any text from the store can take them.
            self._executor((transaction,))
            if self._is_weak:
                fingerprint_of((transaction,))  # refuse now what could not be logged later
        self._recover()
        self._guard.publish(self._memory.epoch)  # what was recovered is durable
        refuse_broken(self._memory.rows, manifest.get("tables", {}))
        self._memory.note_loaded(manifest.get("loaded"))
        self._declare()
        self._streams_seen.begin()
        LOG.info("opened %r", self)

    def _recover(self) -> None:
        recovered = self._journal.recover(self._memory.restoring)
        if recovered is None:
            return
        self._memory.restore(recovered)
        self._is_replaying = True
        for commit in recovered.pending:
            if commit.input is None:
                self._memory.apply(commit)
            else:
                self._run_again(commit, commit.input)
        self._is_replaying = False

    def _run_again(self, commit: Commit, given: pa.RecordBatch) -> None:
        """Run the logged input of an epoch through the same code; nothing is logged."""
        plan = read_plan(commit, self.transactions)
        changed = is_code_changed(commit, plan, accept=self._accepts_changed_code)
        results, _, _ = self._process(plan, pa.Table.from_batches([given]), commit.source)
        if not changed:
            check_same_results(commit, results)

    @property
    def epoch(self) -> int:
        """The number of the last durable commit: what queries see."""
        return self._memory.replica.published

    @property
    def path(self) -> str | None:
        """The folder of the store, None for an engine in memory."""
        return None if self._journal.store is None else self._journal.store.path

    @property
    def stopped(self) -> str | None:
        """Why the engine is stopped; None while it goes on."""
        return self._guard.reason

    def counts(self) -> dict[str, int]:
        """How many rows each table has at this moment."""
        return {name: len(rows) for name, rows in self._memory.rows.items()}

    def _declare(self) -> None:
        """Write the manifest when it does not yet say all that this program declares."""
        before = self._journal.manifest
        # A new store is beyond all the migrations that its program knows, from the start.
        seen = () if before.get("tables") else self._migrations
        merged = merged_manifest(before, self.tables, self._streams, seen)
        self._journal.declare({**merged, "loaded": dict(self._memory.loaded)})

    # --- loading ------------------------------------------------------------------------------

    def load(self, table: Table | str, rows: Any, *, mode: str = "once") -> int:
        """Fill a table once and return how many rows it took; bad rows are always refused.

        A table that was loaded before stays as it is: 0. One that has rows without a load, made by
        events, is an error, unless `mode` says what to do: "skip" leaves it as it is, too, and
        "missing" adds those rows whose keys are not there, of any table and each time.
        """
        name = self._table_name(table)
        with self._lock, self._guard.running():
            return self._loading.load(name, rows, mode)

    # --- running ------------------------------------------------------------------------------

    def run(
        self,
        transaction: Routes,
        events: Any,
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
        batch_size: int | None = None,
        scheme: str = "auto",
        threads: int | None = None,
        isolation: str = "PL4",
        updates: bool = False,
        carry: str | Sequence[str] | None = None,
        idle: str | None = None,
        record: list[Recording] | None = None,
    ) -> pa.Table:
        """Run every event and return one result for each, in the serial order.

        All events are one batch and one epoch, unless `batch_size` cuts them (in arrival order)
        into several; then the next one runs while the log of the last is being synced.
        `updates=True` adds the rows as each transaction left them, `carry="event_id, shop"` these
        columns of the events, whatever became of them. With a watermark, `idle="30 seconds"` runs
        what is held back once no events came for so long. `isolation` says what events
        may see of each other; `record` gets what they saw, for `headgate.testing.History`.
        """
        said = (transaction, order_by, route_by, watermark, late, name, scheme, threads, isolation,
                updates, carry, idle)  # fmt: skip
        plan = self._plan_said(*said)
        if record is not None:
            plan = recorded(plan, record)
        table = as_table(events, plan.event, "events", plan.with_unneeded)
        plan = self._carrying(plan, table.schema)
        if batch_size is None:
            return self._apply(plan, table, None)
        given: Any = batch_size
        if not isinstance(given, int) or given < 1:
            raise InputError(f"batch_size is a number of at least 1, not {shown(given)}")
        if table.num_rows <= batch_size:
            return self._apply(plan, table, None)
        return self._run_pipelined(plan, table, batch_size)

    def _run_pipelined(self, plan: Plan, table: pa.Table, batch_size: int) -> pa.Table:
        """One batch after another; the log of one is written while the next one runs."""
        parts, before = [], None
        self._streams_seen.note(plan, plan.inlet_name(None))
        for first in range(0, table.num_rows, batch_size):
            with self._lock, self._guard.running():
                results, epoch, _ = self._process(
                    plan, table.slice(first, batch_size), None, later=True
                )
            parts.append(results)
            if before is not None:
                self._await_durable(plan, before)  # no further ahead of the disk than this
            before = epoch
        self._guard.wait(epoch)
        return pa.concat_tables(parts)

    def call(self, transaction: Transaction | str, /, **columns: Any) -> Result:
        """Run one transaction over one event given by keywords, between batches."""
        transaction = find_transaction(transaction, self.transactions)
        columns = event_columns(transaction, columns)
        if self._journal.shares_syncs:
            return self.submit(transaction, **columns).result()
        event = call_event(transaction, columns)
        return as_results(self._apply(self._call_plan(transaction), event, None))[0]

    def submit(self, transaction: Transaction | str, /, **columns: Any) -> Future[Result]:
        """As `call`, but return at once with the promise of the result.

        Calls handed in meanwhile, by this thread or others, share an epoch and its sync; they run
        in the order in which they were handed in.
        """
        self._guard.check()
        transaction = find_transaction(transaction, self.transactions)
        columns = event_columns(transaction, columns)
        return self._gathering.submit(self._call_plan(transaction), columns)

    def call_once(self, key: str, transaction: Transaction | str, /, **columns: Any) -> Result:
        """As `call`, but only once for each key: sent again, it gets the recorded result.

        The key is logged with the call, so this holds across restarts, too, for as many as
        `calls.remembered.CALLS_MAX`. The same key with other columns is a ConflictError.
        """
        transaction = find_transaction(transaction, self.transactions)
        columns = event_columns(transaction, columns)
        answer = self.call_all([Call(transaction, columns, checked_key(key))])[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call_all(self, calls: Sequence[Call]) -> list[Result | Exception]:
        """Run many calls together; each gets its result, or the error that is its own.

        Those of one transaction are one batch, and all of them share a sync.
        """
        return self.calling.call_all(calls)

    def _call_plan(self, transaction: Transaction) -> Plan:
        return self._plan(transaction, None, None, None, "reject", None)

    def _run_calls_of(
        self, transaction: Transaction, events: pa.Table
    ) -> tuple[pa.Table, int, np.ndarray]:
        return self._run_calls(self._call_plan(transaction), events)

    def _run_calls(self, plan: Plan, events: pa.Table) -> tuple[pa.Table, int, np.ndarray]:
        with self._lock, self._guard.running():
            return self._process(plan, events, None)

    def flush(
        self,
        transaction: Routes,
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
        carry: str | Sequence[str] | None = None,
    ) -> pa.Table:
        """Run the events that `run` with the same options holds back, as if time had passed.

        The watermark moves to the youngest of them: what is older and comes later is late.
        InputError where there is no such stream, with those that hold events. What a sink holds
        back is run by its own `flush`.
        """
        plan = self._plan(transaction, route_by, order_by, watermark, late, name, carry=carry)
        return self._flush(plan, plan.inlet_name(None))

    def _flush(self, plan: Plan, inlet: str, is_due: Callable[[], bool] = lambda: True) -> pa.Table:
        """Run what an inlet holds, if it is still time for it, as an epoch of its own."""
        with self._lock, self._guard.running():
            state = self._streams_seen.state(inlet)
            if state is None or state.held is None or not is_due():
                return self._empty(self._carrying(plan, None))
            check_flush(plan, state.held)
            free = replace(self._carrying(plan, state.held.schema), watermark_us=None)
            after = latest_time_us(state.held, plan)
            moved = {inlet: InletState(after, None, state.arrivals)}
            held = with_nulls(state.held, plan.carry)
            results, epoch, _ = self._process(free, held, None, moved)
        self._await_durable(plan, epoch)
        return results

    def _check(self, plan: Plan, given: pa.Schema) -> None:
        """Refuse events of this schema as a batch of them would be; nothing runs."""
        with self._lock, self._guard.running():
            executor = self._executor(plan.route.transactions, plan.updates)
            plan.arranger(executor.program).check(given)
            self._carrying(plan, given)  # readers may know the results' columns from now on

    def sink(
        self,
        transaction: Routes,
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
        scheme: str = "auto",
        threads: int | None = None,
        isolation: str = "PL4",
        updates: bool = False,
        carry: str | Sequence[str] | None = None,
        idle: str | None = None,
    ) -> Sink:
        """The function to hand to `writeStream.foreachBatch`: each micro-batch exactly once."""
        from headgate.spark.sink import Sink  # the one door upward: spark/ stands above us

        said = (transaction, order_by, route_by, watermark, late, name, scheme, threads, isolation,
                updates, carry, idle)  # fmt: skip
        plan = self._plan_said(*said)
        ways = (self._apply, self._flush, self._check, self._streams_seen.held, self.applied)
        return Sink(EngineInlet(plan, *ways))

    def _plan_said(self, *said: Any) -> Plan:
        """The plan of what was said to `run` or `sink`; the same words mean the same plan."""
        try:
            return self._plans[said]
        except (KeyError, TypeError):  # a list or a dict is no key
            pass
        (transaction, order_by, route_by, watermark, late, name, scheme, threads, isolation,
         updates, carry, idle) = said  # fmt: skip
        chosen, level = make_protocol(scheme, threads), make_isolation(isolation)
        plan = self._plan(
            transaction, route_by, order_by, watermark, late, name, chosen, level, updates,
            carry, idle,
        )  # fmt: skip
        with contextlib.suppress(TypeError):
            self._plans[said] = plan
        return plan

    def _plan(
        self,
        transaction: Any,
        route_by: str | None,
        order_by: Any,
        watermark: str | None,
        late: str,
        name: str | None,
        scheme: Scheme = SERIAL,
        isolation: str = "PL4",
        updates: bool = False,
        carry: str | Sequence[str] | None = None,
        idle: str | None = None,
    ) -> Plan:
        if self._is_weak:  # what is run again must find the same order: the results say so
            isolation = "PL4"
        transaction = find_route(transaction, self.transactions)
        key = (
            transaction if isinstance(transaction, Transaction) else _told_apart(transaction),
            order_by if isinstance(order_by, str) else repr(order_by),
            (route_by, watermark, late, name, scheme, isolation, updates, repr(carry), idle),
        )
        if key in self._plans:
            return self._plans[key]
        plan = make_plan(
            transaction, self.transactions, route_by=route_by, order_by=order_by,
            watermark=watermark, late=late, name=name, scheme=scheme,
            isolation=isolation, updates=updates, carry=carry, idle=idle,
        )  # fmt: skip
        with self._lock, self._guard.running():
            self._note_streams(plan)
            self._plans[key] = plan
            if plan.name is not None:
                self._idle.note(plan, plan.name, self._memory.inlets)  # held before a restart
        return plan

    def _carrying(self, plan: Plan, given: pa.Schema | None) -> Plan:
        """The plan with the types of what it carries; these events may be the first to say."""
        if not plan.carry or plan.carried:
            return plan
        kinds = carried_kinds(plan.carry, given)
        if kinds in plan.carrying:
            return plan.carrying[kinds]
        with self._lock, self._guard.running():
            found = with_carried(self._streams, plan, given)
            self._note_streams(found)
            if None not in dict(found.carried).values():  # else another batch may know better
                plan.carrying[kinds] = found
        return found

    def _note_streams(self, plan: Plan) -> None:
        """The manifest tells readers the columns of each transaction's results stream."""
        streams = merge_streams(self._streams, plan)
        if streams != self._streams:
            self._streams = streams
            self._declare()

    def _apply(
        self,
        plan: Plan,
        events: pa.Table,
        source: Source | None,
        caller: Caller | None = None,
    ) -> pa.Table:
        """One batch, one epoch, exactly once per source; returns its results when durable."""
        plan = self._carrying(plan, events.schema)
        with self._lock, self._guard.running():
            self._streams_seen.note(plan, plan.inlet_name(source))
            if source is not None and self._sources.has_applied(source, caller):
                self._idle.note(plan, plan.inlet_name(source), self._memory.inlets)
                return self._sources.recorded(plan, source, self._guard.wait)
            if events.num_rows == 0:
                return self._empty(plan)
            results, epoch, _ = self._process(plan, events, source)
        self._await_durable(plan, epoch)
        return results

    def _await_durable(self, plan: Plan, epoch: int) -> None:
        began = self._now()
        self._guard.wait(epoch)
        self._streams_seen.meter(plan).steps["sync"].note(self._now() - began)

    @ahead_of_readers
    def _process(
        self,
        plan: Plan,
        events: pa.Table,
        source: Source | None,
        inlets: Mapping[str, InletState] | None = None,
        *,
        later: bool = False,
    ) -> tuple[pa.Table, int, np.ndarray]:
        """Order, resolve, execute and append one batch, not yet durable; returns its results, its
        epoch, and the event row that each result is of."""
        executor = self._executor(plan.route.transactions, plan.updates)
        program = executor.program
        inlet, meter, began = plan.inlet_name(source), self._streams_seen.meter(plan), self._now()
        arranged = plan.arranger(program).arrange(events, self._memory.inlets.get(inlet))
        moved = dict(inlets or {})
        if arranged.state is not None:
            moved[inlet] = arranged.state
        ordered = self._now()
        with self._guard.all_or_stopped():
            program.resolve(arranged.works)
            execution = executor.execute(
                arranged.works, arranged.order, arranged.route, self._memory.epoch + 1, plan.scheme,
                plan.isolation, plan.record is not None,
            )  # fmt: skip
            arranged = in_commit_order(arranged, execution, plan)
            batch, tally = build_results(plan, arranged, execution, program)
            border = Border.of(events, plan) if self._is_weak and inlets is None else Border()
            rows, results = event_rows(arranged), with_epoch(batch, self._memory.epoch + 1)
            known = self._memory.calls.note(keyed(events, rows, results))
            executed = self._now()
            self._commit(execution, batch, source, moved, border, known, meter, later=later)
        if not self._is_replaying:
            latest_us, times = latest_seen_us(plan, arranged, batch), (began, ordered, executed)
            meter.note_batch(tally, latest_us, times, is_flush=inlets is not None)
            self._sources.note(source, batch, tally, self._memory.epoch, meter.name, inlet)
            if inlets is None:
                self._idle.note(plan, inlet, self._memory.inlets)
        return results, self._memory.epoch, rows

    def _commit(
        self,
        execution: Execution,
        batch: pa.RecordBatch,
        source: Source | None,
        inlets: Mapping[str, InletState],
        border: Border,
        known: Mapping[str, pa.RecordBatch],
        meter: Meter,
        *,
        later: bool,
    ) -> None:
        """Append the epoch to the log and make it the engine's own."""
        memory, changes = self._memory, {}
        if self._journal.store is not None and not self._is_replaying:
            is_input = border.input is not None
            if not is_input:
                changed = execution.changed.items()
                changes = {name: memory.changes(name, slots) for name, slots in changed}
            commit = Commit(
                memory.epoch + 1, self._clock.time_us(), source,
                {} if is_input else memory.storages.to_files({**changes, **known}), batch, inlets,
                border.input, border.fingerprint, memory.used_slots() if is_input else {},
            )  # fmt: skip
            self._journal.append(commit, later=later, meter=meter)
        memory.advance(source, inlets, execution.changed, changes)
        if not self._is_replaying:
            images = memory.images if self._is_weak else None
            self._journal.snapshot_when_due(memory.epoch, images)

    def _empty(self, plan: Plan) -> pa.Table:
        return results_arrow(plan).empty_table()

    def _executor(self, transactions: Sequence[Transaction], updates: bool = False) -> Executor:
        key = (updates, *transactions)  # the very same ones: names may be given again
        if key not in self._executors:
            signatures = [transaction.signature for transaction in transactions]
            memory = self._memory
            program = Program(signatures, memory.rows, memory.pool, updates)
            self._executors[key] = Executor(program, self._clock)
        return self._executors[key]

    # --- reading ------------------------------------------------------------------------------

    def gather(self, query: str, epoch: int | None = None) -> tuple[dict[str, pa.Table], int]:
        """The tables that a query can read and their epoch, to run it elsewhere."""
        return self._reading.gather(query, epoch)

    def sql(self, query: str, parameters: Parameters = None, epoch: int | None = None) -> Answer:
        """Run a read-only SQL query by DuckDB over one committed epoch: the newest, or `epoch`."""
        return self._reading.sql(query, parameters, epoch)

    def get(self, table: Table | str, key: Any) -> dict[str, Any] | None:
        """The row with this key (a tuple when the key has several columns), or None."""
        getter = self._getters.get(table if isinstance(table, str) else id(table))
        return (self.getter(table) if getter is None else getter)(key)

    def getter(self, table: Table | str) -> Getter:
        """`get` of one table as a function of the key: a little faster, for many reads."""
        name = self._table_name(table)
        if name not in self._getters:
            self._getters[name] = self._reading.getter(name)
            self._getters[id(self.tables[name])] = self._getters[name]
        return self._getters[name]

    def scan(
        self,
        table: Table | str,
        where: str | Mapping[str, Any] | None = None,
        columns: str | Sequence[str] | None = None,
        *,
        epoch: int | None = None,
    ) -> Answer:
        """The rows of a table: all, those where a SQL condition holds, or columns have values."""
        is_past = epoch is not None and isinstance(table, str)  # it may have had another name
        name = str(table) if is_past else self._table_name(table)
        return self._reading.scan(name, where, columns, epoch)

    def explain(
        self,
        transaction: Routes,
        events: Any,
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
    ) -> Figures:
        """The figures of the graph these events would make now; nothing runs."""
        plan = self._plan(transaction, route_by, order_by, None, "reject", None)
        with self._lock, self._guard.running():
            executor = self._executor(plan.route.transactions)
            given = as_table(events, plan.event, "events", plan.with_unneeded)
            arranged = plan.arranger(executor.program).arrange(given, None)
            executor.program.resolve(arranged.works)
            return executor.explain(arranged.works, arranged.order, arranged.route)

    def decisions(self) -> list[Decision]:
        """What the model chose for the last batches, and why in words."""
        with self._lock:
            return [one for executor in self._executors.values() for one in executor.decisions]

    def metrics(self) -> Metrics:
        """What was counted since the engine was opened; `hg.prometheus(engine)` is it as text."""
        return self._streams_seen.metrics(self._journal, self._executors, self.epoch, self._clock)

    def applied(self, query: str, batch: int) -> tuple[Applied, ...]:
        """What became of a micro-batch that a query handed to sinks of this engine lately."""
        return self._sources.applied(query, batch)

    def snapshot(self) -> None:
        """Write all tables as a snapshot now: the store then opens without what was logged before.

        One is written by itself whenever the log has grown long.
        """
        with self._lock, self._guard.running():
            self._journal.snapshot(self._memory.epoch, self._memory.images)

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and release the store; closing twice is fine."""
        self.give_up(CLOSED)

    def give_up(self, reason: str) -> None:
        """As `close`, but the engine says this when it is used again."""
        if self._guard.is_of_parent:
            return
        self._gathering.close()
        self._idle.close()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._journal.close()
            finally:
                self._guard.stop(reason, is_wanted=True)
                LOG.info("closed %r", self)

    def owns(self, path: str, disk: Disk | None) -> bool:
        """Whether this engine has the store at the path open for writing."""
        store = self._journal.store
        is_there = store is not None and store.path == path and not self._guard.is_of_parent
        return is_there and not self._is_closed and opening.same_disk(self._journal.disk, disk)

    def __del__(self) -> None:
        """Dropped without `close`: the store is given free, and whoever looks for leaks is told."""
        if getattr(self, "_is_closed", True) or self._guard.is_of_parent:
            return
        if self.path is not None:
            what = f"the engine of {self.path} was dropped without close()"
            warnings.warn(what, ResourceWarning, stacklevel=1, source=self)
        with contextlib.suppress(Exception):
            self.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<engine {self._told()}: {names([*self.tables, *self.transactions])}>"

    def _repr_html_(self) -> str:
        counts = self.counts()
        rows: list[Any] = [
            (name, "table", table.schema.ddl, ", ".join(table.key), counts[name])
            for name, table in self.tables.items()
        ]
        rows += [
            (
                name,
                "transaction",
                one.event.ddl,
                ", ".join(t.name for t in one.signature.tables),
                "",
            )
            for name, one in self.transactions.items()
        ]
        heads = ["name", "is a", "columns", "key, or tables", "rows"]
        return html_table(f"engine {self._told()}", heads, rows)

    def _told(self) -> str:
        """Where it is and how far, in a few words."""
        where = "in memory" if self.path is None else str(self.path)
        stopped = "" if self.stopped is None else f", stopped: {self.stopped}"
        return f"{where} at epoch {self.epoch:,}{stopped}"

    def _table_name(self, table: Table | str) -> str:
        return find_table(table, self.tables).name
