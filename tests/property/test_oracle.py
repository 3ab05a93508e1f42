"""The judge judged: the oracle by cases worked out by hand, the comparison by differences."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from headgate.testing.scalars import Int64, same, single

DAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
box = hg.Table("box", "id int, n bigint DEFAULT 5, due decimal(5,2)", key="id", check="n >= 0")


@hg.transaction(event="ts timestamp, id int, n bigint", compiled=False)
def take(event, row=box.at("id"), out=hg.output("left_over bigint")):
    if event.n == 3:
        return hg.abort("three")
    row.n -= event.n
    out.left_over = row.n


@hg.transaction(event="id int, gone boolean", compiled=False)
def turn(event, row=box.at("id", create=True), same_row=box.at("id", create=True)):
    row.n += 1
    row.due = same_row.n * hg.decimal("0.125")
    if event.gone:
        hg.delete(same_row)


def at(second: int) -> datetime.datetime:
    return DAY + datetime.timedelta(seconds=second)


def event(second: int, n: int | None, key: int | None = 1) -> dict[str, Any]:
    return {"ts": at(second), "id": key, "n": n}


def told(results: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["outcome"], row["reason"], row.get("left_over")) for row in results]


def filled(n: int = 10) -> SerialOracle:
    oracle = SerialOracle([box], [take, turn])
    assert oracle.load(box, [{"id": 1, "n": n, "due": decimal.Decimal(0)}]) == 1
    return oracle


def test_events_run_in_order_and_an_abort_leaves_nothing() -> None:
    oracle = filled()
    found = oracle.run(take, [event(5, 4), event(1, 3), event(2, 8), event(2, 5)], order_by="ts")
    assert told(found) == [
        ("aborted", "three", None),
        ("committed", None, 2),
        ("aborted", "check failed: box: n >= 0", None),
        ("aborted", "check failed: box: n >= 0", None),
    ]
    assert [row["ts"] for row in found] == [at(1), at(2), at(2), at(5)]
    assert [(row["epoch"], row["position"]) for row in found] == [(2, 0), (2, 1), (2, 2), (2, 3)]
    assert oracle.table("box") == [{"id": 1, "n": 2, "due": decimal.Decimal("0.00")}]


@pytest.mark.parametrize("order_by", ["ts, n", "ts,`n`", ["ts", "n"], ("ts", "`n`")])
def test_the_oracle_takes_order_columns_in_the_forms_of_the_engine(order_by: Any) -> None:
    oracle, events = filled(), [event(1, 4), event(1, 2), event(0, 1)]
    with hg.open(None, tables=[box], transactions=[take]) as engine:
        engine.load(box, [{"id": 1, "n": 10, "due": decimal.Decimal(0)}])
        expected = oracle.run(take, events, order_by=order_by)
        assert [row["n"] for row in expected] == [1, 2, 4]
        found = engine.run(take, events, order_by=order_by)
        assert results_difference(found, expected) is None
        for one in (engine, oracle):
            with pytest.raises(hg.InputError, match="no event column 'm'; the columns are: ts"):
                one.run(take, events, order_by="ts, m")


def test_malformed_events_come_last_in_the_order_they_arrived() -> None:
    oracle = filled()
    events = [
        event(9, None),
        event(1, 1, 7),
        event(0, 1, None),
        event(2, 1),
        event(0, 2**31, 2**31),
    ]
    assert told(oracle.run(take, events)) == [
        ("aborted", "missing key: box", None),
        ("committed", None, 9),
        ("rejected", "null value: n", None),
        ("rejected", "null key: id", None),
        ("rejected", "out of range: id", None),
    ]


def test_a_row_comes_goes_and_comes_again_with_its_defaults() -> None:
    oracle = SerialOracle([box])
    steps = [(7, False), (7, False), (7, True), (7, False), (8, True)]
    found = oracle.run(turn, [{"id": key, "gone": gone} for key, gone in steps])
    assert {row["outcome"] for row in found} == {"committed"}
    # 5 + 1, rounded half up: 0.75 stays, 0.875 would be 0.88.
    assert oracle.table("box") == [{"id": 7, "n": 6, "due": decimal.Decimal("0.75")}]


def test_the_watermark_holds_back_and_lates_are_told() -> None:
    oracle, options = filled(), {"order_by": "ts", "watermark": "2 seconds"}
    assert oracle.run(take, [event(5, 1), event(1, 1)], **options) != []
    assert told(oracle.run(take, [event(2, 1), event(3, 1)], **options)) == [
        ("late", "late: ts is before the watermark", None)
    ]
    ran = oracle.run(take, [event(8, 1)], **options)
    assert [row["ts"] for row in ran] == [at(3), at(5)]
    assert [row["ts"] for row in oracle.flush(take, **options)] == [at(8)]
    assert oracle.flush(take, **options) == []


def test_late_events_run_last_when_they_are_appended() -> None:
    oracle = filled()
    options = {"order_by": "ts", "watermark": "0 seconds", "late": "append"}
    oracle.run(take, [event(9, 1)], **options)
    found = oracle.run(take, [event(2, 1), event(10, 1), event(1, 1)], **options)
    assert [row["ts"] for row in found] == [at(9), at(1), at(2)]


def test_routes_are_told_when_they_lead_nowhere() -> None:
    oracle = filled()
    events = [
        {**event(0, 1), "kind": kind, "gone": False} for kind in ("take", None, "fly", "turn")
    ]
    found = oracle.run({"take": take, "turn": turn}, events, route_by="kind")
    assert [(row["transaction"], row["reason"]) for row in found] == [
        ("take", None),
        ("turn", None),
        (None, "null route: kind"),
        (None, "unknown route: fly"),
    ]


def test_what_a_function_raises_is_a_reason() -> None:
    @hg.transaction(event="id int, n bigint", compiled=False)
    def fail(event, row=box.at("id")):
        row.n = 2**62
        row.n = row.n * event.n // 0 if event.n < 4 else row.n * event.n

    found = filled().run(fail, [{"id": 1, "n": n} for n in (1, 4)])
    assert [row["reason"] for row in found] == [
        "error: ZeroDivisionError: division by zero",
        "error: OverflowError: overflow",
    ]


def test_a_load_is_judged_whole_and_happens_once() -> None:
    oracle, row = SerialOracle([box]), {"id": 1, "n": 1, "due": decimal.Decimal(1)}
    for bad in ([row, row], [row, {**row, "id": 2, "n": -1}]):
        with pytest.raises(ValueError, match=r"two rows have the key|fails the check"):
            oracle.load(box, bad)
    assert (oracle.epoch, oracle.load(box, [row]), oracle.load(box, [{**row, "id": 2}])) == (
        0,
        1,
        0,
    )


# --- scalars --------------------------------------------------------------------------------------


@given(one=st.integers(-(2**63), 2**63 - 1), other=st.integers(-(2**63), 2**63 - 1))
def test_an_integer_of_64_bits_is_exact_or_raises(one: int, other: int) -> None:
    for operation in ("__add__", "__sub__", "__mul__", "__radd__", "__rsub__", "__rmul__"):
        exact = getattr(one, operation)(other)
        if -(2**63) <= exact < 2**63:
            assert getattr(Int64(one), operation)(other) == exact
        else:
            with pytest.raises(OverflowError):
                getattr(Int64(one), operation)(other)


def test_a_float_of_32_bits_is_the_nearest_or_there_is_none() -> None:
    assert single(0.1) == 0.10000000149011612
    assert (single(math.inf), single(-math.inf)) == (math.inf, -math.inf)
    for number in (1e300, -1e300, 2.0**128 - 2.0**103):
        with pytest.raises(OverflowError):
            single(number)
    assert math.copysign(1, single(-0.0)) == -1 and math.isnan(single(math.nan))


def test_the_same_is_the_same_bytes() -> None:
    assert same(math.nan, math.nan) and same(decimal.Decimal("1.0"), decimal.Decimal("1.00"))
    for one, other in ((0.0, -0.0), (1, True), ("a", None), (None, 0)):
        assert not same(one, other)


# --- the comparison -------------------------------------------------------------------------------


def test_the_first_difference_of_results_is_said_in_words() -> None:
    row = {"position": 0, "outcome": "committed", "n": 1}
    assert results_difference([row], [dict(row)]) is None
    assert results_difference([row], [{**row, "n": 2}]) == "result 0: n is 1, the oracle says 2"
    assert results_difference([row], [row, row]) == "there are 1 results, the oracle has 2"
    assert "the columns are position, outcome, n" in str(results_difference([row], [{"n": 1}]))


def test_the_first_difference_of_tables_is_said_in_words() -> None:
    def compared(*rows: tuple[int, int]) -> str | None:
        engine = hg.open(None, tables=[box])
        engine.load(box, [{"id": key, "n": n, "due": decimal.Decimal(0)} for key, n in rows])
        return difference(engine, filled())

    assert compared((1, 10)) is None
    assert compared((1, 11)) == "table box: row id=1: n is 11, the oracle says 10"
    assert compared((2, 10)) == "table box: the row id=1 is missing"
    assert compared((1, 10), (2, 10)) == "table box: the oracle has no row id=2"
    assert difference(hg.open(None, tables=[box]), filled()) == (
        "the engine is at epoch 0, the oracle at 1"
    )
