"""Metrics: an engine says what became of the events of each stream, and warns when too few ran."""

from __future__ import annotations

import copy
import datetime as dt
import json
import logging
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.engine.metrics import OTHER_REASONS, REASONS_MAX, Meter, Stopwatch, Tally
from headgate.testing import SimulatedClock
from tests.unit.engine.test_carry import ROUTES, at, event, open_bank, pay

OPTIONS: dict[str, Any] = {"order_by": "ts", "watermark": "5 seconds"}


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(set(lines)) == len(lines)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_each_stream_is_counted_by_outcome_and_reason(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.run(pay, [event("a", 20), event("b", 21)], **OPTIONS)
        engine.run(
            pay,
            [event("c", 1), event("d", 18, amount=101), event("e", 19, number=None),
             event("f", 30), event("g", 31)],
            **OPTIONS,
        )  # fmt: skip
        engine.run(ROUTES, [event("h", 1, kind="fly")], route_by="kind", name="kinds")
        found = engine.metrics()
        assert list(found.streams) == ["kinds", "pay"]
        stream = found.streams["pay"]
        assert stream.outcomes == {"committed": 2, "aborted": 1, "rejected": 1, "late": 1}
        assert stream.reasons == {
            "late: ts is before the watermark": 1, "null key: id": 1, "too much": 1
        }  # fmt: skip
        assert (stream.events, stream.batches, stream.held, stream.flushes) == (5, 2, 2, 0)
        assert (stream.watermark, stream.latest) == (at(26), at(31))
        assert {name: times.count for name, times in stream.steps.items()} == dict.fromkeys(
            ("order", "execute", "log", "sync"), 2
        )
        assert stream.log_bytes > 0 and found.log_bytes > stream.log_bytes
        assert found.streams["kinds"].reasons == {"unknown route: fly": 1}
        assert (found.epoch, found.epochs, found["retries"], found.held) == (4, 4, 0, 2)
        assert found.log.count == found.sync.count == 4
        engine.flush(pay, **OPTIONS)
        engine.snapshot()
        found = engine.metrics()
        assert (found.streams["pay"].flushes, found.streams["pay"].held) == (1, 0)
        assert found.snapshots.count == 1 and found.snapshots.most > 0
        assert json.loads(json.dumps(found.as_dict()))["streams"]["pay"]["held"] == 0
        assert "5 events" not in repr(found) and "7 events: 4 committed" in repr(
            found.streams["pay"]
        )
    with open_bank(tmp_path / "bank") as engine:
        assert (engine.metrics().epochs, engine.metrics().epoch) == (0, 5)


def test_metrics_sum_up_to_the_results_whatever_runs() -> None:
    engine, chance = open_bank(), random.Random(3)
    expected: dict[str, int] = {}
    for _ in range(30):
        rows = [
            event(n, chance.uniform(0, 60), chance.choice((1, 2, None, 9)), chance.choice((1, 200)))
            for n in range(chance.randrange(20))
        ]
        found = engine.run(pay, rows, **OPTIONS)
        for word in found.column("outcome").to_pylist():
            expected[word] = expected.get(word, 0) + 1
    stream = engine.metrics().streams["pay"]
    assert {word: count for word, count in stream.outcomes.items() if count} == expected
    missed = sum(count for word, count in expected.items() if word != "committed")
    assert sum(stream.reasons.values()) == missed
    assert stream.held == engine.metrics().held


def test_calls_and_batches_in_a_pipeline_are_counted(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.call(pay, ts=at(1), id=1, amount=1)
        engine.run(pay, [event(n, n) for n in range(8)], order_by="ts", batch_size=3)
        engine.submit(pay, ts=at(1), id=1, amount=200).result()
        stream = engine.metrics().streams["pay"]
        assert (stream.batches, stream.events, stream.outcomes["aborted"]) == (5, 10, 1)
        assert stream.steps["log"].count == 5


def test_the_lag_is_from_the_youngest_event_to_now() -> None:
    clock = SimulatedClock()
    engine = open_bank(clock=clock)
    now = dt.datetime.fromtimestamp(clock.time_us() / 1e6, dt.UTC)
    engine.run(pay, [{"ts": now - dt.timedelta(seconds=40), "id": 1, "amount": 1}], order_by="ts")
    lag = engine.metrics().streams["pay"].lag_seconds
    assert lag is not None and 40 <= lag < 41


def test_prometheus_reads_the_same_counts(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.run(pay, [event("a", 1), event("b", 2, amount=200)], order_by="ts", name='a"b')
        text = hg.prometheus(engine, tmp_path / "headgate.prom")
        assert (tmp_path / "headgate.prom").read_text() == text
        found = samples(text)
        assert found['headgate_events_total{stream="a\\"b",outcome="aborted"}'] == 1
        assert found['headgate_reasons_total{stream="a\\"b",reason="too much"}'] == 1
        assert found["headgate_epoch"] == 2
        count = found['headgate_step_seconds_count{stream="a\\"b",step="sync"}']
        label = '{stream="a\\"b",step="sync",le="+Inf"}'
        assert found[f"headgate_step_seconds_bucket{label}"] == count == 1
        steps = [value for name, value in found.items() if 'step="sync",le=' in name]
        assert steps == sorted(steps)
        assert hg.prometheus(engine.metrics()).startswith("# HELP")


def test_quantiles_are_right_to_a_tenth_and_memory_stays() -> None:
    chance, watch, noted = random.Random(1), Stopwatch(), []
    for _ in range(5000):
        noted.append(chance.lognormvariate(-7, 2))
        watch.note(noted[-1])
    noted.sort()
    found = watch.times()
    for share, value in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert value == pytest.approx(noted[int(share * 5000)], rel=0.15)
    assert found.count == 5000 and found.most == noted[-1]
    assert found.seconds == pytest.approx(sum(noted))
    watch.note(0.0)
    watch.note(1e9)
    assert watch.times().count == 5002


def batch(outcomes: list[int], reasons: list[str | None]) -> Tally:
    tally = Tally()
    for outcome, reason in zip(outcomes, reasons, strict=True):
        tally.add(outcome, 1, reason)
    return tally


def test_very_many_reasons_are_counted_together() -> None:
    meter = Meter("s")
    for n in range(REASONS_MAX + 50):
        meter.note_batch(batch([1], [f"reason {n}"]), None)
    found = meter.reasons()
    assert len(found) == REASONS_MAX + 1 and found[OTHER_REASONS] == 50


def test_a_share_of_late_events_is_warned_of_once_until_it_is_better(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = Meter("tills")
    good, late = batch([0] * 100, [None] * 100), batch([3] * 100, ["late: ts is before"] * 100)
    for _ in range(50):
        meter.note_batch(good, None)
    assert not caplog.messages
    for _ in range(20):
        meter.note_batch(late, None)
    assert len(caplog.messages) == 1
    told = caplog.messages[0]
    for word in ("'tills'", "%", "late: ts is before", "longer watermark"):
        assert word in told
    for _ in range(150):
        meter.note_batch(good, None)
    assert len(caplog.messages) == 1
    bad = batch([2] * 200, ["null key: id"] * 200)
    meter.note_batch(bad, None)
    assert len(caplog.messages) == 2 and "null key: id" in caplog.messages[1]


def test_what_is_late_after_a_flush_is_not_for_want_of_a_watermark(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = Meter("tills")
    meter.note_batch(batch([0] * 100, [None] * 100), None, is_flush=True)
    meter.note_batch(batch([3] * 100, ["late: ts is before"] * 100), None)
    [told] = caplog.messages
    assert "moves the watermark to the youngest event" in told and "longer watermark" not in told


def test_few_bad_events_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter("s")
    for _ in range(100):
        meter.note_batch(batch([0] * 200 + [2], [None] * 200 + ["null key: id"]), None)
    for _ in range(9):
        Meter("t").note_batch(batch([2], ["null key: id"]), None)
    assert not caplog.messages


def test_a_share_is_told_of_a_hundred_events_or_more(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter("s")
    meter.note_batch(batch([0] * 79 + [2] * 20, [None] * 79 + ["null key: id"] * 20), None)
    assert not caplog.messages
    meter.note_batch(batch([0], [None]), None)
    [told] = caplog.messages
    assert "20.0 % of the last 100 events" in told


@pytest.mark.parametrize(
    ("which", "name", "words"),
    [
        ("metrics", "stream", "'stream'; the attributes are: epoch, .*; did you mean 'streams'"),
        ("stream", "lagseconds", "'lagseconds'; the attributes are: .*did you mean 'lag_seconds'"),
        ("times", "p90", "'p90'; the attributes are: count, seconds, p50, .*; did you mean 'p9"),
    ],
)
def test_an_unknown_attribute_is_told_with_those_there_are(
    which: str, name: str, words: str
) -> None:
    with open_bank() as engine:
        engine.run(pay, [event("a", 1)])
        found = engine.metrics()
        stream = found.streams["pay"]
        one = {"metrics": found, "stream": stream, "times": stream.steps["sync"]}[which]
        with pytest.raises(AttributeError, match=words):
            getattr(one, name)
        assert copy.copy(one).as_dict() == pickle.loads(pickle.dumps(one)).as_dict()


def test_an_engine_logs_its_life(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "headgate"):
        with open_bank(tmp_path / "bank") as engine:
            engine.run(pay, [event("a", 1)])
            engine.snapshot()
        told = [(record.levelname, record.name, record.message) for record in caplog.records]
    assert any(level == "INFO" and "opened" in words for level, _, words in told)
    assert ("DEBUG", "headgate.streams", "stream 'pay': a batch of 1 results") in told
    assert any(level == "INFO" and "snapshot of epoch 2" in words for level, _, words in told)
    assert any(level == "INFO" and "closed" in words for level, _, words in told)
    caplog.clear()
    broken = open_bank(tmp_path / "other")
    broken._guard.stop("the disk is full")
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("ERROR", "the engine is stopped: the disk is full; open it again")
    ]


def test_a_damaged_store_is_not_said_to_be_worth_another_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.run(pay, [event("a", 1)])
    (log,) = sorted((tmp_path / "bank" / "log").iterdir())[:1]
    content = bytearray(log.read_bytes())
    content[150] ^= 1
    log.write_bytes(content)
    with pytest.raises(hg.DamageError):
        open_bank(tmp_path / "bank")
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert "restore the store from a backup" in told[0] and "again" not in told[0]


def test_the_warning_gives_a_reason_of_what_it_warns_of(caplog: pytest.LogCaptureFixture) -> None:
    """Aborts are common and no cause for a warning: theirs is not the reason it names."""
    stock = hg.Table("stock", "id bigint, n bigint", key="id")

    @hg.transaction(event="id bigint, n bigint", compiled=False)
    def sell(event: Any, row: Any = stock.at("id", create=True)) -> None:
        if event.n < 0:
            return hg.abort("sold out")
        row.n += event.n
        return None

    with hg.open(None, tables=[stock], transactions=[sell]) as engine:
        engine.run(sell, [{"id": 1, "n": -1}] * 950 + [{"id": None, "n": 1}] * 50)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "rejected (null key: id)" in warned[0]


def test_a_flush_is_counted_in_every_step(tmp_path: Path) -> None:
    with open_bank(tmp_path / "bank") as engine:
        engine.run(pay, [event("a", 1)], **OPTIONS, name="w")
        engine.flush(pay, **OPTIONS, name="w")
        steps = engine.metrics().streams["w"].steps
        assert {name: times.count for name, times in steps.items()} == dict.fromkeys(steps, 2)


def test_what_is_held_is_seen_from_the_first_moment(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {"route_by": "kind", "name": "kinds", **OPTIONS}
    with open_bank(tmp_path / "bank") as engine:
        engine.run(pay, [event("a", 20), event("b", 21)], **OPTIONS)
        engine.run(ROUTES, [event("c", 30, kind="pay")], **kinds)
        before = {name: (one.held, one.watermark) for name, one in engine.metrics().streams.items()}
    assert before == {"pay": (2, at(16)), "kinds": (1, at(25))}
    with open_bank(tmp_path / "bank") as engine:
        found = engine.metrics()
        assert {name: (one.held, one.watermark) for name, one in found.streams.items()} == before
        assert found.held == 3 and found.streams["pay"].events == 0
        assert samples(hg.prometheus(engine))['headgate_stream_held{stream="kinds"}'] == 1
        engine.flush(pay, **OPTIONS)
        found = engine.metrics()
        assert list(found.streams) == ["kinds", "pay"]
        assert (found.streams["pay"].held, found.streams["pay"].events) == (0, 2)
        engine.run(ROUTES, [event("d", 31, kind="add")], **kinds)
        assert engine.metrics().streams["kinds"].held == 2
