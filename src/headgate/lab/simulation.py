"""The simulation: how long a planned batch would take on more cores than there are here.

A strategy is replayed event by event on virtual cores, with the work of each transaction and the
costs measured on a real machine: planning, starting threads, barriers, words that go from core to
core, copies of versions. Cores are alike and never disturbed, memory is equally near to all, and an
abort costs a pause but nothing runs twice; so it is a bound for what a machine can reach.

More cores may take longer, in the simulation as in truth: a schedule that hands out what is ready,
or deals tasks round, is at times worse with one core more (Graham's anomalies), and threads and
barriers cost more the more there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np

from headgate.errors import InputError
from headgate.kernels.explorations import CHUNKS_PER_THREAD
from headgate.parallel.decision import Thresholds
from headgate.parallel.figures import longest_path
from headgate.parallel.graph import Graph, Operations, build_graph
from headgate.parallel.precedence import Precedence, Tasks, chain_tasks, plain_chains, unit_tasks
from headgate.parallel.scheme import EXPLORATIONS, GRANULARITIES, Scheme, make_scheme
from headgate.parallel.transactions import PARTITIONS_PER_THREAD
from headgate.state.compiled import numba


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that was planned and not run: its graphs, and what each transaction takes alone."""

    operations: Operations
    graph: Graph  # of whole transactions
    precedence: Precedence  # of their operations
    row_count: int
    work_ns: np.ndarray  # transaction -> nanoseconds, one after another
    aborts: int = 0  # transactions that fail
    unit_factor: float = 1.0  # what all units take, to the transactions: see `with_units`

    @property
    def serial_ns(self) -> float:
        return float(self.work_ns.sum())

    @cached_property
    def unit_ns(self) -> np.ndarray:
        """The work of each unit: its share of the transaction's, by rows.

        A row that nobody writes is looked at by every unit that needs it, and costs each time.
        """
        units = self.precedence.units
        owned = np.bincount(units.unit_of[units.unit_of >= 0], minlength=units.count)
        reader = np.repeat(np.arange(units.count), np.diff(units.read_starts))
        free = units.unit_of[units.reads] < 0
        shared = np.bincount(reader[free], minlength=units.count)
        each = self.work_ns / np.maximum(1, np.diff(self.operations.starts))
        found: np.ndarray = np.maximum(1, owned + shared) * each[units.transaction_of]
        return self.unit_factor * found

    @cached_property
    def unit_tasks(self) -> Tasks:
        return unit_tasks(self.precedence)

    @cached_property
    def chain_tasks(self) -> Tasks:
        return chain_tasks(self.precedence)

    @cached_property
    def plain_chains(self) -> Tasks:
        return plain_chains(self.precedence)


def plan_batch(graph: Precedence, operation_ns: float, aborts: int = 0) -> PlannedBatch:
    """A batch whose every operation takes this long; `graph` is what `engine.explain` finds."""
    units = graph.units
    operations = Operations(units.operation_starts, units.rows, units.writes)
    work_ns = operation_ns * np.diff(operations.starts).astype(np.float64)
    whole = build_graph(operations, units.row_count)
    return PlannedBatch(operations, whole, graph, units.row_count, work_ns, aborts)


def with_units(batch: PlannedBatch, useful_ns: float, costs: Thresholds) -> PlannedBatch:
    """The batch, when all its units were seen to take this long with the copies of their rows.

    A unit whose new row, or output, depends on another one's computes that again, so units can
    take more than the transaction they were cut from.
    """
    plain = replace(batch, unit_factor=1.0)
    copies_ns = costs.version_ns_per_operation * len(batch.precedence.units.reads)
    factor = (useful_ns - copies_ns) / max(1.0, float(plain.unit_ns.sum()))
    return replace(batch, unit_factor=max(1.0, factor))


@dataclass(frozen=True)
class _Shape:
    """What an exploration goes through: tasks with their work, edges and strata."""

    work_ns: np.ndarray
    before_starts: np.ndarray
    before: np.ndarray
    after_starts: np.ndarray
    after: np.ndarray
    strata_starts: np.ndarray
    by_stratum: np.ndarray
    goes_on: bool  # who makes another ready runs the first such itself, as is done in place


# --- kernels --------------------------------------------------------------------------------------


# Each gives the time, and in `order` the tasks as they are begun: what the kernels of
# kernels/explorations.py do, which a test compares.


@numba.njit(cache=True)
def _strata(
    starts: np.ndarray, tasks: np.ndarray, work: np.ndarray, begins: np.ndarray,
    barrier_ns: float, signal_ns: float, order: np.ndarray,
) -> float:  # fmt: skip
    """Whoever is free takes the next few tasks of a stratum; then all meet."""
    free, cores, taken = begins.copy(), len(begins), 0
    for stratum in range(len(starts) - 1):
        first, last = starts[stratum], starts[stratum + 1]
        chunk = max(1, (last - first) // (CHUNKS_PER_THREAD * cores))
        for begin in range(first, last, chunk):
            core = int(np.argmin(free))
            free[core] += signal_ns
            for place in range(begin, min(begin + chunk, last)):
                free[core] += work[tasks[place]]
                order[taken] = tasks[place]
                taken += 1
        free[:] = free.max() + barrier_ns
    return float(free.max())


@numba.njit(cache=True)
def _depth(
    tasks: np.ndarray, before_starts: np.ndarray, before: np.ndarray, work: np.ndarray,
    begins: np.ndarray, signal_ns: float, order: np.ndarray,
) -> float:  # fmt: skip
    """Each core its share of every stratum, waiting for its own dependencies."""
    free, cores = begins.copy(), len(begins)
    done, begun = np.zeros(len(tasks)), np.zeros(len(tasks))
    for place in range(len(tasks)):
        task, core = tasks[place], place % cores
        now = free[core]
        for edge in range(before_starts[task], before_starts[task + 1]):
            now = max(now, done[before[edge]])
        edges = before_starts[task + 1] - before_starts[task]
        begun[place] = now
        done[task] = free[core] = now + work[task] + signal_ns * (edges + 1)
    order[:] = tasks[np.argsort(begun, kind="mergesort")]
    return done.max() if len(done) else 0.0


@numba.njit(cache=True)
def _ready(
    before_starts: np.ndarray, after_starts: np.ndarray, after: np.ndarray, work: np.ndarray,
    begins: np.ndarray, signal_ns: float, goes_on: bool, order: np.ndarray,
) -> float:  # fmt: skip
    """Whoever is free first takes what was ready first; the head of the queue is one word."""
    count, cores, begun = len(work), len(begins), 0
    waiting = before_starts[1:] - before_starts[:-1]
    queue, head, tail = np.empty(count, np.int64), 0, 0
    for task in range(count):
        if waiting[task] == 0:
            queue[tail] = task
            tail += 1
    idle, idle_head, idle_tail = np.empty(count + cores, np.int64), 0, 0
    running = [(begins[0], 0, -1)]
    for core in range(1, cores):
        heappush(running, (begins[core], core, -1))
    taken_at, end = 0.0, 0.0
    while running:
        now, core, task = heappop(running)
        found = -1
        if task >= 0:
            end = now
            for edge in range(after_starts[task], after_starts[task + 1]):
                other = after[edge]
                waiting[other] -= 1
                if waiting[other] == 0 and goes_on and found < 0:
                    found = other
                elif waiting[other] == 0:
                    queue[tail] = other
                    tail += 1
        if found >= 0:
            signals = after_starts[found + 1] - after_starts[found]
            heappush(running, (now + work[found] + signal_ns * signals, core, found))
            order[begun] = found
            begun += 1
        else:
            idle[idle_tail] = core
            idle_tail += 1
        while head < tail and idle_head < idle_tail:
            task, core = queue[head], idle[idle_head]
            head, idle_head = head + 1, idle_head + 1
            taken_at = max(now, taken_at) + signal_ns
            signals = after_starts[task + 1] - after_starts[task]
            heappush(running, (taken_at + work[task] + signal_ns * signals, core, task))
            order[begun] = task
            begun += 1
    return end


@numba.njit(cache=True)
def _turns(
    starts: np.ndarray, rows: np.ndarray, writes: np.ndarray, row_count: int, work: np.ndarray,
    begins: np.ndarray, signal_ns: float, is_versioned: bool,
) -> float:  # fmt: skip
    """LAL holds its turn until it has all locks; LWM hands it on and then waits for versions."""
    free, cores = begins.copy(), len(begins)
    written, read = np.zeros(row_count), np.zeros(row_count)  # when the last of each has ended
    turn = 0.0
    for unit in range(len(starts) - 1):
        core = unit % cores
        first, last = starts[unit], starts[unit + 1]
        now = max(free[core], turn)
        if is_versioned:
            now += signal_ns * (last - first + 1)
            turn = now
        for place in range(first, last):
            row = rows[place]
            now = max(now, written[row])
            if not is_versioned:
                if writes[place]:
                    now = max(now, read[row])
                now += signal_ns
        if not is_versioned:
            now += signal_ns
            turn = now
        now += work[unit] + signal_ns * (last - first)
        for place in range(first, last):
            row = rows[place]
            if writes[place]:
                written[row] = max(written[row], now)
            else:
                read[row] = max(read[row], now)
        free[core] = now
    return float(free.max())


@numba.njit(cache=True)
def _partitions(
    starts: np.ndarray, rows: np.ndarray, work: np.ndarray, begins: np.ndarray, signal_ns: float,
) -> float:  # fmt: skip
    """Each transaction waits for the one before it in every partition that it touches."""
    free, cores = begins.copy(), len(begins)
    partitions = PARTITIONS_PER_THREAD * cores
    done = np.zeros(partitions)
    seen = np.full(partitions, -1, np.int64)
    for unit in range(len(starts) - 1):
        core = unit % cores
        now, touched = free[core], 0
        for place in range(starts[unit], starts[unit + 1]):
            part = rows[place] % partitions
            if seen[part] != unit:
                seen[part] = unit
                touched += 1
                now = max(now, done[part])
        now += work[unit] + signal_ns * 2 * touched
        for place in range(starts[unit], starts[unit + 1]):
            done[rows[place] % partitions] = now
        free[core] = now
    return float(free.max())


@numba.njit(cache=True)
def _is_free(unit: int, before_starts: np.ndarray, before: np.ndarray, is_done: np.ndarray) -> bool:
    for edge in range(before_starts[unit], before_starts[unit + 1]):
        if not is_done[before[edge]]:
            return False
    return True


WAITS, OPEN, HELD, OVER = 0, 1, 2, 3  # of a chain; OPEN stands in its pool


@numba.njit(cache=True)
def _chains(
    starts: np.ndarray, members: np.ndarray, chain_of: np.ndarray, before_starts: np.ndarray,
    before: np.ndarray, after_starts: np.ndarray, after: np.ndarray, work: np.ndarray,
    begins: np.ndarray, pools: int, signal_ns: float,
) -> float:  # fmt: skip
    """A core takes a chain of its pool, and leaves it where it cannot go on.

    Looking at chains that cannot go on is not counted: only taking one is.
    """
    count, cores = len(starts) - 1, len(begins)
    place = starts[:-1].copy()
    state = np.zeros(count, np.int64)
    is_done = np.zeros(len(work), np.bool_)
    is_idle = np.ones(cores, np.bool_)
    open_chains = [[(0, 0)] for _ in range(pools)]  # with the turn in which each came to be open
    for pool in range(pools):
        open_chains[pool].pop()
    turn = 0
    for chain in range(count):
        state[chain] = WAITS
        if _is_free(members[place[chain]], before_starts, before, is_done):
            state[chain] = OPEN
            heappush(open_chains[chain % pools], (turn, chain))
            turn += 1
    running = [(begins[0], 0, -1)]
    for core in range(1, cores):
        heappush(running, (begins[core], core, -1))
    here = np.zeros(cores, np.bool_)
    end = 0.0
    while running:
        now, core, unit = heappop(running)
        here[core] = is_idle[core] = True
        if unit >= 0:
            end, is_done[unit] = now, True
            chain = chain_of[unit]
            place[chain] += 1
            state[chain] = OVER if place[chain] == starts[chain + 1] else WAITS
            if state[chain] == WAITS:
                after_it = members[place[chain]]
                if _is_free(after_it, before_starts, before, is_done):
                    state[chain] = HELD
                    is_idle[core] = False
                    heappush(running, (now + work[after_it], core, after_it))
            for edge in range(after_starts[unit], after_starts[unit + 1]):
                other = chain_of[after[edge]]
                if state[other] == WAITS and _is_free(
                    members[place[other]], before_starts, before, is_done
                ):
                    state[other] = OPEN
                    heappush(open_chains[other % pools], (turn, other))
                    turn += 1
        for other_core in range(cores):
            pool = other_core * pools // cores
            if here[other_core] and is_idle[other_core] and len(open_chains[pool]) > 0:
                _, chain = heappop(open_chains[pool])
                state[chain] = HELD
                is_idle[other_core] = False
                unit = members[place[chain]]
                heappush(running, (now + signal_ns + work[unit], other_core, unit))
    return end


# --- strategies ---------------------------------------------------------------------------------


def _shape(batch: PlannedBatch, granularity: str, costs: Thresholds) -> _Shape:
    if granularity == "transaction":
        graph = batch.graph
        return _Shape(
            batch.work_ns, graph.before_starts, graph.before, graph.after_starts, graph.after,
            graph.strata_starts, graph.by_stratum, goes_on=True,
        )  # fmt: skip
    tasks = batch.chain_tasks if granularity == "chain" else batch.unit_tasks
    unit_ns = _versioned(batch, costs)
    work_ns = np.bincount(tasks.task_of, weights=unit_ns, minlength=tasks.count)
    starts, by_stratum = tasks.by_stratum
    return _Shape(
        work_ns, tasks.before_starts, tasks.before, tasks.after_starts, tasks.after, starts,
        by_stratum, goes_on=False,
    )  # fmt: skip


def _versioned(batch: PlannedBatch, costs: Thresholds) -> np.ndarray:
    """The work of each unit with the copies of the rows it looks at."""
    looked_at = np.diff(batch.precedence.units.read_starts)
    found: np.ndarray = batch.unit_ns + costs.version_ns_per_operation * looked_at
    return found


def order_taken(
    batch: PlannedBatch, strategy: str, cores: int, costs: Thresholds
) -> tuple[float, np.ndarray]:
    """How long an exploration takes, and its tasks as they are begun."""
    scheme = make_scheme(strategy, cores)
    shape = _shape(batch, scheme.granularity, costs)
    begins, signal_ns = _threads(cores, costs)
    order = np.full(len(shape.work_ns), -1, np.int64)
    if scheme.kind.kernel == "strata":
        makespan_ns = _strata(
            shape.strata_starts, shape.by_stratum, shape.work_ns, begins,
            _barrier_ns(cores, costs), signal_ns, order,
        )  # fmt: skip
    elif scheme.kind.kernel == "depth":
        makespan_ns = _depth(
            shape.by_stratum, shape.before_starts, shape.before, shape.work_ns, begins,
            signal_ns, order,
        )  # fmt: skip
    else:
        makespan_ns = _ready(
            shape.before_starts, shape.after_starts, shape.after, shape.work_ns, begins, signal_ns,
            shape.goes_on, order,
        )  # fmt: skip
    return float(makespan_ns), order


def _explore(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    return order_taken(batch, str(scheme), scheme.threads, costs)[0]


def _threads(cores: int, costs: Thresholds) -> tuple[np.ndarray, float]:
    """When each core comes to work, for threads start one after another; and a signal.

    The start was measured with two threads. One core alone needs no thread.
    """
    each_ns = 0.0 if cores == 1 else costs.start_ns / 2
    return np.arange(1, cores + 1) * each_ns, float(costs.signal_ns)


def _barrier_ns(cores: int, costs: Thresholds) -> float:
    """Measured with two; every further core adds itself to the same word."""
    return 0.0 if cores == 1 else float(costs.barrier_ns + costs.signal_ns * (cores - 2))


def _take_turns(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    operations, work_ns = batch.operations, batch.work_ns
    if scheme.by_units:
        work_ns = work_ns + costs.version_ns_per_operation * np.diff(operations.starts)
    makespan_ns = _turns(
        operations.starts, operations.rows, operations.writes, batch.row_count, work_ns,
        *_threads(scheme.threads, costs), scheme.by_units,
    )  # fmt: skip
    return float(makespan_ns)


def _count_partitions(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    operations = batch.operations
    makespan_ns = _partitions(
        operations.starts, operations.rows, batch.work_ns, *_threads(scheme.threads, costs),
    )  # fmt: skip
    return float(makespan_ns)


def _go_round(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    tasks, graph = batch.plain_chains, batch.precedence
    pools = scheme.threads if scheme.pool == "nothing" else 1
    begins, signal_ns = _threads(scheme.threads, costs)
    makespan_ns = _chains(
        tasks.starts, tasks.members, tasks.task_of, graph.before_starts, graph.before,
        graph.after_starts, graph.after, _versioned(batch, costs), begins, pools, signal_ns,
    )  # fmt: skip
    return float(makespan_ns)


# By what a scheme's kernel needs, see parallel/scheme.py.
_REPLAYS: dict[str, Callable[[PlannedBatch, Scheme, Thresholds], float]] = {
    "graph": _explore,
    "pools": _go_round,
    "locks": _take_turns,
    "turns": _take_turns,
    "partitions": _count_partitions,
}
_EXPLORED = [
    name if grain == "transaction" else f"{name}-{grain}"
    for name in EXPLORATIONS
    for grain in GRANULARITIES
]
STRATEGIES = ("serial", *_EXPLORED, "tstream", "tstream-nothing", "lal", "lwm", "pat")


def _prelude_ns(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    """What one thread does alone: the plan, and pauses for aborts."""
    each = costs.unit_plan_ns_per_operation if scheme.by_units else costs.plan_ns_per_operation
    pauses = batch.aborts if scheme.by_units and not scheme.kind.is_whole else 0
    if scheme.kind.needs == "pools":  # TStream settles once, at the end
        pauses = min(1, pauses)
    return each * len(batch.operations.rows) + costs.abort_ns * pauses


def simulate(batch: PlannedBatch, strategy: str, cores: int, costs: Thresholds) -> float:
    """The nanoseconds that the batch takes by this strategy on this many cores."""
    if cores < 1:
        raise InputError(f"cores is {cores}; it must be at least 1")
    if strategy == "serial":
        return batch.serial_ns
    if strategy not in STRATEGIES:
        raise InputError(f"no strategy {strategy!r}; there are: {', '.join(STRATEGIES)}")
    if batch.operations.units == 0:
        return 0.0
    scheme = make_scheme(strategy, cores)
    makespan_ns = _REPLAYS[scheme.kind.needs](batch, scheme, costs)
    return makespan_ns + _prelude_ns(batch, scheme, costs)


def critical_path_ns(batch: PlannedBatch, is_by_units: bool) -> float:
    """The longest way through the graph: no number of cores is faster."""
    if is_by_units:
        graph: Tasks | Graph = batch.unit_tasks
        work_ns = batch.unit_ns
    else:
        graph, work_ns = batch.graph, batch.work_ns
    # Edges lead from lower to higher numbers, so that order is one in which none comes too early.
    order = np.arange(len(work_ns))
    return float(longest_path(order, work_ns, graph.after_starts, graph.after))
