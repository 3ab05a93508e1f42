"""Few calls give what the same calls give as a batch: value by value, word by word, byte by byte.

The judge is the way of a batch itself, which calls go where one of them is not plain: an engine
that reads no call as plain runs everything that way.
"""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.durability import StoreReader
from headgate.engine.calls.answers import made
from headgate.engine.calls.calling import Call
from headgate.engine.calls.values import TOGETHER_MAX, CallReader, read_of
from headgate.engine.events import from_dicts
from headgate.errors import HeadgateError
from headgate.kernels.frame import ABORTED_COUNT
from headgate.state.columns import to_stored
from headgate.state.schema import Schema
from headgate.state.strings import StringPool

KINDS = (
    "boolean", "int", "bigint", "float", "double", "string", "timestamp", "date",
    "decimal(18,2)", "decimal(5,5)", "decimal(9,0)",
)  # fmt: skip
UTC = datetime.UTC


class Number(int):
    """A subclass, which is no plain int."""


class Odd(datetime.tzinfo):
    """A zone that is off by microseconds."""

    def utcoffset(self, _: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=1, microseconds=7)


EDGES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53, 2**53 + 1,
    -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, 0.0, -0.0, 1.5, 3.0, math.nan,
    math.inf, -math.inf, 1e300, 3.4028235677973366e38, 3.4028235e38, 1e-46, 0.1, 2.0**63,
    "", "a", "Straße", "\ud800", "\x00", "5", b"a", "x" * 300, [1], {}, object,
    decimal.Decimal("1.20"), decimal.Decimal("1.234"), decimal.Decimal("0.00001"),
    decimal.Decimal("9999999999999999.99"), decimal.Decimal("1E+16"), decimal.Decimal("1E+40"),
    decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("Infinity"),
    decimal.Decimal("-0"), decimal.Decimal("1E-30"), decimal.Decimal("123456789"),
    datetime.datetime(1970, 1, 1), datetime.datetime(2026, 3, 29, 2, 30, 0, 1),
    datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime.datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    datetime.datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime.datetime(1880, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
    datetime.datetime(9999, 12, 31, 23, tzinfo=datetime.timezone(datetime.timedelta(hours=-5))),
    datetime.datetime(2000, 1, 1, tzinfo=Odd()),
    datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(2026, 2, 28),
    -719_162, -719_163, 2_932_896, 2_932_897, -62_135_596_800_000_000, -62_135_596_800_000_001,
    253_402_300_799_999_999, 253_402_300_800_000_000,
    np.int64(5), np.float32(0.1), np.bool_(True), np.datetime64("2026-01-01T00:00:00"),
    np.datetime64("NaT"), Number(5), pa.scalar(5), datetime.timedelta(1), 1j,
]  # fmt: skip
values = st.one_of(
    st.sampled_from(EDGES),
    st.integers(),
    st.integers(-(2**31), 2**31),
    st.floats(),
    st.floats(width=32),
    st.text(),
    st.booleans(),
    st.datetimes(),
    st.datetimes(timezones=st.timezones()),
    st.dates(),
    st.decimals(allow_nan=True),
    st.decimals(places=2, min_value=-(10**6), max_value=10**6),
)


def stored_by_arrow(value: Any, kind: Any, pool: StringPool) -> Any:
    """The word that a column of one value has, "rejected", or the message that refuses it."""
    schema = Schema.parse(f"one {kind}")
    try:
        table = from_dicts([{"one": value}], schema, "call 'f'")
    except Exception as error:
        return repr(error)
    found = to_stored(table.column("one"), schema["one"].type, pool, "")
    return "rejected" if found.faults is not None and found.faults[0] else found.values


@pytest.mark.parametrize("kind", KINDS)
@given(value=values)
@settings(max_examples=400)
def test_a_value_that_is_read_is_stored_as_arrow_would(kind: str, value: Any) -> None:
    check_value(kind, value)


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_stored_as_arrow_would(kind: str) -> None:
    read = [check_value(kind, value) for value in EDGES]
    assert any(read) and not all(read)


def check_value(kind: str, value: Any) -> bool:
    """Whether it was read; what was must be the same bytes as by Arrow."""
    declared, pool = Schema.parse(f"one {kind}")["one"].type, StringPool()
    read = read_of(declared)
    assert read is not None
    try:
        word = read(value)
    except Exception:  # of the value's own; FewCalls leaves it to the batch
        return False
    if word is None:
        return False
    expected = stored_by_arrow(value, kind, pool)
    assert isinstance(expected, np.ndarray), (value, word, expected)
    if isinstance(word, str):
        word = pool.intern(pa.array([word]))[0]
    room = np.zeros(1, expected.dtype)
    room.data[0] = word
    assert room.tobytes() == expected.tobytes(), (value, word, expected)
    return True


# --- whole calls ----------------------------------------------------------------------------------

KEYS = hg.Table("keys", "name string, moment timestamp, n bigint", key=["name", "moment"])
ROWS = hg.Table(
    "rows",
    "id bigint, b boolean, i int, l bigint, f float, d double, s string, t timestamp, y date, "
    "m decimal(18,2)",
    key="id",
    check="i >= 0",
)
COLUMNS = (
    "b boolean, i int, l bigint, f float, d double, s string, t timestamp, y date, m decimal(18,2)"
)
EVENT, OUTPUT = f"id bigint, {COLUMNS}", f"{COLUMNS}, shown bigint"


def put(event, row=ROWS.at("id", create=True), out=hg.output(OUTPUT)):
    if event.l > 3:
        out.shown = event.l
    if event.i == 13:
        return hg.abort("unlucky")
    if event.i == 14:
        return hg.abort(event.s)
    divided = 100 // (event.i - 15)
    if event.l > 0:
        out.shown = divided
    out.b, out.i, out.f, out.d = row.b, row.i, row.f, row.d
    out.s, out.t, out.y, out.m = row.s, row.t, row.y, row.m
    row.b, row.i, row.l, row.f, row.d = event.b, event.i, event.l, event.f, event.d
    row.s, row.t, row.y, row.m = event.s, event.t, event.y, event.m
    if event.l > 0:
        out.l = row.l
    if event.i == 16:
        hg.delete(row)


def pick(event, row=ROWS.at("id"), key=KEYS.at("s", "t", create=True)):
    key.n += row.l


PROGRAMS = {
    compiled: {
        "tables": [ROWS, KEYS],
        "transactions": [
            hg.transaction(event=EVENT, compiled=compiled)(put),
            hg.transaction(event="id bigint, s string, t timestamp", compiled=compiled)(pick),
        ],
    }
    for compiled in (True, False)
}


class Unable(CallReader):
    """Reads nothing."""

    def read(self, columns: Any) -> None:
        return None


def opened(path: Path | None, compiled: bool, as_batches: bool) -> hg.Engine:
    engine = hg.open(path, durability="none", **PROGRAMS[compiled])
    for one in PROGRAMS[compiled]["transactions"] if as_batches else ():
        terms, *_ = engine.calls._know(one)
        engine.calls._known[one] = terms, Unable(one.event), one
    return engine


good = st.fixed_dictionaries({
    "id": st.integers(0, 4),
    "b": st.booleans(),
    "i": st.sampled_from([0, 5, 5, 5, 13, 14, 15, 16, -1]),
    "l": st.integers(-9, 9),
    "f": st.floats(width=32, allow_nan=False),
    "d": st.one_of(st.floats(allow_nan=False), st.integers(-9, 9)),
    "s": st.sampled_from(["", "a", "Straße", "unlucky"]),
    "t": st.datetimes(timezones=st.none() | st.just(UTC)),
    "y": st.dates(),
    "m": st.decimals(places=2, min_value=-99, max_value=99),
})  # fmt: skip


@st.composite
def some_calls(draw: Any) -> list[tuple[str, dict[str, Any], str | None]]:
    """Calls, most of them plain; a key for some."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        columns = draw(good)
        if draw(st.integers(0, 9)) == 0:
            columns[draw(st.sampled_from(sorted(columns)))] = draw(values)
        name = draw(st.sampled_from(["put", "put", "pick"]))
        if name == "pick":
            columns = {one: columns[one] for one in ("id", "s", "t")}
        found.append((name, columns, f"key {number}" if draw(st.booleans()) else None))
    return found


def exact(value: Any) -> Any:
    """A value with all that tells it from others that are equal to it."""
    if isinstance(value, datetime.datetime):
        return repr(value), type(value.tzinfo), str(value.tzinfo)
    return type(value), repr(value)


def told(answer: Any) -> Any:
    if isinstance(answer, Exception):
        return type(answer), str(answer)
    return [(name, exact(value)) for name, value in answer.items()]


def run(engine: hg.Engine, rounds: Any) -> list[Any]:
    found: list[Any] = []
    for calls in rounds:
        try:
            answers = engine.call_all([Call(*call) for call in calls])
        except HeadgateError as error:
            answers = [error]
        found.append([told(answer) for answer in answers])
    return found


def counted(engine: hg.Engine) -> Any:
    metrics = engine.metrics()
    return metrics.epoch, metrics.rows, {
        name: (one.events, one.batches, one.outcomes, one.reasons, one.latest)
        for name, one in metrics.streams.items()
    }  # fmt: skip


def contents(engine: hg.Engine) -> list[Any]:
    queries = ('select * from "rows" order by id', "select * from keys order by name, moment")
    return [[repr(row) for row in engine.sql(query).rows()] for query in queries]


@pytest.mark.parametrize("compiled", [True, False])
@given(rounds=st.lists(some_calls(), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
@example(rounds=[[("put", {"id": 1, "b": True, "i": 5, "l": 1, "f": 0.5, "d": 1, "s": "a",
                           "t": datetime.datetime(2026, 1, 1), "y": datetime.date(2026, 1, 1),
                           "m": decimal.Decimal("1.10")}, None)]] * 2)  # fmt: skip
def test_calls_are_answered_as_a_batch_is(compiled: bool, rounds: Any) -> None:
    with opened(None, compiled, True) as judge, opened(None, compiled, False) as engine:
        assert run(engine, rounds) == run(judge, rounds)
        assert counted(engine) == counted(judge)
        assert contents(engine) == contents(judge)
        kept = [[(epoch, made(one)) for epoch, one in e._memory.results] for e in (engine, judge)]
        for (epoch, batch), (same, expected) in zip(*kept, strict=True):
            assert epoch == same
            check_batch(batch, expected)


def check_batch(batch: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    batch.validate(full=True)
    assert batch.schema.equals(expected.schema, check_metadata=True)
    for column, other in zip(batch.columns, expected.columns, strict=True):
        assert [exact(one) for one in _shown(column)] == [exact(one) for one in _shown(other)]
        if isinstance(column, pa.DictionaryArray):
            assert column.dictionary.equals(other.dictionary)
            assert column.indices.equals(other.indices)


def _shown(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    found: list[Any] = column.to_pylist()
    return found


@pytest.mark.parametrize("compiled", [True, False])
def test_the_log_of_calls_is_that_of_a_batch(tmp_path: Path, compiled: bool) -> None:
    rounds = [
        [("put", {"id": key, "b": True, "i": key, "l": key, "f": 0.5, "d": 1.5, "s": f"text {key}",
                  "t": datetime.datetime(2026, 1, 1), "y": datetime.date(2026, 1, 1),
                  "m": decimal.Decimal("1.10")}, f"key {first} {key}" if key % 3 else None)
         for key in range(first, first + count)]
        for first, count in ((1, 1), (3, 12), (9, 8), (14, 2), (13, 1), (20, 40))
    ]  # fmt: skip
    kept = []
    for name, as_batches in (("few", False), ("batch", True)):
        with opened(tmp_path / name, compiled, as_batches) as engine:
            run(engine, rounds)
            size = engine.metrics().log_bytes
        reader = StoreReader.open(str(tmp_path / name))
        with hg.open(tmp_path / name, **PROGRAMS[compiled]) as again:
            kept.append((list(reader.results(1, 6)), contents(again), size))
    (results, rows, size), (expected, same_rows, same_size) = kept
    assert (rows, size) == (same_rows, same_size)
    assert len(results) == 6
    for (_, batch), (_, other) in zip(results, expected, strict=True):
        check_batch(batch, other)


def test_as_many_as_fit_and_one_more_are_answered_alike() -> None:
    columns = {"id": 1, "s": "a", "t": datetime.datetime(2026, 1, 1)}
    whole = {"b": True, "i": 1, "l": 3, "f": 0.5, "d": 1.5, "y": datetime.date(2026, 1, 1), "m": 1}
    with opened(None, True, False) as engine:
        engine.call("put", **columns, **whole)
        for count in (1, TOGETHER_MAX, TOGETHER_MAX + 1, 2):
            answers = engine.call_all([Call("pick", columns) for _ in range(count)])
            assert [answer.position for answer in answers] == list(range(count))
            assert all(answer.committed for answer in answers)
        assert engine.get(KEYS, ("a", datetime.datetime(2026, 1, 1, tzinfo=UTC)))["n"] == (
            3 * (2 * TOGETHER_MAX + 4)
        )


def test_tables_that_grow_between_calls_are_found_again() -> None:
    """The frame is kept: it must see that rows and index have moved."""
    at, count = datetime.datetime(2026, 1, 1), 5000
    base = {"b": True, "i": 1, "f": 0.5, "d": 1.5, "y": datetime.date(2026, 1, 1), "m": 1}
    with opened(None, True, False) as engine:
        for key in range(count):
            answer = engine.call("put", id=key, l=key, s="a", t=at, **base)
            assert answer.committed
        for key in range(0, count, 61):
            assert engine.call("put", id=key, l=-1, s="a", t=at, **base).i == 1
            assert engine.get(ROWS, key)["l"] == -1
        engine.call_all([Call("pick", {"id": key, "s": str(key), "t": at}) for key in range(400)])
        assert engine.counts() == {"rows": count, "keys": 400}


def test_each_run_counts_its_own_aborts() -> None:
    """The kernel lists them in a room for one run: what was there before must not count."""
    columns = {"id": 1, "b": True, "i": 13, "l": 3, "f": 0.5, "d": 1.5, "s": "a", "m": 1,
               "t": datetime.datetime(2026, 1, 1), "y": datetime.date(2026, 1, 1)}  # fmt: skip
    with opened(None, True, False) as engine:
        for count in (3, 5, 1):
            answers = engine.call_all([Call("put", columns) for _ in range(count)])
            assert [answer.reason for answer in answers] == ["unlucky"] * count
            few = engine._batches._few[engine.transactions["put"]]
            assert few._run.frame.words[ABORTED_COUNT] == count


def test_an_event_that_raised_leaves_nothing_of_another_in_its_output() -> None:
    columns = {"id": 1, "b": True, "i": 5, "l": 3, "f": 0.5, "d": 1.5, "s": "a", "m": 1,
               "t": datetime.datetime(2026, 1, 1), "y": datetime.date(2026, 1, 1)}  # fmt: skip
    with opened(None, False, False) as engine:
        assert engine.call("put", **columns).l == 3
        assert engine.call("put", **{**columns, "i": 15}).l is None
        _, batch = engine._memory.results[-1]
        assert made(batch).column("l").buffers()[1].to_pybytes()[:8] == bytes(8)
