"""Shares: a plan made by all threads at once, and whole transactions run along it in the tables.

A batch goes section by section. Each thread looks up the rows of its share of the events and deals
the operations out by row; each then links its share of the rows, in event order: an operation waits
for the block of events that wrote the row before it, or, to write what others read, for all up to
their block. Last, whoever is free takes the next block of events and runs it in order.

A block waits only for earlier ones, and they are taken in order: so nobody waits for ever, and each
transaction sees what it would see in serial order. Rows are dealt out by the tags of their index
entries. Where the row then has another key, the plan was wrong: as when a function raises, all
stop, and the batch is put back and run by the serial loop.
"""

from __future__ import annotations

from headgate.kernels.atomics import NEXT, STOP, end_meeting, meet, wait_for
from headgate.kernels.binding import (
    confirm,
    deal_rows,
    kernel,
    match,
    part,
    seek,
    step,
    touch,
    undo,
)
from headgate.kernels.frame import (
    BLOCK_STARTS,
    COUNT,
    DEALT,
    DEALT_ENDS,
    DEALT_ROOM,
    DONE_BLOCKS,
    EPOCH,
    FIRST_BLOCK,
    LAST_BLOCKS,
    LINKS,
    LINKS_ROOM,
    ORDER,
    PROGRESS,
    RAISED,
    REASON,
    SYNC,
    TIMES,
)
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.serial import BLOCK_EVENTS, event_row
from headgate.kernels.ticks import PLANNED, USEFUL, WAITED, spend, tick
from headgate.state.compiled import numba, prefetch
from headgate.state.words import add, load, store

RUN_EVENTS = 32  # in a block: so few that two blocks at once seldom share a row
SECTION_EVENTS = 1 << 14  # what is planned at once: it stays in the second-level caches
AHEAD = 8  # so many operations before its turn the word of a row is asked for
ROWS_AHEAD = 16  # and so many events before theirs the rows
PLACE_BITS = 31  # of a link's place, in an operation that was dealt out
PLACE_MASK = (1 << PLACE_BITS) - 1
ROWS_TOGETHER_SHIFT = 3  # neighbours are of one share, so that a cache line has one writer


@numba.njit(nogil=True, forceinline=True)
def share_of(row: int, threads: int) -> int:
    """The thread that links a row."""
    mixed = (row >> ROWS_TOGETHER_SHIFT) * 0x9E3779B1
    return ((mixed & 0xFFFFFFFF) * threads) >> 32


@numba.njit(nogil=True)
def share_events(section: int, threads: int) -> int:
    """How many events of a section a thread looks up: whole blocks."""
    return -(-section // (threads * RUN_EVENTS)) * RUN_EVENTS


@numba.njit(nogil=True)
def together(times: int, sync: int, threads: int) -> int:
    """Go on when all threads have come; blocks are then taken from the first on."""
    waited = tick(times)
    if meet(sync, threads):
        store(sync, NEXT, 0)
        end_meeting(sync)
    spend(times, WAITED, waited)
    return 0


# --- the plan -------------------------------------------------------------------------------------


@part
def look_up(first: int, last: int, link: int, thread: int, threads: int, frame: int) -> int:
    """The rows of positions first..last, each operation dealt to whose row it is.

    The links of an event stand behind their number, from place `link` on; nothing waits so far.
    """
    order, dealt, ends = fixed(frame, ORDER), fixed(frame, DEALT), fixed(frame, DEALT_ENDS)
    links, starts = fixed(frame, LINKS), fixed(frame, BLOCK_STARTS)
    for share in range(thread * threads, (thread + 1) * threads):
        put(ends, share, dealt + 8 * fixed(frame, DEALT_ROOM) * share)
    for block in range(first, last, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, last)
        for i in range(block, stop):
            seek(event_row(order, i), 0, frame)
        for i in range(block, stop):
            e = event_row(order, i)
            match(e, e, frame)
        for i in range(block, stop):
            if i % RUN_EVENTS == 0:
                put(starts, i // RUN_EVENTS, link)
            after = deal_rows(event_row(order, i), link + 1, thread, threads, frame)
            put(links, link, after - link - 1)
            link = after
    return 0


@numba.njit(nogil=True, forceinline=True)
def deal_row(row: int, write: int, k: int, thread: int, threads: int, frame: int) -> int:
    """Deal one operation to whose row it is; its link is at place `k`. Returns the next place."""
    ends = fixed(frame, DEALT_ENDS)
    share = thread * threads + share_of(row, threads)
    end = get(ends, share)
    put(end, 0, (((row << 1) | write) << PLACE_BITS) | k)
    put(ends, share, end + 8)
    put(fixed(frame, LINKS), k, 0)
    return k + 1


@numba.njit(nogil=True)
def link_share(first: int, last: int, thread: int, threads: int, frame: int) -> int:
    """Link the thread's rows of positions first..last; their operations come in event order."""
    room, base = fixed(frame, DEALT_ROOM), fixed(frame, FIRST_BLOCK)
    begin, mine = first // RUN_EVENTS, share_events(last - first, threads) // RUN_EVENTS
    end = -(-last // RUN_EVENTS)
    for source in range(threads):
        share = source * threads + thread
        entries = fixed(frame, DEALT) + 8 * room * share
        count = (get(fixed(frame, DEALT_ENDS), share) - entries) // 8
        block = min(begin + source * mine, end)
        link_entries(entries, count, block, min(block + mine, end), begin + base, frame)
    return 0


@numba.njit(nogil=True)
def link_entries(entries: int, count: int, block: int, end: int, begin: int, frame: int) -> int:
    """Link what one thread has dealt of the blocks from `block` to `end`. A row is another
    thread's, and so is every word that is written here."""
    links, lasts = fixed(frame, LINKS), fixed(frame, LAST_BLOCKS)
    starts, base = fixed(frame, BLOCK_STARTS), fixed(frame, FIRST_BLOCK)
    for k in range(count):
        if k + AHEAD < count:
            prefetch(lasts + 8 * row_of(get(entries, k + AHEAD)))
        entry = get(entries, k)
        place = entry & PLACE_MASK
        while block + 1 < end and get(starts, block + 1) <= place:
            block += 1
        row = row_of(entry)
        found, last = linked(get(lasts, row), block + base, (entry >> PLACE_BITS) & 1, begin)
        put(lasts, row, last)
        if found != 0:
            put(links, place, found - base if found > 0 else found + base)
    return 0


@numba.njit(nogil=True, forceinline=True)
def row_of(entry: int) -> int:
    return (entry >> (PLACE_BITS + 1)) & 0xFFFFFFFF


@numba.njit(nogil=True, forceinline=True)
def linked(last: int, block: int, write: int, begin: int) -> tuple[int, int]:
    """What an operation of this block waits for, and the word of its row after it.

    0 for nothing, b + 1 for block b, -b - 1 for that one and all before it. The word has the last
    block that wrote the row and the last that read it. Blocks are counted through all batches, so
    that what older ones left there is below `begin`.
    """
    written, read = last >> 32, last & 0xFFFFFFFF
    after = (block << 32) | read if write else (written << 32) | block
    if write and read > written:
        before = min(read, block - 1)
        return (-before - 1 if before >= begin else 0), after
    return (written + 1 if begin <= written < block else 0), after


# --- the run --------------------------------------------------------------------------------------


@part
def run_block(block: int, low: int, frame: int) -> int:
    """Run a block by one thread; every block before `low` is known to be done, returns the same."""
    progress, times = fixed(frame, PROGRESS), fixed(frame, TIMES)
    began, waited = tick(times), get(times, WAITED)
    try:
        low = run_events(block, low, frame)
    except Exception:
        e = event_row(fixed(frame, ORDER), get(progress, 0))
        undo(e, e, frame)
        give_up(frame)
    spend(times, USEFUL, began + get(times, WAITED) - waited)  # as if it had begun later
    store(fixed(frame, DONE_BLOCKS), block, 1)
    return low


@numba.njit(nogil=True)
def give_up(frame: int) -> int:
    """The batch will be put back: whoever waits for this block, or comes to see that it is done,
    runs nothing more, for it would see what is never there in serial order."""
    add(fixed(frame, RAISED), 0, 1)
    store(fixed(frame, SYNC), STOP, 1)
    return 0


@part
def run_events(block: int, low: int, frame: int) -> int:
    """Run the events of a block in their order."""
    order, links, reason = fixed(frame, ORDER), fixed(frame, LINKS), fixed(frame, REASON)
    progress, epoch, sync = fixed(frame, PROGRESS), fixed(frame, EPOCH), fixed(frame, SYNC)
    while low < block and load(fixed(frame, DONE_BLOCKS), low):
        low += 1
    if load(sync, STOP):
        return low
    begin, link = block * RUN_EVENTS, get(fixed(frame, BLOCK_STARTS), block)
    end = min(begin + RUN_EVENTS, fixed(frame, COUNT))
    for i in range(begin, min(begin + ROWS_AHEAD, end)):
        e = event_row(order, i)
        touch(e, e, frame)
    for i in range(begin, end):
        if i + ROWS_AHEAD < end:
            e = event_row(order, i + ROWS_AHEAD)
            touch(e, e, frame)
        number = get(links, link)
        for k in range(link + 1, link + 1 + number):
            if abs(get(links, k)) > low:  # seldom: nearly all that it waits for is long done
                low = wait_turn(get(links, k), low, frame)
                if load(sync, STOP):
                    return low
        link += 1 + number
        e = event_row(order, i)
        if confirm(e, e, frame):
            give_up(frame)
            return low
        put(progress, 0, i)
        put(reason, i, step(e, e, i, epoch, frame))
    return low


@numba.njit(nogil=True)
def wait_turn(link: int, low: int, frame: int) -> int:
    """Wait for what a link says; returns the first block that is not known to be done."""
    done, times = fixed(frame, DONE_BLOCKS), fixed(frame, TIMES)
    waited = tick(times)
    if link > 0:
        wait_for(done, link - 1, 1)
    else:
        while low < -link:
            wait_for(done, low, 1)
            low += 1
    spend(times, WAITED, waited)
    return low


@part
def next_block(first: int, last: int, sync: int) -> int:
    """The first block of the section that nobody has taken, -1 when there is none."""
    low = first // RUN_EVENTS
    block = low + add(sync, NEXT, 1)
    return block if low <= block and block * RUN_EVENTS < last else -1


@kernel
def shares(thread: int, threads: int, frame: int) -> int:
    """Plan and run section after section, all threads at once.

    A thread that finds no more blocks looks up its share of the next section while others still
    run: so there is room for the links of two, and nobody links before all have run.
    """
    sync, times, count = fixed(frame, SYNC), fixed(frame, TIMES), fixed(frame, COUNT)
    room = fixed(frame, LINKS_ROOM)
    for first in range(0, count, SECTION_EVENTS):
        last = min(first + SECTION_EVENTS, count)
        mine = share_events(last - first, threads)
        begin = min(first + thread * mine, last)
        place = room * (2 * thread + first // SECTION_EVENTS % 2)
        planned = tick(times)
        look_up(begin, min(begin + mine, last), place, thread, threads, frame)
        spend(times, PLANNED, planned)
        together(times, sync, threads)
        planned = tick(times)
        link_share(first, last, thread, threads, frame)
        spend(times, PLANNED, planned)
        together(times, sync, threads)
        low = first // RUN_EVENTS
        block = next_block(first, last, sync)
        while block >= 0:
            low = run_block(block, low, frame)
            block = next_block(first, last, sync)
    return 0
