"""The disks that every durability test runs against: the simulated one and the machine's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.durability import Store, StoreReader
from headgate.io import Disk, RealDisk
from headgate.testing.disk import SimulatedClock, SimulatedDisk


class Place:
    """A disk and a path on it where a test keeps its store."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    def store(self, segment_bytes: int = 1 << 20) -> Store:
        """Open the store and recover it."""
        store = Store.open(self.path, self.disk, SimulatedClock(), segment_bytes=segment_bytes)
        store.recover()
        return store

    def reader(self) -> StoreReader:
        return StoreReader.open(self.path, self.disk)


def _simulated(folder: Path) -> Place:
    return Place(SimulatedDisk(), "/deep/down/bank")


def _real(folder: Path) -> Place:
    return Place(RealDisk(), str(folder / "deep" / "bank"))


@pytest.fixture(params=[_simulated, _real], ids=["simulated", "real"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[Path], Place] = request.param
    return make(tmp_path)
