"""A server gives the answers of its engine: the same values, the same outcomes, the same errors."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import headgate as hg
from tests.web.bank import open_bank
from tests.web.conftest import Running

FITS: dict[str, Any] = {
    "code": "same",
    "day": datetime.date(2024, 2, 29),
    "flag": True,
    "small": 1,
    "price": Decimal("1.50"),
    "weight": 0.5,
    "size": 1.5,
    "seen": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "counts": [1],
}
EARLY = datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=14)))
CHANGES: list[tuple[str, Any]] = [
    *(("size", value) for value in (2**53, 2**53 + 1, 2**64, 2**64 + 1, -(10**300), math.inf)),
    *(("small", value) for value in (2**31 - 1, 2**31, 1.0, 1.5, 10**40, None)),
    *(("counts", value) for value in ([2**63], [1.5], [None], [], [2**62, 1e18], None)),
    *(("price", value) for value in (10**10, 10**9, Decimal("0.001"), Decimal("0.010"))),
    *(("code", value) for value in ("a\0b", "\0", "é", "")),
    *(("weight", 2**70 + 1), ("seen", EARLY)),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[hg.Engine]:
    with open_bank(None) as found:
        yield found


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_call_has_the_outcome_that_the_engine_gives(
    server: Running, engine: hg.Engine, change: tuple[str, Any]
) -> None:
    event = {**FITS, change[0]: change[1]}
    with server.client() as client:
        found, expected = client.call("note", **event), engine.call("note", **event)
        assert (found.outcome, found.reason) == (expected.outcome, expected.reason)
        if found.committed:
            key = event["code"], event["day"]
            assert client.get("things", key) == engine.get("things", key)


def test_a_value_of_another_kind_is_no_event(server: Running) -> None:
    with server.client() as client:
        for name, value in (("size", "1"), ("small", True), ("counts", 1), ("code", 5)):
            with pytest.raises(hg.InputError, match=rf"{name}.*\(400\)"):
                client.call("note", **{**FITS, name: value})


def test_parameters_of_a_query_are_what_they_were(server: Running, engine: hg.Engine) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
    values: list[Any] = [
        *(1, 2**40, 2**63, 2**64, -(2**100), 1.5, math.inf, True, "x", "1.5", "a\0b", None),
        *(Decimal("1.50"), Decimal("9"), Decimal("1E+5"), datetime.date(2024, 1, 1)),
        *(datetime.datetime(2024, 1, 1, 1), datetime.datetime(2024, 1, 1, 1, tzinfo=zone)),
        [1, 2],
    ]
    asked: list[tuple[str, Any]] = [("select ?, typeof(?)", [value, value]) for value in values]
    asked += [
        ("select ? * 2", [Decimal("1.5")]),
        ("select ? > ?", [Decimal("9"), Decimal("10")]),
        ("select isnan(?)", [math.nan]),
        ("select $day + 1", {"day": datetime.date(2024, 2, 28)}),
    ]
    with server.client() as client:
        for query, parameters in asked:
            found, expected = client.sql(query, parameters), engine.sql(query, parameters)
            assert found.rows() == expected.rows(), parameters
            assert found.arrow().schema == expected.arrow().schema, parameters
        for wrong in (b"x", {"a": 1}, object(), datetime.timedelta(1), "\ud800"):
            with pytest.raises(hg.InputError):
                client.sql("select ?", [wrong])


def test_no_text_makes_a_client_fail_otherwise_than_in_words(server: Running) -> None:
    with server.client() as client:
        for attempt in (
            lambda: client.get("things", ("\ud800", datetime.date(2024, 1, 1))),
            lambda: client.get("things", ("x" * 70_000, datetime.date(2024, 1, 1))),
            lambda: next(client.follow("\ud800")),
            lambda: next(client.follow(after="\ud800")),
            lambda: client.call("\ud800"),
            lambda: client.call("note", **{**FITS, "code": "\ud800"}),
            lambda: client.sql("\ud800"),
        ):
            with pytest.raises(hg.InputError):
                attempt()
        client.sql("select ?", [EARLY])


def test_an_address_that_is_not_utf8_is_refused(server: Running) -> None:
    with server.http() as http:
        for query in ("code=%ff&day=2024-01-01", "code=%ed%a0%80&day=2024-01-01"):
            answer = http.get(f"/tables/things/row?{query}")
            assert answer.status_code == 400 and "UTF-8" in answer.json()["error"]["message"]
