"""Protocols: the lock-based and the timestamp-based kernel, which keep a level of isolation.

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

The rows of events are looked up a block ahead, by whoever has just run the first one of a block:
no event changes the index.
"""

from __future__ import annotations

from headgate.kernels.atomics import (
    DONE_COUNT,
    HEAD,
    NEXT,
    SPINS_BEFORE_YIELD,
    acquire,
    release,
    wait_for,
)
from headgate.kernels.binding import apart, approach, gather, kernel, part, point, step, undo
from headgate.kernels.frame import (
    COUNT,
    COUNTS,
    DONE_BLOCKS,
    ELEMENTS,
    EPOCH,
    FINAL,
    HELD,
    HOME_CHANGED,
    HOME_COPIES,
    HOME_IMAGES,
    HOME_ROWS,
    HOME_SCRATCH,
    HOME_WIDTH,
    HOMES,
    LEVEL,
    MINE,
    ORDER,
    OWN,
    PRIVATE,
    RAISED,
    REASON,
    RETRIES,
    SEEN,
    SEEN_STARTS,
    STAMPS,
    SYNC,
    TABLE_COUNT,
    TABLE_WORDS,
    TURN,
)
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.serial import BLOCK_EVENTS, find_block
from headgate.state.compiled import linked
from headgate.state.layout import HEADER_ALIVE, HEADER_EPOCH_SHIFT
from headgate.state.words import add, give_way, load, store, swap_if

PROTOCOLS = ("lock", "timestamp")
HAS_RAISED = -(2**62)  # no reason has this code

# Of each row of all tables: its lock or stamp, its version, how often that changed hands; one spare
# so that a row has its own half line.
LOCK, VERSION, HANDS = range(3)
ROW_WORDS = 4

# Of each operation of a thread's event; before the first of them stands how many elements it has.
ROW, TABLE, SLOT, WRITE, PLACE, READ, CHANGED = range(7)
OPERATION_WORDS = 8

SEEN_WORDS = 3  # of a recording: row, version read, whether it was written
# The words of `sync`: the next event is at HEAD, the next in turn at NEXT, the next number here.
NUMBER = DONE_COUNT


@part
def find_ahead(i: int, frame: int) -> int:
    """Where the event at a position begins a block, look up the rows of the next one: whoever runs
    the first event of a block does that, while the others run the rest of it."""
    begin, count = i + BLOCK_EVENTS, fixed(frame, COUNT)
    if i % BLOCK_EVENTS == 0 and begin < count:
        end = min(begin + BLOCK_EVENTS, count)
        find_block(begin, end, frame)
        for ahead in range(begin, end):
            approach(get(fixed(frame, ORDER), ahead), frame)
        store(fixed(frame, DONE_BLOCKS), begin // BLOCK_EVENTS, 1)
    return 0


@part
def await_rows(i: int, frame: int) -> int:
    """Return when the rows of the event at a position are found."""
    if i == 0:
        find_ahead(-BLOCK_EVENTS, frame)
    wait_for(fixed(frame, DONE_BLOCKS), i // BLOCK_EVENTS, 1)
    return 0


@linked
def operation(k: int, frame: int) -> int:
    """The address of operation k of the thread's event."""
    return fixed(frame, MINE) + 8 * OPERATION_WORDS * (k + 1)


@linked
def home(table: int, frame: int) -> int:
    """The address of what is known of a table."""
    return fixed(frame, HOMES) + 8 * TABLE_WORDS * table


@linked
def note(n: int, o: int, table: int, row: int, slot: int, write: int, frame: int) -> int:
    """Element o of the event is operation n, or the one that has its row; how many there are."""
    elements = fixed(frame, ELEMENTS)
    put(elements, o, -1)
    if slot < 0:
        return n
    for k in range(n):
        known = operation(k, frame)
        if get(known, ROW) == row:
            put(known, WRITE, get(known, WRITE) | write)
            put(elements, o, k)
            return n
    new = operation(n, frame)
    put(new, ROW, row)
    put(new, TABLE, table)
    put(new, SLOT, slot)
    put(new, WRITE, write)
    put(elements, o, n)
    return n + 1


@linked
def in_row_order(n: int, frame: int) -> None:
    """The operations by row, sorted by ever smaller gaps."""
    turn = fixed(frame, TURN)
    for k in range(n):
        put(turn, k, k)
    gap = n // 2
    while gap > 0:
        for k in range(gap, n):
            moved, place = get(turn, k), k
            row = get(operation(moved, frame), ROW)
            while place >= gap and get(operation(get(turn, place - gap), frame), ROW) > row:
                put(turn, place, get(turn, place - gap))
                place -= gap
            put(turn, place, moved)
        gap //= 2


@linked
def place_elements(frame: int) -> None:
    """The slot of each element, now that every operation knows its own."""
    elements, private = fixed(frame, ELEMENTS), fixed(frame, PRIVATE)
    for o in range(get(fixed(frame, MINE), 0)):
        k = get(elements, o)
        put(private, o, -1 if k < 0 else get(operation(k, frame), PLACE))


@linked
def copy_row(k: int, frame: int) -> None:
    """Copy the row of operation k to its scratch slot, word by word as others see them."""
    mine = operation(k, frame)
    table, slot = home(get(mine, TABLE), frame), get(mine, SLOT)
    words, width = get(table, HOME_ROWS), get(table, HOME_WIDTH)
    scratch = get(table, HOME_SCRATCH) + k
    put(mine, PLACE, scratch)
    for w in range(width):
        put(words, scratch * width + w, load(words, slot * width + w))
    put(words, scratch * width, get(words, scratch * width) & HEADER_ALIVE)


@apart
def attempt(e: int, i: int, frame: int) -> int:
    """The step of one event over its private slots."""
    own = fixed(frame, OWN)
    place_elements(frame)
    point(e, frame)
    code = 0
    try:
        code = step(e, e, i, fixed(frame, EPOCH), own)
    except Exception:
        undo(e, e, own)
        code = HAS_RAISED
    return code


@linked
def settle(i: int, number: int, code: int, frame: int) -> None:
    """Its number and its outcome are final."""
    if code == HAS_RAISED:
        add(fixed(frame, RAISED), 0, 1)
    put(fixed(frame, STAMPS), i, number)
    put(fixed(frame, REASON), i, code)


@linked
def record(i: int, k: int, version: int, wrote: int, frame: int) -> None:
    """For whoever wants to know what was read and written."""
    seen = fixed(frame, SEEN)
    if seen != 0:
        place = SEEN_WORDS * (get(fixed(frame, SEEN_STARTS), i) + k)
        put(seen, place, get(operation(k, frame), ROW))
        put(seen, place + 1, version)
        put(seen, place + 2, wrote)


# --- locks ----------------------------------------------------------------------------------------


@linked
def dirty_copy(k: int, frame: int) -> int:
    """Copy a row without a lock, whoever is at work on it; returns the version it belongs to."""
    held, row = fixed(frame, HELD), ROW_WORDS * get(operation(k, frame), ROW)
    while True:
        hands, version = load(held, row + HANDS), load(held, row + VERSION)
        copy_row(k, frame)
        if load(held, row + HANDS) == hands:
            return version


@linked
def lock_rows(n: int, frame: int) -> None:
    """The locks of an event, in row order; what level 2 only reads is copied and let go."""
    held, turn, level = fixed(frame, HELD), fixed(frame, TURN), fixed(frame, LEVEL)
    for t in range(n):
        k = get(turn, t)
        mine = operation(k, frame)
        row, write = ROW_WORDS * get(mine, ROW), get(mine, WRITE)
        if write or level >= 2:
            acquire(held, row + LOCK, write)
        if level == 2 and not write:
            copy_row(k, frame)
            put(mine, READ, load(held, row + VERSION))
            release(held, row + LOCK, 0)


@linked
def read_rows(i: int, n: int, frame: int) -> None:
    """Where the step finds each row, and which version that is."""
    held, turn, level = fixed(frame, HELD), fixed(frame, TURN), fixed(frame, LEVEL)
    for t in range(n):
        k = get(turn, t)
        mine = operation(k, frame)
        row, write = ROW_WORDS * get(mine, ROW), get(mine, WRITE)
        if write or level >= 3:
            put(mine, PLACE, get(mine, SLOT))
            put(mine, READ, load(held, row + VERSION))
            if write and level == 1:
                store(held, row + VERSION, -1 - i)
                add(held, row + HANDS, 1)
        elif level == 1:
            put(mine, READ, dirty_copy(k, frame))


@linked
def unlock_rows(i: int, n: int, number: int, code: int, frame: int) -> None:
    """Give the written rows their new version, and let all go."""
    held, level = fixed(frame, HELD), fixed(frame, LEVEL)
    for k in range(n):
        mine = operation(k, frame)
        row, write, version = ROW_WORDS * get(mine, ROW), get(mine, WRITE), get(mine, READ)
        record(i, k, version, write, frame)
        if write:
            store(held, row + VERSION, number + 1 if code == 0 else version)
            if level == 1:
                add(held, row + HANDS, 1)
        if write or level >= 3:
            release(held, row + LOCK, write)


@kernel
def lock(thread: int, threads: int, frame: int) -> int:
    """Two-phase locking: the numbers are drawn while all locks are held; in level 4, where locks
    are taken in the order of the events, they are those of the events."""
    sync, order, level = fixed(frame, SYNC), fixed(frame, ORDER), fixed(frame, LEVEL)
    while True:
        i = add(sync, HEAD, 1)
        if i >= fixed(frame, COUNT):
            return 0
        await_rows(i, frame)
        e = get(order, i)
        n = gather(e, frame)
        in_row_order(n, frame)
        if level == 4:
            wait_for(sync, NEXT, i)
        lock_rows(n, frame)
        if level == 4:
            store(sync, NEXT, i + 1)
        read_rows(i, n, frame)
        code = attempt(e, i, frame)
        number = i if level == 4 else add(sync, NUMBER, 1)
        settle(i, number, code, frame)
        unlock_rows(i, n, number, code, frame)
        find_ahead(i, frame)


# --- timestamps -----------------------------------------------------------------------------------


@linked
def clean_copy(k: int, frame: int) -> int:
    """Copy a row that nobody is installing; returns its stamp."""
    held, row = fixed(frame, HELD), ROW_WORDS * get(operation(k, frame), ROW)
    spins = 0
    while True:
        stamp = load(held, row)
        if stamp & 1 == 0:
            copy_row(k, frame)
            if load(held, row) == stamp:
                return stamp
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            give_way()


@linked
def stamp_now(k: int, frame: int) -> int:
    return load(fixed(frame, HELD), ROW_WORDS * get(operation(k, frame), ROW))


@linked
def copy_all(n: int, frame: int) -> int:
    """Copy every row with its stamp; from PL3 on all as of one moment, so that a function never
    sees what no serial order shows, not even in a run that is then thrown away."""
    while True:
        for k in range(n):
            put(operation(k, frame), READ, clean_copy(k, frame))
        is_same = True
        for k in range(n if fixed(frame, LEVEL) >= 3 else 0):
            is_same &= stamp_now(k, frame) == get(operation(k, frame), READ)
        if is_same:
            return 0


@linked
def install(k: int, frame: int) -> None:
    """Put the copy of operation k in place of its row; the row is latched."""
    mine, final = operation(k, frame), fixed(frame, FINAL)
    number, slot, scratch = get(mine, TABLE), get(mine, SLOT), get(mine, PLACE)
    table = home(number, frame)
    words, width = get(table, HOME_ROWS), get(table, HOME_WIDTH)
    if get(words, slot * width) >> HEADER_EPOCH_SHIFT != fixed(frame, EPOCH):
        count = get(final, 2 * number)
        put(get(table, HOME_CHANGED), count, slot)
        for w in range(width):
            put(get(table, HOME_IMAGES), count * width + w, get(words, slot * width + w))
        put(final, 2 * number, count + 1)
    if get(words, scratch * width) & HEADER_ALIVE == 0:
        put(final, 2 * number + 1, 1)
    for w in range(width):
        store(words, slot * width + w, get(words, scratch * width + w))


@linked
def note_changed(n: int, code: int, frame: int) -> None:
    """Which operations changed their copies, by the lists that the step has made."""
    counts = fixed(frame, COUNTS)
    for k in range(n):
        put(operation(k, frame), CHANGED, 0)
    for number in range(fixed(frame, TABLE_COUNT) if code == 0 else 0):
        table = home(number, frame)
        for place in range(get(counts, 2 * number)):
            scratch = get(get(table, HOME_COPIES), place)
            put(operation(scratch - get(table, HOME_SCRATCH), frame), CHANGED, 1)


@linked
def unlatch(last: int, frame: int) -> int:
    """Give the changed rows among the first in row order back as they were."""
    for t in range(last):
        mine = operation(get(fixed(frame, TURN), t), frame)
        if get(mine, CHANGED):
            store(fixed(frame, HELD), ROW_WORDS * get(mine, ROW), get(mine, READ))
    return -1


@linked
def draw(i: int, n: int, frame: int) -> int:
    """Latch, draw a number, validate; returns the number, or -1 when another was faster."""
    held, level = fixed(frame, HELD), fixed(frame, LEVEL)
    for t in range(n):
        mine = operation(get(fixed(frame, TURN), t), frame)
        if get(mine, CHANGED):
            stamp = get(mine, READ)
            if not swap_if(held, ROW_WORDS * get(mine, ROW), stamp, stamp | 1):
                return unlatch(t, frame)
    number = i if level == 4 else add(fixed(frame, SYNC), NUMBER, 1)
    for k in range(n):
        mine = operation(k, frame)
        is_needed = level >= 3 or get(mine, WRITE)
        if is_needed and not get(mine, CHANGED) and stamp_now(k, frame) != get(mine, READ):
            return unlatch(n, frame)
    return number


@part
def run_again(e: int, i: int, n: int, frame: int) -> int:
    """One try over fresh copies; what came of it, whether or not it can be installed."""
    copy_all(n, frame)
    for table in range(fixed(frame, TABLE_COUNT)):
        put(fixed(frame, COUNTS), 2 * table, 0)
    code = attempt(e, i, frame)
    note_changed(n, code, frame)
    return code


@kernel
def timestamp(thread: int, threads: int, frame: int) -> int:
    """Copies, stamps and validation; who was overtaken runs again."""
    sync, order, level = fixed(frame, SYNC), fixed(frame, ORDER), fixed(frame, LEVEL)
    while True:
        i = add(sync, HEAD, 1)
        if i >= fixed(frame, COUNT):
            return 0
        await_rows(i, frame)
        e = get(order, i)
        n = gather(e, frame)
        in_row_order(n, frame)
        tries = 0
        while True:
            code = run_again(e, i, n, frame)
            if level == 4:
                wait_for(sync, NEXT, i)
            number = draw(i, n, frame)
            if number >= 0:
                break
            tries += 1
            add(fixed(frame, RETRIES), 0, 1)
            for _ in range(tries * (thread + 1) if level < 4 and tries < 100 else 0):
                give_way()
        settle(i, number, code, frame)
        for k in range(n):
            mine = operation(k, frame)
            record(i, k, get(mine, READ) >> 1, get(mine, CHANGED), frame)
            if get(mine, CHANGED):
                install(k, frame)
                row = ROW_WORDS * get(mine, ROW)
                store(fixed(frame, HELD), row, (number + 1) << 1)
        if level == 4:
            store(sync, NEXT, i + 1)
        find_ahead(i, frame)
