"""Windows of streams: which rows a procedure over one is called with, and when.

A row window holds the rows from the beginning of its next window on: it is called with the first
`size` of them as soon as there are so many, and then leaves `slide` of them behind. A time window
knows the end of its next window, and is called with the rows before it as soon as one of that time
or later has come; windows without rows are passed over.

A window moves on whatever its procedure makes of it. One that was aborted for good would otherwise
be tried again with every batch that comes, and abort each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headgate.dataflow.streams import Window
from headgate.dataflow.under_way import Windowed


def slides(window: Window, state: Windowed, batch: pa.Table) -> Iterator[pa.Table]:
    """The whole windows that a batch completes, in order; the state moves along with them."""
    state.added.append(batch)
    held = [] if state.before.held is None else [state.before.held]
    rows = pa.concat_tables([*held, *state.added]).combine_chunks()
    found = _by_rows if window.size.rows is not None else _by_time
    return found(window, state, rows)


def move_past(window: Window, state: Windowed, batch: pa.Table, *, is_given: bool) -> None:
    """A batch was aborted for good: it is in the window, and those that it made whole are behind.

    Of rows that one of the same nest gave, and that never were, the time alone stays: else rows
    that were there before would be the same window, and abort, for ever.
    """
    there = len(state.added)  # of batches before it in the same epoch
    if is_given or state.mark_us is not None:
        for _ in slides(window, state, batch):
            pass
    if not is_given:
        del state.added[there:]
        held = 0 if state.before.held is None else state.before.held.num_rows
        state.drops = min(state.drops, held + sum(rows.num_rows for rows in state.added))


def _by_rows(window: Window, state: Windowed, rows: pa.Table) -> Iterator[pa.Table]:
    size, slide = window.size.rows or 1, window.slide.rows or 1
    while rows.num_rows - state.drops >= size:
        yield rows.slice(state.drops, size)
        state.drops += slide


def _by_time(window: Window, state: Windowed, rows: pa.Table) -> Iterator[pa.Table]:
    size, slide = window.size.time_us or 1, window.slide.time_us or 1
    times = rows.column(window.stream.order_by[0]).cast(pa.int64()).to_numpy()
    if not len(times):
        return
    end = state.mark_us
    if end is None:
        end = int(times.min()) // slide * slide + slide
    newest = int(times.max())
    while newest >= end:
        inside = np.flatnonzero((times >= end - size) & (times < end))
        if len(inside):
            # Rows may have come in another order than that of their times.
            yield rows.take(pa.array(inside[np.argsort(times[inside], kind="stable")]))
            end += slide
        else:
            following = int(times[times >= end].min())
            end = max(end + slide, following // slide * slide + slide)
    state.mark_us = end
    past = times < end - size
    state.drops = int(len(past) if past.all() else np.argmin(past))
