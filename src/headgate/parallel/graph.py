"""The graph: which transaction of a batch waits for which, from the rows each one touches.

Operations are linked in serial order, one pass over them: a read waits for the last write of its
row, a write for the reads since then, or for the last write when there were none. So every row's
operations form its chain, and two transactions with no path between them share no written row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.state.compiled import numba
from headgate.state.spaces import OperationNumbers, RowNumbers, Strata, UnitNumbers

SHARE_MIN = 0.1  # a group smaller than this part of the batch is not worth a decision of its own


@dataclass(frozen=True)
class Operations:
    """What each transaction (unit) of a batch touches: rows numbered over all tables, each once."""

    starts: OperationNumbers  # unit -> its first operation; one more than there are units
    rows: RowNumbers  # operation -> row
    writes: np.ndarray  # operation -> 1 if it may write

    @property
    def units(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class Graph:
    """The dependencies among units, forward and backward, and the stratum of each."""

    before_starts: np.ndarray  # unit -> its first entry in `before`
    before: UnitNumbers  # units it waits for
    after_starts: np.ndarray
    after: UnitNumbers  # units that wait for it
    stratum: Strata  # unit -> longest path that leads to it
    strata_starts: np.ndarray  # stratum -> its first entry in `by_stratum`
    by_stratum: UnitNumbers  # units by stratum, in serial order within one

    @property
    def strata(self) -> int:
        return len(self.strata_starts) - 1

    @property
    def edges(self) -> int:
        return len(self.before)


@numba.njit(cache=True, nogil=True)
def _number_rows(rows: np.ndarray, numbers: np.ndarray) -> int:
    """Replace each row by a small number, 0 for the first one met; `numbers` is left as it was."""
    count = 0
    firsts = np.empty(len(rows), np.int64)
    for operation in range(len(rows)):
        row = rows[operation]
        if numbers[row] < 0:
            numbers[row] = count
            firsts[count] = row
            count += 1
        rows[operation] = numbers[row]
    for number in range(count):
        numbers[firsts[number]] = -1
    return count


@numba.njit(cache=True, nogil=True)
def _link(
    starts: np.ndarray, rows: np.ndarray, writes: np.ndarray, row_count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Edges (from, to) between units, in the order of `to`."""
    last_write = np.full(row_count, -1, np.int64)
    last_read = np.full(row_count, -1, np.int64)  # the newest read since the last write
    earlier_read = np.empty(len(rows), np.int64)  # read operation -> the read before it
    sources = np.empty(2 * len(rows), np.int64)
    targets = np.empty(2 * len(rows), np.int64)
    unit_of = np.empty(len(rows), np.int64)
    edges = 0
    for unit in range(len(starts) - 1):
        for operation in range(starts[unit], starts[unit + 1]):
            row = rows[operation]
            unit_of[operation] = unit
            if writes[operation] == 0:
                if last_write[row] >= 0:
                    sources[edges], targets[edges] = last_write[row], unit
                    edges += 1
                earlier_read[operation] = last_read[row]
                last_read[row] = operation
                continue
            read = last_read[row]
            if read < 0 and last_write[row] >= 0:
                sources[edges], targets[edges] = last_write[row], unit
                edges += 1
            while read >= 0:
                sources[edges], targets[edges] = unit_of[read], unit
                edges += 1
                read = earlier_read[read]
            last_read[row] = -1
            last_write[row] = unit
    return sources[:edges].copy(), targets[:edges].copy()


@numba.njit(cache=True, nogil=True)
def _stratify(units: int, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The longest path to each unit; edges come in the order of their targets."""
    stratum = np.zeros(units, np.int64)
    for edge in range(len(sources)):
        stratum[targets[edge]] = max(stratum[targets[edge]], stratum[sources[edge]] + 1)
    return stratum


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


def number_rows(operations: Operations, numbers: np.ndarray) -> int:
    """Number the rows of the batch from 0 on, in place; returns how many there are.

    `numbers` is scratch: -1 for each row of all tables, and so again afterwards.
    """
    return int(_number_rows(operations.rows, numbers))


def with_every_row(operations: Operations, bases: np.ndarray) -> Operations:
    """The same where what may touch any row of a table touches each of them, too.

    `bases` are the first rows of the tables; rows behind the last of them stand for whole tables.
    """
    units, tables = operations.units, len(bases) - 1
    unit = np.repeat(np.arange(units), np.diff(operations.starts))
    whole = operations.rows - bases[-1]
    owner, owned = (found[(whole >= 0) & (operations.writes == 1)] for found in (unit, whole))
    sizes = np.diff(bases)[owned]
    first = np.repeat(bases[owned] - np.cumsum(sizes) + sizes, sizes)
    table = np.where(whole >= 0, -1, np.searchsorted(bases, operations.rows, side="right") - 1)
    is_among = np.isin(unit * tables + table, owner * tables + owned) & (table >= 0)
    places = np.concatenate([unit[~is_among], np.repeat(owner, sizes)])
    order = np.argsort(places, kind="stable")
    rows = np.concatenate([operations.rows[~is_among], first + np.arange(sizes.sum())])
    writes = np.concatenate([operations.writes[~is_among], np.ones(sizes.sum(), np.int64)])
    starts = np.searchsorted(places[order], np.arange(units + 1))
    return Operations(starts, rows[order], writes[order])


def build_graph(operations: Operations, row_count: int) -> Graph:
    """Link the operations of a batch, whose rows are numbered below `row_count`."""
    units = operations.units
    sources, targets = _link(operations.starts, operations.rows, operations.writes, row_count)
    stratum = _stratify(units, sources, targets)
    before_starts, before = _group(targets, sources, units)
    after_starts, after = _group(sources, targets, units)
    strata = int(stratum.max(initial=-1)) + 1
    strata_starts, by_stratum = _group(stratum, np.arange(units), strata)
    return Graph(before_starts, before, after_starts, after, stratum, strata_starts, by_stratum)


# --- groups that share no row ---------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _components(starts: np.ndarray, rows: np.ndarray, row_count: int) -> np.ndarray:
    """For each transaction the number of its component: who is connected by rows is in one."""
    parent = np.arange(row_count)
    for transaction in range(len(starts) - 1):
        first = starts[transaction]
        for operation in range(first + 1, starts[transaction + 1]):
            one, other = rows[first], rows[operation]
            while parent[one] != one:
                parent[one] = parent[parent[one]]
                one = parent[one]
            while parent[other] != other:
                parent[other] = parent[parent[other]]
                other = parent[other]
            if one != other:
                parent[max(one, other)] = min(one, other)
    component = np.full(len(starts) - 1, -1, np.int64)
    for transaction in range(len(starts) - 1):
        if starts[transaction] < starts[transaction + 1]:
            row = rows[starts[transaction]]
            while parent[row] != row:
                row = parent[row]
            component[transaction] = row
    return component


def contended(operations: Operations, row_count: int, threads: int) -> np.ndarray | None:
    """Which transactions belong to large components, when the rest is a group of its own, too."""
    count = operations.units
    component = _components(operations.starts, operations.rows, row_count)
    sizes = np.bincount(component + 1, minlength=row_count + 1)
    sizes[0] = 0  # those that touch no row
    is_contended: np.ndarray = sizes[component + 1] >= max(2, count // (4 * threads))
    share = np.count_nonzero(is_contended) / max(1, count)
    return is_contended if SHARE_MIN <= share <= 1 - SHARE_MIN else None
