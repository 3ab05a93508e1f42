"""In place: whole transactions attempted in the tables themselves, by threads that wait for others.

A task is a position. Whoever runs it has waited for all that share a row with it, so it sees what
it would see in serial order, and nothing is ever run twice. An exception must not leave a kernel
here, for others wait for this thread: the event is undone and counted, and the batch is then put
back as it was and run by the serial loop, which knows how to name the error.
"""

from __future__ import annotations

from headgate.kernels.atomics import DONE_COUNT, TAIL
from headgate.kernels.binding import apart, kernel, list_rows, part, step, undo
from headgate.kernels.frame import (
    COUNT,
    EPOCH,
    ORDER,
    QUEUE,
    RAISED,
    REASON,
    ROWS,
    STARTS,
    SYNC,
    TASK_AFTER,
    TASK_AFTER_STARTS,
    TIMES,
    WAITING,
    WRITES,
)
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.serial import event_row
from headgate.kernels.ticks import USEFUL, spend, tick
from headgate.state.compiled import linked
from headgate.state.words import add, store

MAY_UNDO = False  # what has run has run


@kernel
def collect(frame: int) -> int:
    """The operations of every position: rows numbered over all tables, each once; how many."""
    order, starts, count = fixed(frame, ORDER), fixed(frame, STARTS), fixed(frame, COUNT)
    k = 0
    for i in range(count):
        put(starts, i, k)
        k = list_rows(get(order, i), k, frame)
    put(starts, count, k)
    return k


@linked
def note_row(row: int, write: int, first: int, k: int, frame: int) -> int:
    """Operation k of an event whose operations begin at `first`, unless it has the row already."""
    rows, writes = fixed(frame, ROWS), fixed(frame, WRITES)
    for known in range(first, k):
        if get(rows, known) == row:
            put(writes, known, get(writes, known) | write)
            return k
    put(rows, k, row)
    put(writes, k, write)
    return k + 1


@apart
def attempt(i: int, eager: int, frame: int) -> int:
    """One transaction by one thread: its reason code is all that it leaves behind."""
    times, e = fixed(frame, TIMES), event_row(fixed(frame, ORDER), i)
    code = 0
    began = tick(times)
    try:
        code = step(e, e, i, fixed(frame, EPOCH), frame)
    except Exception:
        add(fixed(frame, RAISED), 0, 1)
        undo(e, e, frame)
    spend(times, USEFUL, began)
    put(fixed(frame, REASON), i, code)
    return 0


@part
def is_run(i: int, frame: int) -> bool:
    return True


@part
def finish(i: int, frame: int) -> int:
    """Those that waited for it alone are ready. The first of them this thread runs itself, whose
    rows it has at hand, and so goes down the longest paths without delay."""
    sync, queue, waiting = fixed(frame, SYNC), fixed(frame, QUEUE), fixed(frame, WAITING)
    starts, after = fixed(frame, TASK_AFTER_STARTS), fixed(frame, TASK_AFTER)
    found = -1
    for edge in range(get(starts, i), get(starts, i + 1)):
        other = get(after, edge)
        if add(waiting, other, -1) == 1:
            if found < 0:
                found = other
            else:
                store(queue, add(sync, TAIL, 1), other)
    add(sync, DONE_COUNT, 1)
    return found


@part
def next_stratum(stratum: int, eager: int, frame: int) -> int:
    return stratum + 1


@part
def is_over(threads: int, is_queued: int, frame: int) -> int:
    return 1
