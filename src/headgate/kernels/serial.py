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

BLOCK_EVENTS = 64  # their rows, slots and index entries fit the first-level cache


@kernel
def run(begin: int, end: int, epoch: int, frame: int) -> int:
    """Positions begin..end, in blocks: all of a block's index entries are asked for, then all of
    its rows, so that waits for memory overlap and few are left when it runs.

    The reasons are zeros before. An order of 0 is that of the event rows.
    """
    order = fixed(frame, ORDER)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            seek(get(order, i) if order != 0 else i, i - block, frame)
        for i in range(block, stop):
            e = get(order, i) if order != 0 else i
            match(e, i - block, frame)
            touch(e, i - block, frame)
        run_block(block, stop, 0, epoch, frame)
    return 0


@kernel
def look_ahead(begin: int, end: int, place: int, frame: int) -> int:
    """Match the keys of positions begin..end, whose slots stand from `place` on.

    It reads the index alone: rows that another thread changes stay in that one's cache.
    """
    order = fixed(frame, ORDER)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            seek(get(order, i) if order != 0 else i, place + i - begin, frame)
        for i in range(block, stop):
            match(get(order, i) if order != 0 else i, place + i - begin, frame)
    return 0


@kernel
def run_found(begin: int, end: int, place: int, epoch: int, frame: int) -> int:
    """As `run`, for positions that were looked up ahead."""
    order = fixed(frame, ORDER)
    for block in range(begin, end, BLOCK_EVENTS):
        stop = min(block + BLOCK_EVENTS, end)
        for i in range(block, stop):
            touch(get(order, i) if order != 0 else i, place + i - begin, frame)
        run_block(block, stop, place + block - begin, epoch, frame)
    return 0


@part
def run_block(begin: int, end: int, place: int, epoch: int, frame: int) -> int:
    """Run positions begin..end, whose slots stand from `place` on; their rows are on the way."""
    order, reason, progress = fixed(frame, ORDER), fixed(frame, REASON), fixed(frame, PROGRESS)
    aborted, total = fixed(frame, ABORTED), get(frame, ABORTED_COUNT)
    for i in range(begin, end):
        put(progress, 0, i)
        e, k = get(order, i) if order != 0 else i, place + i - begin
        confirm(e, k, frame)
        code = step(e, k, i, epoch, frame)
        if code != 0:
            put(reason, i, code)
            put(aborted, total, i)
            total += 1
            put(frame, ABORTED_COUNT, total)
    return 0


@kernel
def restore(i: int, place: int, frame: int) -> int:
    """Undo the event at one position, whose function raised and whose slots stand at `place`."""
    order = fixed(frame, ORDER)
    undo(get(order, i) if order != 0 else i, place, frame)
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
            match(e, e, frame)
            touch(e, e, frame)
        for i in range(block, stop):
            e = get(order, i) if order != 0 else i
            confirm(e, e, frame)
    return 0
