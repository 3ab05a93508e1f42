"""Results: one row for every event, in order, with fixed columns and types."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg

DAY = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
table = hg.Table("t", "id bigint, n bigint", key="id", check="n < 100")


@hg.transaction(event="ts timestamp, id bigint, n bigint, why string")
def put(event, row=table.at("id"), out=hg.output("was bigint, label string")):
    if event.why != "":
        return hg.abort(event.why)
    out.was = row.n
    row.n = event.n
    out.label = "done"


@hg.transaction(event="ts timestamp, id bigint", compiled=False)
def look(event, row=table.at("id", mode="read"), out=hg.output("is_even boolean")):
    out.is_even = row.n % 2 == 0


def events(*reasons: str, key: int = 1) -> list[dict[str, Any]]:
    return [{"ts": DAY, "id": key, "n": 1, "why": why} for why in reasons]


@pytest.fixture
def engine() -> hg.Engine:
    found = hg.open(None, tables=[table], transactions=[put, look])
    found.load(table, [{"id": 1, "n": 10}])
    return found


def test_the_columns_are_fixed_then_the_order_then_the_output(engine: hg.Engine) -> None:
    found = engine.run(put, events("", "no"), order_by=["ts", "id"])
    assert found.column_names == [
        *("epoch", "position", "transaction", "outcome", "reason"),
        *("ts", "id"),
        *("was", "label"),
    ]
    words = [found.schema.field(name).type for name in ("transaction", "outcome", "reason")]
    assert all(kind.value_type == pa.string() for kind in words)
    assert found.schema.field("ts").type == pa.timestamp("us", tz="UTC")
    assert found.to_pylist() == [
        {
            **{"epoch": 2, "position": 0, "transaction": "put", "outcome": "committed"},
            **{"reason": None, "ts": DAY, "id": 1, "was": 10, "label": "done"},
        },
        {
            **{"epoch": 2, "position": 1, "transaction": "put", "outcome": "aborted"},
            **{"reason": "no", "ts": DAY, "id": 1, "was": None, "label": None},
        },
    ]


def test_a_routed_set_has_the_outputs_of_all_and_null_where_they_do_not_apply(
    engine: hg.Engine,
) -> None:
    given = [{**events("")[0], "kind": kind} for kind in ("put", "look", "nothing")]
    found = engine.run({"put": put, "look": look}, given, route_by="kind").to_pylist()
    shown = [(row["transaction"], row["was"], row["is_even"]) for row in found]
    assert shown == [("put", 10, None), ("look", None, False), (None, None, None)]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_every_reason_is_told_however_many_there_are(engine: hg.Engine, count: int) -> None:
    reasons = [f"reason {number}" for number in range(count)]
    given = [why for reason in reasons for why in (reason, "")]
    found = engine.run(put, events(*given, "again", reasons[0]))
    expected = [why or None for why in given]
    assert found.column("reason").to_pylist() == [*expected, "again", reasons[0]]


def test_an_abort_in_the_words_of_the_engine_stands_beside_the_engines_own(
    engine: hg.Engine,
) -> None:
    words = ["missing key: t", "", "check failed: t: n < 100", "null key: id"]
    given = events(*words) + events("", key=5)
    given += [{**events("")[0], "n": 200}, {**events("")[0], "id": None}]
    found = engine.run(put, given).column("reason").to_pylist()
    assert found == [
        *("missing key: t", None, "check failed: t: n < 100", "null key: id"),
        *("missing key: t", "check failed: t: n < 100", "null key: id"),
    ]


def test_an_empty_reason_is_not_no_reason(engine: hg.Engine) -> None:
    @hg.transaction(event="id bigint", compiled=False, name="stop")
    def stop(event, row=table.at("id")):
        return hg.abort("")

    other = hg.open(None, tables=[table], transactions=[stop])
    other.load(table, [{"id": 1, "n": 10}])
    result = other.call(stop, id=1)
    assert (result.outcome, result.reason) == ("aborted", "")


def test_an_output_that_was_never_set_is_zero() -> None:
    @hg.transaction(event="id bigint", compiled=False)
    def nothing(
        event,
        row=table.at("id"),
        out=hg.output("a int, b double, c string, d boolean, e decimal(5,2), f date, g timestamp"),
    ):
        pass

    engine = hg.open(None, tables=[table], transactions=[nothing])
    engine.load(table, [{"id": 1, "n": 1}])
    row = engine.run(nothing, [{"id": 1}]).to_pylist()[0]
    assert [row[name] for name in "abcd"] == [0, 0.0, "", False]
    assert str(row["e"]) == "0.00"
    assert row["f"] == datetime.date(1970, 1, 1)
    assert row["g"] == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def test_results_of_several_runs_can_be_put_together(engine: hg.Engine) -> None:
    parts = [engine.run(put, events(*reasons)) for reasons in ((), ("",), ("x",), ("x", ""))]
    assert pa.concat_tables(parts).num_rows == 4


def test_the_result_of_a_call_reads_as_items_and_as_attributes(engine: hg.Engine) -> None:
    result = engine.call(put, ts=DAY, id=1, n=7, why="")
    assert result.committed and result.was == result["was"] == 10
    assert dict(result)["outcome"] == "committed" and len(result) == 7
    refused = engine.call(put, ts=DAY, id=1, n=7, why="closed")
    assert not refused.committed and refused.reason == "closed" and refused.was is None
    assert "closed" in repr(refused)
    with pytest.raises(
        AttributeError, match=r"the result has no column 'balance': epoch, position"
    ):
        _ = result.balance


def test_a_call_is_an_epoch_of_its_own(engine: hg.Engine) -> None:
    epochs = [engine.call(put, ts=DAY, id=1, n=n, why="").epoch for n in range(3)]
    assert epochs == [2, 3, 4] and engine.epoch == 4


def test_an_order_column_may_not_be_one_of_the_results_own() -> None:
    @hg.transaction(event="position bigint, id bigint", compiled=False)
    def placed(event, row=table.at("id")):
        pass

    engine = hg.open(None, tables=[table], transactions=[placed])
    with pytest.raises(hg.InputError, match="every result has a column 'position' of its own"):
        engine.run(placed, [{"position": 1, "id": 1}], order_by="position")


def test_an_order_column_may_not_be_an_output(engine: hg.Engine) -> None:
    @hg.transaction(event="was bigint, id bigint", compiled=False)
    def twice(event, row=table.at("id"), out=hg.output("was bigint")):
        pass

    other = hg.open(None, tables=[table], transactions=[twice])
    with pytest.raises(hg.DeclarationError, match="is an order column and an output column"):
        other.run(twice, [{"was": 1, "id": 1}], order_by="was")
