"""Inputs on their way through the engine: held back, logged and run again, routed, as keys."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate as hg
from headgate.testing import SerialOracle, results_difference

START = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
words = hg.Table("words", "word string, n bigint", key="word")
sums = hg.Table("sums", "id bigint, n int, price decimal(10,2)", key="id")


@hg.transaction(event="word string", compiled=False)
def count(event, row=words.at("word", create=True)):
    row.n += 1


@hg.transaction(event="ts timestamp, id bigint, n int, price decimal(10,2)", compiled=False)
def add(event, row=sums.at("id", create=True), out=hg.output("total int")):
    row.n += event.n
    row.price = event.price
    out.total = row.n


TABLES, TRANSACTIONS = [words, sums], [count, add]


def opened(path: Path | None = None, **options: Any) -> hg.Engine:
    return hg.open(path, tables=TABLES, transactions=TRANSACTIONS, **options)


def at(second: float, **changed: Any) -> dict[str, Any]:
    moment = START + datetime.timedelta(seconds=second)
    return {"ts": moment, "id": 1, "n": 1, "price": decimal.Decimal("1.00"), **changed}


def reasons(results: pa.Table) -> list[str | None]:
    found: list[str | None] = results.column("reason").to_pylist()
    return found


# --- keys -----------------------------------------------------------------------------------------


def test_a_null_among_the_words_of_a_dictionary_is_no_key() -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0], pa.int8()), pa.array(["tea", None])
    )
    engine = opened()
    results = engine.run(count, pa.table({"word": column}))
    assert reasons(results) == [None, None, "null key: word", "null key: word"]
    assert engine.sql("select * from words").rows() == [("tea", 2)]


def test_a_key_beyond_its_table_or_its_type_is_out_of_range() -> None:
    engine = opened()
    table = pa.table(
        {
            "ts": pa.array([START] * 2),
            "id": pa.array([2**64 - 1, 3], pa.uint64()),
            "n": pa.array([1, 1]),
            "price": pa.array([decimal.Decimal("1.500")] * 2, pa.decimal128(10, 3)),
        }
    )
    assert reasons(engine.run(add, table)) == [None, "out of range: id"]
    assert engine.get("sums", 3) == {"id": 3, "n": 1, "price": decimal.Decimal("1.50")}


# --- a call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"n": 2**31}, "out of range: n"),
        ({"n": 2**70}, "out of range: n"),
        ({"n": 0.5}, "not exact: n"),
        ({"n": math.nan}, "null value: n"),
        ({"price": decimal.Decimal("1.005")}, "not exact: price"),
        ({"price": decimal.Decimal("1e9")}, "out of range: price"),
        ({"price": decimal.Decimal("Infinity")}, "out of range: price"),
        ({"ts": pd.NaT}, "null value: ts"),
        ({"ts": pd.Timestamp("2024-01-01 00:00:00.000000001")}, "not exact: ts"),
        ({"id": np.uint64(2**63)}, "out of range: id"),
    ],
    ids=str,
)
def test_a_call_with_a_value_that_does_not_fit_is_rejected(changed: Any, reason: str) -> None:
    engine = opened()
    result = engine.call(add, **at(0, **changed))
    assert (result.outcome, result.reason) == ("rejected", reason)
    again = engine.call_once("key", add, **at(0, **changed))
    assert (again.outcome, again.reason) == ("rejected", reason)
    assert engine.submit(add, **at(0, **changed)).result().reason == reason


# --- held back ------------------------------------------------------------------------------------


def test_the_watermark_lets_run_what_is_older_than_it_and_keeps_what_is_as_old() -> None:
    """ "1 second": an event runs once one was seen that is younger by more than that."""
    options = {"order_by": "ts", "watermark": "1 second"}
    microsecond = 0.000001
    steps = (
        ([at(0, n=1)], []),
        ([at(1, n=2)], []),  # just as much younger: an event of the time 0 may still come
        ([at(0, n=3)], []),  # and does; it is not late
        ([at(1 + microsecond, n=4)], [1, 4]),  # now both run, in the order in which they came
        ([at(0, n=5)], [None]),  # too late
        ([at(microsecond, n=6)], []),  # as old as the watermark: not late, and waits
    )
    engine, oracle = opened(), SerialOracle(TABLES)
    for events, totals in steps:
        results = engine.run(add, events, **options)
        assert results.column("total").to_pylist() == totals
        assert results_difference(results, oracle.run(add, events, **options)) is None
    rest = engine.flush(add, **options)
    assert rest.column("total").to_pylist() == [10, 12, 16]
    assert results_difference(rest, oracle.flush(add, **options)) is None


BAD = [
    (at(6, n=2**31), "out of range: n"),
    (at(6, n=0.5), "not exact: n"),
    (at(6, price=decimal.Decimal("0.001")), "not exact: price"),
    (at(6, n=None), "null value: n"),
    (at(6, ts=None), "null order column: ts"),
]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_what_does_not_fit_keeps_its_reason_beside_events_that_were_held(
    tmp_path: Path, recovery: str
) -> None:
    options = {"order_by": "ts", "watermark": "1 second"}
    with opened(tmp_path / "s", recovery=recovery) as engine:
        engine.run(add, [at(5)], **options)
        results = engine.run(add, [one for one, _ in BAD], **options)
        assert reasons(results) == [reason for _, reason in BAD]
        table = pa.table(
            {
                "ts": pa.array([START] * 2, pa.timestamp("ns", "UTC")),
                "id": pa.array([2**63, 1], pa.uint64()),
                "n": pa.array([1.0, math.nan]),
                "price": pa.array([1, 1]),
            }
        )
        assert reasons(engine.run(add, table, **options)) == ["out of range: id", "null value: n"]
    with opened(tmp_path / "s", recovery=recovery) as engine:  # weak: all of it runs again
        assert engine.epoch == 3
        assert engine.flush(add, **options).column("total").to_pylist() == [1]


ENCODINGS: Mapping[str, Any] = {
    "words with nulls, in chunks": pa.chunked_array(
        [
            pa.array(["tea", None]).dictionary_encode(null_encoding="encode"),
            pa.array(["oil", None]).dictionary_encode(null_encoding="encode"),
        ]
    ),
    "runs": pc.run_end_encode(pa.array(["tea", None, "oil", None])),
    "views": pa.array(["tea", None, "oil", None], pa.string_view()),
    "large": pa.array(["tea", None, "oil", None], pa.large_string()),
}


@pytest.mark.parametrize("what", ENCODINGS)
@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_every_encoding_goes_through_the_log_and_back(
    tmp_path: Path, what: str, recovery: str
) -> None:
    events = pa.table({"word": ENCODINGS[what]})
    with opened(tmp_path / "s", recovery=recovery) as engine:
        results = engine.run(count, events, order_by="word")
        assert reasons(results) == [None, None, *["null order column: word"] * 2]
        assert results.column("word").to_pylist() == ["oil", "tea", None, None]
    with opened(tmp_path / "s", recovery=recovery) as engine:
        assert engine.sql("select * from words order by word").rows() == [("oil", 1), ("tea", 1)]


# --- routes ---------------------------------------------------------------------------------------

ROUTES: Mapping[str, Any] = {
    **ENCODINGS,
    "texts": ["tea", None, "oil", None],
}


@pytest.mark.parametrize("what", ROUTES)
def test_a_route_column_may_come_in_any_encoding(what: str) -> None:
    events = pa.table({"kind": ROUTES[what], "word": pa.array(["a"] * 4)})
    results = opened().run({"tea": count}, events, route_by="kind")
    expected = {None: 1, "null route: kind": 2, "unknown route: oil": 1}
    found = reasons(results)
    assert {reason: found.count(reason) for reason in found} == expected


def test_a_route_that_is_no_text_is_its_events_fault_alone() -> None:
    broken = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 1, 4], np.int32)), pa.py_buffer(b"\xfftea")],
    )
    events = pa.table({"kind": broken, "word": pa.array(["a", "b"])})
    found = reasons(opened().run({"tea": count}, events, route_by="kind"))
    assert found == [None, "not UTF-8: kind"]


@pytest.mark.parametrize("kinds", [[1, 2**70, None], [1.0, 2.0, None], [1, "x", None]], ids=str)
def test_numbers_are_routes_also_among_others(kinds: list[Any]) -> None:
    events = [{"kind": kind, "word": "a"} for kind in kinds]
    found = reasons(opened().run({1: count}, events, route_by="kind"))
    assert found[0] is None and found[2] == "null route: kind"
    assert str(found[1]).startswith("unknown route: ")


def test_a_route_column_of_lists_is_refused() -> None:
    events = pa.table({"kind": [[1]], "word": ["a"]})
    with pytest.raises(hg.InputError, match="route_by: the column is list"):
        opened().run({1: count}, events, route_by="kind")


def test_a_text_that_cannot_be_written_is_no_key_to_look_for() -> None:
    with pytest.raises(hg.InputError, match="cannot be a key of type string"):
        opened().get("words", "\ud800")


def test_what_equals_a_key_but_is_none_is_refused_also_when_the_key_was_read_before() -> None:
    counts = hg.Table("counts", "id bigint, day date, n bigint", key="id, day")
    flags = hg.Table("flags", "id bigint, n bigint", key="id")
    engine, first = hg.open(None, tables=[counts, flags]), datetime.date(1970, 1, 1)
    engine.load(counts, [{"id": 1, "day": first, "n": 7}])
    engine.load(flags, [{"id": 1, "n": 7}])
    for _ in range(2):
        for same in (1, 1.0, np.int64(1), decimal.Decimal(1)):
            for day in (first, 0, np.int64(0), np.datetime64("1970-01-01")):
                assert engine.get(counts, (same, day)) == {"id": 1, "day": first, "n": 7}
            assert engine.get(flags, same) == {"id": 1, "n": 7}
        for other in (True, np.bool_(True)):
            with pytest.raises(hg.InputError, match="cannot be a key of type bigint"):
                engine.get(flags, other)
            with pytest.raises(hg.InputError, match="cannot be a key of type bigint"):
                engine.get(counts, (other, first))


def test_dicts_may_leave_out_what_no_route_of_theirs_needs() -> None:
    sums = hg.Table("sums", "id bigint, n bigint", key="id")

    @hg.transaction(event="id bigint", compiled=False)
    def once(event, row=sums.at("id", create=True)):
        row.n += 1

    @hg.transaction(event="id bigint, n bigint", compiled=False)
    def many(event, row=sums.at("id", create=True)):
        row.n += event.n

    with hg.open(None, sums, [once, many]) as engine:
        routes = {"once": once, "many": many}
        engine.run(routes, [{"kind": "once", "id": 1}], route_by="kind")
        assert engine.get("sums", 1) == {"id": 1, "n": 1}
        with pytest.raises(hg.InputError, match="no column 'n'"):
            engine.run(routes, [{"kind": "many", "id": 1}], route_by="kind")
