"""The tail of a stream: what a watermark holds back runs once, when asked for or by time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from tests.unit.engine.test_carry import at, event, open_bank, outcomes, pay

OPTIONS: dict[str, Any] = {"order_by": "ts", "watermark": "5 seconds", "carry": "event_id"}
STRAY = """
import os, sys
sys.path.insert(0, {root!r})
from tests.unit.engine.test_flush import *
engine = open_bank({path!r})
engine.sink(pay, **OPTIONS)._feed.apply(rows("a", "b"), ("q1", 0))
os._exit(9)
"""


def rows(*names: str, first: float = 1) -> pa.Table:
    return pa.Table.from_pylist([event(name, first + n) for n, name in enumerate(names)])


def balance(engine: hg.Engine) -> float:
    return float(engine.sql("select balance from accounts where id = 1").rows()[0][0])


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_sink_flushes_what_its_own_queries_hold() -> None:
    engine = open_bank()
    sink, other = engine.sink(pay, **OPTIONS), engine.sink(pay, **OPTIONS)
    sink._feed.apply(rows("a", "b"), ("q1", 0))
    sink._feed.apply(rows("c"), ("q2", 0))
    other._feed.apply(rows("d"), ("q3", 0))
    assert outcomes(sink.flush()) == [("a", "committed"), ("b", "committed"), ("c", "committed")]
    assert sink.flush().num_rows == 0
    assert outcomes(other.flush("q3")) == [("d", "committed")]
    assert balance(engine) == 6.0
    # What comes again after the flush is recognised, and what is older is late.
    assert sink._feed.apply(rows("a", "b"), ("q1", 0)).num_rows == 0
    found = sink._feed.apply(rows("e", first=0), ("q1", 1))
    assert outcomes(found) == [("e", "late")]


def test_a_named_sink_flushes_by_its_name_also_after_a_restart(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.sink(pay, name="tills", **OPTIONS)._feed.apply(rows("a"), ("q1", 0))
    with open_bank(tmp_path / "bank") as engine:
        assert outcomes(engine.sink(pay, name="tills", **OPTIONS).flush()) == [("a", "committed")]
    with open_bank(tmp_path / "bank") as engine:
        assert engine.sink(pay, name="tills", **OPTIONS).flush().num_rows == 0
        assert balance(engine) == 9.0


def test_flushing_what_does_not_exist_names_what_holds_events(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        with pytest.raises(hg.InputError, match="no stream of this engine holds events back"):
            engine.flush(pay, **OPTIONS)
        engine.sink(pay, **OPTIONS)._feed.apply(rows("a", "b"), ("q1", 0))
        with pytest.raises(hg.InputError, match=r"no stream 'pay'.*'query q1' \(2\).*flush"):
            engine.flush(pay, **OPTIONS)
        engine.run(pay, [], **OPTIONS)
        assert engine.flush(pay, **OPTIONS).num_rows == 0  # it exists and holds nothing
        with pytest.raises(hg.InputError, match="give the order_by"):
            engine.flush(pay, name="query q1")
    with open_bank(tmp_path / "bank") as engine:
        with pytest.raises(hg.InputError, match=r"which query is its own.*'query q1' \(2\)"):
            engine.sink(pay, **OPTIONS).flush()
        with pytest.raises(hg.InputError, match="no stream 'query q9' to flush"):
            engine.sink(pay, **OPTIONS).flush("q9")
        assert engine.flush(pay, name="query q1", **OPTIONS).num_rows == 2


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_flush_is_an_epoch_that_recovery_does_not_repeat(tmp_path: Path, recovery: str) -> None:
    with open_bank(tmp_path / "bank", recovery=recovery) as engine:
        sink = engine.sink(pay, **OPTIONS)
        sink._feed.apply(rows("a", "b"), ("q1", 0))
        before = engine.epoch
        assert sink.flush().column("epoch").to_pylist() == [before + 1] * 2
    with open_bank(tmp_path / "bank", recovery=recovery) as engine:
        assert engine.epoch == before + 1 and balance(engine) == 8.0
        assert engine.sink(pay, **OPTIONS).flush("q1").num_rows == 0


def test_what_a_killed_sink_held_is_flushed_once_after_the_restart(tmp_path: Path) -> None:
    program = STRAY.format(root=str(Path(__file__).parents[3]), path=str(tmp_path / "bank"))
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    for expected in (2, 0):
        with open_bank(tmp_path / "bank") as engine:
            assert engine.sink(pay, **OPTIONS).flush("q1").num_rows == expected
            assert balance(engine) == 8.0


def test_an_idle_stream_runs_what_it_holds() -> None:
    engine = open_bank()
    feed = engine.sink(pay, idle="0.2 seconds", **OPTIONS)._feed
    feed.apply(rows("a", "b"), ("q1", 0))
    assert balance(engine) == 10.0
    wait_for(lambda: balance(engine) == 8.0)
    epoch = engine.epoch
    feed.apply(rows("c", first=30), ("q1", 1))
    wait_for(lambda: balance(engine) == 7.0)
    assert engine.epoch == epoch + 2
    time.sleep(0.5)
    assert engine.epoch == epoch + 2  # nothing is left to do
    engine.close()


def test_events_that_come_keep_a_stream_from_being_idle() -> None:
    engine = open_bank()
    options = {**OPTIONS, "watermark": "1 hour", "idle": "30 minutes"}
    engine.run(pay, rows("a"), **options)
    due = engine._batches.idle._waiting["run pay"][0]
    engine.run(pay, [], **options)
    assert engine._batches.idle._waiting["run pay"][0] == due  # nothing came
    engine.run(pay, rows("b"), **options)
    assert engine._batches.idle._waiting["run pay"][0] > due
    engine._batches.flush(*[engine._batches.idle._waiting["run pay"][1], "run pay"],
                       lambda: engine._batches.idle.is_due("run pay"))  # fmt: skip
    assert balance(engine) == 10.0  # a timer that came too late to its turn does nothing
    engine.close()


def test_a_named_stream_is_idle_from_the_restart_on(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.sink(pay, name="tills", **OPTIONS)._feed.apply(rows("a"), ("q1", 0))
    with open_bank(tmp_path / "bank") as engine:
        engine.sink(pay, name="tills", idle="0.1 seconds", **OPTIONS)
        wait_for(lambda: balance(engine) == 9.0)


def test_a_closed_engine_leaves_no_timer_behind(tmp_path: Path) -> None:
    engine = open_bank(tmp_path / "bank")
    engine.run(pay, rows("a"), idle="0.3 seconds", **OPTIONS)
    thread = engine._batches.idle._thread
    engine.close()
    assert thread is not None and not thread.is_alive()
    with open_bank(tmp_path / "bank") as engine:
        assert engine.flush(pay, **OPTIONS).num_rows == 1


@pytest.mark.parametrize("options", [{"idle": "1 second"}, {**OPTIONS, "idle": "0 seconds"}])
def test_an_idle_time_needs_a_watermark(options: Any) -> None:
    with pytest.raises(hg.InputError, match="idle is a time above zero, of a stream with a water"):
        open_bank().run(pay, [], **options)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"amount": None}, {}, "no column 'amount'"),
        ({"event_id": None}, {}, "no column 'event_id'"),
        ({"amount": pa.array(["x"])}, {}, "column 'amount'.*string.*int"),
        ({"ts": pa.array([1.5])}, {}, "column 'ts'.*double.*timestamp"),
        ({"event_id": pa.array([b"x"])}, {}, "carry: column 'event_id' is binary"),
        ({"kind": pa.array([7])}, {"route_by": "kind"}, "route_by: column 'kind' is int64"),
        ({"kind": pa.array([["pay"]])}, {"route_by": "kind"}, "route_by: column 'kind' is list"),
    ],
)
def test_a_sink_refuses_columns_before_the_start(change: Any, options: Any, words: str) -> None:
    engine = open_bank()
    what = {"pay": pay} if options else pay
    sink = engine.sink(what, **OPTIONS, **options)
    good = pa.Table.from_pylist([event("a", 1, kind="pay")])
    assert sink.check(good) is sink
    assert sink.check(good.schema) is sink
    assert sink.check(good.to_pylist()) is sink
    columns = dict(zip(good.column_names, good.columns, strict=True)) | change
    bad = pa.table({name: column for name, column in columns.items() if column is not None})
    with pytest.raises(hg.InputError, match=words):
        sink.check(bad)
    assert engine.epoch == 1 and at(0) is not None


def test_a_check_says_what_a_run_would_say() -> None:
    engine = open_bank()
    bad = rows("a").drop_columns(["amount"])
    with pytest.raises(hg.InputError) as run:
        engine.run(pay, bad, **OPTIONS)
    with pytest.raises(hg.InputError) as check:
        engine.sink(pay, **OPTIONS).check(bad)
    assert str(run.value) == str(check.value)
