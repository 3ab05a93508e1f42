"""Schemes: how the threads of an engine share a batch, each giving what the serial one gives.

All but `nolock` only run two transactions at once when they share no row that one of them may
write; so each transaction sees exactly what it would see in serial order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.errors import InputError
from headgate.planning.figures import Figures, measure
from headgate.planning.graph import Graph, Operations, build_graph, number_rows
from headgate.scheduling.decision import Decision, Thresholds, choose, worth_planning

if TYPE_CHECKING:
    from headgate.execution.program import Run

SCHEME_NAMES = {
    "auto": "what the decision model chooses for each batch (the default)",
    "serial": "one thread, event after event; no graph",
    "strata": "the graph breadth first: stratum after stratum with a barrier",
    "depth": "the graph depth first: each thread its share, waiting for its own dependencies",
    "ready": "the graph non-structured: whoever is free takes what is ready",
    "lal": "lock-ahead two-phase locking (for comparison)",
    "pat": "a counter for each partition of the rows, S-Store's way (for comparison)",
    "nolock": "no order and no isolation: a bound for speed, INCORRECT on purpose",
}
PARTITIONS_PER_THREAD = 8


@dataclass(frozen=True)
class Scheme:
    """The name of a scheme and the number of threads it may use."""

    name: str
    threads: int


SERIAL = Scheme("serial", 1)


def make_scheme(name: str, threads: int | None) -> Scheme:
    """Check the words of `run` and `sink`."""
    if name == "serial":
        return SERIAL
    if name not in SCHEME_NAMES:
        known = "; ".join(f"{known}: {what}" for known, what in SCHEME_NAMES.items())
        raise InputError(f"scheme {name!r} is unknown; the schemes are: {known}")
    count = threads if threads is not None else len(os.sched_getaffinity(0))
    if count < 1:
        raise InputError(f"threads is {threads}; it must be at least 1")
    return Scheme(name, count)


def run_parallel(run: Run, scheme: Scheme) -> bool:
    """Run the batch by this scheme; False when it was put back and must be run serially."""
    if run.program.compiled_count < len(run.program.signatures) or not len(run.order):
        return False
    crew = _Crew(run, scheme)
    if scheme.name == "auto":
        decision = crew.decide(run.program.cost_ns)
        run.program.decisions.append(decision)
        if decision.scheme == "serial":
            return False
        crew.scheme = replace(crew.scheme, name=decision.scheme)
    crew.work()
    if crew.raised[0]:
        crew.put_back()
        return False
    crew.collect()
    return True


def explain(run: Run) -> Figures:
    """The figures of a batch's graph; nothing runs."""
    if not len(run.order):
        return Figures(0, 0, 0, 0, 0, 0, 0, 0.0, 1.0)
    return measure(*_Crew(run, SERIAL).graph())


class _Crew:
    """The threads of one batch: shared arrays, and for each thread its own undo and changes."""

    def __init__(self, run: Run, scheme: Scheme) -> None:
        self.run = run
        self.scheme = replace(scheme, threads=min(scheme.threads, len(run.order)))
        kernel = run.program.kernel
        if kernel is None:
            raise InputError("a parallel scheme needs compiled transactions")
        self.kernels = kernel.schemes
        self.raised = np.zeros(1, np.int64)
        self.sync = np.zeros(2, np.int64)
        self.kept: list[np.ndarray] = []  # arrays that live as long as the threads use them
        self.route = np.ascontiguousarray(run.route)
        self.order = np.ascontiguousarray(run.order)
        self._graph: tuple[Operations, Graph, int] | None = None
        self._own: list[dict[str, Any]] = []

    @property
    def own(self) -> list[dict[str, Any]]:
        """The arrays of each thread, made when the first one is needed."""
        if not self._own:
            self._own = [self._own_arrays() for _ in range(self.scheme.threads)]
        return self._own

    def _own_arrays(self) -> dict[str, Any]:
        arrays = dict(self.run.arrays)
        arrays["counts"] = np.zeros_like(self.run.counts)
        arrays["undo"] = np.empty_like(arrays["undo"])
        for number, name in enumerate(self.run.table_names):
            rows = self.run.touched(name) + 1
            arrays[f"changed_{number}"] = np.empty(rows, np.int64)
            words = self.run.program.tables[name].layout.words
            arrays[f"images_{number}"] = np.empty(rows * words, np.int64)
        return arrays

    def decide(self, cost_ns: float | None) -> Decision:
        """Ask the model, which builds the graph only when that could pay."""
        count, threads = len(self.order), self.scheme.threads
        costs = Thresholds()
        early = worth_planning(count, self.run.operations_max(), cost_ns, threads, costs)
        if early is not None or cost_ns is None:
            return early or Decision("serial", "no cost known")
        operations, graph, rows = self.graph()
        return choose(measure(operations, graph, rows), cost_ns, threads, costs)

    def graph(self) -> tuple[Operations, Graph, int]:
        """The batch's operations and their graph, built once."""
        if self._graph is None:
            operations, rows = self.operations()
            self._graph = operations, build_graph(operations, rows), rows
        return self._graph

    def _address(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return int(array.__array_interface__["data"][0])

    def work(self) -> None:
        """Plan what the scheme needs, then let all threads run to the end."""
        head = self._arguments()
        shared = [
            self.run.epoch,
            self._address(self.order),
            self._address(self.route),
            self._address(self.run.reason),
            self._address(self.raised),
        ]
        kernel = self.kernels[self.scheme.name]
        tasks = [
            (kernel, [*head(thread), *shared, *self.run.addresses(own)])
            for thread, own in enumerate(self.own)
        ]
        if len(tasks) == 1:
            tasks[0][0](*tasks[0][1])
            return
        with ThreadPoolExecutor(len(tasks), thread_name_prefix="headgate-crew") as pool:
            for done in [pool.submit(kernel, *arguments) for kernel, arguments in tasks]:
                done.result()

    def _arguments(self) -> Callable[[int], list[int]]:
        """The arguments of the scheme's kernel that come before those all share."""
        count, threads = len(self.order), self.scheme.threads
        if self.scheme.name == "nolock":
            self._resolve()
            return lambda thread: [thread, threads, count]
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
        return [self._address(self.sync), graph.strata, starts, units]

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

    def _resolve(self) -> None:
        """Find the slots of every event before anything runs."""
        arguments = self.run.addresses(self.run.arrays)
        order, route = self._addresses(self.order, self.route)
        self.kernels["resolve"](len(self.order), order, route, *arguments)

    def operations(self) -> tuple[Operations, int]:
        """What each transaction touches, its rows numbered from 0 on, and how many rows."""
        self._resolve()
        count = len(self.order)
        tables = [self.run.program.tables[name] for name in self.run.table_names]
        bases = np.cumsum([0, *(rows.count for rows in tables)])
        room = self.run.operations_max()
        starts = np.empty(count + 1, np.int64)
        found = np.empty(room, np.int64)
        writes = np.empty(room, np.int64)
        order, route, *arrays = self._addresses(
            self.order, self.route, bases, starts, found, writes
        )
        arguments = self.run.addresses(self.run.arrays)
        used = self.kernels["collect"](count, order, route, *arrays, *arguments)
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
