"""An engine that was dropped gives its store free, and another of the process can take it over."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref
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


def use_all(engine: hg.Engine) -> None:
    """Everything that begins a thread or keeps a connection."""
    engine.call(add, id=1, amount=1)
    engine.submit(add, id=1, amount=1).result(30)
    engine.run(add, [{"id": 1, "amount": 1}] * 4, batch_size=1)
    engine.call_once("key", add, id=1, amount=1)
    engine.sql("select * from accounts").arrow()
    engine.get(accounts, 1)


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
def test_a_dropped_engine_releases_its_store_and_warns(tmp_path: Path, durability: str) -> None:
    engine = hg.open(tmp_path / "bank", **PROGRAM, durability=durability)
    use_all(engine)
    known = weakref.ref(engine)
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del engine
        gc.collect()
    assert known() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hg.open(tmp_path / "bank", **PROGRAM) as engine:
            assert engine.get(accounts, 1) == {"id": 1, "balance": 7}


def test_a_dropped_engine_is_found_when_the_store_is_opened_again(tmp_path: Path) -> None:
    gc.disable()
    try:
        engine = hg.open(tmp_path / "bank", **PROGRAM)
        engine.call(add, id=1, amount=1)
        del engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            hg.open(tmp_path / "bank", **PROGRAM).close()
    finally:
        gc.enable()


def test_calls_on_their_way_keep_a_dropped_engine(tmp_path: Path) -> None:
    engine = hg.open(tmp_path / "bank", **PROGRAM)
    promises = [engine.submit(add, id=1, amount=1) for _ in range(200)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del engine
        gc.collect()
        assert all(promise.result(30).committed for promise in promises)
        gc.collect()
        with hg.open(tmp_path / "bank", **PROGRAM) as engine:
            assert engine.get(accounts, 1) == {"id": 1, "balance": 200}


@pytest.mark.parametrize("simulated", [True, False])
def test_a_store_can_be_taken_over_in_the_same_process(tmp_path: Path, simulated: bool) -> None:
    disk: Any = {"disk": SimulatedDisk()} if simulated else {}
    path = "/bank" if simulated else tmp_path / "bank"
    first = hg.open(path, **PROGRAM, **disk, takeover=True)
    first.call(add, id=1, amount=1)
    with pytest.raises(LockedError):
        hg.open(path, **PROGRAM, **disk)
    second = hg.open(path, **PROGRAM, **disk, takeover=True)
    assert second.call(add, id=1, amount=1).committed
    with pytest.raises(StoreError, match="taken over"):
        first.call(add, id=1, amount=1)
    assert first.stopped is not None and "taken over" in first.stopped
    first.close()
    assert second.get(accounts, 1) == {"id": 1, "balance": 2}
    second.close()


def test_taking_over_waits_for_a_running_batch(tmp_path: Path) -> None:
    first = hg.open(tmp_path / "bank", **PROGRAM)
    done: list[Any] = []

    def run() -> None:
        try:
            for _ in range(50):
                done.append(first.run(add, [{"id": 1, "amount": 1}] * 20))
        except StoreError as error:
            assert "taken over" in str(error)

    thread = threading.Thread(target=run)
    thread.start()
    while len(done) < 2:
        pass
    with hg.open(tmp_path / "bank", **PROGRAM, takeover=True) as second:
        thread.join(60)
        assert second.get(accounts, 1) == {"id": 1, "balance": 20 * len(done)}


LEFT_OPEN = """
import sys
from tests.unit.engine.test_owning import PROGRAM, add, use_all
import headgate as hg

engine = hg.open(sys.argv[1], **PROGRAM, durability=sys.argv[2])
use_all(engine)
promises = [engine.submit(add, id=2, amount=1) for _ in range(100)]
beside = hg.open(None, **PROGRAM)
use_all(beside)
engine.himself = engine
"""


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
def test_what_is_left_open_is_closed_at_the_end_without_a_word(
    tmp_path: Path, durability: str
) -> None:
    command = [sys.executable, "-W", "always", "-X", "dev", "-c", LEFT_OPEN]
    ran = subprocess.run(
        [*command, str(tmp_path / "bank"), durability], capture_output=True, text=True, timeout=120
    )
    ours = [line for line in ran.stderr.splitlines() if "headgate" in line or "engine" in line]
    assert (ran.returncode, ran.stdout, ours) == (0, "", []), ran.stderr
    with hg.open(tmp_path / "bank", **PROGRAM) as engine:
        assert engine.get(accounts, 1) == {"id": 1, "balance": 7}
        assert engine.get(accounts, 2) == {"id": 2, "balance": 100}


def test_a_wanted_takeover_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = hg.open(tmp_path / "bank", **PROGRAM)
    with hg.open(tmp_path / "bank", **PROGRAM, takeover=True):
        assert first.stopped is not None and "taken over" in first.stopped
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
