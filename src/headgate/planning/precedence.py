"""Precedence: the graph of a batch at the grain of operations, after MorphStream's TPG.

A unit is what runs at once: one slice of a transaction, or all of it. Every unit reads versions of
rows, so it waits only for the unit that wrote the version before its own transaction: a temporal
dependency (TD) where it writes that row itself, a parametric one (PD) where it only reads it. The
units of one transaction depend on each other logically (LD): they do not wait, but fail together.
Units come in serial order and an edge leads from a lower to a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

TD, PD = 0, 1


@dataclass(frozen=True)
class Units:
    """The operations of a batch (one for each row of each transaction) and the units they form."""

    operation_starts: np.ndarray  # transaction -> its first operation; one more than there are
    rows: np.ndarray  # operation -> row, numbered from 0 on over all tables
    writes: np.ndarray  # operation -> 1 if it makes a new version
    unit_of: np.ndarray  # operation -> the unit that writes it, or -1
    unit_starts: np.ndarray  # transaction -> its first unit; one more than there are
    transaction_of: np.ndarray  # unit -> transaction
    read_starts: np.ndarray  # unit -> its first entry in `reads`
    reads: np.ndarray  # operations whose rows the unit looks at
    row_count: int

    @property
    def transactions(self) -> int:
        return len(self.operation_starts) - 1

    @property
    def count(self) -> int:
        return len(self.transaction_of)

    @property
    def operations(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Precedence:
    """Who waits for whom among units, by unit, forward and backward."""

    units: Units
    previous: np.ndarray  # operation -> the operation that wrote its row before, or -1
    before_starts: np.ndarray
    before: np.ndarray  # units it waits for
    kinds: np.ndarray  # entry of `before` -> TD or PD
    after_starts: np.ndarray
    after: np.ndarray  # units that wait for it

    @property
    def temporal(self) -> int:
        return int(np.count_nonzero(self.kinds == TD))

    @property
    def parametric(self) -> int:
        return len(self.kinds) - self.temporal

    @property
    def logical(self) -> int:
        """Each unit of a transaction with the one before it."""
        return self.units.count - self.units.transactions


@dataclass(frozen=True)
class Tasks:
    """What a thread takes at once: units, or chains of them with cycles merged."""

    starts: np.ndarray  # task -> its first entry in `members`
    members: np.ndarray  # units, in serial order within a task
    task_of: np.ndarray  # unit -> task
    before_starts: np.ndarray
    before: np.ndarray
    after_starts: np.ndarray
    after: np.ndarray
    stratum: np.ndarray
    cycles: int  # how many tasks were merged because they waited for each other

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def strata(self) -> int:
        return int(self.stratum.max(initial=-1)) + 1

    @cached_property
    def by_stratum(self) -> tuple[np.ndarray, np.ndarray]:
        """The start of each stratum, and the tasks by stratum."""
        starts, tasks = _group(self.stratum, np.arange(self.count), self.strata)
        return starts, tasks


@numba.njit(cache=True, nogil=True)
def _group(keys: np.ndarray, values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The values grouped by key, in their order, with the start of each of `count` groups."""
    starts = np.zeros(count + 1, np.int64)
    for place in range(len(keys)):
        starts[keys[place] + 1] += 1
    for group in range(count):
        starts[group + 1] += starts[group]
    filled = starts[:-1].copy()
    grouped = np.empty(len(values), np.int64)
    for place in range(len(keys)):
        grouped[filled[keys[place]]] = values[place]
        filled[keys[place]] += 1
    return starts, grouped


@numba.njit(cache=True, nogil=True)
def _previous(
    starts: np.ndarray, rows: np.ndarray, writes: np.ndarray, row_count: int
) -> np.ndarray:
    """For each operation the last one of an earlier transaction that writes its row."""
    last = np.full(row_count, -1, np.int64)
    previous = np.empty(len(rows), np.int64)
    for transaction in range(len(starts) - 1):
        for operation in range(starts[transaction], starts[transaction + 1]):
            previous[operation] = last[rows[operation]]
        for operation in range(starts[transaction], starts[transaction + 1]):
            if writes[operation]:
                last[rows[operation]] = operation
    return previous


@numba.njit(cache=True, nogil=True)
def _edges(
    read_starts: np.ndarray, reads: np.ndarray, previous: np.ndarray, unit_of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The edges in the order of their targets: starts, sources, targets, kinds."""
    units = len(read_starts) - 1
    starts = np.empty(units + 1, np.int64)
    sources = np.empty(len(reads), np.int64)
    targets = np.empty(len(reads), np.int64)
    kinds = np.empty(len(reads), np.int8)
    edges = 0
    for unit in range(units):
        starts[unit] = edges
        for place in range(read_starts[unit], read_starts[unit + 1]):
            operation = reads[place]
            before = previous[operation]
            if before >= 0:
                sources[edges] = unit_of[before]
                targets[edges] = unit
                kinds[edges] = TD if unit_of[operation] == unit else PD
                edges += 1
    starts[units] = edges
    return starts, sources[:edges], targets[:edges], kinds[:edges]


def link(units: Units) -> Precedence:
    """Find TD and PD edges: one pass over the operations, one over what the units read."""
    previous = _previous(units.operation_starts, units.rows, units.writes, units.row_count)
    starts, sources, targets, kinds = _edges(
        units.read_starts, units.reads, previous, units.unit_of
    )
    after_starts, after = _group(sources, targets, units.count)
    return Precedence(units, previous, starts, sources, kinds, after_starts, after)


# --- tasks --------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _unit_strata(before_starts: np.ndarray, before: np.ndarray) -> np.ndarray:
    stratum = np.zeros(len(before_starts) - 1, np.int64)
    for unit in range(len(stratum)):
        for place in range(before_starts[unit], before_starts[unit + 1]):
            stratum[unit] = max(stratum[unit], stratum[before[place]] + 1)
    return stratum


def unit_tasks(graph: Precedence) -> Tasks:
    """Every unit is a task of its own: the finest grain."""
    count = graph.units.count
    numbers = np.arange(count)
    return Tasks(
        np.arange(count + 1), numbers, numbers, graph.before_starts, graph.before,
        graph.after_starts, graph.after, _unit_strata(graph.before_starts, graph.before), 0,
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _homes(
    starts: np.ndarray, rows: np.ndarray, unit_of: np.ndarray, units: int, row_count: int
) -> np.ndarray:
    """The chain of each unit: that of the first row it writes, or one of its own; numbered."""
    home = np.full(units, -1, np.int64)
    chain_of = np.full(row_count, -1, np.int64)
    chains = 0
    for operation in range(len(rows)):
        unit = unit_of[operation]
        if unit >= 0 and home[unit] < 0:
            row = rows[operation]
            if chain_of[row] < 0:
                chain_of[row] = chains
                chains += 1
            home[unit] = chain_of[row]
    for unit in range(units):
        if home[unit] < 0:
            home[unit] = chains
            chains += 1
    return home


@numba.njit(cache=True, nogil=True)
def _cross_edges(
    home: np.ndarray, before_starts: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Edges between different chains, in the order of their targets' units."""
    sources = np.empty(len(before), np.int64)
    targets = np.empty(len(before), np.int64)
    edges = 0
    for unit in range(len(home)):
        for place in range(before_starts[unit], before_starts[unit + 1]):
            source = home[before[place]]
            if source != home[unit]:
                sources[edges], targets[edges] = source, home[unit]
                edges += 1
    return sources[:edges], targets[:edges]


@numba.njit(cache=True, nogil=True)
def _components(count: int, starts: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, int]:
    """Strongly connected components (Tarjan, with a stack of our own), in topological order."""
    index = np.full(count, -1, np.int64)
    low = np.zeros(count, np.int64)
    component = np.full(count, -1, np.int64)
    stack = np.empty(count, np.int64)
    path = np.empty(count, np.int64)
    place = np.empty(count, np.int64)
    on_stack = np.zeros(count, np.bool_)
    height, found, visited = 0, 0, 0
    for root in range(count):
        if index[root] >= 0:
            continue
        depth = 0
        path[0], place[root] = root, starts[root]
        index[root] = low[root] = visited
        visited += 1
        stack[height] = root
        on_stack[root] = True
        height += 1
        while depth >= 0:
            node = path[depth]
            if place[node] < starts[node + 1]:
                other = after[place[node]]
                place[node] += 1
                if index[other] < 0:
                    index[other] = low[other] = visited
                    visited += 1
                    stack[height] = other
                    on_stack[other] = True
                    height += 1
                    depth += 1
                    path[depth], place[other] = other, starts[other]
                elif on_stack[other]:
                    low[node] = min(low[node], index[other])
                continue
            if low[node] == index[node]:
                while True:
                    height -= 1
                    member = stack[height]
                    on_stack[member] = False
                    component[member] = found
                    if member == node:
                        break
                found += 1
            depth -= 1
            if depth >= 0:
                low[path[depth]] = min(low[path[depth]], low[node])
    for node in range(count):  # Tarjan finds them last first
        component[node] = found - 1 - component[node]
    return component, found


@numba.njit(cache=True, nogil=True)
def _ordered_strata(count: int, starts: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The longest path to each node, when nodes are numbered in topological order."""
    stratum = np.zeros(count, np.int64)
    for node in range(count):
        for place in range(starts[node], starts[node + 1]):
            stratum[after[place]] = max(stratum[after[place]], stratum[node] + 1)
    return stratum


def chain_tasks(graph: Precedence) -> Tasks:
    """The operations of a row form a chain; chains that wait for each other become one task."""
    units = graph.units
    home = _homes(units.operation_starts, units.rows, units.unit_of, units.count, units.row_count)
    chains = int(home.max(initial=-1)) + 1
    sources, targets = _cross_edges(home, graph.before_starts, graph.before)
    if not len(sources):
        return plain_chains(graph)  # no chain waits for another
    starts, after = _group(sources, targets, chains)
    component, count = _components(chains, starts, after)
    task_of = component[home]
    task_starts, members = _group(task_of, np.arange(units.count), count)
    sources, targets = component[sources], component[targets]
    crossing = sources != targets
    sources, targets = sources[crossing], targets[crossing]
    before_starts, before = _group(targets, sources, count)
    after_starts, after = _group(sources, targets, count)
    stratum = _ordered_strata(count, after_starts, after)
    return Tasks(
        task_starts, members, task_of, before_starts, before, after_starts, after, stratum,
        chains - count,
    )  # fmt: skip


def plain_chains(graph: Precedence) -> Tasks:
    """The chains as TStream has them: not merged, and nothing says which waits for which."""
    units = graph.units
    home = _homes(units.operation_starts, units.rows, units.unit_of, units.count, units.row_count)
    count = int(home.max(initial=-1)) + 1
    starts, members = _group(home, np.arange(units.count), count)
    none, zeros = np.empty(0, np.int64), np.zeros(count + 1, np.int64)
    return Tasks(starts, members, home, zeros, none, zeros, none, zeros[:count], 0)
