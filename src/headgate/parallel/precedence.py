"""Precedence: the graph of a batch at the grain of operations, after MorphStream's TPG.

A unit is what runs at once: one slice of a transaction, or all of it. Every unit reads versions of
rows, so it waits only for the unit that wrote the version before its own transaction: a temporal
dependency (TD) where it writes that row itself, a parametric one (PD) where it only reads it. The
units of one transaction depend on each other logically (LD): they do not wait, but fail together.
Units come in serial order and an edge leads from a lower to a higher one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headgate.state.compiled import numba
from headgate.state.spaces import (
    ChainNumbers,
    OperationNumbers,
    RowNumbers,
    Strata,
    TaskNumbers,
    TransactionNumbers,
    UnitNumbers,
)

TD, PD = 0, 1
at: Any = np.uint64  # an index that cannot count from the end: the kernels need not ask
_KNOWN = 4  # what is known of a row while the batch is linked: see _link
_WORD_BYTES = 8
_LINE_WORDS = 8
# Arrays of one length that are gone through side by side must not all begin at the same place of a
# page: they would push each other out of the first cache.
_STAGGER_WORDS = 11 * _LINE_WORDS


class Scratch:
    """Memory that batch after batch uses again; an array holds until the next `begin`.

    The first touch of a page can cost more than all the work on it. So arrays that are of no use
    after their batch lie in one piece that stays; what did not fit is asked for as usual, and from
    the next batch on there is room for it.
    """

    def __init__(self) -> None:
        self._block = np.empty(0, np.int64)
        self._asked = 0

    def begin(self) -> None:
        """All arrays that were given out are free again."""
        if self._asked > len(self._block):
            self._block = np.empty(self._asked + self._asked // 4, np.int64)
        self._asked = 0

    def empty(self, count: int, dtype: Any = np.int64) -> np.ndarray:
        """An array of so many values, whatever they are."""
        size = count * np.dtype(dtype).itemsize
        words = -(-size // _WORD_BYTES)
        first = self._asked
        self._asked += -(-words // _LINE_WORDS) * _LINE_WORDS + _STAGGER_WORDS
        if self._asked > len(self._block):
            return np.empty(count, dtype)
        found = self._block[first : first + words]
        return found if dtype is np.int64 else found.view(dtype)[:count]

    def full(self, count: int, value: int, dtype: Any = np.int64) -> np.ndarray:
        """An array of so many times one value."""
        found = self.empty(count, dtype)
        found.fill(value)
        return found

    def zeros(self, count: int) -> np.ndarray:
        return self.full(count, 0)


@dataclass(frozen=True)
class Units:
    """The operations of a batch (one for each row of each transaction) and the units they form."""

    operation_starts: (
        OperationNumbers  # transaction -> its first operation; one more than there are
    )
    rows: RowNumbers  # operation -> row, numbered from 0 on over all tables
    writes: np.ndarray  # operation -> 1 if it makes a new version
    unit_of: UnitNumbers  # operation -> the unit that writes it, or -1
    unit_starts: UnitNumbers  # transaction -> its first unit; one more than there are
    transaction_of: TransactionNumbers  # unit -> transaction
    read_starts: np.ndarray  # unit -> its first entry in `reads`
    reads: OperationNumbers  # operations whose rows the unit looks at
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
    """Who waits for whom among units, by unit, forward and backward, and the chain of each."""

    units: Units
    previous: OperationNumbers  # operation -> the operation that wrote its row before, or -1
    before_starts: np.ndarray
    before: UnitNumbers  # units it waits for
    kinds: np.ndarray  # entry of `before` -> TD or PD
    after_starts: np.ndarray
    after: UnitNumbers  # units that wait for it
    stratum: Strata  # unit -> the longest path to it
    strata: int
    home: ChainNumbers  # unit -> its chain
    chains: int
    crossing: tuple[ChainNumbers, ChainNumbers]  # chains that wait for others: sources, targets
    scratch: Scratch = field(default_factory=Scratch, repr=False)

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
    members: UnitNumbers  # units, in serial order within a task
    task_of: TaskNumbers  # unit -> task
    before_starts: np.ndarray
    before: TaskNumbers
    after_starts: np.ndarray
    after: TaskNumbers
    stratum: Strata
    cycles: int  # how many tasks were merged because they waited for each other
    by_stratum: tuple[np.ndarray, TaskNumbers]  # the start of each stratum, the tasks by stratum

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @property
    def strata(self) -> int:
        return len(self.by_stratum[0]) - 1


# --- groups -------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _fill_groups(
    keys: np.ndarray, values: np.ndarray, starts: np.ndarray, grouped: np.ndarray
) -> None:
    """Group values by key. `starts` is all 0 and has one place more than it will need."""
    for place in range(len(keys)):
        starts[at(keys[place] + 2)] += 1
    for group in range(2, len(starts)):
        starts[group] += starts[group - 1]
    for place in range(len(keys)):
        group = at(keys[place] + 1)
        grouped[at(starts[group])] = values[place]
        starts[group] += 1


@numba.njit(cache=True, nogil=True)
def _fill_sorted(keys: np.ndarray, starts: np.ndarray, grouped: np.ndarray) -> None:
    """As _fill_groups, of the places themselves.

    Equal keys often follow each other, and to count in one place of memory is to wait for it.
    """
    if not len(keys):
        return
    group, count = at(keys[0] + 2), 0
    for place in range(len(keys)):
        if at(keys[place] + 2) != group:
            starts[group] += count
            group, count = at(keys[place] + 2), 0
        count += 1
    starts[group] += count
    for one in range(2, len(starts)):
        starts[one] += starts[one - 1]
    group = at(keys[0] + 1)
    free = at(starts[group])
    for place in range(len(keys)):
        if at(keys[place] + 1) != group:
            starts[group] = free
            group = at(keys[place] + 1)
            free = at(starts[group])
        grouped[free] = place
        free += at(1)
    starts[group] = free


def _group(
    keys: np.ndarray, values: np.ndarray, count: int, scratch: Scratch
) -> tuple[np.ndarray, np.ndarray]:
    """The values grouped by key, in their order, with the start of each of `count` groups."""
    starts, grouped = scratch.zeros(count + 2), scratch.empty(len(keys))
    _fill_groups(keys, values, starts, grouped)
    return starts[:-1], grouped


def _sort(keys: np.ndarray, count: int, scratch: Scratch) -> tuple[np.ndarray, np.ndarray]:
    """The places of the keys grouped by key, with the start of each of `count` groups."""
    starts, grouped = scratch.zeros(count + 2), scratch.empty(len(keys))
    _fill_sorted(keys, starts, grouped)
    return starts[:-1], grouped


# --- edges --------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _link(
    operation_starts: np.ndarray,
    rows: np.ndarray,
    writes: np.ndarray,
    unit_of: np.ndarray,
    unit_starts: np.ndarray,
    read_starts: np.ndarray,
    reads: np.ndarray,
    known: np.ndarray,
    previous: np.ndarray,
    before_starts: np.ndarray,
    before: np.ndarray,
    owners: np.ndarray,
    kinds: np.ndarray,
    stratum: np.ndarray,
    home: np.ndarray,
    sources: np.ndarray,
    targets: np.ndarray,
) -> tuple[int, int, int, int]:
    """Transaction by transaction, edges, strata and chains; returns how many of them there are.

    All that is known of a row stands in one place of `known`, so that memory is waited for once:
    the last operation that wrote it, its chain, and the stratum and the chain of that operation.
    """
    edges, crossing, chains, strata = at(0), at(0), 0, 0
    for transaction in range(len(operation_starts) - 1):
        first, last = at(operation_starts[transaction]), at(operation_starts[transaction + 1])
        first_unit, last_unit = at(unit_starts[transaction]), at(unit_starts[transaction + 1])
        for unit in range(first_unit, last_unit):
            home[unit] = -1
        for operation in range(first, last):
            row = at(rows[operation])
            previous[operation] = known[row, 0]
            if unit_of[operation] < 0:
                continue
            unit = at(unit_of[operation])
            if home[unit] < 0:  # the chain of the first row it writes
                if known[row, 1] < 0:
                    known[row, 1] = chains
                    chains += 1
                home[unit] = known[row, 1]
        for unit in range(first_unit, last_unit):
            if home[unit] < 0:
                home[unit] = chains
                chains += 1
            before_starts[unit] = edges
            level = 0
            for place in range(at(read_starts[unit]), at(read_starts[unit + at(1)])):
                operation = at(reads[place])
                if previous[operation] < 0:
                    continue
                row = at(rows[operation])
                before[edges], owners[edges] = unit_of[at(previous[operation])], unit
                kinds[edges] = TD if unit_of[operation] == unit else PD
                edges += at(1)
                level = max(level, known[row, 2] + 1)
                if known[row, 3] != home[unit]:
                    sources[crossing], targets[crossing] = known[row, 3], home[unit]
                    crossing += at(1)
            stratum[unit] = level
            strata = max(strata, level + 1)
        for operation in range(first, last):
            if writes[operation]:
                row, unit = at(rows[operation]), at(unit_of[operation])
                known[row, 0] = operation
                known[row, 2] = stratum[unit]
                known[row, 3] = home[unit]
    before_starts[len(stratum)] = edges
    return edges, crossing, chains, strata


def link(units: Units, scratch: Scratch | None = None) -> Precedence:
    """Find TD and PD edges, strata and chains in one pass over the transactions.

    With a scratch the graph holds until the next batch begins there.
    """
    scratch = scratch or Scratch()
    count, reads = units.count, len(units.reads)
    known = scratch.full(_KNOWN * units.row_count, -1, np.int32).reshape(units.row_count, _KNOWN)
    previous, before_starts = scratch.empty(units.operations), scratch.empty(count + 1)
    before, owners, kinds = (
        scratch.empty(reads),
        scratch.empty(reads),
        scratch.empty(reads, np.int8),
    )
    stratum, home = scratch.empty(count), scratch.empty(count)
    sources, targets = scratch.empty(reads), scratch.empty(reads)
    edges, crossing, chains, strata = _link(
        units.operation_starts, units.rows, units.writes, units.unit_of, units.unit_starts,
        units.read_starts, units.reads, known, previous, before_starts, before, owners, kinds,
        stratum, home, sources, targets,
    )  # fmt: skip
    after_starts, after = _group(before[:edges], owners[:edges], count, scratch)
    return Precedence(
        units, previous, before_starts, before[:edges], kinds[:edges], after_starts, after,
        stratum, strata, home, chains, (sources[:crossing], targets[:crossing]), scratch,
    )  # fmt: skip


# --- tasks --------------------------------------------------------------------------------------


def unit_tasks(graph: Precedence) -> Tasks:
    """Every unit is a task of its own: the finest grain."""
    numbers = np.arange(graph.units.count + 1)
    return Tasks(
        numbers, numbers[:-1], numbers[:-1], graph.before_starts, graph.before,
        graph.after_starts, graph.after, graph.stratum, 0,
        _sort(graph.stratum, graph.strata, graph.scratch),
    )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _peel(
    before_starts: np.ndarray,
    after_starts: np.ndarray,
    after: np.ndarray,
    stratum: np.ndarray,
    waiting: np.ndarray,
    queue: np.ndarray,
    starts: np.ndarray,
) -> tuple[int, int]:
    """Take off stratum after stratum, into the queue.

    Returns how many strata there are and how many nodes no cycle kept back.
    """
    last = at(0)
    for node in range(len(waiting)):
        waiting[node] = before_starts[node + 1] - before_starts[node]
        if waiting[node] == 0:
            stratum[node] = 0
            queue[last] = node
            last += at(1)
    first, strata = at(0), 0
    starts[0] = 0
    while first < last:
        stop = last
        strata += 1
        starts[strata] = stop
        while first < stop:
            node = at(queue[first])
            first += at(1)
            for place in range(at(after_starts[node]), at(after_starts[node + at(1)])):
                other = at(after[place])
                waiting[other] -= 1
                if waiting[other] == 0:  # the last one it waited for is in the stratum before
                    stratum[other] = strata
                    queue[last] = other
                    last += at(1)
    return strata, last


@numba.njit(cache=True, nogil=True)
def _components(
    waiting: np.ndarray, starts: np.ndarray, after: np.ndarray
) -> tuple[np.ndarray, int]:
    """Strongly connected components (Tarjan, with a stack of our own), numbered from 0 on.

    Nodes that wait for nothing are in no cycle, and none in a cycle leads to them.
    """
    count = len(waiting)
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
        if waiting[root] == 0:
            component[root] = found
            found += 1
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
    return component, found


class _Chains:
    """Chains, or what became of them, and who waits for whom."""

    def __init__(self, count: int, edges: tuple[np.ndarray, np.ndarray], scratch: Scratch) -> None:
        sources, targets = edges
        self.count, self.scratch = count, scratch
        self.before_starts, self.before = _group(targets, sources, count, scratch)
        self.after_starts, self.after = _group(sources, targets, count, scratch)
        self.stratum, self.waiting, self.order = (scratch.empty(count) for _ in range(3))
        starts = scratch.empty(count + 1)
        strata, peeled = _peel(
            self.before_starts, self.after_starts, self.after, self.stratum, self.waiting,
            self.order, starts,
        )  # fmt: skip
        self.strata_starts = starts[: strata + 1]
        self.has_cycles = peeled < count

    def tasks(self, task_of: np.ndarray, merged: int) -> Tasks:
        starts, members = _sort(task_of, self.count, self.scratch)
        return Tasks(
            starts, members, task_of, self.before_starts, self.before, self.after_starts,
            self.after, self.stratum, merged, (self.strata_starts, self.order),
        )  # fmt: skip


def chain_tasks(graph: Precedence) -> Tasks:
    """The operations of a row form a chain; chains that wait for each other become one task."""
    if not len(graph.crossing[0]):
        return plain_chains(graph)  # no chain waits for another
    chains = _Chains(graph.chains, graph.crossing, graph.scratch)
    if not chains.has_cycles:
        return chains.tasks(graph.home, 0)
    component, count = _components(chains.waiting, chains.after_starts, chains.after)
    sources, targets = (component[ends] for ends in graph.crossing)
    between = sources != targets
    merged = _Chains(count, (sources[between], targets[between]), graph.scratch)
    return merged.tasks(component[graph.home], graph.chains - count)


def plain_chains(graph: Precedence) -> Tasks:
    """The chains as TStream has them: not merged, and nothing says which waits for which."""
    count = graph.chains
    starts, members = _sort(graph.home, count, graph.scratch)
    none, zeros = np.empty(0, np.int64), graph.scratch.zeros(count + 1)
    everything = np.array([0, count] if count else [0]), np.arange(count)
    return Tasks(
        starts, members, graph.home, zeros, none, zeros, none, zeros[:count], 0, everything
    )
