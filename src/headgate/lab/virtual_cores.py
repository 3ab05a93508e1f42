"""Virtual cores: strategies replayed event by event on them, as their kernels would go.

Each gives the time, and an exploration in `order` the tasks as they are begun: what the kernels of
kernels/explorations.py do, which a test compares. Invariant: a replay takes what a kernel takes, in
its pieces, and counts what that costs, no more.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from headgate.kernels.explorations import CHUNKS_PER_THREAD
from headgate.kernels.shares import RUN_EVENTS, SECTION_EVENTS, linked, share_events, share_of
from headgate.parallel.whole_transactions import PARTITIONS_PER_THREAD
from headgate.state.compiled import numba


@numba.njit(cache=True)
def replay_strata(
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
def replay_depth(
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
def replay_ready(
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
def replay_turns(
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
def replay_partitions(
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
def replay_shares(
    starts: np.ndarray, rows: np.ndarray, writes: np.ndarray, row_count: int, work: np.ndarray,
    begins: np.ndarray, plan_ns: float, barrier_ns: float, signal_ns: float,
) -> float:  # fmt: skip
    """Half of the plan by events, half by rows, all meet after each; then blocks as they come."""
    free, cores, units = begins.copy(), len(begins), len(starts) - 1
    done = np.zeros(-(-units // RUN_EVENTS))  # by block: when it has ended
    all_done = np.zeros(len(done))  # and all before it
    last = np.zeros(row_count, np.int64)
    for first in range(0, units, SECTION_EVENTS):
        end = min(first + SECTION_EVENTS, units)
        mine = share_events(end - first, cores)
        for core in range(cores):
            begin = min(first + core * mine, end)
            operations = starts[min(begin + mine, end)] - starts[begin]
            free[core] += plan_ns / 2 * operations
        free[:] = free.max() + barrier_ns
        for place in range(starts[first], starts[end]):
            free[share_of(rows[place], cores)] += plan_ns / 2
        free[:] = free.max() + barrier_ns
        for begin in range(first, end, RUN_EVENTS):
            block, core = begin // RUN_EVENTS, int(np.argmin(free))
            now = free[core] + signal_ns
            for unit in range(begin, min(begin + RUN_EVENTS, end)):
                for place in range(starts[unit], starts[unit + 1]):
                    found, last[rows[place]] = linked(
                        last[rows[place]], block + 1, writes[place], first // RUN_EVENTS + 1
                    )
                    if found > 0:
                        now = max(now, done[found - 2] + signal_ns)
                    elif found < 0:
                        now = max(now, all_done[-found - 2] + signal_ns)
                now += work[unit]
            done[block] = free[core] = now
            all_done[block] = max(now, all_done[block - 1]) if block else now
    return float(free.max())


@numba.njit(cache=True)
def _is_free(unit: int, before_starts: np.ndarray, before: np.ndarray, is_done: np.ndarray) -> bool:
    for edge in range(before_starts[unit], before_starts[unit + 1]):
        if not is_done[before[edge]]:
            return False
    return True


WAITS, OPEN, HELD, OVER = 0, 1, 2, 3  # of a chain; OPEN stands in its pool


@numba.njit(cache=True)
def replay_chains(
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
