"""The engine: the way of a batch of events, from arrival to a committed epoch.

    order      who runs, in what order, who waits or is late         inlet.py, planning/order.py
    resolve    keys to row slots                                     execution/program.py, state/
    execute    compiled kernels over the rows                        execution/
    commit     append to the log, sync, publish                      durability/

One commit point: the synced log record of the epoch. If anything fails between the first change of
a row and that point, the engine stops: what is in memory is then in doubt, and reopening recovers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.declarations import (
    FORMAT,
    by_name,
    check_format,
    check_tables_known,
    describe_table,
    merge_stream,
    merge_tables,
)
from headgate.durability import ALIVE, SLOT, Commit, Retention
from headgate.durability import Inlet as InletState
from headgate.errors import InputError, StoreError
from headgate.events import as_table, complete_rows, from_dicts
from headgate.execution.kernel import build_check, check_compiles, first_failure
from headgate.execution.program import Execution, Program, address
from headgate.execution.scheme import SERIAL, Scheme, make_scheme
from headgate.inlet import Arranger, Plan, latest_time_us, make_plan
from headgate.io import Clock, Disk, RealClock
from headgate.journal import Journal
from headgate.memory import Memory, Source
from headgate.planning.figures import Figures
from headgate.query.sql import Answer, run_sql
from headgate.replay import Border, fingerprint_of, read_plan
from headgate.results import (
    Result,
    build_results,
    results_arrow,
    results_schema,
    with_epoch,
)
from headgate.scheduling.decision import Decision
from headgate.state.rows import Rows
from headgate.state.schema import Schema
from headgate.state.table import Table
from headgate.transactions import Transaction

if TYPE_CHECKING:
    from headgate.spark.sink import Sink


def open_engine(
    path: str | Path | None,
    tables: Iterable[Table] = (),
    transactions: Iterable[Transaction] = (),
    *,
    durability: str = "sync",
    retain: Retention | None = None,
    recovery: str = "strong",
    changed_code: str = "refuse",
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Engine:
    """Open a store (made when it is not there), or an engine in memory for `path=None`.

    `durability` is "sync" (an answer means synced), "group" (the same, but commits of several
    threads share a sync) or "none" (survives a killed process, not a power cut). `retain` says
    which past epochs to keep; None keeps all. `recovery` is "strong" (the log holds changed rows)
    or "weak" (it holds the input, which is run again; refused when the code has changed since,
    unless `changed_code="accept"`).

    >>> accounts = Table("accounts", "id bigint, balance double", key="id")
    >>> with open_engine(None, tables=[accounts]) as engine:
    ...     engine.load(accounts, [{"id": 1, "balance": 10.0}])
    1
    """
    journal = Journal.open(path, disk, clock or RealClock(), durability, retain)
    try:
        return Engine(journal, tables, transactions, recovery, changed_code, clock or RealClock())
    except BaseException:
        journal.close()
        raise


class Engine:
    """Tables and the transactions over them; made by `hg.open`."""

    def __init__(
        self,
        journal: Journal,
        tables: Iterable[Table],
        transactions: Iterable[Transaction],
        recovery: str,
        changed_code: str,
        clock: Clock,
    ) -> None:
        if recovery not in ("strong", "weak") or changed_code not in ("refuse", "accept"):
            raise InputError(
                f"recovery is 'strong' or 'weak', changed_code 'refuse' or 'accept'; "
                f"not {recovery!r}, {changed_code!r}"
            )
        self._clock = clock
        self._journal = journal
        self._is_weak = recovery == "weak" and journal.store is not None
        self._accepts_changed_code = changed_code == "accept"
        self._is_replaying = False
        self._lock = threading.RLock()
        self._stopped: str | None = None
        declared = by_name(tables, "table", Table)
        self.transactions = by_name(transactions, "transaction", Transaction)
        self._begin(declared)

    def _begin(self, declared: Mapping[str, Table]) -> None:
        """Fit the program to the store, recover its state and note what is new."""
        manifest = self._journal.manifest
        check_format(manifest)
        self.tables = merge_tables(declared.values(), manifest.get("tables", {}))
        check_tables_known(self.transactions, self.tables)
        for table in self.tables.values():
            check_compiles(table)
        self._streams: dict[str, Any] = dict(manifest.get("streams", {}))
        self._memory = Memory(self.tables)
        self._programs: dict[tuple[str, ...], Program] = {}
        self._plans: dict[Any, Plan] = {}
        self._recent: dict[str, pa.Table] = {}  # in memory only: the last results of each source
        self._callers: dict[
            str, tuple[str, int, object]
        ] = {}  # source -> its last run, batch, sink
        for transaction in self.transactions.values():
            # Literals take their codes before any text from the store can take them.
            self._program((transaction,))
            if self._is_weak:
                fingerprint_of((transaction,))  # refuse now what could not be logged later
        self._recover()
        self._declare()

    def _recover(self) -> None:
        recovered = self._journal.recover()
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
        plan = read_plan(given, self.transactions)
        changed = commit.fingerprint != fingerprint_of(plan.route.transactions)
        if changed and not self._accepts_changed_code:
            raise StoreError(
                f"epoch {commit.epoch} was logged as input of code that has changed since: to run "
                "it again would give other results; open with the old code, or with "
                "changed_code='accept'"
            )
        results, _ = self._process(plan, pa.Table.from_batches([given]), commit.source)
        recorded = None if commit.results is None else with_epoch(commit.results, commit.epoch)
        if recorded is not None and not changed and not results.equals(recorded):
            raise StoreError(
                f"epoch {commit.epoch} gave other results when it was run again: a transaction "
                "depends on more than its event and rows; weak recovery cannot bring it back"
            )

    @property
    def epoch(self) -> int:
        """The number of the last commit."""
        return self._memory.epoch

    def _declare(self) -> None:
        """Write the manifest when it does not yet say all that this program declares."""
        manifest = {
            "format": FORMAT,
            "tables": {name: describe_table(table) for name, table in self.tables.items()},
            "streams": self._streams,
        }
        self._journal.declare(manifest)

    # --- loading ------------------------------------------------------------------------------

    def load(self, table: Table | str, rows: Any) -> int:
        """Fill a table once; a no-op that returns 0 when it was filled or written before."""
        name = self._table_name(table)
        with self._lock, self._running():
            found = self._memory.rows[name]
            if name in self._memory.written:
                return 0
            where = f"load {name!r}"
            given = complete_rows(as_table(rows, found.table.schema, where), found.table, where)
            if given.num_rows == 0:
                return 0
            slots = found.load(given, self.epoch + 1)
            self._refuse_failed_check(found, slots)
            with self._all_or_stopped():
                self._commit_load(found, slots)
            return int(given.num_rows)

    def _refuse_failed_check(self, rows: Rows, slots: range) -> None:
        check = rows.table.check
        if check is None:
            return
        self._memory.pool.add_literals(sorted(check.texts))
        failed = first_failure(build_check(rows.table), address(rows.words), slots)
        if failed is not None:
            key = rows.key_text(failed)
            rows.unload(slots)
            raise InputError(
                f"load {rows.table.name!r}: the row {key} fails the check {check.text!r}"
            )

    def _commit_load(self, rows: Rows, slots: range) -> None:
        name, numbers = rows.table.name, np.arange(slots.start, slots.stop)
        if self._journal.store is not None:
            arrays = [
                pa.array(numbers),
                pa.array(np.ones(len(slots), np.bool_)),
                *rows.arrow(slice(slots.start, slots.stop)).columns,
            ]
            names = [SLOT, ALIVE, *rows.table.schema.names]
            changes = {name: pa.RecordBatch.from_arrays(arrays, names=names)}
            commit = Commit(self.epoch + 1, self._clock.time_us(), changes=changes)
            self._journal.append(commit, later=False)
            self._journal.wait(commit.epoch)
        self._memory.advance(None, {}, {name: numbers})

    # --- running ------------------------------------------------------------------------------

    def run(
        self,
        transaction: Transaction | Mapping[Any, Transaction],
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
    ) -> pa.Table:
        """Run every event and return one result for each, in the serial order.

        All events are one batch and one epoch, unless `batch_size` cuts them (in arrival order)
        into several; then the next one runs while the log of the last is being synced.
        """
        chosen = make_scheme(scheme, threads)
        plan = self._plan(transaction, route_by, order_by, watermark, late, name, chosen)
        table = as_table(events, plan.event, "events")
        if batch_size is None or table.num_rows <= batch_size:
            return self._apply(plan, table, None)
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; it must be at least 1")
        return self._run_pipelined(plan, table, batch_size)

    def _run_pipelined(self, plan: Plan, table: pa.Table, batch_size: int) -> pa.Table:
        """One batch after another; the log of one is written while the next one runs."""
        parts = []
        for first in range(0, table.num_rows, batch_size):
            with self._lock, self._running():
                before = self._journal.writing
                results, epoch = self._process(
                    plan, table.slice(first, batch_size), None, later=True
                )
            parts.append(results)
            if before is not None:
                before.result()
        self._wait(epoch)
        return pa.concat_tables(parts)

    def call(self, transaction: Transaction, /, **columns: Any) -> Result:
        """Run one transaction over one event given by keywords, between batches."""
        plan = self._plan(transaction, None, None, None, "reject", None)
        unknown = [name for name in columns if name not in transaction.event]
        if unknown:
            known = ", ".join(transaction.event.names)
            raise InputError(f"call {transaction.name!r}: no column {unknown[0]!r}, only {known}")
        missing = [name for name in transaction.event.names if name not in columns]
        if missing:
            raise InputError(f"call {transaction.name!r}: the column {missing[0]!r} is missing")
        event = from_dicts([columns], transaction.event, f"call {transaction.name!r}")
        return Result(self._apply(plan, event, None).to_pylist()[0])

    def flush(
        self,
        transaction: Transaction | Mapping[Any, Transaction],
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
    ) -> pa.Table:
        """Run the events that `run` with the same options holds back, as if time had passed."""
        plan = self._plan(transaction, route_by, order_by, watermark, late, name)
        inlet = plan.inlet_name(None)
        with self._lock, self._running():
            state = self._memory.inlets.get(inlet)
            if state is None or state.held is None:
                return self._empty(plan)
            free = replace(plan, watermark_us=None)
            after = latest_time_us(state.held, plan)
            moved = {inlet: InletState(after, None, state.arrivals)}
            results, epoch = self._process(free, state.held, None, moved)
        self._wait(epoch)
        return results

    def sink(
        self,
        transaction: Transaction | Mapping[Any, Transaction],
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
        watermark: str | None = None,
        late: str = "reject",
        name: str | None = None,
        scheme: str = "auto",
        threads: int | None = None,
    ) -> Sink:
        """The function to hand to `writeStream.foreachBatch`: each micro-batch exactly once."""
        from headgate.spark.sink import Sink  # the one door upward: spark/ stands above us

        chosen = make_scheme(scheme, threads)
        plan = self._plan(transaction, route_by, order_by, watermark, late, name, chosen)
        return Sink(EngineInlet(self, plan))

    def _plan(
        self,
        transaction: Any,
        route_by: str | None,
        order_by: Any,
        watermark: str | None,
        late: str,
        name: str | None,
        scheme: Scheme = SERIAL,
    ) -> Plan:
        key = (
            transaction if isinstance(transaction, Transaction) else repr(transaction),
            order_by if isinstance(order_by, str) else repr(order_by),
            (route_by, watermark, late, name, scheme),
        )
        if key in self._plans:
            return self._plans[key]
        plan = make_plan(
            transaction, self.transactions, route_by=route_by, order_by=order_by,
            watermark=watermark, late=late, name=name, scheme=scheme,
        )  # fmt: skip
        with self._lock, self._running():
            self._note_streams(plan)
            self._plans[key] = plan
        return plan

    def _note_streams(self, plan: Plan) -> None:
        """The manifest tells readers the columns of each transaction's results stream."""
        changed = False
        for transaction in plan.route.transactions:
            own = {column.name for column in transaction.output or ()}
            mine = [c for c in results_schema(plan) if c.name not in plan.outputs or c.name in own]
            before = self._streams.get(transaction.name)
            after = merge_stream(before, Schema(tuple(mine)))
            if before != after:
                self._streams = {**self._streams, transaction.name: after}
                changed = True
        if changed:
            self._declare()

    def _apply(
        self,
        plan: Plan,
        events: pa.Table,
        source: Source | None,
        caller: tuple[str, object] | None = None,
    ) -> pa.Table:
        """One batch, one epoch, exactly once per source; returns its results when durable."""
        with self._lock, self._running():
            if source is not None:
                self._refuse_twin(source, caller)
                if self._memory.has_applied(source):
                    return self._recorded(plan, source)
            if events.num_rows == 0:
                return self._empty(plan)
            results, epoch = self._process(plan, events, source)
        self._wait(epoch)
        return results

    def _refuse_twin(self, source: Source, caller: tuple[str, object] | None) -> None:
        """Two sinks in one foreachBatch come with one batch number: only names tell them apart.

        In one run of a query a batch number comes once to each sink, so a second sink with it is
        another; in a new run it is the same batch sent again.
        """
        if caller is None:
            return
        run, sink = caller
        before = self._callers.get(source[0])
        if before is not None and before[:2] == (run, source[1]) and before[2] is not sink:
            raise InputError(
                f"two sinks of this engine got batch {source[1]} of one query; "
                "give each of them a name: engine.sink(..., name='deposits')"
            )
        self._callers[source[0]] = (run, source[1], sink)

    def _process(
        self,
        plan: Plan,
        events: pa.Table,
        source: Source | None,
        inlets: Mapping[str, InletState] | None = None,
        *,
        later: bool = False,
    ) -> tuple[pa.Table, int]:
        """Order, resolve, execute and append one batch; not yet durable when it returns."""
        program = self._program(plan.route.transactions)
        inlet = plan.inlet_name(source)
        arranged = Arranger(plan, program).arrange(events, self._memory.inlets.get(inlet))
        moved = dict(inlets or {})
        if arranged.state is not None:
            moved[inlet] = arranged.state
        with self._all_or_stopped():
            program.resolve(arranged.works)
            execution = program.execute(
                arranged.works, arranged.order, arranged.route, self.epoch + 1, plan.scheme
            )
            batch = build_results(plan, arranged, execution, program)
            border = Border.of(events, plan) if self._is_weak and inlets is None else Border()
            self._commit(execution, batch, source, moved, border, later=later)
        return with_epoch(batch, self.epoch), self.epoch

    def _commit(
        self,
        execution: Execution,
        batch: pa.RecordBatch,
        source: Source | None,
        inlets: Mapping[str, InletState],
        border: Border,
        *,
        later: bool,
    ) -> None:
        """Append the epoch to the log and make it the engine's own."""
        memory = self._memory
        if self._journal.store is not None and not self._is_replaying:
            is_input = border.input is not None
            changes = {} if is_input else {
                name: memory.changes(name, slots) for name, slots in execution.changed.items()
            }  # fmt: skip
            commit = Commit(
                memory.epoch + 1, self._clock.time_us(), source, changes, batch, inlets,
                border.input, border.fingerprint, memory.used_slots() if is_input else {},
            )  # fmt: skip
            self._journal.append(commit, later=later)
        memory.advance(source, inlets, execution.changed)
        if source is not None and self._journal.store is None:
            self._recent[source[0]] = with_epoch(batch, memory.epoch)
        if not self._is_replaying:
            images = memory.images if self._is_weak else None
            self._journal.snapshot_when_due(memory.epoch, images)

    def _recorded(self, plan: Plan, source: Source) -> pa.Table:
        """The results that were recorded when this very micro-batch was first applied."""
        batch_id, epoch = self._memory.sources[source[0]]
        if self._journal.store is None:
            recent = self._recent.get(source[0])
            return recent if recent is not None and batch_id == source[1] else self._empty(plan)
        self._wait(epoch)
        if batch_id != source[1]:
            return self._empty(plan)  # older than the last: Spark does not ask for its results
        batch = self._journal.results(epoch)
        return self._empty(plan) if batch is None else with_epoch(batch, epoch)

    def _empty(self, plan: Plan) -> pa.Table:
        return results_arrow(plan).empty_table()

    def _program(self, transactions: Sequence[Transaction]) -> Program:
        names = tuple(transaction.name for transaction in transactions)
        if names not in self._programs:
            signatures = [transaction.signature for transaction in transactions]
            self._programs[names] = Program(signatures, self._memory.rows, self._memory.pool)
        return self._programs[names]

    # --- reading ------------------------------------------------------------------------------

    def sql(
        self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> Answer:
        """Run a read-only SQL query by DuckDB over one committed epoch."""
        with self._lock, self._running():
            tables = self._memory.tables()
            epoch = self.epoch
        self._wait(epoch)  # visible means durable, also while the log of a batch is being synced
        return run_sql(query, tables, parameters)

    def explain(
        self,
        transaction: Transaction | Mapping[Any, Transaction],
        events: Any,
        *,
        order_by: str | Sequence[str] | None = None,
        route_by: str | None = None,
    ) -> Figures:
        """The figures of the graph these events would make now; nothing runs."""
        plan = self._plan(transaction, route_by, order_by, None, "reject", None)
        with self._lock, self._running():
            program = self._program(plan.route.transactions)
            arranged = Arranger(plan, program).arrange(as_table(events, plan.event, "events"), None)
            program.resolve(arranged.works)
            return program.explain(arranged.works, arranged.order, arranged.route)

    def decisions(self) -> list[Decision]:
        """What the model chose for the last batches, and why in words."""
        with self._lock:
            return [one for program in self._programs.values() for one in program.decisions]

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and release the store; closing twice is fine."""
        with self._lock:
            if self._stopped == "it was closed":
                return
            self._journal.close()
            self._stopped = "it was closed"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        store = self._journal.store
        where = "in memory" if store is None else str(store.path)
        return f"<engine {where} at epoch {self.epoch}: {', '.join(self.tables)}>"

    def _wait(self, epoch: int) -> None:
        """Return when the epoch is durable; the engine stops when it cannot become so."""
        try:
            self._journal.wait(epoch)
        except BaseException as error:
            self._stopped = f"epoch {epoch} did not become durable ({error})"
            raise

    def _table_name(self, table: Table | str) -> str:
        name = table if isinstance(table, str) else table.name
        if name not in self.tables:
            known = ", ".join(self.tables) or "none"
            raise InputError(f"no table {name!r} in this engine; the tables are: {known}")
        return name

    @contextmanager
    def _running(self) -> Iterator[None]:
        if self._stopped is not None:
            raise StoreError(f"the engine is stopped: {self._stopped}; open it again")
        yield

    @contextmanager
    def _all_or_stopped(self) -> Iterator[None]:
        """From the first changed row to the log record: a failure in between stops the engine."""
        try:
            yield
        except BaseException as error:
            self._stopped = f"a batch failed before its commit ({error})"
            raise


class EngineInlet:
    """What a sink needs of an engine: the columns to fetch and a place to put a batch."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan

    @property
    def columns(self) -> list[str]:
        return self._plan.columns

    def apply(self, events: pa.Table, source: Source | None, run: str | None = None) -> pa.Table:
        """One micro-batch, known by its query, its number and the sink's name if it has one.

        The transactions are not part of that name: a program that was changed between a crash and
        its restart must still recognise the batch that it had committed.
        """
        if source is not None and self._plan.name is not None:
            source = (f"{source[0]}/{self._plan.name}", source[1])
        caller = None if run is None else (run, self)
        return self._engine._apply(self._plan, events, source, caller)
