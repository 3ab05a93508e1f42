"""The serial loop: a batch in its order on one thread, and the look-ups that all ways begin with.

For each event: find its rows, keep a copy of those it may change, run the function, and either mark
what changed or put the copy back. Codes out: 0 for committed, a text's code or a fixed reason for
aborted. An exception leaves the kernel at once; `restore` then undoes that one event.
"""

from __future__ import annotations

from headgate.kernels.binding import kernel
from headgate.kernels.frame import ABORTED, ABORTED_COUNT, ORDER, PROGRESS, REASON
from headgate.kernels.pieces import confirm, fetch, seek, step, undo
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put

BLOCK_EVENTS = 64  # their rows, slots and index entries fit the first-level cache
AHEAD_EVENTS = 16  # twice as many have a place among those of a block
PLACES_MASK = BLOCK_EVENTS - 1  # a slot has the place of its event, counted round the block


@kernel
def run(begin: int, end: int, epoch: int, frame: int) -> int:
    """Positions begin..end. Some events before its turn the rows of an event are asked for, and as
    many before that the entries of the index, so that the function runs while memory is on the way.

    The reasons are zeros before. An order of 0 is that of the event rows.
    """
    order, reason, progress = fixed(frame, ORDER), fixed(frame, REASON), fixed(frame, PROGRESS)
    aborted, total = fixed(frame, ABORTED), get(frame, ABORTED_COUNT)
    for i in range(begin, min(begin + 2 * AHEAD_EVENTS, end)):
        seek(get(order, i) if order != 0 else i, (i - begin) & PLACES_MASK, frame)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        fetch(get(order, i) if order != 0 else i, (i - begin) & PLACES_MASK, frame)
    for i in range(begin, end):
        ahead = i + 2 * AHEAD_EVENTS
        if ahead < end:
            e = get(order, ahead) if order != 0 else ahead
            seek(e, (ahead - begin) & PLACES_MASK, frame)
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            e = get(order, ahead) if order != 0 else ahead
            fetch(e, (ahead - begin) & PLACES_MASK, frame)
        put(progress, 0, i)
        e, place = get(order, i) if order != 0 else i, (i - begin) & PLACES_MASK
        confirm(e, place, frame)
        code = step(e, place, i, epoch, frame)
        if code != 0:
            put(reason, i, code)
            put(aborted, total, i)
            total += 1
            put(frame, ABORTED_COUNT, total)
    return 0


@kernel
def restore(begin: int, i: int, frame: int) -> int:
    """Undo the event at one position, whose function raised in a run from `begin` on."""
    order = fixed(frame, ORDER)
    undo(get(order, i) if order != 0 else i, (i - begin) & PLACES_MASK, frame)
    return 0


@kernel
def resolve(begin: int, end: int, frame: int) -> int:
    """Look up the rows of every event in positions begin..end, as a plan needs them before
    anything runs."""
    order = fixed(frame, ORDER)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            e = get(order, i) if order != 0 else i
            seek(e, e, frame)
        for i in range(block, stop):
            e = get(order, i) if order != 0 else i
            fetch(e, e, frame)
        for i in range(block, stop):
            e = get(order, i) if order != 0 else i
            confirm(e, e, frame)
    return 0
