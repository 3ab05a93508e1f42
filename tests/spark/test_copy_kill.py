"""Exactly once into the results stream: a query that copies results is killed, again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headgate as hg
from tests.spark.checkpoints import delivered, remove_refused

KILLS = int(os.environ.get("HEADGATE_COPY_KILLS", "2"))
EPOCHS, EVENTS = 40, 7

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance < 100")


@hg.transaction(event="id bigint, amount bigint", compiled=False)
def deposit(event, account=accounts.at("id", create=True), out=hg.output("balance bigint")):
    account.balance += event.amount
    out.balance = account.balance


def write_store(path: Path) -> set[tuple[object, ...]]:
    """Many small epochs; returns all their results."""
    with hg.open(path, tables=[accounts], transactions=[deposit], durability="none") as engine:
        found = [
            engine.run(deposit, [{"id": (epoch + n) % 5, "amount": n} for n in range(EVENTS)])
            for epoch in range(EPOCHS)
        ]
    return {
        (row["epoch"], row["position"], row["outcome"], row["reason"], row["balance"])
        for results in found
        for row in results.to_pylist()
    }


def copy(store: Path, folder: Path, environment: dict[str, str], kill_after: float | None) -> str:
    """Run the copying program, killed that long after it is ready; returns what it said."""
    program = Path(__file__).with_name("copy_program.py")
    process = subprocess.Popen(
        [sys.executable, str(program), str(store), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,  # Spark's own processes go with it
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if kill_after is not None:
        time.sleep(kill_after)
        os.killpg(process.pid, signal.SIGKILL)
    rest, _ = process.communicate(timeout=120)
    return said + rest


@pytest.mark.timeout(0)
def test_a_copy_that_is_killed_has_each_result_once(
    tmp_path: Path, program_environment: dict[str, str]
) -> None:
    expected = write_store(tmp_path / "bank")
    chance = random.Random(3)
    for _ in range(KILLS):
        copy(tmp_path / "bank", tmp_path, program_environment, chance.uniform(1.0, 4.0))
        remove_refused(tmp_path)
    assert "done" in copy(tmp_path / "bank", tmp_path, program_environment, None)
    columns = ["epoch", "position", "outcome", "reason", "balance"]
    rows = delivered(tmp_path / "copy").select(columns).to_pylist()
    assert len(rows) == EPOCHS * EVENTS
    assert {tuple(row.values()) for row in rows} == expected
