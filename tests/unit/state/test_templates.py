"""Templates: a function over other pieces is the same code but for their names, or made anew."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
from numba.core import types as numba_types

from headgate.state import templates
from headgate.state.compiled import kernel_of, linked
from headgate.state.templates import templated

WORD = numba_types.int64


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_templates", {})


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that a template served for."""
    found: list[str] = []
    before = templates._renamed

    def noting(template: Any, pieces: Any, function: Any) -> Any:
        found.append(function.__name__)
        return before(template, pieces, function)

    monkeypatch.setattr(templates, "_renamed", noting)
    return found


def summed(count: int) -> int:
    total = 0
    for number in range(count):
        total += piece(number) * FACTOR  # noqa: F821
    return total


def over(function: Any, **space: Any) -> Any:
    """The function over these globals, as a template may serve for it."""
    return templated(types.FunctionType(function.__code__, {**space, "__name__": __name__}))


def called(body: Any, value: int) -> int:
    def entry(count: int) -> Any:
        return body(count)

    return int(kernel_of(entry, is_kept=False)(value))


@linked
def twice(number: int) -> int:
    return 2 * number


@linked
def square(number: int) -> int:
    return number * number


@linked
def half(number: int) -> float:
    return number / 2


def test_a_function_over_another_piece_calls_that_piece(renamed: list[str]) -> None:
    assert called(over(summed, piece=twice, FACTOR=1), 5) == 20
    assert renamed == []
    assert called(over(summed, piece=square, FACTOR=1), 5) == 30
    assert renamed == ["summed"]
    assert called(over(summed, piece=twice, FACTOR=1), 5) == 20  # both are there at once


def test_a_template_of_a_template_is_one_again(renamed: list[str]) -> None:
    inner = [over(summed, piece=one, FACTOR=1) for one in (twice, square)]
    outer = [called(over(summed, piece=one, FACTOR=3), 4) for one in inner]
    assert outer == [3 * (0 + 0 + 2 + 6), 3 * (0 + 0 + 1 + 5)]
    assert renamed == ["summed", "summed"]


@pytest.mark.parametrize(
    "space",
    [{"piece": twice, "FACTOR": 2}, {"piece": half, "FACTOR": 1}, {"piece": twice, "FACTOR": True}],
    ids=["another constant", "another type", "another kind of constant"],
)
def test_what_numba_would_make_otherwise_is_made_by_numba(
    space: dict[str, Any], renamed: list[str]
) -> None:
    called(over(summed, piece=twice, FACTOR=1), 5)
    assert called(over(summed, **space), 5) == sum(
        space["piece"].py_func(number) * space["FACTOR"] for number in range(5)
    )
    assert renamed == []


def test_a_function_that_raises_does_so_over_other_pieces(renamed: list[str]) -> None:
    @linked
    def refusing(number: int) -> int:
        if number > 2:
            raise OverflowError
        return number

    assert called(over(summed, piece=square, FACTOR=1), 3) == 5
    assert called(over(summed, piece=refusing, FACTOR=1), 3) == 3
    with pytest.raises(OverflowError):
        called(over(summed, piece=refusing, FACTOR=1), 4)
    assert renamed == ["summed", "summed"]


def test_the_values_behind_names_live_as_long_as_the_template() -> None:
    over(summed, piece=twice, FACTOR=1).compile((WORD,))
    (template,) = templates._templates.values()
    assert twice in template.kept


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "TEMPLATES_MAX", 2)
    for factor in range(4):
        over(summed, piece=twice, FACTOR=factor).compile((WORD,))
    factors = [dict((one[0], one[-1]) for one in key[-1]) for key in templates._templates]
    assert [one["FACTOR"] for one in factors] == [2, 3]


def added(count: int) -> int:
    return one(count) + other(count)  # noqa: F821


@pytest.mark.parametrize(
    ("first", "second"),
    [((twice, twice), (twice, square)), ((twice, square), (square, square))],
    ids=["one function, then two", "two functions, then one"],
)
def test_two_names_of_one_function_are_not_those_of_two(
    first: tuple[Any, Any], second: tuple[Any, Any], renamed: list[str]
) -> None:
    for one, other in (first, second):
        wanted = one.py_func(5) + other.py_func(5)
        assert called(over(added, one=one, other=other), 5) == wanted
    assert renamed == []
    assert called(over(added, one=square, other=twice), 5) == 35
    assert renamed == ["added"]  # of the pair of two


def test_a_piece_that_is_called_without_a_name_too_is_left_to_numba(
    monkeypatch: pytest.MonkeyPatch, renamed: list[str]
) -> None:
    called(over(summed, piece=twice, FACTOR=1), 5)
    (key,) = templates._templates
    square.compile((WORD,))
    symbol = square.overloads[(WORD,)].fndesc.mangled_name
    template = templates._templates[key]
    widened = dataclasses.replace(template, symbols=template.symbols | {symbol})
    monkeypatch.setitem(templates._templates, key, widened)
    assert called(over(summed, piece=square, FACTOR=1), 5) == 30
    assert renamed == []
