"""Explorations: how threads go through the tasks of a batch, whatever a task is.

Structured breadth first (`strata`), structured depth first (`depth`), non-structured (`ready`). How
a task is attempted is the way's affair: in the tables (in_place.py), where what has run has run, or
over versions (versions.py), where an abort may send others back: only there is MAY_UNDO true, and
all that it guards is gone from the kernels of the other way before they are compiled.
"""

from __future__ import annotations

from headgate.kernels.atomics import (
    DONE,
    DONE_COUNT,
    GAVE_UP,
    HEAD,
    IDLE,
    NEXT,
    PARKED,
    QUEUE_SIZE,
    QUEUED,
    SPINS_BEFORE_YIELD,
    STOP,
    TAKEN,
    TASK_COUNT,
    end_meeting,
    meet,
)
from headgate.kernels.binding import attempt, finish, is_over, is_run, kernel, next_stratum, part
from headgate.kernels.frame import (
    BY_STRATUM,
    CLAIM,
    EAGER,
    QUEUE,
    STRATA,
    STRATA_STARTS,
    SYNC,
    TASK_BEFORE,
    TASK_BEFORE_STARTS,
    TIMES,
    WAITING,
)
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.ticks import UNDOING, WAITED, spend, tick
from headgate.kernels.versions import park, pause
from headgate.state.words import add, give_way, load, store, swap_if

MAY_UNDO = False  # the way's own takes its place
CHUNKS_PER_THREAD = 16  # a stratum is taken in so many pieces by each


@kernel
def strata(thread: int, threads: int, frame: int) -> int:
    """Breadth first: all of one stratum, then a meeting, where aborts are settled."""
    sync, times, claim = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, CLAIM)
    starts, tasks = fixed(frame, STRATA_STARTS), fixed(frame, BY_STRATUM)
    stratum, eager = 0, fixed(frame, EAGER)
    while stratum < fixed(frame, STRATA):
        first, last = get(starts, stratum), get(starts, stratum + 1)
        chunk = max(1, (last - first) // (CHUNKS_PER_THREAD * threads))
        while True:  # whoever is free takes the next few, as threads are not equally fast
            begin = first + add(sync, NEXT, chunk)
            if begin >= last:
                break
            for place in range(begin, min(begin + chunk, last)):
                task = get(tasks, place)
                if MAY_UNDO and get(claim, task) == DONE:
                    continue
                attempt(task, eager, frame)
                if MAY_UNDO:
                    if is_run(task, frame):
                        put(claim, task, DONE)
                        add(sync, DONE_COUNT, 1)
                    else:
                        store(sync, PARKED, 1)  # this stratum is not over
        waited = tick(times)
        is_last = meet(sync, threads)
        spend(times, WAITED, waited)
        if is_last:
            store(sync, HEAD, next_stratum(stratum, eager, frame))
            store(sync, NEXT, 0)
            end_meeting(sync)
        if MAY_UNDO and load(sync, HEAD) <= stratum:
            eager = 1  # what runs again settles its aborts at once, lest it does so for ever
        stratum = load(sync, HEAD)
    return 0


@part
def is_free(task: int, frame: int) -> bool:
    """Whether all that the task waits for is done."""
    starts, before = fixed(frame, TASK_BEFORE_STARTS), fixed(frame, TASK_BEFORE)
    claim = fixed(frame, CLAIM)
    for edge in range(get(starts, task), get(starts, task + 1)):
        if load(claim, get(before, edge)) != DONE:
            return False
    return True


@kernel
def depth(thread: int, threads: int, frame: int) -> int:
    """Depth first: each thread its share of every stratum, waiting for its own dependencies."""
    sync, times, claim = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, CLAIM)
    tasks, count = fixed(frame, BY_STRATUM), get(sync, TASK_COUNT)
    place, spins, eager = thread, 0, fixed(frame, EAGER)
    while True:
        if MAY_UNDO:
            if load(sync, STOP):
                park(sync)
                place = thread
            if load(sync, GAVE_UP) or load(sync, DONE_COUNT) == count:
                if is_over(threads, 0, frame):
                    return 0
                place, eager = thread, 1  # what runs again settles its aborts at once
                continue
        elif place >= count:
            return 0
        task = get(tasks, place) if place < count else -1
        if MAY_UNDO and task >= 0 and load(claim, task) == DONE:
            place += threads
            continue
        if task < 0 or not is_free(task, frame):
            waited = tick(times)
            spins += 1
            if spins > SPINS_BEFORE_YIELD:
                give_way()
            spend(times, WAITED, waited)
            continue
        spins = 0
        if MAY_UNDO:
            put(claim, task, TAKEN)
            if attempt(task, eager, frame):
                settled = tick(times)
                pause(threads, 0, frame)
                spend(times, UNDOING, settled)
                place = thread
            if is_run(task, frame) and is_free(task, frame):
                store(claim, task, DONE)
                add(sync, DONE_COUNT, 1)
            else:
                store(claim, task, IDLE)
        else:
            attempt(task, eager, frame)
            store(claim, task, DONE)
            place += threads


@kernel
def ready(thread: int, threads: int, frame: int) -> int:
    """Non-structured: whoever is free takes the next ready task and signals those after it."""
    sync, times, claim = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, CLAIM)
    queue, count = fixed(frame, QUEUE), get(sync, TASK_COUNT)
    turn, spins, eager = -1, 0, fixed(frame, EAGER)
    while True:
        if MAY_UNDO:
            if load(sync, STOP):
                park(sync)
            if load(sync, GAVE_UP) or load(sync, DONE_COUNT) == count:
                if is_over(threads, 1, frame):
                    return 0
                eager = 1  # what runs again settles its aborts at once
                continue
        if turn < 0:
            turn = add(sync, HEAD, 1)
        task = load(queue, turn) if turn < get(sync, QUEUE_SIZE) else -1
        if task < 0:
            waited = tick(times)
            if not MAY_UNDO and load(sync, DONE_COUNT) >= count:
                return 0
            spins += 1
            if spins > SPINS_BEFORE_YIELD:
                give_way()
            spend(times, WAITED, waited)
            continue
        turn, spins = -1, 0
        if MAY_UNDO:
            if not swap_if(claim, task, QUEUED, TAKEN):
                continue
            while attempt(task, eager, frame):
                settled = tick(times)
                pause(threads, 1, frame)
                spend(times, UNDOING, settled)
                if load(sync, GAVE_UP) or load(fixed(frame, WAITING), task) != 0:
                    break
            finish(task, frame)
        else:
            while task >= 0:
                attempt(task, eager, frame)
                task = finish(task, frame)
