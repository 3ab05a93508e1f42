"""Rows of dataflows: those of the tables that its nodes name, in the driver, beside their shards.

A procedure sees whole tables as they are at its turn, so its rows come to it: the driver keeps a
copy of the tables that dataflows name, and of those that constraints bind to them, and brings it to
the epoch before by the parts that were named since. Executions change it in place, and what an
epoch changed is a part, which the one record of the log names with results, streams and windows.
A transaction that is in no nest needs no copy: its events may run where their rows are, as all that
an epoch does, because its rows are too many for the driver or its function is dear.

Invariant: a copy that holds more than the engine's epoch holds what the epoch under way did, and
nothing else; what the log never named is undone, or the engine is stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.durability.part_file import make_epoch_folder
from headgate.engine.ordering import arranger_of
from headgate.engine.results import build_results, event_rows
from headgate.engine.terms import Terms
from headgate.errors import DeclarationError, StoreError, check_invariant
from headgate.isolation.levels import Executor
from headgate.parallel.decision import Decision
from headgate.shards.epoch_run import checked
from headgate.shards.placement import beyond_shards
from headgate.shards.share import (
    IMAGE_BYTES_MIN,
    WHOLE,
    WHOLE_IMAGE_SHARE,
    BatchShare,
    ShareReport,
    StreamWords,
    Task,
    bytes_behind,
)
from headgate.shards.warm import ShardRows, bring
from headgate.state.row_history import ENDING
from headgate.state.rows import TableRows
from headgate.state.spaces import EventRows, Slots
from headgate.state.table import Table
from headgate.transactions import Transaction

if TYPE_CHECKING:
    from headgate.shards.sharding import Sharding

LOG = logging.getLogger("headgate.store")
FLOW_BYTES_MAX = 1 << 30  # of rows that the driver has for its dataflows
JOB_SECONDS = 0.1  # of a job of tasks, before one was measured
_NO_EVENTS = StreamWords((), (), None, False)


class FlowRows:
    """The rows that the dataflows of an engine with shards run over."""

    is_by_key = True

    def __init__(
        self,
        sharding: Sharding,
        bound: Iterable[Table],
        alone: Sequence[Transaction],
        executors: Callable[..., Executor],
    ) -> None:
        self._sharding, self._executors = sharding, executors
        self._bound_names, self._alone = [table.name for table in bound], alone
        self._rows: ShardRows | None = None
        self._epoch: int | None = None  # that the copy was brought to
        self._sized: tuple[int, tuple[int, int]] | None = None
        self._asked: dict[int, int] = {}  # by part of rows: behind so much an image is asked for
        self._named: dict[str, pa.RecordBatch] = {}  # by what ran where its rows are
        self.has_left = False

    # --- which tables are here ----------------------------------------------------------------

    @cached_property
    def _bound(self) -> dict[str, Table]:
        """The tables that must be here."""
        staying = [one for one in self._alone if not self._may_leave(one)]
        return self._with_others([*self._bound_names, *_names(staying)])

    @cached_property
    def _all(self) -> dict[str, Table]:
        """The tables that are here if they fit."""
        return self._with_others([*self._bound, *_names(self._alone)])

    def _with_others(self, names: Iterable[str]) -> dict[str, Table]:
        """Tables by their names, with those that constraints bind to them, and versions."""
        known, left, found = self._sharding.tables, [*names], set[str]()
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += [one.parent for one in known[name].references]
                left += [] if known[name].history is None else [name + ENDING]
                for other in known.values():
                    left += [other.name for one in other.references if one.parent == name]
        return {name: table for name, table in known.items() if name in found}

    def _may_leave(self, transaction: Transaction) -> bool:
        """Whether events of a transaction may run where their rows are."""
        is_timed = any(table.expires is not None for table in transaction.signature.tables)
        return not is_timed and beyond_shards(transaction, self._sharding.tables) is None

    @property
    def _sizes(self) -> tuple[int, int]:
        """About how many bytes all tables take, and those that must be here, at this epoch."""
        epoch = self._sharding.epoch
        if self._sized is None or self._sized[0] != epoch:
            every, bound = (
                self._sharding.bytes_of(one.values()) for one in (self._all, self._bound)
            )
            self._sized = epoch, (every, bound)
        return self._sized[1]

    def _fitting(self) -> dict[str, Table]:
        """The tables that are here now: all of them, or those that must be."""
        for tables, size in zip((self._all, self._bound), self._sizes, strict=True):
            if size <= FLOW_BYTES_MAX:
                return tables
        names, size = ", ".join(self._bound), self._sizes[1] >> 20
        raise DeclarationError(
            f"the tables that procedures and nests of the dataflows name ({names}) take about "
            f"{size:,} MiB in the driver, where {FLOW_BYTES_MAX >> 20:,} MiB of them may "
            "be: have them name smaller tables, let a transaction that is in no nest write the "
            "large ones, or have the store in one process: headgate reshard STORE --shards 0"
        )

    @property
    def _made(self) -> ShardRows:
        """The copy, as far as it was brought; made anew when other tables are to be in it."""
        if self._rows is None or self._epoch != self._sharding.epoch:
            tables = self._fitting()
            if self._rows is None or self._rows.tables.keys() != tables.keys():
                known = self._sharding.worker.code.transactions.values()
                mine = [one for one in known if {*_names([one])} <= tables.keys()]
                self._rows, self._epoch = ShardRows(tables, mine), None
        return self._rows

    @property
    def tables(self) -> Mapping[str, TableRows]:
        rows, epoch = self._made, self._sharding.epoch
        if self._epoch != epoch:
            self._epoch = None
            bring(rows, self._sharding.source, self._share(epoch).histories)
            self._epoch = epoch
        return rows.tables

    def ready(self, tables: Iterable[Table], alone: Transaction | None) -> None:
        if alone is None or not self._is_away(alone):
            _ = self.tables

    def _is_away(self, transaction: Transaction) -> bool:
        """Whether rows of a transaction are too many to be here."""
        if not self._may_leave(transaction):
            return False
        is_bound = {*_names([transaction])} <= self._bound.keys()
        return not is_bound and self._sizes[0] > FLOW_BYTES_MAX

    def executor(self, transactions: Sequence[Transaction], updates: bool = False) -> Executor:
        return self._made.executor(transactions, updates=updates)

    def _share(self, epoch: int) -> BatchShare:
        return self._sharding.share(epoch, 0, WHOLE)

    # --- where events run ---------------------------------------------------------------------

    def leaves(self, transaction: Transaction, rows: int, seconds_each: float | None) -> bool:
        if not rows or not self._may_leave(transaction):
            return False
        if self._is_away(transaction):
            return True
        costs = self._sharding.costs
        each = seconds_each or 0.0
        event = each if costs.event is None else min(each, costs.event)
        job = JOB_SECONDS if costs.job is None else costs.job
        here, there = event * rows, job + rows * (event / costs.tasks + (costs.deal or 0.0))
        if there < 0.95 * here:
            return True
        why = (
            f"{rows:,} events of {transaction.name!r} run in the driver, over its copy of the "
            f"rows: they take {here * 1e3:.0f} ms there, and executors about {there * 1e3:.0f}"
        )
        self._executors((transaction,), False).decisions.append(Decision("driver", why))
        return False

    def run_there(
        self, terms: Terms, events: pa.Table, numbers: np.ndarray
    ) -> tuple[pa.RecordBatch, EventRows]:
        executor = self._executors(terms.route.transactions, terms.updates)
        program = executor.program
        program.compile()
        arranged = arranger_of(terms, program).arrange(events, None)
        order = arranged.order[np.argsort(numbers[arranged.order], kind="stable")]
        is_whole = np.array_equal(order, np.arange(events.num_rows))
        arranged = replace(arranged, order=order, is_whole=is_whole, moments=None)
        epoch = self._sharding.epoch + 1
        execution = self._sharding.execute(terms, arranged, executor, epoch, {})
        results, _ = build_results(terms, arranged, execution, program)
        self._named, self.has_left = dict(execution.named), True
        return results, event_rows(arranged)

    # --- what an epoch did --------------------------------------------------------------------

    def hand_over(self, epoch: int, changed: Mapping[str, Slots]) -> dict[str, pa.RecordBatch]:
        named, has_left = self._named, self.has_left
        self._named, self.has_left = {}, False
        if has_left or self._rows is None:
            check_invariant(not changed, "an epoch changed rows in two places")
            return named
        return self._handed_over(self._rows, epoch, changed)

    def _handed_over(
        self, rows: ShardRows, epoch: int, changed: Mapping[str, Slots]
    ) -> dict[str, pa.RecordBatch]:
        sharding, source = self._sharding, self._sharding.source
        make_epoch_folder(source.disk, source.path, epoch)
        share = self._share(epoch)
        task = Task(sharding.worker, share, rows, "flow", source)
        part, grown = task.keep(changed)
        rows.settle()
        for name in changed:
            if rows.tables[name].table.expires is not None:
                sharding.note_flow(name)
        report = ShareReport(0, part, grown=grown)
        return sharding.name_parts(epoch, [report, *self._images(share)])

    def _images(self, share: BatchShare) -> list[ShareReport]:
        """Ask shards for an image of all their rows where much was committed since the last one:
        batches that run on executors have them made as they go, and there may be none.

        Who says that its rows are more is asked again when it is twice as much.
        """
        count, asked = self._sharding.worker.placement.count, list[int]()
        for part, history in share.histories.items():
            behind = bytes_behind(history, count)
            if behind >= self._asked.setdefault(part, WHOLE_IMAGE_SHARE * IMAGE_BYTES_MIN):
                self._asked[part] = 2 * behind
                asked.append(part if part < count else 0)  # the first one has those of all
        shares = [
            self._sharding.share(share.epoch, 1 + number, shard, words=_NO_EVENTS)
            for number, shard in enumerate(sorted({*asked}))
        ]
        try:
            reports = checked(self._sharding.tasks.run(shares)) if shares else []
        except StoreError as error:  # the epoch needs no task, and images may come later
            LOG.warning("no image was made: %s", error)
            return []
        for report in reports:
            for part in report.images:
                self._asked.pop(part, None)
        return reports


def _names(transactions: Iterable[Transaction]) -> list[str]:
    return [table.name for one in transactions for table in one.signature.tables]
