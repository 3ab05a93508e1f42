"""Rows that expire, rows with nulls, and a crash at every call to the disk.

After each crash the store is opened and goes on; its rows are those of an oracle that ran as many
of the batches: what had expired stays gone, what others refer to stays, and nulls are nulls.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.tally import Tally

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
rooms = hg.Table(
    "rooms",
    "id bigint, name string NULL, until timestamp NULL",
    key="id",
    unique="name",
    expires="until",
)
stays = hg.Table(
    "stays",
    "id bigint, room bigint NULL, since timestamp, rate double NULL, vip boolean NULL",
    key="id",
    references={"room": rooms},
    expires="since + 3 seconds",
)
TABLES = [rooms, stays]


@hg.transaction(
    event="ts timestamp, id bigint, name string NULL, n bigint, rate double NULL", compiled=False
)
def move_in(
    event: Any,
    room: Any = rooms.at("id", create=True),
    stay: Any = stays.at("n", create=True),
    out: Any = hg.output("was double NULL, name string NULL"),
) -> Any:
    out.was = stay.rate
    out.name = room.name
    room.name = event.name
    room.until = None if event.n % 5 == 4 else event.ts
    stay.room = None if event.n % 3 == 2 else event.id
    stay.since = event.ts
    stay.rate = event.rate
    stay.vip = None if event.rate is None else event.rate > 1.0
    if event.n == 6:
        return hg.abort("six")


def event_of(n: int) -> dict[str, Any]:
    return {
        "ts": START + dt.timedelta(seconds=n // 2 + n // 9 * 3),
        "id": n * 5 % 7,
        "name": None if n % 4 == 1 else f"room {n * 5 % 7}",
        "n": n * 3 % 8,
        "rate": None if n % 3 == 0 else n / 4,
    }


BATCHES = [[event_of(n) for n in range(first, first + 3)] for first in range(0, 27, 3)]
SNAPSHOT_AFTER = (3, 6)


def opened(disk: SimulatedDisk, recovery: str) -> hg.Engine:
    options: Any = {"recovery": recovery, "disk": disk, "clock": SimulatedClock()}
    return hg.open("/store", tables=TABLES, transactions=[move_in], **options)


def live(disk: SimulatedDisk, recovery: str) -> None:
    """Run the batches from where the store is."""
    engine = opened(disk, recovery)
    for number in range(engine.epoch, len(BATCHES)):
        engine.run(move_in, BATCHES[number], order_by="ts", name="s")
        if number in SNAPSHOT_AFTER:
            images = engine._memory.images() if recovery == "weak" else None
            engine._journal.store.snapshot(engine.epoch, images)
    engine.close()


def check(disk: SimulatedDisk, recovery: str) -> None:
    """The store is that of the epochs it has, and goes on as if nothing had been."""
    engine, oracle = opened(disk, recovery), SerialOracle(TABLES, [move_in])
    for events in BATCHES[: engine.epoch]:
        oracle.run(move_in, events, order_by="ts", name="s")
    assert difference(engine, oracle) is None
    for events in BATCHES[engine.epoch :]:
        expected = oracle.run(move_in, events, order_by="ts", name="s")
        found = engine.run(move_in, events, order_by="ts", name="s")
        assert results_difference(found, expected) is None
    assert difference(engine, oracle) is None
    engine.close()


def test_rows_expire_and_have_nulls_in_the_life_that_crashes() -> None:
    with hg.open(None, tables=TABLES, transactions=[move_in]) as engine:
        for events in BATCHES:
            engine.run(move_in, events, order_by="ts", name="s")
        assert all(engine.metrics().expired.values()), engine.metrics().expired
        nulls = engine.sql(
            "select count(*) - count(rate) as n, count(rate) as m from stays"
        ).dicts()
        assert nulls[0]["n"] and nulls[0]["m"]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_crash_at_any_call_leaves_what_expired_gone_and_nulls_null(
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
            tally.count("crashes among rows that expire, and nulls")
