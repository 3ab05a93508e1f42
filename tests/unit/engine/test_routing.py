"""Routes: every event finds the transaction that a plain dict would give it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.engine.routing import Routing

MANY = {value: value % 3 for value in range(40)}


def check(routes: dict[Any, int], column: pa.Array) -> None:
    expected = [routes.get(value, -1) for value in column.to_pylist()]
    found = Routing(list(routes), list(routes.values())).numbers(column)
    assert found.dtype == np.int64
    assert found.tolist() == expected


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("routes", [{1: 0}, {3: 2, 1: 0, 0: 1}, MANY])
def test_integers_of_every_width(bits: int, routes: dict[int, int]) -> None:
    values = np.random.default_rng(bits).integers(0, 50, 500)
    check(routes, pa.array(values.astype(f"i{bits // 8}")))
    check(routes, pa.array(values.astype(f"u{bits // 8}")))


def test_nulls_have_no_route() -> None:
    check({1: 0, 2: 1}, pa.array([1, None, 2, 3]))
    check({"a": 0, "b": 1}, pa.array(["b", None, "a", "c"]))
    check({"a": 0}, pa.array([None, None], pa.null()))


def test_words_are_compared_once() -> None:
    column = pa.array(["b", "a", None, "c", "a"]).dictionary_encode()
    check({"a": 0, "b": 1}, column)
    check({"a": 0, "b": 1}, column.slice(1, 3))
    check({7: 1}, pa.array([7, 8, None]).dictionary_encode())


def test_a_slice_is_not_the_whole() -> None:
    check({1: 0, 2: 1}, pa.array([9, 1, 2, 9]).slice(1, 2))
    check({"a": 0, "b": 1}, pa.array(["x", "b", "a", "x"]).slice(1, 2))


def test_other_types() -> None:
    check({True: 1, False: 0}, pa.array([False, True, None]))
    check({1.5: 1, 2.0: 0}, pa.array([2.0, 1.5, 0.0]))


def test_routes_of_another_type_are_compared_as_texts() -> None:
    """A file of numbers may come as texts, and the other way round."""
    assert Routing([1, 2], [0, 1]).numbers(pa.array(["2", "1", "x"])).tolist() == [1, 0, -1]
    assert Routing(["1", "b"], [0, 1]).numbers(pa.array([1, 2])).tolist() == [0, -1]
    assert Routing([300], [0]).numbers(pa.array([1, 44], pa.int8())).tolist() == [-1, -1]


def test_of_two_routes_with_one_text_the_first_counts() -> None:
    assert Routing(["1", 1], [1, 0]).numbers(pa.array(["1"])).tolist() == [1]
    assert Routing([" 1".strip(), "1"], [1, 0]).numbers(pa.array([1])).tolist() == [1]


def test_no_events() -> None:
    assert Routing([1], [0]).numbers(pa.array([], pa.int64())).tolist() == []
    assert Routing(["a"], [0]).numbers(pa.array([], pa.string())).tolist() == []


@pytest.mark.parametrize(
    ("routes", "value", "number"),
    [
        ([True, "a"], True, 0),
        ([True, 2], True, 0),
        ([2, True], True, 1),
        ([1.0, "a"], 1.0, 0),
        ([True, "True"], "True", 1),
        ([True, "x"], "true", 0),
        ([1, "1"], "1", 1),
        (["1", 1], 1, 1),
        ([True, 2], 1, -1),
        ([1, True], 1, 0),
        ([None, 1], 1, 1),
        ([None, 1], None, 0),
        ([2**70, 1], 1, 1),
    ],
)
def test_a_route_of_the_very_type_goes_before_one_that_only_looks_alike(
    routes: list[Any], value: Any, number: int
) -> None:
    for column in (pa.array([value]), pa.array([value, value])):
        if pa.types.is_null(column.type):
            column = column.cast(pa.int64())
        found = Routing(routes, list(range(len(routes)))).numbers(column)
        assert found.tolist() == [number] * len(column)


def test_routes_that_no_column_of_the_type_can_hold_are_told() -> None:
    for routes, kind in (([True], pa.int64()), ([2**70], pa.int64()), ([1], pa.bool_())):
        with pytest.raises(hg.InputError, match="none of the routes is one"):
            Routing(routes, [0]).check(kind, "kind")
    decimals = pa.array([1], pa.decimal128(5, 2))
    assert Routing([1, "z"], [0, 1]).numbers(decimals).tolist() == [0]
