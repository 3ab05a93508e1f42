"""However many tables and parameters a transaction has, every scheme gives the oracle's bytes.

Shapes, schemes and threads are gone through together: a few fixed seeds by default, many with
`--long`. A batch that a scheme hands to the serial kernel must say so, and none may say that a
kernel could not be compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import shapes

pytestmark = pytest.mark.timeout(900)  # on a busy machine compiling takes long

TRANSACTIONS = ("serial", "strata", "depth", "ready", "lal", "pat")
UNITS = tuple(
    f"{exploration}-{granularity}-{abort}"
    for exploration in ("strata", "depth", "ready")
    for granularity in ("operation", "chain")
    for abort in ("eager", "lazy")
)
OTHERS = (
    "tstream", "tstream-nothing", "tstream-socket", "tstream-static", "lwm", "lock", "timestamp",
)  # fmt: skip
SCHEMES = (*TRANSACTIONS, *UNITS, *OTHERS)
BATCHES = 3
EVENTS = 40
WIDEST = (1, shapes.TABLES_MAX, shapes.PARAMETERS_MAX)
LONG_SEEDS = 60


@functools.cache
def shape_of(
    seed: int, tables: int | None = None, parameters: int | None = None, constrained: bool = False
) -> shapes.Shape:
    return shapes.make_shape(seed, tables, parameters, constrained)


@functools.cache
def expected(shape: shapes.Shape, updates: bool) -> tuple[SerialOracle, list[Any]]:
    """The oracle after all batches, and the results of each."""
    oracle = SerialOracle(shape.tables, list(shape.routes.values()))
    for table, rows in shapes.make_rows(5, shape).items():
        oracle.load(table, rows)
    results = [
        oracle.run(shape.routes, events, order_by="ts", route_by="kind", updates=updates)
        for events in all_events(shape)
    ]
    return oracle, results


def all_events(shape: shapes.Shape) -> list[Any]:
    return [shapes.make_events(seed, shape, EVENTS) for seed in range(BATCHES)]


def check(shape: shapes.Shape, scheme: str, threads: int, updates: bool = False) -> Sequence[Any]:
    """Run all batches by a scheme and compare all there is; returns the engine's decisions."""
    oracle, results = expected(shape, updates)
    transactions = list(shape.routes.values())
    options = {"order_by": "ts", "route_by": "kind", "updates": updates}
    with hg.open(None, tables=shape.tables, transactions=transactions) as engine:
        for table, rows in shapes.make_rows(5, shape).items():
            engine.load(table, rows)
        for events, wanted in zip(all_events(shape), results, strict=True):
            found = engine.run(shape.routes, events, scheme=scheme, threads=threads, **options)
            assert results_difference(found, wanted) is None, scheme
        assert difference(engine, oracle) is None, scheme
        return engine.decisions()


def compiled(decisions: Sequence[Any]) -> bool:
    return not any("compile" in decision.why for decision in decisions)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_widest_shape_runs_in_every_scheme(scheme: str) -> None:
    shape = shape_of(*WIDEST)
    assert shape.widths[0] == (shapes.TABLES_MAX, shapes.PARAMETERS_MAX)
    for threads in (1, 2, 3):
        assert compiled(check(shape, scheme, threads))
