"""Designing dataflows: which worker runs which nodes, so that few rows and few looks cross over.

Coarse, as in the example of the paper: a vertex is a unit of nodes, which commit together, with the
time that it took, or a whole table; an edge is a queue with the rows that went through it, or a use
of a table with the rows that were taken. What is found is declared as `pins` of `hg.Workers`.
Invariant: what is weighed was counted in a run of the trace, in a copy of the tables in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.dataflow.nodes import FlowGraph
from headgate.dataflow.streams import Stream
from headgate.dataflow.workers import Workers, pinned
from headgate.engine.engine import Engine
from headgate.engine.metrics import NodeMetrics
from headgate.lab.designing import PROPOSED, Weights, cut_graph, whole_weights
from headgate.transactions import Transaction


@dataclass(frozen=True)
class FlowCounts:
    """What nodes and queues had to do with a trace."""

    rows: Mapping[str, int]  # node -> rows that it took
    seconds: Mapping[str, float]  # node -> how long they took it
    queues: Mapping[str, int]  # stream -> rows that went through it
    came: Mapping[str, pa.Table] = field(default_factory=dict)  # the rows themselves, by stream


def count_flows(copy: Engine, graph: FlowGraph, trace: Mapping[str, pa.Table]) -> FlowCounts:
    """Push the rows of each source through a copy of the engine, and count.

    The first row of each goes ahead: it loads the code, whose time is not that of the nodes.
    """
    for source, rows in trace.items():
        copy.push(source, rows.slice(0, 1))
    before = _metrics(copy)
    recorded = [copy.push(source, rows.slice(1)) for source, rows in trace.items()]
    after = _metrics(copy)
    rows_of = {name: one.rows - before[name].rows for name, one in after.items()}
    seconds = {name: max(1e-9, one.seconds - before[name].seconds) for name, one in after.items()}
    queues = {
        stream.name: after[node.name].rows_out - before[node.name].rows_out
        for node in graph.order
        for stream in node.gives
    }
    came = {name: _of_stream(one, recorded) for name, one in graph.streams.items() if one.recorded}
    return FlowCounts(rows_of, seconds, queues, came)


def _of_stream(stream: Stream, recorded: Sequence[pa.Table]) -> pa.Table:
    """The rows of a stream among what was recorded."""
    names, parts = stream.schema.names, [stream.empty]
    for one in recorded:
        mine = one.filter(pc.equal(one.column("transaction"), stream.name))
        if mine.num_rows:
            parts.append(mine.select(names).cast(stream.empty.schema))
    return pa.concat_tables(parts)


def events_alone(graph: FlowGraph, counted: FlowCounts) -> dict[str, pa.Table]:
    """The events of each transaction that is a unit: they may run where their rows are."""
    units = [unit.nodes[0] for unit in graph.units if len(unit.nodes) == 1]
    found = {
        node.name: counted.came.get(node.taken[0])
        for node in units
        if isinstance(node.step, Transaction)
    }
    return {name: rows for name, rows in found.items() if rows is not None and rows.num_rows}


def _metrics(copy: Engine) -> dict[str, NodeMetrics]:
    found: dict[str, NodeMetrics] = copy._running_flows().metrics()
    return found


@dataclass(frozen=True)
class FlowVerdict:
    """What an assignment of units to workers would do."""

    workers: Mapping[str, int]  # unit -> worker
    tables: Mapping[str, int]  # table -> the worker that it is weighed with
    state_cost: float  # the share of looks at tables that are with another worker
    processing_cost: float  # the share of rows that go through a queue to another worker
    load_cost: float
    cost: float


class FlowJudge:
    """Judges how the units of dataflows, with their tables, are dealt out to workers."""

    def __init__(
        self, graph: FlowGraph, counted: FlowCounts, workers: int, weights: Weights
    ) -> None:
        self._graph, self._workers, self._weights = graph, workers, weights
        self.names = [unit.name for unit in graph.units]
        used = [unit.reads | unit.writes for unit in graph.units]
        self.tables = sorted(set().union(*used))
        place = {name: number for number, name in enumerate((*self.names, *self.tables))}
        self.seconds = np.array(
            [sum(counted.seconds[node.name] for node in unit.nodes) for unit in graph.units]
        )
        self._looks = [
            (number, place[table], max(1, counted.rows[unit.first]))
            for number, unit in enumerate(graph.units)
            for table in sorted(used[number])
        ]
        gives = {one.name: number for number, unit in enumerate(graph.units)
                 for node in unit.nodes for one in node.gives}  # fmt: skip
        self._queues = [
            (gives[stream], number, max(1, counted.queues.get(stream, 0)))
            for number, unit in enumerate(graph.units)
            for stream in unit.needed
            if stream in gives
        ]

    def verdict(self, parts: np.ndarray) -> FlowVerdict:
        """What it costs to have each unit, and each table behind them, with this worker."""
        state, processing = _cut(self._looks, parts), _cut(self._queues, parts)
        units = len(self.names)
        loads = np.bincount(parts[:units], weights=self.seconds, minlength=self._workers)
        load = float((loads.max() - loads.min()) / max(loads.sum(), 1e-12))
        weights = self._weights
        cost = weights.state * state + weights.processing * processing + weights.load * load
        found = dict(zip((*self.names, *self.tables), parts.tolist(), strict=True))
        return FlowVerdict(
            {name: found[name] for name in self.names}, {name: found[name] for name in self.tables},
            state, processing, load, cost,
        )  # fmt: skip

    def edges(self) -> tuple[tuple[tuple[str, str, int], ...], tuple[tuple[str, str, int], ...]]:
        """Uses of tables, and queues, by name."""
        names = [*self.names, *self.tables]
        told = [tuple((names[one], names[other], rows) for one, other, rows in edges)
                for edges in (self._looks, self._queues)]  # fmt: skip
        return told[0], told[1]

    def alone(self) -> FlowVerdict:
        """All with one worker."""
        return self.verdict(np.zeros(len(self.names) + len(self.tables), np.int64))

    def neighbours(self) -> FlowVerdict:
        """As `hg.Workers` does it with no pins; a table is with the first that uses it."""
        placed = pinned(self._graph, Workers(self._workers, "pinned"), {})
        parts = np.zeros(len(self.names) + len(self.tables), np.int64)
        parts[: len(self.names)] = [placed[name] for name in self.names]
        for unit, table, _ in reversed(self._looks):
            parts[table] = parts[unit]
        return self.verdict(parts)

    def best(self) -> FlowVerdict:
        """METIS, then unit by unit and table by table wherever it costs less."""
        starts = [*(self._partitioned(seed) for seed in range(1, 4))]
        return min((self.verdict(self._mended(one)) for one in starts), key=lambda one: one.cost)

    def _partitioned(self, seed: int) -> np.ndarray:
        pairs = [(*one[:2], self._weights.state * one[2] / _total(self._looks))
                 for one in self._looks]  # fmt: skip
        pairs += [(*one[:2], self._weights.processing * one[2] / _total(self._queues))
                  for one in self._queues]  # fmt: skip
        vertices = len(self.names) + len(self.tables)
        loads = np.zeros((1, vertices), np.int64)
        loads[0, : len(self.names)] = whole_weights(self.seconds)
        if not pairs:
            return np.arange(vertices) % self._workers
        edges = np.array([one[:2] for one in pairs], np.int64).T
        return cut_graph(edges, np.array([one[2] for one in pairs]), loads, self._workers, seed)

    def _mended(self, parts: np.ndarray) -> np.ndarray:
        parts, cost = parts.copy(), self.verdict(parts).cost
        before = np.inf
        while cost < before:
            before = cost
            for vertex in range(len(parts)):
                for worker in range(self._workers):
                    old, parts[vertex] = parts[vertex], worker
                    found = self.verdict(parts).cost
                    if found < cost - 1e-12:
                        cost = found
                    else:
                        parts[vertex] = old
        return parts


@dataclass(frozen=True)
class DesignedFlows:
    """Designs of the dataflows of an engine, and the graph that they were judged by."""

    verdicts: Mapping[str, FlowVerdict]  # by the name of the design
    uses: tuple[tuple[str, str, int], ...]  # unit, table, rows
    queues: tuple[tuple[str, str, int], ...]  # unit, unit, rows
    seconds: Mapping[str, float]  # unit -> how long its nodes took

    def parts(self, verdict: FlowVerdict) -> dict[str, int]:
        """By unit and by table: its worker."""
        return {**verdict.workers, **verdict.tables}


def propose_flows(
    graph: FlowGraph, counted: FlowCounts, workers: int, weights: Weights
) -> DesignedFlows:
    """The best assignment found, what `hg.Workers` does with no pins, and one worker for all."""
    judge = FlowJudge(graph, counted, workers, weights)
    beside = judge.neighbours()
    best = min(judge.best(), beside, key=lambda one: one.cost)
    return DesignedFlows(
        {PROPOSED: best, "neighbours together": beside, "one worker": judge.alone()},
        *judge.edges(), dict(zip(judge.names, judge.seconds.tolist(), strict=True)),
    )  # fmt: skip


def _total(edges: Sequence[tuple[int, int, int]]) -> int:
    return max(1, sum(weight for _, _, weight in edges))


def _cut(edges: Sequence[tuple[int, int, int]], parts: np.ndarray) -> float:
    """The share of the edges' weight that leads from one part to another."""
    return sum(weight for one, other, weight in edges if parts[one] != parts[other]) / _total(edges)
