"""Canaries: seeded bugs that the crash checker must catch, or it proves nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headgate.durability import compaction, recovery, retention, snapshot, store
from headgate.durability import format as layout
from headgate.durability.commit import Commit
from headgate.durability.head import Head
from headgate.durability.log import LogWriter
from headgate.durability.retention import Trimmer
from headgate.durability.room import RoomyFile
from headgate.errors import HeadgateError
from headgate.io import Disk
from headgate.testing.disk import SimulatedCrash, SimulatedDisk, SimulatedFile
from headgate.testing.survival import Survival
from tests.faults import test_damage
from tests.faults.workload import SURVIVALS, Diary, Lost, check, live
from tests.unit.durability import test_retention
from tests.unit.durability.conftest import Place


class Forgetful:
    """A disk that claims to sync: files whose path ends so, or folders, or both."""

    def __init__(self, disk: SimulatedDisk, suffix: str | None, folder: str | None) -> None:
        self._disk = disk
        self._suffix = suffix
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, mode: Any) -> Any:
        file = self._disk.open(path, mode)
        if self._suffix is not None and path.endswith(self._suffix):
            return ForgetfulFile(file)
        return file

    def sync_folder(self, path: str) -> None:
        if self._folder is None or os.path.basename(path) != self._folder:
            self._disk.sync_folder(path)


class ForgetfulFile:
    """A file whose sync does nothing."""

    def __init__(self, file: SimulatedFile) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Claim that it was done."""


class Hasty:
    """A disk on which a file gets its name first and is synced after that: the wrong order."""

    def __init__(self, disk: SimulatedDisk, suffix: str) -> None:
        self._disk = disk
        self._suffix = suffix
        self._files: dict[str, SimulatedFile] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, mode: Any) -> Any:
        file = self._disk.open(path, mode)
        if path.endswith(self._suffix):
            self._files[path] = file
            return ForgetfulFile(file)
        return file

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)
        if old in self._files:
            self._files.pop(old).sync()


def honest(disk: SimulatedDisk) -> Disk:
    return disk


def power_lost(disk: SimulatedDisk, call: int) -> SimulatedDisk:
    return disk.after_crash(SURVIVALS[call % len(SURVIVALS)][0], call)


def names_left(disk: SimulatedDisk, call: int) -> SimulatedDisk:
    return disk.after_crash(Survival.NAMES)


def catches(
    dress: Callable[[SimulatedDisk], Disk] = honest,
    aftermath: Callable[[SimulatedDisk, int], SimulatedDisk] = power_lost,
) -> bool:
    """Whether a crash at some call, or none at all, shows the bug to the checks of `test_crash`."""
    whole = SimulatedDisk()
    try:
        live(dress(whole), Diary())
    except HeadgateError:
        return True
    for call in range(1, whole.calls + 1):
        disk, diary = SimulatedDisk(crash_at=call), Diary()
        with pytest.raises(SimulatedCrash):
            live(dress(disk), diary)
        try:
            check(aftermath(disk, call), diary.told)
        except (Lost, HeadgateError):
            return True
    return False


@pytest.mark.parametrize(
    ("suffix", "folder"),
    [(".log", None), ("manifest.json.new", None), (None, "log"), (None, "bank")],
)
def test_a_disk_that_ignores_a_sync_is_caught(suffix: str | None, folder: str | None) -> None:
    assert catches(lambda disk: Forgetful(disk, suffix, folder))


@pytest.mark.parametrize("suffix", ["manifest.json.new", "floor.new"])
def test_a_file_renamed_before_it_is_synced_is_caught(suffix: str) -> None:
    assert catches(lambda disk: Hasty(disk, suffix), names_left)


def remove_all_but_the_last(trimmer: Trimmer, first_segment: int) -> None:
    names = trimmer._disk.list(trimmer._log)
    for segment in layout.numbers_of(names, layout.SEGMENT_SUFFIX)[:-1]:
        trimmer._remove(os.path.join(trimmer._log, layout.segment_name(segment)))


def test_a_segment_trimmed_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trimmer, "_remove_segments", remove_all_but_the_last)
    assert catches()


def test_files_removed_before_the_floor_is_durable_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The floor is written, but not synced: a crash lowers it again below what was removed."""

    def written_only(disk: Disk, path: str, content: bytes) -> None:
        disk.open(path + ".new", "create").write(0, content)
        disk.rename(path + ".new", path)

    monkeypatch.setattr(retention, "replace_file", written_only)
    assert catches(aftermath=lambda disk, call: disk.after_crash(Survival.DROP))


def test_blocks_given_up_while_a_snapshot_refers_to_them_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_up = Trimmer._give_up
    monkeypatch.setattr(Trimmer, "_give_up", lambda self, epoch, _: give_up(self, epoch, False))
    assert catches()


def test_trimming_that_takes_no_notice_of_readers_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read_while_trimmed() -> None:
        place = Place(SimulatedDisk(), "/bank")
        test_retention.test_a_hold_keeps_what_could_be_read_when_it_was_taken(place)

    read_while_trimmed()
    monkeypatch.setattr(retention, "leased_epochs", lambda *_, **__: [])
    with pytest.raises((HeadgateError, AssertionError)):
        read_while_trimmed()


def test_a_snapshot_that_refers_to_changed_blocks_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = np.empty(0, np.int64)
    monkeypatch.setattr(compaction.TableChanges, "touched_between", lambda self, low, high: nothing)
    assert catches()


def test_a_wait_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.Store, "wait", store.Store._show)
    assert catches()


def test_publishing_before_the_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    make, append = Head.__init__, LogWriter.append
    heads: list[Head] = []

    def remember(head: Head, *arguments: Any) -> None:
        heads.append(head)
        make(head, *arguments)

    def append_and_publish(log: LogWriter, *arguments: Any) -> layout.Position:
        position = append(log, *arguments)
        heads[-1].publish(position)
        return position

    monkeypatch.setattr(Head, "__init__", remember)
    monkeypatch.setattr(LogWriter, "append", append_and_publish)
    assert catches()


def test_a_snapshot_named_before_it_is_synced_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is whole, so only the fallback saves the store; the canary takes that away too."""

    def only_newest(disk: Disk, folder: str, receiver: Any) -> tuple[recovery.Rebuilt, list[str]]:
        epochs = snapshot.snapshot_epochs(disk, folder)
        if not epochs:
            return recovery.Rebuilt(receiver=receiver), []
        newest = snapshot.Snapshot.open(disk, folder, epochs[-1])
        return recovery.Rebuilt.from_snapshot(newest, receiver), []

    monkeypatch.setattr(recovery, "_newest_snapshot", only_newest)
    assert not catches(aftermath=names_left)
    assert catches(lambda disk: Forgetful(disk, ".snapshot.new", None), names_left)


def test_a_segment_begun_before_the_last_is_synced_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store.Store, "_begin_segment", lambda self, log: log.begin_segment())
    assert catches()


def test_recovery_that_does_not_sync_what_it_found_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "_write_again", lambda *arguments: None)
    assert catches(aftermath=lambda disk, call: disk.after_kill())


def test_recovery_that_leaves_a_torn_segment_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on_after_it() -> None:
        disk = SimulatedDisk()
        for epoch in (1, 2):
            opened = store.Store.open("/bank", disk)
            opened.recover()
            opened.commit(Commit(epoch, 0))
            opened.close()
            name = layout.segment_name(epoch + 1)
            disk.open(f"/bank/log/{name}", "create").write(0, layout.SEGMENT_MAGIC)

    go_on_after_it()
    monkeypatch.setattr(recovery, "_cut", lambda *arguments: None)
    with pytest.raises(HeadgateError):
        go_on_after_it()


def test_a_checksum_that_does_not_cover_the_header_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of an epoch is only in the header: a flip there must not go unseen."""

    stored = {
        frame[64:]: int.from_bytes(frame[56:64], "little")
        for path in (test_damage.LOG, test_damage.LAST_LOG)
        for frame in test_damage.frames_of(test_damage.WHOLE.content(path))
    }

    def of_payload_only(payload: Any, covered: Any, previous: int) -> int:
        return stored.get(bytes(payload), 0)

    def found() -> int | str:
        disk = test_damage.damaged(test_damage.LAST_LOG, test_damage.flip(64 + 16))
        return test_damage.recovered_epoch(disk)

    assert found() == "DamageError"
    monkeypatch.setattr(layout, "frame_checksum", of_payload_only)
    with pytest.raises(AssertionError):
        found()


def test_room_made_over_frames_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros from where the room ended before, whatever was written there since."""
    write = RoomyFile.write

    def unguarded(room: RoomyFile, offset: int, *pieces: memoryview | bytes) -> None:
        before = room._ready
        write(room, offset, *pieces)
        room._ready = before

    monkeypatch.setattr(RoomyFile, "write", unguarded)
    assert catches()
