"""A stream gets another column while rows of it are under way: in a batch, or in a window."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import FlowOracle
from tests.unit.dataflow.shows import NOON

OLD = "ts timestamp, id bigint"
seen = hg.Table("seen", "id bigint, n bigint, v bigint NULL", key="id")


def opened(path: Path, schema: str, kind: str) -> tuple[hg.Stream, hg.Engine]:
    batch = "2 rows" if kind == "open batch" else None
    came = hg.Stream("came", schema, order_by="ts", batch=batch)
    given = hg.Stream("given", schema, order_by="ts")
    sizes = {"window of rows": "3 rows", "window of time": "1 minute"}
    v = "max(v)" if "v " in schema else "null"
    query = f"select max(id) as id, count(*) as n, {v} as v from batch"

    @hg.procedure(came, output=given)
    def give(batch: Any, tx: hg.Tx) -> Any:
        return batch

    @hg.procedure(given if kind == "open batch" else given.window(sizes[kind]), writes=seen)
    def note(batch: Any, tx: hg.Tx) -> None:
        tx.insert(seen, query)

    flow = hg.Dataflow("flow", [give, note])
    return came, hg.open(str(path), tables=seen, dataflows=flow)


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"ts": NOON + datetime.timedelta(seconds=20 * number), "id": number, **more}


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("kind", ["open batch", "window of rows", "window of time"])
def test_rows_under_way_have_null_in_a_column_that_is_new(
    tmp_path: Path, kind: str, has_snapshot: bool
) -> None:
    came, engine = opened(tmp_path / "store", OLD, kind)
    with engine:
        engine.push(came, [row(0)])
    for number in (1, 2, 3):
        came, engine = opened(tmp_path / "store", f"{OLD}, v bigint NULL", kind)
        with engine:
            engine.push(came, [row(number, v=10 * number)])
            if has_snapshot:
                engine.snapshot()
            found = engine.sql("from seen order by id").rows()
    assert found == ([(1, 2, 10), (3, 2, 30)] if kind == "open batch" else [(2, 3, 20)])


@pytest.mark.parametrize("is_kept", [False, True], ids=["rows", "aggregates"])
@pytest.mark.parametrize("size", ["3 rows", "1 minute"])
def test_a_window_goes_on_where_columns_stand_in_another_order(
    tmp_path: Path, size: str, is_kept: bool
) -> None:
    slide = "1 row" if size == "3 rows" else "20 seconds"
    sums = hg.Stream("sums", "id bigint, total bigint")

    def opened_with(schema: str) -> tuple[hg.Stream, hg.Engine]:
        came = hg.Stream("came", schema, order_by="ts")
        kept: Any = {"aggregate": "sum(v) as total, max(id) as id"} if is_kept else {}
        query = "select max(id) as id, sum(v)::bigint as total from batch"

        def note(batch: Any, *more: Any) -> Any:
            return more[-1].sql("select id, total from aggregates" if is_kept else query)

        by_rows = hg.procedure(came.window(size, slide, **kept), output=sums, name="note")
        both = lambda batch, aggregates, tx: note(batch, tx)  # noqa: E731
        step = by_rows(both if is_kept else lambda batch, tx: note(batch, tx))
        return came, hg.open(tmp_path / "store", dataflows=hg.Dataflow("flow", [step]))

    last = 0
    for schema in (f"{OLD}, v bigint", "v bigint, ts timestamp, id bigint", f"v bigint, {OLD}",
                   f"v bigint, w int NULL, {OLD}"):  # fmt: skip
        came, engine = opened_with(schema)
        more = {"w": None} if "w int" in schema else {}
        with engine:
            for number in range(last, last + 3):
                engine.push(came, [row(number, v=10 * number, **more)])
            last += 3
            said = "select id, total from results where transaction = 'sums' order by id"
            found = engine.sql(said).rows()
    whole = [(n, 10 * sum(range(n - 2, n + 1))) for n in range(2, last)]
    assert [one for one in found if one[0] >= 2] == (whole if size == "3 rows" else whole[:-1])


@pytest.mark.parametrize("kind", ["open batch", "window of rows"])
@pytest.mark.parametrize("schema", [f"{OLD}, v bigint", "ts timestamp, id int", "ts timestamp"])
def test_columns_that_rows_under_way_do_not_have_are_refused(
    tmp_path: Path, schema: str, kind: str
) -> None:
    came, engine = opened(tmp_path / "store", OLD, kind)
    with engine:
        engine.push(came, [row(0)])
    with pytest.raises(hg.DeclarationError, match=r"rows of .* are under way in .*\(1 rows\)"):
        opened(tmp_path / "store", schema, kind)
    came, engine = opened(tmp_path / "store", OLD, kind)
    with engine:
        engine.push(came, [row(1), row(2), row(3)])
        assert engine.sql("select min(n) from seen").rows()[0][0] >= 2


def test_late_rows_of_a_source_are_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timed = hg.Stream("timed", OLD, order_by="ts", batch="1 minute")

    @hg.procedure(timed)
    def look(batch: Any, tx: hg.Tx) -> None:
        pass

    with hg.open(None, tables=seen, dataflows=hg.Dataflow("flow", [look])) as engine:
        engine.push(timed, [row(30), row(60)])
        engine.push(timed, [row(number % 20) for number in range(300)] + [{"ts": None, "id": 1}])
        counted = engine.metrics().streams["timed"]
        assert counted.outcomes["late"] == 300 and counted.outcomes["rejected"] == 1
        assert counted.outcomes["committed"] == 2 and counted.events == 303
        assert counted.latest == NOON + datetime.timedelta(seconds=20 * 60)
        assert 'headgate_events_total{stream="timed",outcome="late"} 300' in hg.prometheus(engine)
    assert "by their time" in caplog.text and "carry=" not in caplog.text


def test_what_recovery_runs_again_is_not_counted_as_come_in(tmp_path: Path) -> None:
    came = hg.Stream("came", OLD, order_by="ts")

    @hg.procedure(came)
    def look(batch: Any, tx: hg.Tx) -> None:
        pass

    said: Any = {"tables": seen, "dataflows": hg.Dataflow("flow", [look]), "recovery": "weak"}
    engine = hg.open(str(tmp_path / "store"), **said)
    engine.push(came, [row(1), row(2)])
    assert engine.metrics().streams["came"].events == 2
    del engine  # dropped, as by a crash: no snapshot is made
    with hg.open(str(tmp_path / "store"), **said) as again:
        assert again.metrics().streams["came"].events == 0


def test_what_nodes_did_and_what_waits_is_in_the_metrics_of_the_engine() -> None:
    came = hg.Stream("came", OLD, order_by="ts", batch="4 rows")

    @hg.procedure(came, writes=seen)
    def refuse(batch: Any, tx: hg.Tx) -> Any:
        return hg.abort("no") if batch.column("id")[0].as_py() == 0 else None

    with hg.open(None, tables=seen, dataflows=hg.Dataflow("flow", [refuse])) as engine:
        assert engine.metrics().streams["came"].events == 0
        results = engine.push(came, [row(number) for number in range(10)])
        assert engine.push(came, [{"ts": None, "id": 1}])["reason"][0].as_py() == (
            "null order column: ts"
        )
        found = engine.metrics()
        counted = found.nodes["refuse"]
        assert (counted.batches, counted.rows, counted.aborts, counted.waiting) == (2, 8, 1, 0)
        assert found.held == found.streams["came"].held == 2
        assert found.as_dict()["nodes"]["refuse"]["aborts"] == 1
        lines = hg.prometheus(engine).splitlines()
        assert 'headgate_node_aborts_total{node="refuse"} 1' in lines
        assert 'headgate_stream_held{stream="came"} 2' in lines
    assert results.num_rows > 10


def test_times_of_no_year_are_rejected_wherever_they_stand_in_their_buffer() -> None:
    times = hg.Stream("times", "ts timestamp, d date", order_by="ts")

    @hg.procedure(times)
    def take(batch: Any, tx: hg.Tx) -> None:
        assert batch.num_rows

    micros = pa.array([0, 2**62, 5, 7], pa.int64()).cast(times.schema["ts"].type.arrow)
    days = pa.array([1, 1, 2**30, 3], pa.int32()).cast(pa.date32())
    rows = pa.table({"ts": micros, "d": days})
    cuts = {(0, 4): 2, (1, 1): 0, (2, 1): 0, (2, 2): 1, (3, 1): 1, (0, 0): 0}
    with hg.open(None, tables=seen, dataflows=hg.Dataflow("flow", [take])) as engine:
        for (first, count), kept in cuts.items():
            found = engine.push(times, rows.slice(first, count)).to_pylist()
            outcomes = [one["outcome"] for one in found if one["transaction"] == "times"]
            assert outcomes.count("committed") == kept
            assert outcomes.count("rejected") == count - kept


def test_the_oracle_refuses_what_it_does_not_judge_and_sorts_what_is_handed_in() -> None:
    came = hg.Stream("came", OLD, order_by="ts")
    taken: list[list[int]] = []

    def note(batch: Any, tx: hg.Tx) -> None:
        taken.append(batch.column("id").to_pylist())

    def flow(of: Any) -> hg.Dataflow:
        return hg.Dataflow("flow", [hg.procedure(of)(note)])

    by_time = hg.Stream("came", OLD, order_by="ts", batch="1 minute")
    with pytest.raises(hg.DeclarationError, match="stream 'came' is of time"):
        FlowOracle([], flow(by_time))
    with pytest.raises(hg.DeclarationError, match="window of 'note' is of time"):
        FlowOracle([], flow(came.window("1 minute")))
    FlowOracle([], flow(came)).push(came, [row(3), row(1), row(2)])
    assert taken == [[1, 2, 3]]
