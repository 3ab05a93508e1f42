"""Times end with the years 1 and 9999: what lies beyond is never stored, so it is never met."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import SerialOracle

LAST_US = 253_402_300_799_999_999
FIRST_US = -62_135_596_800_000_000

clocks = hg.Table(
    "clocks",
    "id bigint, at timestamp DEFAULT '1970-01-01', day date DEFAULT '1970-01-01'",
    key="id",
)


@hg.transaction(event="id bigint, us bigint, days bigint")
def wind(
    event: Any, clock: Any = clocks.at("id", create=True), out: Any = hg.output("to timestamp")
) -> None:
    clock.at = event.us
    clock.day = event.days
    out.to = event.us


@hg.transaction(event="id bigint, us bigint, days bigint", compiled=False)
def wind_plainly(
    event: Any, clock: Any = clocks.at("id", create=True), out: Any = hg.output("to timestamp")
) -> None:
    clock.at = event.us
    clock.day = event.days
    out.to = event.us


@hg.transaction(event="ts timestamp, day date")
def note(event: Any, out: Any = hg.output("n int")) -> None:
    out.n = 1


@pytest.mark.parametrize("transaction", [wind, wind_plainly], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    ("us", "days", "fits"),
    [
        (LAST_US, 2_932_896, True),
        (LAST_US + 1, 0, False),
        (FIRST_US, -719_162, True),
        (FIRST_US - 1, 0, False),
        (2**62, 0, False),
        (0, 2_932_897, False),
        (0, -719_163, False),
        (0, 2**31 - 1, False),
    ],
)
def test_a_time_beyond_the_years_aborts_and_the_engine_goes_on(
    transaction: Any, us: int, days: int, fits: bool
) -> None:
    event = {"id": 1, "us": us, "days": days}
    with hg.open(None, tables=[clocks], transactions=[transaction]) as engine:
        for result in (
            engine.call(transaction, **event),
            engine.call_once("key", transaction, **event),
            engine.submit(transaction, **event).result(),
        ):
            assert result.committed == fits
            assert fits or result.reason == "error: OverflowError: overflow"
        row = engine.get("clocks", 1)
        assert (row is not None) == fits
        assert engine.stopped is None
    oracle = SerialOracle([clocks], [transaction])
    outcome = oracle.run(transaction, [event])[0]
    assert (outcome["outcome"] == "committed") == fits


def test_events_with_times_beyond_the_years_are_rejected_and_others_run() -> None:
    times = pa.array(
        np.array([0, LAST_US, LAST_US + 1, FIRST_US - 1]), pa.timestamp("us", tz="UTC")
    )
    days = pa.array(np.array([0, 2_932_896, 0, 0], np.int32)).view(pa.date32())
    seconds = pa.array(np.array([0, 0, LAST_US // 1_000_000 + 1, 0]), pa.timestamp("s"))
    far = pa.array(np.array([0, 2_932_897, 0, -719_163], np.int32)).view(pa.date32())
    with hg.open(None, transactions=[note]) as engine:
        found = engine.run(note, pa.table({"ts": times, "day": days})).column("reason").to_pylist()
        assert found.count("out of range: ts") == 2 and found.count(None) == 2
        found = engine.run(note, pa.table({"ts": seconds, "day": far})).column("reason").to_pylist()
        assert found.count("out of range: ts") == 1 and found.count("out of range: day") == 2
        assert engine.call(note, ts=LAST_US, day=dt.date.max).committed
        assert engine.call(note, ts=LAST_US + 1, day=0).reason == "out of range: ts"
