"""kill -9 on the real disk: every epoch that the dead process had reported is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from headgate.durability import Store, StoreReader
from headgate.io import RealDisk

WRITER = """
import sys
import pyarrow as pa
from headgate.durability import Commit, Store
store = Store.open(sys.argv[1], segment_bytes=50_000)
recovered = store.recover()
store.write_manifest({"tables": {"t": {}}})
for epoch in range(recovered.epoch + 1, recovered.epoch + 100_000):
    slots = pa.array([0, epoch % 97 + 1], pa.int64())
    changes = {"__slot": slots, "__alive": [True, True], "epoch": [epoch, epoch]}
    store.commit(Commit(epoch, epoch, ("q", epoch), {"t": pa.record_batch(changes)}))
    print(epoch, flush=True)
    if epoch % 50 == 0:
        rows = {0: epoch, **{n % 97 + 1: n for n in range(max(1, epoch - 96), epoch + 1)}}
        image = {"__slot": sorted(rows), "epoch": [rows[slot] for slot in sorted(rows)]}
        store.snapshot(epoch, {"t": [pa.record_batch(image)]})
"""


def rows_at(epoch: int) -> list[int]:
    """The model: row 0 holds the epoch, the others the last epoch that wrote to them."""
    rows = {0: epoch, **{n % 97 + 1: n for n in range(max(1, epoch - 96), epoch + 1)}}
    return [rows[slot] for slot in sorted(rows)]


def killed_after(path: str, seconds: float) -> int:
    """Run the writer, read beside it, kill it, and return the last epoch that it reported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", WRITER, path]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert writer.stdout is not None
    writer.stdout.readline()
    end = time.monotonic() + seconds
    reader = StoreReader.open(path)
    while time.monotonic() < end:
        epoch = reader.last_epoch()
        assert reader.table("t", epoch).column("epoch").to_pylist() == rows_at(epoch)
    writer.kill()
    reported = writer.stdout.read().split(b"\n")
    writer.wait()
    whole_lines = reported[:-1]
    return int(whole_lines[-1]) if whole_lines else 1


def test_a_killed_writer_loses_no_reported_epoch_and_readers_see_whole_epochs(
    tmp_path: Path, long_run: bool
) -> None:
    path = str(tmp_path / "bank")
    chance = random.Random(7)
    for _ in range(100 if long_run else 5):
        reported = killed_after(path, chance.uniform(0.05, 0.4))
        store = Store.open(path, RealDisk())
        recovered = store.recover()
        store.close()
        assert reported <= recovered.epoch <= reported + 1
        assert recovered.images["t"]["epoch"].to_pylist() == rows_at(recovered.epoch)
        assert recovered.sources == {"q": (recovered.epoch, recovered.epoch)}
