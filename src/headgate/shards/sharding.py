"""Sharding: the driver's side of an engine whose rows are in shards.

An epoch in order: find the components of the batch, write each share's events where its task finds
them, have the shares run, run what visits, read the results, and name the parts. The log record
that names them is the commit, and belongs to the engine like any other. Invariant: until then
nothing that any task did is seen by anyone, and what no record names is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from headgate.durability import Store, StoreReader
from headgate.durability.named_parts import NewImage, NewPart
from headgate.durability.part_file import (
    PartName,
    make_epoch_folder,
    make_work_folder,
    part_epochs,
    remove_others,
    remove_work,
    write_part,
)
from headgate.engine.elsewhere import CommitPlaced
from headgate.engine.journal import Guard, Journal
from headgate.engine.loading import absent_rows, check_rows, fill, made_by_events, read_rows
from headgate.engine.memory import Memory
from headgate.engine.ordering import Arranged, arranger_of, figures_of
from headgate.engine.terms import Terms
from headgate.errors import InputError
from headgate.execution.program import Program
from headgate.isolation.levels import Execution, Executor
from headgate.parallel.figures import Figures
from headgate.query.sql import Parameters
from headgate.query.store_tables import row_bytes
from headgate.shards.components import find_components, homes_alone, touched_rows
from headgate.shards.epoch_run import EpochRun, checked, place_rows
from headgate.shards.flow_rows import FlowRows
from headgate.shards.placement import (
    EVERYWHERE,
    beyond_shards,
    key_table,
    refuse_unfit,
    shards_of,
)
from headgate.shards.planning import (
    BatchPlan,
    Costs,
    DueShards,
    least_seconds,
    plan_at_home,
    plan_batch,
    plan_faster,
    plan_whole,
    seconds_of,
    wanted_rows,
)
from headgate.shards.share import (
    WANTED,
    WHOLE,
    BatchShare,
    ShardCode,
    ShareReport,
    ShareWorker,
    StreamWords,
    Timing,
)
from headgate.shards.warm import ShardRows, Source
from headgate.shards.whole import WholeBatch
from headgate.state.table import Table
from headgate.transactions import Transaction

# Rows of so many bytes may be in the driver, too, where that is faster.
DRIVER_BYTES_MAX = 1 << 28
FORMAT = 6  # of declarations that say how many shards there are


class ShareTasks(Protocol):
    """Whoever runs shares somewhere: each at least once, and reports one of its runs."""

    def begin(self, code: ShardCode) -> int:
        """Take the code of the program; returns how many tasks run at once."""
        ...

    def run(self, shares: Sequence[BatchShare]) -> list[ShareReport]:
        """Run shares, all of one kind, and return a report for each, in their order."""
        ...

    def place(self, frame: Any, share: BatchShare, table: str) -> list[ShareReport]:
        """Place the rows of a frame that is spread over processes: a report for each shard."""
        ...

    def is_frame(self, given: Any) -> bool:
        """Whether these are rows that are spread over processes."""
        ...

    def ask(self, store: StoreReader, query: str, parameters: Parameters, epoch: int) -> pa.Table:
        """What a query finds in the tables of an epoch, which are not read into this process."""
        ...


class Sharding:
    """The rows of one engine in shards, and the way of its batches to them."""

    def __init__(self, tasks: ShareTasks, count: int, driver_bytes_max: int | None = None) -> None:
        self.tasks, self._count = tasks, count
        self._driver_bytes_max = DRIVER_BYTES_MAX if driver_bytes_max is None else driver_bytes_max
        self._costs, self._due = Costs(), DueShards(count)

    def declared(self) -> dict[str, Any]:
        return {"shards": self._count, "format": FORMAT}

    def check(self, tables: Mapping[str, Table], transactions: Mapping[str, Transaction]) -> None:
        refuse_unfit(tables)

    def refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{what} is not there for an engine with shards yet: leave it out, or open a store "
            "without shards="
        )

    @property
    def tables(self) -> Mapping[str, Table]:
        """All tables of the engine, those of versions with them."""
        return self._tables

    def begin(
        self,
        memory: Memory,
        journal: Journal,
        guard: Guard,
        tables: dict[str, Table],
        transactions: dict[str, Transaction],
    ) -> None:
        store = journal.store
        if store is None:
            raise InputError(
                "a store of shards is a folder that executors see: give its path, not None"
            )
        self._memory, self._guard = memory, guard
        self.source = Source(store.disk, store.path, store.lineage)
        self._run = f"{store.disk.token():016x}"
        code = ShardCode(tables, transactions, self._count)
        self._placement, self._mark, self._tables = code.placement, code.mark, tables
        self.worker = ShareWorker(code, store.disk)
        self._tidy_all(store)
        make_work_folder(store.disk, store.path)
        self._costs = Costs(tasks=self.tasks.begin(code))
        # Other code, or a folder that is not seen, is told before anything runs.
        asked = range(self._costs.tasks)
        checked(self.tasks.run([self.share(memory.epoch, number, None) for number in asked]))

    def _tidy_all(self, store: Store) -> None:
        """Remove what no record names; only who has just taken the store may judge that."""
        source, last = self.source, self._memory.epoch
        remove_work(source.disk, source.path)
        for epoch in part_epochs(source.disk, source.path):
            if epoch > last:
                remove_others(source.disk, source.path, epoch, frozenset())
        store.sweep_parts(name.file for name in self._memory.parts.names())

    def share(self, epoch: int, number: int, shard: int | None, **more: Any) -> BatchShare:
        histories = {} if shard is None else self._histories(shard)
        source = self.source
        return BatchShare(
            source.path, source.lineage, epoch, self._run, number, self._mark, shard, histories,
            **more,
        )  # fmt: skip

    def _histories(self, shard: int) -> dict[int, Any]:
        parts = list(range(self._count)) if shard == WHOLE else [shard]
        if self._placement.replicated:
            parts.append(self._placement.everywhere)
        return {part: self._memory.parts.history(part) for part in parts}

    # --- a batch ------------------------------------------------------------------------------

    def execute(
        self,
        terms: Terms,
        arranged: Arranged,
        executor: Executor,
        epoch: int,
        times: Mapping[str, int],
    ) -> Execution:
        if terms.record is not None:
            self.refuse("record=")
        program = executor.program
        began = time.perf_counter()
        plan = self._plan(terms, arranged, program)
        timing = Timing(times, arranged.horizon) if program.expiring else None
        due = self._due.shards(program, timing)
        epoch_run = EpochRun(self, terms, arranged, plan, epoch, timing, due)
        executor.decisions.append(epoch_run.decision)
        reports = epoch_run.run()
        self._due.note(plan, reports, epoch_run.shards)
        execution = epoch_run.gathered(program, reports)
        found = [report for _, report in reports]
        named = self.name_parts(epoch, found)
        self._note(plan, found, time.perf_counter() - began - epoch_run.job_seconds)
        return replace(execution, named=named)

    def _plan(self, terms: Terms, arranged: Arranged, program: Program) -> BatchPlan:
        order, costs = arranged.order, self._costs
        here = self._plan_here(terms, len(order))
        if here is not None:
            return here
        given = (arranged.works, order, self._tables, self._placement, program.pool)
        homes = homes_alone(*given)
        if homes is not None:
            plan = plan_at_home(homes, order)
        else:
            components = find_components(touched_rows(*given), len(arranged.route), self._placement)
            plan = plan_batch(components, order, costs)
        fits = self._fits_here()
        here = plan_faster(len(order), seconds_of(plan, costs), costs) if fits else None
        return plan if here is None else here

    def _plan_here(self, terms: Terms, events: int) -> BatchPlan | None:
        """All events in the driver, where their number alone says so."""
        for transaction in terms.route.transactions:
            why = beyond_shards(transaction, self._tables)
            if why is not None:
                return plan_whole(events, f"{why} may lead to rows of any shard")
        # Where executors lose whatever the plan is, none is made: it takes as long as many events.
        costs = self._costs
        least = least_seconds(events, costs) if self._fits_here() else None
        return plan_faster(events, least, costs)

    def whole(self, terms: Terms, events: int, epoch: int) -> WholeBatch | None:
        plan = self._plan_here(terms, events)
        if plan is None:
            return None
        share = self.share(epoch, 0, WHOLE, words=StreamWords.of(terms))
        rows = self.worker.whole(share)
        executor = rows.executor(terms.route.transactions, updates=terms.updates)
        return WholeBatch(self, share, rows, executor, plan.decision)

    def _fits_here(self) -> bool:
        """Whether the driver may hold all rows: about their words, and those of an index."""
        return self.bytes_of(self._tables.values()) <= self._driver_bytes_max

    def name_parts(self, epoch: int, reports: Iterable[ShareReport]) -> dict[str, pa.RecordBatch]:
        """What the log is to name of an epoch; all else of it is removed."""
        parts, images = [], []
        for report in reports:
            if report.part is not None and report.grown:
                parts.append(NewPart(report.part, report.grown))
            for part, name in report.images.items():
                digest = self._memory.parts.history(part).digest
                images.append(NewImage(name, part, digest))
        named = self._memory.parts.note(epoch, parts, images)
        source = self.source
        files = self._memory.parts.files(epoch)
        remove_others(source.disk, source.path, epoch, files, self._run)
        remove_work(source.disk, source.path, self._run)
        return named

    def note_costs(self, reports: Sequence[ShareReport], seconds: float) -> None:
        """Learn from a job what an event and a job cost."""
        events = sum(report.events for report in reports)
        ran = sum(report.seconds for report in reports)
        longest = max((report.seconds for report in reports), default=0.0)
        at_once = min(self._costs.tasks, max(1, len(reports)))
        each = ran / events if events else None
        # Shares of one task run one after another: only what is beyond that is the job's own.
        job = max(0.0, seconds - max(longest, ran / at_once))
        self._costs = self._costs.noted(each, job)

    def _note(self, plan: BatchPlan, reports: Sequence[ShareReport], beside_jobs: float) -> None:
        """Learn from a batch what it took the driver, but for its jobs."""
        events = sum(one.events for one in reports)
        if not events:
            return
        visits = reports[len(reports) - len(plan.visits) :] if plan.in_driver else []
        if not plan.is_whole:
            ran = sum(one.seconds for one in visits)
            self._costs = self._costs.noted(deal=max(0.0, beside_jobs - ran) / events)
            return
        # Without what it took to have the rows: batches that stay here find them as they were.
        (report,) = reports
        whole = beside_jobs - report.seconds - report.bringing
        self.note_here(report.seconds / events, max(0.0, whole))

    def note_here(self, event: float, beside: float) -> None:
        """Learn what an event of a batch in the driver took, and all else of it."""
        self._costs = self._costs.noted(here=event, whole=beside)

    def explain(self, terms: Terms, events: pa.Table, executor: Executor) -> Figures:
        epoch, transactions = self._memory.epoch, terms.route.transactions
        if any(beyond_shards(one, self._tables) is not None for one in transactions):
            rows = self.worker.rows_of(self.share(epoch, 0, WHOLE))
            self.worker.held.forget()  # rows that events may make are given slots in it
        else:
            arranged = arranger_of(terms, executor.program).arrange(events, None)
            touched = touched_rows(
                arranged.works, arranged.order, self._tables, self._placement, executor.program.pool
            )
            visit = np.zeros(len(arranged.route), np.int64)
            rows = ShardRows(self._tables, transactions)
            for name, found in self._rows(epoch, wanted_rows(touched, visit, arranged.order)):
                rows.put(name, found, epoch)
        return figures_of(terms, events, rows.executor(transactions, updates=False))

    # --- dataflows ----------------------------------------------------------------------------

    def flow_rows(
        self,
        tables: Iterable[Table],
        alone: Sequence[Transaction],
        executors: Callable[..., Executor],
    ) -> FlowRows:
        return FlowRows(self, tables, alone, executors)

    @property
    def costs(self) -> Costs:
        """What was measured of the last epochs."""
        return self._costs

    @property
    def epoch(self) -> int:
        """The engine's epoch."""
        return self._memory.epoch

    def bytes_of(self, tables: Iterable[Table]) -> int:
        """About how many bytes the rows of these tables take in memory."""
        counts = self._memory.counts()
        return sum(row_bytes(len(list(one.schema))) * counts[one.name] for one in tables)

    def note_flow(self, name: str) -> None:
        """A dataflow changed rows of this table: when the next of them is due is not known."""
        self._due.forget(name)

    # --- loading ------------------------------------------------------------------------------

    def load(self, name: str, given: Any, mode: str, commit: CommitPlaced) -> int:
        memory, table = self._memory, self._tables[name]
        # What must hold over several rows is seen where all rows are.
        is_frame = self.tasks.is_frame(given) and not table.constraints and mode != "missing"
        count = memory.counts()[name]
        if mode != "missing" and (memory.is_loaded(name) or count):
            if not is_frame:
                complete = read_rows(table, given)
                check_rows(table, complete)
                if not complete.num_rows:
                    return 0
            if mode == "once" and not memory.is_loaded(name):
                raise made_by_events(name, count)
            return 0
        epoch = memory.epoch + 1
        make_epoch_folder(self.source.disk, self.source.path, epoch)
        reports = self._place_frame(epoch, given, name) if is_frame else (
            self._place(epoch, table, given, mode)
        )  # fmt: skip
        loaded = sum(report.events for report in reports)
        self._due.forget(name)
        if loaded:
            commit(name, self.name_parts(epoch, reports))
        return loaded

    def _place_frame(self, epoch: int, frame: Any, name: str) -> list[ShareReport]:
        return checked(self.tasks.place(frame, self.share(epoch, 0, None), name))

    def _place(self, epoch: int, table: Table, given: Any, mode: str) -> list[ShareReport]:
        """Rows that are in this process, written as a part for each shard."""
        complete = read_rows(table, given)
        if mode == "missing" or table.constraints:
            complete = self._checked_here(epoch, table, complete, mode)
        else:
            check_rows(table, complete)
        return place_rows(self.worker, self.share(epoch, 0, None), table, complete, "driver")

    def _checked_here(self, epoch: int, table: Table, complete: pa.Table, mode: str) -> pa.Table:
        """The rows that are to come, if all rows together are sound then."""
        tables = self.worker.rows_of(self.share(epoch, 0, WHOLE)).tables
        try:
            if mode == "missing":
                complete = absent_rows(tables[table.name], complete)
            fill(tables[table.name], complete, epoch, tables)
        finally:
            self.worker.held.forget()  # its copy has rows that no record names
        return complete

    # --- reading ------------------------------------------------------------------------------

    def row(self, name: str, key: Any) -> dict[str, Any] | None:
        table = self._tables[name]
        keys = key_table(table, key)
        shard = int(shards_of(self._placement, table, keys)[0])
        shard = 0 if shard == EVERYWHERE else shard
        epoch = self._memory.epoch
        self._guard.wait(epoch)  # what is seen is durable
        found = [rows.to_pylist() for _, rows in self._rows(epoch, {shard: {f"0/{name}": keys}})]
        return found[0][0] if found and found[0] else None

    def _rows(
        self, epoch: int, wanted: Mapping[int, Mapping[str, pa.Table]]
    ) -> list[tuple[str, pa.Table]]:
        """Rows of the newest epoch, which their shards hand out: by shard, table and keys."""
        shares = []
        for number, (shard, tables) in enumerate(sorted(wanted.items())):
            asked = {f"{WANTED}/{name}": keys for name, keys in tables.items()}
            given = self.give(epoch, number, asked)
            shares.append(self.share(epoch, number, shard, given=given))
        reports = checked(self.tasks.run(shares)) if shares else []
        read = [self.source.read(one.wanted[0]).tables for one in reports]
        remove_work(self.source.disk, self.source.path, self._run)
        return [pair for tables in read for pair in tables.items()]

    def ask(self, store: StoreReader, query: str, parameters: Parameters, epoch: int) -> pa.Table:
        self._guard.wait(epoch)
        return self.tasks.ask(store, query, parameters, epoch)

    def give(self, epoch: int, number: int, tables: Mapping[str, pa.Table]) -> PartName:
        """Write what a task is to read."""
        source, name = self.source, f"given-{self._run}-{epoch}-{number}"
        return write_part(
            source.disk, source.path, source.lineage, epoch, name, tables, {}, is_kept=False
        )
