"""A small run of the benchmark of computed keys: every way does the same, and is told of."""

from __future__ import annotations

import pytest

from bench import access


@pytest.mark.parametrize("hot", [None, 8])
def test_every_way_runs_the_same_events(hot: int | None) -> None:
    mover = access.computed if hot is None else access.moving
    found = access.measure("small", mover, hot, 2, rows=500, events=300, shares=(0.2, 1.0))
    assert list(found.found) == [0.2, 1.0]
    ways = [*access.WAYS.values(), *([access.GIVEN] if hot is None else [])]
    assert list(found.found[0.2]) == ways
    assert found.ratio(0.2, ways[0], ways[0]) == 1.0
    assert "100%" in access.lines(found)[-1]


def test_virtual_operations_of_every_row_do_the_same() -> None:
    small = {"rows": 500, "events": 60, "shares": (0.2,), "schemes": access.ROW_BY_ROW}
    found = access.measure("row by row", access.computed, None, 2, **small)
    assert list(found.found[0.2]) == list(access.ROW_BY_ROW.values())


def test_figures_of_ways_that_differ_are_refused() -> None:
    engines = {name: access.open_states(rows, [access.named]) for name, rows in
               {"one": 10, "other": 20}.items()}  # fmt: skip
    with pytest.raises(RuntimeError, match="did not do the same"):
        access.check_same(engines)
