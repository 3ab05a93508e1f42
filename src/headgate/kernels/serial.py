"""The serial loop: a batch in its order on one thread, and the look-ups that all ways begin with.

For each event: find its rows, keep a copy of those it may change, run the function, and either mark
what changed or put the copy back. Codes out: 0 for committed, a text's code or a fixed reason for
aborted. An exception leaves the kernel at once; `restore` then undoes that one event.
"""

from __future__ import annotations

from headgate.kernels.binding import kernel
from headgate.kernels.frame import ORDER, PROGRESS, REASON
from headgate.kernels.pieces import fetch, look_up, seek, step, undo
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.pointers import set_word as put

BLOCK_EVENTS = 128  # a block's rows fit the first-level cache


@kernel
def run(begin: int, end: int, epoch: int, frame: int) -> int:
    """Positions begin..end, in blocks: all of a block's index entries are asked for, then all of
    its rows, so that waits for memory overlap and few are left when it runs."""
    order, reason, progress = fixed(frame, ORDER), fixed(frame, REASON), fixed(frame, PROGRESS)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            seek(get(order, i), frame)
        for i in range(block, stop):
            fetch(get(order, i), frame)
        for i in range(block, stop):
            look_up(get(order, i), frame)
        for i in range(block, stop):
            put(progress, 0, i)
            put(reason, i, step(get(order, i), i, epoch, frame))
    return 0


@kernel
def restore(i: int, frame: int) -> int:
    """Undo the event at one position, whose function raised."""
    undo(get(fixed(frame, ORDER), i), frame)
    return 0


@kernel
def resolve(count: int, frame: int) -> int:
    """Look up the rows of every event, as a plan needs them before anything runs."""
    order = fixed(frame, ORDER)
    for block in range(0, count, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, count)
        for i in range(block, stop):
            seek(get(order, i), frame)
        for i in range(block, stop):
            fetch(get(order, i), frame)
        for i in range(block, stop):
            look_up(get(order, i), frame)
    return 0
