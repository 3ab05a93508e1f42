"""The bank: what its auditors see while requests run, and that they would see what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headgate as hg
from apps import bank
from headgate.durability import StoreReader
from headgate.testing import SerialOracle, difference, results_difference

NOTHING = {"month": 0, "moved": 0, "paid_in": 0, "paid_out": 0}


def test_requests_give_what_the_oracle_gives() -> None:
    requests = bank.make_requests(600)
    oracle = SerialOracle([bank.balances, bank.validator], list(bank.ROUTES.values()))
    accounts = range(bank.ACCOUNTS)
    oracle.load("balances", [{"account": n, "amount": bank.FIRST_BALANCE} for n in accounts])
    oracle.load("validator", [{"account": n, **NOTHING} for n in accounts])
    with bank.open_bank(None) as engine:
        results = engine.run(bank.ROUTES, list(reversed(requests)), **bank.ORDER)
        expected = oracle.run(bank.ROUTES, list(reversed(requests)), **bank.ORDER)
        assert {row["reason"] for row in expected} == {
            None,
            "the same account",
            "check failed: balances: amount >= 0",
            "check failed: validator: moved <= 20000",
        }
        assert results_difference(results, expected) is None
        assert difference(engine, oracle) is None


@pytest.mark.parametrize("durable", [False, True])
def test_every_answer_beside_the_stream_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], durable: bool
) -> None:
    assert bank.main(tmp_path / "bank" if durable else None, requests=2000) == []
    printed = capsys.readouterr().out
    assert "0 of them wrong" in printed
    assert "transfer aborted check failed: validator: moved <= 20000" in printed


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("balances", {"account": bank.ACCOUNTS - 1, "amount": bank.FIRST_BALANCE - 1}),
        ("validator", {"account": bank.ACCOUNTS - 1, **NOTHING, "paid_in": 5}),
    ],
)
def test_an_auditor_sees_money_that_is_lost(table: str, row: dict[str, int]) -> None:
    first = {
        "balances": [{"account": n, "amount": bank.FIRST_BALANCE} for n in range(bank.ACCOUNTS)],
        "validator": [{"account": n, **NOTHING} for n in range(bank.ACCOUNTS)],
    }
    first[table][-1] = row
    with hg.open(None, tables=[bank.balances, bank.validator]) as engine:
        for name, rows in first.items():
            engine.load(name, rows)
        assert bank.look_at_all(engine) is not None
        assert bank.look_at_totals(engine) is not None
    with bank.open_bank(None) as engine:
        assert bank.look_at_all(engine) is None
        assert bank.look_at_totals(engine) is None
        assert bank.look_at_one(engine, 1) is None
        assert bank.look_at_one(engine, -1) is not None


def test_a_bank_that_is_killed_has_only_whole_requests(tmp_path: Path) -> None:
    root = Path(bank.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    for _ in range(2):
        program = [sys.executable, str(root / "apps" / "bank.py"), str(tmp_path)]
        running = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL)
        try:
            before = _epoch(tmp_path / "bank")
            deadline = time.monotonic() + 120
            while running.poll() is None and time.monotonic() < deadline:
                if _epoch(tmp_path / "bank") > before + 5:
                    break
                time.sleep(0.01)
            assert running.poll() is None  # it was in the middle of its requests
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait()
        with bank.open_bank(tmp_path / "bank") as engine:
            assert engine.epoch > before + 5
            assert bank.look_at_all(engine) is None
            assert bank.look_at_totals(engine) is None


def _epoch(store: Path) -> int:
    try:
        return StoreReader.open(store).last_epoch()
    except hg.errors.HeadgateError:
        return 0
