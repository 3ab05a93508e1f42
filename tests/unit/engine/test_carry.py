"""Carried columns: whatever becomes of an event, its result says which event it was."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.query.store_tables import UNROUTED, of_stream, query_store

NINE = dt.datetime(2024, 1, 1, 9, tzinfo=dt.UTC)
accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")


@hg.transaction(event="ts timestamp, id bigint, amount int", compiled=False)
def pay(event: Any, account: Any = accounts.at("id"), out: Any = hg.output("left double")) -> Any:
    if event.amount > 100:
        return hg.abort("too much")
    account.balance -= event.amount
    out.left = account.balance


@hg.transaction(event="ts timestamp, id bigint, amount int", compiled=False)
def add(event: Any, account: Any = accounts.at("id", create=True)) -> Any:
    account.balance += event.amount


ROUTES = {"pay": pay, "add": add}


def at(seconds: float) -> dt.datetime:
    return NINE + dt.timedelta(seconds=seconds)


def event(ident: Any, seconds: float, number: Any = 1, amount: Any = 1, **more: Any) -> dict:
    return {"event_id": ident, "ts": at(seconds), "id": number, "amount": amount, **more}


def open_bank(path: Path | None = None, **options: Any) -> hg.Engine:
    engine = hg.open(path, tables=[accounts], transactions=[pay, add], **options)
    engine.load(accounts, [{"id": number, "balance": 10.0} for number in (1, 2)])
    return engine


def outcomes(results: pa.Table) -> list[tuple[Any, str]]:
    found = results.to_pylist()
    return [(row["event_id"], row["outcome"]) for row in found]


def test_every_outcome_carries_the_events_columns() -> None:
    engine = open_bank()
    options = {"order_by": "ts", "watermark": "5 seconds", "carry": "event_id, note"}
    engine.run(pay, [event("a", 20, note="x")], **options)
    found = engine.run(
        pay,
        [
            event("late", 1, note="l"),
            event("aborted", 16, amount=101, note="b"),
            event("malformed", 16, number=None, note=None),
            event(None, 17, note="no id"),
            event("b", 30, note="held"),
        ],
        **options,
    )
    assert outcomes(found) == [
        ("aborted", "aborted"), (None, "committed"), ("a", "committed"),
        ("late", "late"), ("malformed", "rejected"),
    ]  # fmt: skip
    assert found.column("note").to_pylist() == ["b", "no id", "x", "l", None]
    assert outcomes(engine.flush(pay, **options)) == [("b", "committed")]


def test_carried_columns_keep_their_types_and_nulls() -> None:
    engine = open_bank()
    table = pa.table(
        {
            "ts": pa.array([at(2), at(1)], pa.timestamp("us", tz="UTC")),
            "id": [1, 1],
            "amount": pa.array([1, 2], pa.int32()),
            "small": pa.array([7, None], pa.int16()),
            "word": pa.array(["a", "b"]).dictionary_encode(),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "tags": pa.array([["x"], None], pa.list_(pa.string())),
            "place": pa.array([{"x": 1, "y": "n"}, None]),
            "flag": pa.array([True, None]),
            "nothing": pa.nulls(2),
        }
    )
    names = ["small", "word", "price", "tags", "place", "flag", "nothing", "amount"]
    found = engine.run(pay, table, order_by="ts", carry=names)
    assert found.select(names).to_pylist() == [
        {"small": None, "word": "b", "price": None, "tags": None, "place": None, "flag": None,
         "nothing": None, "amount": 2},
        {"small": 7, "word": "a", "price": Decimal("1.50"), "tags": ["x"],
         "place": {"x": 1, "y": "n"}, "flag": True, "nothing": None, "amount": 1},
    ]  # fmt: skip
    kinds = found.schema
    assert (kinds.field("small").type, kinds.field("word").type) == (pa.int32(), pa.string())
    assert kinds.field("price").type == pa.decimal128(10, 2)
    assert found.column_names[5:8] == ["ts", "small", "word"]
    assert found.column_names[-1] == "left"


def test_a_carried_order_column_is_there_once() -> None:
    found = open_bank().run(pay, [event("a", 1)], order_by="ts", carry="ts, event_id")
    assert found.column_names.count("ts") == 1


@pytest.mark.parametrize(
    ("carry", "words"),
    [
        ("nosuch", "no column 'nosuch'"),
        ("left", "the results have a column 'left' already"),
        ("epoch", "the results have a column 'epoch' already"),
        ("__key", "names in __ are reserved"),
        ("a,,b", "not a list of event columns"),
        ([3], "not a list of event columns"),
        ("blob", "cast it before it reaches Headgate"),
        ("huge", "cast it before it reaches Headgate"),
    ],
)
def test_what_cannot_be_carried_is_refused_and_nothing_runs(carry: Any, words: str) -> None:
    engine = open_bank()
    rows = [event("a", 1, blob=b"x", huge=Decimal("1" * 30), left=1.0)]
    before = engine.epoch
    with pytest.raises(hg.InputError, match=words):
        engine.run(pay, rows, order_by="ts", carry=carry)
    assert engine.epoch == before and engine.stopped is None


def test_a_carried_column_keeps_the_type_in_which_it_first_came(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.run(pay, [event(1, 1)], carry="event_id")
        with pytest.raises(hg.InputError, match="'event_id' is string here and bigint"):
            engine.run(pay, [event("a", 2)], carry="event_id")
        narrow = pa.table({"ts": [at(3)], "id": [1], "amount": [1]}).append_column(
            "event_id", pa.array([5], pa.int32())
        )
        found = engine.run(pay, narrow, carry="event_id")
        assert found.schema.field("event_id").type == pa.int64()
        found = engine.run(pay, [event(None, 4)], carry="event_id")
        assert found.schema.field("event_id").type == pa.int64()
    again = open_bank(tmp_path / "bank")
    with again, pytest.raises(hg.InputError, match="'event_id' is string here and bigint"):
        again.run(pay, [event("a", 2)], carry="event_id")


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_held_events_keep_their_carried_columns_across_a_restart(
    tmp_path: Path, recovery: str
) -> None:
    options = {"order_by": "ts", "watermark": "5 seconds", "carry": "event_id"}
    with open_bank(tmp_path / "bank", recovery=recovery) as engine:
        engine.run(pay, [event("a", 1), event("b", 2, number=None)], **options)
        engine.run(pay, [event("late?", 0.5), event("c", 20)], **options)
    with open_bank(tmp_path / "bank", recovery=recovery) as engine:
        found = engine.run(pay, [event("d", 40), event("late", 3)], **options)
        assert outcomes(found) == [("c", "committed"), ("late", "late")]
        found = engine.flush(pay, **options)
        assert outcomes(found) == [("d", "committed")]
    store = StoreReader.open(tmp_path / "bank")
    rows = query_store(store, "select event_id, outcome from results order by epoch, position")
    assert rows.rows() == [
        ("b", "rejected"), ("late?", "committed"), ("a", "committed"),
        ("c", "committed"), ("late", "late"), ("d", "committed"),
    ]  # fmt: skip


def test_events_held_before_anyone_asked_to_carry_have_null() -> None:
    engine = open_bank()
    engine.run(pay, [event("a", 1)], order_by="ts", watermark="5 seconds")
    options = {"order_by": "ts", "watermark": "5 seconds", "carry": "event_id"}
    assert outcomes(engine.run(pay, [event("b", 20)], **options)) == [(None, "committed")]
    engine.run(pay, [event("c", 40)], order_by="ts", watermark="5 seconds")
    assert outcomes(engine.flush(pay, **options)) == [(None, "committed")]


def test_a_value_that_does_not_fit_its_declared_type_is_null_in_its_rejected_result() -> None:
    rows = pa.table({"ts": [NINE], "id": [1], "amount": [1 << 40], "event_id": ["a"]})
    row = open_bank().run(pay, rows, carry="amount, event_id").to_pylist()[0]
    assert (row["outcome"], row["amount"], row["event_id"]) == ("rejected", None, "a")


def test_a_replayed_batch_returns_its_carried_columns(tmp_path: Path) -> None:
    for path in (None, tmp_path / "bank"):
        with open_bank(path) as engine:
            feed = engine.sink(pay, order_by="ts", carry="event_id")._feed
            rows = pa.Table.from_pylist([event("a", 1), event("b", 2, amount=101)])
            first = feed.apply(rows, ("query", 0))
            assert feed.apply(rows, ("query", 0)).to_pylist() == first.to_pylist()
            assert outcomes(first) == [("a", "committed"), ("b", "aborted")]
    with open_bank(tmp_path / "bank") as engine:
        feed = engine.sink(pay, order_by="ts", carry="event_id")._feed
        assert outcomes(feed.apply(rows, ("query", 0))) == [("a", "committed"), ("b", "aborted")]


def test_events_that_no_route_takes_are_a_stream_of_their_own(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        options = {"route_by": "kind", "order_by": "ts", "carry": "event_id"}
        kinds = ("pay", "fly", None, "add")
        engine.run(ROUTES, [event(kind, n, kind=kind) for n, kind in enumerate(kinds)], **options)
    store = StoreReader.open(tmp_path / "bank")
    streams = store.manifest["streams"]
    declared = streams[UNROUTED]["results"]
    assert "event_id string" in declared and "left" not in declared
    _, batch = next(iter(store.results(2, 2)))
    for stream, expected in ((UNROUTED, ["fly", None]), ("pay", ["pay"])):
        assert of_stream(batch, stream, streams, 2).column("event_id").to_pylist() == expected


def test_a_killed_process_leaves_results_with_their_carried_columns(tmp_path: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.unit.engine.test_carry import *
engine = open_bank({str(tmp_path / "bank")!r})
engine.run(pay, [event("a", 1), event("b", 9)], order_by="ts", watermark="5 seconds",
           carry="event_id")
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    with open_bank(tmp_path / "bank") as engine:
        options = {"order_by": "ts", "watermark": "5 seconds", "carry": "event_id"}
        assert outcomes(engine.flush(pay, **options)) == [("b", "committed")]


def test_a_check_lets_readers_know_the_carried_columns_before_the_first_event(
    tmp_path: Path,
) -> None:
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(pay, order_by="ts", carry="event_id")
        sink.check(pa.Table.from_pylist([event("a", 1)]))
        streams = StoreReader.open(tmp_path / "bank").manifest["streams"]
        assert "event_id string" in streams["pay"]["results"]
        assert engine.epoch == 1
