"""Calls with a key, and a crash at every call to the disk: each is applied once, told or not."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.tally import Tally

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")


@hg.transaction(event="src bigint, dst bigint, amount bigint", compiled=False)
def move(
    event: Any,
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
    out: Any = hg.output("left bigint"),
) -> Any:
    src.balance -= event.amount
    dst.balance += event.amount
    out.left = src.balance


ROWS = [{"id": number, "balance": 10} for number in range(3)]
CALLS = {f"key {number}": {"src": number % 3, "dst": (number + 1) % 3, "amount": number}
         for number in range(1, 13)}  # fmt: skip
SNAPSHOT_AFTER = ("key 4", "key 9")
Told = dict[str, dict[str, Any]]


def opened(disk: SimulatedDisk, recovery: str) -> hg.Engine:
    engine = hg.open(
        "/bank",
        tables=[accounts],
        transactions=[move],
        recovery=recovery,
        disk=disk,
        clock=SimulatedClock(),
    )
    engine.load(accounts, ROWS)
    return engine


def live(disk: SimulatedDisk, told: Told, recovery: str) -> None:
    """Send every call, some twice, with snapshots in between."""
    engine = opened(disk, recovery)
    for number, (key, columns) in enumerate(CALLS.items()):
        told[key] = dict(engine.call_once(key, move, **columns))
        if number % 3 == 0:
            assert dict(engine.call_once(key, move, **columns)) == told[key]
        if key in SNAPSHOT_AFTER:
            images = engine._memory.images() if recovery == "weak" else None
            engine._journal.store.snapshot(engine.epoch, images)
    engine.close()


def check(disk: SimulatedDisk, told: Told, recovery: str) -> None:
    """A client that was not answered sends its call again; so do those that were."""
    engine = opened(disk, recovery)
    found = {key: dict(engine.call_once(key, move, **columns)) for key, columns in CALLS.items()}
    assert {key: found[key] for key in told} == told
    oracle = SerialOracle([accounts], [move])
    oracle.load(accounts, ROWS)
    for key, columns in CALLS.items():
        result = oracle.call(move, **columns)
        assert [found[key][name] for name in ("outcome", "reason", "left")] == [
            result[name] for name in ("outcome", "reason", "left")
        ]
    rows = engine.sql("select id, balance from accounts order by id").dicts()
    assert rows == oracle.table("accounts")
    engine.close()


def calls_of(recovery: str) -> int:
    disk = SimulatedDisk()
    live(disk, {}, recovery)
    return disk.calls


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_crash_at_any_call_applies_each_key_once(
    recovery: str, tally: Tally, long_run: bool
) -> None:
    survivals = [None, *Survival]
    for call in range(1, calls_of(recovery) + 1):
        disk, told = SimulatedDisk(crash_at=call), {}
        with pytest.raises(SimulatedCrash):
            live(disk, told, recovery)
        for survival in survivals if long_run else [survivals[call % len(survivals)]]:
            after = disk.after_kill() if survival is None else disk.after_crash(survival, call)
            check(after, told, recovery)
            tally.count("crashes among calls with keys")


def test_a_key_remembered_before_its_effect_is_durable_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A canary: without the key in the log, a call that was told is applied a second time."""
    from headgate.engine.calls.keyed import KeyedCalls

    note = KeyedCalls.note
    monkeypatch.setattr(KeyedCalls, "note", lambda self, calls: note(self, calls) and {})
    disk, told = SimulatedDisk(), {}
    with pytest.raises((AssertionError, hg.HeadgateError)):
        live(disk, told, "strong")
        check(disk.after_kill(), told, "strong")
