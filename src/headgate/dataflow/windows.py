"""Windows of streams: which rows a procedure over one is called with, and when.

A row window holds the rows from the beginning of its next window on: it is called with the first
`size` of them as soon as there are so many, and then leaves `slide` of them behind. A time window
knows the end of its next window, and is called with the rows before it as soon as one of that time
or later has come; windows without rows are passed over.

A window moves on whatever its procedure makes of it. One that was aborted for good would otherwise
be tried again with every batch that comes, and abort each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.dataflow.aggregates import AGGREGATES
from headgate.dataflow.procedures import BATCH_NAME
from headgate.dataflow.streams import Stream, Window
from headgate.dataflow.under_way import NOT_KEPT, Windowed

if TYPE_CHECKING:
    from headgate.dataflow.kept_windows import KeptWindow


class Slid:
    """One whole window: its rows, which are put together when somebody asks for them, and what is
    kept of them: aggregates, or why there are none."""

    def __init__(
        self,
        rows: Callable[[], pa.Table],
        aggregates: pa.Table | None = None,
        refused: str | None = None,
    ) -> None:
        self._rows = rows
        self.aggregates: pa.Table | None = aggregates
        self.refused: str | None = refused

    @cached_property
    def rows(self) -> pa.Table:
        """Its rows, in its order."""
        return self._rows()

    def named(self, stream: Stream) -> SqlTables:
        """Its tables by the names that SQL has for them, where it is taken alone."""
        found: dict[str, Callable[[], pa.Table]] = {}
        for name in (BATCH_NAME, stream.name):
            found[name] = lambda: self.rows
        kept = self.aggregates
        if kept is not None:
            found[AGGREGATES] = lambda: kept
        return SqlTables(found)

    def arguments(self, *, has_rows: bool) -> list[pa.Table]:
        """What a function over it is called with, but for its tx."""
        kept = [] if self.aggregates is None else [self.aggregates]
        return [self.rows, *kept] if has_rows else kept


class SqlTables(Mapping[str, pa.Table]):
    """Tables by the names that SQL has for them; nothing is put together for who does not ask."""

    def __init__(self, made: Mapping[str, Callable[[], pa.Table]]) -> None:
        self._made = made

    def __getitem__(self, name: str) -> pa.Table:
        return self._made[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


class HeldRows:
    """The rows of a window, those that are staged with them, in one piece if need be."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = tuple(tables)
        self.count: int = sum(rows.num_rows for rows in tables)

    @cached_property
    def whole(self) -> pa.Table:
        """All of them."""
        return pa.concat_tables(self._tables).combine_chunks()

    def cut(self, first: int, count: int) -> pa.Table:
        """So many of them, in one piece."""
        return self.whole.slice(first, count)

    def between(self, column: str, begin: int, end: int) -> pa.Table:
        """Those with times from one to before another, in the order of their times."""
        times = times_of(self.whole, column)
        inside = np.flatnonzero((times >= begin) & (times < end))
        # Rows may have come in another order than that of their times.
        return self.whole.take(pa.array(inside[np.argsort(times[inside], kind="stable")]))


def times_of(rows: pa.Table, column: str) -> np.ndarray:
    """The times of rows."""
    found: np.ndarray = rows.column(column).cast(pa.int64()).to_numpy()
    return found


def slides(
    window: Window, state: Windowed, batch: pa.Table, kept: KeptWindow | None = None
) -> Iterator[Slid]:
    """The whole windows that a batch completes, in order; the state moves along with them."""
    state.added.append(batch)
    if kept is not None:
        return kept.slides(state)
    found = _by_rows if window.size.rows is not None else _by_time
    return found(window, state)


def move_past(
    window: Window,
    state: Windowed,
    batch: pa.Table,
    *,
    is_given: bool,
    kept: KeptWindow | None = None,
) -> None:
    """A batch was aborted for good: it is in the window, and those that it made whole are behind.

    Of rows that one of the same nest gave, and that never were, the time alone stays: else rows
    that were there before would be the same window, and abort, for ever.
    """
    there = len(state.added)  # of batches before it in the same epoch
    if is_given or state.mark_us is not None:
        for _ in slides(window, state, batch, kept if is_given else None):
            pass
    if not is_given:
        state.kept = NOT_KEPT
        del state.added[there:]
        held = 0 if state.before.held is None else state.before.held.num_rows
        state.drops = min(state.drops, held + sum(rows.num_rows for rows in state.added))


def _by_rows(window: Window, state: Windowed) -> Iterator[Slid]:
    size, slide = window.size.rows or 1, window.slide.rows or 1
    rows = HeldRows(state.tables)
    while rows.count - state.drops >= size:
        yield Slid(partial(rows.cut, state.drops, size))
        state.drops += slide


def _by_time(window: Window, state: Windowed) -> Iterator[Slid]:
    size, slide = window.size.time_us or 1, window.slide.time_us or 1
    rows, column = HeldRows(state.tables), window.stream.order_by[0]
    times = times_of(rows.whole, column)
    if not len(times):
        return
    end = state.mark_us
    if end is None:
        end = first_end(times, slide)
    newest = int(times.max())
    while newest >= end:
        if ((times >= end - size) & (times < end)).any():
            yield Slid(partial(rows.between, column, end - size, end))
            end += slide
        else:
            end = end_after(end, slide, int(times[times >= end].min()))
    state.mark_us = end
    past = times < end - size
    state.drops = int(len(past) if past.all() else np.argmin(past))


def first_end(times: np.ndarray, slide: int) -> int:
    """The end of the first window of time."""
    return int(times.min()) // slide * slide + slide


def end_after(end: int, slide: int, following: int) -> int:
    """The end of the next window behind one without rows, by the first time that follows."""
    return max(end + slide, following // slide * slide + slide)
