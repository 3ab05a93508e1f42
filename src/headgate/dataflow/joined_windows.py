"""Joined windows: those that one procedure takes beside one another, or beside streams.

What comes in the batches of one number moves all of them on, step by step. The nth step of a window
of rows is its nth slide in this batch. Windows of time have one clock, the time that all of them
have come to, and the nth step of all is the nth end that it passes. At each step the procedure is
called with the newest whole content of every window; so a window keeps the rows of that until it
slides. With streams beside them it is called once for a batch that has rows of these, when all
windows have moved on.

Invariant: what a call sees depends on the rows of the batches so far and on their numbers alone. A
row that comes when the end of a window of time is passed is in none that was whole before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

import numpy as np
import pyarrow as pa

from headgate.dataflow.aggregates import Aggregates
from headgate.dataflow.groups import Groups, OutOfRange
from headgate.dataflow.nodes import Node
from headgate.dataflow.procedures import sql_names
from headgate.dataflow.streams import Window
from headgate.dataflow.under_way import NOT_KEPT, KeptAt, Windowed
from headgate.dataflow.windows import HeldRows, Slid, SqlTables, end_after, first_end, times_of

# --- aggregates of the newest whole content -------------------------------------------------------


class KeptContent:
    """The aggregates of one joined window: of its newest whole content.

    As those of a window that stands by itself they are derived from its rows, and made anew where
    their version is not that of the state: after an opening or an abort. Rows that come behind the
    content are not known before the window slides.
    """

    def __init__(self, aggregates: Aggregates) -> None:
        self._aggregates, self._number = aggregates, 0
        self.version: int = 0
        self._table: pa.Table | None = None
        self.begin()

    def begin(self) -> None:
        """There are no rows."""
        self._groups, self._table = Groups(self._aggregates), None

    def stage(self, rows: pa.Table) -> None:
        """Rows come."""
        numbers = self._numbers(rows)
        self._groups.stage(rows, numbers, numbers)

    def stage_by_time(self, rows: pa.Table, times: np.ndarray, entered: int) -> None:
        """Rows come in the order of their times; those before one that was passed are in the
        content at once."""
        groups, newest = self._groups, entered
        if groups.count:
            newest = max(entered, groups.time_at(groups.count - 1))
        groups.stage(rows, times, self._numbers(rows))
        if len(times) and times[0] < newest:
            groups.merge(len(times), entered)

    def _numbers(self, rows: pa.Table) -> np.ndarray:
        first, self._number = self._number, self._number + rows.num_rows
        return np.arange(first, self._number)

    def slide(self, leaving: int, inside: int) -> None:
        """So many rows leave, then so many are the content."""
        self._table = None
        self._groups.move(leaving, inside)

    def slide_to(self, begin: int, end: int) -> None:
        """The rows from one time to before another are the content."""
        self.slide(self._groups.rows_before(begin), 0)
        self.slide(0, self._groups.rows_before(end))

    def slid(self, rows: Callable[[], pa.Table]) -> Slid:
        """The content, with what is kept of it."""
        try:
            if self._table is None:
                self._table = self._groups.table()
            found = self._table if self._table.num_rows else self._aggregates.of_no_rows
            return Slid(rows, found)
        except OutOfRange as error:
            return Slid(rows, self._aggregates.schema.empty_table(), str(error))


class _Bringing:
    """Brings the aggregates of a window forward while a batch moves it on, where it has any."""

    def __init__(
        self, kept: KeptContent | None, state: Windowed, stage: Callable[[KeptContent], int]
    ) -> None:
        self._kept, self._state, self._stage = kept, state, stage
        self._known: int | None = None  # how many of the rows they have, once that was asked
        self._is_turned = False

    def slid(self, rows: Callable[[], pa.Table]) -> Slid:
        """The content of the window as it stands."""
        if self._kept is None:
            return Slid(rows)
        self._bring(self._kept)
        return self._kept.slid(rows)

    def _bring(self, kept: KeptContent) -> int:
        """Have them be of the content as the state has it; returns how many rows they know."""
        if self._known is None:
            if self._state.kept.version == kept.version:
                self._known = self._state.kept.known
            else:
                self._turn(kept)
                kept.begin()
                self._known = self._stage(kept)
        return self._known

    def _turn(self, kept: KeptContent) -> None:
        """Nobody has this version, should the execution come to an end halfway."""
        if not self._is_turned:
            self._is_turned = True
            kept.version += 1

    def to_slide(self, count: int, more: Callable[[KeptContent, int], None]) -> KeptContent | None:
        """The window is about to slide: have all rows, and `more` stages those from one on."""
        kept = self._kept
        if kept is not None:
            known = self._bring(kept)
            self._turn(kept)
            if known < count:
                more(kept, known)
                self._known = count
        return kept

    def settle(self) -> None:
        """The batch is behind."""
        if self._kept is not None and self._known is not None:
            self._state.kept = KeptAt(self._kept.version, self._known, self._state.kept.newest)


# --- one window -----------------------------------------------------------------------------------


class _ByRows:
    """A window of rows while a batch moves it on."""

    def __init__(self, window: Window, state: Windowed, kept: KeptContent | None) -> None:
        self._size, self._slide = window.size.rows or 1, window.slide.rows or 1
        self._state, self._held = state, HeldRows(_tables(window, state))
        self._begin, self.is_whole = state.drops, state.whole > state.drops
        self._kept = _Bringing(kept, state, self._stage_content)
        first = self._begin + (self._slide if self.is_whole else 0)
        self._slides = range(first, self._held.count - self._size + 1, self._slide)
        self.steps: int = len(self._slides)

    def step(self, number: int) -> None:
        """Slide for the nth time in this batch, if there is one."""
        if number < self.steps:
            begin = self._slides[number]
            kept = self._kept.to_slide(self._held.count, self._stage)
            if kept is not None:
                kept.slide(begin - self._begin, self._size)
            self._begin, self.is_whole = begin, True

    def content(self) -> Slid:
        """Its newest whole content; nothing before there is one."""
        count = self._size if self.is_whole else 0
        return self._kept.slid(partial(self._held.cut, self._begin, count))

    def settle(self) -> None:
        """The batch is behind."""
        state = self._state
        state.drops, state.whole = self._begin, self._begin + self._size * self.is_whole
        self._kept.settle()

    def _stage_content(self, kept: KeptContent) -> int:
        count = self._size if self.is_whole else 0
        if count:
            kept.stage(_between(self._state, self._begin, self._begin + count))
            kept.slide(0, count)
        return self._begin + count

    def _stage(self, kept: KeptContent, known: int) -> None:
        kept.stage(_between(self._state, known, self._held.count))


class _ByTime:
    """A window of time while a batch moves it on: to the end of its newest whole content."""

    def __init__(
        self, window: Window, state: Windowed, kept: KeptContent | None, fresh: pa.Table
    ) -> None:
        self._size, self._slide = window.size.time_us or 1, window.slide.time_us or 1
        self._tables, self._column = _tables(window, state), window.stream.order_by[0]
        self._state, self._held = state, HeldRows(self._tables)
        self._kept = _Bringing(kept, state, self._stage_content)
        self._whole = state.whole
        self._end: int | None = None
        if state.mark_us is not None:
            self._end = state.mark_us - self._slide
        elif fresh.num_rows:
            self._end = first_end(times_of(fresh, self._column), self._slide) - self._slide
        self._is_moved = False
        self._newest = self._newest_with(fresh)

    @cached_property
    def _times(self) -> np.ndarray:
        """The times of all rows, which a window that does not slide need not look at."""
        times = [one.select([self._column]) for one in self._tables]
        return times_of(pa.concat_tables(times), self._column)

    @cached_property
    def _ascends(self) -> bool:
        """Whether rows came in the order of their times, as they mostly do: nothing is sorted."""
        return bool((self._times[1:] >= self._times[:-1]).all())

    def _newest_with(self, fresh: pa.Table) -> int | None:
        """The newest time of its rows."""
        known = self._state.kept.newest
        times = self._times if known is None else times_of(fresh, self._column)
        found = [int(times.max())] if len(times) else []
        return max([*found, *([] if known is None else [known])], default=None)

    @property
    def is_whole(self) -> bool:
        """What ended before its first row counts as whole."""
        return self._end is not None

    @property
    def newest(self) -> int | None:
        """The time that it has come to; that of rows that were never given stays."""
        if self._end is None or self._newest is None:
            return self._end
        return max(self._end, self._newest)

    def ends(self, clock: int) -> Iterator[int]:
        """The ends of its next windows, up to the clock, those without rows passed over."""
        if self._end is None or self._end + self._slide > clock:
            return
        end, times = self._end + self._slide, self._times
        times = times if self._ascends else np.sort(times)
        while end <= clock:
            following = int(np.searchsorted(times, end))
            if np.searchsorted(times, end - self._size) < following:
                yield end
                end += self._slide
            elif following == len(times):
                return
            else:
                end = end_after(end, self._slide, int(times[following]))

    def pass_to(self, time: int | None) -> None:
        """The clock passes a time: it moves to its last end up to that."""
        if time is None or self._end is None or time < self._end + self._slide:
            return
        end = time // self._slide * self._slide
        more = partial(self._stage, end)
        kept = self._kept.to_slide(len(self._times), more)
        if kept is not None:
            kept.slide_to(end - self._size, end)
        self._end, self._whole, self._is_moved = end, len(self._times), True

    def content(self) -> Slid:
        """Its newest whole content; nothing before there is one."""
        return self._kept.slid(partial(self._rows, self._whole, self._end or 0))

    def _rows(self, whole: int, end: int) -> pa.Table:
        return _at(self._held.whole, self._order(0, whole, end - self._size, end))

    def _order(
        self, first: int, last: int, begin: int, end: int | None = None
    ) -> range | np.ndarray:
        """The places of rows from one time to before another, in the order of their times."""
        times = self._times[first:last]
        if self._ascends:
            stop = len(times) if end is None else int(np.searchsorted(times, end))
            return range(first + int(np.searchsorted(times, begin)), first + stop)
        inside = times >= begin
        if end is not None:
            inside &= times < end
        found = np.flatnonzero(inside)
        return first + found[np.argsort(times[found], kind="stable")]

    def settle(self) -> None:
        """The batch is behind."""
        state = self._state
        if self._end is not None:
            state.mark_us, state.whole = self._end + self._slide, self._whole
        if self._end is not None and self._is_moved:  # no row has come since
            needed = self._times >= self._end - self._size
            state.drops = int(np.argmax(needed)) if needed.any() else len(needed)
        self._kept.settle()
        state.kept = state.kept._replace(newest=self._newest)

    def _stage_content(self, kept: KeptContent) -> int:
        if self._end is not None:
            self._stage_between(kept, 0, self._whole, self._end - self._size, self._end)
            kept.slide_to(self._end - self._size, self._end)
        return self._whole

    def _stage(self, end: int, kept: KeptContent, known: int) -> None:
        entered = end if self._end is None else self._end
        self._stage_between(kept, known, len(self._times), end - self._size, entered)

    def _stage_between(
        self, kept: KeptContent, first: int, last: int, begin: int, entered: int
    ) -> None:
        order = self._order(first, last, begin)
        if len(order):
            rows = _at(pa.concat_tables(self._tables), order)
            times = self._times[order.start : order.stop] if isinstance(order, range) else (
                self._times[order]
            )  # fmt: skip
            kept.stage_by_time(rows, times, entered)


def _between(state: Windowed, first: int, last: int) -> pa.Table:
    """Rows of a window by their places."""
    return pa.concat_tables(state.tables).slice(first, last - first)


def _at(rows: pa.Table, places: range | np.ndarray) -> pa.Table:
    """Rows by their places."""
    if isinstance(places, range):
        return rows.slice(places.start, len(places))
    return rows.take(pa.array(places))


def _tables(window: Window, state: Windowed) -> list[pa.Table]:
    return state.tables or [window.stream.empty]


# --- all of them ----------------------------------------------------------------------------------


class JoinedCall:
    """What a procedure is called with once: each stream that it takes with its rows, or the content
    of its window."""

    def __init__(self, node: Node, contents: Sequence[Slid]) -> None:
        self._contents = contents
        self._names = sql_names(node.takes)

    @property
    def refused(self) -> str | None:
        """Why it cannot be called, if it cannot."""
        return next((one.refused for one in self._contents if one.refused is not None), None)

    def named(self) -> SqlTables:
        """The tables by the names that SQL has for them."""
        found: dict[str, Callable[[], pa.Table]] = {}
        for (name, aggregates), one in zip(self._names, self._contents, strict=True):
            found[name] = partial(getattr, one, "rows")
            if aggregates is not None:
                found[aggregates] = partial(getattr, one, "aggregates")
        return SqlTables(found)

    def arguments(self, *, has_rows: bool) -> list[pa.Table]:
        """What a function is called with, but for its tx."""
        given = [one.arguments(has_rows=has_rows or one.aggregates is None)
                 for one in self._contents]  # fmt: skip
        return [*chain.from_iterable(given)]


def joined_calls(
    node: Node,
    states: Mapping[str, Windowed],
    taken: Sequence[pa.Table],
    kept: Mapping[str, KeptContent],
) -> Iterator[JoinedCall]:
    """What a procedure is called with for a batch, in order; the states move along, and are where
    they are to be when all calls have been taken."""
    keys = {window.stream.name: key for key, window in node.joined.items()}
    sides: list[_ByRows | _ByTime | pa.Table] = []
    for stream, rows in zip(node.streams, taken, strict=True):
        key = keys.get(stream.name)
        if key is None:
            sides.append(rows)
            continue
        state, window = states[key], node.joined[key]
        if rows.num_rows:
            state.added.append(rows)
        if window.size.rows is None:
            sides.append(_ByTime(window, state, kept.get(key), rows))
        else:
            sides.append(_ByRows(window, state, kept.get(key)))
    by_rows = [one for one in sides if isinstance(one, _ByRows)]
    by_time = [one for one in sides if isinstance(one, _ByTime)]
    windows: list[_ByRows | _ByTime] = [*by_rows, *by_time]
    clock = _clock(by_time)
    for _ in _stepped(by_rows, by_time, clock) if len(windows) == len(sides) else ():
        if all(one.is_whole for one in windows):
            yield _call(node, sides)
    for counted in by_rows:
        counted.step(max(counted.steps - 1, 0))
    for timed in by_time:
        timed.pass_to(clock)
    if any(isinstance(one, pa.Table) and one.num_rows for one in sides):
        yield _call(node, sides)
    for one in windows:
        one.settle()


def _call(node: Node, sides: Sequence[_ByRows | _ByTime | pa.Table]) -> JoinedCall:
    contents = [_of(one) if isinstance(one, pa.Table) else one.content() for one in sides]
    return JoinedCall(node, contents)


def _of(rows: pa.Table) -> Slid:
    return Slid(lambda: rows)


def _clock(windows: Sequence[_ByTime]) -> int | None:
    """The time that all windows of time have come to; None before all of them have had a row."""
    times = [one.newest for one in windows]
    return None if None in times else min((one for one in times if one is not None), default=None)


def _stepped(
    by_rows: Sequence[_ByRows], by_time: Sequence[_ByTime], clock: int | None
) -> Iterator[int]:
    """Move all windows on, step by step."""
    ends: list[int] = []
    if clock is not None:
        ends = sorted(set(chain.from_iterable(one.ends(clock) for one in by_time)))
    for number in range(max([len(ends), *(one.steps for one in by_rows)])):
        for one in by_rows:
            one.step(number)
        for window in by_time if number < len(ends) else ():
            window.pass_to(ends[number])
        yield number


def move_joined_past(
    node: Node,
    states: Mapping[str, Windowed],
    taken: Sequence[pa.Table | None],
    inner: frozenset[str],
    kept: Mapping[str, KeptContent],
) -> Mapping[str, Windowed]:
    """A batch was aborted for good: what came of it (None: nothing did) is in the windows, and what
    it made whole is behind. Returns those that have moved on.

    Of rows that one of the same nest gave (on an `inner` stream), and that never were, the time
    alone stays, as in a window that stands by itself.
    """
    there = {key: len(one.added) for key, one in states.items()}
    had_begun = {key for key, one in states.items() if one.mark_us is not None}
    rows = [stream.empty if one is None else one
            for stream, one in zip(node.streams, taken, strict=True)]  # fmt: skip
    for _ in joined_calls(node, states, rows, kept):
        pass
    found = {}
    for key, window in node.joined.items():
        state = states[key]
        if window.stream.name in inner:
            if key not in had_begun:  # of a window of rows, too
                continue
            del state.added[there[key] :]
            count = sum(one.num_rows for one in state.tables)
            state.drops, state.whole = min(state.drops, count), min(state.whole, count)
            state.kept = NOT_KEPT
        found[key] = state
    return found
