"""Compiled, plain and the oracle: one outcome where numbers leave what they fit into."""

from __future__ import annotations

import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, results_difference

GREAT = 2**63 - 1


class Kind(enum.IntEnum):
    ONE = 1
    HUGE = 2**62

    def twice(self) -> int:
        return int(self) * 2


PAIR = (Kind.ONE, Kind.HUGE)
anchor = hg.Table("anchor", "id bigint, n bigint", key="id")
EVENT = "id bigint, n bigint, d decimal(18,2), e decimal(9,4)"
OUT = hg.output("n bigint, b boolean, d decimal(18,2), x double")


def right(event, row=anchor.at("id"), out=OUT):
    out.n = event.n + Kind.ONE - 1


def left(event, row=anchor.at("id"), out=OUT):
    out.n = Kind.ONE + event.n - 1


def product(event, row=anchor.at("id"), out=OUT):
    out.n = event.n * Kind.HUGE


def both(event, row=anchor.at("id"), out=OUT):
    out.n = Kind.HUGE + Kind.HUGE - Kind.HUGE


def members(event, row=anchor.at("id"), out=OUT):
    out.n = Kind.ONE.value + PAIR[1] - Kind.HUGE + event.n % 7
    out.b = event.n in PAIR or event.n == Kind.ONE
    out.x = event.n / Kind.HUGE


def added(event, row=anchor.at("id"), out=OUT):
    total = event.d
    for _ in range(100):
        total = total + total
    out.b = total > 0


def multiplied(event, row=anchor.at("id"), out=OUT):
    total = event.d
    for _ in range(60):
        total = total + total
    out.b = total * event.d > 0


def there_and_back(event, row=anchor.at("id"), out=OUT):
    total = event.d * event.d
    for _ in range(20):
        total = total + total
    out.d = total - total


def other_scale(event, row=anchor.at("id"), out=OUT):
    total = event.d
    for _ in range(66):
        total = total + total
    out.b = total > event.e
    out.d = total * hg.decimal("0") + event.e


def constants(event, row=anchor.at("id"), out=OUT):
    out.d = (event.d + hg.decimal("1E+3")) * hg.decimal("0.05") - hg.decimal("2")
    out.b = -event.d < abs(event.e)


FUNCTIONS: list[Callable[..., Any]] = [
    right, left, product, both, members, added, multiplied, there_and_back, other_scale, constants,
]  # fmt: skip
NUMBERS = [0, 1, 2, 3, -1, -2, 2**62, GREAT, GREAT - 1, -GREAT, -GREAT - 1]
DECIMALS = ["0", "0.01", "-0.01", "3", "9999999999999999.99", "-9999999999999999.99", "12345678.9"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_an_outcome_is_the_same_compiled_and_plain(function: Callable[..., Any]) -> None:
    values = [(n, Decimal("1"), Decimal("1")) for n in NUMBERS]
    values += [(1, Decimal(d), Decimal(e)) for d in DECIMALS for e in ("0", "-99999.9999", "7.5")]
    events = [
        {"id": 1, "n": n, "d": d.quantize(Decimal("0.01")), "e": e.quantize(Decimal("0.0001"))}
        for n, d, e in values
    ]
    found = []
    for compiled in (True, False):
        transaction = hg.transaction(event=EVENT, compiled=compiled)(function)
        with hg.open(None, tables=[anchor], transactions=[transaction]) as engine:
            engine.load(anchor, [{"id": 1, "n": 0}])
            found.append(engine.run(transaction, events))
        oracle = SerialOracle([anchor])
        oracle.load(anchor, [{"id": 1, "n": 0}])
        expected = oracle.run(transaction, events)
        assert results_difference(found[-1], expected) is None
    assert found[0].equals(found[1])
    outcomes = set(found[0].column("outcome").to_pylist())
    assert outcomes <= {"committed", "aborted"}
    assert "aborted" in outcomes or function in (members, constants, other_scale)


def test_a_plain_function_sees_the_rest_of_an_enumeration() -> None:
    def uses(event, row=anchor.at("id"), out=OUT):
        out.n = sum(int(one) for one in Kind) - Kind(2**62) + len(Kind) + Kind.ONE.twice()
        out.b = isinstance(Kind.ONE, Kind) and Kind["ONE"].name == "ONE" and 1 in Kind

    plain = hg.transaction(event=EVENT, compiled=False)(uses)
    with hg.open(None, tables=[anchor], transactions=[plain]) as engine:
        engine.load(anchor, [{"id": 1, "n": 0}])
        result = engine.call(plain, id=1, n=1, d=Decimal(1), e=Decimal(1))
        assert (result.reason, result.n, result.b) == (None, 5, True)
