"""What `hg.open` takes and refuses, and what an engine says when it was stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader, backup, verify
from headgate.errors import InputError, StoreError
from headgate.testing.disk import SimulatedClock

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id")


@hg.transaction(event="id bigint, amount bigint", compiled=False)
def add(event, account=accounts.at("id", create=True)):
    if event.amount == 13:
        signal.raise_signal(signal.SIGINT)  # as Ctrl-C would
    account.balance += event.amount


PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [add]}


@pytest.mark.parametrize(
    "address",
    ["s3a://bucket/bank", "file:///tmp/bank", "hdfs:/bank", "dbfs:/x", "a+b.c-d://x", "file:zz",
     "bank:2", "~nobody-here/zz"],
)  # fmt: skip
def test_an_address_of_any_scheme_is_refused_and_no_folder_made(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opened in (hg.open, StoreReader.open, verify, lambda path: backup("x", path)):
        with pytest.raises(InputError, match=r"not an address|no store|nobody here"):
            opened(address)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["C:bank", "c:/bank", "a:b", "./bank:2", "./~", "2:b"])
def test_a_drive_letter_or_a_colon_is_no_scheme(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c:").mkdir()
    with hg.open(name, **PROGRAM) as engine:
        assert engine.epoch == 0


@pytest.mark.parametrize("make", [str, Path])
def test_a_tilde_is_the_home_as_in_a_shell(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    with hg.open(make("~/bank"), **PROGRAM) as engine:
        assert engine.path == str(tmp_path / "home" / "bank")
    assert StoreReader.open(make("~/bank")).path == str(tmp_path / "home" / "bank")
    assert not verify(make("~/bank")).damages
    assert os.listdir(tmp_path / "here") == []


@pytest.mark.parametrize("path", [None, "bank"])
@pytest.mark.parametrize("durability", ["fast", "", None, 1])
def test_an_unknown_durability_is_refused_with_and_without_a_store(
    path: str | None, durability: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="durability"):
        hg.open(path, **PROGRAM, durability=durability)


def test_an_engine_that_was_interrupted_says_so() -> None:
    engine = hg.open(None, **PROGRAM)
    with pytest.raises(KeyboardInterrupt):
        engine.call(add, id=1, amount=13)
    assert engine.stopped is not None and "Ctrl-C" in engine.stopped
    with pytest.raises(StoreError, match="Ctrl-C"):
        engine.call(add, id=1, amount=1)


def test_the_programs_of_an_engine_use_its_clock() -> None:
    clock = SimulatedClock()
    with hg.open(None, **PROGRAM, clock=clock) as engine:
        engine.call(add, id=1, amount=1)
        assert all(one.scheduler.clock is clock for one in engine._executors.values())


def test_a_program_is_compiled_for_its_first_batch_and_none_when_an_engine_opens() -> None:
    """Most transactions run by routes, as a part of another program than their own."""

    @hg.transaction(event="id bigint, amount bigint")
    def put(event, account=accounts.at("id", create=True)):
        account.balance += event.amount

    @hg.transaction(event="id bigint, amount bigint")
    def take(event, account=accounts.at("id", create=True)):
        account.balance -= event.amount

    with hg.open(None, tables=[accounts], transactions=[put, take]) as engine:
        assert [one.program._is_compiled for one in engine._executors.values()] == [False, False]
        events = [{"id": 1, "amount": 5, "kind": kind} for kind in ("put", "take", "put")]
        engine.run({"put": put, "take": take}, events, route_by="kind")
        compiled = [one.program for one in engine._executors.values() if one.program._is_compiled]
        assert [len(one.signatures) for one in compiled] == [2]
        engine.call(put, id=1, amount=1)
        assert engine.get("accounts", 1) == {"id": 1, "balance": 6}


def test_weak_recovery_names_the_level_that_held(tmp_path: Path) -> None:
    @hg.transaction(event="id bigint, amount bigint")
    def put(event, account=accounts.at("id", create=True)):
        account.balance += event.amount

    program: dict[str, Any] = {"tables": [accounts], "transactions": [put]}
    with hg.open(tmp_path / "bank", **program, recovery="weak") as engine:
        events = [{"id": number % 3, "amount": 1} for number in range(9)]
        results = engine.run(put, events, isolation="PL1")
        level = (results.schema.metadata or {}).get(b"headgate.isolation", b"PL4")
        assert level == b"PL4"
        with pytest.raises(InputError, match="recovery='strong'"):
            engine.run(put, events)
            engine.sql("select * from accounts", epoch=1)
