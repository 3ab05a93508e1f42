"""Routes: every event finds the transaction that a plain dict would give it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

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
