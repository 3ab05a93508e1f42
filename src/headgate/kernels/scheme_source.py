"""Scheme source: the text of the kernels by which threads share one batch, over the serial steps.

Every scheme runs the same `attempt` of one transaction; they differ in what a thread waits for
before it. An exception must not leave a kernel here, for others wait for this thread: the event is
undone and counted, and the batch is then put back as it was and run again by the serial scheme,
which knows how to name the error.
"""

from __future__ import annotations

from headgate.kernels.source import BLOCK_EVENTS, SourceWriter

SCHEMES = ("strata", "depth", "ready", "lal", "pat", "nolock")


class SchemeWriter:
    """Writes the parallel kernels of one set of transactions."""

    def __init__(self, writer: SourceWriter) -> None:
        self.writer = writer

    def source(self) -> str:
        parts = [self._resolve(), self._collect(), _NOTE, self._attempt()]
        parts += [_STRATA, _DEPTH, _READY, _LAL, _PAT, _NOLOCK]
        return "\n\n\n".join(self.writer.layout.bound(part) for part in parts) + "\n"

    def _resolve(self) -> str:
        """Look up the rows of every event, as a plan needs them before anything runs."""
        lines = ["@njit(nogil=True, cache=True)"]
        lines += ["def resolve(count, frame):", "    FRAME"]
        lines += [f"    for block in range(0, count, {BLOCK_EVENTS}):"]
        for step in ("seek", "fetch", "resolve"):
            lines += [f"        for i in range(block, min(block + {BLOCK_EVENTS}, count)):"]
            lines += ["            e = get(order, i)"]
            lines += self.writer.branches(f"{step}_{{0}}(e, frame)", "            ")
        return "\n".join([*lines, "    return 0"])

    def _collect(self) -> str:
        """The operations of every transaction: rows numbered over all tables, each row once."""
        lines = ["@njit(nogil=True, cache=True)"]
        lines += ["def collect(count, bases, starts, rows, writes, frame):", "    FRAME"]
        lines += ["    k = 0", "    for i in range(count):", "        e = get(order, i)"]
        lines += ["        put(starts, i, k)", "        first = k"]
        for number in range(len(self.writer.signatures)):
            inside = "        "
            if len(self.writer.signatures) > 1:
                lines.append(f"        if get(route, e) == {number}:")
                inside = "            "
            lines += self._collect_accesses(number, inside)
        lines += ["    put(starts, count, k)", "    return k"]
        return "\n".join(lines)

    def _collect_accesses(self, number: int, inside: str) -> list[str]:
        lines = []
        for place, access in self.writer.accesses(number):
            table, write = self.writer.number(access.table), int(not access.read_only)
            call = f"k = note(rows, writes, first, k, get(bases, {table}), {{0}}, {write})"
            if access.form == "at":
                lines.append(inside + call.format(f"get(slots_{place}, e)"))
            else:
                span = f"get(offsets_{place}, e), get(offsets_{place}, e + 1)"
                lines.append(f"{inside}for j in range({span}):")
                lines.append(f"{inside}    " + call.format(f"get(slots_{place}, j)"))
        return lines or [f"{inside}pass"]

    def _attempt(self) -> str:
        """One transaction by one thread: its reason code is all that it leaves behind."""
        lines = ["@njit(nogil=True)", "def attempt(i, epoch, frame):", "    FRAME"]
        lines += ["    e = get(order, i)", "    code = 0", "    began = tick(times)", "    try:"]
        lines += self.writer.branches("code = step_{0}(e, i, epoch, frame)", "        ")
        lines += ["    except Exception:", "        add(raised, 0, 1)"]
        lines += self.writer.branches("restore_{0}(e, frame)", "        ")
        lines += ["    spend(times, 0, began)", "    put(reason, i, code)", "    return 0"]
        return "\n".join(lines)


_NOTE = """@njit(nogil=True)
def note(rows, writes, first, k, base, slot, write):
    if slot < 0:
        return k
    for known in range(first, k):
        if get(rows, known) == base + slot:
            put(writes, known, get(writes, known) | write)
            return k
    put(rows, k, base + slot)
    put(writes, k, write)
    return k + 1"""

_STRATA = '''@njit(nogil=True, cache=True)
def strata(thread, threads, sync, strata_count, starts, units, taken, epoch, frame):
    """Structured, breadth first: all of one stratum, then a barrier."""
    FRAME
    for stratum in range(strata_count):
        first, last = get(starts, stratum), get(starts, stratum + 1)
        chunk = max(1, (last - first) // (16 * threads))
        while True:  # whoever is free takes the next few, as threads are not equally fast
            begin = first + add(taken, stratum, chunk)
            if begin >= last:
                break
            for place in range(begin, min(begin + chunk, last)):
                attempt(get(units, place), epoch, frame)
        if threads > 1:
            waited = tick(times)
            barrier(sync, threads)
            spend(times, 1, waited)'''

_DEPTH = '''@njit(nogil=True, cache=True)
def depth(thread, threads, count, units, before_starts, before, done, epoch, frame):
    """Structured, depth first: each thread its share of every stratum, waiting for its own."""
    FRAME
    for place in range(thread, count, threads):
        unit = get(units, place)
        waited = tick(times)
        for edge in range(get(before_starts, unit), get(before_starts, unit + 1)):
            wait_for(done, get(before, edge), 1)
        spend(times, 1, waited)
        attempt(unit, epoch, frame)
        store(done, unit, 1)'''

_READY = '''@njit(nogil=True, cache=True)
def ready(count, sync, queue, after_starts, after, waiting, epoch, frame):
    """Non-structured: whoever is free takes the next ready one and signals those after it.

    The first that it makes ready it runs itself, whose rows it has at hand, and so goes down the
    longest paths without delay.
    """
    FRAME
    while True:
        turn = add(sync, 0, 1)
        if turn >= count:
            return
        spins, waited = 0, tick(times)
        while load(queue, turn) < 0:
            if load(sync, 2) >= count:
                return
            spins += 1
            if spins > 200:
                give_way()
        spend(times, 1, waited)
        unit = load(queue, turn)
        while unit >= 0:
            attempt(unit, epoch, frame)
            found = -1
            for edge in range(get(after_starts, unit), get(after_starts, unit + 1)):
                other = get(after, edge)
                if add(waiting, other, -1) == 1:
                    if found < 0:
                        found = other
                    else:
                        store(queue, add(sync, 1, 1), other)
            add(sync, 2, 1)
            unit = found'''

_LAL = '''@njit(nogil=True, cache=True)
def lal(thread, threads, count, sync, locks, starts, rows, writes, epoch, frame):
    """Lock-ahead two-phase locking: locks are taken in serial order, one transaction at a time."""
    FRAME
    for unit in range(thread, count, threads):
        waited = tick(times)
        wait_for(sync, 0, unit)
        spend(times, 1, waited)
        waited = tick(times)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            lock(locks, get(rows, k), get(writes, k))
        spend(times, 2, waited)
        store(sync, 0, unit + 1)
        attempt(unit, epoch, frame)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            if get(writes, k):
                store(locks, get(rows, k), 0)
            else:
                add(locks, get(rows, k), -1)


@njit(nogil=True)
def lock(locks, row, write):
    """Word: 0 free, -1 taken for writing, n taken by n readers."""
    spins = 0
    while True:
        held = load(locks, row)
        if write:
            if held == 0 and swap_if(locks, row, 0, -1):
                return 0
        elif held >= 0 and swap_if(locks, row, held, held + 1):
            return 0
        spins += 1
        if spins > 200:
            give_way()'''

_PAT = '''@njit(nogil=True, cache=True)
def pat(thread, threads, count, counters, starts, parts, tickets, epoch, frame):
    """Partitions with a counter each: a transaction waits for its turn in all of its own."""
    FRAME
    for unit in range(thread, count, threads):
        waited = tick(times)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            wait_for(counters, get(parts, k), get(tickets, k))
        spend(times, 2, waited)
        attempt(unit, epoch, frame)
        for k in range(get(starts, unit), get(starts, unit + 1)):
            store(counters, get(parts, k), get(tickets, k) + 1)'''

_NOLOCK = '''@njit(nogil=True, cache=True)
def nolock(thread, threads, count, taken, epoch, frame):
    """No order and no isolation: a bound for speed, wrong on purpose."""
    chunk = max(1, count // (16 * threads))
    while True:
        begin = add(taken, 0, chunk)
        if begin >= count:
            return
        for unit in range(begin, min(begin + chunk, count)):
            attempt(unit, epoch, frame)'''
