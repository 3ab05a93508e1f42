"""What planning costs: nanoseconds per operation for batches of growing size.

Operations are those of the Streaming Ledger: deposits of two rows and transfers of four, each row
one operation, cut as the engine cuts them, a large batch into sections, too; keys are drawn as in
the workloads. Nothing runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from bench.workloads import zipf_shares
from headgate.parallel.graph import Operations, build_graph
from headgate.parallel.precedence import Scratch, Units, chain_tasks, link, unit_tasks
from headgate.parallel.sections import section_count

SIZES = (10_240, 102_400, 1_024_000)  # operations of a batch
KEYS = 100_000
THETA = 0.2
OPERATIONS = 3  # of a transaction in the mean: half have two, half have four

Row = dict[str, Any]
Action = Callable[[Operations, Units, Scratch], dict[str, float]]


def make_operations(count: int, keys: int = KEYS, seed: int = 7) -> Operations:
    """So many operations: deposits and transfers in turn; rows are numbered from 0 on."""
    random = np.random.default_rng(seed)
    pairs = -(-count // (2 * OPERATIONS))
    sizes = np.tile([2, 4], pairs)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    shares = np.cumsum(zipf_shares(keys, THETA))
    drawn = np.minimum(np.searchsorted(shares, random.random(starts[-1])), keys - 1)
    # Accounts (even) and assets (odd), a source's and a target's: no row twice in a transaction.
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    rows = (drawn // 2 * 2 + place % 2).astype(np.int64)
    same = np.flatnonzero((place >= 2) & (rows == np.roll(rows, 2)))
    rows[same] = (rows[same] + 2) % keys
    _, numbered = np.unique(rows, return_inverse=True)
    return Operations(starts, numbered.astype(np.int64), np.ones(len(rows), np.int64))


def make_units(operations: Operations) -> Units:
    """One unit an operation; it reads its own row and, as a transfer does, its transaction's first.

    A deposit's two units know nothing of each other; those of a transfer all look at its source.
    """
    count = len(operations.rows)
    sizes = np.diff(operations.starts)
    first = np.repeat(operations.starts[:-1], sizes)
    numbers = np.arange(count)
    looks = (np.repeat(sizes, sizes) == 4) & (numbers != first)
    read_starts = np.concatenate([[0], np.cumsum(1 + looks)])
    reads = np.empty(read_starts[-1], np.int64)
    reads[read_starts[:-1]] = numbers
    reads[read_starts[:-1][looks] + 1] = first[looks]
    return Units(
        operations.starts, operations.rows, operations.writes, numbers, operations.starts,
        np.repeat(np.arange(operations.units), sizes), read_starts, reads,
        int(operations.rows.max(initial=-1)) + 1,
    )  # fmt: skip


def measure_planning(repeats: int, sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """One row a size and step: the median time, per operation."""
    rows = []
    for size in sizes:
        sections = cut(make_operations(size))
        units, count = [make_units(one) for one in sections], sum(len(one.rows) for one in sections)
        scratch = Scratch()
        turns = repeats * min(20, max(sizes) // size)  # short ones are done more often
        for action in (_plan_units, _plan_transactions):
            # The first turns make room and are not counted.
            found = [_all(action, sections, units, scratch) for _ in range(turns + 2)][2:]
            for step in found[0]:
                each = median(one[step] for one in found) / count * 1e9
                rows.append({"operations": count, "step": step, "ns": each})
    return rows


def cut(operations: Operations) -> list[Operations]:
    """A batch in the sections that the engine would make of it; rows are numbered in each."""
    count = section_count(len(operations.rows))
    edges = np.linspace(0, operations.units, count + 1).astype(int).tolist()
    found = []
    for first, last in pairwise(edges):
        starts = operations.starts[first : last + 1]
        here = slice(starts[0], starts[-1])
        _, rows = np.unique(operations.rows[here], return_inverse=True)
        found.append(Operations(starts - starts[0], rows, operations.writes[here]))
    return found


def _all(
    action: Action, sections: Sequence[Operations], units: Sequence[Units], scratch: Scratch
) -> dict[str, float]:
    """The seconds of each step, over all sections."""
    total: Counter[str] = Counter()
    for one, cut_up in zip(sections, units, strict=True):
        total.update(action(one, cut_up, scratch))
    return dict(total)


def _plan_units(_: Operations, units: Units, scratch: Scratch) -> dict[str, float]:
    """The seconds of each step, in the memory of the batch before, as the engine does it.

    Of this thread's own time: planning has one thread, and others' work is not its cost.
    """
    scratch.begin()
    began = time.thread_time()
    graph = link(units, scratch)
    linked = time.thread_time()
    unit_tasks(graph)
    layered = time.thread_time()
    chain_tasks(graph)
    chained = time.thread_time()
    return {
        "link operations": linked - began,
        "strata of operations": layered - linked,
        "chains and their strata": chained - layered,
    }


def _plan_transactions(operations: Operations, units: Units, _: Scratch) -> dict[str, float]:
    began = time.thread_time()
    build_graph(operations, units.row_count)
    return {"graph of whole transactions": time.thread_time() - began}
