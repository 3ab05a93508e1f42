"""Exploration source: the text of how threads go through the units of a batch.

Structured breadth first (`strata`), structured depth first (`depth`), non-structured (`ready`), and
the two ways of others that work on versions: TStream's operation chains (`chains`) and the low
water mark (`lwm`). The plan is a frame of its own, see versions.py.
"""

from __future__ import annotations

from headgate.kernels import versions

_CONSTANTS = sorted((name for name in vars(versions) if name.isupper()), key=len, reverse=True)


def _named(text: str) -> str:
    for name in _CONSTANTS:
        text = text.replace(f"<{name}>", str(getattr(versions, name)))
    return text


_RUN_TASK = """@njit(nogil=True)
def run_task(task, eager, plan, scratch, times, frame):
    # Where aborts are settled at once, a chain stops at the first that needs it.
    starts, members = get(plan, <TASK_STARTS>), get(plan, <MEMBERS>)
    for place in range(get(starts, task), get(starts, task + 1)):
        u = get(members, place)
        if load(get(plan, <STATE>), u) < <EXE>:
            if attempt(u, plan, scratch, times, frame) and eager:
                return 1
    return 0


@njit(nogil=True)
def is_run(task, plan):
    starts, members = get(plan, <TASK_STARTS>), get(plan, <MEMBERS>)
    for place in range(get(starts, task), get(starts, task + 1)):
        if load(get(plan, <STATE>), get(members, place)) < <EXE>:
            return False
    return True"""

_STRATA = '''@njit(nogil=True, cache=True)
def strata(thread, threads, eager, plan, scratch, times, strata_count, starts, tasks, frame):
    """Structured, breadth first: all of one stratum, then a meeting, where aborts are settled."""
    sync = get(plan, <SYNC>)
    stratum = 0
    while stratum < strata_count:
        first, last = get(starts, stratum), get(starts, stratum + 1)
        chunk = max(1, (last - first) // (8 * threads))
        while True:
            begin = first + add(sync, <NEXT>, chunk)
            if begin >= last:
                break
            for place in range(begin, min(begin + chunk, last)):
                task = get(tasks, place)
                if get(get(plan, <CLAIM>), task) != <DONE>:
                    run_task(task, eager, plan, scratch, times, frame)
                    if is_run(task, plan):
                        put(get(plan, <CLAIM>), task, <DONE>)
                        add(sync, <DONE_COUNT>, 1)
                    else:
                        store(sync, <PARKED>, 1)  # this stratum is not over
        waited = tick(times)
        is_last = meet(sync, threads)
        spend(times, 1, waited)
        if is_last:
            level = <FAR>
            if load(sync, <FAIL_COUNT>) and (eager or stratum == strata_count - 1):
                settled = tick(times)
                level = settle(plan)
                spend(times, 3, settled)
            if load(sync, <GAVE_UP>):
                level = strata_count
            elif load(sync, <PARKED>):
                level = min(level, stratum)
            elif level > stratum:
                level = stratum + 1
            store(sync, <PARKED>, 0)
            store(sync, <HEAD>, level)
            store(sync, <NEXT>, 0)
            part(sync)
        if load(sync, <HEAD>) <= stratum:
            eager = 1  # what runs again settles its aborts at once, lest it runs again and again
        stratum = load(sync, <HEAD>)
    return 0'''

_READY = '''@njit(nogil=True)
def finish(task, plan, sync):
    """The task is done and those after it hear of it, or it goes back into the queue."""
    if is_run(task, plan) and load(get(plan, <WAITING>), task) == 0:
        store(get(plan, <CLAIM>), task, <DONE>)
        starts = get(plan, <TASK_AFTER_STARTS>)
        for place in range(get(starts, task), get(starts, task + 1)):
            other = get(get(plan, <TASK_AFTER>), place)
            if add(get(plan, <WAITING>), other, -1) == 1:
                make_ready(plan, other)
        add(sync, <DONE_COUNT>, 1)
        return 0
    store(get(plan, <CLAIM>), task, <IDLE>)
    if load(get(plan, <WAITING>), task) == 0:
        make_ready(plan, task)
    return 0


@njit(nogil=True, cache=True)
def ready(thread, threads, eager, plan, scratch, times, frame):
    """Non-structured: whoever is free takes the next ready task and signals those after it."""
    sync = get(plan, <SYNC>)
    turn, spins = -1, 0
    while True:
        if load(sync, <STOP>):
            park(sync)
        if load(sync, <GAVE_UP>) or load(sync, <DONE_COUNT>) == get(sync, <TASK_COUNT>):
            if meet(sync, threads):
                if load(sync, <FAIL_COUNT>) and not load(sync, <GAVE_UP>):
                    settled = tick(times)
                    settle(plan)
                    queue_ready(plan)
                    spend(times, 3, settled)
                done = load(sync, <DONE_COUNT>) == get(sync, <TASK_COUNT>)
                store(sync, <NEXT>, 1 if done or load(sync, <GAVE_UP>) else 0)
                part(sync)
            if load(sync, <NEXT>):
                return 0
            eager = 1  # what runs again settles its aborts at once
            continue
        if turn < 0:
            turn = add(sync, <HEAD>, 1)
        task = -1
        if turn < get(sync, <QUEUE_SIZE>):
            task = load(get(plan, <QUEUE>), turn)
        if task < 0:
            waited = tick(times)
            spins += 1
            if spins > 200:
                give_way()
            spend(times, 1, waited)
            continue
        turn, spins = -1, 0
        if not swap_if(get(plan, <CLAIM>), task, <QUEUED>, <TAKEN>):
            continue
        while run_task(task, eager, plan, scratch, times, frame):
            settled = tick(times)
            pause(plan, threads, 1)
            spend(times, 3, settled)
            if load(sync, <GAVE_UP>) or load(get(plan, <WAITING>), task) != 0:
                break
        finish(task, plan, sync)'''

_DEPTH = '''@njit(nogil=True)
def is_free(task, plan):
    """Whether all that the task waits for is done."""
    starts = get(plan, <TASK_BEFORE_STARTS>)
    for place in range(get(starts, task), get(starts, task + 1)):
        if load(get(plan, <CLAIM>), get(get(plan, <TASK_BEFORE>), place)) != <DONE>:
            return False
    return True


@njit(nogil=True, cache=True)
def depth(thread, threads, eager, plan, scratch, times, tasks, frame):
    """Structured, depth first: each thread its share of every stratum, waiting for its own."""
    sync = get(plan, <SYNC>)
    count = get(sync, <TASK_COUNT>)
    place, spins = thread, 0
    while True:
        if load(sync, <STOP>):
            park(sync)
            place = thread
        if load(sync, <GAVE_UP>) or load(sync, <DONE_COUNT>) == count:
            if meet(sync, threads):
                if load(sync, <FAIL_COUNT>) and not load(sync, <GAVE_UP>):
                    settled = tick(times)
                    settle(plan)
                    spend(times, 3, settled)
                done = load(sync, <DONE_COUNT>) == count or load(sync, <GAVE_UP>)
                store(sync, <NEXT>, 1 if done else 0)
                part(sync)
            if load(sync, <NEXT>):
                return 0
            place, eager = thread, 1  # what runs again settles its aborts at once
            continue
        task = get(tasks, place) if place < count else -1
        if task >= 0 and load(get(plan, <CLAIM>), task) == <DONE>:
            place += threads
            continue
        if task < 0 or not is_free(task, plan):
            waited = tick(times)
            spins += 1
            if spins > 200:
                give_way()
            spend(times, 1, waited)
            continue
        spins = 0
        put(get(plan, <CLAIM>), task, <TAKEN>)
        if run_task(task, eager, plan, scratch, times, frame):
            settled = tick(times)
            pause(plan, threads, 0)
            spend(times, 3, settled)
            place = thread
        if is_run(task, plan) and is_free(task, plan):
            store(get(plan, <CLAIM>), task, <DONE>)
            add(sync, <DONE_COUNT>, 1)
        else:
            store(get(plan, <CLAIM>), task, <IDLE>)'''

_CHAINS = '''@njit(nogil=True)
def walk(chain, plan, places, scratch, times, frame):
    """Run a chain from where it stands as far as the versions it reads are there."""
    starts, members = get(plan, <TASK_STARTS>), get(plan, <MEMBERS>)
    last = get(starts, chain + 1)
    place = get(starts, chain) + get(places, chain)
    while place < last:
        u = get(members, place)
        if load(get(plan, <STATE>), u) < <EXE>:
            edges = get(plan, <BEFORE_STARTS>)
            for edge in range(get(edges, u), get(edges, u + 1)):
                if load(get(plan, <STATE>), get(get(plan, <BEFORE>), edge)) < <EXE>:
                    put(places, chain, place - get(starts, chain))
                    return False
            attempt(u, plan, scratch, times, frame)
        place += 1
    put(places, chain, last - get(starts, chain))
    return True


@njit(nogil=True, cache=True)
def chains(thread, threads, first, last, begin, plan, scratch, times, pool, places, frame):
    """TStream: threads go round the chains of their pool, leaving one that cannot go on."""
    sync = get(plan, <SYNC>)
    while True:
        place, left, spins = begin, last - first, 0
        while left > 0:
            left, moved = 0, 0
            for _ in range(last - first):
                chain = get(pool, place)
                place = place + 1 if place + 1 < last else first
                held = load(get(plan, <CLAIM>), chain)
                if held == <DONE>:
                    continue
                left += 1
                if held == <IDLE> and swap_if(get(plan, <CLAIM>), chain, <IDLE>, <TAKEN>):
                    before = get(places, chain)
                    done = walk(chain, plan, places, scratch, times, frame)
                    moved += get(places, chain) - before
                    store(get(plan, <CLAIM>), chain, <DONE> if done else <IDLE>)
            if moved == 0 and left > 0:
                waited = tick(times)
                spins += 1
                if spins > 20:
                    give_way()
                spend(times, 1, waited)
        waited = tick(times)
        is_last = meet(sync, threads)
        spend(times, 1, waited)
        if is_last:
            level = <FAR>
            if load(sync, <FAIL_COUNT>):
                settled = tick(times)
                level = settle(plan)
                for chain in range(get(sync, <TASK_COUNT>)):
                    put(places, chain, 0)
                spend(times, 3, settled)
            store(sync, <NEXT>, 1 if level == <FAR> or load(sync, <GAVE_UP>) else 0)
            part(sync)
        if load(sync, <NEXT>):
            return 0'''

_LWM = '''@njit(nogil=True, cache=True)
def lwm(thread, threads, count, plan, scratch, times, starts, rows, writes, tails, marks, tickets,
        frame):
    """Low water mark: places are taken in serial order, a write waits for the writes before it,
    a read for its version only."""
    sync = get(plan, <SYNC>)
    for unit in range(thread, count, threads):
        waited = tick(times)
        wait_for(sync, <NEXT>, unit)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            row = get(rows, k)
            put(tickets, k, get(tails, row))
            if get(writes, k):
                put(tails, row, get(tails, row) + 1)
        store(sync, <NEXT>, unit + 1)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            spins = 0
            while load(marks, get(rows, k)) < get(tickets, k):
                spins += 1
                if spins > 200:
                    give_way()
        spend(times, 2, waited)
        attempt(unit, plan, scratch, times, frame)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            if get(writes, k):
                store(marks, get(rows, k), get(tickets, k) + 1)
    return 0'''

EXPLORATIONS = tuple(_named(text) for text in (_RUN_TASK, _STRATA, _READY, _DEPTH, _CHAINS, _LWM))
