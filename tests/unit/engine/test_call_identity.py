"""Which two calls are the same call: those that the engine would give the same event."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg
from headgate.engine.calls.keyed import digest_of

NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.date(2024, 1, 1)
THERE = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


class Clashing:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def noting(kind: str) -> Any:
    @hg.transaction(event=f"v {kind}", compiled=False)
    def note(event):
        pass

    return note


# Values of a column that are different events, or no event at all.
DIFFERENT: list[tuple[str, Any, Any]] = [
    ("double", 2**53, 2**53 + 1),
    ("double", float(2**53), 2**53 + 1),
    ("double", 2**53 + 1, 2**53 + 3),
    ("double", 0.0, -0.0),
    ("double", 1.0, True),
    ("double", 0.1, Decimal("0.1")),
    ("double", 1e300, 10**400),
    ("double", 10**400, 10**401),
    ("float", 2**53, 2**53 + 1),
    ("bigint", 1, True),
    ("bigint", 1, "1"),
    ("bigint", 2**63, str(2**63)),
    ("bigint", 2**63, 2**63 + 1),
    ("bigint", 10**5000, 10**5000 + 1),
    ("bigint", float(2**53), 2**53 + 1),
    ("bigint", 1, Decimal("1.00000000000000000000000000000000000001")),
    ("bigint", 1, 1.5),
    ("bigint", None, "None"),
    ("bigint", 2**63, None),
    ("bigint", 1, None),
    ("boolean", True, 1),
    ("boolean", False, None),
    ("string", "1", 1),
    ("string", "None", None),
    ("string", "a", "a "),
    ("string", "\ud800", "\\ud800"),
    ("decimal(12,2)", Decimal("1.00"), "1.00"),
    ("decimal(12,2)", Decimal("1.00"), Decimal("1.00000000000000000000000000000000000001")),
    ("decimal(12,2)", Decimal("1.001"), Decimal("1.002")),
    ("decimal(12,2)", Decimal("1.00"), True),
    ("decimal(12,2)", 1, 1.0),
    ("timestamp", NOON, pd.Timestamp("2024-01-01T12:00:00.000000001Z")),
    ("timestamp", NOON, np.datetime64("2024-01-01T12:00:00.000000001")),
    ("timestamp", NOON, str(NOON)),
    ("date", DAY, NOON),
    ("array<bigint>", [1, 2], [2, 1]),
    ("array<bigint>", [1], 1),
    ("array<bigint>", [1], [True]),
    ("array<bigint>", [1, None], [1]),
    ("array<bigint>", [2**63, 1], [2**63, 2]),
    ("array<bigint>", [], None),
    ("array<bigint>", np.array([2**63, *range(5000)]), np.array([2**63, *range(4999), 7])),
    ("array<double>", [2**53], [2**53 + 1]),
    ("array<string>", ["ab"], ["a", "b"]),
    ("array<string>", ["a", "b"], "ab"),
    ("array<string>", ["a, b"], ["a", "b"]),
]
# Values that are one event, in whatever type they come.
SAME: list[tuple[str, Any, Any]] = [
    ("double", 2**53, float(2**53)),
    ("double", 5, 5.0),
    ("double", 5.0, np.float64(5)),
    ("double", float("nan"), float("nan")),
    ("bigint", 5, 5.0),
    ("bigint", 5, Decimal("5.00")),
    ("bigint", 5, np.int64(5)),
    ("bigint", 5, pa.scalar(5)),
    ("bigint", None, float("nan")),
    ("string", "a", np.str_("a")),
    ("decimal(12,2)", 5, Decimal("5.00")),
    ("decimal(12,2)", Decimal("5"), Decimal("5.000")),
    ("timestamp", NOON, NOON.astimezone(THERE)),
    ("timestamp", NOON, NOON.replace(tzinfo=None)),
    ("timestamp", NOON, pd.Timestamp(NOON)),
    ("timestamp", NOON, np.datetime64("2024-01-01T12:00:00")),
    ("date", DAY, np.datetime64("2024-01-01")),
    ("array<bigint>", [1, 2], (1, 2)),
    ("array<bigint>", [1, 2], np.array([1, 2])),
    ("array<double>", [1, 2], [1.0, 2.0]),
]


def named(value: Any) -> str | None:
    return hex(value)[:30] if type(value) is int else None


@pytest.mark.parametrize(("kind", "one", "other"), DIFFERENT, ids=named)
def test_another_value_is_another_call(kind: str, one: Any, other: Any) -> None:
    note = noting(kind)
    assert digest_of(note, {"v": one}) != digest_of(note, {"v": other})


@pytest.mark.parametrize(("kind", "one", "other"), SAME, ids=named)
def test_one_value_is_one_call_in_whatever_type_it_comes(kind: str, one: Any, other: Any) -> None:
    note = noting(kind)
    assert digest_of(note, {"v": one}) == digest_of(note, {"v": other})
    with hg.open(None, transactions=[note]) as engine:
        first = engine.call_once("key", note, v=one)
        assert engine.call_once("key", note, v=other) == first
        assert engine.epoch == 1


def test_a_value_that_is_not_exact_is_not_answered_for_the_one_beside_it() -> None:
    note = noting("double")
    with hg.open(None, transactions=[note]) as engine:
        assert engine.call_once("key", note, v=2**53).committed
        with pytest.raises(hg.ConflictError, match="another call"):
            engine.call_once("key", note, v=2**53 + 1)


def test_a_value_that_cannot_be_shown_is_refused_not_answered() -> None:
    note = noting("bigint")
    with hg.open(None, transactions=[note]) as engine:
        assert engine.call_once("key", note, v=1).committed
        with pytest.raises(hg.HeadgateError):
            engine.call_once("key", note, v=Clashing())
        with pytest.raises(hg.HeadgateError):
            engine.call_once("other", note, v=Clashing())


def test_the_digest_of_a_plain_call_stays_what_it_was() -> None:
    """Keys that a store remembers are known to the next version, too."""
    event = "a bigint, b double, c string, d decimal(12,2), e timestamp, f date, g array<bigint>"

    @hg.transaction(event=event, compiled=False)
    def pay(event):
        pass

    given = {"a": 1, "b": 2.5, "c": "x", "d": Decimal("1.10"), "e": NOON, "f": DAY, "g": [1, 2]}
    assert digest_of(pay, given) == "3d2d8841cf2138340f0bdca2d304e2c7"
