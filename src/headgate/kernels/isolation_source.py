"""Isolation source: the kernels of the lock-based and the timestamp-based protocol.

Both run the steps of the serial kernel, but tell a step by the slots it is given where each row is:
the row itself, or a copy of it in a scratch slot of this thread, beyond the table's last row. So a
step needs to know nothing of isolation, and two parameters that name one row still get one.

Locks: a transaction works on the rows themselves, under locks it keeps to its end; what it only
reads it locks as well from PL3 on, for the moment of the copy at PL2, never at PL1. Rows are locked
in one order over all tables, those for a moment as well, so that none waits for one who waits for
it; at PL4 one transaction after the other takes its locks, in event order.

Timestamps: a transaction works on copies and remembers their stamps; then it latches the rows it
changed, draws a number, sees whether what it read still has the same stamps, and installs its rows
or runs again. At PL4 the numbers are those of the events, whose turn it awaits.
"""

from __future__ import annotations

from headgate.kernels.source import SourceWriter

# The words of a frame that only protocols have.
PROTOCOL = (
    "level",  # 1 to 4, itself
    "count",  # of events, itself
    "sync",  # see SYNC_WORDS
    "rows",  # of each row of all tables: ROW_WORDS
    "stamps",  # by event: its number in the order of commits
    "tables",  # by table: TABLE_WORDS
    "bases",  # by table: the number of its first row
    "mine",  # the operations of the thread's event: OPERATION_WORDS each
    "turn",  # those in row order
    "elements",  # which of them each row of the parameters is
    "private",  # and where the step finds it
    "final",  # as `counts`, of what the thread has committed
    "retries",  # how often an event ran again
    "starts",  # of a recording: where the rows of an event begin
    "seen",  # the recording, or 0
    "own",  # the frame of the thread's steps, whose slots are set for each event
)
MOVING = ("slots",)
PROTOCOLS = ("lock", "timestamp")
ROW_WORDS = 4  # lock, version, turns of the version; one spare so that a row has its own half line
OPERATION_WORDS = 8  # row, table, slot, write, private slot, version, changed; one spare
TABLE_WORDS = 8  # words, width, first scratch slot, changed, images, changed copies
SEEN_WORDS = 3  # of a recording: row, version read, whether it was written
RAISED = -(2**62)  # no reason has this code
SYNC_WORDS = 32  # the next event, the next in turn, the next number; a cache line apart


class IsolationWriter:
    """Writes both protocols for one set of transactions."""

    def __init__(self, writer: SourceWriter) -> None:
        self.writer = writer

    def source(self) -> str:
        parts = [_FUNCTIONS]
        for number in range(len(self.writer.signatures)):
            parts += [self._gather_step(number), self._attempt_step(number)]
        parts += [self._resolve(), self._gather(), self._attempt()]
        words = {"tables": len(self.writer.tables), "raised": RAISED}
        parts += [_LOCK.format(**words), _TIMESTAMP.format(**words)]
        return "\n\n\n".join(self.writer.layout.bound(part) for part in parts) + "\n"

    def _branches(self, template: str) -> list[str]:
        return self.writer.branches(template, "    ")

    def _resolve(self) -> str:
        """Look up the rows of every event before anything runs."""
        lines = ["@njit(nogil=True, cache=True)"]
        lines += ["def resolve_all(events, frame):", "    FRAME"]
        lines += ["    for i in range(events):", "        e = get(order, i)"]
        lines += ["    " + line for line in self._branches("resolve_{0}(e, frame)")]
        return "\n".join([*lines, "    return 0"])

    def _gather_step(self, number: int) -> str:
        """The operations of one event, each row once; for each element which of them it is."""
        lines = ["@njit(nogil=True)", f"def gather_{number}(e, frame):", "    FRAME"]
        lines += ["    n = 0", "    o = 0"]
        for place, access in self.writer.accesses(number):
            table, write = self.writer.number(access.table), int(not access.read_only)
            call = f"n = note(mine, n, elements, o, {table}, get(bases, {table}), {{0}}, {write})"
            if access.form == "at":
                lines += ["    " + call.format(f"get(slots_{place}, e)"), "    o += 1"]
            else:
                span = f"get(offsets_{place}, e), get(offsets_{place}, e + 1)"
                lines.append(f"    for j in range({span}):")
                lines.append("        " + call.format(f"get(slots_{place}, j)"))
                lines.append("        o += 1")
        lines += ["    put(mine, 0, o)", "    return n"]
        return "\n".join(lines)

    def _attempt_step(self, number: int) -> str:
        """The step of one event over its private slots."""
        lines = ["@njit(nogil=True)"]
        lines += [f"def attempt_{number}(e, i, epoch, frame):", "    FRAME", "    o = 0"]
        for place, access in self.writer.accesses(number):
            slots = self.writer.layout.places[f"slots_{place}"]
            if access.form == "at":
                lines += [f"    put(own, {slots}, private + 8 * (o - e))", "    o += 1"]
            else:
                first = f"get(offsets_{place}, e)"
                lines.append(f"    put(own, {slots}, private + 8 * (o - {first}))")
                lines.append(f"    o += get(offsets_{place}, e + 1) - {first}")
        lines += ["    code = 0", "    try:"]
        lines += [f"        code = step_{number}(e, i, epoch, own)"]
        lines += ["    except Exception:", f"        restore_{number}(e, own)"]
        lines += [f"        code = {RAISED}", "    return code"]
        return "\n".join(lines)

    def _gather(self) -> str:
        lines = ["@njit(nogil=True)", "def gather(e, frame):", "    FRAME", "    n = 0"]
        lines += self._branches("n = gather_{0}(e, frame)")
        return "\n".join([*lines, "    return n"])

    def _attempt(self) -> str:
        lines = ["@njit(nogil=True)", "def attempt(e, i, epoch, frame):", "    FRAME"]
        lines += ["    code = 0", *self._branches("code = attempt_{0}(e, i, epoch, frame)")]
        return "\n".join([*lines, "    return code"])


_FUNCTIONS = '''@njit(nogil=True)
def note(mine, n, elements, o, table, base, slot, write):
    """Operation n, or the one that has this row; word 8 + 8 * n on are its own."""
    put(elements, o, -1)
    if slot < 0:
        return n
    for k in range(n):
        if get(mine, 8 + 8 * k) == base + slot:
            put(mine, 8 + 8 * k + 3, get(mine, 8 + 8 * k + 3) | write)
            put(elements, o, k)
            return n
    put(mine, 8 + 8 * n, base + slot)
    put(mine, 8 + 8 * n + 1, table)
    put(mine, 8 + 8 * n + 2, slot)
    put(mine, 8 + 8 * n + 3, write)
    put(elements, o, n)
    return n + 1


@njit(nogil=True)
def in_row_order(mine, turn, n):
    """The operations by row, sorted by ever smaller gaps."""
    for k in range(n):
        put(turn, k, k)
    gap = n // 2
    while gap > 0:
        for k in range(gap, n):
            moved = get(turn, k)
            place = k
            while place >= gap and (
                get(mine, 8 + 8 * get(turn, place - gap)) > get(mine, 8 + 8 * moved)
            ):
                put(turn, place, get(turn, place - gap))
                place -= gap
            put(turn, place, moved)
        gap //= 2


@njit(nogil=True)
def settle(mine, elements, private):
    """The slot of each element, now that every operation knows its own."""
    for o in range(get(mine, 0)):
        k = get(elements, o)
        put(private, o, -1 if k < 0 else get(mine, 8 + 8 * k + 4))


@njit(nogil=True)
def copy_row(mine, k, tables):
    """Copy the row of operation k to its scratch slot, word by word as others see them."""
    table = 8 * get(mine, 8 + 8 * k + 1)
    words = get(tables, table)
    width = get(tables, table + 1)
    slot = get(mine, 8 + 8 * k + 2)
    scratch = get(tables, table + 2) + k
    put(mine, 8 + 8 * k + 4, scratch)
    for w in range(width):
        put(words, scratch * width + w, load(words, slot * width + w))
    put(words, scratch * width, get(words, scratch * width) & 1)


@njit(nogil=True)
def acquire(rows, row, write):
    """A row's first word: 0 free, -1 taken for writing, n taken by n readers."""
    spins = 0
    while True:
        held = load(rows, 4 * row)
        if write:
            if held == 0 and swap_if(rows, 4 * row, 0, -1):
                return 0
        elif held >= 0 and swap_if(rows, 4 * row, held, held + 1):
            return 0
        spins += 1
        if spins > 200:
            give_way()


@njit(nogil=True)
def release(rows, row, write):
    if write:
        store(rows, 4 * row, 0)
    else:
        add(rows, 4 * row, -1)
    return 0


@njit(nogil=True)
def dirty_copy(rows, row, mine, k, tables):
    """Copy a row without a lock, whoever is at work on it; returns the version it belongs to."""
    while True:
        turns = load(rows, 4 * row + 2)
        version = load(rows, 4 * row + 1)
        copy_row(mine, k, tables)
        if load(rows, 4 * row + 2) == turns:
            return version


@njit(nogil=True)
def clean_copy(rows, row, mine, k, tables):
    """Copy a row that nobody is installing; returns its stamp."""
    spins = 0
    while True:
        stamp = load(rows, 4 * row)
        if stamp & 1 == 0:
            copy_row(mine, k, tables)
            if load(rows, 4 * row) == stamp:
                return stamp
        spins += 1
        if spins > 200:
            give_way()


@njit(nogil=True)
def copy_all(level, rows, mine, n, tables):
    """Copy every row with its stamp; from PL3 on all as of one moment, so that a function never
    sees what no serial order shows, not even in a run that is then thrown away."""
    while True:
        for k in range(n):
            stamp = clean_copy(rows, get(mine, 8 + 8 * k), mine, k, tables)
            put(mine, 8 + 8 * k + 5, stamp)
        same = True
        for k in range(n if level >= 3 else 0):
            same &= load(rows, 4 * get(mine, 8 + 8 * k)) == get(mine, 8 + 8 * k + 5)
        if same:
            return 0


@njit(nogil=True)
def install(mine, k, tables, final, epoch):
    """Put the copy of operation k in place of its row; the row is latched."""
    number = get(mine, 8 + 8 * k + 1)
    table = 8 * number
    words = get(tables, table)
    width = get(tables, table + 1)
    slot = get(mine, 8 + 8 * k + 2)
    scratch = get(mine, 8 + 8 * k + 4)
    if get(words, slot * width) >> 8 != epoch:
        count = get(final, 2 * number)
        put(get(tables, table + 3), count, slot)
        for w in range(width):
            put(get(tables, table + 4), count * width + w, get(words, slot * width + w))
        put(final, 2 * number, count + 1)
    if get(words, scratch * width) & 1 == 0:
        put(final, 2 * number + 1, 1)
    for w in range(width):
        store(words, slot * width + w, get(words, scratch * width + w))


@njit(nogil=True)
def note_changed(mine, n, tables, table_count, counts):
    """Which operations changed their copies, by the lists that the step has made."""
    for k in range(n):
        put(mine, 8 + 8 * k + 6, 0)
    for table in range(table_count):
        for place in range(get(counts, 2 * table)):
            scratch = get(get(tables, 8 * table + 5), place)
            put(mine, 8 + 8 * (scratch - get(tables, 8 * table + 2)) + 6, 1)


@njit(nogil=True)
def unlatch(rows, mine, turn, last):
    """Give the changed rows among the first in row order back as they were."""
    for t in range(last):
        k = get(turn, t)
        if get(mine, 8 + 8 * k + 6):
            store(rows, 4 * get(mine, 8 + 8 * k), get(mine, 8 + 8 * k + 5))
    return -1


@njit(nogil=True)
def draw(level, unit, sync, rows, mine, turn, n):
    """Latch, draw a number, validate; returns the number, or -1 when another was faster."""
    for t in range(n):
        k = get(turn, t)
        if get(mine, 8 + 8 * k + 6):
            stamp = get(mine, 8 + 8 * k + 5)
            if not swap_if(rows, 4 * get(mine, 8 + 8 * k), stamp, stamp | 1):
                return unlatch(rows, mine, turn, t)
    number = unit if level == 4 else add(sync, 16, 1)
    for k in range(n):
        needed = level >= 3 or get(mine, 8 + 8 * k + 3)
        if needed and not get(mine, 8 + 8 * k + 6):
            if load(rows, 4 * get(mine, 8 + 8 * k)) != get(mine, 8 + 8 * k + 5):
                return unlatch(rows, mine, turn, n)
    return number


@njit(nogil=True)
def record(seen, place, row, version, wrote):
    if seen != 0:
        put(seen, 3 * place, row)
        put(seen, 3 * place + 1, version)
        put(seen, 3 * place + 2, wrote)'''

_LOCK = '''@njit(nogil=True, cache=True)
def lock(thread, epoch, frame):
    """Two-phase locking: the numbers are drawn while all locks are held; in level 4, where locks
    are taken in the order of the events, they are those of the events."""
    FRAME
    while True:
        unit = add(sync, 0, 1)
        if unit >= count:
            return
        e = get(order, unit)
        n = gather(e, frame)
        in_row_order(mine, turn, n)
        if level == 4:
            wait_for(sync, 8, unit)
        for t in range(n):
            k = get(turn, t)
            row = get(mine, 8 + 8 * k)
            write = get(mine, 8 + 8 * k + 3)
            if write or level >= 2:
                acquire(rows, row, write)
            if level == 2 and not write:
                copy_row(mine, k, tables)
                put(mine, 8 + 8 * k + 5, load(rows, 4 * row + 1))
                release(rows, row, 0)
        if level == 4:
            store(sync, 8, unit + 1)
        for t in range(n):
            k = get(turn, t)
            row = get(mine, 8 + 8 * k)
            if get(mine, 8 + 8 * k + 3):
                put(mine, 8 + 8 * k + 4, get(mine, 8 + 8 * k + 2))
                put(mine, 8 + 8 * k + 5, load(rows, 4 * row + 1))
                if level == 1:
                    store(rows, 4 * row + 1, -1 - unit)
                    add(rows, 4 * row + 2, 1)
            elif level >= 3:
                put(mine, 8 + 8 * k + 4, get(mine, 8 + 8 * k + 2))
                put(mine, 8 + 8 * k + 5, load(rows, 4 * row + 1))
            elif level == 1:
                put(mine, 8 + 8 * k + 5, dirty_copy(rows, row, mine, k, tables))
        settle(mine, elements, private)
        code = attempt(e, unit, epoch, frame)
        if code == {raised}:
            add(raised, 0, 1)
        number = unit if level == 4 else add(sync, 16, 1)
        put(stamps, unit, number)
        put(reason, unit, code)
        for k in range(n):
            row = get(mine, 8 + 8 * k)
            write = get(mine, 8 + 8 * k + 3)
            version = get(mine, 8 + 8 * k + 5)
            record(seen, get(starts, unit) + k, row, version, write)
            if write:
                store(rows, 4 * row + 1, number + 1 if code == 0 else version)
                if level == 1:
                    add(rows, 4 * row + 2, 1)
            if write or level >= 3:
                release(rows, row, write)'''

_TIMESTAMP = '''@njit(nogil=True, cache=True)
def timestamp(thread, epoch, frame):
    """Copies, stamps and validation; who was overtaken runs again."""
    FRAME
    table_count = {tables}
    while True:
        unit = add(sync, 0, 1)
        if unit >= count:
            return
        e = get(order, unit)
        n = gather(e, frame)
        in_row_order(mine, turn, n)
        tries = 0
        while True:
            copy_all(level, rows, mine, n, tables)
            settle(mine, elements, private)
            for table in range(table_count):
                put(counts, 2 * table, 0)
            code = attempt(e, unit, epoch, frame)
            note_changed(mine, n, tables, table_count if code == 0 else 0, counts)
            if level == 4:
                wait_for(sync, 8, unit)
            number = draw(level, unit, sync, rows, mine, turn, n)
            if number >= 0:
                break
            tries += 1
            add(retries, 0, 1)
            for wait in range(tries * (thread + 1) if level < 4 and tries < 100 else 0):
                give_way()
        if code == {raised}:
            add(raised, 0, 1)
        put(stamps, unit, number)
        put(reason, unit, code)
        for k in range(n):
            row = get(mine, 8 + 8 * k)
            changed = get(mine, 8 + 8 * k + 6)
            record(seen, get(starts, unit) + k, row, get(mine, 8 + 8 * k + 5) >> 1, changed)
            if changed:
                install(mine, k, tables, final, epoch)
                store(rows, 4 * row, (number + 1) << 1)
        if level == 4:
            store(sync, 8, unit + 1)'''
