"""Versions: the rows of a running batch by the operation that wrote them, and the way of an abort.

Nothing in a table changes while units run: an operation writes its version beside, and whoever
reads a row finds the newest version before its own transaction that was not aborted. A unit goes
BLK -> RDY (T1, what it waits for is done) -> EXE (T2) or is tried ahead of its turn (T3); it
becomes ABT when its transaction fails (T4). What had read an aborted version goes back: to RDY if
it can run at once (T5), to BLK if it must wait again (T6).

`settle` does T4 to T6 while no unit runs: at a barrier, or with all threads parked.
"""

from __future__ import annotations

from headgate.kernels.atomics import (
    ABORTS,
    DONE,
    DONE_COUNT,
    FAIL_COUNT,
    FAR,
    GAVE_UP,
    GENERATION,
    IDLE,
    LEVEL_REACHED,
    PARKED,
    QUEUE_SIZE,
    QUEUED,
    SPINS_BEFORE_YIELD,
    STACK_SIZE,
    STOP,
    TAIL,
    TASK_COUNT,
    UNDONE,
    UNIT_COUNT,
)
from headgate.kernels.frame import (
    AFTER,
    AFTER_STARTS,
    CLAIM,
    CODES,
    COUNT,
    COUNTS,
    EPOCH,
    FAILED,
    FAILS,
    HOME_CHANGED,
    HOME_ROWS,
    HOME_WIDTH,
    HOMES,
    PREVIOUS,
    QUEUE,
    RANK,
    REASON,
    SLOTS,
    STACK,
    STATE,
    STRATUM,
    SYNC,
    TABLE_WORDS,
    TABLES,
    TASK_AFTER,
    TASK_AFTER_STARTS,
    TASK_OF,
    TRANSACTION_OF,
    UNIT_OF,
    UNIT_STARTS,
    VERSION_CHANGED,
    VERSION_OFFSETS,
    VERSIONS,
    WAITING,
)
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.state.compiled import linked, numba
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT
from headgate.state.words import add, give_way, load, store, swap_if

BLK, RDY, EXE, ABT = 0, 1, 2, 3  # of a unit
HAS_RAISED = -(2**60)  # the code of a unit whose function raised
RANK_ABORT, RANK_CHECK, RANK_RAISED, RANK_FOLLOW = 1000, 2000, 4000, 5000
GIVE_UP_FACTOR = 16  # more units than this times their number undone: run the batch serially


@linked
def found(operation: int, base: int, frame: int) -> int:
    """The address of the version that an operation reads; `base` is that of its row."""
    earlier = get(fixed(frame, PREVIOUS), operation)
    while earlier >= 0:
        if get(fixed(frame, STATE), get(fixed(frame, UNIT_OF), earlier)) != ABT:
            return fixed(frame, VERSIONS) + 8 * get(fixed(frame, VERSION_OFFSETS), earlier)
        earlier = get(fixed(frame, PREVIOUS), earlier)
    return base


@linked
def fail(unit: int, frame: int) -> int:
    """The unit's transaction fails; 1 if another unit of it has run already."""
    transaction = get(fixed(frame, TRANSACTION_OF), unit)
    sync = fixed(frame, SYNC)
    if swap_if(fixed(frame, FAILED), transaction, 0, 1):
        put(fixed(frame, FAILS), add(sync, FAIL_COUNT, 1), transaction)
    starts = fixed(frame, UNIT_STARTS)
    for other in range(get(starts, transaction), get(starts, transaction + 1)):
        if load(fixed(frame, STATE), other) == EXE:
            return 1
    return 0


@linked
def _push(unit: int, frame: int) -> int:
    sync = fixed(frame, SYNC)
    size = get(sync, STACK_SIZE)
    put(fixed(frame, STACK), size, unit)
    put(sync, STACK_SIZE, size + 1)
    put(sync, UNDONE, get(sync, UNDONE) + 1)
    return 0


@linked
def _reopen(unit: int, frame: int) -> int:
    """The unit's task must run again, and those after it wait for it."""
    task = get(fixed(frame, TASK_OF), unit)
    claim, sync = fixed(frame, CLAIM), fixed(frame, SYNC)
    put(sync, LEVEL_REACHED, min(get(sync, LEVEL_REACHED), get(fixed(frame, STRATUM), task)))
    if get(claim, task) != DONE:
        return 0
    put(claim, task, IDLE)
    put(sync, DONE_COUNT, get(sync, DONE_COUNT) - 1)
    starts = fixed(frame, TASK_AFTER_STARTS)
    for place in range(get(starts, task), get(starts, task + 1)):
        other = get(fixed(frame, TASK_AFTER), place)
        put(fixed(frame, WAITING), other, get(fixed(frame, WAITING), other) + 1)
        if get(claim, other) == QUEUED:
            put(claim, other, IDLE)  # whoever takes it from the queue finds it so and goes on
    return 0


@linked
def _undo(unit: int, frame: int) -> int:
    put(fixed(frame, STATE), unit, BLK)
    _reopen(unit, frame)
    return _push(unit, frame)


@linked
def _revive(transaction: int, frame: int) -> int:
    """What made the transaction fail has changed: all of it is tried again."""
    put(fixed(frame, FAILED), transaction, 0)
    starts = fixed(frame, UNIT_STARTS)
    for unit in range(get(starts, transaction), get(starts, transaction + 1)):
        put(fixed(frame, CODES), unit, 0)
        if get(fixed(frame, STATE), unit) != BLK:
            _undo(unit, frame)
    return 0


@linked
def settle(frame: int) -> int:
    """Abort what failed transactions have left and undo what had read it; no unit is running.

    Returns the lowest stratum with something to run again, or FAR.
    """
    sync, state = fixed(frame, SYNC), fixed(frame, STATE)
    put(sync, LEVEL_REACHED, FAR)
    put(sync, STACK_SIZE, 0)
    starts = fixed(frame, UNIT_STARTS)
    for place in range(get(sync, FAIL_COUNT)):
        transaction = get(fixed(frame, FAILS), place)
        if get(fixed(frame, FAILED), transaction) == 0:
            continue
        put(sync, ABORTS, get(sync, ABORTS) + 1)
        for unit in range(get(starts, transaction), get(starts, transaction + 1)):
            if get(state, unit) == EXE:
                put(state, unit, ABT)  # T4
                _push(unit, frame)
        _spread(frame)
    put(sync, FAIL_COUNT, 0)
    if get(sync, UNDONE) > GIVE_UP_FACTOR * get(sync, UNIT_COUNT) + 1000:
        put(sync, GAVE_UP, 1)
    return get(sync, LEVEL_REACHED)


@linked
def _spread(frame: int) -> int:
    """Undo all that had read a version which is no more."""
    sync, state = fixed(frame, SYNC), fixed(frame, STATE)
    starts = fixed(frame, AFTER_STARTS)
    while get(sync, STACK_SIZE) > 0:
        size = get(sync, STACK_SIZE) - 1
        put(sync, STACK_SIZE, size)
        unit = get(fixed(frame, STACK), size)
        for place in range(get(starts, unit), get(starts, unit + 1)):
            reader = get(fixed(frame, AFTER), place)
            if get(state, reader) == EXE:
                _undo(reader, frame)  # T5, T6
            elif get(state, reader) == ABT:
                if get(fixed(frame, CODES), reader) != 0:
                    _revive(get(fixed(frame, TRANSACTION_OF), reader), frame)
                else:
                    _undo(reader, frame)
    return 0


# --- the queue of ready tasks -------------------------------------------------------------------


@linked
def make_ready(task: int, frame: int) -> int:
    """Put a task that waits for nothing more into the queue, once."""
    sync = fixed(frame, SYNC)
    if swap_if(fixed(frame, CLAIM), task, IDLE, QUEUED):
        place = add(sync, TAIL, 1)
        if place >= get(sync, QUEUE_SIZE):
            store(sync, GAVE_UP, 1)
        else:
            store(fixed(frame, QUEUE), place, task)
    return 0


@numba.njit(nogil=True, cache=True)
def queue_ready(frame: int) -> int:
    """Queue every task that can run now, after `settle`."""
    sync = fixed(frame, SYNC)
    for task in range(get(sync, TASK_COUNT)):
        if get(fixed(frame, CLAIM), task) == IDLE and get(fixed(frame, WAITING), task) == 0:
            make_ready(task, frame)
    return 0


# --- threads that wait for each other -----------------------------------------------------------


@linked
def park(sync: int) -> int:
    """Wait, with no unit running here, until whoever stopped the others lets them go on."""
    generation = load(sync, GENERATION)
    if load(sync, STOP) == 0:
        return 0
    add(sync, PARKED, 1)
    spins = 0
    while load(sync, GENERATION) == generation:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            give_way()
    return 0


@linked
def pause(threads: int, is_queued: int, frame: int) -> int:
    """Stop the other threads between two units, settle, and let them go on."""
    sync = fixed(frame, SYNC)
    while load(sync, FAIL_COUNT) > 0 and load(sync, GAVE_UP) == 0:
        if swap_if(sync, STOP, 0, 1):
            spins = 0
            while load(sync, PARKED) < threads - 1 and load(sync, GAVE_UP) == 0:
                spins += 1
                if spins > SPINS_BEFORE_YIELD:
                    give_way()
            if load(sync, GAVE_UP) == 0:
                settle(frame)
                if is_queued:
                    queue_ready(frame)
            store(sync, PARKED, 0)
            store(sync, STOP, 0)
            add(sync, GENERATION, 1)
            return 0
        park(sync)
    return 0


# --- the end of a batch -------------------------------------------------------------------------


@numba.njit(nogil=True, cache=True)
def judge(frame: int) -> int:
    """The reason of every transaction, 0 if committed; 1 if a function raised where it counts."""
    starts, codes, ranks = fixed(frame, UNIT_STARTS), fixed(frame, CODES), fixed(frame, RANK)
    raised = 0
    for transaction in range(fixed(frame, COUNT)):
        chosen, best, has_raised = 0, FAR, False
        if get(fixed(frame, FAILED), transaction):
            for unit in range(get(starts, transaction), get(starts, transaction + 1)):
                code = get(codes, unit)
                if code == 0:
                    continue
                has_raised |= code == HAS_RAISED
                if get(ranks, unit) < best:
                    chosen, best = code, get(ranks, unit)
        if has_raised and best >= RANK_ABORT:
            raised = 1
        put(fixed(frame, REASON), transaction, chosen)
    return raised


@numba.njit(nogil=True, cache=True)
def install(operations: int, frame: int) -> int:
    """Copy versions into their rows in serial order, so the last stays; note which rows changed."""
    state, unit_of, counts = fixed(frame, STATE), fixed(frame, UNIT_OF), fixed(frame, COUNTS)
    homes, epoch = fixed(frame, HOMES), fixed(frame, EPOCH)
    for operation in range(operations):
        unit = get(unit_of, operation)
        if unit < 0 or get(state, unit) != EXE:
            continue
        if get(fixed(frame, VERSION_CHANGED), operation) == 0:
            continue
        table, slot = get(fixed(frame, TABLES), operation), get(fixed(frame, SLOTS), operation)
        home = homes + 8 * TABLE_WORDS * table
        width = get(home, HOME_WIDTH)
        row = get(home, HOME_ROWS) + 8 * slot * width
        version = fixed(frame, VERSIONS) + 8 * get(fixed(frame, VERSION_OFFSETS), operation)
        is_first = get(row, 0) >> HEADER_EPOCH_SHIFT != epoch
        for word in range(1, width):
            put(row, word, get(version, word))
        alive = get(version, 0) & HEADER_ALIVE
        put(row, 0, (epoch << HEADER_EPOCH_SHIFT) | alive)
        if is_first:
            count = get(counts, 2 * table)
            put(get(home, HOME_CHANGED), count, slot)
            put(counts, 2 * table, count + 1)
        if alive == 0:
            put(counts, 2 * table + 1, 1)
    return 0
