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
from headgate.kernels.steps import event_row

BLOCK_EVENTS = 64  # their rows, slots and index entries fit the first-level cache


@kernel
def run(begin: int, end: int, epoch: int, frame: int) -> int:
    """Positions begin..end, in blocks: all of a block's index entries are asked for, then all of
    its rows, so that waits for memory overlap and few are left when it runs.

    The reasons are zeros before. An order of 0 is that of the event rows.
    """
    order, reason, progress = fixed(frame, ORDER), fixed(frame, REASON), fixed(frame, PROGRESS)
    aborted, total = fixed(frame, ABORTED), get(frame, ABORTED_COUNT)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            seek(event_row(order, i), i - block, frame)
        for i in range(block, stop):
            fetch(event_row(order, i), i - block, frame)
        for i in range(block, stop):
            put(progress, 0, i)
            e = event_row(order, i)
            confirm(e, i - block, frame)
            code = step(e, i - block, i, epoch, frame)
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
    undo(event_row(order, i), (i - begin) % BLOCK_EVENTS, frame)
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
            e = event_row(order, i)
            fetch(e, e, frame)
        for i in range(block, stop):
            e = event_row(order, i)
            confirm(e, e, frame)
    return 0
