"""The graph of operations: who waits for whom, chains, cycles, strata, and its figures."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.parallel.figures import measure, task_shape
from headgate.parallel.precedence import (
    PD,
    TD,
    Precedence,
    Units,
    chain_tasks,
    link,
    plain_chains,
    unit_tasks,
)

ROWS = 5
# A transaction: the rows it touches in order, each with the rows its new version is made from;
# None for a row that is only read.
transactions = st.lists(
    st.dictionaries(
        st.integers(0, ROWS - 1),
        st.one_of(st.none(), st.sets(st.integers(0, ROWS - 1))),
        max_size=4,
    ),
    max_size=12,
)


def units_of(batch: list[dict[int, set[int] | None]]) -> Units:
    """Every written row is a unit of its own; a transaction that writes none is one unit."""
    starts, rows, writes, unit_of = [0], [], [], []
    unit_starts, transaction_of, read_starts, reads = [0], [], [0], []
    for number, touched in enumerate(batch):
        first = len(rows)
        place = {row: first + at for at, row in enumerate(touched)}
        rows += touched
        writes += [int(sources is not None) for sources in touched.values()]
        mine = [row for row, sources in touched.items() if sources is not None]
        unit_of += [-1] * len(touched)
        for row in mine or [None]:
            sources = touched if row is None else {row, *(touched[row] or ())}
            if row is not None:
                unit_of[place[row]] = len(transaction_of)
            reads += [place[one] for one in touched if one in sources]
            transaction_of.append(number)
            read_starts.append(len(reads))
        starts.append(len(rows))
        unit_starts.append(len(transaction_of))
    arrays = (starts, rows, writes, unit_of, unit_starts, transaction_of, read_starts, reads)
    return Units(*(np.array(array, np.int64) for array in arrays), ROWS)


def edges(graph: Precedence) -> set[tuple[int, int, int]]:
    found = set()
    for unit in range(graph.units.count):
        for place in range(graph.before_starts[unit], graph.before_starts[unit + 1]):
            found.add((int(graph.before[place]), unit, int(graph.kinds[place])))
    return found


def expected_edges(units: Units) -> set[tuple[int, int, int]]:
    """By the definition: the last earlier transaction that writes a row the unit looks at."""
    found = set()
    for unit in range(units.count):
        transaction = int(units.transaction_of[unit])
        for place in range(units.read_starts[unit], units.read_starts[unit + 1]):
            operation = int(units.reads[place])
            row = units.rows[operation]
            for earlier in reversed(range(units.operation_starts[transaction])):
                if units.rows[earlier] == row and units.writes[earlier]:
                    kind = TD if units.unit_of[operation] == unit else PD
                    found.add((int(units.unit_of[earlier]), unit, kind))
                    break
    return found


@given(transactions)
def test_edges_are_those_of_the_definition(batch: list[dict[int, set[int] | None]]) -> None:
    graph = link(units_of(batch))
    assert edges(graph) == expected_edges(graph.units)
    assert all(source < target for source, target, _ in edges(graph))
    assert graph.temporal + graph.parametric == len(graph.before)


@given(transactions)
def test_tasks_keep_every_unit_and_the_order_of_every_edge(
    batch: list[dict[int, set[int] | None]],
) -> None:
    graph = link(units_of(batch))
    for tasks in (unit_tasks(graph), chain_tasks(graph)):
        assert sorted(tasks.members.tolist()) == list(range(graph.units.count))
        for source, target, _ in edges(graph):
            one, other = tasks.task_of[source], tasks.task_of[target]
            assert one == other or tasks.stratum[one] < tasks.stratum[other]
        for task in range(tasks.count):
            mine = tasks.members[tasks.starts[task] : tasks.starts[task + 1]].tolist()
            assert mine == sorted(mine)
            assert all(tasks.task_of[unit] == task for unit in mine)


def test_chains_that_wait_for_each_other_become_one() -> None:
    # Row 0 is made from row 1, and row 1 from row 0.
    graph = link(units_of([{0: set(), 1: set()}, {0: {1}, 1: {0}}, {2: set()}]))
    tasks = chain_tasks(graph)
    assert tasks.cycles == 1
    assert tasks.count == 2
    assert plain_chains(graph).count == 3


def test_the_figures_of_a_small_graph() -> None:
    graph = link(units_of([{0: set(), 1: set()}, {0: set(), 1: {0}}, {0: None, 2: {0}}]))
    figures = measure(graph, unit_tasks(graph), chain_tasks(graph))
    assert (figures.transactions, figures.operations, figures.rows) == (3, 6, 5)
    assert (figures.temporal, figures.parametric, figures.logical) == (2, 2, 2)
    assert (figures.strata, figures.longest_path, figures.widest_stratum) == (3, 3, 2)
    assert figures.longest_chain == 3
    assert figures.ideal_speedup == 5 / 3
    assert "<svg" in figures.svg()


@given(transactions)
def test_no_path_is_longer_than_the_work(batch: list[dict[int, set[int] | None]]) -> None:
    graph = link(units_of(batch))
    for tasks in (unit_tasks(graph), chain_tasks(graph)):
        shape = task_shape(tasks)
        assert shape.strata <= shape.path <= shape.work == graph.units.count
