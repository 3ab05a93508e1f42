"""Kept windows: the aggregates of a node's window, brought forward as it moves on.

They are derived from the rows of the window, which the log has, and nothing of them is logged. The
state of the window says by a version whether these are the aggregates of its rows. They are if it
goes on where it stood; when it does not, after an opening or an abort, they are made anew from the
rows. An execution that is tried again over the same rows, or given up, has the same window again.

Invariant: what a procedure sees of a window depends on its rows and their order, and on nothing
that was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headgate.dataflow.aggregates import Aggregates
from headgate.dataflow.groups import Groups, OutOfRange
from headgate.dataflow.streams import Window
from headgate.dataflow.under_way import KeptAt, Windowed
from headgate.dataflow.windows import HeldRows, Slid, end_after, first_end, times_of

_NEVER = -(2**63)


class _Arrived:
    """Times of rows in the order in which they came, without those at its beginning that went."""

    def __init__(self) -> None:
        self._times, self._begin, self._end = np.zeros(64, np.int64), 0, 0

    def add(self, times: np.ndarray) -> None:
        count = self._end - self._begin
        if self._end + len(times) > len(self._times):
            room = np.zeros(max(len(self._times), 2 * (count + len(times))), np.int64)
            room[:count] = self._times[self._begin : self._end]
            self._times, self._begin, self._end = room, 0, count
        self._times[self._end : self._end + len(times)] = times
        self._end += len(times)

    def drop(self, time: int) -> int:
        """Those at the beginning that are before a time go; returns how many."""
        before, step = self._begin, 64
        while self._begin < self._end:
            last = min(self._begin + step, self._end)
            stays = self._times[self._begin : last] >= time
            if stays.any():
                self._begin += int(np.argmax(stays))
                break
            self._begin, step = last, 2 * step
        return self._begin - before


@dataclass
class _Again:
    """The one window that was made whole last, for who is tried again over the same rows."""

    before: KeptAt
    fresh: pa.Table
    slid: Slid
    after: KeptAt
    more_drops: int
    mark_us: int | None


class _Fresh(NamedTuple):
    """Rows that the aggregates do not know yet: of a window that goes on, or all that it has."""

    rows: pa.Table
    goes_on: bool


class KeptWindow:
    """The aggregates of one node's window."""

    def __init__(self, window: Window, aggregates: Aggregates) -> None:
        self._window, self._aggregates = window, aggregates
        self._version, self._number = 0, 0
        self._again: _Again | None = None
        self._begin()

    def _begin(self) -> None:
        """There are no rows."""
        self._groups, self._arrived = Groups(self._aggregates), _Arrived()
        self._entered = _NEVER  # of a window of time: rows before this are in it

    def slides(self, state: Windowed) -> Iterator[Slid]:
        """The whole windows that the rows of a window make, in order."""
        held, fresh = HeldRows(state.tables), self._fresh(state)
        if not self._is_to_move(state, held, fresh):
            return
        again = self._again
        if again is not None and again.before == state.kept and again.fresh.equals(fresh.rows):
            state.drops, state.mark_us = state.drops + again.more_drops, again.mark_us
            state.kept = again.after
            yield again.slid
            return
        before, drops = state.kept, state.drops
        self._bring_forward(state, state.tables, fresh)
        slid, count = None, 0
        by_rows = self._window.size.rows is not None
        found = self._by_rows(held, drops) if by_rows else self._by_time(state, held)
        for one in found:
            if slid is not None:
                yield slid
            slid, count = one, count + 1
        if by_rows:
            state.drops += count * (self._window.slide.rows or 1)
        # Where all windows have been, before the last one is handed out: who does not come back
        # because it aborts is given the same one again.
        state.kept = KeptAt(self._version, held.count)
        if slid is not None:
            if count == 1 and fresh.goes_on:
                moved = state.drops - drops
                self._again = _Again(before, fresh.rows, slid, state.kept, moved, state.mark_us)
            yield slid

    def up_to(self, state: Windowed, rows: pa.Table, windows: int) -> Iterator[Slid]:
        """Rows come, and make so many windows whole; of a window of rows. All of them are to be
        taken, and the state to be moved on behind them."""
        tables = [*state.tables, rows]
        held = HeldRows(tables)
        if state.kept.version != self._version or state.kept.known < held.count:
            self._bring_forward(state, tables, self._fresh(state, rows))
            state.kept = KeptAt(self._version, held.count)
        return islice(self._by_rows(held, state.drops), windows)

    def cut(self, state: Windowed) -> None:
        """Rows that came last are not in the window's state: they are to come again."""
        there = sum(rows.num_rows for rows in state.tables)
        if state.kept.version == self._version and state.kept.known > there:
            self._groups.unstage(state.kept.known - there)
            state.kept = KeptAt(self._version, there)

    # --- what is to be done -------------------------------------------------------------------

    def _fresh(self, state: Windowed, *more: pa.Table) -> _Fresh:
        goes_on = state.kept.version == self._version
        again = self._again
        is_again = again is not None and again.before == state.kept
        first = state.kept.known if goes_on or is_again else state.drops
        rows = pa.concat_tables([*state.tables, *more]).slice(first)
        return _Fresh(rows, goes_on or is_again)

    def _is_to_move(self, state: Windowed, held: HeldRows, fresh: _Fresh) -> bool:
        """Whether rows make a window whole, or may be dropped; others can wait."""
        size, slide = self._window.size, self._window.slide
        if size.rows is not None:
            return held.count - state.drops >= size.rows
        # Those that came before, and wait, were asked about when they came.
        asked = state.added[-1] if fresh.goes_on else fresh.rows
        if not asked.num_rows:
            return False
        times = times_of(asked, self._column)
        if state.mark_us is None:
            state.mark_us = first_end(times, slide.time_us or 1)
        end = state.mark_us
        return bool(times.max() >= end or times.min() < end - (size.time_us or 1))

    @property
    def _column(self) -> str:
        return self._window.stream.order_by[0]

    def _bring_forward(self, state: Windowed, tables: Sequence[pa.Table], fresh: _Fresh) -> None:
        """Know all rows of a window, those that are fresh with them."""
        goes_on = state.kept.version == self._version
        self._version += 1  # nobody has this one, should it come to an end halfway
        self._again = None
        rows = fresh.rows
        if not goes_on:
            if fresh.goes_on:  # it is not the same again
                rows = pa.concat_tables(tables).slice(state.drops)
            self._begin()
        numbers = np.arange(self._number, self._number + rows.num_rows)
        self._number += rows.num_rows
        if self._window.size.rows is not None:
            self._groups.stage(rows, numbers, numbers)
            return
        times = times_of(rows, self._column)
        self._arrived.add(times)
        limit = (state.mark_us or 0) - (self._window.size.time_us or 1)
        order = np.flatnonzero(times >= limit)
        order = order[np.argsort(times[order], kind="stable")]
        if len(order) < len(times) or (np.diff(order) != 1).any():
            rows, times, numbers = rows.take(pa.array(order)), times[order], numbers[order]
        newest = self._groups.time_at(self._groups.count - 1) if self._groups.count else _NEVER
        self._groups.stage(rows, times, numbers)
        if len(times) and times[0] < max(newest, self._entered):
            self._groups.merge(len(times), self._entered)

    # --- whole windows ------------------------------------------------------------------------

    def _slid(self, rows: Callable[[], pa.Table]) -> Slid:
        try:
            return Slid(rows, self._groups.table())
        except OutOfRange as error:
            return Slid(rows, self._aggregates.schema.empty_table(), str(error))

    def _by_rows(self, held: HeldRows, drops: int) -> Iterator[Slid]:
        size, slide = self._window.size.rows or 1, self._window.slide.rows or 1
        while held.count - drops >= size:
            self._groups.move(0, size)
            found = self._slid(partial(held.cut, drops, size))
            self._groups.move(slide, 0)
            drops += slide
            yield found

    def _by_time(self, state: Windowed, held: HeldRows) -> Iterator[Slid]:
        size, slide = self._window.size.time_us or 1, self._window.slide.time_us or 1
        groups, end, column = self._groups, state.mark_us or 0, self._column
        while groups.count and groups.time_at(groups.count - 1) >= end:
            groups.move(groups.rows_before(end - size), 0)
            inside = groups.rows_before(end)
            if inside:
                groups.move(0, inside)
                self._entered = end
                yield self._slid(partial(held.between, column, end - size, end))
                end += slide
            else:
                end = end_after(end, slide, groups.time_at(0))
        state.mark_us = end
        groups.move(groups.rows_before(end - size), 0)
        state.drops += self._arrived.drop(end - size)
