"""The crew: the threads that share the whole transactions of a batch, in the tables themselves.

All but `nolock` only run two transactions at once when they share no row that one of them may
write; so each transaction sees exactly what it would see in serial order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.execution.run import Run
from headgate.kernels import ticks
from headgate.kernels.kernel import compile_first
from headgate.kernels.pointers import address
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
from headgate.parallel.workers import workers

if TYPE_CHECKING:
    from headgate.parallel.scheduler import Scheduler

PARTITIONS_PER_THREAD = 8


class TransactionCrew:
    """The threads of one batch: shared arrays, and for each thread its own undo and changes."""

    def __init__(self, scheduler: Scheduler, run: Run, scheme: Scheme) -> None:
        self.scheduler, self.run = scheduler, run
        self.scheme = replace(scheme, threads=min(scheme.threads, len(run.order)))
        self.kernels = run.program.compiled_kernel.schemes
        self.raised = np.zeros(1, np.int64)
        self.times = np.zeros((max(1, self.scheme.threads), ticks.WORDS), np.int64)
        self.times[:, ticks.IS_ON] = int(scheduler.is_timed)
        self.sync = np.zeros(3, np.int64)
        self.kept: list[np.ndarray] = []  # arrays that live as long as the threads use them
        self.order = run.order
        self._graph: tuple[Operations, Graph, int] | None = None
        self._own: list[dict[str, Any]] = []
        self.batch: UnitBatch | None = None  # where the model asked for the graph of operations

    def of(self, run: Run) -> TransactionCrew:
        """A crew for another run, such as a part of this one."""
        return TransactionCrew(self.scheduler, run, self.scheme)

    @property
    def own(self) -> list[dict[str, Any]]:
        """The arrays of each thread, made when the first one is needed."""
        if not self._own:
            self._own = [self._own_arrays() for _ in range(self.scheme.threads)]
        return self._own

    def _own_arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {"counts": np.zeros_like(self.run.counts)}
        arrays["undo"] = np.empty_like(self.run.arrays["undo"])
        for number, name in enumerate(self.run.table_names):
            rows = self.run.touched(name) + 1
            arrays[f"changed_{number}"] = np.empty(rows, np.int64)
            words = self.run.program.tables[name].layout.words
            arrays[f"images_{number}"] = np.empty(rows * words, np.int64)
        return arrays

    @property
    def is_planned(self) -> bool:
        return self._graph is not None

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
        if self.batch is None:
            self.batch = self.scheduler.unit_batch(self.run)
        fine, coarse = self.batch.tasks("operation"), self.batch.tasks("chain")
        cut = choose_units(load, task_shape(fine), task_shape(coarse), coarse.cycles, skewed, costs)
        return cut if cut.ns * costs.speedup_min < whole.ns else whole

    def graph(self) -> tuple[Operations, Graph, int]:
        """The batch's operations and their graph, built once."""
        if self._graph is None:
            operations, rows = self.operations()
            self._graph = operations, build_graph(operations, rows), rows
        return self._graph

    def _address(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return address(array)

    def work(self, head: Callable[[int], list[int]]) -> None:
        """Let all threads run to the end; `head` gives the first arguments of each."""
        kernel, epoch = self.kernels[self.scheme.name], self.run.epoch
        frames = [
            self.run.frame.but({**own, "raised": self.raised, "times": self.times[n]})
            for n, own in enumerate(self.own)
        ]
        calls = [[*head(n), epoch, frame.address] for n, frame in enumerate(frames)]
        compile_first(kernel)
        workers.run([partial(kernel, *call) for call in calls])

    def arguments(self) -> Callable[[int], list[int]]:
        """The arguments of the scheme's kernel that come before those all share."""
        count, threads = len(self.order), self.scheme.threads
        if self.scheme.name == "nolock":
            self.resolve()
            taken = self._address(np.zeros(1, np.int64))
            return lambda thread: [thread, threads, count, taken]
        if self.scheme.name in ("lal", "pat"):
            operations, rows = self.operations()
            lay = self._lal if self.scheme.name == "lal" else self._pat
            fixed = lay(operations, rows)
        else:
            _, graph, _ = self.graph()
            if self.scheme.name == "ready":
                values = self._ready(graph)
                return lambda thread: values
            fixed = self._strata(graph) if self.scheme.name == "strata" else self._depth(graph)
        return lambda thread: [thread, threads, *fixed]

    def _addresses(self, *arrays: np.ndarray) -> list[int]:
        return [self._address(np.ascontiguousarray(array)) for array in arrays]

    def _strata(self, graph: Graph) -> list[int]:
        starts, units = self._addresses(graph.strata_starts, graph.by_stratum)
        taken = self._address(np.zeros(graph.strata, np.int64))
        return [self._address(self.sync), graph.strata, starts, units, taken]

    def _depth(self, graph: Graph) -> list[int]:
        done = np.zeros(len(self.order), np.int64)
        arrays = (graph.by_stratum, graph.before_starts, graph.before, done)
        return [len(self.order), *self._addresses(*arrays)]

    def _ready(self, graph: Graph) -> list[int]:
        waiting = np.diff(graph.before_starts)
        first = np.flatnonzero(waiting == 0)
        queue = np.full(len(self.order), -1, np.int64)
        queue[: len(first)] = first
        self.sync[1] = len(first)
        arrays = (self.sync, queue, graph.after_starts, graph.after, waiting)
        return [len(self.order), *self._addresses(*arrays)]

    def _lal(self, operations: Operations, rows: int) -> list[int]:
        locks = np.zeros(rows, np.int64)
        arrays = (self.sync, locks, operations.starts, operations.rows, operations.writes)
        return [len(self.order), *self._addresses(*arrays)]

    def _pat(self, operations: Operations, rows: int) -> list[int]:
        """Each transaction's partitions, each once, with its turn in each of them."""
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
        return [len(self.order), *self._addresses(counters, starts, parts, tickets)]

    def resolve(self) -> None:
        """Find the slots of every event before anything runs."""
        self.kernels["resolve"](len(self.order), self.run.frame.address)

    def operations(self) -> tuple[Operations, int]:
        """What each transaction touches, its rows numbered from 0 on, and how many rows."""
        self.resolve()
        count = len(self.order)
        tables = [self.run.program.tables[name] for name in self.run.table_names]
        bases = np.cumsum([0, *(rows.count for rows in tables)])
        room = self.run.operations_max()
        starts = np.empty(count + 1, np.int64)
        found = np.empty(room, np.int64)
        writes = np.empty(room, np.int64)
        arrays = self._addresses(bases, starts, found, writes)
        used = self.kernels["collect"](count, *arrays, self.run.frame.address)
        operations = Operations(starts, found[:used], writes[:used])
        return operations, number_rows(operations, self.run.program.scratch_numbers(int(bases[-1])))

    def put_back(self) -> None:
        """Make every row what it was before the batch."""
        for own in self.own:
            for number, name in enumerate(self.run.table_names):
                rows = self.run.program.tables[name]
                count = int(own["counts"][2 * number])
                slots = own[f"changed_{number}"][:count]
                images = own[f"images_{number}"][: count * rows.layout.words]
                rows.words[slots] = images.reshape(count, rows.layout.words)

    def collect(self) -> None:
        """Hand what the threads found to the run, as if one had done it all."""
        run = self.run
        run.outcome[:] = run.reason != 0
        for number in range(len(run.table_names)):
            parts = [own[f"changed_{number}"][: int(own["counts"][2 * number])] for own in self.own]
            merged = self._merged(parts)
            run.arrays[f"changed_{number}"][: len(merged)] = merged
            run.counts[2 * number] = len(merged)
            run.counts[2 * number + 1] = max(int(own["counts"][2 * number + 1]) for own in self.own)

    def _merged(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        merged = np.concatenate(parts)
        # Without isolation two threads may both think that they changed a row first.
        return np.unique(merged) if self.scheme.name == "nolock" else merged
