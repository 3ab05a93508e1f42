"""Designing: by which columns to shard, what to replicate and in how many shards, from a trace.

The model is that of S-Store's designer: events are processing nodes with a cost, rows are state
nodes, and an edge leads from each event to each row that it names. A design is judged by the share
of edges that it cuts, of queues that it cuts, and by how uneven the load is. METIS says what any
placement of rows could reach; a store, though, can only declare columns of keys, so that is what is
searched. Invariant: a design is judged by the placement and the components of `shards/`, on whole
batches: what is foretold of a trace is what an engine with shards finds when it runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.engine.declaring.declarations import describe_table, read_table
from headgate.engine.events import as_table
from headgate.engine.ordering import Arranger
from headgate.engine.terms import understood
from headgate.errors import InputError
from headgate.execution.program import Program
from headgate.shards.components import CROSS, Touched, find_components, touched_rows
from headgate.shards.placement import EVERYWHERE, Placement
from headgate.state.compiled import numba
from headgate.state.rows import TableRows
from headgate.state.spaces import EventRows
from headgate.state.strings import StringPool
from headgate.state.table import Table
from headgate.transactions import Transaction

REPLICATED_BYTES_MAX = 1 << 26  # of a table that each shard would have
WRITTEN_SHARE_MAX = 0.05  # of the looks at a table that is replicated; a write goes to all shards
SHARDS_OF_A_NODE = (4, 2, 1)  # the more, the finer they can be dealt out to nodes later
ALIKE = 0.02  # a cost within this of the best is as good
_KEY_COLUMNS_ALL = 3  # of a longer key only its pairs are tried, not all subsets
_UNITS = 1000  # METIS has whole weights


@dataclass(frozen=True)
class Weights:
    """What cut edges, cut queues and uneven load count for, in this order the paper's a, b, c."""

    state: float = 2.0
    processing: float = 1.0
    load: float = 3.0


@dataclass(frozen=True)
class Choice:
    """Where the rows of one table are: on all shards, or by columns of its key; none: all."""

    shard_by: tuple[str, ...] = ()
    replicate: bool = False

    @classmethod
    def of(cls, table: Table) -> Choice:
        return cls(table.shard_by, table.replicate)

    def applied(self, table: Table) -> Table:
        """The table as it would be declared."""
        told = {**describe_table(table), "shard_by": self.shard_by, "replicate": self.replicate}
        return read_table(table.name, told)

    def told(self, table: Table) -> str:
        if self.replicate:
            return "replicate=True"
        return f'shard_by="{", ".join(self.shard_by)}"' if self.shard_by else "by its key"


@dataclass(frozen=True)
class Trace:
    """Events as a graph: which rows each names, in which batch it runs and what it costs."""

    tables: Mapping[str, Table]
    touched: Touched
    order: EventRows
    route: np.ndarray  # event row -> number of its transaction in `names`
    names: tuple[str, ...]
    batches: np.ndarray  # event row -> batch
    costs: np.ndarray  # event row -> what it costs, to that of others
    aside: int  # events that would be rejected
    pool: StringPool
    sizes: Mapping[str, int]  # table -> its rows, where they are known
    _placed: dict[tuple[str, Choice, int], np.ndarray] = field(default_factory=dict)

    @property
    def events(self) -> int:
        return len(self.route)

    def shards(self, table: str, choice: Choice, count: int) -> np.ndarray:
        """The shard of each row of a table that the trace names."""
        asked = (table, choice, count)
        if asked not in self._placed:
            placement = Placement({table: choice.applied(self.tables[table])}, count)
            words = self._key_words(table)
            self._placed[asked] = placement.shards(table, words, self.pool)
        return self._placed[asked]

    def _key_words(self, table: str) -> Any:
        known = self.touched.keys[table]
        words = known.words[: known.count, 1 : 1 + len(self.tables[table].key)]
        return np.ascontiguousarray(words.T)

    def rows_of(self, table: str) -> slice:
        """The numbers of a table's rows."""
        base = self.touched.bases[table]
        return slice(base, base + self.touched.keys[table].count)

    def looks(self) -> dict[str, tuple[int, int]]:
        """By table: how often its rows are named, and how often to be written."""
        found = {}
        for name in self.tables:
            mine = self.rows_of(name)
            here = (self.touched.rows >= mine.start) & (self.touched.rows < mine.stop)
            found[name] = (int(here.sum()), int((here & self.touched.writes).sum()))
        return found

    def bytes_of(self, table: str) -> int:
        """About what its rows take, with an index."""
        rows = max(self.sizes.get(table, 0), self.touched.keys[table].count)
        return 8 * (4 + len(list(self.tables[table].schema))) * rows


def read_trace(
    tables: Mapping[str, Table],
    transactions: Mapping[str, Transaction],
    route: Any,
    events: pa.Table,
    batch_events: int,
    sizes: Mapping[str, int],
    **options: Any,
) -> Trace:
    """The graph of these events, which run by `route` as a stream of an engine would run them."""
    pool = StringPool()
    rows = {name: TableRows(table, pool) for name, table in tables.items()}
    terms = understood(route, transactions, **options)
    found = terms.route.transactions
    program = Program([one.signature for one in found], rows, pool, False)
    given = as_table(events, terms.event, "events", terms.with_unneeded)
    arranged = Arranger(terms, program).arrange(given, None)
    if not len(arranged.order):
        raise InputError("no event of the trace can run: see why with engine.run(...)")
    batches = np.zeros(given.num_rows, np.int64)
    batches[arranged.order] = np.arange(len(arranged.order)) // batch_events
    touched = touched_rows(arranged.works, arranged.order, tables, Placement(tables, 1), pool)
    by_event = np.argsort(touched.events, kind="stable")
    touched = replace(
        touched, events=touched.events[by_event], rows=touched.rows[by_event],
        writes=touched.writes[by_event],
    )  # fmt: skip
    return Trace(
        dict(tables), touched, arranged.order, arranged.route, tuple(one.name for one in found),
        batches, np.ones(given.num_rows), len(arranged.aside), pool, dict(sizes),
    )  # fmt: skip


# --- a design, judged -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What a design is expected to do with the events of the trace."""

    shards: int
    cross: float  # the share of events that name rows on several shards
    travelling: float  # and of those that hang together with one
    fullest: float  # the load of the fullest node, to that of all nodes on average
    state_cost: float  # the share of edges that are cut
    load_cost: float  # the load of the fullest node less that of the emptiest, to all load
    cost: float
    loads: tuple[float, ...]  # node -> its share of the load


@dataclass(frozen=True)
class Design:
    """What could be declared: a choice for each table, and so many shards."""

    choices: Mapping[str, Choice]
    shards: int

    def changed(self, choices: Mapping[str, Choice]) -> Design:
        return Design({**self.choices, **choices}, self.shards)


class Judge:
    """Judges designs of one trace for so many nodes."""

    def __init__(self, trace: Trace, nodes: int, weights: Weights) -> None:
        self.trace, self.nodes, self.weights = trace, nodes, weights
        touched = trace.touched
        self._starts = np.searchsorted(touched.events, np.arange(trace.events + 1))
        self._runs = np.zeros(trace.events, np.bool_)
        self._runs[trace.order] = True
        # A row is another one in each batch: events of two batches hang together with nobody.
        pairs = trace.batches[touched.events] * max(1, len(touched.shards)) + touched.rows
        self._pairs, self._by_batch = np.unique(pairs, return_inverse=True)

    def placed(self, design: Design) -> np.ndarray:
        """The shard of each row."""
        trace = self.trace
        found = [trace.shards(name, design.choices[name], design.shards) for name in trace.tables]
        return np.concatenate([*found, np.zeros(0, np.int64)])

    def cost(self, design: Design) -> float:
        return self._priced(self.placed(design), design.shards)[0]

    def verdict(self, shards: np.ndarray, count: int) -> Verdict:
        """What a placement of rows on so many shards would do."""
        cost, state, load, cross, loads = self._priced(shards, count)
        return Verdict(
            count, float(cross[self.trace.order].mean()), self._travelling(shards, count),
            float(loads.max() / loads.mean()), state, load, cost,
            tuple((loads / loads.sum()).tolist()),
        )  # fmt: skip

    def _priced(
        self, shards: np.ndarray, count: int
    ) -> tuple[float, float, float, np.ndarray, np.ndarray]:
        trace = self.trace
        placed = shards[trace.touched.rows]
        homes, cross, cut = _judged(
            self._starts, placed, trace.touched.writes, self._runs, count, EVERYWHERE
        )
        mine = trace.order
        by_shard = np.bincount(homes[mine], weights=trace.costs[mine], minlength=count)
        loads = dealt(by_shard, self.nodes)
        state = cut / max(1, len(placed))
        load = float((loads.max() - loads.min()) / max(loads.sum(), 1e-12))
        cost = self.weights.state * state + self.weights.load * load
        return cost, state, load, cross, loads

    def _travelling(self, shards: np.ndarray, count: int) -> float:
        trace, rows = self.trace, max(1, len(self.trace.touched.shards))
        of_batches = replace(trace.touched, rows=self._by_batch, shards=shards[self._pairs % rows])
        placement = Placement(trace.tables, count)
        components = find_components(of_batches, trace.events, placement)
        homes = components.homes[components.numbers[trace.order]]
        return float((homes == CROSS).mean())


@numba.njit(cache=True, nogil=True)
def _judged(
    starts: np.ndarray,
    shards: np.ndarray,
    writes: np.ndarray,
    runs: np.ndarray,
    count: int,
    everywhere: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """By event: the shard with most of its rows, whether it has rows on others; and edges cut."""
    events = len(starts) - 1
    homes = np.zeros(events, np.int64)
    cross = np.zeros(events, np.bool_)
    seen = np.zeros(count, np.int64)
    cut = 0
    for event in range(events):
        if not runs[event]:
            continue
        best = -1
        named = 0
        for place in range(starts[event], starts[event + 1]):
            shard = shards[place]
            if shard == everywhere:
                cut += writes[place]  # it must reach all shards
                continue
            named += 1
            seen[shard] += 1
            if best < 0 or seen[shard] > seen[best]:
                best = shard
        if best < 0:
            homes[event] = event % count  # any shard can run it
            continue
        homes[event] = best
        cut += named - seen[best]
        cross[event] = seen[best] < named
        for place in range(starts[event], starts[event + 1]):
            if shards[place] != everywhere:
                seen[shards[place]] = 0
    return homes, cross, cut


def dealt(by_shard: np.ndarray, nodes: int) -> np.ndarray:
    """The load of each node when shards are dealt out as tasks are: the dearest first."""
    found = np.zeros(nodes)
    for load in np.sort(by_shard)[::-1].tolist():
        found[int(found.argmin())] += load
    return found


# --- what could be declared -----------------------------------------------------------------------


def choices_of(trace: Trace, table: Table) -> list[Choice]:
    """What could be declared of a table: what is, its key, parts of it, and all on each shard."""
    key = table.key
    sizes = range(1, len(key) + 1) if len(key) <= _KEY_COLUMNS_ALL else (1, 2)
    parts = [
        one for size in sizes for some in combinations(key, size) for one in permutations(some)
    ]
    found = [Choice.of(table), Choice(), *(Choice(one) for one in parts if one != key)]
    looks, written = trace.looks()[table.name]
    is_small = trace.bytes_of(table.name) <= REPLICATED_BYTES_MAX
    if is_small and written <= WRITTEN_SHARE_MAX * looks:
        found.append(Choice(replicate=True))
    return list(dict.fromkeys(found))


def search(judge: Judge, shards: int) -> Design:
    """The best design that single tables, and pairs of them, can be changed to step by step."""
    trace = judge.trace
    named = [name for name, (looks, _) in trace.looks().items() if looks]
    options = {name: choices_of(trace, trace.tables[name]) for name in named}
    best = Design({name: Choice.of(table) for name, table in trace.tables.items()}, shards)
    cost = judge.cost(best)
    while True:
        before = cost
        for step in _steps(options):
            changed = best.changed(step)
            found = judge.cost(changed)
            if found < cost - 1e-9:
                best, cost = changed, found
        if cost == before:
            return best


def _steps(options: Mapping[str, Sequence[Choice]]) -> Iterator[dict[str, Choice]]:
    """Changes of one table, then of two at once: two that go together may only gain together."""
    for name, choices in options.items():
        yield from ({name: choice} for choice in choices)
    for one, other in combinations(options, 2):
        for choice in options[one]:
            yield from ({one: choice, other: beside} for beside in options[other])


def recommend(judge: Judge) -> Design:
    """The best design over several numbers of shards; of those alike the one with most shards."""
    found = [search(judge, judge.nodes * each) for each in SHARDS_OF_A_NODE]
    costs = [judge.cost(one) for one in found]
    least = min(costs)
    return next(one for one, cost in zip(found, costs, strict=True) if cost <= least + ALIKE)


# --- METIS ----------------------------------------------------------------------------------------


def partitioned(judge: Judge, count: int, seed: int = 1) -> np.ndarray:
    """The shard of each row, as METIS places them: any row anywhere, which no store can declare.

    Rows of tables that nobody writes and that are small enough to be replicated are on all shards.
    """
    trace, touched = judge.trace, judge.trace.touched
    rows = len(touched.shards)
    weights = np.zeros(trace.events + rows, np.int64)
    weights[trace.order] = whole_weights(trace.costs[trace.order])
    bytes_of_row, is_free = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    for name, (_, written) in trace.looks().items():
        mine = trace.rows_of(name)
        bytes_of_row[mine] = 4 + len(list(trace.tables[name].schema))
        is_free[mine] = not written and trace.bytes_of(name) <= REPLICATED_BYTES_MAX
    bytes_of_row[is_free] = 0
    held = np.concatenate([np.zeros(trace.events, np.int64), bytes_of_row])
    bound = ~is_free[touched.rows]
    edges = np.stack([touched.events[bound], trace.events + touched.rows[bound]])
    parts = cut_graph(edges, np.ones(edges.shape[1]), np.stack([weights, held]), count, seed)
    found = parts[trace.events :]
    return np.where(is_free, EVERYWHERE, found)


def whole_weights(costs: np.ndarray) -> np.ndarray:
    """Costs as whole numbers, none of them zero."""
    most = max(float(costs.max(initial=0.0)), 1e-12)
    return np.maximum(1, (costs * (_UNITS / most)).astype(np.int64))


def cut_graph(
    edges: np.ndarray, weights: np.ndarray, loads: np.ndarray, count: int, seed: int = 1
) -> np.ndarray:
    """The part of each vertex: few edges cut, and each of the loads even over the parts.

    `edges` are pairs of vertices, `loads` are constraints x vertices; METIS does the work.
    """
    from pymetis import CSRAdjacency, Options, part_graph

    vertices = loads.shape[1]
    if count == 1 or not edges.shape[1]:
        return np.arange(vertices) % count
    pairs = np.concatenate([edges[0] * vertices + edges[1], edges[1] * vertices + edges[0]])
    known, places = np.unique(pairs, return_inverse=True)
    joined = np.bincount(places, weights=np.tile(whole_weights(weights), 2)).astype(np.int32)
    first, second = np.divmod(known, vertices)
    starts = np.searchsorted(first, np.arange(vertices + 1)).astype(np.int32)
    used = loads[loads.sum(axis=1) > 0]
    graph = CSRAdjacency(starts, second.astype(np.int32))
    balanced = np.ascontiguousarray(used.T).astype(np.int32).ravel()
    _, found = part_graph(
        count, graph, vweights=balanced, eweights=joined, options=Options(seed=seed)
    )
    return np.asarray(found, np.int64)


# --- all together ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposal:
    """What is proposed, beside what it is compared with."""

    trace: Trace
    nodes: int
    design: Design
    verdicts: Mapping[str, Verdict]  # by the name of the design


PROPOSED, HASHED, NOW, BEST = "proposed", "all by key", "as it is now", "METIS, any row anywhere"


def propose(trace: Trace, nodes: int, weights: Weights, shards_now: int | None) -> Proposal:
    """The design for so many nodes, and what hashing by key, the store now and METIS would do."""
    judge = Judge(trace, nodes, weights)
    design = recommend(judge)
    count = design.shards
    hashed = Design(dict.fromkeys(trace.tables, Choice()), count)
    now = Design({name: Choice.of(one) for name, one in trace.tables.items()}, shards_now or 1)
    verdicts = {
        PROPOSED: judge.verdict(judge.placed(design), count),
        HASHED: judge.verdict(judge.placed(hashed), count),
        NOW: judge.verdict(judge.placed(now), now.shards),
        BEST: min(
            (judge.verdict(partitioned(judge, parts), parts) for parts in {count, nodes}),
            key=lambda one: one.cost,
        ),
    }
    return Proposal(trace, nodes, design, verdicts)
