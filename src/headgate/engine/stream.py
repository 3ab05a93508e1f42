"""Streams: events of one kind with what was said about them, and where each of them stands.

`EngineStream` is what `engine.stream(...)` gives a user; `engine.run`, `engine.sink`,
`engine.flush` and `engine.explain` are its short forms. Events of a stream may come in at several
inlets, one for each query that feeds it. What an inlet holds back is run by a flush: an epoch of
its own, so that after a crash it has either happened or not.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import Inlet
from headgate.engine.events import as_table
from headgate.engine.journal import Journal
from headgate.engine.memory import Memory
from headgate.engine.metrics import Meter, Metrics, StreamMetrics, stream_metrics
from headgate.engine.ordering import Arranged
from headgate.engine.origins import Feed, Way
from headgate.engine.table_times import TableTimes
from headgate.engine.terms import Terms, recorded
from headgate.errors import HeadgateError, InputError, shown
from headgate.io import Clock
from headgate.isolation.levels import Executor, Recording
from headgate.parallel.figures import Figures
from headgate.state.schema import Schema

if TYPE_CHECKING:
    from headgate.spark.sink import Sink

NO_COLUMNS = Schema(())
OF_DATAFLOWS = "dataflow "  # how the inlets of dataflows begin: they hold nothing back


class EngineStream:
    """Events of one kind, with what was said about them; made by `engine.stream(...)`.

    >>> import headgate as hg
    >>> seats = hg.Table("seats", "id bigint, sold bigint DEFAULT 0", key="id")
    >>> @hg.transaction(event="id bigint, n bigint", compiled=False)
    ... def sell(event, seat=seats.at("id", create=True)):
    ...     seat.sold += event.n
    >>> with hg.open(None, tables=[seats], transactions=[sell]) as engine:
    ...     sales = engine.stream(sell, order_by="n", name="sales")
    ...     _ = sales.run([{"id": 1, "n": 2}, {"id": 1, "n": 3}])
    ...     sales.metrics().outcomes["committed"], engine.get(seats, 1)["sold"]
    (2, 5)
    """

    def __init__(self, terms: Terms, way: Way) -> None:
        self._terms = terms
        self._way = way

    @property
    def name(self) -> str:
        """The name under which the stream is counted: the one it was given, or who runs in it."""
        return self._terms.label

    @property
    def told(self) -> str:
        """Who runs in it, and in what order, in words."""
        return self._terms.told

    @property
    def columns(self) -> list[str]:
        """The names of the columns that its events need."""
        return list(self._terms.columns)

    def run(
        self,
        events: Any,
        *,
        batch_size: int | None = None,
        record: list[Recording] | None = None,
    ) -> pa.Table:
        """Run every event and return one result for each, in the serial order.

        All events are one batch and one epoch, unless `batch_size` cuts them (in arrival order)
        into several; then the next one runs while the log of the last is being synced. `record`
        gets what transactions saw of each other, for `headgate.testing.History`.
        """
        terms = self._terms if record is None else recorded(self._terms, record)
        table = as_table(events, terms.event, "events", terms.with_unneeded)
        if batch_size is None:
            return self._way.apply(terms, table)
        given: Any = batch_size
        if not isinstance(given, int) or given < 1:
            raise InputError(f"batch_size is a number of at least 1, not {shown(given)}")
        if table.num_rows <= batch_size:
            return self._way.apply(terms, table)
        return self._way.apply_pipelined(terms, table, batch_size)

    def feed(self) -> Feed:
        """Where batches with an origin come in, each once: what a sink puts its own into."""
        return Feed(self._terms, self._way)

    def sink(self) -> Sink:
        """The function to hand to `writeStream.foreachBatch`: each micro-batch exactly once."""
        from headgate.spark.sink import Sink  # the one door upward: spark/ stands above us

        return Sink(self)

    def flush(self) -> pa.Table:
        """Run the events that `run` holds back, as if time had passed.

        The watermark moves to the youngest of them: what is older and comes later is late.
        InputError where no events ever came in, with the streams that hold some. What a sink holds
        back is run by its own `flush`.
        """
        return self._way.flush(self._terms, self._terms.inlet_name(None))

    def explain(self, events: Any) -> Figures:
        """The figures of the graph these events would make now; nothing runs."""
        terms = self._terms
        given = as_table(events, terms.event, "events", terms.with_unneeded)
        return self._way.explain(terms, given)

    def metrics(self) -> StreamMetrics:
        """What the stream did since the engine was opened, and where it stands."""
        return self._way.metrics_of(self.name)

    def check(self, events: Any) -> Self:
        """Refuse events that the stream could not run, at once and before there are any.

        Takes an Arrow schema; a Spark frame, streaming or not, of which only the schema is read; or
        what `run` takes. Returns the stream.
        """
        if isinstance(events, pa.Schema):
            given = events
        elif hasattr(events, "sparkSession"):
            from headgate.spark.sink import frame_schema  # the same door

            given = frame_schema(events, self._terms.columns)
        else:
            given = as_table(events, NO_COLUMNS, "events").schema
        self._way.check(self._terms, given)
        return self

    def __repr__(self) -> str:
        return f"<stream {self.name}: {self.told}>"


class Streams:
    """The streams of one engine as it has seen them; used under the engine's lock."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._fed: set[str] = set()  # inlets that took events since the engine was opened
        self._held_by: dict[str, Terms] = {}  # by inlet with a watermark: what was said of it
        self._meters: dict[str, Meter] = {}
        self._first_epoch = 0
        self.expiry: TableTimes = TableTimes(memory)

    def begin(self) -> None:
        """The engine is where it was, and counts from here."""
        self._first_epoch = self._memory.epoch

    def note(self, terms: Terms, inlet: str) -> None:
        """Events of a stream, maybe none, came in here."""
        self.bind(terms, inlet)
        self._fed.add(inlet)
        self.meter(terms).inlets.add(inlet)

    def bind(self, terms: Terms, inlet: str) -> None:
        """Refuse events of other terms where some may be held back: they would run as these.

        What an inlet holds does not say who is to run it, nor by which column it is in order.
        """
        if terms.watermark_us is None:
            return
        held_by = self._held_by.setdefault(inlet, terms)
        if (held_by.route, held_by.order_by) != (terms.route, terms.order_by):
            name = inlet.removeprefix("run ")
            raise InputError(
                f"the stream {name!r} is of {held_by.told}, and this one of {terms.told}: they "
                "would share a watermark and what it holds back; give each a name, name='...'"
            )

    def meter(self, terms: Terms) -> Meter:
        """Who counts the stream."""
        found = self._meters.get(terms.label)
        if found is None:
            found = self._meters[terms.label] = Meter(terms.label)
        return found

    def source_meter(self, name: str) -> Meter:
        """Who counts the rows that come in at a source of a dataflow."""
        found = self._meters.get(name)
        if found is None:
            found = self._meters[name] = Meter(name, is_source=True)
        return found

    def metrics(
        self, journal: Journal, executors: Iterable[Executor], epoch: int, now_us: int
    ) -> Metrics:
        """What was counted since the engine was opened; any thread may ask, and waits for none."""
        rows = self._memory.counts()
        epochs = epoch - self._first_epoch
        retries = sum(executor.retries for executor in executors)
        meters, inlets = self._meters.copy(), self._inlets()
        names = sorted({*meters, *inlets})
        streams = {name: self._told(name, meters, inlets, now_us) for name in names}
        return Metrics(
            epoch, epochs, retries, sum(self.held().values()), rows, dict(self.expiry.expired),
            dict(self.expiry.overdue), journal.log_bytes,
            journal.log.times(), journal.sync.times(), journal.snapshots.times(), streams,
        )  # fmt: skip

    def metrics_of(self, name: str, now_us: int) -> StreamMetrics:
        """What was counted of one stream, and where it stands now."""
        return self._told(name, self._meters, self._inlets(), now_us)

    def _inlets(self) -> dict[str, set[str]]:
        """By stream: where its events come in."""
        found = {name: {*tuple(meter.inlets)} for name, meter in self._meters.copy().items()}
        known = set().union(*found.values())
        for inlet in self.held():  # what was held before the engine was opened is of a stream, too
            if inlet not in known:
                # As it will be called when it is fed.
                found.setdefault(inlet.removeprefix("run "), set()).add(inlet)
        return found

    def _told(
        self, name: str, meters: Mapping[str, Meter], inlets: Mapping[str, set[str]], now_us: int
    ) -> StreamMetrics:
        states, mine = dict(self._memory.inlets), inlets.get(name, set())
        there = [states[inlet] for inlet in mine if inlet in states]
        held = sum(state.held.num_rows for state in there if state.held is not None)
        marks = [state.watermark_us for state in there if state.watermark_us is not None]
        meter = meters.get(name) or Meter(name)
        return stream_metrics(meter, held, min(marks, default=None), now_us)

    def held(self) -> dict[str, int]:
        """How many events each inlet holds back, those that hold any."""
        states = dict(self._memory.inlets).items()
        return {
            name: state.held.num_rows
            for name, state in states
            if state.held is not None and not name.startswith(OF_DATAFLOWS)
        }

    def state(self, inlet: str) -> Inlet | None:
        """What an inlet holds; InputError that names those that hold events when there is none."""
        state = self._memory.inlets.get(inlet)
        if state is None and inlet not in self._fed:
            name = inlet.removeprefix("run ")
            raise InputError(f"there is no stream {name!r} to flush; {self.who_holds()}")
        return state

    def who_holds(self) -> str:
        """Who holds events, and how to have them run."""
        held = sorted(self.held().items())
        if not held:
            return "no stream of this engine holds events back"
        names = ", ".join(f"{name!r} ({count})" for name, count in held)
        return (
            f"events are held back by: {names}; use flush() of the sink, or engine.flush(name=...)"
        )


def latest_seen_us(terms: Terms, arranged: Arranged, results: pa.RecordBatch) -> int | None:
    """The time of the youngest event of a batch; None where its order is not one of time."""
    if not terms.order_by or terms.order_by[0].type.kind != "timestamp":
        return None
    state = arranged.state
    if state is not None and terms.watermark_us is not None:  # held ones are not in the results
        return None if state.watermark_us is None else state.watermark_us + terms.watermark_us
    times = results.column(terms.order_by[0].name)
    if not len(times):
        return None
    last = times[-1] if arranged.is_whole else pc.max(times)
    return int(last.value) if last.is_valid else None


def check_flush(terms: Terms, held: pa.Table) -> None:
    """Refuse to flush events by terms that have not their order."""
    if not terms.order_by or terms.order_by[0].type.kind != "timestamp":
        raise InputError("flush: give the order_by, route_by and watermark that the stream has")
    missing = [name for name in terms.columns if name not in {*held.column_names, *terms.carry}]
    if missing:
        raise InputError(
            f"flush: the events that are held back have no column {missing[0]!r}: they are of "
            f"another stream; their columns are: {', '.join(held.column_names)}"
        )


Flush = Callable[[Terms, str, Callable[[], bool]], Any]


class Idle:
    """Flushes an inlet once no events have come for the idle time of its stream.

    One thread, begun with the first inlet that waits; it keeps no engine alive.
    """

    def __init__(self, flush: Flush, clock: Clock) -> None:
        self._flush: Callable[[], Flush | None] = weakref.WeakMethod(flush, self._end)
        self._clock = clock
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._waiting: dict[str, tuple[float, Terms]] = {}  # inlet -> when it is due
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def note(self, terms: Terms, inlet: str, states: Mapping[str, Inlet]) -> None:
        """Events came in just now: the inlet's idle time runs anew, if it holds any back."""
        if terms.idle_us is None:
            return
        state = states.get(inlet)
        with self._changed:
            if state is None or state.held is None:
                self._waiting.pop(inlet, None)
                return
            due = self._clock.monotonic() + terms.idle_us / 1e6
            self._waiting[inlet] = (due, terms)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="headgate-idle", daemon=True)
                self._thread.start()
            self._changed.notify()

    def is_due(self, inlet: str) -> bool:
        """Whether it still is so: events may have come while the flush waited for its turn."""
        with self._changed:
            found = self._waiting.get(inlet)
            return found is not None and found[0] <= self._clock.monotonic()

    def close(self) -> None:
        """End the thread; what is held back stays so. Not to be called with the engine's lock."""
        self._end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _end(self, _: object = None) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            inlet, terms = found
            flush = self._flush()
            if flush is None:
                return
            try:
                flush(terms, inlet, functools.partial(self.is_due, inlet))
            except HeadgateError:
                return  # the engine is stopped, and says so to whoever asks it for anything
            del flush
            with self._changed:
                if inlet in self._waiting and self._waiting[inlet][0] <= self._clock.monotonic():
                    del self._waiting[inlet]

    def _next(self) -> tuple[str, Terms] | None:
        """The next inlet that is due, waited for; None at the end."""
        with self._changed:
            while not self._is_closed:
                now = self._clock.monotonic()
                due = min(self._waiting.items(), key=lambda one: one[1][0], default=None)
                if due is not None and due[1][0] <= now:
                    return due[0], due[1][1]
                self._changed.wait(None if due is None else due[1][0] - now)
            return None
