"""Running: the dataflows of one engine: rows come in, units run in order, each commits as an epoch.

Without workers the oldest batch goes first, and it goes through the graph in dataflow order; but a
unit that takes many batches at once goes on in the same epoch, where no other has to come first. So
batch order and dataflow order hold whoever hands rows in, on however many threads. Every execution
ends under the engine's lock, and the lock is given up between them: calls come in between two
executions, never inside one, nor inside a nest. What an execution took, gave and changed is one
record of the log: it is there once, or not at all. With workers (workers.py) several executions are
under way at once, and the same holds.

With weak recovery an epoch is all that the graph does with one batch, and the log has what came in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headgate.dataflow.arriving import Arrival, arrived, flushed
from headgate.dataflow.declared import Declared, is_logged
from headgate.dataflow.fingerprints import Fingerprint, check_code
from headgate.dataflow.handles import Aligned, FlowStream
from headgate.dataflow.nodes import Node, Unit
from headgate.dataflow.order_of_units import Order
from headgate.dataflow.policies import Chance, UnitPace, make_policy
from headgate.dataflow.recording import arrival_of, recorded_schema, united
from headgate.dataflow.signals import ended_in_order
from headgate.dataflow.stepping import Behind, Stepped, Stepping
from headgate.dataflow.streams import BATCH, Stream
from headgate.dataflow.under_way import (
    News,
    UnderWay,
    left_over,
    restarted,
    stream_inlet,
    window_inlet,
)
from headgate.dataflow.workers import Shift
from headgate.durability import Commit
from headgate.engine.batch import Batches
from headgate.engine.declaring.declarations import DeclaredStreams, merge_stream
from headgate.engine.journal import CLOSED, EngineLock, Guard
from headgate.engine.memory import Memory
from headgate.engine.metrics import NodeMetrics
from headgate.engine.rerun import Border
from headgate.engine.results import with_epoch
from headgate.engine.terms import Origin
from headgate.errors import DeclarationError, InputError, StoreError, add_words, not_among, shown
from headgate.state.schema import Schema


class Flows:
    """The dataflows of one engine."""

    def __init__(
        self,
        declared: Declared,
        memory: Memory,
        guard: Guard,
        lock: EngineLock,
        batches: Batches,
        columns: DeclaredStreams,
        *,
        is_weak: bool,
    ) -> None:
        self.declared = declared
        self.graph = declared.graph
        self._memory, self._guard, self._lock, self._batches = memory, guard, lock, batches
        self._is_weak = is_weak
        self._code = Fingerprint(declared) if is_weak else None
        self._fingerprint = None if self._code is None else self._code.mark
        workers = declared.workers
        self._order = Order(self.graph, self, workers.buffer)
        self.stepping: Stepping = Stepping(
            self.graph, memory, guard, lock, batches, self._order, self._fingerprint
        )
        self.now = batches.clock.monotonic
        self._policy = make_policy(workers.policy, self.graph, self.paces, workers.wait_us / 1e6)
        self._shift: Shift | None = None
        self._taking: list[list[Stepped]] = []  # by who waits: what was run meanwhile
        self._note_columns(columns)

    def _note_columns(self, columns: DeclaredStreams) -> None:
        """Let readers know what stands under the names of streams and nodes."""
        every: list[Stream | Node] = [*self.graph.streams.values(), *self.graph.nodes]
        for one in every:
            known = columns.columns.get(one.name)
            columns.columns[one.name] = merge_stream(one.name, known, recorded_schema(one))

    # --- what comes in ------------------------------------------------------------------------

    def source(self, given: Any) -> Stream:
        """A stream that rows may be handed to."""
        found = self.stream(given)
        if not self.graph.is_source(found):
            giver = self.graph.givers[found.name].name
            sources = not_among(found.name, self.graph.sources, "sources")
            raise InputError(
                f"the stream {found.name!r} is given by {giver!r}: rows are handed to a source; "
                f"{sources}"
            )
        return found

    def stream(self, given: Any) -> Stream:
        """A stream of these dataflows, handed in as the object or by its name."""
        name = given if isinstance(given, str) else getattr(given, "name", None)
        found = self.graph.streams.get(name) if isinstance(name, str) else None
        if found is None:
            name = shown(given) if name is None else name
            among = not_among(name, self.graph.streams, "streams")
            raise InputError(f"no stream {name!r} in the dataflows of this engine; {among}")
        if given is not found and not isinstance(given, str) and given != found:
            raise InputError(
                f"this stream {name!r} is another than the engine was opened with: {given} and "
                f"{found}; close the engine and open it with this one"
            )
        return found

    def push(self, given: Any, rows: Any, origin: Origin | None = None) -> pa.Table:
        """Rows come in at a source, once for each origin; all that they start runs."""
        stream = self.source(given)
        with self._collecting() as steps, self._telling() as taken:
            with self._lock, self._guard.running():
                if origin is not None and self._memory.has_applied(origin):
                    return NOTHING
                arrival = arrived(rows, stream, self.stepping.under_way(), origin)
                # Nothing leaves no trace, as in a plain sink: a query that follows the store which
                # it feeds would have a new epoch to look at, for ever.
                if not arrival.rows.num_rows and not arrival.aside.num_rows:
                    return NOTHING
                self._take(arrival, taken)
            return self._drained(steps)

    def send(self, given: Any, rows: Any) -> None:
        """Rows come in at a source; they are run behind who hands them in, as soon as there is room
        for them. Without workers as `push`."""
        stream, shift = self.source(given), self._at_work()
        if shift is None:
            self.push(given, rows)
            return
        with ended_in_order():
            shift.start()
            shift.await_room(stream.name)
            with self._lock, self._guard.running():
                arrival = arrived(rows, stream, self.stepping.under_way(), None)
                if arrival.rows.num_rows or arrival.aside.num_rows:
                    self._take(arrival, [])

    def settle(self) -> None:
        """Return when all that was handed in has run and is durable."""
        with self._collecting() as steps:
            self._drained(steps)
        self._guard.wait(self._memory.epoch)

    def aligned(self, given: Any) -> Aligned:
        """At which epoch the partitions that take a stream were done with the same batches."""
        stream = self.stream(given)
        with self._lock:
            found = self.stepping.aligned_at(stream.name)
        if found is None:
            raise InputError(
                f"the stream {stream.name!r} is taken by no procedure with partition_by=, or its "
                "partitions have not been at the same batch since the store was opened: hand in "
                "rows, or wait with settle()"
            )
        self._guard.wait(found.epoch)
        return found

    def handle(self, given: Any, engine: object) -> FlowStream:
        """The handle of a stream, which keeps the engine."""
        return FlowStream(self.stream(given), self, engine)

    def metrics(self) -> dict[str, NodeMetrics]:
        """What each node did since the engine was opened, and what waits for it now."""
        with self._lock:
            self.stepping.under_way()
        return self.counted()

    def counted(self) -> dict[str, NodeMetrics]:
        """The same as it was after the last execution: who asks waits for none."""
        standing, found = self.stepping.standing, {}
        for node in self.graph.order:
            # Of a join those, too, that wait for the other input.
            closed = max(standing.closed(stream.name) for stream in node.streams)
            waiting = max(0, closed - standing.done.get(node.name, closed))
            found[node.name] = self.stepping.meters.read(node.name, waiting)
        return found

    def open_rows(self) -> dict[str, int]:
        """How many rows wait in the open batch of each source, as it was then."""
        return {name: self.stepping.standing.open_count(name) for name in self.graph.sources}

    def flush(self, given: Any) -> pa.Table:
        """Take the batch of a source that is open for whole, and run it."""
        stream = self.source(given)
        with self._collecting() as steps, self._telling() as taken:
            with self._lock, self._guard.running():
                arrival = flushed(stream, self.stepping.under_way())
                if arrival is not None:
                    self._take(arrival, taken)
                taken.append(stream.name)  # without rows there is nothing to flush again
            return self._drained(steps)

    def rest(self, reason: str) -> None:
        """The engine is about to be closed: workers end what they are at, and begin no more."""
        if self._shift is not None and not self._lock.is_mine():
            self._shift.end(reason)
            self._shift = None

    def close(self) -> None:
        """The engine is closed: nothing runs any more."""
        self.stepping.close()

    def resume(self) -> pa.Table:
        """Go on with what was under way when the engine was last open."""
        with self._collecting() as steps:
            return self._drained(steps)

    # --- what runs ----------------------------------------------------------------------------

    def _take(self, arrival: Arrival, taken: list[str]) -> None:
        """What came in is an epoch: by itself where workers run it, or where the program of the
        batch that is next is wrong; else with the first run. `taken` has it from then on."""
        if self._code is not None:
            self._code.check()
        with self.stepping.interrupts.waiting():
            self._take_whole(arrival, taken)

    def _take_whole(self, arrival: Arrival, taken: list[str]) -> None:
        shift = self._at_work()
        if shift is not None:
            stepped = self.stepping.step(arrival)
            self._note(stepped)
            shift.deliver(stepped.news)  # under the lock: who hands rows in are one producer
        else:
            try:
                unit = self._next_with(arrival)
                stepped = self.stepping.step(arrival, unit, self._behind)
            except BaseException:
                if self._guard.reason is None:
                    self._note(self.stepping.step(arrival))
                    taken.append(arrival.stream.name)
                raise
            taken.append(arrival.stream.name)
            self._note(stepped)
            return
        taken.append(arrival.stream.name)

    @contextmanager
    def _telling(self) -> Iterator[list[str]]:
        """Have an error say whether what was handed in was taken: it may be that of an older batch.

        What is wrong with the rows themselves says so; of a stopped engine the store tells, unless
        somebody closed it meanwhile, in whose store the rows are.
        """
        taken: list[str] = []
        try:
            yield taken
        except BaseException as error:
            if self._guard.reason == CLOSED and taken and self._batches.is_durable:
                add_words(error, TAKEN_AND_CLOSED)
            elif self._guard.reason is None and not isinstance(error, InputError):
                add_words(error, TAKEN if taken else NOT_TAKEN)
            raise

    def _drained(self, steps: list[Stepped]) -> pa.Table:
        """Run what can run; what was recorded of it."""
        shift = self._at_work()
        if shift is None:
            while self._run_next():
                pass
        else:
            with ended_in_order():
                shift.start()
                shift.await_idle()
        parts = [(one.epoch, one.recorded) for one in steps if one.recorded is not None]
        return (
            united(sorted(parts, key=lambda one: one[0]), self.stepping.same) if parts else NOTHING
        )

    def _run_next(self) -> bool:
        """Run one unit's next batch, here; False when nothing can run."""
        self._lock.give_way()
        with self._lock, self._guard.running():
            unit = self._next_with(None)
            if unit is not None:
                with self.stepping.interrupts.waiting():
                    self._note(self.stepping.step(unit=unit, behind=self._behind))
            return unit is not None

    @property
    def _behind(self) -> Behind | None:
        """Who else may run in an epoch; with weak recovery one is of one batch."""
        return None if self._is_weak else self._next_behind

    def _next_behind(self, progress: UnderWay, unit: Unit) -> Unit | None:
        """Who runs behind a unit in the same epoch: with FIFO the unit itself, where it takes many
        batches at once and may, so that those behind it take as many at once in their turn."""
        is_fifo = self.declared.workers.policy == "fifo"
        may = is_fifo and progress.is_ready(unit) and self.stepping.takes_many(unit)
        if may and self._order.over(progress).is_first(unit, progress.next_of(unit)):
            return unit
        return self._next(progress)

    def _next_with(self, arrival: Arrival | None) -> Unit | None:
        """Who runs next when this has come in."""
        progress = self.stepping.under_way()
        if arrival is not None:
            progress.arrive(arrival.stream.name, arrival.runs, arrival.closed, arrival.flushed_us)
        return self._next(progress)

    def _next(self, progress: UnderWay) -> Unit | None:
        """Who runs next where no workers do, by the policy; with FIFO the oldest batch."""
        if self.declared.workers.policy == "fifo" or self._is_weak:
            return progress.next_unit()
        now, turns, order = self.now(), [], self._order.over(progress)
        for place, unit in enumerate(self.graph.units):
            batch = progress.next_of(unit)
            if progress.is_ready(unit) and order.may_run(unit, batch):
                turns.append(Chance(place, unit, batch, 0, progress.since(unit, now)))
        return self._policy.choose(turns, now).unit if turns else None

    @contextmanager
    def _collecting(self) -> Iterator[list[Stepped]]:
        """What is run meanwhile, whoever does it; who leaves, by an error too, finds it durable."""
        steps: list[Stepped] = []
        self._taking.append(steps)
        try:
            yield steps
        finally:
            self._taking = [one for one in self._taking if one is not steps]
            # Also where a batch of a wrong program waits: those before it are done.
            if steps and self._guard.reason is None:
                with self.stepping.interrupts.waiting():
                    self._guard.wait(max(one.epoch for one in steps))

    def _note(self, stepped: Stepped) -> None:
        for one in self._taking:
            one.append(stepped)
        if stepped.error is not None:
            raise stepped.error

    # --- for workers --------------------------------------------------------------------------

    def _at_work(self) -> Shift | None:
        """The workers, made when they are first needed; None where the caller runs all."""
        workers = self.declared.workers
        if self._is_weak or workers.architecture == "one-thread":
            return None
        with self._lock:
            if self._shift is None:
                self.stepping.under_way()
                self.stepping.has_workers = True
                self._shift = Shift(self, workers)
            return self._shift

    def done(self, unit: Unit) -> int:
        """The last batch that a unit is done with."""
        return self.stepping.standing.done[unit.first]

    def closed(self, stream: str) -> int:
        """The last batch of a stream that is whole."""
        return self.stepping.standing.queues[stream].closed

    def came(self, source: str, number: int) -> int:
        """As the how-manieth something came in that made a batch of a source whole."""
        return self.stepping.standing.came(source, number)

    def run_unit(self, unit: Unit, number: int) -> list[News]:
        """Run a unit's next batch, in the thread of a worker."""
        self._lock.give_way()
        stepped = self.stepping.run_unit(unit, number)
        self._note(stepped)
        return stepped.news

    def paces(self) -> dict[str, UnitPace]:
        """How fast each unit is, and how many rows it makes of one, as measured so far."""
        found = {}
        for unit in self.graph.units:
            mine = [self.stepping.meters.of(node.name) for node in unit.nodes]
            rows = max(mine[0].rows, 1)
            seconds = sum(one.seconds for one in mine) / rows
            found[unit.name] = UnitPace(seconds, mine[-1].rows_out / rows if mine[0].rows else 1.0)
        return found

    # --- weak recovery ------------------------------------------------------------------------

    def is_logged(self, commit: Commit) -> bool:
        """Whether the input of an epoch came to a dataflow."""
        return is_logged(commit)

    def rerun(self, commit: Commit, *, accept: bool) -> None:
        """Run a logged batch again through the same graph; nothing is logged."""
        if commit.input is None or not is_logged(commit):
            raise StoreError(f"epoch {commit.epoch} was not logged by a dataflow")
        check_code(commit, self._fingerprint, accept=accept)
        arrival = arrival_of(commit, commit.input, self.stream)
        with self._batches.rerunning():
            self.stepping.step(arrival, self._next_with(arrival))

    # --- opening ------------------------------------------------------------------------------

    def check_stored(self, stored: Mapping[str, Any]) -> None:
        """Refuse a graph that has changed while batches of the old one are under way."""
        described = self.declared.describe()
        for name, before in stored.items():
            now = described.get(name)
            if now is not None:
                self._check_columns(before, now)
            if now is None or now["graph"] == before["graph"]:
                continue
            waiting = self._waiting(before)
            if waiting:
                raise DeclarationError(
                    f"dataflow {name!r} has changed, and batches of the old one are under way on "
                    f"the streams {', '.join(waiting)}: open the store with the old one, which "
                    "finishes what can run; hand in what the rest waits for (engine.flush makes an "
                    "open batch whole, a join takes batches of all its inputs), then open it with "
                    "this"
                )

    def _check_columns(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Refuse streams whose rows that are under way do not fit their columns any more."""
        for name, ddl in before["streams"].items():
            if now["streams"].get(name, ddl) == ddl:
                continue
            old, new = Schema.parse(ddl), self.graph.streams[name].schema
            kept = [new[one.name] == one for one in old if one.name in new.names]
            fits = len(kept) == len(old.names) and all(kept)
            if fits and all(one.nullable for one in new if one.name not in old.names):
                continue  # those that are there are null in what is new
            rows = {f"stream {name}": self._memory.inlets.get(stream_inlet(name))}
            for node in self.graph.nodes:
                for key, window in node.windows.items():
                    if window.stream.name == name:
                        inlet = window_inlet(key, node)
                        rows[f"window of {node.name}"] = self._memory.inlets.get(inlet)
            held = [f"{what} ({one.held.num_rows} rows)" for what, one in rows.items()
                    if one is not None and one.held is not None and one.held.num_rows]  # fmt: skip
            if held:
                raise DeclarationError(
                    f"stream {name!r} is declared {new.ddl!r}, and rows of {ddl!r} are under way "
                    f"in {', '.join(held)}: keep its columns, and declare new ones NULL; or give "
                    "the stream another name"
                )

    def _waiting(self, described: Mapping[str, Any]) -> list[str]:
        found = []
        for name in described["streams"]:
            inlet = self._memory.inlets.get(stream_inlet(name))
            if inlet is not None and inlet.held is not None and inlet.held.num_rows:
                found.append(f"{name} ({inlet.held.num_rows} rows)")
        return found

    def begin(self, stored: Mapping[str, Any]) -> None:
        """The state is recovered: nodes that are new begin with the batches that come.

        Which are new the manifest says: one that has done nothing yet leaves no trace elsewhere.
        """
        known = {name for flow in stored.values() for name in flow["nodes"]}
        new = restarted(
            self._memory.inlets, [node for node in self.graph.nodes if node.name not in known]
        )
        new = {**left_over(self._memory.inlets, self.graph.nodes), **new}
        if new:
            self._batches.commit_flow({}, None, None, new, Border())
        for name in self.graph.sources:
            self._batches.streams.source_meter(name)


TAKEN = (
    "the rows that were handed in are taken, and run when that is mended: do not hand them in again"
)
TAKEN_AND_CLOSED = (
    "the rows that were handed in are taken, and run when it is: do not hand them in again"
)
NOT_TAKEN = "the rows that were handed in were not taken: hand them in again"
NOTHING = with_epoch(
    pa.RecordBatch.from_arrays(
        [pa.array([], pa.int64()), *(pa.array([], pa.string()) for _ in range(3)),
         pa.array([], pa.int64())],
        names=["position", "transaction", "outcome", "reason", BATCH],
    ),
    0,
)  # fmt: skip
