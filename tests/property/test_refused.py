"""What cannot be compiled in a scheme runs serially, says why, and stops nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.execution import program
from headgate.kernels import building, in_place, over_versions, protocols, shares
from headgate.parallel import scheduler, whole_transactions
from headgate.testing import SerialOracle, difference, results_difference
from tests.property.seeding import plant

jars = hg.Table("jars", "id bigint, n bigint", key="id")


@hg.transaction(event="ts bigint, a bigint, b bigint")
def pour(event, a=jars.at("a"), b=jars.at("b"), out=hg.output("left bigint")):
    a.n -= 1
    b.n += 1
    out.left = a.n


WAYS = {"shares": shares, "transactions": in_place, "units": over_versions, "protocols": protocols}


def broken(way: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A kernel in which one function is called with a word too few."""
    name = {"units": "attempt_unit", "shares": "run_block"}.get(way, "attempt")
    return lambda patch: plant(patch, WAYS[way], name, f"def {name}(", f"def {name}(unheard, ")


def events(seed: int, count: int = 200) -> pa.Table:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 8, (2, count))
    return pa.table({"ts": np.arange(count), "a": keys[0], "b": keys[1]})


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kernels that are compiled, in turn; nothing is taken from those built before."""
    found: list[Any] = []
    real = scheduler.compile_first

    def noted(one: Any) -> None:
        found.append(one)
        real(one)

    monkeypatch.setattr(scheduler, "compile_first", noted)
    monkeypatch.setattr(program, "build_kernel", building.build_kernel)
    for name in ("build_unit_kernels", "build_transaction_kernels", "build_protocol_kernels"):
        monkeypatch.setattr(scheduler, name, getattr(building, name))
    return found


def run_three(scheme: str, isolation: str = "PL4", cost_ns: float | None = None) -> list[Any]:
    """Three batches beside the oracle, then a call; returns the decisions."""
    oracle = SerialOracle([jars], [pour])
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        for one in (engine, oracle):
            one.load(jars, [{"id": number, "n": 5} for number in range(7)])
        for seed in range(3):
            for made in engine._executors.values():
                made.scheduler.cost_ns = cost_ns
            batch = events(seed)
            options = {"scheme": scheme, "threads": 2, "isolation": isolation}
            found = engine.run(pour, batch, order_by="ts", **options)
            wanted = oracle.run(pour, batch.to_pylist(), order_by="ts")
            assert results_difference(found, wanted) is None
            assert difference(engine, oracle) is None
        assert engine.call(pour, ts=1, a=1, b=2).committed
        return list(engine.decisions())


CASES = {
    "shares": "shares",
    "strata": "transactions", "depth": "transactions", "ready": "transactions",
    "lal": "transactions", "pat": "transactions",
    "ready-operation-eager": "units", "strata-chain-lazy": "units", "tstream": "units",
    "lwm": "units", "lock": "protocols",
    "timestamp": "protocols",
}  # fmt: skip


@pytest.mark.parametrize("scheme", CASES)
def test_a_scheme_that_cannot_be_compiled_runs_serially(
    scheme: str, monkeypatch: pytest.MonkeyPatch, attempts: list[Any]
) -> None:
    broken(CASES[scheme])(monkeypatch)
    decisions = run_three(scheme)
    assert [decision.scheme for decision in decisions] == ["serial"] * 3
    for decision in decisions:
        assert decision.why.startswith(scheme)
        assert " cannot be compiled for these transactions: TypingError: " in decision.why
    assert len(attempts) == len(set(attempts))  # tried once, not with every batch


@pytest.mark.parametrize("isolation", ["PL1", "PL2", "PL3"])
@pytest.mark.parametrize("scheme", ["lock", "timestamp", "auto"])
def test_serial_keeps_every_level(
    scheme: str, isolation: str, monkeypatch: pytest.MonkeyPatch, attempts: list[Any]
) -> None:
    broken("protocols")(monkeypatch)
    decisions = run_three(scheme, isolation, cost_ns=500_000.0)
    refused = [one for one in decisions if "cannot be compiled" in one.why]
    assert len(refused) == 3
    assert len(attempts) == len(set(attempts))


def test_the_model_goes_on_without_what_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch, attempts: list[Any]
) -> None:
    broken("transactions")(monkeypatch)
    broken("units")(monkeypatch)
    decisions = run_three("auto", cost_ns=500_000.0)
    assert "cannot be compiled for these transactions" in decisions[-1].why
    assert decisions[-1].scheme == "serial"
    assert len(attempts) == len(set(attempts))


@pytest.mark.parametrize("writers", [("transactions",), ("transactions", "units")])
def test_the_model_builds_no_graph_for_what_it_cannot_have(
    writers: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, attempts: list[Any]
) -> None:
    built: list[str] = []
    real_graph, real_batch = whole_transactions.build_graph, scheduler.UnitBatch

    def graph(*given: Any) -> Any:
        built.append("transactions")
        return real_graph(*given)

    def batch(*given: Any) -> Any:
        built.append("operations")
        return real_batch(*given)

    monkeypatch.setattr(whole_transactions, "build_graph", graph)
    monkeypatch.setattr(scheduler, "UnitBatch", batch)
    for writer in writers:
        broken(writer)(monkeypatch)
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        engine.load(jars, [{"id": number, "n": 5} for number in range(400)])
        wide = np.arange(400)
        table = pa.table({"ts": wide, "a": wide, "b": wide})  # no two share a row
        for _ in range(5):
            for made in engine._executors.values():
                made.scheduler.cost_ns = 500_000.0
            engine.run(pour, table, order_by="ts", threads=2)
        decisions = list(engine.decisions())
    assert built.count("transactions") == 1 and built.count("operations") <= 1
    assert decisions[-1].scheme == "serial"
    assert "cannot be compiled for these transactions" in decisions[-1].why


def test_the_model_does_without_single_operations(
    monkeypatch: pytest.MonkeyPatch, attempts: list[Any]
) -> None:
    """Where the graph of operations itself has no kernel, that of transactions decides."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError("not this one")

    monkeypatch.setattr(scheduler, "build_unit_kernels", refuse)
    decisions = run_three("auto", cost_ns=500_000.0)
    assert any("single operations do not compile: NotImpl" in one.why for one in decisions)
    with hg.open(None, tables=[jars], transactions=[pour]) as engine:
        with pytest.raises(hg.InputError, match="the graph of operations cannot be compiled"):
            engine.explain(pour, events(1), order_by="ts")
        assert engine.call(pour, ts=1, a=1, b=2).reason == "missing key: jars"
