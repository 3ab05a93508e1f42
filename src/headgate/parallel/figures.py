"""Figures: what a batch's graph looks like, in a few numbers and as a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from headgate.errors import InputError
from headgate.parallel.graph import Graph, Operations
from headgate.parallel.looks import Look, draw_looks, looks_height, looks_width
from headgate.parallel.precedence import TD, Precedence, Tasks, unit_tasks
from headgate.state.compiled import numba


@dataclass(frozen=True)
class Shape:
    """A graph of tasks as a scheduler sees it."""

    tasks: int
    edges: int
    strata: int
    widest_stratum: int
    work: int  # steps of all tasks: transactions or units
    path: int  # steps on the longest path

    @property
    def ideal_speedup(self) -> float:
        """That of unlimited cores when every step costs the same."""
        return self.work / self.path if self.path else 1.0


@dataclass(frozen=True)
class Figures:
    """The figures of one batch's graph of operations.

    `ideal_speedup` is that of unlimited cores when every operation costs the same; `degree_skew` is
    the operations of the busiest row over the mean; `cycles` counts the chains that would be merged
    into others because they wait for each other. `dynamic` counts the rows whose keys depend on
    others, found as the tables are now, and `certain_sections` the stretches of events in which
    none of them depends on what an event of the same stretch may write. `looks` are the ranges that
    the events look at.
    """

    transactions: int
    operations: int
    rows: int
    temporal: int  # TD edges: an operation and the one before it on its row
    parametric: int  # PD edges: an operation and the writer of another row it reads
    logical: int  # LD edges: the operations of one transaction
    strata: int
    widest_stratum: int
    longest_path: int
    longest_chain: int
    degree_skew: float
    cycles: int
    ideal_speedup: float
    graph: Precedence = field(repr=False)
    labels: tuple[str, ...] = field(default=(), repr=False)
    dynamic: int = 0
    certain_sections: int = 0
    looks: tuple[Look, ...] = field(default=(), repr=False)

    @property
    def edges(self) -> int:
        """How many operations wait for another one."""
        return self.temporal + self.parametric

    def svg(self) -> str:
        """The graph as a drawing, if it is small."""
        return draw(self.graph, self.labels or None, self.looks)

    def __repr__(self) -> str:
        hidden = ["graph", "labels", "looks"]
        hidden += [] if self.dynamic else ["dynamic", "certain_sections"]
        shown = ", ".join(
            f"{name}={getattr(self, name)}" for name in self.__dataclass_fields__
            if name not in hidden
        )  # fmt: skip
        shown += f", looks={len(self.looks)}" if self.looks else ""
        return f"Figures({shown})"


def skew(rows: np.ndarray, row_count: int) -> tuple[int, float]:
    """The operations of the busiest row, and how that compares with the mean."""
    if not row_count or not len(rows):
        return 0, 0.0
    touched = np.bincount(rows, minlength=row_count)
    return int(touched.max()), float(touched.max() / touched.mean())


def transaction_shape(graph: Graph) -> Shape:
    """The graph of whole transactions."""
    widths = np.diff(graph.strata_starts)
    units = len(graph.before_starts) - 1
    return Shape(units, graph.edges, graph.strata, int(widths.max(initial=0)), units, graph.strata)


@numba.njit(cache=True, nogil=True)
def longest_path(
    order: np.ndarray, weights: np.ndarray, after_starts: np.ndarray, after: np.ndarray
) -> int:
    """The heaviest path, tasks taken in an order in which none comes before what it waits for."""
    until = weights.copy()
    longest = 0
    for place in range(len(order)):
        task = order[place]
        longest = max(longest, until[task])
        for edge in range(after_starts[task], after_starts[task + 1]):
            other = after[edge]
            until[other] = max(until[other], until[task] + weights[other])
    return longest


def task_shape(tasks: Tasks) -> Shape:
    """The graph of tasks made of units."""
    weights = np.diff(tasks.starts)
    starts, order = tasks.by_stratum
    path = int(longest_path(order, weights, tasks.after_starts, tasks.after))
    widest = int(np.diff(starts).max(initial=0))
    work = len(tasks.members)
    return Shape(tasks.count, len(tasks.after), tasks.strata, widest, work, path)


def measure(graph: Precedence, fine: Tasks, coarse: Tasks, labels: tuple[str, ...] = ()) -> Figures:
    """Count what people and the decision model look at."""
    units = graph.units
    longest, skewed = skew(units.rows, units.row_count)
    shape = task_shape(fine)
    return Figures(
        transactions=units.transactions,
        operations=units.operations,
        rows=units.row_count,
        temporal=graph.temporal,
        parametric=graph.parametric,
        logical=graph.logical,
        strata=shape.strata,
        widest_stratum=shape.widest_stratum,
        longest_path=shape.path,
        longest_chain=longest,
        degree_skew=skewed,
        cycles=coarse.cycles,
        ideal_speedup=shape.ideal_speedup,
        graph=graph,
        labels=labels,
    )


def measure_transactions(
    operations: Operations, graph: Graph, row_count: int
) -> tuple[Shape, float]:
    """The shape of the graph of whole transactions, and the skew of its rows."""
    return transaction_shape(graph), skew(operations.rows, row_count)[1]


# --- the graph as a picture -----------------------------------------------------------------------
# Units stand in columns by stratum and have the colour of their transaction. An arrow leads from a
# unit to one that waits for it: solid for TD, dashed for PD; dotted lines join the units of a
# transaction (LD). The same graph gives the same text.


UNITS_MAX = 200  # more is not a picture that anyone reads
LABEL_MAX = 20
MARGIN, HEIGHT, GAP_X, GAP_Y, LEGEND = 16, 22, 56, 14, 48
LETTER = 6.6  # the width of one, about
GOLDEN_ANGLE = 137.508  # neighbours get hues far apart

# What XML has no place for, not even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = """
svg { background: #fff; color: #1d2530; font: 11px ui-monospace, "DejaVu Sans Mono", monospace; }
text { fill: currentColor; } .unit text { text-anchor: middle; }
.unit rect { fill-opacity: .28; stroke-width: 1.2; } .stratum { opacity: .55; }
.edge { fill: none; stroke: currentColor; stroke-opacity: .75; } .pd { stroke-dasharray: 5 3; }
.ld { stroke-width: .7; stroke-dasharray: 1 3; stroke-linecap: round; } .tip { fill: currentColor; }
@media (prefers-color-scheme: dark) { svg { background: #14181e; color: #dfe5ec; } }
"""


@dataclass(frozen=True)
class _Places:
    """Where everything stands."""

    x: np.ndarray  # unit -> its left side
    y: np.ndarray  # unit -> its upper side
    node: float  # the width of a unit
    width: float
    height: float
    strata: int


def draw(graph: Precedence, labels: Sequence[str] | None = None, looks: Sequence[Look] = ()) -> str:
    """The graph as SVG; `labels` names each unit, as in "t3 src". Ranges stand below it."""
    count = graph.units.count
    if count > UNITS_MAX:
        raise InputError(
            f"a drawing of {count:,} units cannot be read; it is made for {UNITS_MAX} at most: "
            "draw fewer events"
        )
    names = _default_labels(graph) if labels is None else [str(label) for label in labels]
    if len(names) != count:
        raise InputError(f"{len(names)} labels were given for {count} units")
    names = [_UNPRINTABLE.sub("\ufffd", name) for name in names]
    places = _lay_out(graph, names)
    width = max(places.width, looks_width(looks))
    height = places.height + looks_height(looks)
    colours = [_colour(number) for number in range(graph.units.transactions)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="task precedence graph">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
        *_strata(places),
        *_logical(graph, places),
        *_waits(graph, places),
        *_units(graph, places, names),
        *_legend(graph, places),
        *(_UNPRINTABLE.sub("\ufffd", one) for one in draw_looks(looks, places.height, colours)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _default_labels(graph: Precedence) -> list[str]:
    units = graph.units
    starts, names = units.unit_starts, []
    for unit, transaction in enumerate(units.transaction_of.tolist()):
        is_whole = starts[transaction + 1] - starts[transaction] == 1
        part = "" if is_whole else f".{unit - starts[transaction]}"
        names.append(f"t{transaction}{part}")
    return names


def _lay_out(graph: Precedence, names: Sequence[str]) -> _Places:
    stratum = unit_tasks(graph).stratum
    strata = int(stratum.max(initial=-1)) + 1
    taken = np.zeros(strata + 1, np.int64)
    line = np.zeros(len(stratum), np.int64)
    for unit, column in enumerate(stratum.tolist()):
        line[unit] = taken[column]
        taken[column] += 1
    longest = max((len(_short(name)) for name in names), default=0)
    node = max(40.0, round(longest * LETTER + 12))
    x = MARGIN + stratum * (node + GAP_X)
    y = MARGIN + 18 + line * (HEIGHT + GAP_Y)
    wide = MARGIN + max(1, strata) * (node + GAP_X) - GAP_X + MARGIN
    high = MARGIN + 18 + int(taken.max(initial=0)) * (HEIGHT + GAP_Y) + LEGEND
    return _Places(x, y, node, max(wide, 520.0), float(high), strata)


def _short(name: str) -> str:
    return name if len(name) <= LABEL_MAX else name[: LABEL_MAX - 1] + "…"


def _strata(places: _Places) -> list[str]:
    step = places.node + GAP_X
    return [
        f'<text class="stratum" x="{MARGIN + column * step:g}" y="{MARGIN + 6}">'
        f"stratum {column}</text>"
        for column in range(places.strata)
    ]


def _colour(transaction: int) -> str:
    return f"hsl({round(transaction * GOLDEN_ANGLE) % 360} 65% 48%)"


def _units(graph: Precedence, places: _Places, names: Sequence[str]) -> list[str]:
    parts = []
    for unit, transaction in enumerate(graph.units.transaction_of.tolist()):
        x, y = float(places.x[unit]), float(places.y[unit])
        colour = _colour(transaction)
        parts.append(
            f'<g class="unit" data-unit="{unit}" data-transaction="{transaction}">'
            f"<title>{escape(names[unit], quote=False)}, transaction {transaction}</title>"
            f'<rect x="{x:g}" y="{y:g}" width="{places.node:g}" height="{HEIGHT}" rx="5" '
            f'fill="{colour}" stroke="{colour}"/>'
            f'<text x="{x + places.node / 2:g}" y="{y + 15:g}">'
            f"{escape(_short(names[unit]), quote=False)}</text></g>"
        )
    return parts


def _waits(graph: Precedence, places: _Places) -> list[str]:
    """The arrows of TD and PD; those into one unit end beside each other."""
    parts = []
    starts = graph.before_starts.tolist()
    for unit in range(graph.units.count):
        edges = range(starts[unit], starts[unit + 1])
        for turn, edge in enumerate(edges):
            source = int(graph.before[edge])
            x1 = float(places.x[source]) + places.node
            y1 = float(places.y[source]) + HEIGHT / 2
            x2 = float(places.x[unit])
            y2 = float(places.y[unit]) + HEIGHT * (turn + 1) / (len(edges) + 1)
            bend = GAP_X * 0.5
            kind = "td" if graph.kinds[edge] == TD else "pd"
            parts.append(
                f'<path class="edge {kind}" marker-end="url(#tip)" data-from="{source}" '
                f'data-to="{unit}" d="M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} '
                f'{x2:g} {y2:g}"/>'
            )
    return parts


def _logical(graph: Precedence, places: _Places) -> list[str]:
    """Dotted lines from each unit of a transaction to the next one."""
    parts = []
    of = graph.units.transaction_of
    for unit in range(1, graph.units.count):
        if of[unit] != of[unit - 1]:
            continue
        ends = [
            (float(places.x[one]) + places.node * 0.25, float(places.y[one]) + HEIGHT / 2)
            for one in (unit - 1, unit)
        ]
        (x1, y1), (x2, y2) = ends
        aside = min(x1, x2) - places.node * 0.25 - 10
        parts.append(
            f'<path class="edge ld" data-from="{unit - 1}" data-to="{unit}" '
            f'd="M{x1:g} {y1:g}Q{aside:g} {(y1 + y2) / 2:g} {x2:g} {y2:g}"/>'
        )
    return parts


def _legend(graph: Precedence, places: _Places) -> list[str]:
    y = places.height - 24
    kinds = [("td", "TD", graph.temporal), ("pd", "PD", graph.parametric)]
    kinds.append(("ld", "LD", graph.logical))
    parts = [
        f'<g class="legend"><text x="{MARGIN}" y="{y:g}">{graph.units.count} units of '
        f"{graph.units.transactions} transactions in {places.strata} strata</text>"
    ]
    x = float(MARGIN)
    for kind, name, count in kinds:
        text = f"{name} {count}"
        # Drawn as a line, not as an edge: who counts the edges must not count these.
        parts.append(
            f'<path class="{kind}" fill="none" stroke="currentColor" '
            f'd="M{x:g} {y + 14:g}h26"/><text x="{x + 32:g}" y="{y + 18:g}">{text}</text>'
        )
        x += 32 + len(text) * LETTER + 24
    return [*parts, "</g>"]
