"""kill -9 over `engine.run`, with a reader in another process that checks every epoch it sees."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from headgate.durability import StoreReader
from headgate.errors import HeadgateError
from headgate.query.store_tables import read_table
from tests.faults import engine_program as program

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("HEADGATE_ENGINE_KILLS", "5"))
EPOCHS_PER_LIFE = 400


class Reader:
    """Looks at the store as any other process may, and remembers what it saw."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epochs: set[int] = set()

    def look(self) -> None:
        try:
            store = StoreReader.open(self.path)
        except HeadgateError:
            return  # not made yet
        epoch = store.last_epoch()
        if epoch == 0 or epoch in self.epochs:
            return
        total = pc.sum(read_table(store, "accounts", epoch).column("balance")).as_py()
        assert total == program.TOTAL, f"epoch {epoch} shows {total}, not {program.TOTAL}"
        self.epochs.add(epoch)


def start(path: Path, last_epoch: int, recovery: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.engine_program"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen(
        [*command, str(path), str(last_epoch), recovery],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def live(path: Path, last_epoch: int, recovery: str, reader: Reader, seconds: float) -> list[int]:
    """One life of the program, killed that long after its first word; the epochs it said."""
    process = start(path, last_epoch, recovery)
    assert process.stdout is not None
    said = [int(process.stdout.readline())]
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if recovery == "strong":  # behind logged input, only the program itself can see
            reader.look()
        else:
            time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    words = rest.splitlines(keepends=True)
    return said + [int(word) for word in words if word.endswith("\n")]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_killed_at_any_moment_it_loses_nothing_that_it_said(tmp_path: Path, recovery: str) -> None:
    chance = random.Random(5)
    path = tmp_path / "bank"
    reader = Reader(path)
    # What is compiled beside the first batches is kept when it is done: not in a life of a second.
    start(tmp_path / "first", 5, recovery).communicate(timeout=120)
    said = 0
    for _ in range(KILLS):
        epochs = live(path, said + EPOCHS_PER_LIFE, recovery, reader, chance.uniform(0.0, 0.8))
        assert epochs[0] >= said, f"epoch {said} was acknowledged, and {epochs[0]} came back"
        assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))
        said = epochs[-1]
    with program.open_bank(str(path), recovery=recovery) as engine:
        epoch, found = engine.epoch, program.balances(engine)
    assert epoch >= said
    with program.open_bank(None) as undisturbed:
        while undisturbed.epoch < epoch:
            batch = program.make_batch(undisturbed.epoch + 1)
            undisturbed.run(program.transfer, batch, order_by="ts")
        assert found == program.balances(undisturbed)
    if recovery == "strong":
        assert len(reader.epochs) > 1  # how many it saw hangs on how busy the machine is
