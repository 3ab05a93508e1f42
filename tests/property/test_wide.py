"""However many tables and parameters a transaction has, every scheme gives the oracle's bytes.

Shapes, schemes and threads are gone through together: a few fixed seeds by default, many with
`--long`. A batch that a scheme hands to the serial kernel must say so, and none may say that a
kernel could not be compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import shapes

pytestmark = pytest.mark.timeout(900)  # on a busy machine compiling takes long

TRANSACTIONS = ("serial", "shares", "strata", "depth", "ready", "lal", "pat")
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
PROMISED = ("auto", *SCHEMES)  # all that give the bytes of the serial one
# One for each way to run a transaction: in the tables, in shares of them, over versions by
# operations and by chains, under each protocol. How threads go through the tasks is the same text
# whatever the tasks are, and is proved over the widest shape, by all schemes.
WAYS = (
    "auto", "serial", "shares", "ready", "ready-operation-lazy", "ready-chain-eager", "lock",
    "timestamp",
)  # fmt: skip
BATCHES = 3
EVENTS = 40
COSTLY_NS = 500_000.0  # as if a transaction took so long: the model then plans
WIDEST = (1, shapes.TABLES_MAX, shapes.PARAMETERS_MAX, False, 1)
SEED = 2  # of a random shape, which some of the schemes run
MIDDLE = (4, 5)  # its tables and parameters: what is proved of any shape need not be the widest
LONG_SEEDS = range(100, 160)  # with --long, each by all of them


@functools.cache
def shape_of(
    seed: int,
    tables: int | None = None,
    parameters: int | None = None,
    constrained: bool = False,
    routes: int | None = None,
    computed: float = 0.0,
) -> shapes.Shape:
    return shapes.make_shape(seed, tables, parameters, constrained, routes, computed=computed)


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
    options = {"order_by": "ts", "route_by": "kind", "updates": updates}
    with opened(shape) as engine:
        for events, wanted in zip(all_events(shape), results, strict=True):
            for executor in engine._executors.values():
                executor.scheduler.cost_ns = COSTLY_NS
            found = engine.run(shape.routes, events, scheme=scheme, threads=threads, **options)
            assert results_difference(found, wanted) is None, f"{scheme} on {threads} threads"
        assert difference(engine, oracle) is None, f"{scheme} on {threads} threads"
        decisions = engine.decisions()
    for decision in decisions:
        assert "compile" not in decision.why
    return decisions


def opened(shape: shapes.Shape) -> hg.Engine:
    engine = hg.open(None, tables=shape.tables, transactions=list(shape.routes.values()))
    for table, rows in shapes.make_rows(5, shape).items():
        engine.load(table, rows)
    return engine


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_widest_shape_runs_in_every_scheme(scheme: str) -> None:
    shape = shape_of(*WIDEST)
    assert shape.widths == [(shapes.TABLES_MAX, shapes.PARAMETERS_MAX)]
    for threads in (1, 2, 3):
        check(shape, scheme, threads)


def test_the_widest_shape_has_what_makes_it_hard() -> None:
    (signature,) = (one.signature for one in shape_of(*WIDEST).routes.values())
    modes = {(one.form, one.create, one.read_only) for one in signature.accesses}
    assert signature.output is not None
    assert {form for form, _, _ in modes} == {"at", "each"}
    assert {create for _, create, _ in modes} == {True, False}
    results = [row for batch in expected(shape_of(*WIDEST), False)[1] for row in batch]
    reasons = {row["reason"] for row in results}
    assert {None, "early", "late", "missing key: t0"} <= reasons


def test_the_model_plans_the_widest_shape_in_batch_after_batch() -> None:
    decisions = check(shape_of(*WIDEST), "auto", 2)
    assert {one.scheme for one in decisions} - {"serial"}


def test_without_any_order_it_runs_to_its_end() -> None:
    shape = shape_of(*WIDEST)
    with opened(shape) as engine:
        options = {"order_by": "ts", "route_by": "kind", "scheme": "nolock", "threads": 3}
        for events in all_events(shape):
            assert engine.run(shape.routes, events, **options).num_rows == EVENTS


@pytest.mark.parametrize(
    "scheme", ["serial", "auto", "shares", "strata", "pat", "lock", "timestamp", "lwm"]
)
def test_rows_in_between_are_those_of_the_serial_order(scheme: str) -> None:
    check(shape_of(SEED, *MIDDLE), scheme, 2, updates=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "key_seed" in metafunc.fixturenames:
        seeds = (3, 8) if metafunc.config.getoption("long") else (3,)
        metafunc.parametrize("key_seed", seeds)


@pytest.mark.parametrize("scheme", ["serial", "auto", "shares", "ready", "depth-chain", "virtual"])
def test_keys_that_depend_on_rows_are_those_of_the_serial_order(
    scheme: str, key_seed: int, long_run: bool
) -> None:
    seed = key_seed
    shape = shape_of(seed, 3, 6 if long_run else 4, False, 2, 0.6)
    signatures = [one.signature for one in shape.routes.values()]
    assert any(access.is_dynamic for one in signatures for access in one.accesses)
    outcomes = [row["outcome"] for batch in expected(shape, False)[1] for row in batch]
    assert {"committed", "aborted"} <= set(outcomes)
    for threads in (1, 2, 3):
        check(shape, scheme, threads)
    # By default, other schemes are asked for rows in between where no key depends on a row: above.
    if seed == 3 and (long_run or scheme in ("serial", "shares")):
        check(shape, scheme, 2, updates=True)


@pytest.mark.parametrize("scheme", ["serial", "auto"])
def test_constraints_hold_of_rows_that_others_lead_to(scheme: str) -> None:
    shape = shape_of(23, 5, 8, True, 2, 0.5)
    results = [row for batch in expected(shape, False)[1] for row in batch]
    reasons = {str(row["reason"]).split(":")[0] for row in results}
    assert {"unique failed", "reference failed"} & reasons
    check(shape, scheme, 2)


@pytest.mark.parametrize("scheme", ["serial", "auto", "ready", "timestamp", "tstream"])
def test_wide_constraints_hold(scheme: str) -> None:
    shape = shape_of(25, shapes.TABLES_MAX, 10, True, 2)
    results = [row for batch in expected(shape, False)[1] for row in batch]
    reasons = {str(row["reason"]).split(":")[0] for row in results}
    assert {"unique failed", "reference failed"} <= reasons
    check(shape, scheme, 2)


@pytest.mark.parametrize("scheme", ["auto", "strata", "ready-operation-lazy", "tstream", "lock"])
def test_a_routed_set_of_wide_transactions(scheme: str, long_run: bool) -> None:
    # What is compiled grows with both, and here it is three functions at once.
    tables, parameters = (shapes.TABLES_MAX, 6) if long_run else (3, 4)
    check(shape_of(4, tables, parameters, False, 3), scheme, 3)


def test_shapes_by_schemes_by_threads(
    long_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shape after shape by all schemes with --long; one by every other scheme without.

    By default, the widest shape shows every scheme, and several threads.
    """
    if not long_run:
        for place, scheme in enumerate(PROMISED[::2]):
            check(shape_of(SEED, *MIDDLE), scheme, 1 + place % 3, updates=place == 5)
        return
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))  # what is compiled once only
    for seed in LONG_SEEDS:
        computed = 0.4 if seed % 3 == 0 else 0.0
        shape = shapes.make_shape(seed, constrained=seed % 7 == 0, computed=computed)
        for place, scheme in enumerate(PROMISED):
            check(shape, scheme, 1 + (seed + place) % 3, updates=(seed + place) % 11 == 0)
