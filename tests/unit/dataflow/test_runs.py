"""Runs of batches say what a dict of them, number by number, says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.dataflow.runs import BatchRun, Stamps, among, apart, joined, numbered

STREAM = hg.Stream("votes", "v bigint")
# By batch: how many rows it has, in one or several pieces; None: it was aborted.
BATCHES = st.lists(
    st.one_of(st.none(), st.lists(st.integers(1, 3), max_size=2)), min_size=1, max_size=7
)


def runs_of(batches: list[Any], cuts: list[bool]) -> tuple[list[BatchRun], dict[int, Any]]:
    """The batches as runs, some of them joined; and as a dict of the values of their rows."""
    pieces, model, value = list[BatchRun](), dict[int, Any](), 0
    for number, counts in enumerate(batches, 1):
        model[number] = None if counts is None else []
        if counts is None:
            pieces.append(BatchRun.of_marks(STREAM, number))
        for count in counts or ():
            values = list(range(value, value + count))
            model[number] += values
            value += count
            pieces.append(BatchRun.of_one(pa.table({"v": values}, STREAM.schema.arrow), number))
    runs: list[BatchRun] = []
    for piece, is_apart in zip(pieces, cuts, strict=False):
        runs = [*runs, piece] if is_apart or not runs else [*runs[:-1], joined([runs[-1], piece])]
    return runs, model


def values_of(runs: list[BatchRun]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for run in runs:
        for number, rows in apart(run.rows, run.numbers):
            values = rows.column("v").to_pylist()
            if number < 0:
                assert -number not in found and values == [None]
                found[-number] = None
            else:
                found[number] = found.get(number, []) + values
    return found


@given(
    BATCHES, st.lists(st.booleans(), min_size=14, max_size=14), st.integers(0, 8), st.integers(0, 8)
)
def test_batches_are_found_by_their_numbers(
    batches: list[Any], cuts: list[bool], first: int, last: int
) -> None:
    runs, model = runs_of(batches, cuts)
    found = among(runs, first, last)
    wanted = {number: rows for number, rows in model.items() if first <= number <= last}
    assert values_of(found) == {number: rows for number, rows in wanted.items() if rows != []}
    assert any(run.has_marks for run in found) == (None in wanted.values())
    logged = numbered(STREAM, found)
    assert (logged is None) == (not found)
    if logged is not None:
        assert values_of([BatchRun.of_log(logged)]) == values_of(found)
        assert np.array_equal(joined(found).keys, np.abs(joined(found).numbers))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6), st.data())
def test_stamps_are_those_of_a_dict(noted: list[tuple[int, int]], data: Any) -> None:
    stamps, model, number = Stamps(), dict[int, int](), 1
    for count, value in noted:
        stamps.put(range(number, number + count), value)
        model |= dict.fromkeys(range(number, number + count), value)
        number += count + data.draw(st.integers(0, 1))  # some are noted nowhere
    floor, first = data.draw(st.integers(0, number)), data.draw(st.integers(1, number))
    stamps.drop(floor)
    for one in range(floor + 1, number + 2):
        assert stamps.get(one, -1) == model.get(one, -1)
    begin, end = max(first, floor + 1), number + 1
    assert stamps.total(begin, end, 100) == sum(model.get(n, 100) for n in range(begin, end + 1))
