"""Figures: what a batch's graph looks like in a few numbers, for people and for decisions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.planning.graph import Graph, Operations


@dataclass(frozen=True)
class Figures:
    """The figures of one batch's graph.

    `ideal_speedup` is that of unlimited cores when every transaction costs the same.
    """

    transactions: int
    operations: int
    rows: int
    edges: int
    strata: int
    widest_stratum: int
    longest_chain: int
    degree_skew: float  # operations of the busiest row over the mean
    ideal_speedup: float


def measure(operations: Operations, graph: Graph, row_count: int) -> Figures:
    """Count what the decision model looks at."""
    touched = np.bincount(operations.rows, minlength=row_count) if row_count else np.zeros(1)
    widths = np.diff(graph.strata_starts)
    mean = touched.mean() if row_count else 1.0
    return Figures(
        transactions=operations.units,
        operations=len(operations.rows),
        rows=row_count,
        edges=graph.edges,
        strata=graph.strata,
        widest_stratum=int(widths.max(initial=0)),
        longest_chain=int(touched.max(initial=0)),
        degree_skew=float(touched.max(initial=0) / mean) if mean else 0.0,
        ideal_speedup=operations.units / graph.strata if graph.strata else 1.0,
    )
