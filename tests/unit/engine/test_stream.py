"""A stream as an object: what is said of it once, and the same as the short forms of the engine."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability.copying import restore
from headgate.engine.terms import DEFAULTS, Options
from tests.unit.engine.test_carry import add, event, open_bank, outcomes, pay

OPTIONS: dict[str, Any] = {"order_by": "ts", "watermark": "5 seconds", "carry": "event_id"}


def rows(*names: str, first: float = 1) -> pa.Table:
    return pa.Table.from_pylist([event(name, first + n) for n, name in enumerate(names)])


def test_the_same_words_are_the_same_stream() -> None:
    engine = open_bank()
    stream = engine.stream(pay, **OPTIONS)
    assert isinstance(stream, hg.EngineStream)
    assert engine.stream(pay, **OPTIONS) is stream
    listed = engine.stream(pay, order_by=["ts"])
    assert engine.stream(pay, order_by=["ts"]) is listed is not stream
    routed = engine.stream({"pay": pay}, route_by="kind")
    assert engine.stream({"pay": pay}, route_by="kind") is routed
    assert engine.stream({1: pay}, route_by="kind") is not engine.stream(
        {True: pay}, route_by="kind"
    )


def test_it_runs_and_flushes_as_the_short_forms_do() -> None:
    one, other = open_bank(), open_bank()
    stream = one.stream(pay, **OPTIONS)
    for first in (1, 20):
        events = rows("a", "b", "c", first=first)
        assert stream.run(events).equals(other.run(pay, events, **OPTIONS))
    assert stream.flush().equals(other.flush(pay, **OPTIONS))
    assert one.epoch == other.epoch
    assert outcomes(stream.run(rows("d", first=0))) == [("d", "late")]


def test_it_runs_in_batches_as_the_short_form_does() -> None:
    one, other = open_bank(), open_bank()
    events = rows(*"abcdefg")
    found = one.stream(pay, order_by="ts").run(events, batch_size=3)
    assert found.equals(other.run(pay, events, order_by="ts", batch_size=3))
    assert found.column("epoch").unique().to_pylist() == [2, 3, 4]
    with pytest.raises(hg.InputError, match="batch_size is a number of at least 1"):
        one.stream(pay, order_by="ts").run(events, batch_size=0)


def test_it_explains_as_the_short_form_does_and_holds_nothing_back() -> None:
    seats = hg.Table("seats", "id bigint, sold bigint", key="id")

    @hg.transaction(event="ts timestamp, id bigint")
    def sell(event: Any, seat: Any = seats.at("id")) -> None:
        seat.sold += 1

    events = rows(*"abc").select(["ts", "id"])
    with hg.open(None, tables=[seats], transactions=[sell]) as engine:
        figures = engine.explain(sell, events, order_by="ts")
        assert figures.transactions == 3
        stream = engine.stream(sell, order_by="ts", watermark="5 seconds")
        assert repr(stream.explain(events)) == repr(figures)
        assert engine.epoch == 0


def test_its_sink_is_that_of_the_short_form() -> None:
    engine = open_bank()
    stream = engine.stream(pay, name="tills", **OPTIONS)
    assert repr(stream.sink()) == repr(engine.sink(pay, name="tills", **OPTIONS))
    stream.sink()._feed.apply(rows("a", "b"), ("q1", 0))
    again = engine.sink(pay, name="tills", **OPTIONS)._feed
    assert again.apply(rows("a", "b"), ("q1", 0)).num_rows == 0  # it was here before
    assert outcomes(stream.flush()) == [("a", "committed"), ("b", "committed")]


def test_its_metrics_are_those_of_its_name(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        stream = engine.stream(pay, name="tills", **OPTIONS)
        assert (stream.name, stream.metrics().events, stream.metrics().held) == ("tills", 0, 0)
        stream.run(rows("a", "b"))
        engine.run(pay, rows("c"), order_by="ts")
        found = stream.metrics()
        assert (found.name, found.held, found.batches) == ("tills", 2, 1)
        assert found.as_dict()["outcomes"] == engine.metrics().streams["tills"]["outcomes"]
    with open_bank(tmp_path / "bank") as engine:
        assert engine.stream(pay, name="tills", **OPTIONS).metrics().held == 2


def test_it_checks_schemas_and_tables_before_there_are_events() -> None:
    engine = open_bank()
    stream = engine.stream(pay, **OPTIONS)
    good = rows("a")
    assert stream.check(good.schema) is stream.check(good) is stream.check(good.to_pylist())
    bad = good.drop_columns(["amount"])
    for given in (bad, bad.schema):
        with pytest.raises(hg.InputError, match="no column 'amount'"):
            stream.check(given)
    assert engine.epoch == 1


def test_it_keeps_its_engine() -> None:
    stream = open_bank().stream(pay, order_by="ts")
    assert stream.run(rows("a")).num_rows == 1


def test_it_shows_itself() -> None:
    engine = open_bank()
    assert repr(engine.stream(pay, order_by="ts")) == "<stream pay: pay in the order of ts>"
    routed = engine.stream({"pay": pay}, route_by="kind", name="tills")
    assert repr(routed) == "<stream tills: pay by kind>"
    assert "kind" in routed.columns


WRONG: dict[str, Any] = {
    "order_by": "tss",
    "route_by": "kind",
    "watermark": "long",
    "late": "perhaps",
    "name": 5,
    "scheme": "quick",
    "threads": 0,
    "isolation": "PL9",
    "carry": [5],
    "idle": "1 second",
}


@pytest.mark.parametrize("option", WRONG)
@pytest.mark.parametrize("form", ["stream", "run", "sink", "flush", "explain"])
def test_an_error_names_the_option(option: str, form: str) -> None:
    engine = open_bank()
    given = [rows("a")] if form in ("run", "explain") else []
    with pytest.raises(hg.HeadgateError, match=option):
        getattr(engine, form)(pay, *given, **{option: WRONG[option]})


@pytest.mark.parametrize("form", ["stream", "run", "sink", "flush", "explain"])
def test_an_option_that_is_none_is_refused_with_the_one_that_is_meant(form: str) -> None:
    engine = open_bank()
    given = [rows("a")] if form in ("run", "explain") else []
    with pytest.raises(TypeError, match=r"no option 'orderby'.*did you mean 'order_by'"):
        getattr(engine, form)(pay, *given, orderby="ts")


@pytest.mark.parametrize("form", ["stream", "run", "sink", "flush", "explain"])
def test_help_shows_every_option_by_its_name(form: str) -> None:
    shown = inspect.signature(getattr(hg.Engine, form)).parameters
    assert [name for name in shown if name in DEFAULTS] == list(DEFAULTS)
    assert {name: shown[name].default for name in DEFAULTS} == dict(DEFAULTS)
    assert list(Options.__annotations__) == list(DEFAULTS)


def test_a_query_that_goes_on_over_an_older_copy_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_bank(tmp_path / "bank") as engine:
        feed = engine.stream(pay, order_by="ts").feed()
        for number in range(4):
            feed.apply(pa.Table.from_pylist([event("a", number)]), ("query", number))
    restore(tmp_path / "bank", 3, tmp_path / "older")
    with open_bank(tmp_path / "older") as engine:
        feed = engine.stream(pay, order_by="ts").feed()
        feed.apply(pa.Table.from_pylist([event("a", 9)]), ("query", 4))
        feed.apply(pa.Table.from_pylist([event("a", 10)]), ("query", 5))
    [told] = [message for message in caplog.messages if "batch" in message]
    assert "batch 4" in told and "batch 1 (epoch 3)" in told
    assert "above 1," in told and "the folders offsets, commits and sources/* of its" in told
    caplog.clear()
    with open_bank(tmp_path / "bank") as engine:  # the copy that it belongs to
        feed = engine.stream(pay, order_by="ts").feed()
        feed.apply(pa.Table.from_pylist([event("a", 9)]), ("query", 4))
    assert not caplog.messages


@pytest.mark.parametrize("name", [None, "till"])
def test_the_progress_of_a_feed_says_what_is_held_now(name: str | None) -> None:
    engine = open_bank()
    feed = engine.stream(pay, order_by="ts", watermark="10 seconds", name=name).feed()
    feed.apply(rows("a", "b"), ("query", 0))
    before = feed.progress()
    assert before is not None and before.held == 2 and "2 held" in repr(before)
    feed.flush()
    after = feed.progress()
    assert after == replace(before, held=0) and "held" not in repr(after)


def test_what_is_wrong_with_a_routed_stream_is_told_alone() -> None:
    engine = open_bank()
    with pytest.raises(hg.InputError, match="late is 'reject' or 'append'") as refused:
        engine.stream({"pay": pay}, route_by="kind", late="drop")
    assert refused.value.__context__ is None


def test_held_events_are_not_run_by_another_stream_of_the_same_name() -> None:
    engine = open_bank()
    options: dict[str, Any] = {"order_by": "ts", "watermark": "10 seconds", "name": "till"}
    engine.stream(pay, **options).run(rows("a", "b"))
    other = engine.stream(add, **options)
    for use in (lambda: other.run(rows("c", first=90)), other.flush):
        with pytest.raises(hg.InputError, match=r"'till' is of pay .* this one of add"):
            use()
    results = engine.stream(pay, **options).run(rows("c", first=90))
    assert set(results.column("transaction").to_pylist()) == {"pay"}


def test_held_events_are_not_judged_by_the_time_of_another_column() -> None:
    engine = open_bank()
    engine.run(pay, rows("a"), order_by="ts", watermark="10 seconds")
    with pytest.raises(hg.InputError, match="give each a name"):
        engine.run(pay, rows("b"), order_by=["ts", "id"], watermark="10 seconds")
    engine.run(pay, rows("b"), order_by=["ts", "id"], watermark="10 seconds", name="other")
    assert engine.metrics().held == 2


def test_what_is_no_list_of_columns_to_carry_is_told() -> None:
    given: Any = 7
    with pytest.raises(hg.InputError, match="carry"):
        open_bank().stream(pay, carry=given)
