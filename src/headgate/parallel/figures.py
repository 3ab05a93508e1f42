"""Figures: what a batch's graph looks like in a few numbers, for people and for decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headgate.parallel.drawing import draw
from headgate.parallel.graph import Graph, Operations
from headgate.parallel.precedence import Precedence, Tasks
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
    into others because they wait for each other.
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

    @property
    def edges(self) -> int:
        """How many operations wait for another one."""
        return self.temporal + self.parametric

    def svg(self) -> str:
        """The graph as a drawing, if it is small."""
        return draw(self.graph, self.labels or None)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={getattr(self, name)}" for name in self.__dataclass_fields__
            if name not in ("graph", "labels")
        )  # fmt: skip
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
