"""Arriving: rows that come in at a source, fitted, in order, and cut into batches.

What is malformed, or late, gets its outcome and comes into no batch. A batch by rows is whole when
it has them, one by time when a row of a later time is there, any other at once. A batch by time
that was flushed is whole, too: what comes for it afterwards is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.dataflow.runs import BatchRun, repeated
from headgate.dataflow.streams import Stream
from headgate.dataflow.under_way import UnderWay
from headgate.engine.events import as_table, require_columns
from headgate.engine.metrics import Tally
from headgate.engine.terms import Origin
from headgate.errors import InputError, not_among
from headgate.execution.run import COMMITTED, LATE, OUTCOMES, REJECTED
from headgate.state.columns import is_in_time
from headgate.state.fitting import fit
from headgate.state.objects import FAULT_WORDS, NULL_FAULT


@dataclass(frozen=True)
class Arrival:
    """Rows of one source that came in at once: those of batches, and those of none."""

    stream: Stream
    rows: pa.Table  # of batches
    numbers: np.ndarray  # the batch of each
    closed: int
    aside: pa.Table
    outcomes: Sequence[str] = ()
    reasons: Sequence[str] = ()
    origin: Origin | None = None
    flushed_us: int | None = None  # of batches by time: those before it are whole
    is_flush: bool = False

    @property
    def runs(self) -> list[BatchRun]:
        """Its rows as they join those that are under way."""
        return [BatchRun.of(self.rows, self.numbers)] if self.rows.num_rows else []


def fitted(
    given: Any, stream: Stream, where: str, *, all_of: bool = False
) -> tuple[pa.Table, np.ndarray | None]:
    """Rows in the stream's columns and types, and by row the first fault: column and kind; None
    where there is none.

    With `all_of` they have no other columns; else those are left out, as a sink does.
    """
    if isinstance(given, pa.Table) and _is_fitting(given, stream):
        return given, None
    table = as_table(given, stream.schema, where)
    require_columns(table, stream.schema.names, where)
    others = [name for name in table.column_names if name not in stream.schema]
    if all_of and others:
        raise InputError(
            f"{where}: no column {others[0]!r} in the stream; "
            f"{not_among(others[0], stream.schema.names, 'columns')}"
        )
    if _is_fitting(table, stream):
        return table, None
    arrays, faults = [], np.zeros(table.num_rows, np.int64)
    for number, column in enumerate(stream.schema):
        one = fit(table.column(column.name), column.type, f"{where}: column {column.name!r}")
        if one.faults is not None:
            given_faults = one.faults.astype(np.int64)
            nulls = 0 if column.nullable else given_faults
            wrong = np.where(given_faults > NULL_FAULT, given_faults, nulls)
            found = np.where(wrong > 0, 256 * (number + 1) + wrong, 0)
            faults = np.where(faults > 0, faults, found)
        kind = column.type.arrow
        arrays.append(one.array if one.array.type == kind else one.array.cast(kind))
    return pa.table(arrays, schema=stream.schema.arrow), faults if faults.any() else None


_ANY = frozenset(("int", "bigint", "double", "boolean"))  # of which all values are as good
_TIMES = {"timestamp": np.int64, "date": np.int32}  # of which those of the years that there are


def _is_fitting(table: pa.Table, stream: Stream) -> bool:
    """Whether rows are as the stream has them, with little to look at: as most come, and as
    procedures make them."""
    if table.schema != stream.empty.schema:
        return False
    for column, found in zip(stream.schema, table.columns, strict=True):
        kind = column.type.kind
        if found.num_chunks != 1 or found.null_count or not (kind in _ANY or kind in _TIMES):
            return False
        is_time = kind in _TIMES and table.num_rows > 0
        if is_time and not is_in_time(_words_of(found.chunk(0), _TIMES[kind]), kind):
            return False
    return True


def _words_of(times: pa.Array, kind: type) -> np.ndarray:
    last = times.offset + len(times)
    return np.frombuffer(times.buffers()[1], kind, last)[times.offset :]


def arrived(given: Any, stream: Stream, progress: UnderWay, origin: Origin | None) -> Arrival:
    """What came in, with the numbers of the batches that it goes to."""
    table, faults = fitted(given, stream, f"stream {stream.name!r}")
    aside, outcomes, reasons = stream.empty, [], []
    if faults is not None:
        wrong = np.flatnonzero(faults)
        names = stream.schema.names
        aside = table.take(pa.array(wrong))
        outcomes = [OUTCOMES[REJECTED]] * len(wrong)
        reasons = list[str]()
        for one in faults[wrong]:
            name = names[int(one) // 256 - 1]
            null = "null order column" if name in stream.order_by else "null value"
            reasons.append(f"{FAULT_WORDS.get(int(one) % 256, null)}: {name}")
        table = table.filter(pa.array(faults == 0))
    if stream.order_by and table.num_rows > 1:
        table = table.sort_by([(name, "ascending") for name in stream.order_by])
    before = progress.flushed_us(stream.name)
    if stream.batch is None:  # what comes in at once is one
        closed = progress.closed(stream.name) + (1 if table.num_rows else 0)
        numbers = repeated(closed, table.num_rows)
        return Arrival(stream, table, numbers, closed, aside, outcomes, reasons, origin, before)
    numbers, closed, late = _numbered(table, stream, progress)
    if late.any():
        aside = pa.concat_tables([aside, table.filter(pa.array(late))])
        count = int(late.sum())
        outcomes += [OUTCOMES[LATE]] * count
        reasons += [f"late: {stream.order_by[0]} is before the batch that is open"] * count
        table, numbers = table.filter(pa.array(~late)), numbers[~late]
    return Arrival(stream, table, numbers, closed, aside, outcomes, reasons, origin, before)


def tally_of(arrival: Arrival) -> Tally:
    """How many rows were taken, and which were not, and why."""
    tally = Tally()
    tally.add(COMMITTED, arrival.rows.num_rows)
    if not arrival.outcomes:
        return tally
    for (outcome, reason), count in Counter(
        zip(arrival.outcomes, arrival.reasons, strict=True)
    ).items():
        tally.add(OUTCOMES.index(outcome), count, reason)
    return tally


def youngest_us(arrival: Arrival) -> int | None:
    """The time of the youngest row that was taken, where the stream is in the order of one."""
    if not arrival.stream.order_by or not arrival.rows.num_rows:
        return None
    times = arrival.rows.column(arrival.stream.order_by[0])
    return int(times[-1].value) if pa.types.is_timestamp(times.type) else None


def _numbered(
    table: pa.Table, stream: Stream, progress: UnderWay
) -> tuple[np.ndarray, int, np.ndarray]:
    """The batch of each row, the last that is whole now, and which rows are late."""
    count, closed = table.num_rows, progress.closed(stream.name)
    late = np.zeros(count, np.bool_)
    waiting = progress.open_rows(stream.name)
    if stream.batch is not None and stream.batch.rows is not None:
        places = waiting.num_rows + np.arange(count)
        numbers = closed + 1 + places // stream.batch.rows
        return numbers, closed + (waiting.num_rows + count) // stream.batch.rows, late
    return _by_time(table, stream, waiting, closed, progress.flushed_us(stream.name))


def _by_time(
    table: pa.Table, stream: Stream, waiting: pa.Table, closed: int, flushed_us: int | None
) -> tuple[np.ndarray, int, np.ndarray]:
    step, name = _step_us(stream), stream.order_by[0]
    periods = table.column(name).cast(pa.int64()).to_numpy() // step
    if waiting.num_rows:
        here = int(waiting.column(name)[0].value) // step
    else:  # no batch is open: the first row opens one that is behind what was flushed
        fresh = periods if flushed_us is None else periods[periods >= flushed_us // step]
        here = int(fresh[0]) if len(fresh) else (flushed_us or 0) // step
    late = periods < here
    later = np.unique(periods[periods > here])
    numbers = closed + 1 + np.searchsorted(np.concatenate([[here], later]), periods)
    return numbers, closed + len(later), late


def flushed(stream: Stream, progress: UnderWay) -> Arrival | None:
    """The batch that is open, taken for whole as it is; None when it has no rows."""
    waiting = progress.open_rows(stream.name)
    if not waiting.num_rows:
        return None
    flushed_us = None
    if stream.batch is not None and stream.batch.time_us is not None:
        step = _step_us(stream)
        flushed_us = (int(waiting.column(stream.order_by[0])[0].value) // step + 1) * step
    number = progress.closed(stream.name) + 1
    none = np.empty(0, np.int64)
    return Arrival(
        stream, stream.empty, none, number, stream.empty, flushed_us=flushed_us, is_flush=True
    )


def _step_us(stream: Stream) -> int:
    found = None if stream.batch is None else stream.batch.time_us
    return found or 1
