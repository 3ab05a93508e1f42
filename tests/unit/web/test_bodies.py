"""Bodies: integers of any size, and parameters of a query that arrive as what they were."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import orjson
import pytest

from headgate.errors import InputError
from headgate.web.bodies import read_json, read_parameters, sent_parameters, write_json

ZONE = datetime.timezone(datetime.timedelta(hours=14))
PARAMETERS: list[Any] = [
    *(None, True, False, 0, 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**100),
    *(1.0, -0.0, 1.5, math.inf, -math.inf, 1e300, "", "1.5", "a\0b", "2024-01-01"),
    *(Decimal("1.50"), Decimal("-1E+5"), Decimal("1E-50"), datetime.date(1, 1, 1)),
    *(datetime.datetime(2024, 1, 1, 1, 2, 3, 4), datetime.datetime(1, 1, 1, tzinfo=ZONE)),
    [1, [Decimal("1.5"), None]],
]


@pytest.mark.parametrize("value", PARAMETERS, ids=repr)
def test_a_parameter_arrives_as_what_it_was(value: Any) -> None:
    for parameters in ([value], {"type": value, "value": value}):
        sent = orjson.loads(orjson.dumps(sent_parameters("select ?", parameters)))
        found = read_parameters(sent)
        assert found == parameters and repr(found) == repr(parameters)


def test_what_no_query_takes_over_http_is_refused() -> None:
    for value in (b"x", {"a": 1}, object(), datetime.timedelta(1), datetime.time(1), 1j, [b"x"]):
        with pytest.raises(InputError, match="cannot be a parameter"):
            sent_parameters("select ?", [value])
    assert math.isnan(read_parameters(sent_parameters("select ?", [math.nan]))[0])
    for given in (
        *({}, {"type": "decimal"}, {"type": "decimal", "value": 1}, {"type": 1, "value": "1"}),
        *({"type": "blob", "value": "1"}, {"type": "decimal", "value": "1", "more": 1}),
        *({"type": "decimal", "value": "x"}, {"type": "integer", "value": "9" * 2000}),
        *({"type": "date", "value": "2024-02-30"}, {"type": "integer", "value": "٣"}),
    ):
        with pytest.raises(InputError, match="parameter"):
            read_parameters([given])


def test_integers_of_any_size_are_written_and_read() -> None:
    for number in (0, 2**53 + 1, -(2**63), 2**64, 2**64 + 1, -(10**300)):
        assert read_json(write_json({"n": [number]})) == {"n": [number]}
    assert read_json(b"12345678901234567890.5") == 12345678901234567890.5


def test_numbers_beyond_all_doubles_and_integers_are_read() -> None:
    for text in ("1e400", "-1E+999", "9" * 5000, "1" + "0" * 400 + ".5"):
        found = read_json(b'{"n": [' + text.encode() + b'], "t": "\xc3\xa9"}')
        assert found == {"n": [Decimal(text)], "t": "é"}
        with pytest.raises(InputError, match="beyond all doubles"):
            read_parameters(found["n"])
    assert read_json(b"-1e99999999999999999999999") == Decimal("-Infinity")
    for body in (b"[1e400, NaN]", b'[1e400, "\\ud800"]', "[1e400]".encode("utf-16"), b"[1e400,]"):
        with pytest.raises(InputError, match="not JSON"):
            read_json(body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"NaN", b'"\\ud800"', b"1e4000x", b"9" * 5000 + b"x", b"[" * 2000]
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InputError, match="body"):
        read_json(body)


def test_what_json_has_not_is_not_sent() -> None:
    for value in (object(), "\ud800", {"a": [2**70, object()]}, {1: 2**70, "x": b"x"}):
        with pytest.raises(InputError, match="cannot be sent"):
            write_json(value)
