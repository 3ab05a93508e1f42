"""Whole transactions on several threads, in the tables themselves, along a graph or by shares.

The plan of a batch is made once, whoever asks for it first: its operations, the graph of who waits
for whom, and the words that a scheme's kernel needs. All but `nolock` only run two transactions at
once when they share no row that one of them may write; so each transaction sees exactly what it
would see in serial order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.execution.run import Run
from headgate.execution.shared_batch import SharedBatch
from headgate.kernels import ticks
from headgate.kernels.atomics import QUEUE_SIZE, SYNC_WORDS, TAIL, TASK_COUNT
from headgate.kernels.building import compile_first
from headgate.kernels.pointers import address
from headgate.kernels.shares import RUN_EVENTS, SECTION_EVENTS, share_events
from headgate.parallel.crew import Crew, Words, workers
from headgate.parallel.decision import (
    Decision,
    choose_transactions,
    choose_units,
    is_wide,
    worth_planning,
)
from headgate.parallel.figures import measure_transactions, task_shape
from headgate.parallel.graph import (
    Graph,
    Operations,
    build_graph,
    number_rows,
    with_every_row,
)
from headgate.parallel.scheme import UNIT_PLAN, Scheme
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
        room *= 2 if self.scheme.kind.is_virtual else 1  # each row, and the whole of its table
        tables = [run.program.tables[name] for name in run.table_names]
        bases = np.cumsum([0, *(rows.count for rows in tables)])
        starts = np.empty(len(run.order) + 1, np.int64)
        rows, writes = np.empty(room, np.int64), np.empty(room, np.int64)
        frame = run.frame.but({"bases": bases, "starts": starts, "rows": rows, "writes": writes})
        used = self.scheduler.readiness.kernels_of(self.scheme)["collect"](frame.address)
        operations = Operations(starts, rows[:used], writes[:used])
        if self.scheme.scope == "rows":
            operations = with_every_row(operations, bases)
        most = int(bases[-1]) + len(tables)  # a whole table counts as a row behind all others
        return operations, number_rows(operations, run.program.scratch_numbers(most))

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


# --- by shares ------------------------------------------------------------------------------------
# What they need is kept from batch to batch, for pages that are new each time would cost more than
# the plan; and blocks are counted through all batches, so that nothing has to be cleared in
# between.
#
# Invariant: one batch at a time is run; where it could not be, every row is what it was before.


LINE_WORDS = 8  # threads write no cache line of each other
PLAN_WORDS_MAX = 1 << 25  # most of them stay untouched
BLOCKS_MAX = 1 << 31  # the numbers of blocks are halves of words


class Sharing:
    """Runs the batches of one program, one after another."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[np.ndarray, int]] = {}  # arrays with their addresses
        self._next_block = 1
        self._own_words: tuple[int, np.ndarray, np.ndarray] | None = None  # of so many threads
        self.times = np.zeros((1, ticks.WORDS), np.int64)

    def has_room(self, batch: SharedBatch, threads: int) -> bool:
        """Whether the plan of a section is not too large: events may name any number of rows."""
        return share_room(batch, threads) * threads * threads <= PLAN_WORDS_MAX

    def run(self, kernel: Any, batch: SharedBatch, threads: int, is_timed: bool = False) -> bool:
        """Run a batch; False when it was put back, for a function raised or a plan was wrong."""
        compile_first(kernel)  # threads that wait for each other must not wait for that
        frames = self._frames(batch, threads, is_timed)
        first, stride = address(frames), frames.strides[0]
        workers.run([
            partial(kernel, thread, threads, first + stride * thread) for thread in range(threads)
        ])  # fmt: skip
        if self._kept["raised"][0][0]:
            self._put_back(batch, threads)
            return False
        self._collect(batch, threads)
        return True

    def _collect(self, batch: SharedBatch, threads: int) -> None:
        """Note what the threads changed as if one had done it all."""
        counts = self._kept["counts"][0][:threads]
        for number, changed in enumerate(batch.changed):
            slots, total = self._kept[f"changed_{number}"][0], 0
            for thread, count in enumerate(counts[:, 2 * number].tolist()):
                changed[total : total + count] = slots[thread, :count]
                total += count
            batch.counts[2 * number] = total
            batch.counts[2 * number + 1] = counts[:, 2 * number + 1].max()

    def _put_back(self, batch: SharedBatch, threads: int) -> None:
        """Make every row what it was before the batch."""
        counts = self._kept["counts"][0]
        for number, rows in enumerate(batch.tables):
            slots, images = self._kept[f"changed_{number}"][0], self._kept[f"images_{number}"][0]
            width = rows.layout.words
            for thread in range(threads):
                count = int(counts[thread, 2 * number])
                before = images[thread, : count * width].reshape(count, width)
                rows.words[slots[thread, :count]] = before

    # --- frames -------------------------------------------------------------------------------

    def _frames(self, batch: SharedBatch, threads: int, is_timed: bool) -> np.ndarray:
        """The frame of each thread: words that all share, and its own."""
        words, places = batch.frame.tolist(), batch.layout.places
        for name, word in self._shared(batch, threads).items():
            words[places[name]] = word
        frames = np.empty((threads, len(words)), np.int64)
        frames[:] = words
        own = self._own(batch, threads)
        if self._own_words is None or self._own_words[0] < threads:
            spots = np.array([places[name] for name in own])
            firsts = np.array([self._kept[name][1] for name in own])
            strides = np.array([self._kept[name][0].strides[0] for name in own])
            self._own_words = threads, spots, firsts + np.outer(np.arange(threads), strides)
        _, spots, found = self._own_words
        frames[:, spots] = found[:threads]
        self._kept["counts"][0].fill(0)
        self.times = self._kept["times"][0][:threads]
        self.times.fill(0)
        self.times[:, ticks.IS_ON] = int(is_timed)
        return frames

    def _shared(self, batch: SharedBatch, threads: int) -> dict[str, int]:
        blocks, operations = -(-batch.count // RUN_EVENTS), share_room(batch, threads)
        room = operations + share_events.py_func(min(SECTION_EVENTS, batch.count), threads)
        bases = np.cumsum([0, *(rows.count for rows in batch.tables)])
        self._place("bases", bases)
        rows = self._room("last_blocks", int(bases[-1]))
        if self._next_block + blocks > BLOCKS_MAX:
            self._kept["last_blocks"][0].fill(0)
            self._next_block = 1
        first_block = self._next_block
        self._next_block += blocks
        return {
            **{name: address(array) for name, array in batch.words.items()},
            "bases": self._kept["bases"][1],
            "sync": self._room("sync", SYNC_WORDS, is_cleared=True),
            "raised": self._room("raised", 1, is_cleared=True),
            "dealt": self._room("dealt", operations * threads * threads),
            "dealt_ends": self._room("dealt_ends", threads * threads),
            "dealt_room": operations,
            "links": self._room("links", 2 * threads * room),
            "links_room": room,
            "block_starts": self._room("block_starts", blocks),
            "done_blocks": self._room("done_blocks", blocks, is_cleared=True),
            "last_blocks": rows,
            "first_block": first_block,
        }

    def _own(self, batch: SharedBatch, threads: int) -> list[str]:
        """The names of what each thread has for itself, with room for it."""
        needs = {
            "counts": 2 * len(batch.tables), "times": ticks.WORDS, "undo": batch.undo_words,
            "progress": 1,
        }  # fmt: skip
        for number, (rows, changed) in enumerate(zip(batch.tables, batch.changed, strict=True)):
            room = min(len(changed), rows.count) + 1
            needs[f"changed_{number}"], needs[f"images_{number}"] = room, room * rows.layout.words
        for name, words in needs.items():
            found = self._kept.get(name)
            if found is None or found[0].shape[0] < threads or found[0].shape[1] < words:
                lines = -(-(words + words // 2) // LINE_WORDS) + 1
                self._place(name, np.zeros((threads, LINE_WORDS * lines), np.int64))
                self._own_words = None
        return list(needs)

    def _room(self, name: str, words: int, is_cleared: bool = False) -> int:
        """The address of at least so many words, zeros when they are new, or are to be."""
        found = self._kept.get(name)
        if found is None or len(found[0]) < words:
            return self._place(name, np.zeros(words + words // 2 + LINE_WORDS, np.int64))
        if is_cleared:
            found[0][:words] = 0
        return found[1]

    def _place(self, name: str, array: np.ndarray) -> int:
        self._kept[name] = array, address(array)
        return self._kept[name][1]


def share_room(batch: SharedBatch, threads: int) -> int:
    """The operations of a share of events, at most."""
    count, section = batch.count, min(SECTION_EVENTS, batch.count)
    if not batch.lengths:
        return int(batch.singles * share_events.py_func(section, threads))
    touched = batch.singles + np.sum(batch.lengths, axis=0)
    touched = touched if batch.order is None else touched[batch.order]
    starts = [
        first + thread * share_events.py_func(min(SECTION_EVENTS, count - first), threads)
        for first in range(0, count, SECTION_EVENTS)
        for thread in range(threads)
    ]
    return int(np.add.reduceat(touched, [one for one in starts if one < count]).max())
