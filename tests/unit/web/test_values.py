"""Values in JSON: what fits a column is read exactly, all else is refused by name."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import InputError
from headgate.state.schema import Schema
from headgate.web.bodies import encode, plain, read_json
from headgate.web.json_values import EventReader, describe, read_key, reader_of, sent_value


def kind(text: str) -> Any:
    return Schema.parse(f"x {text}")["x"].type


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("int", 5.0, 5),
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("double", 1, 1.0),
        ("double", "-Infinity", -math.inf),
        ("float", 3.0e38, 3.0e38),
        ("string", "é\n", "é\n"),
        ("decimal(5,2)", "-999.99", Decimal("-999.99")),
        ("decimal(5,2)", 7, Decimal(7)),
        ("date", "2024-02-29", datetime.date(2024, 2, 29)),
        ("timestamp", "2024-01-01T12:00:00.000001Z",
         datetime.datetime(2024, 1, 1, 12, 0, 0, 1, datetime.UTC)),
        ("timestamp", "2024-01-01T12:00:00+02:00",
         datetime.datetime(2024, 1, 1, 10, tzinfo=datetime.UTC)),
        ("array<bigint>", [1, 2], [1, 2]),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_read(type_: str, value: Any, expected: Any) -> None:
    found = reader_of(kind(type_))(value)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("boolean", [1, "true", []]),
        ("int", ["1", True, [], {}]),
        ("bigint", ["1", True, "", {}]),
        ("double", ["1", True, "nan", []]),
        ("float", [True, "1"]),
        ("string", [1, True, []]),
        ("decimal(5,2)", [0.5, "1e2", "NaN", " 1", "", True, []]),
        ("date", ["2024-02-30", "20240101", 1, "2024-01-01T00:00:00Z"]),
        ("timestamp", ["2024-01-01", "noon", 5, "2024-01-01T12:00:00."]),
        ("array<bigint>", [1, ["1"], [[]], {}]),
    ],
)
def test_a_value_of_another_kind_is_refused(type_: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises((ValueError, OverflowError, ArithmeticError)):
            reader_of(kind(type_))(value)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", 2**31),
        ("int", 1.5),
        ("bigint", 10**30),
        ("double", 2**53 + 1),
        ("double", 2**64 + 1),
        ("float", 10**40),
        ("decimal(5,2)", 1000),
        ("string", "a\0b"),
        ("array<bigint>", [1, None]),
    ],
)
def test_a_value_that_does_not_fit_is_for_the_engine_to_reject(type_: str, value: Any) -> None:
    assert reader_of(kind(type_))(read_json(json.dumps(value).encode())) == value


@given(
    st.one_of(
        st.tuples(st.just("bigint"), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just("double"), st.floats(allow_nan=False)),
        st.tuples(st.just("string"), st.text(st.characters(codec="utf-8"))),
        st.tuples(st.just("decimal(18,6)"), st.decimals(-(10**11), 10**11, places=6)),
        st.tuples(st.just("date"), st.dates()),
        st.tuples(st.just("timestamp"), st.datetimes(timezones=st.just(datetime.UTC))),
    )
)
def test_what_is_written_is_read_back_unchanged(case: tuple[str, Any]) -> None:
    """Both ways: what the client sends is read, and what the server answers is read."""
    import orjson

    type_, value = case
    read = reader_of(kind(type_))
    assert read(orjson.loads(orjson.dumps(sent_value(value)))) == value
    assert read(orjson.loads(encode([plain(value)]))[0]) == value


@hg.transaction(event="id bigint, name string", compiled=False)
def rename(event: Any) -> Any:
    return None


def test_a_body_has_every_column_and_no_other() -> None:
    reader = EventReader(rename)
    assert reader.read({"id": 1, "name": None}) == {"id": 1, "name": None}
    for body, word in [
        ([], "object"),
        ({"id": 1}, "'name' is missing"),
        ({"id": 1, "name": "a", "x": 1}, "no column 'x'"),
        ({"id": "1", "name": "a"}, "'id' should be a bigint"),
    ]:
        with pytest.raises(InputError, match=word):
            reader.read(body)


def test_a_key_is_read_from_an_address() -> None:
    columns = list(Schema.parse("id bigint, day date, code string, flag boolean"))
    given_ = {"id": "-5", "day": "2024-01-01", "code": "a b", "flag": "true"}
    assert read_key(columns, given_) == (-5, datetime.date(2024, 1, 1), "a b", True)
    for wrong in ({"id": "1.0"}, {"id": ""}, {"day": "today"}, {"flag": "1"}, {"id": "9" * 30}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            read_key(columns, {**given_, **wrong})
    with pytest.raises(InputError, match="'flag' is missing"):
        read_key(columns, {"id": "1", "day": "2024-01-01", "code": ""})


def test_every_type_is_described() -> None:
    for type_ in ("boolean", "int", "bigint", "float", "double", "string", "timestamp", "date",
                  "decimal(18,18)", "decimal(9)", "array<string>"):  # fmt: skip
        assert describe(kind(type_))
