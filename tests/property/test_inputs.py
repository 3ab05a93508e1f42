"""Inputs: columns of every type, with the values at their edges, for every declared type.

What is wrong with one value is its event's rejection and no other's; what is wrong with the type of
a whole column is an InputError that names it; everything else is stored just as it came.
"""

from __future__ import annotations

import decimal
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.state import fitting
from headgate.testing.scalars import same
from tests.property import arriving
from tests.property.arriving import ENCODINGS, SOURCES, TAKES, Given

NUMBERS = itertools.count()
ENGINES: dict[str, tuple[hg.Engine, hg.Transaction]] = {}


def engine_for(declared: str) -> tuple[hg.Engine, hg.Transaction]:
    """An engine that stores what comes in a column of the type and gives it back."""
    if declared not in ENGINES:
        seen = hg.Table("seen", f"n bigint, x {declared}", key="n")

        @hg.transaction(event=f"n bigint, x {declared}", compiled=False)
        def keep(event, row=seen.at("n", create=True), out=hg.output(f"stored {declared}")):
            row.x = event.x
            out.stored = row.x

        ENGINES[declared] = hg.open(None, tables=[seen], transactions=[keep]), keep
    return ENGINES[declared]


def stored(results: pa.Table, column: str) -> list[Any]:
    """A column of the results, times and days as the numbers they are."""
    array = results.column(column).combine_chunks()
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        array = array.cast(pa.int64() if pa.types.is_timestamp(array.type) else pa.int32())
    found: list[Any] = array.to_pylist()
    return found


def check(declared: str, events: Any, expected: list[tuple[str, Any]], ordered: bool) -> None:
    """Run the events; every one must have the outcome, the reason and the value expected of it."""
    engine, keep = engine_for(declared)
    order_by = ["n", "x"] if ordered else None
    before = engine.epoch
    results = engine.run(keep, events, order_by=order_by)
    assert engine.epoch == before + (1 if expected else 0)
    role = "order column" if ordered else "value"
    words = [word.replace("null", f"null {role}") + ": x" if word else None for word, _ in expected]
    wanted = sorted(zip(words, (value for _, value in expected), strict=True), key=is_rejected)
    assert results.column("reason").to_pylist() == [word for word, _ in wanted]
    values = [value for _, value in wanted]
    for column in ("stored", "x") if ordered else ("stored",):
        for one, other in zip(stored(results, column), values, strict=True):
            assert same(one, other), (column, one, other)


def is_rejected(one: tuple[str | None, Any]) -> bool:
    return one[0] is not None


def numbers(count: int) -> list[int]:
    return [next(NUMBERS) for _ in range(count)]


# --- Arrow ----------------------------------------------------------------------------------------


@st.composite
def arrow_columns(draw: st.DrawFn, source: arriving.Source) -> tuple[Any, list[Given]]:
    values = draw(st.lists(source.values | st.just(arriving.NOTHING), max_size=8))
    array = source.array(values)
    cut = draw(st.integers(0, len(values)))
    return arriving.encoded(array, draw(st.sampled_from(ENCODINGS)), cut), values


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=max(20, settings.default.max_examples // 4))
@given(data=st.data())
def test_an_arrow_column_of_any_type(name: str, data: st.DataObject) -> None:
    source = SOURCES[name]
    declared = data.draw(st.sampled_from(sorted(TAKES)))
    column, values = data.draw(arrow_columns(source))
    events = pa.table({"n": pa.array(numbers(len(values)), pa.int64()), "x": column})
    if source.family and source.family not in TAKES[declared]:
        if not values:
            return
        engine, keep = engine_for(declared)
        with pytest.raises(hg.InputError, match=r"events: column 'x': the column is .*says") as no:
            engine.run(keep, events)
        assert f"the declaration says {declared}" in str(no.value)
        return
    expected = [arriving.judged(one, declared) for one in values]
    check(declared, events, expected, data.draw(st.booleans()))


# --- Python values, alone and in pandas -----------------------------------------------------------


@st.composite
def objects(draw: st.DrawFn, declared: str) -> list[Given]:
    """Values of one family mostly, with others among them now and then."""
    families = st.sampled_from([*TAKES[declared], *TAKES[declared], *arriving.OBJECTS])
    one = arriving.OBJECTS[draw(families)] | arriving.MISSING
    if draw(st.sampled_from((False,) * 9 + (True,))):
        one = one | arriving.WRONG
    return draw(st.lists(one, min_size=1, max_size=8))


@pytest.mark.parametrize("declared", sorted(TAKES))
@given(data=st.data())
def test_python_values_of_any_type(declared: str, data: st.DataObject) -> None:
    values = data.draw(objects(declared))
    pairs = zip(numbers(len(values)), values, strict=True)
    events = [{"n": n, "x": one.made} for n, one in pairs]
    check_objects(declared, events, values, data.draw(st.booleans()))


def check_objects(declared: str, events: Any, values: list[Given], ordered: bool) -> None:
    wrong = [not arriving.takes_object(declared, one) for one in values]
    if any(wrong):
        engine, keep = engine_for(declared)
        with pytest.raises(hg.InputError) as refused:
            engine.run(keep, events)
        assert f"column 'x' should be {declared}; in row {wrong.index(True)}" in str(refused.value)
        return
    expected = [arriving.object_judged(one, declared) for one in values]
    check(declared, events, expected, ordered)


@pytest.mark.parametrize("declared", sorted(TAKES))
@given(data=st.data())
def test_python_values_in_a_pandas_frame(declared: str, data: st.DataObject) -> None:
    values = data.draw(objects(declared))
    # What pandas takes for missing is missing, also where a column has NaN.
    values = [Given("", None, one.made) if is_missing(one.made) else one for one in values]
    column = pd.Series([one.made for one in values], dtype=object)
    frame = pd.DataFrame({"n": numbers(len(values)), "x": column})
    check_objects(declared, frame, values, data.draw(st.booleans()))


def is_missing(made: Any) -> bool:
    if isinstance(made, decimal.Decimal):
        return made.is_nan()  # pandas itself cannot say it of a signalling one
    return bool(np.ndim(made) == 0 and not isinstance(made, (dict, set)) and pd.isna(made))


PANDAS: dict[str, tuple[Any, str, list[Any]]] = {
    "ints with NaN": (
        [1.0, math.nan, 2.0**63, 1.5], "bigint", [1, "null", "out of range", "not exact"],
    ),
    "Int64": (pd.array([1, None, 2**40], dtype="Int64"), "int", [1, "null", "out of range"]),
    "UInt64": (pd.array([2**64 - 1, None], dtype="UInt64"), "bigint", ["out of range", "null"]),
    "doubles with NaN": ([0.5, math.nan], "double", [0.5, "null"]),
    "boolean": (pd.array([True, None], dtype="boolean"), "boolean", [True, "null"]),
    "string": (pd.array(["a", None], dtype="string"), "string", ["a", "null"]),
    "category": (pd.Categorical(["a", None, "a"]), "string", ["a", "null", "a"]),
    "category of numbers": (pd.Categorical([7, None]), "int", [7, "null"]),
    "lone surrogates": (["a", "\ud800", None], "string", ["a", "not UTF-8", "null"]),
    "surrogates in a category": (pd.Categorical(["a", "\ud800"]), "string", ["a", "not UTF-8"]),
    "datetime64[ns]": (pd.to_datetime([1001, None, 2000]), "timestamp", ["not exact", "null", 2]),
    "datetime64[s]": (
        np.array([2**62, 3], "datetime64[s]"), "timestamp", ["out of range", 3_000_000],
    ),
    "with a zone": (
        pd.to_datetime([2000]).tz_localize("UTC").tz_convert("Asia/Tokyo"), "timestamp", [2],
    ),
    "arrow": (pd.array([1, None], dtype="int64[pyarrow]"), "int", [1, "null"]),
}  # fmt: skip


@pytest.mark.parametrize("what", PANDAS)
@pytest.mark.parametrize("ordered", [False, True])
def test_a_pandas_column(what: str, ordered: bool) -> None:
    column, declared, answers = PANDAS[what]
    words = ("null", "out of range", "not exact", "not UTF-8")
    expected = [(one, None) if one in words else ("", one) for one in answers]
    frame = pd.DataFrame({"n": numbers(len(answers)), "x": pd.Series(column)})
    check(declared, frame, expected, ordered)


@pytest.mark.parametrize(
    "column",
    [
        pd.to_timedelta([1]),
        pd.period_range("2020", periods=1, freq="D"),
        pd.Series([1j]),
        pd.interval_range(0, 1),
    ],
    ids=lambda column: str(column.dtype),
)
def test_a_pandas_column_that_can_never_fit_is_refused(column: Any) -> None:
    for declared in TAKES:
        engine, keep = engine_for(declared)
        frame = pd.DataFrame({"n": numbers(1), "x": column})
        with pytest.raises(hg.InputError, match="column 'x'"):
            engine.run(keep, frame)


# --- arrays ---------------------------------------------------------------------------------------

LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
    "fixed_size_list": lambda kind: pa.list_(kind, 2),
}
lists = hg.Table("lists", "n bigint, x bigint", key="n")


@hg.transaction(event="n bigint, x array<int>", compiled=False)
def add_up(event, row=lists.at("n", create=True), out=hg.output("stored bigint")):
    for one in event.x:
        row.x += one
    out.stored = row.x * 10 + len(event.x)


@pytest.mark.parametrize("form", LISTS)
@pytest.mark.parametrize("element", ["int8", "int64", "uint64", "float64"])
@given(data=st.data())
def test_an_array_column_of_any_make(form: str, element: str, data: st.DataObject) -> None:
    source = SOURCES[element]
    size = {"min_size": 2, "max_size": 2} if form == "fixed_size_list" else {"max_size": 4}
    items = st.lists(source.values | st.just(arriving.NOTHING), **size)
    values = data.draw(st.lists(items | st.none(), max_size=6))
    made = [None if one is None else [item.made for item in one] for one in values]
    array = pa.array(made, LISTS[form](source.kind))
    cut = data.draw(st.integers(0, len(values)))
    encoding = data.draw(st.sampled_from(("plain", "sliced", "chunked")))
    column = arriving.encoded(array, encoding, cut)
    expected = [list_judged(one) for one in values]
    engine = hg.open(None, tables=[lists], transactions=[add_up])
    ids = pa.array(range(len(values)), pa.int64())
    found = engine.run(add_up, pa.table({"n": ids, "x": column}), order_by="n").to_pylist()
    got = {row["n"]: (row["reason"] or "", row["stored"]) for row in found}
    assert [got[n] for n in range(len(values))] == expected
    dicts = [{"n": n, "x": one} for n, one in enumerate(made)]
    again = hg.open(None, tables=[lists], transactions=[add_up])
    assert again.run(add_up, dicts, order_by="n").to_pylist() == found


def list_judged(items: list[Given] | None) -> tuple[str, int | None]:
    if items is None:
        return "null value: x", None
    judged = [arriving.judged(item, "int") for item in items]
    for word in ("null", "out of range", "not exact"):
        if any(found == word for found, _ in judged):
            return word.replace("null", "null value") + ": x", None
    return "", sum(value for _, value in judged) * 10 + len(judged)


# --- canaries: bugs that the tests above must see -------------------------------------------------

CANARIES: dict[str, tuple[str, Any, str, pa.Array, str]] = {
    "what is out of range wraps": (
        "_mark", lambda *marked: None, "timestamp",
        pa.array([2**62], pa.timestamp("s")), "out of range",
    ),
    "nulls among words are words": (
        "_decoded", lambda array: array, "string",
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string())), "null",
    ),
    "texts are not looked at": (
        "_fit_texts", lambda array: fitting.Fit(array), "string",
        SOURCES["string"].array([Given("text", b"\xff", b"\xff")]), "not UTF-8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CANARIES)
def test_the_comparison_sees_a_seeded_bug(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, bug, declared, column, word = CANARIES[what]
    check(declared, pa.table({"n": numbers(1), "x": column}), [(word, None)], False)
    monkeypatch.setattr(fitting, name, bug)
    with pytest.raises(Exception, match=r"assert|utf-8"):
        check(declared, pa.table({"n": numbers(1), "x": column}), [(word, None)], False)
