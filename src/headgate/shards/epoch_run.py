"""Epoch runs: one batch on its way to the shards and back.

Each share is given its events, in the serial order, and what it is to hand out; those that visit
run when the rows that they need were handed out. What comes back is put in the order of the batch.
Invariant: each event that runs is in one share, and has one result.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.durability.part_file import make_epoch_folder, write_part
from headgate.engine.ordering import Arranged
from headgate.engine.periodic import END, START
from headgate.engine.terms import Terms
from headgate.errors import StoreError, check_invariant
from headgate.execution.program import Program
from headgate.isolation.levels import Execution
from headgate.parallel.decision import Decision
from headgate.shards.placement import shards_of
from headgate.shards.planning import BatchPlan
from headgate.shards.share import (
    EVENTS,
    MOMENT,
    RESULTS,
    ROUTE,
    WANTED,
    WHOLE,
    BatchShare,
    ShareReport,
    ShareWorker,
    StreamWords,
    Timing,
)
from headgate.shards.warm import ROWS
from headgate.state.fitting import one_array
from headgate.state.table import Table

if TYPE_CHECKING:
    from headgate.shards.sharding import Sharding


class EpochRun:
    """One batch on its way to the shards and back."""

    def __init__(
        self,
        sharding: Sharding,
        terms: Terms,
        arranged: Arranged,
        plan: BatchPlan,
        epoch: int,
        timing: Timing | None,
        due: Iterable[int],
    ) -> None:
        self._sharding, self._arranged, self._plan, self._epoch = sharding, arranged, plan, epoch
        self._words, self._terms = StreamWords.of(terms), terms
        self._columns = self._words.terms(sharding.worker.code.transactions).columns
        self._columns += [START, END] if self._words.ticks else []
        self._timing, self._is_due = timing, frozenset(due)
        # Those that have events or hand out rows, and those where rows may be due.
        self.shards = [] if plan.is_whole else sorted({*plan.shards, *self._is_due})
        self.job_seconds = 0.0

    @property
    def decision(self) -> Decision:
        """What was chosen, and why; shards where nothing but time passes are told, too."""
        decision, more = self._plan.decision, len(self.shards) - len(self._plan.shards)
        if not self.shards or not more:
            return decision
        others = f"{more} other shard{'s' * (more > 1)}"
        return replace(decision, why=f"{decision.why}; rows may be due on {others}")

    def run(self) -> list[tuple[np.ndarray, ShareReport]]:
        """Run all shares; the event rows of each, and what it reported."""
        sharding, plan = self._sharding, self._plan
        make_epoch_folder(sharding.source.disk, sharding.source.path, self._epoch)
        if plan.is_whole:
            return [(self._arranged.order, self._whole())]
        nothing = np.zeros(0, np.int64)
        rows = [plan.homes.get(shard, nothing) for shard in self.shards]
        shares = [
            self._home(number, shard, rows[number]) for number, shard in enumerate(self.shards)
        ]
        reports = self._job(shares) if shares else []
        found = list(zip(rows, reports, strict=True))
        visits = [self._visit(len(shares) + number, number, reports) for number in plan.visits]
        if plan.in_driver:
            reports = checked([sharding.worker.run(share, "driver") for share in visits])
        else:
            reports = self._job(visits) if visits else []
        return found + list(zip(plan.visits.values(), reports, strict=True))

    def _whole(self) -> ShareReport:
        """Run all events in this process, over the rows of all shards."""
        share = self._sharding.share(self._epoch, 0, WHOLE, words=self._words, timing=self._timing)
        given = self._events(self._arranged.order, is_due=True)
        return checked([self._sharding.worker.run(share, "driver", given)])[0]

    def _job(self, shares: Sequence[BatchShare]) -> list[ShareReport]:
        began = time.perf_counter()
        reports = checked(self._sharding.tasks.run(shares))
        seconds = time.perf_counter() - began
        self.job_seconds += seconds
        self._sharding.note_costs(reports, seconds)
        return reports

    def _events(self, rows: np.ndarray, *, is_due: bool = False) -> dict[str, pa.Table]:
        """The events of a share; where it has none but rows that are due, a table of none."""
        if not (len(rows) or is_due):
            return {}
        events = self._arranged.events.select(self._columns)
        as_they_came = self._arranged.is_whole and len(rows) == events.num_rows
        given = events if as_they_came else events.take(rows)
        if self._words.ticks:
            given = given.append_column(ROUTE, pa.array(self._arranged.route[rows]))
        moments = None if self._timing is None else self._arranged.moments
        if moments is not None:
            late = np.zeros(events.num_rows, np.int64)
            late[self._arranged.order] = moments
            given = given.append_column(MOMENT, pa.array(late[rows]))
        return {EVENTS: given}

    def _home(self, number: int, shard: int, rows: np.ndarray) -> BatchShare:
        wanted = self._plan.wanted.get(shard, {})
        tables = {f"{WANTED}/{name}": keys for name, keys in wanted.items()}
        events = self._events(rows, is_due=shard in self._is_due)
        given = self._sharding.give(self._epoch, number, {**events, **tables})
        return self._sharding.share(
            self._epoch, number, shard, words=self._words, given=given, timing=self._timing
        )

    def _visit(self, share: int, number: int, reports: Sequence[ShareReport]) -> BatchShare:
        rows = tuple(one.wanted[number] for one in reports if number in one.wanted)
        given = self._sharding.give(self._epoch, share, self._events(self._plan.visits[number]))
        return self._sharding.share(
            self._epoch, share, None, words=self._words, given=given, rows=rows,
            timing=self._timing,
        )  # fmt: skip

    def gathered(
        self, program: Program, reports: Sequence[tuple[np.ndarray, ShareReport]]
    ) -> Execution:
        """What all shares gave, by position."""
        order, events = self._arranged.order, len(self._arranged.route)
        ran = [(rows, report) for rows, report in reports if len(rows)]
        together = np.concatenate([*(rows for rows, _ in ran), np.zeros(0, np.int64)])
        check_invariant(len(together) == len(order), "an event ran in no share, or in two")
        places = np.full(events, -1, np.int64)
        places[together] = np.arange(len(together))
        # Position -> place among the results of all shares; of one share they are in order.
        back = slice(None) if len(ran) == 1 else places[order]
        results = [self._results(report) for _, report in ran]
        if not results:
            return replace(self._nothing(program), **_swept(reports))
        found = pa.concat_tables(results, promote_options="default").combine_chunks()
        outcome, reason = _codes(results, program)
        made = {
            name: self._with_aside(_in_order(one_array(found.column(name)), back))
            for name in (*self._terms.outputs, *self._terms.updated)
        }
        fixed = program.fixed_reasons
        return Execution(outcome[back], reason[back], fixed, {}, {}, made=made, **_swept(reports))

    def _results(self, report: ShareReport) -> pa.Table:
        if report.table is not None:
            return report.table
        if report.results is None:
            raise StoreError("a task reported no results")
        return self._sharding.source.read(report.results).tables[RESULTS]

    def _with_aside(self, array: pa.Array) -> pa.Array:
        """Events that did not run have no output."""
        aside = len(self._arranged.aside)
        return pa.concat_arrays([array, pa.nulls(aside, array.type)]) if aside else array

    def _nothing(self, program: Program) -> Execution:
        """No event ran."""
        columns = {**self._terms.outputs, **self._terms.updated}
        aside = len(self._arranged.aside)
        made = {name: pa.nulls(aside, one.type.arrow) for name, one in columns.items()}
        none = np.zeros(0, np.int64)
        return Execution(none.astype(np.int8), none, program.fixed_reasons, {}, {}, made=made)


def _swept(reports: Sequence[tuple[np.ndarray, ShareReport]]) -> dict[str, Any]:
    """How many rows went because their time came, and how many stay, in all shares together."""
    expired, overdue = Counter[str](), Counter[str]()
    for _, report in reports:
        for total, found in ((expired, report.expired), (overdue, report.overdue)):
            for name, count in found.items():
                total[name] += count
    return {"expired": expired, "overdue": overdue}


def _in_order(array: pa.Array, back: np.ndarray | slice) -> pa.Array:
    return array if isinstance(back, slice) else array.take(pa.array(back))


def _codes(results: Sequence[pa.Table], program: Program) -> tuple[np.ndarray, np.ndarray]:
    """The outcomes and reasons of results, one table after another, as codes of this program."""
    outcomes, reasons = [], []
    fixed = {text: -1 - number for number, text in enumerate(program.fixed_reasons)}
    for table in results:
        words = one_array(table.column("reason"))
        outcomes.append(one_array(table.column("outcome")).indices.to_numpy().astype(np.int8))
        texts = words.dictionary.to_pylist()
        others = [text for text in texts if text not in fixed]
        with program.lock:
            codes = program.pool.intern(pa.array(others, pa.string())).tolist()
        known = {**dict(zip(others, codes, strict=True)), **fixed}
        numbers = np.array([*(known[text] for text in texts), 0], np.int64)
        places = words.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        reasons.append(numbers[places.astype(np.int64)])
    return np.concatenate(outcomes), np.concatenate(reasons)


def checked(reports: list[ShareReport]) -> list[ShareReport]:
    """The reports; the first error among them is raised as if it had happened here."""
    for report in reports:
        if report.error is not None:
            raise report.error
    return reports


# --- placing --------------------------------------------------------------------------------------
# Rows that a user hands in, as parts of the shards that they belong to.
#
# Invariant: a row is written to the part of the shard that its key says, and to no other.


def place_rows(
    worker: ShareWorker, share: BatchShare, table: Table, rows: pa.Table, attempt: str
) -> list[ShareReport]:
    """Write new rows of a table as parts, one for each shard that gets any."""
    shards, reports = shards_of(worker.placement, table, rows), []
    for shard in np.unique(shards).tolist():
        part = worker.placement.part(shard)
        mine = rows.filter(pa.array(shards == shard))
        name = write_part(
            worker.disk, share.path, share.lineage, share.epoch,
            f"{part:05d}-{share.run}-{share.epoch}-{share.number}-{attempt}.part",
            {f"{ROWS}/{part}/{table.name}": mine}, {"shard": part},
        )  # fmt: skip
        grown = {part: {table.name: mine.num_rows}}
        reports.append(ShareReport(share.number, name, grown=grown, events=mine.num_rows))
    return reports
