"""The graph links each row's operations in order and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.parallel.figures import measure_transactions
from headgate.parallel.graph import (
    Graph,
    Operations,
    build_graph,
    number_rows,
    with_every_row,
)

ROWS = 6
touches = st.dictionaries(st.integers(0, ROWS - 1), st.booleans(), max_size=4)


def operations_of(units: list[dict[int, bool]]) -> Operations:
    starts = np.cumsum([0, *(len(unit) for unit in units)]).astype(np.int64)
    rows = np.array([row for unit in units for row in unit], np.int64)
    writes = np.array([int(write) for unit in units for write in unit.values()], np.int64)
    return Operations(starts, rows, writes)


def reaches(graph: Graph, first: int, last: int) -> bool:
    if first == last:
        return True
    span = slice(graph.before_starts[last], graph.before_starts[last + 1])
    return any(reaches(graph, first, int(unit)) for unit in graph.before[span])


def conflict(one: dict[int, bool], other: dict[int, bool]) -> bool:
    return any(one[row] or other[row] for row in one.keys() & other.keys())


@given(st.lists(touches, max_size=8))
def test_two_transactions_with_a_written_row_in_common_have_a_path(
    units: list[dict[int, bool]],
) -> None:
    graph = build_graph(operations_of(units), ROWS)
    for last in range(len(units)):
        for first in range(last):
            if conflict(units[first], units[last]):
                assert reaches(graph, first, last)


@given(st.lists(touches, max_size=8))
def test_an_edge_joins_two_transactions_that_conflict_in_serial_order(
    units: list[dict[int, bool]],
) -> None:
    graph = build_graph(operations_of(units), ROWS)
    for unit in range(len(units)):
        for before in graph.before[graph.before_starts[unit] : graph.before_starts[unit + 1]]:
            assert before < unit
            assert conflict(units[int(before)], units[unit])


@given(st.lists(touches, max_size=12))
def test_a_stratum_is_one_more_than_the_highest_before_it(units: list[dict[int, bool]]) -> None:
    graph = build_graph(operations_of(units), ROWS)
    for unit in range(len(units)):
        span = slice(graph.before_starts[unit], graph.before_starts[unit + 1])
        highest = max((graph.stratum[before] for before in graph.before[span]), default=-1)
        assert graph.stratum[unit] == highest + 1
    assert sorted(graph.by_stratum.tolist()) == list(range(len(units)))


@given(st.lists(touches, max_size=12))
def test_the_two_directions_of_the_graph_agree(units: list[dict[int, bool]]) -> None:
    graph = build_graph(operations_of(units), ROWS)
    backward = {
        (int(before), unit)
        for unit in range(len(units))
        for before in graph.before[graph.before_starts[unit] : graph.before_starts[unit + 1]]
    }
    forward = {
        (unit, int(after))
        for unit in range(len(units))
        for after in graph.after[graph.after_starts[unit] : graph.after_starts[unit + 1]]
    }
    assert backward == forward


def test_rows_are_numbered_by_first_appearance_and_the_scratch_is_left_clean() -> None:
    operations = operations_of([{900: True, 7: False}, {7: True}])
    scratch = np.full(1000, -1, np.int32)
    assert number_rows(operations, scratch) == 2
    assert operations.rows.tolist() == [0, 1, 1]
    assert (scratch == -1).all()


def test_the_figures_of_a_small_graph() -> None:
    units = [{0: True, 1: True}, {2: True}, {0: True, 2: False}, {0: False}]
    operations = operations_of(units)
    shape, skewed = measure_transactions(operations, build_graph(operations, 3), 3)
    assert shape.tasks == 4
    assert shape.edges == 3
    assert shape.strata == 3
    assert shape.widest_stratum == 2
    assert shape.ideal_speedup == 4 / 3
    assert skewed == 1.5


BASES = np.array([0, 4, ROWS], np.int64)  # two tables, which stand for a row each behind the rows


@given(st.lists(st.dictionaries(st.integers(0, ROWS + 1), st.booleans(), max_size=5), max_size=6))
def test_who_may_touch_any_row_of_a_table_touches_each_of_them_once(
    units: list[dict[int, bool]],
) -> None:
    found = with_every_row(operations_of(units), BASES)
    assert found.units == len(units)
    for number, unit in enumerate(units):
        wanted = dict(unit)
        for table in range(2):
            if unit.get(ROWS + table):
                wanted |= dict.fromkeys(range(BASES[table], BASES[table + 1]), True)
        span = slice(found.starts[number], found.starts[number + 1])
        rows, writes = found.rows[span].tolist(), found.writes[span].tolist()
        assert len(rows) == len(wanted)
        assert dict(zip(rows, map(bool, writes), strict=True)) == wanted
