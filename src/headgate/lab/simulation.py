"""The simulation: how long a planned batch would take on more cores, in numbers and as curves.

A strategy is replayed event by event on virtual cores, with the work of each transaction and the
costs measured on a real machine: planning, starting threads, barriers, words that go from core to
core, copies of versions. Cores are alike and never disturbed, memory is equally near to all, and an
abort costs a pause but nothing runs twice; so it is a bound for what a machine can reach.

More cores may take longer, in the simulation as in truth: a schedule that hands out what is ready,
or deals tasks round, is at times worse with one core more (Graham's anomalies), and threads and
barriers cost more the more there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape

import numpy as np

from headgate.errors import InputError
from headgate.lab.virtual_cores import (
    replay_chains,
    replay_depth,
    replay_partitions,
    replay_ready,
    replay_shares,
    replay_strata,
    replay_turns,
)
from headgate.parallel.decision import Thresholds
from headgate.parallel.figures import longest_path
from headgate.parallel.graph import Graph, Operations, build_graph
from headgate.parallel.precedence import Precedence, Tasks, chain_tasks, plain_chains, unit_tasks
from headgate.parallel.scheme import EXPLORATIONS, GRANULARITIES, Scheme, make_scheme


@dataclass(frozen=True)
class PlannedBatch:
    """A batch that was planned and not run: its graphs, and what each transaction takes alone."""

    operations: Operations
    graph: Graph  # of whole transactions
    precedence: Precedence  # of their operations
    row_count: int
    work_ns: np.ndarray  # transaction -> nanoseconds, one after another
    aborts: int = 0  # transactions that fail
    unit_factor: float = 1.0  # what all units take, to the transactions: see `with_units`

    @property
    def serial_ns(self) -> float:
        return float(self.work_ns.sum())

    @cached_property
    def unit_ns(self) -> np.ndarray:
        """The work of each unit: its share of the transaction's, by rows.

        A row that nobody writes is looked at by every unit that needs it, and costs each time.
        """
        units = self.precedence.units
        owned = np.bincount(units.unit_of[units.unit_of >= 0], minlength=units.count)
        reader = np.repeat(np.arange(units.count), np.diff(units.read_starts))
        free = units.unit_of[units.reads] < 0
        shared = np.bincount(reader[free], minlength=units.count)
        each = self.work_ns / np.maximum(1, np.diff(self.operations.starts))
        found: np.ndarray = np.maximum(1, owned + shared) * each[units.transaction_of]
        return self.unit_factor * found

    @cached_property
    def unit_tasks(self) -> Tasks:
        return unit_tasks(self.precedence)

    @cached_property
    def chain_tasks(self) -> Tasks:
        return chain_tasks(self.precedence)

    @cached_property
    def plain_chains(self) -> Tasks:
        return plain_chains(self.precedence)


def plan_batch(graph: Precedence, operation_ns: float, aborts: int = 0) -> PlannedBatch:
    """A batch whose every operation takes this long; `graph` is what `engine.explain` finds."""
    units = graph.units
    operations = Operations(units.operation_starts, units.rows, units.writes)
    work_ns = operation_ns * np.diff(operations.starts).astype(np.float64)
    whole = build_graph(operations, units.row_count)
    return PlannedBatch(operations, whole, graph, units.row_count, work_ns, aborts)


def with_units(batch: PlannedBatch, useful_ns: float, costs: Thresholds) -> PlannedBatch:
    """The batch, when all its units were seen to take this long with the copies of their rows.

    A unit whose new row, or output, depends on another one's computes that again, so units can
    take more than the transaction they were cut from.
    """
    plain = replace(batch, unit_factor=1.0)
    copies_ns = costs.version_ns_per_operation * len(batch.precedence.units.reads)
    factor = (useful_ns - copies_ns) / max(1.0, float(plain.unit_ns.sum()))
    return replace(batch, unit_factor=max(1.0, factor))


@dataclass(frozen=True)
class _Shape:
    """What an exploration goes through: tasks with their work, edges and strata."""

    work_ns: np.ndarray
    before_starts: np.ndarray
    before: np.ndarray
    after_starts: np.ndarray
    after: np.ndarray
    strata_starts: np.ndarray
    by_stratum: np.ndarray
    goes_on: bool  # who makes another ready runs the first such itself, as is done in place


# --- strategies ---------------------------------------------------------------------------------


def _shape(batch: PlannedBatch, granularity: str, costs: Thresholds) -> _Shape:
    if granularity == "transaction":
        graph = batch.graph
        return _Shape(
            batch.work_ns, graph.before_starts, graph.before, graph.after_starts, graph.after,
            graph.strata_starts, graph.by_stratum, goes_on=True,
        )  # fmt: skip
    tasks = batch.chain_tasks if granularity == "chain" else batch.unit_tasks
    unit_ns = _versioned(batch, costs)
    work_ns = np.bincount(tasks.task_of, weights=unit_ns, minlength=tasks.count)
    starts, by_stratum = tasks.by_stratum
    return _Shape(
        work_ns, tasks.before_starts, tasks.before, tasks.after_starts, tasks.after, starts,
        by_stratum, goes_on=False,
    )  # fmt: skip


def _versioned(batch: PlannedBatch, costs: Thresholds) -> np.ndarray:
    """The work of each unit with the copies of the rows it looks at."""
    looked_at = np.diff(batch.precedence.units.read_starts)
    found: np.ndarray = batch.unit_ns + costs.version_ns_per_operation * looked_at
    return found


def order_taken(
    batch: PlannedBatch, strategy: str, cores: int, costs: Thresholds
) -> tuple[float, np.ndarray]:
    """How long an exploration takes, and its tasks as they are begun."""
    scheme = make_scheme(strategy, cores)
    shape = _shape(batch, scheme.granularity, costs)
    begins, signal_ns = _threads(cores, costs)
    order = np.full(len(shape.work_ns), -1, np.int64)
    if scheme.kind.kernel == "strata":
        makespan_ns = replay_strata(
            shape.strata_starts, shape.by_stratum, shape.work_ns, begins,
            _barrier_ns(cores, costs), signal_ns, order,
        )  # fmt: skip
    elif scheme.kind.kernel == "depth":
        makespan_ns = replay_depth(
            shape.by_stratum, shape.before_starts, shape.before, shape.work_ns, begins,
            signal_ns, order,
        )  # fmt: skip
    else:
        makespan_ns = replay_ready(
            shape.before_starts, shape.after_starts, shape.after, shape.work_ns, begins, signal_ns,
            shape.goes_on, order,
        )  # fmt: skip
    return float(makespan_ns), order


def _explore(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    return order_taken(batch, str(scheme), scheme.threads, costs)[0]


def _threads(cores: int, costs: Thresholds) -> tuple[np.ndarray, float]:
    """When each core comes to work, for threads start one after another; and a signal.

    The start was measured with two threads. One core alone needs no thread.
    """
    each_ns = 0.0 if cores == 1 else costs.start_ns / 2
    return np.arange(1, cores + 1) * each_ns, float(costs.signal_ns)


def _barrier_ns(cores: int, costs: Thresholds) -> float:
    """Measured with two; every further core adds itself to the same word."""
    return 0.0 if cores == 1 else float(costs.barrier_ns + costs.signal_ns * (cores - 2))


def _take_turns(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    operations, work_ns = batch.operations, batch.work_ns
    if scheme.by_units:
        work_ns = work_ns + costs.version_ns_per_operation * np.diff(operations.starts)
    makespan_ns = replay_turns(
        operations.starts, operations.rows, operations.writes, batch.row_count, work_ns,
        *_threads(scheme.threads, costs), scheme.by_units,
    )  # fmt: skip
    return float(makespan_ns)


def _count_partitions(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    operations = batch.operations
    makespan_ns = replay_partitions(
        operations.starts, operations.rows, batch.work_ns, *_threads(scheme.threads, costs),
    )  # fmt: skip
    return float(makespan_ns)


def _share(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    operations, cores = batch.operations, scheme.threads
    # Two begin together, as they were measured; those after them are woken one by one.
    begins = costs.share_start_ns + costs.thread_ns * np.maximum(0.0, np.arange(cores) - 1.0)
    makespan_ns = replay_shares(
        operations.starts, operations.rows, operations.writes, batch.row_count, batch.work_ns,
        begins, costs.share_ns_per_operation, _barrier_ns(cores, costs),
        0.0 if cores == 1 else costs.signal_ns,
    )  # fmt: skip
    return float(makespan_ns)


def _go_round(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    tasks, graph = batch.plain_chains, batch.precedence
    pools = scheme.threads if scheme.pool == "nothing" else 1
    begins, signal_ns = _threads(scheme.threads, costs)
    makespan_ns = replay_chains(
        tasks.starts, tasks.members, tasks.task_of, graph.before_starts, graph.before,
        graph.after_starts, graph.after, _versioned(batch, costs), begins, pools, signal_ns,
    )  # fmt: skip
    return float(makespan_ns)


# By what a scheme's kernel needs, see parallel/scheme.py.
_REPLAYS: dict[str, Callable[[PlannedBatch, Scheme, Thresholds], float]] = {
    "graph": _explore,
    "shares": _share,
    "pools": _go_round,
    "locks": _take_turns,
    "turns": _take_turns,
    "partitions": _count_partitions,
}
_EXPLORED = [
    name if grain == "transaction" else f"{name}-{grain}"
    for name in EXPLORATIONS
    for grain in GRANULARITIES
]
STRATEGIES = ("serial", "shares", *_EXPLORED, "tstream", "tstream-nothing", "lal", "lwm", "pat")


def _prelude_ns(batch: PlannedBatch, scheme: Scheme, costs: Thresholds) -> float:
    """What one thread does alone: the plan, and pauses for aborts."""
    if scheme.kind.plans_itself:
        return 0.0
    each = costs.unit_plan_ns_per_operation if scheme.by_units else costs.plan_ns_per_operation
    pauses = batch.aborts if scheme.by_units and not scheme.kind.is_whole else 0
    if scheme.kind.needs == "pools":  # TStream settles once, at the end
        pauses = min(1, pauses)
    return each * len(batch.operations.rows) + costs.abort_ns * pauses


def simulate(batch: PlannedBatch, strategy: str, cores: int, costs: Thresholds) -> float:
    """The nanoseconds that the batch takes by this strategy on this many cores."""
    if cores < 1:
        raise InputError(f"cores is {cores}; it must be at least 1")
    if strategy == "serial":
        return batch.serial_ns
    if strategy not in STRATEGIES:
        raise InputError(f"no strategy {strategy!r}; there are: {', '.join(STRATEGIES)}")
    if batch.operations.units == 0:
        return 0.0
    scheme = make_scheme(strategy, cores)
    makespan_ns = _REPLAYS[scheme.kind.needs](batch, scheme, costs)
    return makespan_ns + _prelude_ns(batch, scheme, costs)


def critical_path_ns(batch: PlannedBatch, is_by_units: bool) -> float:
    """The longest way through the graph: no number of cores is faster."""
    if is_by_units:
        graph: Tasks | Graph = batch.unit_tasks
        work_ns = batch.unit_ns
    else:
        graph, work_ns = batch.graph, batch.work_ns
    # Edges lead from lower to higher numbers, so that order is one in which none comes too early.
    order = np.arange(len(work_ns))
    return float(longest_path(order, work_ns, graph.after_starts, graph.after))


# --- curves: speed-up over cores ------------------------------------------------------------------


CORES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64)
WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 14, 38
# A colour says how it goes through the graph, a dash what it takes at once.
COLOURS = {
    "serial": "#7c8794",
    "shares": "#e07a1f",
    "strata": "#2f74c0",
    "depth": "#2b9348",
    "ready": "#d1495b",
    "tstream": "#8e5bb5",
    "lal": "#9c6b2f",
    "lwm": "#12908e",
    "pat": "#c58a00",
    "driver": "#7c8794",
    "mixed": "#2f74c0",
    "executors": "#2b9348",
    "shuffled": "#e07a1f",
}
DASHES = {"operation": "7 4", "chain": "2 3", "nothing": "7 4"}

_STYLE = """
body { margin: 2rem auto; max-width: 960px; padding: 0 1rem; background: #fff; color: #1d2530;
  font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif; }
svg { width: 100%; height: auto; font: 11px system-ui, "DejaVu Sans", sans-serif; }
svg text { fill: currentColor; } .grid { stroke: currentColor; stroke-opacity: .15; }
.ideal { stroke: currentColor; stroke-opacity: .4; stroke-dasharray: 1 4; }
table { border-collapse: collapse; margin-top: 1rem; } th, td { padding: .15rem .7rem; }
td { text-align: right; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; } thead th { text-align: right; }
td:first-child { text-align: left; white-space: nowrap; }
@media (prefers-color-scheme: dark) { body { background: #14181e; color: #dfe5ec; } }
"""


def speedups(
    batch: PlannedBatch,
    costs: Thresholds,
    cores: Sequence[int] = CORES,
    strategies: Sequence[str] = STRATEGIES,
) -> dict[str, list[float]]:
    """How many times faster than one after another, by strategy, for each number of cores."""
    found = {}
    for strategy in strategies:
        makespans = [simulate(batch, strategy, count, costs) for count in cores]
        found[strategy] = [batch.serial_ns / max(1.0, makespan) for makespan in makespans]
    return found


def draw_page(
    title: str, facts: Sequence[str], cores: Sequence[int], speedups: Mapping[str, Sequence[float]]
) -> str:
    """The whole page: what was simulated, the curves, and the same as a table."""
    return page(title, facts, f"{draw_curves(cores, speedups)}{_table(cores, speedups)}")


def page(title: str, facts: Sequence[str], body: str) -> str:
    """A page of this look: a title, what is to be known, and drawings."""
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><ul>{items}</ul>"
        f"{body}</body></html>\n"
    )


def draw_curves(
    cores: Sequence[int], speedups: Mapping[str, Sequence[float]], counted: str = "cores"
) -> str:
    """The curves as SVG; the dotted line is one more for each core, or of what is `counted`."""
    most = max(cores)
    highest = max([1.5, *(value for line in speedups.values() for value in line)]) * 1.05
    across, up = (WIDTH - LEFT - RIGHT) / most, (HEIGHT - TOP - BOTTOM) / highest
    bottom = HEIGHT - BOTTOM
    reach = min(most, highest)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="speed-up by {counted}">',
        *_grid(cores, highest, across, up, counted),
        f'<line class="ideal" x1="{LEFT}" y1="{bottom}" x2="{LEFT + reach * across:.1f}" '
        f'y2="{bottom - reach * up:.1f}"/>',
    ]
    for name, line in speedups.items():
        points = " ".join(
            f"{LEFT + count * across:.1f},{bottom - value * up:.1f}"
            for count, value in zip(cores, line, strict=True)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke-width="1.8" {_stroke(name)}>'
            f"<title>{escape(name)}</title></polyline>"
        )
    return "".join([*parts, "</svg>"])


def _grid(
    cores: Sequence[int], highest: float, across: float, up: float, counted: str
) -> list[str]:
    bottom, parts = HEIGHT - BOTTOM, []
    step = next((one for one in (0.5, 1, 2, 4, 8, 16) if highest / one <= 9), 32)
    for turn in range(int(highest / step) + 1):
        y = bottom - turn * step * up
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{turn * step:g}</text>'
        )
    last = -100.0
    for count in cores:
        x = LEFT + count * across
        if x - last >= 22:
            parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{count}</text>')
            last = x
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{counted}</text>']


def _stroke(name: str) -> str:
    first, _, last = name.partition("-")
    dash = f' stroke-dasharray="{DASHES[last]}"' if last in DASHES else ""
    return f'stroke="{COLOURS.get(first, "#7c8794")}"{dash}'


def _table(cores: Sequence[int], speedups: Mapping[str, Sequence[float]]) -> str:
    """The best of the most cores first, each with its line as in the picture."""
    heads = "".join(f"<th>{count}</th>" for count in cores)
    rows = []
    for name, line in sorted(speedups.items(), key=lambda item: -item[1][-1]):
        mark = (
            f'<svg viewBox="0 0 34 8" style="width:34px;height:8px"><path d="M0 4h34" fill="none" '
            f'stroke-width="2.4" {_stroke(name)}/></svg>'
        )
        cells = "".join(f"<td>{value:.2f}</td>" for value in line)
        rows.append(f"<tr><td>{mark} {escape(name)}</td>{cells}</tr>")
    body = "".join(rows)
    return f"<table><thead><tr><th>cores</th>{heads}</tr></thead><tbody>{body}</tbody></table>"
