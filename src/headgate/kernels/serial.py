"""The serial loop: a batch in its order on one thread, and the look-ups that all ways begin with.

For each event: find its rows, keep a copy of those it may change, run the function, and either mark
what changed or put the copy back. Codes out: 0 for committed, a text's code or a fixed reason for
aborted. An exception leaves the kernel at once; `restore` then undoes that one event.

The rows of an event are found by the index alone, which no event changes: so another thread may
look them up before (`look_ahead`), and the loop goes on from there (`run_found`).
"""

from __future__ import annotations

from headgate.kernels.binding import kernel, part
from headgate.kernels.frame import ABORTED, ABORTED_COUNT, ORDER, PROGRESS, REASON
from headgate.kernels.pieces import confirm, match, seek, step, touch, undo
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put
from headgate.kernels.steps import event_row

BLOCK_EVENTS = 64  # their rows, slots and index entries fit the first-level cache
AHEAD_EVENTS = 16  # twice as many have a place among those of a block
PLACES_MASK = BLOCK_EVENTS - 1  # a slot has the place of its event, counted round the block


@kernel
def run(begin: int, end: int, epoch: int, frame: int) -> int:
    """Positions begin..end. Some events before its turn the rows of an event are asked for, and as
    many before that the entries of the index, so that the function runs while memory is on the way.

    The reasons are zeros before. An order of 0 is that of the event rows.
    """
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + 2 * AHEAD_EVENTS, end)):
        seek(event_row(order, i), (i - begin) & PLACES_MASK, frame)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        find(i, (i - begin) & PLACES_MASK, frame)
    for i in range(begin, end):
        ahead = i + 2 * AHEAD_EVENTS
        if ahead < end:
            e = event_row(order, ahead)
            seek(e, (ahead - begin) & PLACES_MASK, frame)
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            find(ahead, (ahead - begin) & PLACES_MASK, frame)
        run_one(i, (i - begin) & PLACES_MASK, epoch, frame)
    return 0


@part
def find(i: int, place: int, frame: int) -> int:
    """The rows of the event at one position, by their tags; they are asked for, too."""
    order = fixed(frame, ORDER)
    e = event_row(order, i)
    match(e, place, frame)
    touch(e, place, frame)
    return 0


@part
def run_one(i: int, place: int, epoch: int, frame: int) -> int:
    """Run the event at one position, whose slots stand at `place`."""
    order = fixed(frame, ORDER)
    put(fixed(frame, PROGRESS), 0, i)
    e = event_row(order, i)
    confirm(e, place, frame)
    code = step(e, place, i, epoch, frame)
    if code != 0:
        total = get(frame, ABORTED_COUNT)
        put(fixed(frame, REASON), i, code)
        put(fixed(frame, ABORTED), total, i)
        put(frame, ABORTED_COUNT, total + 1)
    return 0


@kernel
def look_ahead(begin: int, end: int, place: int, frame: int) -> int:
    """Match the keys of positions begin..end, whose slots stand from `place` on.

    It reads the index alone: rows that another thread changes stay in that one's cache.
    """
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        seek(event_row(order, i), place + i - begin, frame)
    for i in range(begin, end):
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            seek(event_row(order, ahead), place + ahead - begin, frame)
        match(event_row(order, i), place + i - begin, frame)
    return 0


@kernel
def run_found(begin: int, end: int, place: int, epoch: int, frame: int) -> int:
    """As `run`, for positions that were looked up ahead."""
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        touch(event_row(order, i), place + i - begin, frame)
    for i in range(begin, end):
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            touch(event_row(order, ahead), place + ahead - begin, frame)
        run_one(i, place + i - begin, epoch, frame)
    return 0


@kernel
def restore(i: int, place: int, frame: int) -> int:
    """Undo the event at one position, whose function raised and whose slots stand at `place`."""
    order = fixed(frame, ORDER)
    undo(event_row(order, i), place, frame)
    return 0


@kernel
def resolve(begin: int, end: int, frame: int) -> int:
    """Look up the rows of every event in positions begin..end, as a plan needs them before
    anything runs."""
    order = fixed(frame, ORDER)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            e = event_row(order, i)
            seek(e, e, frame)
        for i in range(block, stop):
            find(i, event_row(order, i), frame)
        for i in range(block, stop):
            e = event_row(order, i)
            confirm(e, e, frame)
    return 0
