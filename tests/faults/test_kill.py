"""kill -9 on the real disk: every epoch that the dead process had reported is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headgate.durability import Store, StoreReader, verify
from headgate.io import RealDisk
from tests.faults.tally import Tally

WRITER = """
import sys
import threading
import pyarrow as pa
from headgate.durability import Commit, Retention, Store
retain = Retention(snapshots=2)
store = Store.open(sys.argv[1], segment_bytes=15_000, durability=sys.argv[2], retain=retain)
recovered = store.recover()
store.write_manifest({"tables": {"t": {}}})
snapshot = None
for epoch in range(recovered.epoch + 1, recovered.epoch + 100_000):
    slots = pa.array([0, epoch % 97 + 1], pa.int64())
    changes = {"__slot": slots, "__alive": [True, True], "epoch": [epoch, epoch]}
    results = pa.record_batch({"position": [epoch]})
    store.commit(Commit(epoch, epoch, ("q", epoch), {"t": pa.record_batch(changes)}, results))
    print(epoch, flush=True)
    if epoch % 40 == 0 and (snapshot is None or not snapshot.is_alive()):
        snapshot = threading.Thread(target=store.snapshot)
        snapshot.start()
"""


def rows_at(epoch: int) -> list[int]:
    """The model: row 0 holds the epoch, the others the last epoch that wrote to them."""
    rows = {0: epoch, **{n % 97 + 1: n for n in range(max(1, epoch - 96), epoch + 1)}}
    return [rows[slot] for slot in sorted(rows)]


def killed_after(path: str, seconds: float, durability: str, chance: random.Random) -> int:
    """Run the writer, read beside it, kill it, and return the last epoch that it reported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", WRITER, path, durability]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert writer.stdout is not None
    first = int(writer.stdout.readline())
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            read_beside(path, chance)
    finally:
        writer.kill()
    reported = writer.stdout.read().split(b"\n")
    writer.wait()
    whole_lines = reported[:-1]
    return int(whole_lines[-1]) if whole_lines else first


def read_beside(path: str, chance: random.Random) -> None:
    """Whole epochs only, the oldest as well as the newest, while segments are being removed."""
    reader = StoreReader.open(path)
    with reader.hold() as held:
        trusting = StoreReader.open(path, held_from=held.first_epoch)
        last = trusting.last_epoch()
        for epoch in {held.first_epoch or 1, chance.randint(held.first_epoch or 1, last), last}:
            assert trusting.table("t", epoch).column("epoch").to_pylist() == rows_at(epoch)
        wanted = range(held.first_epoch + 1, last + 1)
        assert [epoch for epoch, _ in trusting.results(held.first_epoch + 1, last)] == [*wanted]
    assert reader.table("t").column("epoch").to_pylist()[0] >= last


@pytest.mark.parametrize("durability", ["sync", "group", "none"])
def test_a_killed_writer_loses_no_reported_epoch_and_readers_see_whole_epochs(
    tmp_path: Path, long_run: bool, durability: str, tally: Tally
) -> None:
    path = str(tmp_path / "bank")
    chance = random.Random(7)
    for _ in range(100 if long_run else 3):
        reported = killed_after(path, chance.uniform(0.05, 0.6), durability, chance)
        assert verify(path).is_whole
        store = Store.open(path, RealDisk())
        recovered = store.recover()
        store.close()
        assert reported <= recovered.epoch <= reported + 1
        assert recovered.images["t"]["epoch"].to_pylist() == rows_at(recovered.epoch)
        assert recovered.origins == {"q": (recovered.epoch, recovered.epoch)}
        tally.count("processes killed beside a reader")
