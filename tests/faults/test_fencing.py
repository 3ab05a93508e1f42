"""One writer: neither a forked child nor a second process is acknowledged what is then lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.errors import LockedError, StoreError
from headgate.testing.disk import SimulatedDisk

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id")


@hg.transaction(event="id bigint, amount bigint", compiled=False)
def add(event, account=accounts.at("id", create=True)):
    account.balance += event.amount


PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [add]}

WRITER = """
import sys
from tests.faults.test_fencing import PROGRAM, add
import headgate as hg

path, account, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine = hg.open(path, **PROGRAM)
print("open", flush=True)
for _ in range(count):
    if not sys.stdin.readline():
        break
    try:
        result = engine.call(add, id=account, amount=1)
        print("acknowledged", result.epoch, flush=True)
    except hg.HeadgateError as error:
        print("refused", type(error).__name__, error, flush=True)
"""


def start(path: Path, account: int, count: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(account), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert answer(process) == "open"
    return process


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return answer(process)


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait(30)
    process.stdout.close()


def in_child(work: Callable[[], str]) -> str:
    """What the work says in a forked child, which then ends without a word to anyone."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


USES: dict[str, Callable[[hg.Engine], Any]] = {
    "call": lambda engine: engine.call(add, id=1, amount=1),
    "submit": lambda engine: engine.submit(add, id=1, amount=1).result(5),
    "call_once": lambda engine: engine.call_once("key", add, id=1, amount=1),
    "run": lambda engine: engine.run(add, [{"id": 1, "amount": 1}]),
    "load": lambda engine: engine.load(accounts, [{"id": 5, "balance": 1}]),
    "sql": lambda engine: engine.sql("select * from accounts"),
    "get": lambda engine: engine.get(accounts, 1),
}


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
@pytest.mark.parametrize("use", USES)
def test_a_forked_child_is_refused_and_the_parent_goes_on(
    tmp_path: Path, durability: str, use: str
) -> None:
    with hg.open(tmp_path / "bank", **PROGRAM, durability=durability) as engine:
        engine.call(add, id=1, amount=1)
        assert engine.get(accounts, 1) == {"id": 1, "balance": 1}  # the copy for readers is made
        held, done = threading.Event(), threading.Event()

        def hold() -> None:  # a lock that is held at the fork is held in the child for ever
            with engine._lock, engine._memory.replica.lock:
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(30)
        said = in_child(lambda: repr(USES[use](engine)))
        done.set()
        thread.join()
        assert said.startswith("StoreError") and f"process {os.getpid()}" in said, said
        assert in_child(lambda: str(engine.close())) == "None"
        engine.call(add, id=1, amount=1)
        with pytest.raises(LockedError):
            hg.open(tmp_path / "bank", **PROGRAM)
    with hg.open(tmp_path / "bank", **PROGRAM) as engine:
        assert engine.get(accounts, 1) == {"id": 1, "balance": 2}


def test_a_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    engine = hg.open(tmp_path / "bank", **PROGRAM)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,), daemon=True)
    child.start()
    try:
        engine.close()
        hg.open(tmp_path / "bank", **PROGRAM).close()
    finally:
        child.kill()
        child.join()


def test_a_forked_child_can_open_a_store_that_the_parent_closed(tmp_path: Path) -> None:
    hg.open(tmp_path / "bank", **PROGRAM).close()

    def work() -> str:
        with hg.open(tmp_path / "bank", **PROGRAM) as engine:
            return str(engine.call(add, id=1, amount=1).outcome)

    assert in_child(work) == "committed"


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_nothing_acknowledged_is_lost_when_the_lock_is_taken_away(tmp_path: Path, way: str) -> None:
    path = tmp_path / "bank"
    first = start(path, 1, 4)
    acknowledged = {1: 0, 2: 0}
    for _ in range(2):
        assert ask(first).startswith("acknowledged")
        acknowledged[1] += 1
    (path / "lock").unlink()
    if way == "replaced":
        (path / "lock").write_text("1\n")
    second = start(path, 2, 4)
    for _ in range(2):
        for process, account in ((second, 2), (first, 1)):
            said = ask(process)
            if said.startswith("acknowledged"):
                acknowledged[account] += 1
            else:
                assert "StoreError" in said and ("lock" in said or "stopped" in said), said
    end(first)
    end(second)
    assert acknowledged == {1: 2, 2: 2}
    with hg.open(path, **PROGRAM) as engine:
        found = {row["id"]: row["balance"] for row in engine.scan(accounts).arrow().to_pylist()}
    assert found == acknowledged


def test_what_a_fenced_writer_still_writes_is_read_by_no_one() -> None:
    """The look at the lock comes, then the other writer, then the bytes of the first."""
    disk = SimulatedDisk()
    first = hg.open("/bank", **PROGRAM, disk=disk)
    first.call(add, id=1, amount=1)
    disk.remove("/bank/lock")
    store = first._journal.store
    assert store is not None
    store._lock.is_held = lambda: True  # type: ignore[method-assign]
    second = hg.open("/bank", **PROGRAM, disk=disk)
    for _ in range(3):
        second.call(add, id=2, amount=1)
        first.call(add, id=1, amount=1)  # as if it had looked just before
    assert second.sql("select sum(balance) from accounts", epoch=3).arrow().to_pylist()
    second.close()
    with hg.open("/bank", **PROGRAM, disk=disk.after_kill()) as again:
        rows = again.scan(accounts).arrow().to_pylist()
        assert {row["id"]: row["balance"] for row in rows} == {1: 1, 2: 3}


def test_an_epoch_is_not_acknowledged_when_the_lock_went_during_its_sync() -> None:
    disk = SimulatedDisk()
    engine = hg.open("/bank", **PROGRAM, disk=disk)
    engine.call(add, id=1, amount=1)
    sync = disk.sync

    def remove_and_sync(path: str, content: Any) -> None:
        sync(path, content)
        if disk.exists("/bank/lock"):
            disk.remove("/bank/lock")

    disk.sync = remove_and_sync  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="lock"):
        engine.call(add, id=1, amount=1)
    assert engine.stopped is not None and "lock" in engine.stopped
