"""Over versions: units attempted beside the tables, where an abort may send others back.

A task is a unit, or a chain of them. A unit reads the newest versions before its transaction and
writes its own beside them, see versions.py; nothing in a table changes until the batch has ended.
"""

from __future__ import annotations

from headgate.kernels.atomics import (
    DONE,
    DONE_COUNT,
    FAIL_COUNT,
    FAR,
    GAVE_UP,
    IDLE,
    NEXT,
    PARKED,
    TASK_COUNT,
    end_meeting,
    meet,
)
from headgate.kernels.binding import apart, kernel, list_units, part, perform
from headgate.kernels.frame import (
    BASES,
    CLAIM,
    CODES,
    COUNT,
    FAILED,
    LISTS,
    LOCALS,
    MEMBERS,
    ORDER,
    PART,
    RANK,
    READ_STARTS,
    READS,
    ROWS,
    SIZES,
    SLOTS,
    STARTS,
    STATE,
    STRATA,
    SYNC,
    TABLES,
    TASK_AFTER,
    TASK_AFTER_STARTS,
    TASK_STARTS,
    TIMES,
    TRANSACTION_OF,
    UNIT_OF,
    UNIT_STARTS,
    WAITING,
    WRITES,
)
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.ticks import (
    UNDOING,
    USEFUL,
    spend,
    tick,
)
from headgate.kernels.versions import (
    ABT,
    BLK,
    EXE,
    HAS_RAISED,
    RANK_ABORT,
    RANK_RAISED,
    fail,
    make_ready,
    queue_ready,
    settle,
)
from headgate.state.compiled import linked, numba
from headgate.state.words import add, load, store, swap_if

MAY_UNDO = True  # an abort sends back who had read what it wrote


# --- one unit -------------------------------------------------------------------------------------


@linked
def note_operation(
    place: int, index: int, table: int, slot: int, write: int, first: int, k: int, frame: int
) -> int:
    """Operation k of an event whose operations begin at `first`, unless it has the row already.

    Beside the slot, at `index` of access number `place`, stands which operation it is, and where
    its copy is among the scratch rows. Returns the place after the last operation.
    """
    lists, rows, tables = fixed(frame, LISTS), fixed(frame, ROWS), fixed(frame, TABLES)
    q = -1
    if slot >= 0:
        row, local, q = get(fixed(frame, BASES), table) + slot, 0, k
        for other in range(first, k):
            if get(rows, other) == row:
                q = other
            elif get(tables, other) == table:
                local += 1
        if q < k:
            put(fixed(frame, WRITES), q, get(fixed(frame, WRITES), q) | write)
        else:
            put(rows, k, row)
            put(tables, k, table)
            put(fixed(frame, WRITES), k, write)
            put(fixed(frame, SLOTS), k, slot)
            put(fixed(frame, LOCALS), k, local)
            put(fixed(frame, UNIT_OF), k, -1)
            k += 1
        put(get(lists, 2 * place + 1), index, get(fixed(frame, LOCALS), q))
    put(get(lists, 2 * place), index, q)
    return k


@linked
def begin_unit(u: int, i: int, slice_number: int, r: int, frame: int) -> None:
    """Unit u is a slice of position i, or with -1 all of it; its reads begin at r."""
    put(fixed(frame, TRANSACTION_OF), u, i)
    put(fixed(frame, PART), u, slice_number)
    put(fixed(frame, READ_STARTS), u, r)


@linked
def whole_unit(u: int, i: int, first: int, k: int, r: int, frame: int) -> int:
    """Unit u is all of position i, with operations first..k; returns the place after its reads."""
    begin_unit(u, i, -1, r, frame)
    for q in range(first, k):
        put(fixed(frame, READS), r, q)
        r += 1
        if get(fixed(frame, WRITES), q):
            put(fixed(frame, UNIT_OF), q, u)
    return r


@kernel
def collect(whole: int, frame: int) -> int:
    """The operations and units of every transaction, in serial order."""
    order, count = fixed(frame, ORDER), fixed(frame, COUNT)
    starts, unit_starts, sizes = (
        fixed(frame, STARTS), fixed(frame, UNIT_STARTS), fixed(frame, SIZES),
    )  # fmt: skip
    k, u, r = 0, 0, 0
    for i in range(count):
        put(starts, i, k)
        put(unit_starts, i, u)
        k, u, r = list_units(get(order, i), i, whole, k, u, r, frame)
    put(starts, count, k)
    put(unit_starts, count, u)
    put(fixed(frame, READ_STARTS), u, r)
    put(sizes, 0, k)
    put(sizes, 1, u)
    put(sizes, 2, r)
    return 0


@apart
def try_unit(u: int, keys: int, frame: int) -> int:
    """Run one unit; its code and the rank of that are all that it leaves behind if it fails."""
    i = get(fixed(frame, TRANSACTION_OF), u)
    code = 0
    try:
        code = perform(u, i, get(fixed(frame, ORDER), i), keys, frame)
    except Exception:
        code = HAS_RAISED
        put(fixed(frame, RANK), u, RANK_RAISED)
    put(fixed(frame, CODES), u, code)
    return code


@part
def attempt_unit(u: int, frame: int) -> int:
    """One unit by one thread; 1 when an abort must be settled before others go on."""
    i, times = get(fixed(frame, TRANSACTION_OF), u), fixed(frame, TIMES)
    if load(fixed(frame, FAILED), i):
        store(fixed(frame, STATE), u, ABT)
        return 0
    began = tick(times)
    code = try_unit(u, numba.int64(0), frame)
    spend(times, USEFUL, began)
    if code != 0:
        store(fixed(frame, STATE), u, ABT)
        return fail(u, frame)
    swap_if(fixed(frame, STATE), u, BLK, EXE)
    return load(fixed(frame, FAILED), i)


@kernel
def reasons(thread: int, threads: int, frame: int) -> int:
    """Units of a failed transaction that did not run may know a reason that comes first."""
    starts, codes, count = fixed(frame, UNIT_STARTS), fixed(frame, CODES), fixed(frame, COUNT)
    for i in range(count * thread // threads, count * (thread + 1) // threads):
        if get(fixed(frame, FAILED), i) == 0:
            continue
        best = FAR
        for u in range(get(starts, i), get(starts, i + 1)):
            if get(codes, u) != 0:
                best = min(best, get(fixed(frame, RANK), u))
        for u in range(get(starts, i), get(starts, i + 1)):
            if get(codes, u) == 0:
                try_unit(u, numba.int64(1 if best <= RANK_ABORT else 0), frame)
    return 0


# --- one task, as the explorations see it ---------------------------------------------------------


@part
def attempt(task: int, eager: int, frame: int) -> int:
    """Where aborts are settled at once, a chain stops at the first that needs it."""
    starts, members = fixed(frame, TASK_STARTS), fixed(frame, MEMBERS)
    for place in range(get(starts, task), get(starts, task + 1)):
        u = get(members, place)
        if load(fixed(frame, STATE), u) < EXE and attempt_unit(u, frame) and eager:
            return 1
    return 0


@part
def is_run(task: int, frame: int) -> bool:
    starts, members = fixed(frame, TASK_STARTS), fixed(frame, MEMBERS)
    for place in range(get(starts, task), get(starts, task + 1)):
        if load(fixed(frame, STATE), get(members, place)) < EXE:
            return False
    return True


@part
def finish(task: int, frame: int) -> int:
    """The task is done and those after it hear of it, or it goes back into the queue."""
    sync, claim, waiting = fixed(frame, SYNC), fixed(frame, CLAIM), fixed(frame, WAITING)
    if is_run(task, frame) and load(waiting, task) == 0:
        store(claim, task, DONE)
        starts, after = fixed(frame, TASK_AFTER_STARTS), fixed(frame, TASK_AFTER)
        for edge in range(get(starts, task), get(starts, task + 1)):
            if add(waiting, get(after, edge), -1) == 1:
                make_ready(get(after, edge), frame)
        add(sync, DONE_COUNT, 1)
        return -1
    store(claim, task, IDLE)
    if load(waiting, task) == 0:
        make_ready(task, frame)
    return -1


@part
def next_stratum(stratum: int, eager: int, frame: int) -> int:
    """The next one, or the lowest that has something to run again."""
    sync, times, strata = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, STRATA)
    level = FAR
    if load(sync, FAIL_COUNT) and (eager or stratum == strata - 1):
        settled = tick(times)
        level = settle(frame)
        spend(times, UNDOING, settled)
    if load(sync, GAVE_UP):
        level = strata
    elif load(sync, PARKED):
        level = min(level, stratum)
    elif level > stratum:
        level = stratum + 1
    store(sync, PARKED, 0)
    return level


@part
def is_over(threads: int, is_queued: int, frame: int) -> int:
    """Meet when all tasks are done, settle what failed, and see whether all still are."""
    sync, times = fixed(frame, SYNC), fixed(frame, TIMES)
    if meet(sync, threads):
        if load(sync, FAIL_COUNT) and not load(sync, GAVE_UP):
            settled = tick(times)
            settle(frame)
            if is_queued:
                queue_ready(frame)
            spend(times, UNDOING, settled)
        is_done = load(sync, DONE_COUNT) == get(sync, TASK_COUNT) or load(sync, GAVE_UP)
        store(sync, NEXT, 1 if is_done else 0)
        end_meeting(sync)
    return load(sync, NEXT)
