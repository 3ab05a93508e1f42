"""Room behind the frames: made ahead, bounded, given back, and never in the way of a frame."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.durability import Commit, Store, StoreReader, verify
from headgate.durability import room as rooms
from headgate.durability.room import RoomyFile
from headgate.durability.scan import Cursor
from headgate.durability.tail import Tail
from headgate.errors import DamageError, StoreError
from headgate.io import File, OpenMode, RealDisk
from headgate.io.real import RealFile
from headgate.testing.disk import SimulatedAside, SimulatedClock, SimulatedDisk
from headgate.testing.survival import Survival
from tests.unit.durability.conftest import Place

LEAST = 1 << 10  # of room, in segments of eight times as much


def commit(epoch: int, rows: int = 10) -> Commit:
    columns = {"__slot": range(rows), "__alive": [True] * rows, "value": [epoch * 7919] * rows}
    return Commit(epoch, epoch, changes={"t": pa.record_batch(columns)})


def opened(place: Place) -> Store:
    return place.store(segment_bytes=8 * LEAST)


def last_log(place: Place) -> tuple[str, bytes]:
    folder = f"{place.path}/log"
    path = f"{folder}/{place.disk.list(folder)[-1]}"
    file = place.disk.open(path, "read")
    content = bytearray(file.size())
    file.read_into(0, memoryview(content))
    file.close()
    return path, bytes(content)


def settle(store: Store) -> None:
    """Return when the room that was asked for is there."""
    log = store._log
    assert log is not None
    log._aside.close()


def fill(store: Store, first: int, until: int, rows: int = 10) -> int:
    """Commit from an epoch on until the segment has so many bytes; returns the last epoch."""
    log = store._log
    assert log is not None
    epoch = first
    while True:
        store.commit(commit(epoch, rows))
        settle(store)
        if log.position.offset >= until:
            return epoch
        epoch += 1


def test_a_segment_that_has_grown_has_room_and_never_more_than_it_has_frames(place: Place) -> None:
    store = opened(place)
    log = store._log
    assert log is not None
    seen = 0
    for epoch in range(1, 200):
        store.commit(commit(epoch))
        settle(store)
        _, content = last_log(place)
        used, room = log.position.offset, len(content) - log.position.offset
        assert 0 <= room <= used + 4096 and not any(content[used:])
        if used < LEAST:
            assert room == 0
        seen = max(seen, room)
    assert seen
    store.close()


def test_a_store_that_was_closed_has_no_room_and_a_small_one_none_at_all(place: Place) -> None:
    store = opened(place)
    fill(store, 1, 4 * LEAST)
    before = len(last_log(place)[1])
    store.close()
    assert 4 * LEAST <= len(last_log(place)[1]) < before
    place.path += "-small"
    store = Store.open(place.path, place.disk, SimulatedClock())
    store.recover()
    for epoch in (1, 2, 3):
        store.commit(commit(epoch))
    assert len(last_log(place)[1]) < 4096
    store.close()


def test_frames_in_room_are_synced_with_no_change_of_the_size() -> None:
    disk = SimulatedDisk()
    place = Place(disk, "/bank")
    store = opened(place)
    last = fill(store, 1, 3 * LEAST)
    path, before = last_log(place)
    store.commit(commit(last + 1))
    assert len(disk.content(path)) == len(before)
    assert opened(Place(disk.after_crash(Survival.DROP), "/bank"))._synced_epoch == last + 1


def test_a_killed_store_has_room_which_is_neither_torn_nor_damage(place: Place) -> None:
    store = opened(place)
    last = fill(store, 1, 3 * LEAST)
    path, content = last_log(place)
    end = store._checked_appended(last).position.offset
    assert len(content) > end
    report = verify(place.path, place.disk)
    assert report.is_whole and report.torn is None and report.epochs[-1] == last
    store._lock.release()  # as the end of its process does
    again = opened(place)
    assert again._synced_epoch == last
    assert place.disk.open(path, "read").size() == end
    again.commit(commit(last + 1))
    again.close()


def test_a_reader_that_was_in_the_room_goes_on_in_the_next_segment(place: Place) -> None:
    store = opened(place)
    last = fill(store, 1, 3 * LEAST)
    path, content = last_log(place)
    start = store._checked_appended(last).position
    cursor = Cursor(place.disk, os.path.dirname(path), start)
    assert cursor.next() is None
    assert store._log is not None
    store._log.finish_segment()
    store.commit(commit(last + 1))
    file = place.disk.open(path, "write")  # as if the room were not given back yet
    file.write(start.offset, bytes(len(content) - start.offset))
    file.close()
    found = cursor.next()
    assert found is not None and found.header.epoch == last + 1
    cursor.close()
    assert StoreReader.open(place.path, place.disk).last_epoch() == last + 1
    store.close()


def test_zeros_in_place_of_a_frame_are_damage_with_its_place(place: Place) -> None:
    store = opened(place)
    store.commit(commit(1))
    before = store._checked_appended(1).position
    middle = before.offset
    fill(store, 2, 3 * LEAST)
    store._lock.release()
    path, _ = last_log(place)
    file = place.disk.open(path, "write")
    file.write(middle, bytes(64))
    file.close()
    with pytest.raises(DamageError, match=f"at offset {middle}"):
        opened(place)
    behind = Tail(place.disk, os.path.dirname(path), before)
    with pytest.raises(DamageError, match=f"{middle}: no frame begins here, though"):
        list(behind.frames())
    assert not verify(place.path, place.disk).is_whole


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_when_room_is_made_takes_commits_all_the_same(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    place = Place(disk, "/bank")
    store = opened(place)
    make, tried = RoomyFile._write_zeros, []

    def full(room: RoomyFile, file: File, end: int) -> bool:
        disk.fail_at, disk.fail_with = disk.calls + 1, error
        tried.append(end)
        return make(room, file, end)

    monkeypatch.setattr(RoomyFile, "_write_zeros", full)
    last = fill(store, 1, 6 * LEAST)
    assert len(tried) == 1, "of this segment no more room is asked for"
    assert opened(Place(disk.after_crash(Survival.DROP), "/bank"))._synced_epoch == last


def test_a_room_whose_sync_failed_stops_the_store_at_its_next_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    store = opened(Place(disk, "/bank"))
    last = fill(store, 1, LEAST // 2)
    make = RoomyFile._write_zeros

    def then_fail(room: RoomyFile, file: File, end: int) -> bool:
        is_more = make(room, file, end)
        disk.fail_at = None if is_more else disk.calls + 1
        return is_more

    monkeypatch.setattr(RoomyFile, "_write_zeros", then_fail)
    with pytest.raises(StoreError, match="reopen the store"):
        for epoch in range(last + 1, last + 50):
            store.commit(commit(epoch))


def test_zeros_never_come_over_bytes_that_are_written_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "ROOM_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(rooms, "_PIECE_BYTES", 1 << 12)
    disk, chance = RealDisk(), random.Random(3)
    aside = disk.aside()
    file = RoomyFile(disk, disk.open(str(tmp_path / "log"), "new"), aside, 1 << 10)
    expected = bytearray()
    for number in range(3000):
        piece = bytes([1 + number % 255]) * chance.randint(1, 9000)
        file.write(len(expected), piece)
        expected += piece
        file.make_room(1 << 30)
    file.give_back()
    file.close()
    aside.close()
    assert (tmp_path / "log").read_bytes() == expected


class Later(SimulatedAside):
    """Does what it is given when it is told to."""

    def __init__(self) -> None:
        self.given: list[Callable[[], None]] = []

    def begin(self, work: Callable[[], None]) -> None:
        self.given.append(work)

    def work(self) -> None:
        for work in self.given:
            work()
        self.given.clear()


def times_asked(size: int, *, is_late: bool) -> int:
    """How often room is asked for by 200 commits of a size, if it comes before the next or not."""
    disk, aside, asked = SimulatedDisk(), Later(), 0
    file = RoomyFile(disk, disk.open("/log", "new"), aside, 1 << 10)
    for number in range(200):
        file.write(number * size, b"x" * size)
        if not is_late:
            aside.work()
        file.sync()
        aside.work()
        file.make_room(1 << 30)
        asked += len(aside.given)
    return asked


def test_room_for_long_commits_is_seldom_made_where_it_comes_too_late() -> None:
    assert times_asked(5000, is_late=False) > 60
    assert 2 < times_asked(5000, is_late=True) < 12
    assert times_asked(100, is_late=True) == times_asked(100, is_late=False) > 2


def test_where_no_thread_is_to_be_had_there_is_no_room_and_nothing_else_is_amiss() -> None:
    class Refusing(SimulatedAside):
        def begin(self, work: Callable[[], None]) -> None:
            raise RuntimeError("can't start new thread")

    disk = SimulatedDisk()
    file = RoomyFile(disk, disk.open("/log", "new"), Refusing(), 1 << 10)
    for number in range(3):
        file.write(number * 5000, b"x" * 5000)
        file.sync()
        file.make_room(1 << 30)
    file.give_back()
    assert disk.content("/log") == b"x" * 15_000


class Slow(RealDisk):
    """A disk on which zeros take as long as the test wants."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def open(self, path: str, mode: OpenMode) -> RealFile:
        disk = self

        class SlowFile(RealFile):
            def write(self, offset: int, *pieces: memoryview | bytes) -> None:
                if not any(pieces[0]):
                    disk.begun.set()
                    disk.may_go_on.wait()
                super().write(offset, *pieces)

        return SlowFile(path, mode)


def test_who_writes_where_zeros_are_just_being_written_comes_after_them(tmp_path: Path) -> None:
    disk = Slow()
    aside = disk.aside()
    file = RoomyFile(disk, disk.open(str(tmp_path / "log"), "new"), aside, 1 << 10)
    file.write(0, b"x" * 5000)
    file.make_room(1 << 20)
    disk.begun.wait()
    writer = threading.Thread(target=file.write, args=(5000, b"y" * 9000))
    writer.start()
    writer.join(timeout=0.1)  # it waits; if it did not, the zeros would come over it now
    disk.may_go_on.set()
    writer.join()
    file.give_back()
    file.close()
    aside.close()
    assert (tmp_path / "log").read_bytes() == b"x" * 5000 + b"y" * 9000


def test_a_file_that_is_closed_while_room_is_made_waits_for_it(tmp_path: Path) -> None:
    """Nothing is written by a number that may be another file's by then."""
    disk, aside = RealDisk(), Later()
    file = RoomyFile(disk, disk.open(str(tmp_path / "log"), "new"), aside, 1 << 10)
    file.write(0, b"x" * 5000)
    file.make_room(1 << 20)
    file.give_back()
    file.close()
    assert aside.given
    aside.work()
    assert (tmp_path / "log").read_bytes() == b"x" * 5000
