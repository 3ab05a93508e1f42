"""Versions: the rows of a running batch by the operation that wrote them, and the way of an abort.

Nothing in a table changes while units run: an operation writes its version beside, and whoever
reads a row finds the newest version before its own transaction that was not aborted. A unit goes
BLK -> RDY (T1, what it waits for is done) -> EXE (T2) or is tried ahead of its turn (T3); it
becomes ABT when its transaction fails (T4). What had read an aborted version goes back: to RDY if
it can run at once (T5), to BLK if it must wait again (T6).

`settle` does T4 to T6 while no unit runs: at a barrier, or with all threads parked.
"""

from __future__ import annotations

from headgate.kernels.atomics import add, give_way, load, store, swap_if
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.compiled import numba

BLK, RDY, EXE, ABT = 0, 1, 2, 3  # of a unit
IDLE, QUEUED, TAKEN, DONE = 0, 1, 2, 3  # of a task
RAISED = -(2**60)  # the code of a unit whose function raised
RANK_ABORT, RANK_CHECK, RANK_RAISED, RANK_FOLLOW = 1000, 2000, 4000, 5000
GIVE_UP_FACTOR = 16  # more units than this times their number undone: run the batch serially

# The words of a plan: the address of an array each.
(
    PREVIOUS, OFFSETS, LOCALS, UNIT_OF, CHANGED, VERSIONS, STATE, CODE, RANK, FAILED,
    TRANSACTION_OF, PART, UNIT_STARTS, FAILS, AFTER_STARTS, AFTER, TASK_OF, CLAIM, WAITING,
    TASK_AFTER_STARTS, TASK_AFTER, STRATUM, QUEUE, STACK, SYNC, TASK_STARTS, MEMBERS, ORDER, ROUTE,
    TASK_BEFORE_STARTS, TASK_BEFORE, BEFORE_STARTS, BEFORE,
    LISTS,  # and from here on two for each access: its operations, its places in the scratch rows
) = range(34)  # fmt: skip

# The words of SYNC, each on a cache line of its own.
(
    HEAD, TAIL, DONE_COUNT, STOP, PARKED, GENERATION, FAIL_COUNT, ARRIVED, ROUND, NEXT, LEVEL,
    UNDONE, GAVE_UP, STACK_SIZE, QUEUE_SIZE, TASK_COUNT, UNIT_COUNT, ABORTS,
) = (8 * line for line in range(18))  # fmt: skip
SYNC_WORDS = 8 * 18
FAR = 2**60


@numba.njit(nogil=True)
def found(plan: int, operation: int, base: int) -> int:
    """The address of the version that an operation reads; `base` is that of its row."""
    earlier = get(get(plan, PREVIOUS), operation)
    while earlier >= 0:
        if get(get(plan, STATE), get(get(plan, UNIT_OF), earlier)) != ABT:
            return get(plan, VERSIONS) + 8 * get(get(plan, OFFSETS), earlier)
        earlier = get(get(plan, PREVIOUS), earlier)
    return base


@numba.njit(nogil=True)
def fail(plan: int, unit: int) -> int:
    """The unit's transaction fails; 1 if another unit of it has run already."""
    transaction = get(get(plan, TRANSACTION_OF), unit)
    sync = get(plan, SYNC)
    if swap_if(get(plan, FAILED), transaction, 0, 1):
        put(get(plan, FAILS), add(sync, FAIL_COUNT, 1), transaction)
    starts = get(plan, UNIT_STARTS)
    for other in range(get(starts, transaction), get(starts, transaction + 1)):
        if load(get(plan, STATE), other) == EXE:
            return 1
    return 0


@numba.njit(nogil=True)
def _push(plan: int, unit: int) -> int:
    sync = get(plan, SYNC)
    size = get(sync, STACK_SIZE)
    put(get(plan, STACK), size, unit)
    put(sync, STACK_SIZE, size + 1)
    put(sync, UNDONE, get(sync, UNDONE) + 1)
    return 0


@numba.njit(nogil=True)
def _reopen(plan: int, unit: int) -> int:
    """The unit's task must run again, and those after it wait for it."""
    task = get(get(plan, TASK_OF), unit)
    claim, sync = get(plan, CLAIM), get(plan, SYNC)
    put(sync, LEVEL, min(get(sync, LEVEL), get(get(plan, STRATUM), task)))
    if get(claim, task) != DONE:
        return 0
    put(claim, task, IDLE)
    put(sync, DONE_COUNT, get(sync, DONE_COUNT) - 1)
    starts = get(plan, TASK_AFTER_STARTS)
    for place in range(get(starts, task), get(starts, task + 1)):
        other = get(get(plan, TASK_AFTER), place)
        put(get(plan, WAITING), other, get(get(plan, WAITING), other) + 1)
        if get(claim, other) == QUEUED:
            put(claim, other, IDLE)  # whoever takes it from the queue finds it so and goes on
    return 0


@numba.njit(nogil=True)
def _undo(plan: int, unit: int) -> int:
    put(get(plan, STATE), unit, BLK)
    _reopen(plan, unit)
    return _push(plan, unit)


@numba.njit(nogil=True)
def _revive(plan: int, transaction: int) -> int:
    """What made the transaction fail has changed: all of it is tried again."""
    put(get(plan, FAILED), transaction, 0)
    starts = get(plan, UNIT_STARTS)
    for unit in range(get(starts, transaction), get(starts, transaction + 1)):
        put(get(plan, CODE), unit, 0)
        if get(get(plan, STATE), unit) != BLK:
            _undo(plan, unit)
    return 0


@numba.njit(nogil=True)
def settle(plan: int) -> int:
    """Abort what failed transactions have left and undo what had read it; no unit is running.

    Returns the lowest stratum with something to run again, or FAR.
    """
    sync, state = get(plan, SYNC), get(plan, STATE)
    put(sync, LEVEL, FAR)
    put(sync, STACK_SIZE, 0)
    starts = get(plan, UNIT_STARTS)
    for place in range(get(sync, FAIL_COUNT)):
        transaction = get(get(plan, FAILS), place)
        if get(get(plan, FAILED), transaction) == 0:
            continue
        put(sync, ABORTS, get(sync, ABORTS) + 1)
        for unit in range(get(starts, transaction), get(starts, transaction + 1)):
            if get(state, unit) == EXE:
                put(state, unit, ABT)  # T4
                _push(plan, unit)
        _spread(plan)
    put(sync, FAIL_COUNT, 0)
    if get(sync, UNDONE) > GIVE_UP_FACTOR * get(sync, UNIT_COUNT) + 1000:
        put(sync, GAVE_UP, 1)
    return get(sync, LEVEL)


@numba.njit(nogil=True)
def _spread(plan: int) -> int:
    """Undo all that had read a version which is no more."""
    sync, state = get(plan, SYNC), get(plan, STATE)
    starts = get(plan, AFTER_STARTS)
    while get(sync, STACK_SIZE) > 0:
        size = get(sync, STACK_SIZE) - 1
        put(sync, STACK_SIZE, size)
        unit = get(get(plan, STACK), size)
        for place in range(get(starts, unit), get(starts, unit + 1)):
            reader = get(get(plan, AFTER), place)
            if get(state, reader) == EXE:
                _undo(plan, reader)  # T5, T6
            elif get(state, reader) == ABT:
                if get(get(plan, CODE), reader) != 0:
                    _revive(plan, get(get(plan, TRANSACTION_OF), reader))
                else:
                    _undo(plan, reader)
    return 0


# --- the queue of ready tasks -------------------------------------------------------------------


@numba.njit(nogil=True)
def make_ready(plan: int, task: int) -> int:
    """Put a task that waits for nothing more into the queue, once."""
    sync = get(plan, SYNC)
    if swap_if(get(plan, CLAIM), task, IDLE, QUEUED):
        place = add(sync, TAIL, 1)
        if place >= get(sync, QUEUE_SIZE):
            store(sync, GAVE_UP, 1)
        else:
            store(get(plan, QUEUE), place, task)
    return 0


@numba.njit(nogil=True)
def queue_ready(plan: int) -> int:
    """Queue every task that can run now, after `settle`."""
    sync = get(plan, SYNC)
    for task in range(get(sync, TASK_COUNT)):
        if get(get(plan, CLAIM), task) == IDLE and get(get(plan, WAITING), task) == 0:
            make_ready(plan, task)
    return 0


# --- threads that wait for each other -----------------------------------------------------------


@numba.njit(nogil=True)
def park(sync: int) -> int:
    """Wait, with no unit running here, until whoever stopped the others lets them go on."""
    generation = load(sync, GENERATION)
    if load(sync, STOP) == 0:
        return 0
    add(sync, PARKED, 1)
    spins = 0
    while load(sync, GENERATION) == generation:
        spins += 1
        if spins > 200:
            give_way()
    return 0


@numba.njit(nogil=True)
def pause(plan: int, threads: int, is_queued: int) -> int:
    """Stop the other threads between two units, settle, and let them go on."""
    sync = get(plan, SYNC)
    while load(sync, FAIL_COUNT) > 0 and load(sync, GAVE_UP) == 0:
        if swap_if(sync, STOP, 0, 1):
            spins = 0
            while load(sync, PARKED) < threads - 1 and load(sync, GAVE_UP) == 0:
                spins += 1
                if spins > 200:
                    give_way()
            if load(sync, GAVE_UP) == 0:
                settle(plan)
                if is_queued:
                    queue_ready(plan)
            store(sync, PARKED, 0)
            store(sync, STOP, 0)
            add(sync, GENERATION, 1)
            return 0
        park(sync)
    return 0


@numba.njit(nogil=True)
def meet(sync: int, threads: int) -> bool:
    """Whether this thread comes last to a meeting; it must `part`. The others return after that."""
    before = load(sync, ROUND)
    if add(sync, ARRIVED, 1) == threads - 1:
        return True
    spins = 0
    while load(sync, ROUND) == before:
        spins += 1
        if spins > 200:
            give_way()
    return False


@numba.njit(nogil=True)
def part(sync: int) -> int:
    """End the meeting."""
    store(sync, ARRIVED, 0)
    add(sync, ROUND, 1)
    return 0


# --- the end of a batch -------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def judge(plan: int, transactions: int, reason: int) -> int:
    """The reason of every transaction, 0 if committed; 1 if a function raised where it counts."""
    starts, codes, ranks = get(plan, UNIT_STARTS), get(plan, CODE), get(plan, RANK)
    raised = 0
    for transaction in range(transactions):
        chosen, best, has_raised = 0, FAR, False
        if get(get(plan, FAILED), transaction):
            for unit in range(get(starts, transaction), get(starts, transaction + 1)):
                code = get(codes, unit)
                if code == 0:
                    continue
                has_raised |= code == RAISED
                if get(ranks, unit) < best:
                    chosen, best = code, get(ranks, unit)
        if has_raised and best >= RANK_ABORT:
            raised = 1
        put(reason, transaction, chosen)
    return raised


@numba.njit(nogil=True, cache=True)
def install(
    plan: int, operations: int, epoch: int, words: int, widths: int, slots: int, table_of: int,
    changed: int, counts: int,
) -> int:  # fmt: skip
    """Copy versions into their rows in serial order, so the last stays; note which rows changed."""
    state, unit_of = get(plan, STATE), get(plan, UNIT_OF)
    for operation in range(operations):
        unit = get(unit_of, operation)
        if unit < 0 or get(state, unit) != EXE or get(get(plan, CHANGED), operation) == 0:
            continue
        table = get(table_of, operation)
        width, slot = get(widths, table), get(slots, operation)
        row = get(words, table) + 8 * slot * width
        version = get(plan, VERSIONS) + 8 * get(get(plan, OFFSETS), operation)
        is_first = get(row, 0) >> 8 != epoch
        for word in range(1, width):
            put(row, word, get(version, word))
        alive = get(version, 0) & 1
        put(row, 0, (epoch << 8) | alive)
        if is_first:
            count = get(counts, 2 * table)
            put(get(changed, table), count, slot)
            put(counts, 2 * table, count + 1)
        if alive == 0:
            put(counts, 2 * table + 1, 1)
    return 0
