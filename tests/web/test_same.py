"""A server gives the answers of its engine: the same values, the same outcomes, the same errors."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import shown
from headgate.web.bodies import plain
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
    *(("size", value) for value in (10**400, -(10**400), 10**5000, math.nan)),
    *(("small", value) for value in (10**400, 10**5000, math.inf, -math.inf, math.nan)),
    *(
        ("small", Decimal(text))
        for text in ("5", "5.00", "1.5", "5E+2", "1E+400", "NaN", "Infinity")
    ),
    *(("small", value) for value in (np.int64(7), np.float64(7), pa.scalar(7), 2.0**40)),
    *(("price", value) for value in (10**400, 10**5000, math.nan, np.int32(7))),
    *(("price", Decimal(text)) for text in ("1E+5", "1E-7", "1E+400", "-Infinity", "NaN", "-0")),
    ("price", Decimal("1." + "0" * 2000)),
    *(("counts", value) for value in ([Decimal(3)], [Decimal("3.5")], [math.nan], [10**400])),
    ("counts", np.array([1, 2])),
    *(("code", value) for value in (math.nan, None, np.str_("x"))),
    *(("seen", np.datetime64(text)) for text in ("2024-01-01T12:00", "2024-01-01T12", "NaT")),
    *(("seen", np.datetime64(f"2024-01-01T12:00:00.{text}")) for text in ("123", "000000000")),
    ("seen", np.datetime64("2024-01-01T12:00:00.000000001")),
    ("seen", pd.Timestamp("2024-01-01T12:00:00.000000001Z")),
    ("seen", pd.Timestamp("2024-01-01T12:00:00.000001")),
    *(("seen", value) for value in (pd.NaT, math.nan)),
    *(("day", value) for value in (np.datetime64("2024-01-02"), pd.NaT)),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[hg.Engine]:
    with open_bank(None) as found:
        yield found


def named(change: tuple[str, Any]) -> str:
    return f"{change[0]} {type(change[1]).__name__} {shown(change[1])[:40]}"


@pytest.mark.parametrize("change", CHANGES, ids=named)
def test_a_call_has_the_outcome_that_the_engine_gives(
    server: Running, engine: hg.Engine, change: tuple[str, Any]
) -> None:
    event = {**FITS, change[0]: change[1]}
    with server.client() as client:
        found, expected = client.call("note", **event), engine.call("note", **event)
        assert (found.outcome, found.reason) == (expected.outcome, expected.reason)
        if found.committed and isinstance(event["code"], str):
            key = event["code"], event["day"]
            assert repr(client.get("things", key)) == repr(engine.get("things", key))


NO_EVENTS: list[tuple[str, Any]] = [
    *(("size", "1"), ("small", True), ("counts", 1), ("code", 5)),
    *(("size", Decimal("1.5")), ("size", Decimal(1)), ("small", "5"), ("price", 1.5)),
    *(("price", math.inf), ("code", math.inf), ("code", Decimal(1))),
    *(("seen", math.inf), ("seen", Decimal(1)), ("flag", math.inf), ("flag", 1)),
    *(("seen", np.datetime64("2024-01")), ("day", np.datetime64("2024-01-01T12:00:00"))),
]
# As JSON has them: a column, what is sent, why it is rejected.
WRITTEN = [
    ("small", "1" + "0" * 400, "out of range"),
    ("small", "9" * 5000, "out of range"),
    ("small", "1e400", "out of range"),
    ("small", "-1E+99999999999999999999999", "out of range"),
    ("size", "1" + "0" * 400, "out of range"),
    ("size", "9" * 5000, "out of range"),
    ("size", "1e400", "out of range"),
    ("size", "-1e400", "out of range"),
    ("weight", "1e400", "out of range"),
    ("price", "1" + "0" * 400, "out of range"),
    ("price", "9" * 5000, "out of range"),
    ("price", '"' + "9" * 5000 + '"', "out of range"),
    ("counts", "[1, 1e400]", "out of range"),
    ("seen", '"2024-01-01T12:00:00.0000001Z"', "not exact"),
    ("seen", '"2024-01-01T12:00:00.123456789+05:30"', "not exact"),
    ("seen", '"1066-10-14T09:00:00.1234567"', "not exact"),
    ("seen", '"9999-12-31T23:59:59.99999999Z"', "not exact"),
    ("seen", '"0001-01-01T00:00:00.00000001+14:00"', "not exact"),
]


def test_a_value_of_another_kind_is_no_event(server: Running, engine: hg.Engine) -> None:
    with server.client() as client:
        for name, value in NO_EVENTS:
            with pytest.raises(hg.InputError, match=rf"{name}.*\(400\)"):
                client.call("note", **{**FITS, name: value})
            with pytest.raises(hg.InputError, match=name):
                engine.call("note", **{**FITS, name: value})


@pytest.mark.parametrize(("column", "text", "reason"), WRITTEN)
def test_a_number_or_a_time_that_no_column_holds_is_its_events_rejection(
    server: Running, column: str, text: str, reason: str
) -> None:
    """As others write them, whose JSON has no bounds."""
    body = orjson.loads(
        orjson.dumps({name: plain(value) for name, value in FITS.items()}, default=str)
    )
    body["seen"] = "2024-01-01T00:00:00Z"
    rest = orjson.dumps({name: value for name, value in body.items() if name != column}).decode()
    with server.http() as http:
        sent = f'{{"{column}": {text}, {rest[1:]}'
        headers = {"content-type": "application/json"}
        answer = http.post("/transactions/note", content=sent, headers=headers)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["outcome"], found["reason"]) == ("rejected", f"{reason}: {column}")


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
