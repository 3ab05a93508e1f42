"""Calls of many threads share an epoch and a sync, and are still one transaction each."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.engine.calls.calling import Call
from headgate.engine.calls.queue import HandedIn
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


def open_store(path: Path | None, **options: Any) -> hg.Engine:
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


@pytest.mark.parametrize("durability", ["sync", "group", "none", None])
def test_plain_calls_that_wait_together_share_an_epoch(
    tmp_path: Path, durability: str | None
) -> None:
    path = None if durability is None else tmp_path / "bank"
    with open_store(path, durability=durability or "sync") as engine:
        engine.call(move, src=0, dst=1, amount=0)
        answers: list[hg.Result] = []

        def work() -> None:
            answers.append(engine.call(move, src=0, dst=1, amount=0))

        threads = [threading.Thread(target=work) for _ in range(12)]
        with engine._lock:
            for thread in threads:
                thread.start()
            wait_for(lambda: len(engine.calls._queue._waiting) >= 11)
        for thread in threads:
            thread.join()
        # The first took what had gathered when it began, maybe itself only.
        assert len({answer.epoch for answer in answers}) <= 2
        assert sorted(answer.position for answer in answers)[-1] >= 5


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def test_who_is_alone_waits_for_no_one(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        queue = engine.calls._queue
        for _ in range(5):
            engine.call(move, src=0, dst=1, amount=0)
            assert (queue._expected, queue._leader, len(queue._waiting)) == (1, None, 0)
        assert queue._threads == []  # no thread stands between


def test_a_caller_that_is_interrupted_withdraws_and_harms_no_other(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        queue, ended = engine.calls._queue, []

        class Interrupted:
            """A gate at which Ctrl-C comes to who waits."""

            def __init__(self, gate: threading.Lock) -> None:
                self.release = gate.release

            def acquire(self) -> None:
                raise KeyboardInterrupt

        with engine._lock:
            first = threading.Thread(
                target=lambda: ended.append(engine.call(move, src=0, dst=1, amount=1))
            )
            first.start()
            wait_for(lambda: bool(queue._rounds) and not queue._waiting)  # it leads
            handed = HandedIn(engine.calls, (), [])
            engine.calls._prepare(handed, [Call(move, {"src": 0, "dst": 1, "amount": 2})])
            handed.gate = Interrupted(handed.gate)  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                queue.run(handed)
            assert len(queue._waiting) == 0
        first.join()
        assert ended[0].left == 19
        assert engine.call(move, src=0, dst=1, amount=1).left == 18
        assert isinstance(handed.answers[0], hg.StoreError)


def test_a_leader_that_is_interrupted_passes_the_lead_on(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        calls = engine.calls
        run, others = calls.run, []

        def interrupted(*given: Any) -> Any:
            calls.run = run  # type: ignore[method-assign]
            thread = threading.Thread(
                target=lambda: others.append(engine.call(move, src=0, dst=1, amount=1))
            )
            thread.start()
            others.append(thread)
            wait_for(lambda: len(calls._queue._waiting) == 1)
            raise KeyboardInterrupt

        calls.run = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            engine.call(move, src=0, dst=1, amount=5)
        others[0].join(60)
        assert others[1].left == 19  # nothing of the one that was interrupted was run
        assert engine.call_once("key", move, src=0, dst=1, amount=1).left == 18


def test_a_call_with_a_key_that_is_interrupted_can_be_sent_again(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        calls = engine.calls
        run = calls.run

        def interrupted(*given: Any) -> Any:
            calls.run = run  # type: ignore[method-assign]
            raise KeyboardInterrupt

        calls.run = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            engine.call_once("key", move, src=0, dst=1, amount=5)
        assert engine.call_once("key", move, src=0, dst=1, amount=5).left == 15


def test_a_keyed_call_that_comes_too_late_leaves_no_one_waiting_for_it() -> None:
    """The engine is closed between the claim of its key and its place in the queue."""
    engine = open_store(None)
    calls, put, told = engine.calls, engine.calls._queue._put, []

    def closing(handed: Any) -> bool:
        other = threading.Thread(target=ask)
        other.start()
        wait_for(lambda: calls._once._running["key"].promise is not None)
        calls._queue._is_closed = True
        told.append(other)
        return put(handed)

    def ask() -> None:
        try:
            engine.call_once("key", move, src=0, dst=1, amount=1)
        except hg.StoreError as error:
            told.append(error)

    calls._queue._put = closing  # type: ignore[method-assign]
    with pytest.raises(hg.StoreError, match="closed"):
        engine.call_once("key", move, src=0, dst=1, amount=1)
    told[0].join(20)
    assert "closed" in str(told[1])
    assert not calls._once._running


@pytest.mark.parametrize("step", ["claim", "_put"])
def test_a_key_that_ctrl_c_left_behind_can_be_sent_again(step: str) -> None:
    engine = open_store(None)
    owner = engine.calls._once if step == "claim" else engine.calls._queue
    real = getattr(owner, step)

    def interrupted(*given: Any) -> Any:
        setattr(owner, step, real)
        if step == "claim":
            real(*given)
        raise KeyboardInterrupt

    setattr(owner, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.call_once("key", move, src=0, dst=1, amount=1)
    assert engine.call_once("key", move, src=0, dst=1, amount=1).left == 19
    assert engine.call_once("key", move, src=0, dst=1, amount=1).left == 19


class Hostile:
    """A value that raises what it likes when it is looked at."""

    def __index__(self) -> int:
        raise RuntimeError("index")


def test_what_raises_as_it_is_read_fails_its_own_call_only() -> None:
    engine = open_store(None)
    with pytest.raises(hg.InputError, match="UTF-8"):
        engine.call_once("\ud800", move, src=0, dst=1, amount=1)
    with engine._lock:  # so that they wait together
        promises = [
            engine.submit(move, src=0, dst=1, amount=Hostile() if place % 2 else 1)
            for place in range(5)
        ]
    assert [promise.exception() is None for promise in promises] == [True, False] * 2 + [True]
    assert promises[4].result().left == 17


def test_who_is_told_may_call_again_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path / "bank") as engine:
        found: list[Any] = []
        told = threading.Event()

        def again(_: Future[hg.Result]) -> None:
            found.append(engine.call(move, src=0, dst=1, amount=1))
            told.set()

        engine.submit(move, src=0, dst=1, amount=1).add_done_callback(again)
        assert told.wait(30)
        assert found[0].left == 18


def test_who_holds_the_engine_calls_past_those_who_wait() -> None:
    """As the rows of a load that are made while it runs."""
    with hg.open(None, **PROGRAM) as engine:
        engine.load(accounts, ROWS)
        other = threading.Thread(target=lambda: engine.call(move, src=0, dst=1, amount=1))
        with engine._lock:
            other.start()
            wait_for(lambda: engine.calls._queue._leader is not None)
            assert engine.call(move, src=0, dst=1, amount=2).left == 18
        other.join()
        assert engine.get(accounts, 0) == {"id": 0, "balance": 17}


def test_closing_waits_for_those_who_call(tmp_path: Path) -> None:
    engine = open_store(tmp_path / "bank")
    answers: list[Any] = []

    def work() -> None:
        answers.append(engine.call(move, src=0, dst=1, amount=1))

    threads = [threading.Thread(target=work) for _ in range(5)]
    with engine._lock:
        for thread in threads:
            thread.start()
        wait_for(lambda: len(engine.calls._queue._waiting) == 4 or bool(answers))
        closing = threading.Thread(target=engine.close)
        closing.start()
    for thread in [*threads, closing]:
        thread.join(60)
        assert not thread.is_alive()
    assert len(answers) == 5 and all(answer.committed for answer in answers)


def test_calls_of_several_transactions_handed_in_one_by_one_keep_their_order() -> None:
    with hg.open(None, **PROGRAM) as engine:
        engine.load(accounts, ROWS)
        with engine._lock:
            promises = [
                engine.submit(double, id=0)
                if number % 2
                else engine.submit(move, src=0, dst=1, amount=1)
                for number in range(4)
            ]
        assert [promise.result(60).committed for promise in promises] == [True] * 4
        assert engine.get(accounts, 0) == {"id": 0, "balance": ((20 - 1) * 2 - 1) * 2}


INTERRUPTED = """
import logging, os, random, signal, sys, threading, time
from tests.unit.engine.test_calls import *

logging.disable(logging.CRITICAL)  # that an engine is stopped by Ctrl-C is told each time


def work(engine, end):
    try:
        while time.monotonic() < end:
            engine.call(move, src=0, dst=1, amount=0)
    except hg.StoreError:
        pass


def bother(over):
    while not over.wait(random.random() * 0.02):
        os.kill(os.getpid(), signal.SIGINT)


def once_more(seconds):
    engine, over, end = hg.open(None, **PROGRAM), threading.Event(), time.monotonic() + seconds
    engine.load(accounts, ROWS)
    threads = [threading.Thread(target=work, args=(engine, end)) for _ in range(3)]
    for thread in threads:
        thread.start()
    bothering = threading.Thread(target=bother, args=(over,))
    try:
        bothering.start()
        while time.monotonic() < end:
            engine.call_once(str(random.random()), move, src=0, dst=1, amount=0)
    except (KeyboardInterrupt, hg.StoreError):
        pass
    while bothering.is_alive():
        try:
            over.set()
            bothering.join()
        except KeyboardInterrupt:
            pass
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "it waits for ever"
    engine.close()


end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    once_more(0.1)
print("all were answered")
"""


def test_ctrl_c_to_one_caller_leaves_no_other_waiting(long_run: bool) -> None:
    seconds = "60" if long_run else "3"
    command = [sys.executable, "-c", INTERRUPTED, seconds]
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=200, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "all were answered\n"), ran.stderr
