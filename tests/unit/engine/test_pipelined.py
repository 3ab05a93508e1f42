"""A run in batches, whose log is written behind it, beside calls of every kind."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.engine.calls.calling import Call
from headgate.errors import HeadgateError, StoreError
from headgate.testing import SerialOracle
from headgate.testing.disk import SimulatedDisk

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")


@hg.transaction(event="src bigint, dst bigint, amount bigint", compiled=False)
def move(event, src=accounts.at("src"), dst=accounts.at("dst", create=True),
         out=hg.output("left bigint")):  # fmt: skip
    src.balance -= event.amount
    dst.balance += event.amount
    out.left = src.balance


PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [move]}
ROWS = [{"id": number, "balance": 1000} for number in range(6)]
KINDS = ("call", "submit", "call_once", "call_all", "run")


def a_call(number: int) -> dict[str, int]:
    return {"src": number % 6, "dst": (number * 7 + 1) % 8, "amount": number % 5}


def events_of(count: int, base: int) -> pa.Table:
    return pa.Table.from_pylist([a_call(base + number) for number in range(count)])


def send(engine: hg.Engine, kind: str, number: int) -> Callable[[], Any]:
    """Hand in one call; the function that is returned waits for its result."""
    columns = a_call(number)
    if kind == "submit":
        promise: Future[Any] = engine.submit(move, **columns)
        return promise.result
    if kind == "call":
        found: Any = engine.call(move, **columns)
    elif kind == "call_once":
        found = engine.call_once(f"key {number}", move, **columns)
    elif kind == "call_all":
        found = engine.call_all([Call(move, columns)])[0]
        if isinstance(found, Exception):
            raise found
    else:
        found = engine.run(move, [columns]).to_pylist()[0]
    return lambda: found


def beside(engine: hg.Engine, kinds: tuple[str, ...], calls: int) -> tuple[list[Any], list[Any]]:
    """Calls of these kinds beside runs in batches: what was answered, and what was raised."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def stream() -> None:
        try:
            for base in (1000, 2000):
                events = events_of(40, base)
                results = engine.run(move, events, batch_size=3)
                answers.extend(zip(events.to_pylist(), results.to_pylist(), strict=True))
        except HeadgateError as error:
            errors.append(error)

    def caller(kind: str, first: int) -> None:
        try:
            waiting = [(n, send(engine, kind, n)) for n in range(first, first + calls)]
            answers.extend((a_call(number), dict(result())) for number, result in waiting)
        except HeadgateError as error:
            errors.append(error)

    threads = [threading.Thread(target=stream)]
    for place, kind in enumerate(kinds):
        threads.append(threading.Thread(target=caller, args=(kind, 10_000 * (place + 1))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return answers, errors


def judge(answers: list[tuple[dict[str, Any], dict[str, Any]]]) -> SerialOracle:
    """The oracle runs the events in the order that the answers tell, and must answer the same."""
    oracle = SerialOracle([accounts], [move])
    oracle.load(accounts, ROWS)
    answers = sorted(answers, key=lambda one: (one[1]["epoch"], one[1]["position"]))
    for event, answer in answers:
        said = oracle.call(move, **event)
        for name in ("outcome", "reason", "left"):
            assert said[name] == answer[name], (event, answer, said)
    return oracle


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
@pytest.mark.parametrize("kinds", [*[(kind,) for kind in KINDS], KINDS], ids="+".join)
def test_calls_beside_a_run_in_batches_are_one_serial_history(
    tmp_path: Path, durability: str, kinds: tuple[str, ...]
) -> None:
    with hg.open(tmp_path / "bank", **PROGRAM, durability=durability) as engine:
        engine.load(accounts, ROWS)
        answers, errors = beside(engine, kinds, 12)
        assert errors == []
        assert len(answers) == 80 + 12 * len(kinds)
        oracle = judge(answers)
        found = {row["id"]: row["balance"] for row in engine.scan(accounts).arrow().to_pylist()}
    assert found == {row["id"]: row["balance"] for row in oracle.table(accounts)}
    with hg.open(tmp_path / "bank", **PROGRAM) as engine:
        again = {row["id"]: row["balance"] for row in engine.scan(accounts).arrow().to_pylist()}
    assert again == found


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_disk_that_fails_stops_all_of_them_and_keeps_what_was_answered(
    durability: str, share: float
) -> None:
    def run(disk: SimulatedDisk, more: int) -> tuple[hg.Engine, list[Any], list[Any]]:
        engine = hg.open("/bank", **PROGRAM, durability=durability, disk=disk)
        engine.load(accounts, ROWS)
        disk.fail_at = disk.calls + more
        return engine, *beside(engine, KINDS, 12)

    calm = SimulatedDisk()
    run(calm, 1 << 30)[0].close()
    disk = SimulatedDisk(fail_with=errno.EIO)
    engine, answers, errors = run(disk, int(calm.calls * share / 2))
    assert errors or engine.stopped is None
    if engine.stopped is not None:
        with pytest.raises(StoreError, match="stopped"):
            engine.call(move, **a_call(1))
    acknowledged = max((answer["epoch"] for _, answer in answers), default=1)
    assert engine.epoch >= acknowledged
    engine.close()
    with hg.open("/bank", **PROGRAM, disk=disk.after_kill()) as again:
        assert again.epoch >= acknowledged
        assert sum(row["balance"] for row in again.scan(accounts).arrow().to_pylist()) == 6000


def test_a_log_write_that_fails_behind_a_run_stops_the_engine_at_once() -> None:
    disk = SimulatedDisk()
    engine = hg.open("/bank", **PROGRAM, disk=disk)
    engine.load(accounts, ROWS)
    durable = engine.epoch
    disk.fail_at, disk.fail_with = disk.calls + 1, errno.ENOSPC
    with pytest.raises(StoreError, match="disk is full"):
        engine.run(move, events_of(200, 0), batch_size=1)
    assert engine.stopped is not None and "disk is full" in engine.stopped
    assert engine.epoch == durable
    engine.close()


def test_the_epoch_of_an_engine_is_the_last_durable_one() -> None:
    disk = SimulatedDisk()
    engine = hg.open("/bank", **PROGRAM, disk=disk)
    engine.load(accounts, ROWS)
    engine.call(move, **a_call(1))
    assert engine.epoch == 2
    disk.capacity_bytes = 1
    with pytest.raises(StoreError):
        engine.call(move, **a_call(2))
    assert engine.epoch == 2
    engine.close()
