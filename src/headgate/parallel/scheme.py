"""Schemes: how the threads of an engine share a batch, each giving what the serial one gives.

All but `nolock` only run two transactions at once when they share no row that one of them may
write; so each transaction sees exactly what it would see in serial order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.errors import InputError
from headgate.io import RealClock
from headgate.kernels import ticks
from headgate.kernels.kernel import compile_first
from headgate.kernels.pointers import address
from headgate.parallel.decision import (
    Decision,
    Load,
    choose_transactions,
    choose_units,
    is_wide,
    worth_planning,
)
from headgate.parallel.figures import Figures, measure, measure_transactions, task_shape
from headgate.parallel.graph import Graph, Operations, build_graph, number_rows
from headgate.parallel.nesting import nest
from headgate.parallel.readiness import PLAN, UNIT_PLAN
from headgate.parallel.sections import cut, run_in_turn
from headgate.parallel.units import UnitBatch, UnitCrew
from headgate.parallel.workers import workers

if TYPE_CHECKING:
    from headgate.execution.run import Run

SCHEME_NAMES = {
    "auto": "what the decision model chooses for each batch (the default)",
    "serial": "one thread, event after event; no graph",
    "strata": "the graph breadth first: stratum after stratum with a barrier",
    "depth": "the graph depth first: each thread its share, waiting for its own dependencies",
    "ready": "the graph non-structured: whoever is free takes what is ready",
    "tstream": "operation chains, threads going round them; -nothing, -socket or -everything says "
    "who shares a pool of them, -static that it is shared out beforehand (for comparison)",
    "lal": "lock-ahead two-phase locking (for comparison)",
    "lwm": "low water marks over versions (for comparison)",
    "pat": "a counter for each partition of the rows, S-Store's way (for comparison)",
    "nolock": "no order and no isolation: a bound for speed, INCORRECT on purpose",
}
EXPLORATIONS = ("strata", "depth", "ready")
GRANULARITIES = ("transaction", "operation", "chain")
ABORTS = ("eager", "lazy")
POOLS = ("everything", "nothing", "socket")
PARTITIONS_PER_THREAD = 8


@dataclass(frozen=True)
class Scheme:
    """How a batch is run: the scheme, its dimensions, and the threads it may use."""

    name: str
    threads: int
    granularity: str = "transaction"  # strata, depth and ready: what is scheduled at once
    abort: str = "eager"  # of operations and chains: settle at once, or when all has run
    pool: str = "everything"  # tstream: who shares a pool of chains
    stealing: bool = True  # tstream: take chains freely, or have them shared out

    @property
    def by_units(self) -> bool:
        """Whether it runs over versions of rows, and not in the tables themselves."""
        return self.name in ("tstream", "lwm") or self.granularity != "transaction"

    def __str__(self) -> str:
        words = [self.name]
        if self.name in EXPLORATIONS and self.granularity != "transaction":
            words += [self.granularity, self.abort]
        if self.name == "tstream":
            words += [self.pool] if self.stealing else [self.pool, "static"]
        return "-".join(words)


SERIAL = Scheme("serial", 1)


# What may follow the name of a scheme, each behind a hyphen.
VARIANTS = (
    f"{', '.join(EXPLORATIONS)} take one of {', '.join(GRANULARITIES)} and one of "
    f"{', '.join(ABORTS)}, each behind a hyphen; tstream takes one of {', '.join(POOLS)} and static"
)


def make_scheme(text: str, threads: int | None) -> Scheme:
    """Read the words of `run` and `sink`: "ready", "strata-chain-lazy", "tstream-nothing"."""
    if text == "serial":
        return SERIAL
    name, *words = text.split("-")
    if name not in SCHEME_NAMES:
        known = "; ".join(f"{known}: {what}" for known, what in SCHEME_NAMES.items())
        raise InputError(f"scheme {text!r} is unknown; the schemes are: {known}")
    count = threads if threads is not None else len(os.sched_getaffinity(0))
    if count < 1:
        raise InputError(f"threads is {threads}; it must be at least 1")
    scheme = Scheme(name, count)
    for word in words:
        if name in EXPLORATIONS and word in GRANULARITIES:
            scheme = replace(scheme, granularity=word)
        elif name in EXPLORATIONS and word in ABORTS:
            scheme = replace(scheme, abort=word)
        elif name == "tstream" and word in POOLS:
            scheme = replace(scheme, pool=word)
        elif name == "tstream" and word == "static":
            scheme = replace(scheme, stealing=False)
        else:
            raise InputError(f"scheme {text!r}: {word!r} does not go with {name!r}; {VARIANTS}")
    return scheme


def run_parallel(run: Run, scheme: Scheme) -> bool:
    """Run the batch by this scheme; False when it was put back and must be run serially."""
    if run.program.compiled_count < len(run.program.signatures) or not len(run.order):
        return False
    if scheme.name == "auto":
        early = worth_planning(load_of(run, scheme.threads), run.program.costs)
        early = early or run.program.readiness.whole_given_up
        early = early or run.program.readiness.serial("the graph of transactions", *PLAN)
    else:
        early = run.program.readiness.decision(scheme)
    if early is not None:
        run.program.decisions.append(early)
        return False
    sections = cut(run)
    if len(sections) == 1:
        return _run_section(run, scheme)
    run_in_turn(run, sections, partial(_run_section, scheme=scheme))
    return True


def _run_section(run: Run, scheme: Scheme) -> bool:
    """The same for a batch, or a section of one, that is planned as a whole."""
    if scheme.name == "auto":
        return _run_decided(run, scheme)
    done = _run_units(run, scheme) if scheme.by_units else _run_transactions(_Crew(run, scheme))
    if not done:
        why = f"{scheme} could not finish the batch: a function raised, or too much was undone"
        run.program.decisions.append(Decision("serial", why))
    return done


def _run_decided(run: Run, scheme: Scheme) -> bool:
    """Ask the model and do as it says, for the whole batch or for groups that share no row."""
    given_up = run.program.readiness.whole_given_up  # maybe by the section before
    if given_up is not None:
        run.program.decisions.append(given_up)
        return False
    crew, load = _Crew(run, scheme), load_of(run, scheme.threads)
    decision = crew.decide(scheme.threads)
    if run.whole is not None:
        decision = replace(decision, why=f"a section of the batch: {decision.why}")
    if decision.scheme != "serial" or crew.is_planned:
        nested = nest(run, crew, decision, load.serial_ns) if not run.is_part else None
        if nested is not None:
            run.program.decisions.extend(nested.decisions)
            nested.work(run_as_decided)
            return True
    run.program.decisions.append(decision)
    return run_as_decided(run, crew, decision)


def run_as_decided(run: Run, crew: _Crew, decision: Decision) -> bool:
    """Run the batch of a crew by the scheme that was decided on; False when it must be serial."""
    if decision.scheme == "serial":
        return False
    chosen = make_scheme(decision.scheme, crew.scheme.threads)
    refused = run.program.readiness.given_up(chosen)
    if refused is not None:
        run.program.decisions.append(refused)
        return False
    if chosen.by_units:
        return _run_units(run, chosen, crew.batch)
    crew.scheme = replace(crew.scheme, name=chosen.name)
    return _run_transactions(crew)


def _run_transactions(crew: _Crew) -> bool:
    """Run whole transactions in the tables; False when they were put back as they were."""
    clock = RealClock()
    began = clock.monotonic()
    head = crew._arguments()
    planned = clock.monotonic()
    crew.work(head)
    program = crew.run.program
    if program.is_timed:
        lasted = clock.monotonic() - planned
        program.note_breakdown(ticks.breakdown(crew.times, planned - began, lasted))
    if crew.raised[0]:
        crew.put_back()
        return False
    crew.collect()
    return True


def _run_units(run: Run, scheme: Scheme, batch: UnitBatch | None = None) -> bool:
    """Run the batch by operations over versions; False when it must be run serially."""
    clock = RealClock()
    began = clock.monotonic()
    if batch is None:
        _Crew(run, scheme)._resolve()
        batch = UnitBatch(run, scheme.name == "lwm", run.scratch)
    crew = UnitCrew(batch, scheme)
    planned = clock.monotonic()
    if not crew.work():
        return False
    crew.install()
    if run.program.is_timed:
        lasted = clock.monotonic() - planned
        run.program.note_breakdown(ticks.breakdown(crew.times, planned - began, lasted))
    return True


def load_of(run: Run, threads: int) -> Load:
    """What is known of a batch before any graph."""
    program = run.program
    return Load(
        len(run.order), run.operations_max(), program.cost_ns, program.abort_ratio,
        min(threads, len(run.order)),
    )  # fmt: skip


def explain(run: Run) -> Figures:
    """The figures of a batch's graph of operations; nothing runs."""
    _Crew(run, SERIAL)._resolve()
    batch = UnitBatch(run, whole=False)
    return measure(batch.graph, batch.tasks("operation"), batch.tasks("chain"), batch.labels())


class _Crew:
    """The threads of one batch: shared arrays, and for each thread its own undo and changes."""

    def __init__(self, run: Run, scheme: Scheme) -> None:
        self.run = run
        self.scheme = replace(scheme, threads=min(scheme.threads, len(run.order)))
        self.kernels = run.program.compiled_kernel.schemes
        self.raised = np.zeros(1, np.int64)
        self.times = np.zeros((max(1, self.scheme.threads), ticks.WORDS), np.int64)
        self.times[:, ticks.IS_ON] = int(run.program.is_timed)
        self.sync = np.zeros(3, np.int64)
        self.kept: list[np.ndarray] = []  # arrays that live as long as the threads use them
        self.order = run.order
        self._graph: tuple[Operations, Graph, int] | None = None
        self._own: list[dict[str, Any]] = []
        self.batch: UnitBatch | None = None  # where the model asked for the graph of operations

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
        load, costs = load_of(self.run, threads), self.run.program.costs
        early = worth_planning(load, costs)
        if early is not None:
            return early
        operations, graph, rows = self.graph()
        shape, skewed = measure_transactions(operations, graph, rows)
        whole = choose_transactions(load, shape, skewed, costs)
        if is_wide(load, shape):
            return whole
        readiness = self.run.program.readiness
        if readiness.units_given_up is not None:
            return replace(whole, why=f"{whole.why}; {readiness.units_given_up.why}")
        refusal = readiness.refusal(*UNIT_PLAN)
        if refusal is not None:
            return replace(whole, why=f"{whole.why}; single operations do not compile: {refusal}")
        if self.batch is None:
            self.batch = UnitBatch(self.run, False, self.run.scratch)
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

    def _arguments(self) -> Callable[[int], list[int]]:
        """The arguments of the scheme's kernel that come before those all share."""
        count, threads = len(self.order), self.scheme.threads
        if self.scheme.name == "nolock":
            self._resolve()
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

    def _resolve(self) -> None:
        """Find the slots of every event before anything runs."""
        self.kernels["resolve"](len(self.order), self.run.frame.address)

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
