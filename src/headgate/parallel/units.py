"""Units: a batch run by operations over versions of its rows, on several threads.

Tables stay as they are until the whole batch has run; then the last versions go into them. So a
batch that cannot be run this way (a function raised, or too much was undone again and again) leaves
nothing to put back.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from headgate.compiling import bounds
from headgate.execution.run import Run
from headgate.kernels import atomics, versions
from headgate.kernels.building import UnitKernels
from headgate.kernels.frame import HOME_CHANGED, HOME_ROWS, HOME_WIDTH
from headgate.kernels.pointers import address
from headgate.parallel.crew import Crew, Words
from headgate.parallel.graph import Operations, number_rows
from headgate.parallel.precedence import (
    Precedence,
    Scratch,
    Tasks,
    Units,
    chain_tasks,
    link,
    plain_chains,
    unit_tasks,
)
from headgate.parallel.scheme import Scheme

QUEUE_FACTOR = 4  # a task may come into the queue again after an abort


class UnitBatch:
    """The operations and units of one resolved batch, and their graph."""

    def __init__(
        self, kernels: UnitKernels, run: Run, whole: bool, scratch: Scratch | None = None
    ) -> None:
        """With a scratch the batch is of use until another one takes that."""
        self.run, self.kernels = run, kernels
        self.scratch = Scratch() if scratch is None or bounds.IS_ON else scratch
        self.scratch.begin()
        self.order, self.route = run.order, run.route
        self.words: Words = {}  # what every kernel is told of it
        self.units = self._collect(whole)
        self.graph: Precedence = link(self.units, self.scratch)
        self._tasks: dict[str, Tasks] = {}

    def _lists(self) -> list[np.ndarray]:
        """Beside the slots of every access: its operations, and its places in the scratch rows."""
        if self.run.whole is not None and not self.run.is_part:
            return self.run.whole.beside_slots  # each event is in one section only
        found = []
        for work in self.run.works[: self.run.program.compiled_count]:
            for slots in work.slots:
                found += [self.scratch.empty(len(slots)), self.scratch.zeros(len(slots))]
        return found

    def _collect(self, whole: bool) -> Units:
        run = self.run
        count, room = len(self.order), run.operations_max()
        unit_room = count * max(1, self.kernels.slices_max) + 1
        read_room = room * max(1, self.kernels.slices_max)
        tables = [run.program.tables[name] for name in run.table_names]
        bases, sizes = np.cumsum([0, *(rows.count for rows in tables)]), np.zeros(3, np.int64)
        empty = self.scratch.empty
        starts, unit_starts = empty(count + 1), empty(count + 1)
        rows, writes, tables_of, slots, places, unit_of = (empty(room) for _ in range(6))
        transaction_of, part, read_starts = (empty(unit_room) for _ in range(3))
        reads, lists = empty(read_room), self._lists()
        self.words = {
            "bases": bases, "starts": starts, "rows": rows, "writes": writes, "tables": tables_of,
            "slots": slots, "locals": places, "unit_of": unit_of, "unit_starts": unit_starts,
            "transaction_of": transaction_of, "part": part, "read_starts": read_starts,
            "reads": reads, "sizes": sizes,
            "lists": np.array([address(array) for array in lists], np.int64),
        }  # fmt: skip
        self._kept = lists  # their addresses are in a word
        self.frame = run.frame.but(self.words)
        self.kernels.kernels["collect"](int(whole), self.frame.address)
        operations, units, read = (int(size) for size in sizes)
        found = Operations(starts, rows[:operations], writes[:operations])
        row_count = number_rows(found, run.program.scratch_numbers(int(bases[-1])))
        self.tables, self.part = tables_of[:operations], part[:units]
        return Units(
            starts, rows[:operations], writes[:operations], unit_of[:operations], unit_starts,
            transaction_of[:units], read_starts[: units + 1], reads[:read], row_count,
        )  # fmt: skip

    def labels(self) -> tuple[str, ...]:
        """A name for every unit: its transaction's place and function, and the rows it writes."""
        signatures, slicings = self.run.program.signatures, self.kernels.slicings
        found = []
        for transaction, part in zip(
            self.units.transaction_of.tolist(), self.part.tolist(), strict=True
        ):
            number = int(self.route[self.order[transaction]])
            name = f"{transaction} {signatures[number].name}"
            if part >= 0:
                one = slicings[number].slices[part]
                name += f" {', '.join(sorted(one.writes or one.reads))}"
            found.append(name)
        return tuple(found)

    def tasks(self, granularity: str) -> Tasks:
        """What a thread takes at once; found once."""
        if granularity not in self._tasks:
            make = chain_tasks if granularity == "chain" else unit_tasks
            self._tasks[granularity] = make(self.graph)
        return self._tasks[granularity]


class UnitCrew:
    """The threads that run one batch by its units."""

    def __init__(self, batch: UnitBatch, scheme: Scheme, is_timed: bool = False) -> None:
        self.batch, self.run, self.scheme = batch, batch.run, scheme
        self.threads = max(1, min(scheme.threads, batch.units.count))
        is_explored = scheme.kind.needs == "graph"
        self.tasks = batch.tasks(scheme.granularity) if is_explored else plain_chains(batch.graph)
        self.crew = Crew(self.run, self.threads, is_timed)
        self.times = self.crew.times
        self.crew.shared |= {**batch.words, **self._plan()}
        for own in self.crew.own:
            own["scratch"] = self._scratch()
        if scheme.kind.needs == "turns":
            self.crew.shared |= self._turns()
        elif scheme.kind.needs == "pools":
            self._share_chains()

    # --- the words ----------------------------------------------------------------------------

    def _plan(self) -> Words:
        units, graph, tasks, batch = self.batch.units, self.batch.graph, self.tasks, self.batch
        count, operations, sync = units.count, units.operations, self.crew.sync
        widths = np.array(self._widths() or [0], np.int64)[batch.tables]
        zeros, empty, full = batch.scratch.zeros, batch.scratch.empty, batch.scratch.full
        queue = full(QUEUE_FACTOR * tasks.count + 64, -1)
        sync[atomics.TASK_COUNT], sync[atomics.UNIT_COUNT] = tasks.count, count
        sync[atomics.QUEUE_SIZE] = len(queue)
        starts, by_stratum = tasks.by_stratum
        self.failed = zeros(units.transactions)
        return {
            "eager": int(self.scheme.abort == "eager"), "strata": tasks.strata,
            "strata_starts": starts, "by_stratum": by_stratum,
            "task_before_starts": tasks.before_starts, "task_before": tasks.before,
            "task_after_starts": tasks.after_starts, "task_after": tasks.after,
            "claim": zeros(tasks.count), "waiting": np.diff(tasks.before_starts), "queue": queue,
            "task_starts": tasks.starts, "members": tasks.members, "stratum": tasks.stratum,
            "task_of": tasks.task_of, "previous": graph.previous,
            "version_offsets": np.cumsum(widths) - widths,
            "versions": empty(int(widths.sum()) + 1), "version_changed": zeros(operations + 1),
            "state": zeros(count), "codes": zeros(count), "rank": zeros(count),
            "failed": self.failed, "fails": empty(units.transactions + 1),
            "before_starts": graph.before_starts, "before": graph.before,
            "after_starts": graph.after_starts, "after": graph.after,
            "stack": empty(4 * count + 64), "homes": self._homes(),
        }  # fmt: skip

    def _widths(self) -> list[int]:
        return [rows.layout.words for rows in self.crew.tables]

    def _homes(self) -> np.ndarray:
        """Where the last versions go."""
        run, numbers = self.run, range(len(self.run.table_names))
        return self.crew.homes({
            HOME_ROWS: [self.crew.address(run.arrays[f"words_{n}"]) for n in numbers],
            HOME_WIDTH: self._widths(),
            HOME_CHANGED: [self.crew.address(run.arrays[f"changed_{n}"]) for n in numbers],
        })  # fmt: skip

    def _scratch(self) -> np.ndarray:
        """Rows of its own for one thread: the address of those of each table."""
        most = int(np.diff(self.batch.units.operation_starts).max(initial=0)) + 1
        rows = [np.zeros(most * width, np.int64) for width in self._widths() or [0]]
        return np.array([self.crew.address(row) for row in rows], np.int64)

    def _turns(self) -> Words:
        """Of the low water mark."""
        units, zeros = self.batch.units, self.batch.scratch.zeros
        return {
            "tails": zeros(units.row_count), "water_marks": zeros(units.row_count),
            "tickets": zeros(units.operations + 1),
        }  # fmt: skip

    def _share_chains(self) -> None:
        """TStream's pools: of a core, of a socket, or one for all; shared out, or taken freely."""
        count, threads = self.tasks.count, self.threads
        groups = {"nothing": threads, "socket": min(sockets(), threads), "everything": 1}
        pools = groups[self.scheme.pool]
        pool_of = np.arange(count) % pools
        pool = np.argsort(pool_of, kind="stable")
        edges = np.searchsorted(pool_of[pool], np.arange(pools + 1))
        self.crew.shared |= {"pool": pool, "places": np.zeros(count + 1, np.int64)}
        for thread, own in enumerate(self.crew.own):
            mine = thread * pools // threads
            mates = [other for other in range(threads) if other * pools // threads == mine]
            first, last = int(edges[mine]), int(edges[mine + 1])
            size, turn = last - first, mates.index(thread)
            begin = first + size * turn // len(mates)
            if not self.scheme.stealing:
                first, last = begin, first + size * (turn + 1) // len(mates)
            begin = min(begin, max(first, last - 1))
            own |= {"pool_first": first, "pool_last": last, "pool_begin": begin}

    # --- running ------------------------------------------------------------------------------

    def work(self) -> bool:
        """Run all units; False when the batch must be run serially, with nothing changed."""
        kernels, crew = self.batch.kernels.kernels, self.crew
        self._frame = self.run.frame.but(crew.shared)
        if self.scheme.kind.is_queued:
            versions.queue_ready(self._frame.address)
        crew.work(kernels[self.scheme.kind.kernel])
        if crew.sync[atomics.GAVE_UP]:
            return False
        if self.failed.any():
            crew.work(kernels["reasons"])
        return not versions.judge(self._frame.address)

    def install(self) -> None:
        """Put the last versions into the tables and hand on what the batch gave."""
        self.run.outcome[:] = self.run.reason != 0
        versions.install(self.batch.units.operations, self._frame.address)


def sockets() -> int:
    """How many processor packages this machine has."""
    found = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id"):
        try:
            found.add(path.read_text())
        except OSError:
            continue
    return max(1, len(found)) if os.name == "posix" else 1
