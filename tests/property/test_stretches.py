"""Stretches: threads share the events between those that look into an index that others move."""

from __future__ import annotations

import random
from typing import Any

import pytest

import headgate as hg
from headgate.parallel.scheduler import Scheduler
from headgate.state.ordered import OrderedIndex
from headgate.testing import SerialOracle, difference, results_difference
from tests.property.test_wide import PROMISED

WAYS = ("shares", "ready", "ready-chain-eager")
EVENT = "kind string, src bigint, dst bigint, amount bigint"
accounts = hg.Table(
    "accounts", "id bigint, city bigint, n bigint", key="id", index=["n", "city"], check="n > -900"
)


@hg.transaction(event=EVENT)
def transfer(event, src=accounts.at("src"), dst=accounts.at("dst", create=True)):
    src.n -= event.amount
    dst.n += event.amount
    dst.city = event.amount % 3
    if event.amount == 7:
        hg.delete(src)
    if event.amount == 9:
        return hg.abort("nine")


@hg.transaction(event=EVENT)
def look(
    event,
    rows=accounts.between("src", "dst", index="n"),
    same=accounts.where(city="amount", mode="read"),
    out=hg.output("ids bigint, count bigint"),
):
    for one in rows:
        out.ids = (out.ids * 31 + one.id) % 1_000_003
        one.n += 1
    out.count = len(same)


ROUTES = {"transfer": transfer, "look": look}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("long")
        metafunc.parametrize("any_scheme", PROMISED if is_long else WAYS)


def events(seed: int, every: int, count: int = 300) -> list[dict[str, Any]]:
    """Transfers, and after each so many of them one that looks; at times another one."""
    draw = random.Random(seed)
    return [
        {
            "kind": "look" if n % every == every - 1 or draw.random() < 0.01 else "transfer",
            "src": draw.randrange(40),
            "dst": draw.randrange(40),
            "amount": draw.randrange(12),
        }
        for n in range(count)
    ]


def opened() -> tuple[hg.Engine, SerialOracle]:
    engine = hg.open(None, tables=[accounts], transactions=[transfer, look])
    oracle = SerialOracle([accounts])
    rows = [{"id": one, "city": one % 3, "n": one} for one in range(30)]
    for each in (engine, oracle):
        each.load(accounts, rows)
    return engine, oracle


def differs(engine: hg.Engine, oracle: SerialOracle, given: Any, scheme: str) -> bool:
    expected = oracle.run(ROUTES, given, route_by="kind")
    found = engine.run(ROUTES, given, route_by="kind", scheme=scheme, threads=2)
    return bool(results_difference(found, expected) or difference(engine, oracle))


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few events are worth their threads."""
    monkeypatch.setattr(Scheduler, "_shared_min", lambda self: 20)


def test_a_look_finds_the_rows_as_of_its_turn_by_any_scheme(any_scheme: str) -> None:
    engine, oracle = opened()
    with engine:
        for seed, every in enumerate((90, 60, 1000, 7, 31)):
            assert not differs(engine, oracle, events(seed, every), any_scheme)
            assert engine.counts()["accounts"] > 10, "there are rows to be found"


def test_threads_share_what_is_between_two_looks_and_the_decision_says_so() -> None:
    engine, _ = opened()
    with engine:
        options: Any = {"route_by": "kind", "scheme": "shares", "threads": 2}
        engine.run(ROUTES, events(1, 90), **options)
        said = engine.decisions()[-1]
        assert said.scheme == "shares" and "transactions one after another" in said.why
        engine.run(ROUTES, events(1, 7), **options)
        said = engine.decisions()[-1]
        assert said.scheme == "serial" and "too few events between two that look" in said.why


def test_a_phantom_let_in_between_two_stretches_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> bool:
        engine, oracle = opened()
        with engine:
            return differs(engine, oracle, events(3, 60), "shares")

    assert not found(), "without the bug there is no difference"
    monkeypatch.setattr(OrderedIndex, "note", lambda self, slots: None)
    assert found()
