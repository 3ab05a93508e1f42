"""The timely loop: the serial loop over rows that expire, which go before the event.

For programs that name a table whose rows expire. What a committed event leaves is looked at: a row
that expires within the batch is noted, and `wake` is lowered to that moment. Before the first event
at or beyond it all rows that are due are swept away (sweeping.py). Where more rows are left than
there is room to note, the loop ends, and is called again from there (execution/expiring.py).
"""

from __future__ import annotations

from headgate.kernels.binding import ask, guess, is_due, kernel, note_dues, seek, sweep_due
from headgate.kernels.frame import ABORTED_COUNT, ORDER
from headgate.kernels.pointers import fixed_word as fixed
from headgate.kernels.pointers import get_word as get
from headgate.kernels.serial import (
    AHEAD_EVENTS,
    ASK_EVENTS,
    GUESS_EVENTS,
    PLACES_MASK,
    event_row,
    find,
    run_one,
)


@kernel
def run_until(begin: int, end: int, epoch: int, frame: int) -> int:
    """As `run`, but rows that are due go before the event that finds them so; returns the position
    that comes next, less than `end` where more is to be looked up first."""
    order = fixed(frame, ORDER)
    for i in range(begin, min(begin + 2 * AHEAD_EVENTS, end)):
        seek(event_row(order, i), (i - begin) & PLACES_MASK, frame)
    for i in range(begin, min(begin + AHEAD_EVENTS, end)):
        find(i, (i - begin) & PLACES_MASK, frame)
    for i in range(begin, end):
        if is_due(i, frame) and sweep_due(i, frame) != 0:
            return i
        ahead = i + 2 * AHEAD_EVENTS
        if ahead < end:
            e = event_row(order, ahead)
            seek(e, (ahead - begin) & PLACES_MASK, frame)
        ahead = i + AHEAD_EVENTS
        if ahead < end:
            find(ahead, (ahead - begin) & PLACES_MASK, frame)
        if i + GUESS_EVENTS < end:
            e, k = event_row(order, i + GUESS_EVENTS), i + GUESS_EVENTS - begin
            guess(e, k & PLACES_MASK, frame)
        if i + ASK_EVENTS < end:
            e, k = event_row(order, i + ASK_EVENTS), i + ASK_EVENTS - begin
            ask(e, k & PLACES_MASK, frame)
        aborted = get(frame, ABORTED_COUNT)
        run_one(i, (i - begin) & PLACES_MASK, epoch, frame)
        if get(frame, ABORTED_COUNT) == aborted:  # what aborted has left no row that was not there
            note_dues(event_row(order, i), (i - begin) & PLACES_MASK, frame)
    return end
