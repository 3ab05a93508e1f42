"""Routing: which transaction each event runs: all the same, or by the value of a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import InputError
from headgate.query.store_tables import UNROUTED
from headgate.state.compiled import numba
from headgate.transactions import Transaction, find_route

_FEW = 16  # routes that are compared one by one; more are looked up by Arrow


@dataclass(frozen=True)
class Route:
    """How events find their transaction: all to one, or by the value of a column."""

    transactions: tuple[Transaction, ...]
    values: tuple[Any, ...] = ()
    column: str | None = None
    ticks: tuple[Transaction, ...] = ()  # the last of them: the engine makes their events

    @property
    def taking(self) -> tuple[Transaction, ...]:
        """The transactions that events of the stream run."""
        return self.transactions[: len(self.transactions) - len(self.ticks)]

    def with_ticks(self, ticks: tuple[Transaction, ...]) -> Route:
        return replace(self, transactions=(*self.transactions, *ticks), ticks=ticks)


def make_route(transactions: Any, known: Mapping[str, Transaction], route_by: Any) -> Route:
    found = find_route(transactions, known)
    if isinstance(found, Transaction):
        if route_by is not None:
            raise InputError("route_by goes with a dict of transactions: {value: transaction}")
        return Route((found,))
    if not found:
        raise InputError("the dict of transactions is empty; hand in {value: transaction}")
    if not isinstance(route_by, str):
        told = "" if route_by is None else f", not {route_by!r}"
        raise InputError(f"a dict of transactions needs route_by, the column with its keys{told}")
    if UNROUTED in known:
        raise InputError(
            f"a transaction is called {UNROUTED!r}, as is the stream of events that no route "
            "takes; rename it"
        )
    return Route(tuple(dict.fromkeys(found.values())), tuple(found.items()), route_by)


class Routing:
    """The numbers of the transactions by the values that lead to them.

    >>> Routing(["pay", "refund"], [1, 0]).numbers(pa.array(["refund", "pay", "else", None]))
    array([ 0,  1, -1, -1])
    """

    def __init__(self, values: Sequence[Any], numbers: Sequence[int]) -> None:
        self._values = list(values)
        self._given = list(numbers)
        self._routes: dict[pa.DataType, _Routes | None] = {}

    def numbers(self, column: pa.Array) -> np.ndarray:
        """By event: the number of its transaction, -1 where no route has its value."""
        if pa.types.is_dictionary(column.type):
            return self._of_words(column)
        column, (routes, numbers) = self._comparable(column)
        is_plain = pa.types.is_integer(column.type) and not column.null_count
        if is_plain and len(routes) <= _FEW and not routes.null_count:
            matched: np.ndarray = _match(_view(column), _view(routes), numbers)
            return matched
        found = pc.index_in(column, routes)
        if found.null_count:
            found = found.fill_null(len(routes))
        return numbers.take(_view(found))

    def check(self, kind: pa.DataType, name: str) -> None:
        """Refuse a column that no event could be routed by, whatever it holds."""
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not pa.types.is_null(kind) and self._routes_as(kind) is None:
            words = ", ".join(map(repr, self._values))
            raise InputError(
                f"route_by: column {name!r} is {kind}, and none of the routes is one: {words}; "
                "cast it before it reaches Headgate"
            )

    def _of_words(self, column: pa.DictionaryArray) -> np.ndarray:
        """Only the words that occur are compared, and each event takes what its word has."""
        found = np.append(self.numbers(column.dictionary), np.int64(-1))
        places = column.indices
        if places.null_count:
            places = places.cast(pa.int64()).fill_null(len(found) - 1)
        return found.take(_view(places))

    def _comparable(self, column: pa.Array) -> tuple[pa.Array, _Routes]:
        """The column and the routes in one type; where there is none, both as texts."""
        kind = column.type
        if pa.types.is_null(kind):
            column, kind = column.cast(pa.string()), pa.string()
        if kind not in self._routes:
            self._routes[kind] = self._routes_as(kind)
        routes = self._routes[kind]
        if routes is not None:
            return column, routes
        if pa.types.is_nested(kind):
            raise InputError(
                f"route_by: the column is {kind}; cast it to a text or a number before it "
                "reaches Headgate"
            )
        texts = pa.array([str(value) for value in self._values])
        return column.cast(pa.string()), _Routes(texts, np.array([*self._given, -1], np.int64))

    def _routes_as(self, kind: pa.DataType) -> _Routes | None:
        """The routes that a column of this type can hold, those of its very type first."""
        found = []
        for value, number in zip(self._values, self._given, strict=True):
            scalar = None if pa.types.is_nested(kind) else _as_kind(value, kind)
            if scalar is not None:
                found.append((not _is_of(value, kind), scalar, number))
        if not found:
            return None
        found.sort(key=lambda one: one[0])
        values = pa.array([scalar.as_py() for _, scalar, _ in found], kind)
        return _Routes(values, np.array([*(number for _, _, number in found), -1], np.int64))


class _Routes(NamedTuple):
    """Routes as values of one type, the number of the transaction behind each, and -1 at last."""

    values: pa.Array
    numbers: np.ndarray


def _as_kind(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """A route as a value of a column's type; None where it can be none.

    Python's True is no number here, and no number is True.
    """
    if isinstance(value, bool) and _is_text(kind):
        value = str(value).lower()  # as SQL writes it
    is_told_apart = isinstance(value, bool) or pa.types.is_boolean(kind)
    if is_told_apart and not _is_of(value, kind) and not isinstance(value, str):
        return None
    try:
        # Arrow casts an integer to a decimal of many digits only.
        if isinstance(value, int) and pa.types.is_decimal(kind):
            return pa.scalar(Decimal(value), kind)
        return pa.scalar(value).cast(kind)
    except (pa.ArrowException, OverflowError, TypeError):
        return None


def _is_of(value: Any, kind: pa.DataType) -> bool:
    """Whether a route is of a column's very type, so that it goes before one that is only cast."""
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, str):
        return _is_text(kind)
    if isinstance(value, int):
        return bool(pa.types.is_integer(kind))
    return bool(pa.types.is_floating(kind)) if isinstance(value, float) else value is None


def _is_text(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(kind) for is_kind in kinds)


def _view(array: pa.Array) -> np.ndarray:
    """The values of an integer array without nulls, not copied."""
    found: np.ndarray = array.to_numpy(zero_copy_only=True)
    return found


@numba.njit(cache=True, nogil=True)
def _match(values: np.ndarray, routes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """One pass for each route, which the compiler makes vector code of."""
    out = np.full(len(values), np.int64(-1))
    for place in range(len(routes) - 1, -1, -1):  # of two equal ones the first counts
        value, number = routes[place], numbers[place]
        for row in range(len(values)):
            out[row] = number if values[row] == value else out[row]
    return out
