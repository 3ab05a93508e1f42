"""Streams and their windows, as a user declares them: what flows from node to node, and how much.

A declaration is a value and holds no rows. Who gives a stream and who takes it makes the graph; a
stream that no node gives is a source, and only a source is cut into batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.dataflow.aggregates import Aggregates
from headgate.errors import DeclarationError, InputError, shown
from headgate.query.store_tables import ALL_STREAMS, RESULTS, UNROUTED
from headgate.state.durations import parse_duration
from headgate.state.schema import Schema, split_list
from headgate.transactions import RESULT_COLUMNS

BATCH = "batch"  # the column of every row of a stream in the results: the batch that it is of
IN_BATCH = "__batch"  # the same beside rows that are under way
LENGTH_MAX = 1 << 53  # of a window or a batch: rows, or microseconds, which are 285 years
_ROWS = re.compile(r"\s*(\d+)\s*rows?\s*")


@dataclass(frozen=True)
class Length:
    """How much of a stream: so many rows, or so much event time."""

    rows: int | None
    time_us: int | None
    text: str

    @classmethod
    def parse(cls, text: Any, where: str) -> Length:
        """Read "100 rows" or "10 seconds".

        >>> Length.parse("100 rows", "batch").rows, Length.parse("1 second", "batch").time_us
        (100, 1000000)
        """
        if not isinstance(text, str):
            raise DeclarationError(
                f"{where} is a text such as '100 rows' or '1 second', not {shown(text)}"
            )
        counted = _ROWS.fullmatch(text)
        try:
            time_us = None if counted else parse_duration(text, where)
        except InputError:
            raise DeclarationError(
                f"{where}: {text!r} is neither a number of rows nor a time; "
                "write '100 rows' or '1 second'"
            ) from None
        found = cls(int(counted[1]) if counted else None, time_us, text)
        if not (found.rows or found.time_us):
            raise DeclarationError(f"{where}: {text!r} is nothing; it is at least 1 row")
        if max(found.rows or 0, found.time_us or 0) > LENGTH_MAX:
            raise DeclarationError(
                f"{where}: {text!r} is too long; it is at most {LENGTH_MAX} rows or microseconds"
            )
        return found


@dataclass(frozen=True, init=False)
class Stream:
    """Rows of one kind that flow through a dataflow, batch by batch.

    >>> votes = Stream("votes", "ts timestamp, phone bigint", order_by="ts", batch="100 rows")
    >>> votes
    Stream('votes', 'ts timestamp, phone bigint', order_by='ts', batch='100 rows')

    `order_by` names columns. Of a source, the rows that are handed in at once are sorted by them;
    a batch that several pushes fill has theirs one behind the other. On a stream that a node gives
    rows stay as the node gave them. A transaction as a node runs each batch in this order.
    `batch` says how a source is cut into batches: by rows, by event time ("1 second", of the first
    column of the order), or, without it, as the rows come in: what is handed in at once is one.
    With `recorded=False` its rows are not in the results, where nobody is to follow or ask them:
    the log has what nodes did with them, and those that wait.
    """

    name: str
    schema: Schema
    order_by: tuple[str, ...]
    batch: Length | None
    recorded: bool

    def __init__(
        self,
        name: str,
        schema: str,
        order_by: str | Sequence[str] | None = None,
        batch: str | None = None,
        recorded: bool = True,
    ) -> None:
        where = f"stream {name!r}"
        _check_name(name, where)
        parsed = Schema.parse(schema, where)
        _check_columns(parsed, where)
        order = _order(order_by, parsed, where)
        length = None if batch is None else Length.parse(batch, f"{where}: batch")
        if length is not None and length.time_us is not None:
            require_time(parsed, order, f"{where}: batch={batch!r}")
        if not isinstance(recorded, bool):
            raise DeclarationError(f"{where}: recorded is True or False, not {shown(recorded)}")
        said = {
            "name": name, "schema": parsed, "order_by": order, "batch": length,
            "recorded": recorded,
        }  # fmt: skip
        for field, value in said.items():
            object.__setattr__(self, field, value)

    @cached_property
    def empty(self) -> pa.Table:
        """No rows, in its columns."""
        return self.schema.arrow.empty_table()

    def window(
        self,
        size: str,
        slide: str | None = None,
        aggregate: str | None = None,
        by: str | Sequence[str] | None = None,
    ) -> Window:
        """The newest rows of this stream, so many or of so much event time, for one procedure.

        It runs whenever the window has moved on by `slide` (by its whole size, if nothing is
        said): over the rows of one whole window. Rows that came since are staged until then.

        With `aggregate`, such as "count(*) as votes, sum(amount) as total", the engine keeps these
        of the rows as they come and go, by the columns that `by` names. The procedure has them as
        an Arrow table in place of its batch, which its SQL calls `aggregates`:
        `def trend(aggregates, tx)`, or with the rows, too, `def trend(batch, aggregates, tx)`.

        >>> Stream("valid", "phone bigint").window("100 rows", slide="10 rows").slide.rows
        10
        >>> Stream("valid", "k int, v int").window("9 rows", aggregate="sum(v) as total", by="k")
        valid.window('9 rows', aggregate='sum(v) as total', by='k')
        """
        where = f"stream {self.name!r}: window"
        length = Length.parse(size, f"{where}: size")
        step = length if slide is None else Length.parse(slide, f"{where}: slide")
        if (length.rows is None) != (step.rows is None):
            raise DeclarationError(
                f"{where}: size {size!r} and slide {slide!r} are both rows or both times"
            )
        if length.time_us is not None:
            require_time(self.schema, self.order_by, f"{where}({size!r})")
        if (step.rows or step.time_us or 0) > (length.rows or length.time_us or 0):
            raise DeclarationError(
                f"{where}: it would slide by {slide!r} over rows that no window of {size!r} has; "
                "the slide is at most the size"
            )
        kept = Aggregates.parse(aggregate, by, self.schema, where)
        return Window(self, length, step, kept)

    def __repr__(self) -> str:
        words = [repr(self.name), repr(self.schema.ddl)]
        words += [f"order_by={', '.join(self.order_by)!r}"] if self.order_by else []
        words += [f"batch={self.batch.text!r}"] if self.batch is not None else []
        words += [] if self.recorded else ["recorded=False"]
        return f"Stream({', '.join(words)})"


@dataclass(frozen=True)
class Window:
    """Rows of a stream as one procedure has them; made by `stream.window(...)`."""

    stream: Stream
    size: Length
    slide: Length
    aggregates: Aggregates | None = None  # which are kept of its rows

    def __repr__(self) -> str:
        kept = "" if self.aggregates is None else f", {self.aggregates.text}"
        return f"{self.bare[:-1]}{kept})"

    @property
    def bare(self) -> str:
        """Which rows it has, without what is made of them."""
        slide = "" if self.slide == self.size else f", slide={self.slide.text!r}"
        return f"{self.stream.name}.window({self.size.text!r}{slide})"


Taken = Stream | Window  # what a node takes


def stream_of(taken: Taken) -> Stream:
    """The stream behind what a node takes."""
    return taken.stream if isinstance(taken, Window) else taken


def require_time(schema: Schema, order_by: Sequence[str], where: str) -> None:
    """Refuse event time of a stream whose order does not begin with one."""
    if not order_by or schema[order_by[0]].type.kind != "timestamp":
        raise DeclarationError(
            f"{where} is of event time, which needs order_by to begin with a timestamp column"
        )


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        raise DeclarationError(f"{where}: a stream's name is a plain word, such as 'votes'")
    if name.lower() in (RESULTS, UNROUTED, ALL_STREAMS, BATCH):
        raise DeclarationError(f"{where}: {name!r} means something else; choose another name")


def _check_columns(schema: Schema, where: str) -> None:
    for column in schema:
        if not column.name.isidentifier():
            raise DeclarationError(f"{where}: column {column.name!r} is not a plain word")
        if column.default is not None:
            raise DeclarationError(
                f"{where}: column {column.name!r} has a default; defaults belong to tables"
            )
        if column.name.lower() in (*RESULT_COLUMNS, BATCH):
            raise DeclarationError(
                f"{where}: column {column.name!r} is a column of every result; choose another name"
            )


def _order(given: Any, schema: Schema, where: str) -> tuple[str, ...]:
    names = split_list(given) if isinstance(given, str) else given or ()
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise DeclarationError(f"{where}: order_by is a column or a list of them: {shown(given)}")
    found = tuple(name.strip() for name in names)
    for name in found:
        column = schema.require(name, f"{where}: order_by")
        if column.nullable or column.type.element is not None:
            raise DeclarationError(
                f"{where}: order_by: {name!r} may be null or is an array; what has no value has no "
                "place in an order"
            )
    return found
