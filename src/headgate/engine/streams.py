"""Streams: what an engine remembers of each stream beside its rows: where it comes in, what waits.

A stream may come in at several inlets, one for each query that feeds it. What an inlet holds back
is run by a flush: an epoch of its own, so that after a crash it has either happened or not.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import Inlet as InletState
from headgate.engine.inlet import Arranged, Plan
from headgate.engine.journal import Journal
from headgate.engine.memory import Memory
from headgate.engine.metrics import Meter, Metrics, StreamMetrics, stream_metrics
from headgate.errors import HeadgateError, InputError
from headgate.io import Clock
from headgate.isolation.executor import Executor


class Streams:
    """The streams of one engine; used under the engine's lock."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._fed: set[str] = set()  # inlets that took events since the engine was opened
        self._meters: dict[str, Meter] = {}
        self._first_epoch = 0

    def begin(self) -> None:
        """The engine is where it was, and counts from here."""
        self._first_epoch = self._memory.epoch

    def note(self, plan: Plan, inlet: str) -> None:
        """Events of a stream, maybe none, came in here."""
        self._fed.add(inlet)
        self.meter(plan).inlets.add(inlet)

    def meter(self, plan: Plan) -> Meter:
        """Who counts the stream of a plan."""
        found = self._meters.get(plan.label)
        if found is None:
            found = self._meters[plan.label] = Meter(plan.label)
        return found

    def metrics(
        self, journal: Journal, executors: Mapping[Any, Executor], epoch: int, clock: Clock
    ) -> Metrics:
        """What was counted since the engine was opened; any thread may ask, and waits for none."""
        rows = {name: len(rows) for name, rows in self._memory.rows.items()}
        epochs = epoch - self._first_epoch
        retries = sum(executor.retries for executor in list(executors.values()))
        return Metrics(
            epoch, epochs, retries, sum(self.held().values()), rows, journal.log_bytes,
            journal.log.times(), journal.sync.times(), journal.snapshots.times(),
            self._each(clock.time_us()),
        )  # fmt: skip

    def _each(self, now_us: int) -> dict[str, StreamMetrics]:
        """What was counted of each stream, and where it stands now."""
        states, found = dict(self._memory.inlets), {}
        meters = self._meters.copy()
        inlets = {name: {*tuple(meter.inlets)} for name, meter in meters.items()}
        known = set().union(*inlets.values())
        for inlet in self.held():  # what was held before the engine was opened is of a stream, too
            if inlet not in known:
                name = inlet.removeprefix("run ")  # as it will be called when it is fed
                meters.setdefault(name, Meter(name))
                inlets.setdefault(name, set()).add(inlet)
        for name, meter in sorted(meters.items()):
            mine = [states[inlet] for inlet in inlets[name] if inlet in states]
            held = sum(state.held.num_rows for state in mine if state.held is not None)
            marks = [state.watermark_us for state in mine if state.watermark_us is not None]
            found[name] = stream_metrics(meter, held, min(marks, default=None), now_us)
        return found

    def held(self) -> dict[str, int]:
        """How many events each inlet holds back, those that hold any."""
        states = dict(self._memory.inlets).items()
        return {name: state.held.num_rows for name, state in states if state.held is not None}

    def state(self, inlet: str) -> InletState | None:
        """What an inlet holds; InputError that names those that hold events when there is none."""
        state = self._memory.inlets.get(inlet)
        if state is None and inlet not in self._fed:
            raise InputError(f"there is no stream {inlet!r} to flush; {told(self.held())}")
        return state


def told(held: dict[str, int]) -> str:
    """Who holds events, and how to have them run."""
    if not held:
        return "no stream of this engine holds events back"
    names = ", ".join(f"{name!r} ({count})" for name, count in sorted(held.items()))
    return f"events are held back by: {names}; use flush() of the sink, or engine.flush(name=...)"


def latest_seen_us(plan: Plan, arranged: Arranged, results: pa.RecordBatch) -> int | None:
    """The time of the youngest event of a batch; None where its order is not one of time."""
    if not plan.order_by or plan.order_by[0].type.kind != "timestamp":
        return None
    state = arranged.state
    if state is not None and plan.watermark_us is not None:  # held ones are not in the results
        return None if state.watermark_us is None else state.watermark_us + plan.watermark_us
    times = results.column(plan.order_by[0].name)
    if not len(times):
        return None
    last = times[-1] if arranged.is_whole else pc.max(times)
    return int(last.value) if last.is_valid else None


def check_flush(plan: Plan, held: pa.Table) -> None:
    """Refuse to flush events by a plan that has not their order."""
    if not plan.order_by or plan.order_by[0].type.kind != "timestamp":
        raise InputError("flush: give the order_by, route_by and watermark that the stream has")
    missing = [name for name in plan.columns if name not in {*held.column_names, *plan.carry}]
    if missing:
        raise InputError(
            f"flush: the events that are held back have no column {missing[0]!r}: they are of "
            f"another stream; their columns are: {', '.join(held.column_names)}"
        )


Flush = Callable[[Plan, str, Callable[[], bool]], Any]


class Idle:
    """Flushes an inlet once no events have come for the idle time of its plan.

    One thread, begun with the first inlet that waits; it keeps no engine alive.
    """

    def __init__(self, flush: Flush, clock: Clock) -> None:
        self._flush: Callable[[], Flush | None] = weakref.WeakMethod(flush, self._end)
        self._clock = clock
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._waiting: dict[str, tuple[float, Plan]] = {}  # inlet -> when it is due
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def note(self, plan: Plan, inlet: str, states: Mapping[str, InletState]) -> None:
        """Events came in just now: the inlet's idle time runs anew, if it holds any back."""
        if plan.idle_us is None:
            return
        state = states.get(inlet)
        with self._changed:
            if state is None or state.held is None:
                self._waiting.pop(inlet, None)
                return
            due = self._clock.monotonic() + plan.idle_us / 1e6
            self._waiting[inlet] = (due, plan)
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
            inlet, plan = found
            flush = self._flush()
            if flush is None:
                return
            try:
                flush(plan, inlet, functools.partial(self.is_due, inlet))
            except HeadgateError:
                return  # the engine is stopped, and says so to whoever asks it for anything
            del flush
            with self._changed:
                if inlet in self._waiting and self._waiting[inlet][0] <= self._clock.monotonic():
                    del self._waiting[inlet]

    def _next(self) -> tuple[str, Plan] | None:
        """The next inlet that is due, waited for; None at the end."""
        with self._changed:
            while not self._is_closed:
                now = self._clock.monotonic()
                due = min(self._waiting.items(), key=lambda one: one[1][0], default=None)
                if due is not None and due[1][0] <= now:
                    return due[0], due[1][1]
                self._changed.wait(None if due is None else due[1][0] - now)
            return None


def joined(results: Sequence[pa.Table]) -> pa.Table:
    """The results of several flushes as one table."""
    if len(results) == 1:
        return results[0]
    return pa.concat_tables(results, promote_options="permissive")
