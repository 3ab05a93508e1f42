"""Units: a batch run by operations over versions of its rows, on several threads.

Tables stay as they are until the whole batch has run; then the last versions go into them. So a
batch that cannot be run this way (a function raised, or too much was undone again and again) leaves
nothing to put back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headgate.compiling import bounds
from headgate.execution.run import Run
from headgate.kernels import ticks, versions
from headgate.kernels.kernel import UnitKernels, compile_first
from headgate.kernels.pointers import address
from headgate.kernels.versions import SYNC_WORDS
from headgate.parallel.graph import Operations, number_rows
from headgate.parallel.precedence import (
    Precedence,
    Tasks,
    Units,
    chain_tasks,
    link,
    plain_chains,
    unit_tasks,
)
from headgate.parallel.scheme import Scheme
from headgate.parallel.scratch import Scratch
from headgate.parallel.workers import workers

QUEUE_FACTOR = 4  # a task may come into the queue again after an abort


class UnitBatch:
    """The operations and units of one resolved batch, and their graph."""

    def __init__(
        self, kernels: UnitKernels, run: Run, whole: bool, scratch: Scratch | None = None
    ) -> None:
        """With a scratch the batch is of use until another one takes that."""
        self.run = run
        self.scratch = Scratch() if scratch is None or bounds.IS_ON else scratch
        self.scratch.begin()
        self.kernels = kernels
        self.order, self.route = run.order, run.route
        self.frame = run.frame_of(self.kernels.layout)
        self.kept: list[np.ndarray] = []  # arrays that live as long as a thread may use them
        self.lists = self._lists()
        self.units = self._collect(whole)
        self.graph: Precedence = link(self.units, self.scratch)
        self._tasks: dict[str, Tasks] = {}

    def address(self, array: np.ndarray) -> int:
        array = np.ascontiguousarray(array)
        self.kept.append(array)
        return address(array)

    def _lists(self) -> list[np.ndarray]:
        """Beside the slots of every access: its operations, and its places in the scratch rows."""
        if self.run.whole is not None and not self.run.is_part:
            return self.run.whole.unit_lists  # each event is in one section only
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
        bases = np.cumsum([0, *(rows.count for rows in tables)])
        empty = self.scratch.empty
        starts, unit_starts = empty(count + 1), empty(count + 1)
        rows, writes, self.tables, self.slots, self.locals, unit_of = (
            empty(room) for _ in range(6)
        )
        transaction_of, part, read_starts = (empty(unit_room) for _ in range(3))
        reads, sizes = empty(read_room), np.zeros(3, np.int64)
        addresses = np.array([self.address(array) for array in self.lists], np.int64)
        arrays = (
            bases, starts, rows, writes, self.tables, self.slots,
            self.locals, unit_of, unit_starts, transaction_of, part, read_starts, reads, addresses,
            sizes,
        )  # fmt: skip
        given = [self.address(array) for array in arrays]
        self.kernels.kernels["collect"](count, int(whole), *given, self.frame.address)
        operations, units, read = (int(size) for size in sizes)
        found = Operations(starts, rows[:operations], writes[:operations])
        row_count = number_rows(found, run.program.scratch_numbers(int(bases[-1])))
        self.part = part[:units]
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
        self.batch, self.run = batch, batch.run
        self.scheme = scheme
        self.threads = max(1, min(scheme.threads, batch.units.count))
        if scheme.name in ("lwm", "tstream"):
            self.tasks = plain_chains(batch.graph)
        else:
            self.tasks = batch.tasks(scheme.granularity)
        self.sync = np.zeros(SYNC_WORDS, np.int64)
        self.times = np.zeros((self.threads, ticks.WORDS), np.int64)
        self.times[:, ticks.IS_ON] = int(is_timed)
        self.plan = self._plan()

    # --- the arrays ---------------------------------------------------------------------------

    def _plan(self) -> int:
        units, graph, tasks, batch = self.batch.units, self.batch.graph, self.tasks, self.batch
        count, operations = units.count, units.operations
        widths = self._widths()[batch.tables[:operations]]
        zeros, empty, full = batch.scratch.zeros, batch.scratch.empty, batch.scratch.full
        self.state, self.code, self.rank = (zeros(count) for _ in range(3))
        self.failed = zeros(units.transactions)
        self.claim = zeros(tasks.count)
        self.waiting = np.diff(tasks.before_starts)
        queue = full(QUEUE_FACTOR * tasks.count + 64, -1)
        self.sync[versions.TASK_COUNT] = tasks.count
        self.sync[versions.UNIT_COUNT] = count
        self.sync[versions.QUEUE_SIZE] = len(queue)
        offsets = np.cumsum(widths) - widths
        self.version_words = empty(int(widths.sum()) + 1)
        arrays = {
            versions.PREVIOUS: graph.previous,
            versions.OFFSETS: offsets,
            versions.LOCALS: batch.locals,
            versions.UNIT_OF: units.unit_of,
            versions.CHANGED: zeros(operations + 1),
            versions.VERSIONS: self.version_words,
            versions.STATE: self.state,
            versions.CODE: self.code,
            versions.RANK: self.rank,
            versions.FAILED: self.failed,
            versions.TRANSACTION_OF: units.transaction_of,
            versions.PART: batch.part,
            versions.UNIT_STARTS: units.unit_starts,
            versions.FAILS: empty(units.transactions + 1),
            versions.AFTER_STARTS: graph.after_starts,
            versions.AFTER: graph.after,
            versions.TASK_OF: tasks.task_of,
            versions.CLAIM: self.claim,
            versions.WAITING: self.waiting,
            versions.TASK_AFTER_STARTS: tasks.after_starts,
            versions.TASK_AFTER: tasks.after,
            versions.STRATUM: tasks.stratum,
            versions.QUEUE: queue,
            versions.STACK: empty(4 * count + 64),
            versions.SYNC: self.sync,
            versions.TASK_STARTS: tasks.starts,
            versions.MEMBERS: tasks.members,
            versions.ORDER: batch.order,
            versions.ROUTE: batch.route,
            versions.TASK_BEFORE_STARTS: tasks.before_starts,
            versions.TASK_BEFORE: tasks.before,
            versions.BEFORE_STARTS: graph.before_starts,
            versions.BEFORE: graph.before,
        }
        words = [batch.address(arrays[place]) for place in range(versions.LISTS)]
        words += [batch.address(array) for array in batch.lists]
        return batch.address(np.array(words, np.int64))

    def _widths(self) -> np.ndarray:
        tables = self.run.program.tables
        found = [tables[name].layout.words for name in self.run.table_names]
        return np.array(found or [0], np.int64)

    def _scratch(self) -> int:
        """Rows of its own for one thread: the address of those of each table."""
        operations = self.batch.units.operation_starts
        most = int(np.diff(operations).max(initial=0)) + 1
        rows = [np.zeros(most * width, np.int64) for width in self._widths().tolist()]
        return self.batch.address(np.array([self.batch.address(row) for row in rows], np.int64))

    # --- running ------------------------------------------------------------------------------

    def work(self) -> bool:
        """Run all units; False when the batch must be run serially, with nothing changed."""
        kernel, head = self._kernel()
        frame = self.batch.frame.address
        scratch = [self._scratch() for _ in range(self.threads)]
        times = [self.batch.address(self.times[thread]) for thread in range(self.threads)]
        everyone = range(self.threads)
        _share(kernel, [[*head(n, scratch[n], times[n]), frame] for n in everyone])
        if self.sync[versions.GAVE_UP]:
            return False
        count, reasons = self.batch.units.transactions, self.batch.kernels.kernels["reasons"]
        if self.failed.any():
            edges = np.linspace(0, count, self.threads + 1).astype(int).tolist()
            shares = [[edges[n], edges[n + 1], self.plan, scratch[n]] for n in everyone]
            _share(reasons, [[*share, frame] for share in shares])
        return not versions.judge(self.plan, count, self.batch.address(self.run.reason))

    def _kernel(self) -> tuple[Any, Callable[[int, int, int], list[int]]]:
        """The kernel of the scheme, and its first arguments for a thread."""
        name = self.scheme.name
        kernels = self.batch.kernels.kernels
        threads, eager = self.threads, int(self.scheme.abort == "eager")
        address, plan = self.batch.address, self.plan
        if name == "lwm":
            return kernels["lwm"], self._lwm()
        if name == "tstream":
            return kernels["chains"], self._chains()
        if name == "ready":
            versions.queue_ready(plan)
            return kernels[name], lambda thread, scratch, times: [
                thread, threads, eager, plan, scratch, times,
            ]  # fmt: skip
        starts, by_stratum = self.tasks.by_stratum
        found = [address(by_stratum)]
        if name == "strata":
            found = [self.tasks.strata, address(starts), *found]
        return kernels[name], lambda thread, scratch, times: [
            thread, threads, eager, plan, scratch, times, *found,
        ]  # fmt: skip

    def _lwm(self) -> Callable[[int, int, int], list[int]]:
        units, address = self.batch.units, self.batch.address
        arrays = (
            units.operation_starts, units.rows, units.writes, np.zeros(units.row_count, np.int64),
            np.zeros(units.row_count, np.int64), np.zeros(units.operations + 1, np.int64),
        )  # fmt: skip
        given = [address(array) for array in arrays]
        return lambda thread, scratch, times: [
            thread, self.threads, units.count, self.plan, scratch, times, *given,
        ]  # fmt: skip

    def _chains(self) -> Callable[[int, int, int], list[int]]:
        """TStream's pools: of a core, of a socket, or one for all; shared out, or taken freely."""
        count, threads = self.tasks.count, self.threads
        groups = {"nothing": threads, "socket": min(sockets(), threads), "everything": 1}
        pools = groups[self.scheme.pool]
        pool_of = np.arange(count) % pools
        pool = np.argsort(pool_of, kind="stable")
        edges = np.searchsorted(pool_of[pool], np.arange(pools + 1))
        places = np.zeros(count + 1, np.int64)
        given = [self.batch.address(pool), self.batch.address(places)]

        def head(thread: int, scratch: int, times: int) -> list[int]:
            mine = thread * pools // threads
            mates = [other for other in range(threads) if other * pools // threads == mine]
            first, last = int(edges[mine]), int(edges[mine + 1])
            size, turn = last - first, mates.index(thread)
            begin = first + size * turn // len(mates)
            if not self.scheme.stealing:
                first, last = begin, first + size * (turn + 1) // len(mates)
            begin = min(begin, max(first, last - 1))
            return [thread, threads, first, last, begin, self.plan, scratch, times, *given]

        return head

    def install(self) -> None:
        """Put the last versions into the tables and hand on what the batch gave."""
        run, batch = self.run, self.batch
        run.outcome[:] = run.reason != 0
        names = range(len(run.table_names))
        address = batch.address
        words = np.array([address(run.arrays[f"words_{n}"]) for n in names] or [0], np.int64)
        changed = np.array([address(run.arrays[f"changed_{n}"]) for n in names] or [0], np.int64)
        versions.install(
            self.plan, batch.units.operations, run.epoch, address(words), address(self._widths()),
            address(batch.slots), address(batch.tables), address(changed), address(run.counts),
        )  # fmt: skip


def _share(kernel: Any, calls: list[list[int]]) -> None:
    """Run a kernel on every thread."""
    compile_first(kernel)
    workers.run([partial(kernel, *call) for call in calls])


def sockets() -> int:
    """How many processor packages this machine has."""
    found = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/physical_package_id"):
        try:
            found.add(path.read_text())
        except OSError:
            continue
    return max(1, len(found)) if os.name == "posix" else 1
