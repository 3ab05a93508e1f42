"""Routed transactions of every form share their kernels, and every scheme gives the oracle's bytes.

One that names a row, one that names several, one that makes them, and one with more words than are
put back by their names: what each of them calls is linked into the kernels of all.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property.test_wide import OTHERS, TRANSACTIONS, WAYS

SCHEMES = ("auto", *TRANSACTIONS, "ready-operation-eager", "strata-chain-lazy", *OTHERS)
# One for each kernel that the transactions are linked into; how threads go through it is another's.
KERNELS = (*WAYS, "strata", "pat", "lwm")
ROWS = 30
EVENTS = 120

pots = hg.Table("pots", "id bigint, n bigint", key="id", check="n < 400")
wide = hg.Table(
    "wide", "id bigint, " + ", ".join(f"c{place} bigint" for place in range(9)), key="id"
)
EVENT = "id bigint, other bigint, ids array<bigint>"


@hg.transaction(event=EVENT)
def one(event, pot=pots.at("id")):
    if event.other == 3:
        return hg.abort("three")
    pot.n += event.other


@hg.transaction(event=EVENT)
def several(event, found=pots.each("ids")):
    for pot in found:
        pot.n += 1
        if pot.n % 7 == 0:
            return hg.abort("seven")


@hg.transaction(event=EVENT)
def made(event, found=pots.each("ids", create=True), pot=pots.at("id")):
    for each in found:
        each.n += pot.n % 5
    pot.n //= event.other


@hg.transaction(event=EVENT)
def many(event, row=wide.at("id"), other=wide.at("other")):
    row.c0 += 1
    row.c1 += other.c8
    row.c2, row.c3, row.c4 = row.c1, row.c2, row.c3
    other.c5, other.c6 = row.c0, other.c7 - 1
    other.c7 += row.c4
    other.c8 = row.c0 // event.other


ROUTES = {"one": one, "several": several, "made": made, "many": many}


def events(seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "kind": chance.choice(list(ROUTES)),
            "id": chance.randrange(ROWS + 1),
            "other": chance.randrange(5),
            "ids": [chance.randrange(ROWS + 2) for _ in range(chance.randrange(4))],
        }
        for _ in range(EVENTS)
    ]


def rows() -> dict[str, list[dict[str, Any]]]:
    blank = {f"c{place}": place for place in range(9)}
    return {
        "pots": [{"id": place, "n": place} for place in range(ROWS)],
        "wide": [{"id": place, **blank} for place in range(ROWS)],
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("long")
        metafunc.parametrize("any_scheme", SCHEMES if is_long else KERNELS)


def test_routed_transactions_of_every_form_give_the_oracles_bytes(any_scheme: str) -> None:
    scheme = any_scheme
    oracle = SerialOracle([pots, wide], list(ROUTES.values()))
    with hg.open(None, tables=[pots, wide], transactions=list(ROUTES.values())) as engine:
        for name, first in rows().items():
            oracle.load(name, first)
            engine.load(name, first)
        for seed in range(3):
            wanted = oracle.run(ROUTES, events(seed), route_by="kind")
            found = engine.run(ROUTES, events(seed), route_by="kind", scheme=scheme, threads=2)
            assert results_difference(found, wanted) is None
        assert difference(engine, oracle) is None
        chosen = engine.decisions()
        assert not any("compile" in decision.why for decision in chosen), chosen
