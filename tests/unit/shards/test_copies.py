"""Copies of a store with shards: a backup with all epochs, and a new store from an older one."""

from __future__ import annotations

import random
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader, backup, restore, verify
from headgate.query.store_tables import read_table
from headgate.shards import share
from headgate.testing.disk import SimulatedDisk
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.shards.bank import ROUTES, TABLES, TRANSACTIONS, batch, in_shards, rows_of

COPY = "/data/copy"


def lived(disk: SimulatedDisk, retain: hg.Retention | None = None) -> dict[int, Any]:
    """A store of some epochs, with images and a snapshot; the rows of each."""
    draw, past = random.Random(3), {}
    with in_shards(Workers(), disk=disk, retain=retain) as engine:
        for turn in range(10):
            engine.run(ROUTES, batch(draw, 40), route_by="what")
            past[engine.epoch] = rows_of(engine)
            if turn in (4, 7):
                engine.snapshot()
    return past


def moved(disk: SimulatedDisk) -> SimulatedDisk:
    """The copy alone, under the path of the store."""
    assert verify(COPY, disk).is_whole
    for path in list(disk.paths()):
        if path.startswith(f"{PATH}/"):
            disk.remove(path)
    return disk


@pytest.mark.parametrize("retain", [None, hg.Retention(snapshots=1, epochs=1)])
def test_a_backup_has_every_epoch_and_goes_on(
    retain: hg.Retention | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 10_000)
    monkeypatch.setattr(share, "size_of", lambda rows: 0)
    disk = SimulatedDisk()
    past = lived(disk, retain)
    copied = backup(PATH, COPY, disk)
    reader = StoreReader.open(COPY, moved(disk))
    for epoch in range(max(min(past), copied.first_epoch), copied.last_epoch + 1):
        assert read_table(reader, "accounts", epoch).sort_by("id") == past[epoch]["accounts"]
    monkeypatch.setattr("tests.property.workers.PATH", COPY)
    with open_sharded(TABLES, TRANSACTIONS, 3, Workers(), disk) as engine:
        assert rows_of(engine) == past[engine.epoch]
        engine.run(ROUTES, batch(random.Random(9), 20), route_by="what")
        assert engine.epoch == max(past) + 1


def test_a_store_made_from_an_older_epoch_has_its_rows_and_no_later_parts() -> None:
    disk = SimulatedDisk()
    past = lived(disk)
    epoch = min(past) + 3
    restore(PATH, epoch, COPY, disk)
    later = [path for path in disk.paths() if path.startswith(f"{COPY}/parts/{epoch + 1:020d}")]
    reader = StoreReader.open(COPY, moved(disk))
    assert not later and reader.last_epoch() == epoch
    for table in TABLES:
        found = read_table(reader, table.name, epoch).sort_by(table.key[0])
        assert found == past[epoch][table.name]


def test_a_part_that_is_damaged_is_not_copied() -> None:
    disk = SimulatedDisk()
    lived(disk)
    file = next(path for path in disk.paths() if path.endswith(".part"))
    content = bytearray(disk.content(file))
    content[-70] ^= 1
    disk.replace(file, bytes(content))
    with pytest.raises(hg.DamageError, match="does not match its checksum"):
        backup(PATH, COPY, disk)
    assert not disk.exists(COPY)
