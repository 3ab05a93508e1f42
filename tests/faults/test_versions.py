"""Versions of rows, and a crash at every call to the disk: what is there is that of whole epochs.

After each crash the store is opened and goes on; its rows, its versions and what windows see of
them are those of an oracle that ran as many of the events.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, difference
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.tally import Tally

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
gauges = hg.Table("gauges", "id bigint, x double, label string", key="id", history="4 seconds")


@hg.transaction(event="ts timestamp, id bigint, x double", compiled=False)
def write(
    event: Any,
    seen: Any = gauges.window("id", size="3 seconds"),
    row: Any = gauges.at("id", create=True),
    out: Any = hg.output("total double, count bigint"),
) -> Any:
    out.total = seen.x.sum()
    out.count = len(seen)
    row.x = event.x
    row.label = f"of {event.id}"
    if event.x < 0:
        return hg.abort("negative")
    if event.x > 8:
        hg.delete(row)


EVENTS = [
    {"ts": START + dt.timedelta(seconds=n), "id": n % 2, "x": float(n * 7 % 11 - 1)}
    for n in range(14)
]
SNAPSHOT_AFTER = (4, 9)


def opened(disk: SimulatedDisk, recovery: str) -> hg.Engine:
    options: Any = {"recovery": recovery, "disk": disk, "clock": SimulatedClock()}
    return hg.open("/store", tables=[gauges], transactions=[write], **options)


def live(disk: SimulatedDisk, recovery: str) -> int:
    """Run the events from where the store is; returns how many were acknowledged."""
    engine = opened(disk, recovery)
    for number in range(engine.epoch, len(EVENTS)):
        engine.call(write, **EVENTS[number])
        if number in SNAPSHOT_AFTER:
            images = engine._memory.images() if recovery == "weak" else None
            engine._journal.store.snapshot(engine.epoch, images)
    engine.close()
    return len(EVENTS)


def check(disk: SimulatedDisk, recovery: str) -> None:
    """The store is that of the epochs it has, and goes on as if nothing had been."""
    engine, oracle = opened(disk, recovery), SerialOracle([gauges], [write])
    for event in EVENTS[: engine.epoch]:
        oracle.call(write, **event)
    assert difference(engine, oracle) is None
    for event in EVENTS[engine.epoch :]:
        expected = oracle.call(write, **event)
        found = engine.call(write, **event)
        assert [found.outcome, found["total"]] == [expected["outcome"], expected["total"]]
    assert difference(engine, oracle) is None
    engine.close()


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_crash_at_any_call_leaves_the_versions_of_whole_epochs(
    recovery: str, tally: Tally, long_run: bool
) -> None:
    whole = SimulatedDisk()
    live(whole, recovery)
    survivals = [None, *Survival]
    for call in range(1, whole.calls + 1, 1 if long_run else 3):
        disk = SimulatedDisk(crash_at=call)
        with pytest.raises(SimulatedCrash):
            live(disk, recovery)
        for survival in survivals if long_run else [survivals[call % len(survivals)]]:
            after = disk.after_kill() if survival is None else disk.after_crash(survival, call)
            check(after, recovery)
            tally.count("crashes among versions")
