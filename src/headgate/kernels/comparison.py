"""Comparison: the kernels of schemes that are kept to be measured beside our own.

In the tables: lock-ahead two-phase locking (`lal`), a counter for each partition (`pat`), and no
order at all (`nolock`). Over versions: TStream's operation chains (`chains`) and the low water mark
(`lwm`). Positions are taken in serial order, a thread every so many.
"""

from __future__ import annotations

from headgate.kernels.atomics import (
    DONE,
    FAIL_COUNT,
    FAR,
    GAVE_UP,
    IDLE,
    NEXT,
    SPINS_BEFORE_YIELD,
    TAKEN,
    TASK_COUNT,
    acquire,
    end_meeting,
    meet,
    release,
    wait_for,
)
from headgate.kernels.binding import attempt, kernel, part
from headgate.kernels.explorations import CHUNKS_PER_THREAD
from headgate.kernels.frame import (
    BEFORE,
    BEFORE_STARTS,
    CLAIM,
    COUNT,
    COUNTERS,
    LOCKS,
    MEMBERS,
    PARTS,
    PLACES,
    POOL,
    POOL_BEGIN,
    POOL_FIRST,
    POOL_LAST,
    ROWS,
    STARTS,
    STATE,
    SYNC,
    TAILS,
    TASK_STARTS,
    TICKETS,
    TIMES,
    WATER_MARKS,
    WRITES,
)
from headgate.kernels.over_versions import attempt_unit
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.ticks import LOCKED, UNDOING, WAITED, spend, tick
from headgate.kernels.versions import EXE, settle
from headgate.state.words import add, give_way, load, store, swap_if

# --- in the tables --------------------------------------------------------------------------------


@kernel
def lal(thread: int, threads: int, frame: int) -> int:
    """Lock-ahead two-phase locking: locks are taken in serial order, one transaction at a time."""
    sync, times, locks = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, LOCKS)
    starts, rows, writes = fixed(frame, STARTS), fixed(frame, ROWS), fixed(frame, WRITES)
    for i in range(thread, fixed(frame, COUNT), threads):
        waited = tick(times)
        wait_for(sync, NEXT, i)
        spend(times, WAITED, waited)
        waited = tick(times)
        for k in range(get(starts, i), get(starts, i + 1)):
            acquire(locks, get(rows, k), get(writes, k))
        spend(times, LOCKED, waited)
        store(sync, NEXT, i + 1)
        attempt(i, 0, frame)
        for k in range(get(starts, i), get(starts, i + 1)):
            release(locks, get(rows, k), get(writes, k))
    return 0


@kernel
def pat(thread: int, threads: int, frame: int) -> int:
    """Partitions with a counter each: a transaction waits for its turn in all of its own."""
    times, counters, starts = fixed(frame, TIMES), fixed(frame, COUNTERS), fixed(frame, STARTS)
    parts, tickets = fixed(frame, PARTS), fixed(frame, TICKETS)
    for i in range(thread, fixed(frame, COUNT), threads):
        waited = tick(times)
        for k in range(get(starts, i), get(starts, i + 1)):
            wait_for(counters, get(parts, k), get(tickets, k))
        spend(times, LOCKED, waited)
        attempt(i, 0, frame)
        for k in range(get(starts, i), get(starts, i + 1)):
            store(counters, get(parts, k), get(tickets, k) + 1)
    return 0


@kernel
def nolock(thread: int, threads: int, frame: int) -> int:
    """No order and no isolation: a bound for speed, wrong on purpose."""
    sync, count = fixed(frame, SYNC), fixed(frame, COUNT)
    chunk = max(1, count // (CHUNKS_PER_THREAD * threads))
    while True:
        begin = add(sync, NEXT, chunk)
        if begin >= count:
            return 0
        for i in range(begin, min(begin + chunk, count)):
            attempt(i, 0, frame)


# --- over versions --------------------------------------------------------------------------------


@part
def walk(chain: int, frame: int) -> bool:
    """Run a chain from where it stands as far as the versions it reads are there."""
    starts, members, places = (
        fixed(frame, TASK_STARTS), fixed(frame, MEMBERS), fixed(frame, PLACES),
    )  # fmt: skip
    state, edges, before = fixed(frame, STATE), fixed(frame, BEFORE_STARTS), fixed(frame, BEFORE)
    last = get(starts, chain + 1)
    place = get(starts, chain) + get(places, chain)
    while place < last:
        u = get(members, place)
        if load(state, u) < EXE:
            for edge in range(get(edges, u), get(edges, u + 1)):
                if load(state, get(before, edge)) < EXE:
                    put(places, chain, place - get(starts, chain))
                    return False
            attempt_unit(u, frame)
        place += 1
    put(places, chain, last - get(starts, chain))
    return True


@part
def go_round(frame: int) -> int:
    """Until every chain of the thread's pool is done, leaving one that cannot go on."""
    claim, pool, places = fixed(frame, CLAIM), fixed(frame, POOL), fixed(frame, PLACES)
    first, last, times = fixed(frame, POOL_FIRST), fixed(frame, POOL_LAST), fixed(frame, TIMES)
    place, left, spins = fixed(frame, POOL_BEGIN), last - first, 0
    while left > 0:
        left, moved = 0, 0
        for _ in range(last - first):
            chain = get(pool, place)
            place = place + 1 if place + 1 < last else first
            found = load(claim, chain)
            if found == DONE:
                continue
            left += 1
            if found == IDLE and swap_if(claim, chain, IDLE, TAKEN):
                before = get(places, chain)
                is_done = walk(chain, frame)
                moved += get(places, chain) - before
                store(claim, chain, DONE if is_done else IDLE)
        if moved == 0 and left > 0:
            waited = tick(times)
            spins += 1
            if spins > SPINS_BEFORE_YIELD // 10:
                give_way()
            spend(times, WAITED, waited)
    return 0


@kernel
def chains(thread: int, threads: int, frame: int) -> int:
    """TStream: threads go round the chains of their pools, and settle aborts when all are done."""
    sync, times, places = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, PLACES)
    while True:
        go_round(frame)
        waited = tick(times)
        is_last = meet(sync, threads)
        spend(times, WAITED, waited)
        if is_last:
            level = FAR
            if load(sync, FAIL_COUNT):
                settled = tick(times)
                level = settle(frame)
                for chain in range(get(sync, TASK_COUNT)):
                    put(places, chain, 0)
                spend(times, UNDOING, settled)
            store(sync, NEXT, 1 if level == FAR or load(sync, GAVE_UP) else 0)
            end_meeting(sync)
        if load(sync, NEXT):
            return 0


@kernel
def lwm(thread: int, threads: int, frame: int) -> int:
    """Low water mark: places are taken in serial order, a write waits for the writes before it,
    a read for its version only. A unit is a whole transaction here."""
    sync, times, tickets = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, TICKETS)
    starts, rows, writes = fixed(frame, STARTS), fixed(frame, ROWS), fixed(frame, WRITES)
    tails, marks = fixed(frame, TAILS), fixed(frame, WATER_MARKS)
    for i in range(thread, fixed(frame, COUNT), threads):
        waited = tick(times)
        wait_for(sync, NEXT, i)
        for k in range(get(starts, i), get(starts, i + 1)):
            row = get(rows, k)
            put(tickets, k, get(tails, row))
            if get(writes, k):
                put(tails, row, get(tails, row) + 1)
        store(sync, NEXT, i + 1)
        for k in range(get(starts, i), get(starts, i + 1)):
            spins = 0
            while load(marks, get(rows, k)) < get(tickets, k):
                spins += 1
                if spins > SPINS_BEFORE_YIELD:
                    give_way()
        spend(times, LOCKED, waited)
        attempt_unit(i, frame)
        for k in range(get(starts, i), get(starts, i + 1)):
            if get(writes, k):
                store(marks, get(rows, k), get(tickets, k) + 1)
    return 0
