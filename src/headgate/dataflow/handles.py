"""Handles: a stream of a dataflow as a user has it in hand, to feed, flush and look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import pyarrow as pa

from headgate.dataflow.arriving import fitted
from headgate.dataflow.streams import Stream
from headgate.engine.events import as_table
from headgate.engine.metrics import NodeMetrics
from headgate.engine.origins import Applied
from headgate.engine.terms import Origin
from headgate.state.schema import Schema

if TYPE_CHECKING:
    from headgate.dataflow.nodes import Node
    from headgate.spark.sink import Sink

# --- what each node did ---------------------------------------------------------------------------
# What each node of a dataflow did since the engine was opened, what waits.


class NodeMeters:
    """Counts the nodes of an engine; under its lock, read by any thread."""

    def __init__(self) -> None:
        self._counts: dict[str, NodeMetrics] = {}

    def of(self, node: str) -> NodeMetrics:
        """What is counted of a node, as it goes on."""
        found = self._counts.get(node)
        if found is None:
            found = self._counts[node] = NodeMetrics()
        return found

    def read(self, node: str, waiting: int) -> NodeMetrics:
        """What was counted of a node so far."""
        return replace(self.of(node), waiting=waiting)

    def note_run(self, node: str, seconds: float) -> None:
        """It ran, whatever became of it."""
        self.of(node).seconds += seconds

    def note_queue(self, nodes: Iterable[Node], seconds: float) -> None:
        """What they are done with, or begin, has waited so long."""
        for node in nodes:
            self.of(node.name).queue_seconds += seconds

    def note_done(
        self, node: str, *, aborted: bool, rows: int = 0, rows_out: int = 0, batches: int = 1
    ) -> None:
        """It is done with a batch, or with several."""
        one = self.of(node)
        one.batches += batches
        one.rows += rows
        one.aborts += batches if aborted else 0
        one.rows_out += rows_out

    def note_retry(self, node: str) -> None:
        """It is tried again."""
        self.of(node).retries += 1


class Aligned(NamedTuple):
    """An epoch at which all partitions were done with the same batches, and the last of these."""

    batch: int
    epoch: int


NO_COLUMNS = Schema(())


class Feeding(Protocol):
    """The dataflows of an engine, as far as a handle needs them."""

    def push(self, given: Any, rows: Any, origin: Origin | None = None) -> pa.Table: ...

    def flush(self, given: Any) -> pa.Table: ...

    def send(self, given: Any, rows: Any) -> None: ...

    def settle(self) -> None: ...

    def source(self, given: Any) -> Stream: ...

    def metrics(self) -> dict[str, NodeMetrics]: ...

    def aligned(self, given: Any) -> Aligned: ...


class FlowStream:
    """A stream of a dataflow; made by `engine.stream(votes)`."""

    def __init__(self, stream: Stream, flows: Feeding, engine: object) -> None:
        self._stream, self._flows = stream, flows
        self.engine = engine  # whoever holds a stream of an engine holds the engine

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream.name

    @property
    def told(self) -> str:
        """What it is, in words."""
        return f"the stream {self.name} of a dataflow"

    @property
    def columns(self) -> list[str]:
        """The names of the columns that its rows need."""
        return list(self._stream.schema.names)

    def push(self, rows: Any) -> pa.Table:
        """Hand rows to the stream, a source; see `engine.push`."""
        return self._flows.push(self._stream, rows)

    run = push

    def flush(self) -> pa.Table:
        """Take the batch that is open for whole, and run it."""
        return self._flows.flush(self._stream)

    def send(self, rows: Any) -> None:
        """Hand rows to the stream, a source, and go on while workers run them.

        It returns when the rows are in the log, which may be before they have run, and waits when
        too many are before them. `settle` waits for all. Without workers it is `push`.
        """
        self._flows.send(self._stream, rows)

    def settle(self) -> None:
        """Return when all that was handed in has run and is durable."""
        self._flows.settle()

    def sink(self) -> Sink:
        """The function to hand to `writeStream.foreachBatch`: each micro-batch exactly once."""
        from headgate.spark.sink import Sink  # a door upward: spark/ stands above us

        self._flows.source(self._stream)
        return Sink(self)

    def feed(self) -> FlowFeed:
        """Where micro-batches come in, each once: what a sink puts its own into."""
        return FlowFeed(self._stream, self._flows)

    def check(self, rows: Any) -> Self:
        """Refuse rows that the stream could not take, at once and before there are any."""
        if isinstance(rows, pa.Schema):
            given = rows.empty_table()
        elif hasattr(rows, "sparkSession"):
            from headgate.spark.sink import frame_schema  # the same door

            given = frame_schema(rows, self.columns).empty_table()
        else:
            given = as_table(rows, NO_COLUMNS, "rows").slice(0, 0)
        fitted(given, self._stream, f"stream {self.name!r}")
        return self

    def metrics(self) -> dict[str, NodeMetrics]:
        """What each node did since the engine was opened, by its name, and what waits for it."""
        return self._flows.metrics()

    def aligned(self) -> Aligned:
        """The newest epoch at which all partitions that take the stream were done with the same
        batches: what `engine.sql(query, epoch=...)` reads there is of one batch, whatever workers
        are at."""
        return self._flows.aligned(self._stream)

    def __repr__(self) -> str:
        return f"<stream {self.name}: {self._stream.schema.ddl}>"


class FlowFeed:
    """The micro-batches of one sink on their way into a source: each once, by its origin."""

    def __init__(self, stream: Stream, flows: Feeding) -> None:
        self._stream, self._flows = stream, flows

    def apply(self, events: pa.Table, origin: Origin | None, run: str | None = None) -> pa.Table:
        """One micro-batch, known by its query, the stream and its number."""
        if origin is not None:
            origin = (f"{origin[0]}/{self._stream.name}", origin[1])
        return self._flows.push(self._stream, events, origin)

    def progress(self) -> Applied | None:
        """A dataflow counts by nodes and batches, not by micro-batches: `flow.metrics()`."""
        return None

    def flush(self, query: str | None = None) -> pa.Table:
        """Take the batch that is open for whole, and run it; a source has one, whoever feeds it."""
        return self._flows.flush(self._stream)
