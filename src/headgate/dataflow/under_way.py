"""Under way: which batches of each stream are whole, and what each node has yet to take.

It is the state of the dataflows beside the tables: logged with the epoch that changes it as inlets,
and recovered from them. `Standing` is that state between epochs; an `UnderWay` is
what one epoch does to it, and without a commit it never was.

Invariants: batches of a stream have the numbers 1, 2, 3 and so on; a node is done with a batch
after those before it, and only when it is whole on all that it takes. Rows stay until all are done
with them. Of a batch that was aborted stays a mark, a row with the negative number and nothing
else, for as long as somebody has not been told.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headgate.dataflow.nodes import FlowGraph, Node, Unit
from headgate.dataflow.runs import (
    Batch,
    BatchRun,
    Part,
    Stamps,
    TakenBatches,
    among,
    as_declared,
    held_schema,
    joined,
    numbered,
)
from headgate.dataflow.streams import Stream
from headgate.durability import Inlet
from headgate.durability.commit import moved
from headgate.engine.stream import OF_DATAFLOWS

EMPTY = Inlet(None, None, 0)
News: TypeAlias = tuple[str, int, int]  # a batch that is whole: its stream, number and rows
RUNS_MAX = 64  # before they are joined into one
_WINDOW = f"{OF_DATAFLOWS}window "


def stream_inlet(name: str) -> str:
    """Under which name the state of a stream is kept."""
    return f"{OF_DATAFLOWS}stream {name}"


def node_inlet(name: str) -> str:
    """Under which name the state of a node is kept."""
    return f"{OF_DATAFLOWS}node {name}"


def window_inlet(key: str, node: Node) -> str:
    """Under which name a window of a node is kept: with the node, or by itself where there are
    others beside it."""
    return node_inlet(key) if key == node.name else f"{_WINDOW}{key}"


class KeptAt(NamedTuple):
    """Which aggregates of a window are those of its rows; and of a joined window of time what need
    not be looked up in them again."""

    version: int
    known: int  # how many of its rows they have, from the first that it had as the epoch began
    newest: int | None = None  # the newest time of its rows, where that is known


NOT_KEPT = KeptAt(-1, 0)


@dataclass
class Windowed:
    """The window of a node while an epoch runs: `drops` of its first rows go, `added` come.

    Where aggregates are kept of it, they are `kept` as of some version, with the first so many of
    its rows; what goes counts as long as the epoch runs. Of one that is joined with others the
    first `whole` rows had come when it was whole last; 0: it never was.
    """

    before: Inlet
    mark_us: int | None
    drops: int = 0
    added: list[pa.Table] = field(default_factory=list)
    kept: KeptAt = NOT_KEPT
    whole: int = 0

    @property
    def tables(self) -> list[pa.Table]:
        """Its rows as they came, those that go with them."""
        return [*([] if self.before.held is None else [self.before.held]), *self.added]


# --- between epochs -------------------------------------------------------------------------------


@dataclass
class Flowing:
    """A stream: the last batch that is whole, and the batches that somebody still needs."""

    stream: Stream
    closed: int = 0
    flushed_us: int | None = None
    runs: list[BatchRun] = field(default_factory=list)
    since: Stamps = field(default_factory=Stamps)  # when batches became whole
    floor: int = 0  # up to this batch nobody needs any

    def add(self, runs: Iterable[BatchRun]) -> None:
        """More rows, of the last batch that is there or of those behind it."""
        self.runs += runs
        if len(self.runs) > RUNS_MAX:
            self.runs = [joined(self.runs)]

    def drop(self, floor: int) -> None:
        """Nobody needs batches up to this one any more."""
        if floor > self.floor:
            self.floor = floor
            self.runs = among(self.runs, floor + 1, sys.maxsize)
            self.since.drop(floor)


class Standing:
    """What is under way between epochs; under the engine's lock."""

    def __init__(self, graph: FlowGraph, *, by_arrival: bool = True) -> None:
        self.graph = graph
        # With weak recovery batches of several sources go by their numbers: these are logged, and
        # a batch that is run again has the place that it had.
        self._by_arrival = by_arrival
        self.arrivals: int = 0
        self._came: dict[str, Stamps] = {name: Stamps() for name in graph.sources}
        self.queues: dict[str, Flowing] = {}
        self.done: dict[str, int] = {}
        self.windows: dict[str, Inlet] = {}
        self.kept: dict[str, KeptAt] = {}  # by node over a window with aggregates
        self._seen: Mapping[str, Inlet] | None = None
        self._known: list[Inlet | None] = []
        nodes = [node_inlet(node.name) for node in graph.nodes]
        # By the name of a window that is joined with others: its inlet, and its stream.
        self.joined: dict[str, tuple[str, Stream]] = {
            key: (window_inlet(key, node), window.stream)
            for node in graph.nodes
            for key, window in node.joined.items()
        }
        joined_inlets = [inlet for inlet, _ in self.joined.values()]
        self._names = [*map(stream_inlet, graph.streams), *nodes, *joined_inlets]

    def follow(self, inlets: Mapping[str, Inlet]) -> None:
        """See what the engine's memory has, which recovery may have brought there."""
        if inlets is self._seen:
            return
        self._seen, found = inlets, [inlets.get(name) for name in self._names]
        is_same = len(found) == len(self._known) and all(
            one is other for one, other in zip(found, self._known, strict=True)
        )
        if not is_same:
            self._known = found
            self._restore(inlets)

    def closed(self, stream: str) -> int:
        """The last batch of a stream that is whole."""
        queue = self.queues.get(stream)
        return 0 if queue is None else queue.closed

    def open_count(self, source: str) -> int:
        """How many rows the batch that is not whole yet has."""
        queue = self.queues.get(source)
        runs = [] if queue is None else among(queue.runs, queue.closed + 1, sys.maxsize)
        return sum(run.rows.num_rows for run in runs)

    def came(self, source: str, number: int) -> int:
        """As the how-manieth came in what made this batch whole; 0: before the store was opened."""
        found: int = self._came[source].get(number, 0)
        return found

    def note_arrival(self, source: str, numbers: range) -> None:
        """Batches of a source have become whole, all at once."""
        if not self._by_arrival:
            return
        self.arrivals += 1
        came, fed = self._came[source], self.graph.fed_by(source)
        came.put(numbers, self.arrivals)
        came.drop(min(self.done[unit.first] for unit in fed))

    def note(self, inlets: Mapping[str, Inlet]) -> None:
        """The memory has what this has."""
        self._seen, self._known = inlets, [inlets.get(name) for name in self._names]

    def _restore(self, inlets: Mapping[str, Inlet]) -> None:
        self.kept.clear()
        for name, stream in self.graph.streams.items():
            one = inlets.get(stream_inlet(name), EMPTY)
            queue = self.queues[name] = Flowing(stream, one.arrivals, one.watermark_us)
            if one.held is not None and one.held.num_rows:
                queue.runs = [BatchRun.of_log(as_declared(one.held, held_schema(stream)))]
            queue.floor = min([one.arrivals, *(run.first - 1 for run in queue.runs)])
        for node in self.graph.nodes:
            one = inlets.get(node_inlet(node.name), EMPTY)
            self.done[node.name] = one.arrivals
            self.windows[node.name] = _in_declared_columns(one, node.streams[0])
        for key, (inlet, stream) in self.joined.items():
            self.windows[key] = _in_declared_columns(inlets.get(inlet, EMPTY), stream)

    def window_of(self, key: str) -> tuple[str, Stream]:
        """The inlet of a window, by the name that it is kept under, and its stream."""
        found = self.joined.get(key)
        return (node_inlet(key), self.graph.by_name[key].streams[0]) if found is None else found


def _in_declared_columns(one: Inlet, stream: Stream) -> Inlet:
    """A window with its rows as they are declared now: those of the log may have less columns."""
    if one.held is None:
        return one
    held = as_declared(one.held, stream.schema.arrow)
    return one if held is one.held else replace(one, held=held)


# --- while an epoch runs --------------------------------------------------------------------------


class UnderWay:
    """What one epoch does to the state of all dataflows of an engine."""

    def __init__(self, standing: Standing) -> None:
        self._standing, self._graph = standing, standing.graph
        self._closed: dict[str, int] = {}
        self._flushed: dict[str, int | None] = {}
        self._added: dict[str, list[BatchRun]] = {}
        self._done: dict[str, int] = {}
        self._windows: dict[str, Windowed] = {}
        self._is_logged = False  # what it does to windows is in the engine's inlets

    # --- what there is ------------------------------------------------------------------------

    def closed(self, stream: str) -> int:
        """The last batch of a stream that is whole."""
        found = self._closed.get(stream)
        return self._standing.queues[stream].closed if found is None else found

    def flushed_us(self, stream: str) -> int | None:
        """Of a source with batches by time: rows before this are of batches that were flushed."""
        if stream in self._flushed:
            return self._flushed[stream]
        return self._standing.queues[stream].flushed_us

    def done(self, node: str) -> int:
        """The last batch that a node is done with."""
        found = self._done.get(node)
        return self._standing.done[node] if found is None else found

    def next_of(self, unit: Unit) -> int:
        """The batch that is a unit's next."""
        return self.done(unit.first) + 1

    def is_ready(self, unit: Unit) -> bool:
        """Whether a unit's next batch is whole on all that comes to it."""
        batch = self.next_of(unit)
        return all(self.closed(name) >= batch for name in unit.needed)

    def came(self, source: str, number: int) -> int:
        """As the how-manieth came in what made this batch whole; with this epoch: as the last."""
        if number > self._standing.queues[source].closed:
            return self._standing.arrivals + 1
        return self._standing.came(source, number)

    def next_unit(self) -> Unit | None:
        """Who runs next: what came in first, of that the oldest batch, and it in dataflow order."""
        sources, found, first = self._graph.sources_of, None, (0, 0)
        for unit in self._graph.units:
            if self.is_ready(unit):
                batch = self.next_of(unit)
                came = max(self.came(name, batch) for name in sources[unit.name])
                if found is None or (came, batch) < first:
                    found, first = unit, (came, batch)
        return found

    def batch(self, stream: str, number: int) -> Batch:
        """The rows of a batch; None when it was aborted."""
        runs = self._among(stream, number, number)
        if not runs:
            return self._empty(stream)
        found = joined(runs)
        return None if found.has_marks else found.rows

    def taken(self, stream: str, first: int, last: int) -> TakenBatches:
        """The rows of several batches, up to the first that was aborted."""
        runs = self._among(stream, first, last)
        marked = next((run for run in runs if run.has_marks), None)
        if marked is not None:
            last = -int(marked.numbers[marked.numbers < 0][0]) - 1
            runs = among(runs, first, last)
        if not runs:
            return TakenBatches(self._empty(stream), np.empty(0, np.int64), last)
        found = joined(runs)
        return TakenBatches(found.rows, found.keys, last)

    def _among(self, stream: str, first: int, last: int) -> list[BatchRun]:
        added = self._added.get(stream, ())
        return among([*self._standing.queues[stream].runs, *added], first, last)

    def open_rows(self, stream: str) -> pa.Table:
        """The rows of the batch that is not whole yet, of a source."""
        found = self.batch(stream, self.closed(stream) + 1)
        return self._empty(stream) if found is None else found

    def since(self, unit: Unit, default: float) -> float:
        """Since when a unit's next batch is whole on all that comes to it."""
        batch, queues = self.next_of(unit), self._standing.queues
        return max(float(queues[name].since.get(batch, default)) for name in unit.needed)

    def waited(self, unit: Unit, last: int, now: float) -> float:
        """How long a unit's next batches up to the last have waited, all together."""
        first, queues = self.next_of(unit), self._standing.queues
        count = last + 1 - first
        if len(unit.needed) == 1:
            return count * now - queues[unit.needed[0]].since.total(first, last, now)
        since = [max(queues[name].since.get(number, now) for name in unit.needed)
                 for number in range(first, last + 1)]  # fmt: skip
        return count * now - float(sum(since))

    def _empty(self, stream: str) -> pa.Table:
        return self._graph.streams[stream].empty

    def window(self, key: str) -> Windowed:
        """A window as it stands, by the name that it is kept under (of one that stands by itself
        that of its node), to be moved on and put back if its unit commits."""
        found = self._windows.get(key)
        if found is None:
            before = self._standing.windows[key]
            kept = self._standing.kept.get(key, NOT_KEPT)
            whole = before.arrivals if key in self._standing.joined else 0
            return Windowed(before, before.watermark_us, kept=kept, whole=whole)
        return replace(found, added=list(found.added))

    def put_window(self, key: str, window: Windowed) -> None:
        """A window has moved on."""
        self._windows[key] = window

    # --- what happens -------------------------------------------------------------------------

    def arrive(
        self, stream: str, runs: Iterable[BatchRun], closed: int, flushed_us: int | None = None
    ) -> None:
        """Rows came in at a source, in the order of their batches; which of these are whole."""
        self._added.setdefault(stream, []).extend(runs)
        self._closed[stream], self._flushed[stream] = closed, flushed_us

    def give(self, stream: Stream, number: int, rows: pa.Table) -> None:
        """A batch on a stream is whole."""
        self.arrive(stream.name, [BatchRun.of_one(rows, number)] if rows.num_rows else [], number)

    def give_several(
        self, unit: Unit, stream: Stream, rows: pa.Table, numbers: np.ndarray, last: int
    ) -> None:
        """Batches of a stream that a unit gives are whole, up to the last."""
        is_taken = any(one not in unit.nodes for one in self._graph.takers[stream.name])
        self.arrive(
            stream.name, [BatchRun.of(rows, numbers)] if is_taken and len(numbers) else [], last
        )

    def give_parts(self, stream: Stream, parts: Iterable[Part], last: int) -> None:
        """The same, batch by batch; some may have been aborted."""
        runs = [BatchRun.of_marks(stream, number) if rows is None else BatchRun.of_one(rows, number)
                for number, rows in parts]  # fmt: skip
        self.arrive(stream.name, [joined(runs)] if runs else [], last)

    def give_up(self, stream: Stream, number: int) -> None:
        """A batch on a stream was aborted: who takes it is told."""
        self.arrive(stream.name, [BatchRun.of_marks(stream, number)], number)

    def finish(self, node: Node, number: int) -> None:
        """A node is done with a batch."""
        self._done[node.name] = number

    # --- what the commit takes ----------------------------------------------------------------

    def inlets(self) -> dict[str, Inlet]:
        """All that the epoch changed, as the log has it."""
        self._is_logged, found = True, {}
        for name in self._touched():
            one = self._moved(name)
            if one.held is not None or one.drops or name in self._closed:
                found[stream_inlet(name)] = one
        for key in {*self._done, *self._windows}:
            found[self._standing.window_of(key)[0]] = self._kept(key)
        return found

    def settle(
        self, now: float, inlets: Mapping[str, Inlet], *, has_takers: bool = True
    ) -> list[News]:
        """The epoch has committed, and these are the engine's inlets where it was logged: what it
        did stands; where somebody takes the news of it, which batches are whole now."""
        standing, news = self._standing, list[News]()
        for name in self._touched():
            queue, floor = standing.queues[name], self._floor(name)
            whole = range(queue.closed + 1, self.closed(name) + 1)
            if whole and name in self._graph.sources:
                standing.note_arrival(name, whole)
            if has_takers:
                rows = [(number, self.batch(name, number)) for number in whole]
                news += [(name, number, 0 if one is None else one.num_rows) for number, one in rows]
            queue.since.put(range(max(whole.start, floor + 1), whole.stop), now)
            queue.add(among(self._added.get(name, ()), floor + 1, sys.maxsize))
            queue.closed, queue.flushed_us = self.closed(name), self.flushed_us(name)
            queue.drop(floor)
        for key, window in self._windows.items():
            (inlet, stream), kept = standing.window_of(key), window.kept
            standing.kept[key] = kept._replace(known=kept.known - window.drops)
            known = inlets if self._is_logged else moved(
                {inlet: standing.windows[key]}, {inlet: self._kept(key)}
            )  # fmt: skip
            standing.windows[key] = _in_declared_columns(known[inlet], stream)
        standing.done.update(self._done)
        return news

    def _touched(self) -> Iterable[str]:
        """The streams that came on, or that somebody is now done with."""
        found = dict.fromkeys(self._closed)
        for node in self._done:
            found |= dict.fromkeys(self._graph.by_name[node].taken)
        return found

    def _floor(self, stream: str) -> int:
        """Up to this batch all are done with what the stream has."""
        takers = [self.done(node.name) for node in self._graph.takers[stream]]
        return min([self.closed(stream), *takers])

    def _moved(self, name: str) -> Inlet:
        queue, floor = self._standing.queues[name], self._floor(name)
        drops = sum(run.rows.num_rows for run in among(queue.runs, 0, floor))
        kept = among(self._added.get(name, ()), floor + 1, sys.maxsize)
        held = numbered(queue.stream, kept)
        return Inlet(self.flushed_us(name), held, self.closed(name), drops)

    def _kept(self, key: str) -> Inlet:
        """What became of a window, or of a node without one that stands by itself."""
        window, is_joined = self._windows.get(key), key in self._standing.joined
        if window is None:
            return Inlet(self._standing.windows[key].watermark_us, None, self.done(key), 0)
        arrivals = window.whole - window.drops if is_joined else self.done(key)
        count = 0 if window.before.held is None else window.before.held.num_rows
        added = pa.concat_tables(window.added) if window.added else None
        if added is not None:
            added = added.slice(max(0, window.drops - count)).combine_chunks()
        held = added if added is not None and added.num_rows else None
        return Inlet(window.mark_us, held, arrivals, min(window.drops, count))


def restarted(inlets: Mapping[str, Inlet], nodes: Iterable[Node]) -> dict[str, Inlet]:
    """Nodes that a store has not known, or no more, begin with the next batch of what they take."""
    found = {}
    for node in nodes:
        closed = [inlets.get(stream_inlet(one.name), EMPTY).arrivals for one in node.streams]
        if max(closed):
            found[node_inlet(node.name)] = Inlet(None, None, max(closed))
        for key in node.joined:
            if inlets.get(window_inlet(key, node), EMPTY) != EMPTY:
                found[window_inlet(key, node)] = EMPTY
    return found


def left_over(inlets: Mapping[str, Inlet], nodes: Iterable[Node]) -> dict[str, Inlet]:
    """Windows that nodes do not take any more, or in other company, are empty: one that is taken so
    again begins anew."""
    found = {}
    for node in nodes:
        one = inlets.get(node_inlet(node.name), EMPTY)
        if node.window is None and one.held is not None:
            found[node_inlet(node.name)] = Inlet(None, None, one.arrivals)
        taken = {window_inlet(key, node) for key in node.joined}
        found |= {
            name: EMPTY
            for name, kept in inlets.items()
            if name.startswith(_WINDOW) and name.endswith(f" of {node.name}")
            and name not in taken and kept != EMPTY
        }  # fmt: skip
    return found
