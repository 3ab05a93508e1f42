"""Nulls inside transactions: compiled, as plain Python and in the oracle one outcome, one row.

A None where a value is needed aborts with one reason; all else that Python lets one do with None is
done, and a variable behind a test for None is a value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing.oracle import SerialOracle
from headgate.testing.scalars import same

NONE = "error: TypeError: None where a value is needed"
EVENT = (
    "id bigint, a bigint NULL, b bigint NULL, f double NULL, d decimal(9,2) NULL, s string NULL, "
    "o boolean NULL, ks array<bigint>"
)
OUT = "x bigint NULL, y double NULL, z string NULL, w boolean NULL, v bigint"

rows = hg.Table(
    "rows",
    "id bigint, n bigint, m bigint NULL, d decimal(9,2) NULL, s string NULL, o boolean NULL "
    "DEFAULT true, t timestamp NULL DEFAULT timestamp '2024-01-01 00:00:00'",
    key="id",
)
FORMS: list[Callable[..., Any]] = []


def form(function: Callable[..., Any]) -> Callable[..., Any]:
    FORMS.append(function)
    return function


def larger(one, other):
    if one is None:
        return other
    if other is None:
        return one
    return one if one > other else other


@form
def behind_a_test(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    x = event.a
    if x is not None:
        for step in range(x):
            row.n += step
    found = larger(event.a, event.b)
    row.m = found
    out.y = float(found) if found is not None else None


@form
def the_largest(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    top = None
    for key in event.ks:
        if top is None or key > top:
            top = key
    out.x = top
    row.n = 0 if top is None else top


@form
def early_return(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    a, b = event.a, event.b
    if a is None or b is None:
        return hg.abort("none")
    pair = a, b
    out.w = pair == (1, 2)
    row.n = max(a, b) if pair[1] else min(a, b, 3)


@form
def truth(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    out.x = (event.a or 0) + (event.b if event.b else 7)
    out.w = event.a in (1, 2)
    if not event.s:
        out.z = "empty"
    elif event.s == "x" and event.a != event.b:
        out.z = event.s
    if event.f or event.d or event.o:
        out.y = event.f
    while row.m is None:
        row.m = 3


@form
def equality(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    out.w = event.a == event.b
    out.v = int(event.s == None) + 2 * int(event.d != None)  # noqa: E711
    row.o = event.a == 1


@form
def arithmetic(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    row.n += event.a * 2 - event.b
    row.d = event.d + 1
    out.y = event.f / 2.0 + abs(event.a)


@form
def order(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    out.w = event.a < event.b
    row.n = max(event.a, event.b)


@form
def order_of_texts(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    row.s = row.s or "k"
    out.z = max(event.s, row.s)
    row.s = min("m", event.s, "z", out.z)
    out.v = len(max(row.s, "a"))


@form
def first_text(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    row.s = event.s
    out.z = min((row.s for key in event.ks if key > 1), default="none")


@form
def parts_of_texts(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    out.w = event.s.startswith("") and row.n == 0
    row.n += int("text".endswith(event.s))


@form
def into_what_is_never_null(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    row.n = event.a
    out.v = event.b


@form
def set_back(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    out.z = row.s
    row.s = event.s
    row.d = event.d
    row.o = event.o
    if event.a == 2:
        row.s = None
        row.o = None
        row.t = None
        out.z = None


@form
def undone(event, row=rows.at("id", create=True), out=hg.output(OUT)):
    out.x = row.m
    out.z = row.s
    row.m = event.a
    row.s = event.s
    if event.o:
        return hg.abort("it stays as it was")


def _events() -> list[dict[str, Any]]:
    values = itertools.product(
        [None, 0, 1, 2], [None, 0, 2], [None, 0.0, 1.5], [None, decimal.Decimal("1.25")],
        [None, "", "x"], [None, False, True],
    )  # fmt: skip
    return [
        dict(zip("abfdso", one, strict=True), id=place % 5, ks=[4, 9, 2][: place % 4])
        for place, one in enumerate(values)
    ]


def _same(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    return len(got) == len(wanted) and all(map(same, got, wanted))


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("function", FORMS, ids=lambda one: one.__name__)
def test_none_means_what_it_means_in_python(function: Any, compiled: bool) -> None:
    transaction = hg.transaction(event=EVENT, compiled=compiled)(function)
    events, oracle = _events(), SerialOracle([rows], [transaction])
    wanted = oracle.run(transaction, events)
    with hg.open(None, tables=[rows], transactions=[transaction]) as engine:
        assert _same(engine.run(transaction, events).to_pylist(), wanted)
        assert _same(engine.sql("from rows order by id").arrow().to_pylist(), oracle.table("rows"))
        for row in oracle.table("rows"):
            assert same(engine.get("rows", row["id"]), row)


@pytest.mark.parametrize("function", [
    arithmetic, order, order_of_texts, parts_of_texts, into_what_is_never_null
])  # fmt: skip
def test_none_where_a_value_is_needed_has_one_reason(function: Any) -> None:
    transaction = hg.transaction(event=EVENT)(function)
    with hg.open(None, tables=[rows], transactions=[transaction]) as engine:
        found = engine.run(transaction, _events()).column("reason").to_pylist()
    assert set(found) == {None, NONE}


def test_a_created_row_has_none_unless_a_default_is_given() -> None:
    @hg.transaction(event="id bigint")
    def touch(event, row=rows.at("id", create=True)):
        row.n = 1

    with hg.open(None, tables=[rows], transactions=[touch]) as engine:
        engine.call(touch, id=1)
        engine.load("rows", [{"id": 2, "n": 0, "o": None}], mode="missing")
        start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
        made = {"id": 1, "n": 1, "m": None, "d": None, "s": None, "o": True, "t": start}
        assert engine.get("rows", 1) == made
        assert engine.get("rows", 2) == {**made, "id": 2, "n": 0, "o": None}


def test_a_column_that_is_not_nullable_rejects_null_as_before() -> None:
    @hg.transaction(event="id bigint, a bigint, b bigint NULL")
    def put(event, row=rows.at("id", create=True)):
        row.m = event.b

    with hg.open(None, tables=[rows], transactions=[put]) as engine:
        found = engine.run(put, [{"id": 1, "a": None, "b": None}, {"id": 1, "a": 1, "b": None}])
        assert found.column("reason").to_pylist() == [None, "null value: a"]  # these come last
        with pytest.raises(hg.InputError, match="the value in row 0 is null"):
            engine.load("rows", [{"id": 7, "n": None}], mode="missing")


def test_the_validity_of_a_slice_of_arrow_is_read_where_it_stands() -> None:
    @hg.transaction(event="ts bigint, id bigint, a bigint NULL, s string NULL")
    def put(event, row=rows.at("id", create=True), out=hg.output("a bigint NULL, s string NULL")):
        out.a = event.a
        out.s = event.s

    numbers = [None if place % 3 else place for place in range(50)]
    texts = [None if place % 5 else str(place) for place in range(50)]
    table = pa.table({"ts": range(50), "id": [1] * 50, "a": numbers, "s": texts})
    with hg.open(None, tables=[rows], transactions=[put]) as engine:
        for first in range(11):
            found = engine.run(put, table.slice(first), order_by="ts")
            assert found.column("a").to_pylist() == numbers[first:]
            assert found.column("s").to_pylist() == texts[first:]
