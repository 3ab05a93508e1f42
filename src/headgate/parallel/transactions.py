"""Transactions on several threads: whole ones, in the tables themselves.

The plan of a batch is made once, whoever asks for it first: its operations, the graph of who waits
for whom, and the words that a scheme's kernel needs. All but `nolock` only run two transactions at
once when they share no row that one of them may write; so each transaction sees exactly what it
would see in serial order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headgate.execution.run import Run
from headgate.kernels.atomics import QUEUE_SIZE, TAIL, TASK_COUNT
from headgate.parallel.crew import Crew, Words
from headgate.parallel.decision import (
    Decision,
    choose_transactions,
    choose_units,
    is_wide,
    worth_planning,
)
from headgate.parallel.figures import measure_transactions, task_shape
from headgate.parallel.graph import Graph, Operations, build_graph, number_rows
from headgate.parallel.readiness import UNIT_PLAN
from headgate.parallel.scheme import Scheme
from headgate.parallel.units import UnitBatch

if TYPE_CHECKING:
    from headgate.parallel.scheduler import Scheduler

PARTITIONS_PER_THREAD = 8


class TransactionBatch:
    """A batch of whole transactions, planned as far as was asked, and the threads that run it."""

    def __init__(self, scheduler: Scheduler, run: Run, scheme: Scheme) -> None:
        self.scheduler, self.run = scheduler, run
        self.scheme = replace(scheme, threads=min(scheme.threads, len(run.order)))
        self._graph: tuple[Operations, Graph, int] | None = None
        self.units: UnitBatch | None = None  # where the model asked for the graph of operations

    def of(self, run: Run) -> TransactionBatch:
        """The same for another run, such as a part of this one."""
        return TransactionBatch(self.scheduler, run, self.scheme)

    # --- the plan -----------------------------------------------------------------------------

    @property
    def is_planned(self) -> bool:
        return self._graph is not None

    def resolve(self) -> None:
        """Find the slots of every event before anything runs."""
        self.run.program.compiled_kernel.resolve(0, len(self.run.order), self.run.frame.address)

    def operations(self) -> tuple[Operations, int]:
        """What each transaction touches, its rows numbered from 0 on, and how many rows."""
        self.resolve()
        run, room = self.run, self.run.operations_max()
        tables = [run.program.tables[name] for name in run.table_names]
        bases = np.cumsum([0, *(rows.count for rows in tables)])
        starts = np.empty(len(run.order) + 1, np.int64)
        rows, writes = np.empty(room, np.int64), np.empty(room, np.int64)
        frame = run.frame.but({"bases": bases, "starts": starts, "rows": rows, "writes": writes})
        used = self.scheduler.readiness.transaction_kernels["collect"](frame.address)
        operations = Operations(starts, rows[:used], writes[:used])
        return operations, number_rows(operations, run.program.scratch_numbers(int(bases[-1])))

    def graph(self) -> tuple[Operations, Graph, int]:
        """The batch's operations and their graph, built once."""
        if self._graph is None:
            operations, rows = self.operations()
            self._graph = operations, build_graph(operations, rows), rows
        return self._graph

    def decide(self, threads: int) -> Decision:
        """Ask the model, which has graphs built only when they could pay."""
        load, costs = self.scheduler.load_of(self.run, threads), self.scheduler.costs
        early = worth_planning(load, costs)
        if early is not None:
            return early
        operations, graph, rows = self.graph()
        shape, skewed = measure_transactions(operations, graph, rows)
        whole = choose_transactions(load, shape, skewed, costs)
        if is_wide(load, shape):
            return whole
        readiness = self.scheduler.readiness
        if readiness.units_given_up is not None:
            return replace(whole, why=f"{whole.why}; {readiness.units_given_up.why}")
        refusal = readiness.refusal(*UNIT_PLAN)
        if refusal is not None:
            return replace(whole, why=f"{whole.why}; single operations do not compile: {refusal}")
        if self.units is None:
            self.units = self.scheduler.unit_batch(self.run)
        fine, coarse = self.units.tasks("operation"), self.units.tasks("chain")
        cut = choose_units(load, task_shape(fine), task_shape(coarse), coarse.cycles, skewed, costs)
        return cut if cut.ns * costs.speedup_min < whole.ns else whole

    # --- the threads --------------------------------------------------------------------------

    def crew(self) -> Crew:
        """The threads that run it, with the words that the kernel of the scheme needs."""
        crew = Crew(self.run, self.scheme.threads, self.scheduler.is_timed)
        crew.note_changes()
        crew.shared |= _WORDS[self.scheme.kind.needs](self, crew)
        return crew

    def _exploring(self, crew: Crew) -> Words:
        """The graph, and where every thread stands in it."""
        _, graph, _ = self.graph()
        count, waiting = len(self.run.order), np.diff(graph.before_starts)
        first = np.flatnonzero(waiting == 0)
        queue = np.full(count, -1, np.int64)
        queue[: len(first)] = first
        crew.sync[TAIL] = len(first)
        crew.sync[TASK_COUNT] = crew.sync[QUEUE_SIZE] = count
        return {
            "strata": graph.strata, "strata_starts": graph.strata_starts,
            "by_stratum": graph.by_stratum, "claim": np.zeros(count, np.int64),
            "task_before_starts": graph.before_starts, "task_before": graph.before,
            "task_after_starts": graph.after_starts, "task_after": graph.after,
            "waiting": waiting, "queue": queue,
        }  # fmt: skip

    def _locks(self, crew: Crew) -> Words:
        operations, rows = self.operations()
        return {
            "starts": operations.starts, "rows": operations.rows, "writes": operations.writes,
            "locks": np.zeros(rows, np.int64),
        }  # fmt: skip

    def _partitions(self, crew: Crew) -> Words:
        """Each transaction's partitions, each once, with its turn in each of them."""
        operations, _ = self.operations()
        partitions = max(1, PARTITIONS_PER_THREAD * self.scheme.threads)
        unit = np.repeat(np.arange(operations.units), np.diff(operations.starts))
        pairs = np.unique(unit * partitions + operations.rows % partitions)
        parts, units = pairs % partitions, pairs // partitions
        by_part = np.argsort(parts, kind="stable")
        sizes = np.bincount(parts, minlength=partitions)
        tickets = np.empty(len(pairs), np.int64)
        tickets[by_part] = np.arange(len(pairs)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        starts = np.searchsorted(units, np.arange(operations.units + 1))
        counters = np.zeros(partitions, np.int64)
        return {"counters": counters, "starts": starts, "parts": parts, "tickets": tickets}

    def _nothing(self, crew: Crew) -> Words:
        self.resolve()
        return {}


_WORDS = {
    "graph": TransactionBatch._exploring,
    "locks": TransactionBatch._locks,
    "partitions": TransactionBatch._partitions,
    "nothing": TransactionBatch._nothing,
}
