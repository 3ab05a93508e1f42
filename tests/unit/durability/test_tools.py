"""Verify, restore and backup: what is whole is told, and copies are stores in their own right."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.durability import (
    Commit,
    Inlet,
    Retention,
    Store,
    StoreReader,
    backup,
    restore,
    verify,
)
from headgate.durability import format as layout
from headgate.durability.tail import Tail
from headgate.errors import DamageError, InputError, StoreError
from headgate.io import RealDisk
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.unit.durability.conftest import Place

TABLES = {"tables": {"t": {}}}
HELD = pa.table({"event": [1, 2, 3]})


def commit(epoch: int) -> Commit:
    rows = {"__slot": [0, epoch], "__alive": [True, True], "value": [epoch, epoch]}
    return Commit(
        epoch,
        epoch * 1000,
        ("q", epoch),
        {"t": pa.record_batch(rows)},
        pa.record_batch({"position": [epoch]}),
        {"in": Inlet(epoch, HELD, epoch)},
    )


def values_at(epoch: int) -> list[int]:
    return [epoch, *range(1, epoch + 1)]


def lived(place: Place, last: int = 22, every: int = 5, retain: Any = None) -> Store:
    store = Store.open(place.path, place.disk, SimulatedClock(), segment_bytes=1200, retain=retain)
    store.recover()
    store.write_manifest(TABLES)
    for epoch in range(1, last + 1):
        store.commit(commit(epoch))
        if epoch % every == 0:
            store.snapshot()
    return store


def check_store(place: Place, path: str, first: int, last: int) -> None:
    """The copy is whole, reads and recovers like the original, and goes on."""
    report = verify(path, place.disk)
    assert report.is_whole and not report.notes
    assert (report.floor, report.last_epoch, report.recoverable) == (first, last, last)
    reader = StoreReader.open(path, place.disk)
    assert (reader.first_epoch(), reader.last_epoch()) == (first, last)
    for epoch in range(max(first, 1), last + 1):
        assert reader.table("t", epoch)["value"].to_pylist() == values_at(epoch)
    assert [info.epoch for info in reader.commits()] == [*range(first + 1, last + 1)]
    store = Store.open(path, place.disk, SimulatedClock(), segment_bytes=600)
    recovered = store.recover()
    assert recovered.epoch == last
    assert recovered.images["t"]["value"].to_pylist() == values_at(last)
    assert recovered.origins == {"q": (last, last)}
    assert recovered.inlets["in"].held.equals(HELD)
    assert dict(store.results(last, last))[last].to_pydict() == {"position": [last]}
    for epoch in range(last + 1, last + 4):
        store.commit(commit(epoch))
    store.snapshot()
    store.close()
    after = StoreReader.open(path, place.disk)
    assert after.table("t")["value"].to_pylist() == values_at(last + 3)
    assert verify(path, place.disk).is_whole


@pytest.mark.parametrize("epoch", [1, 4, 5, 6, 19, 20, 22])
def test_any_retained_epoch_makes_a_new_store(place: Place, epoch: int) -> None:
    lived(place, retain=Retention(snapshots=9))
    copy = f"{place.path}-copy"
    first = max((n for n in (0, 5, 10, 15, 20) if n <= epoch), default=0)
    copied = restore(place.path, epoch, copy, place.disk, SimulatedClock())
    assert (copied.first_epoch, copied.last_epoch) == (first, epoch)
    check_store(place, copy, first, epoch)


def test_an_epoch_that_is_not_there_cannot_be_restored(place: Place) -> None:
    lived(place, retain=Retention(snapshots=1))
    for epoch in (19, 23):
        with pytest.raises(InputError, match=f"no epoch {epoch} .* 20 to 22"):
            restore(place.path, epoch, f"{place.path}-copy", place.disk)
    with pytest.raises(InputError, match="not empty"):
        restore(place.path, 20, place.path, place.disk)
    assert not place.disk.exists(f"{place.path}-copy")


@pytest.mark.parametrize("retain", [None, Retention(snapshots=2)])
def test_a_backup_has_all_that_the_store_has(place: Place, retain: Retention | None) -> None:
    lived(place, retain=retain)
    copied = backup(place.path, f"{place.path}-copy", place.disk, SimulatedClock())
    first = 15 if retain else 0
    assert (copied.first_epoch, copied.last_epoch) == (first, 22)
    check_store(place, f"{place.path}-copy", first, 22)


def test_a_backup_of_a_store_that_runs_on_is_one_epoch_of_it(tmp_path: Path) -> None:
    place = Place(RealDisk(), str(tmp_path / "bank"))
    store = lived(place, retain=Retention(snapshots=1))
    done = threading.Event()

    def run_on() -> None:
        epoch = 23
        while not done.is_set():
            store.commit(commit(epoch))
            if epoch % 5 == 0:
                store.snapshot()
            epoch += 1

    writer = threading.Thread(target=run_on)
    writer.start()
    try:
        for number in range(5):
            copied = backup(place.path, tmp_path / f"copy {number}")
            check_store(place, copied.path, copied.first_epoch, copied.last_epoch)
    finally:
        done.set()
        writer.join(30)


def test_a_backup_that_is_cut_short_is_no_store(place: Place) -> None:
    if not isinstance(place.disk, SimulatedDisk):
        pytest.skip("only the simulated disk loses its power on cue")
    lived(place).close()
    copy = f"{place.path}-copy"
    before = place.disk.calls
    for call in range(1, 60):
        disk = place.disk.after_kill()
        disk.crash_at = call
        try:
            backup(place.path, copy, disk, SimulatedClock())
        except SimulatedCrash:
            left = disk.after_crash(Survival.RANDOM, call)
            if left.exists(f"{copy}/manifest.json"):
                check_store(Place(left, place.path), copy, 0, 22)
        else:
            break
    assert before and call > 10


def test_a_full_disk_ends_a_backup_with_a_named_error(place: Place) -> None:
    if not isinstance(place.disk, SimulatedDisk):
        pytest.skip("only the simulated disk fills up on cue")
    lived(place).close()
    sizes = [len(place.disk.content(path)) for path in place.disk.paths()]
    place.disk.capacity_bytes = sum(sizes) + 3000
    with pytest.raises(StoreError, match="cannot copy"):
        backup(place.path, f"{place.path}-copy", place.disk)


def test_damage_elsewhere_does_not_keep_an_epoch_from_being_restored(place: Place) -> None:
    lived(place, retain=Retention(snapshots=9)).close()
    log = place.disk.list(f"{place.path}/log")
    place.disk.open(f"{place.path}/log/{log[0]}", "write").write(1000, b"damage")
    restore(place.path, 21, f"{place.path}-new", place.disk, SimulatedClock())
    check_store(place, f"{place.path}-new", 20, 21)
    with pytest.raises(DamageError):
        restore(place.path, 3, f"{place.path}-old", place.disk)
    assert not place.disk.exists(f"{place.path}-old/manifest.json")


def test_a_whole_store_is_reported_whole(place: Place) -> None:
    store = lived(place, retain=Retention(snapshots=2))
    report = verify(place.path, place.disk)
    assert report.is_whole and not report.notes
    assert (report.floor, report.published, report.snapshots) == (15, 22, [15, 20])
    assert report.readable == list(range(15, 23))
    assert (report.lost, report.unpublished, report.torn) == ([], [], None)
    store.append(commit(23))
    assert verify(place.path, place.disk).unpublished == [23]


def test_a_damaged_frame_costs_the_epochs_up_to_the_next_snapshot(place: Place) -> None:
    lived(place, retain=Retention(snapshots=9)).close()
    info = list(place.reader().commits())[11]
    place.disk.open(info.file, "write").write(info.offset + 200, b"damage")
    report = verify(place.path, place.disk)
    assert len(report.damages) == 1
    assert f"{info.file} at offset {info.offset}" in report.damages[0]
    assert report.lost == [12]
    assert report.readable == [*range(12), *range(15, 23)]
    assert report.recoverable == 22


def test_the_end_of_an_unreadable_log_can_still_be_saved_up_to_the_damage(place: Place) -> None:
    lived(place, last=24).close()
    info = list(place.reader().commits())[22]
    place.disk.open(info.file, "write").write(info.offset + 200, b"damage")
    report = verify(place.path, place.disk)
    assert report.recoverable == 22
    restore(place.path, report.recoverable, f"{place.path}-copy", place.disk, SimulatedClock())
    check_store(place, f"{place.path}-copy", 20, 22)


def test_strange_files_are_noted_and_a_torn_slot_of_the_head_is_damage(place: Place) -> None:
    lived(place).close()
    place.disk.open(f"{place.path}/holiday.jpg", "create").close()
    place.disk.open(f"{place.path}/head", "write").write(3, b"x")
    report = verify(place.path, place.disk)
    assert any("holiday.jpg" in note for note in report.notes)
    assert ["this slot is not whole" in damage for damage in report.damages] == [True]


def test_a_folder_that_is_no_store_is_not_verified(place: Place) -> None:
    with pytest.raises(InputError, match="there is no store"):
        verify(place.path, place.disk)


class Hiding(RealDisk):
    """A disk on which a file comes to be just after someone has looked for it in vain."""

    def __init__(self, hidden: str) -> None:
        super().__init__()
        self.hidden = hidden
        self.is_there = False

    def exists(self, path: str) -> bool:
        found = super().exists(path)
        if path != self.hidden or self.is_there:
            return found
        self.is_there = True
        return False

    def list(self, folder: str) -> list[str]:
        gone = set() if self.is_there else {self.hidden.rpartition("/")[2]}
        return [name for name in super().list(folder) if name not in gone]


def test_a_segment_that_is_begun_while_the_log_is_examined_is_no_damage(tmp_path: Path) -> None:
    bank = Place(RealDisk(), str(tmp_path / "bank"))
    for epochs in (range(1, 4), range(4, 6)):  # each writer begins a segment of its own
        store = bank.store()
        for epoch in epochs:
            store.commit(commit(epoch))
        store.close()
    folder = os.path.join(bank.path, layout.LOG_FOLDER)
    hiding = Hiding(os.path.join(folder, layout.segment_name(4)))
    tail = Tail(hiding, folder, layout.BEGINNING)
    assert [frame.header.epoch for frame in tail.frames()] == [1, 2, 3, 4, 5]
    assert hiding.is_there and tail.torn is None
