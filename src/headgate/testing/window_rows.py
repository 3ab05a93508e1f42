"""Rows of a window: what the oracle has for its aggregates, by looking at every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from headgate.dataflow.aggregates import Aggregate, Aggregates


def aggregated(declared: Aggregates, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """The aggregates of rows, by group, in the order of the first row of each; OverflowError where
    a sum is no bigint."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {} if declared.by else {(): []}
    for row in rows:
        groups.setdefault(tuple(row[one.name] for one in declared.by), []).append(row)
    found = [
        {
            **dict(zip((one.name for one in declared.by), key, strict=True)),
            **{one.name: _of(one, mine) for one in declared.items},
        }
        for key, mine in groups.items()
    ]
    return pa.Table.from_pylist(found, declared.schema)


def _of(one: Aggregate, rows: Sequence[Mapping[str, Any]]) -> Any:
    if one.column is None:
        return len(rows)
    name = one.column.name
    values = [row[name] for row in rows if row[name] is not None]
    if one.function == "count":
        return len(values)
    if not values:
        return None
    if one.function in ("min", "max"):
        choose = min if one.function == "min" else max
        return choose(values, key=lambda value: (value != value, value))  # NaN is the greatest
    if one.column.type.kind in ("float", "double"):
        total = _float_sum(values)
        return total if one.function == "sum" else total / len(values)
    if one.function == "sum":
        if one.column.type.kind == "decimal":
            return sum(values, Decimal(0))
        if not -(2**63) <= sum(values) < 2**63:
            raise OverflowError(f"out of range: {one.text}")
        return sum(values)
    return float(sum(map(Fraction, values), Fraction(0)) / len(values))


def _float_sum(values: Sequence[float]) -> float:
    """The sum as it is, rounded once."""
    odd = [value for value in values if not math.isfinite(value)]
    if odd:
        return sum(odd)
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf
