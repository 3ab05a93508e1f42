"""Periodic: ticks, events that the engine makes at each multiple of a period that time passes.

A tick runs before the events of its own time and later, and after all before it. How far a stream
has ticked is durable with the epoch that ran them: in a store's files it stands among the inlets,
under a name that no stream can have. So no tick is lost or run twice, whatever stops in between.

A stream begins to tick in the period of the first event that runs, whenever that came: what ticks
run depends on the events in their order alone, not on how they were cut into batches. For the same
reason, of periods in a row in which no event came, the first TICKS_MAX have a tick: which are the
last is not known while the watermark moves. An event that is years ahead by mistake must not cost
millions of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headgate.durability import Inlet
from headgate.engine.terms import Terms
from headgate.errors import InvariantError
from headgate.state.durations import Period
from headgate.state.fitting import joined
from headgate.state.spaces import EventRows
from headgate.state.types import BOUNDS, ColumnType

if TYPE_CHECKING:
    from headgate.engine.ordering import Arranged, Arranger

TICKS_MAX = 10_000  # of periods in a row in which no event came
START, END = "start", "end"  # the columns of a tick
_NAME = "\0tick "  # then the inlet's name and the transaction's
_TIME = ColumnType("timestamp")


@dataclass(frozen=True)
class Ticked:
    """How far a stream has ticked, and how often since an event."""

    last_us: int
    idle_count: int


@dataclass(frozen=True)
class TickRows:
    """Ticks as the first events of a batch: the number of each one's transaction, its window."""

    numbers: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def before(self, events: pa.Table, terms: Terms) -> pa.Table:
        """The events with these before them: in columns of their own, and in that of the order."""
        count, order = len(self), terms.order_by[0]
        columns: dict[str, Any] = {}
        for name in terms.columns:
            column = events.column(name)
            if name == order.name:
                where = f"events: column {name!r}"
                columns[name] = joined(_times(self.ends), column, order.type, where)
            else:
                columns[name] = pa.chunked_array([pa.nulls(count, column.type), *column.chunks])
        nothing = pa.nulls(events.num_rows, _TIME.arrow)
        for name, values in ((START, self.starts), (END, self.ends)):
            columns[name] = pa.concat_arrays([_times(values), nothing])
        return pa.table(columns)

    def in_order(self, times: np.ndarray, order: EventRows, late: int) -> EventRows:
        """The order of a batch with the ticks in it; events that are late stay behind all."""
        timely = len(order) - late
        places = np.searchsorted(times[order[:timely]], self.ends, side="left")
        return np.insert(order, places, np.arange(len(self)))


NO_TICKS = TickRows(*(np.empty(0, np.int64) for _ in range(3)))


def _times(values: np.ndarray) -> pa.Array:
    return pa.array(values, pa.int64()).cast(_TIME.arrow)


def arrange(
    arranger: Arranger,
    events: pa.Table,
    state: Inlet | None,
    inlet: str,
    inlets: Mapping[str, Inlet],
) -> tuple[Arranged, dict[str, Inlet]]:
    """A batch in order with the ticks that are due in it, and how far the stream has ticked."""
    arranged = arranger.arrange(events, state)
    ticks = arranger.terms.route.ticks
    if not ticks or arranged.clock is None:
        return arranged, {}
    moved, found = {}, []
    for tick in ticks:
        period, name = tick.signature.tick, f"{_NAME}{inlet} {tick.name}"
        if period is None:
            raise InvariantError(f"transaction {tick.name!r} has no period")
        known = inlets.get(name)
        before = None if known is None else Ticked(known.watermark_us or 0, known.arrivals)
        ends, after = due_ticks(period, *arranged.clock, before)
        if after is not None and after != before:
            moved[name] = Inlet(after.last_us, None, after.idle_count)
        if len(ends):
            number = np.full(len(ends), arranger.program.number(tick.name))
            found.append(TickRows(number, ends - period.size_us, ends))
    if not found:
        return arranged, moved
    both = TickRows(
        np.concatenate([one.numbers for one in found]),
        np.concatenate([one.starts for one in found]),
        np.concatenate([one.ends for one in found]),
    )
    by_time = np.argsort(both.ends, kind="stable")  # those of one time in the order of the stream
    ticks_now = TickRows(both.numbers[by_time], both.starts[by_time], both.ends[by_time])
    return arranger.arrange(events, state, ticks_now), moved


def due_ticks(
    period: Period, times: np.ndarray, mark: int | None, before: Ticked | None
) -> tuple[np.ndarray, Ticked | None]:
    """The times of the ticks in a batch whose events run at these times, in order; and how far the
    stream has ticked then. `mark` is the watermark behind the batch."""
    every, events = period.every_us, np.unique(times // period.every_us)
    if before is None:
        if not len(events):
            return np.empty(0, np.int64), None
        before = Ticked(int(events[0]) * every, 0)
    low, idle = before.last_us // every, before.idle_count
    if len(events) and events[0] < low:
        idle = 0
    count_max = TICKS_MAX + 1  # since an event: the first is that of the period in which it came
    with_event = set(events.tolist())
    reached = with_event if mark is None else with_event | {mark // every}
    pieces = [np.empty(0, np.int64)]
    for high in sorted(one for one in reached if one >= low):
        pieces.append(np.arange(low + 1, min(high, low + count_max - idle) + 1))
        idle = 0 if high in with_event else idle + len(pieces[-1])
        low = high
    ends = np.concatenate(pieces) * every
    # A window that begins before the first time that there is can be in no column.
    return ends[ends - period.size_us >= BOUNDS[_TIME.kind][0]], Ticked(low * every, idle)
