"""Calls of many threads share an epoch and a sync, and are still one transaction each."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle
from headgate.testing.disk import SimulatedDisk

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")


@hg.transaction(event="src bigint, dst bigint, amount bigint", compiled=False)
def move(event, src=accounts.at("src"), dst=accounts.at("dst", create=True),
         out=hg.output("left bigint")):  # fmt: skip
    if event.amount > 8:
        return hg.abort("too much")
    src.balance -= event.amount
    dst.balance += event.amount
    out.left = src.balance


@hg.transaction(event="id bigint", compiled=False)
def double(event, account=accounts.at("id")):
    account.balance *= 2


ROWS = [{"id": number, "balance": 20} for number in range(4)]
PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [move, double]}


def open_store(path: Path, **options: Any) -> hg.Engine:
    engine = hg.open(path, **PROGRAM, **{"durability": "group", **options})
    engine.load(accounts, ROWS)
    return engine


def some_calls(seed: int, count: int) -> list[tuple[Any, dict[str, Any]]]:
    chance = random.Random(seed)
    found: list[tuple[Any, dict[str, Any]]] = []
    for _ in range(count):
        if chance.random() < 0.2:
            found.append((double, {"id": chance.randrange(6)}))
        else:
            keys = {"src": chance.choice([0, 1, 2, 3, 5, None]), "dst": chance.randrange(6)}
            found.append((move, {**keys, "amount": chance.randrange(11)}))
    return found


def judge(answers: list[tuple[Any, dict[str, Any], Any]]) -> SerialOracle:
    """Each answer must be that of the oracle, which runs the calls in the order they tell."""
    oracle = SerialOracle([accounts], PROGRAM["transactions"])
    oracle.load(accounts, ROWS)
    for transaction, columns, answer in sorted(answers, key=lambda one: place_of(one[2])):
        expected = oracle.call(transaction, **columns)
        for name in ("transaction", "outcome", "reason", "left"):
            assert answer.get(name) == expected.get(name), (columns, answer, expected)
    return oracle


def place_of(answer: Any) -> tuple[int, int]:
    return answer.epoch, answer.position


def contents(engine: hg.Engine) -> list[dict[str, Any]]:
    return engine.sql("select * from accounts order by id").dicts()


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_calls_of_many_threads_are_serial_and_survive(tmp_path: Path, recovery: str) -> None:
    answers: list[tuple[Any, dict[str, Any], Any]] = []

    def work(seed: int) -> None:
        for transaction, columns in some_calls(seed, 25):
            answers.append((transaction, columns, engine.call(transaction, **columns)))

    with open_store(tmp_path / "bank", recovery=recovery) as engine:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        oracle = judge(answers)
        assert len(answers) == 150
        assert contents(engine) == oracle.table("accounts")
    with hg.open(tmp_path / "bank", recovery=recovery, **PROGRAM) as again:
        assert contents(again) == oracle.table("accounts")


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
def test_what_one_thread_hands_in_runs_in_that_order(tmp_path: Path, durability: str) -> None:
    with open_store(tmp_path / "bank", durability=durability) as engine:
        calls = some_calls(7, 200)
        promises = [engine.submit(transaction, **columns) for transaction, columns in calls]
        answers = [promise.result() for promise in promises]
    judge([(*call, answer) for call, answer in zip(calls, answers, strict=True)])
    ran = [answer for answer in answers if answer.outcome != "rejected"]
    assert [place_of(answer) for answer in ran] == sorted(place_of(answer) for answer in ran)


def handed_in_at_once(engine: hg.Engine, count: int) -> list[Future[hg.Result]]:
    """Hand in calls while the engine cannot run any: all but the first few wait together."""
    with engine._lock:
        return [engine.submit(move, src=0, dst=1, amount=0) for _ in range(count)]


def test_calls_that_wait_together_share_an_epoch(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        promises = handed_in_at_once(engine, 50)
        answers = [promise.result() for promise in promises]
        # Some may have been taken before the lock was: they are the other epoch.
        assert len({answer.epoch for answer in answers}) <= 2
        assert all(answer.committed for answer in answers)


def test_a_call_that_cannot_be_read_fails_alone(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        with engine._lock:
            good = [engine.submit(move, src=0, dst=1, amount=1) for _ in range(3)]
            bad = engine.submit(move, src=0, dst=1, amount="much")
            after = engine.submit(move, src=0, dst=1, amount=1)
        with pytest.raises(hg.InputError, match="amount"):
            bad.result()
        assert [promise.result().left for promise in (*good, after)] == [19, 18, 17, 16]


def test_each_caller_gets_its_own_answer_also_when_some_are_rejected(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        with engine._lock:
            promises = [
                engine.submit(move, src=number % 4 if number % 3 else None, dst=5, amount=0)
                for number in range(30)
            ]
        outcomes = [promise.result().outcome for promise in promises]
    assert outcomes == ["committed" if number % 3 else "rejected" for number in range(30)]


def test_closing_answers_what_was_handed_in_and_takes_no_more(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "bank")
    promises = handed_in_at_once(engine, 20)
    engine.close()
    assert all(promise.done() and promise.result().committed for promise in promises)
    with pytest.raises(hg.StoreError, match="closed"):
        engine.submit(move, src=0, dst=1, amount=1)
    with pytest.raises(hg.StoreError, match="closed"):
        engine.call(move, src=0, dst=1, amount=1)
    engine.close()


def test_a_disk_that_fails_fails_every_call_that_it_did_not_keep() -> None:
    disk = SimulatedDisk()
    engine = hg.open("/data/bank", disk=disk, durability="group", **PROGRAM)
    engine.load(accounts, ROWS)
    assert engine.call(move, src=0, dst=1, amount=1).committed
    disk.fail_at = disk.calls + 2  # the record is written, its sync fails
    promises = handed_in_at_once(engine, 10)
    failures = [promise.exception() for promise in promises]
    assert all(isinstance(failure, hg.StoreError) for failure in failures)
    with pytest.raises(hg.StoreError):
        engine.call(move, src=0, dst=1, amount=1)


def test_wrong_columns_are_refused_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        with pytest.raises(hg.InputError, match="no column 'sum'"):
            engine.submit(move, src=0, dst=1, amount=1, sum=1)
        with pytest.raises(hg.InputError, match="'amount' is missing"):
            engine.submit(move, src=0, dst=1)
        with pytest.raises(hg.InputError, match="no column 'id'"):
            engine.submit(move, src=0, dst=1, id=1)
