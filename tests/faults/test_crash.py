"""Crashes at every I/O point of a store's life: nothing acknowledged is lost, nothing is half."""

from __future__ import annotations

import errno
import functools

import pytest

from headgate.durability.room import RoomyFile
from headgate.errors import HeadgateError, StoreError
from headgate.io import File
from headgate.testing.disk import SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.tally import Tally
from tests.faults.workload import (
    LAST_EPOCH,
    LIVES,
    SYNC,
    Diary,
    Life,
    Told,
    check,
    check_going_on,
    check_recovery,
    commit_of,
    killed,
    live,
    open_store,
)

# How often a crash is judged again with other luck, in the usual run and in the long one.
SEEDS = {
    Survival.DROP: (1, 1),
    Survival.KEEP: (1, 1),
    Survival.NAMES: (1, 1),
    Survival.TEAR: (3, 60),
    Survival.RANDOM: (7, 250),
}


@functools.cache
def calls_of(life: Life = SYNC) -> int:
    disk = SimulatedDisk()
    live(disk, Diary(life))
    return disk.calls


@functools.cache
def crashed_at(call: int, life: Life = SYNC) -> tuple[SimulatedDisk, Told]:
    """A disk whose power went during the call, and what the store had told until then."""
    disk, diary = SimulatedDisk(crash_at=call), Diary(life)
    with pytest.raises(SimulatedCrash):
        live(disk, diary)
    return disk, diary.told


every_life = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)


def test_an_undisturbed_life_ends_with_every_epoch() -> None:
    disk, diary = SimulatedDisk(), Diary()
    live(disk, diary)
    assert check(disk, diary.told) == LAST_EPOCH
    segments = [path for path in disk.paths() if path.endswith(".log")]
    assert len(segments) > 2
    assert len([path for path in disk.paths() if path.endswith(".snapshot")]) == 1
    assert len([path for path in disk.paths() if path.endswith(".blocks")]) == 1


@every_life
@pytest.mark.parametrize("survival", list(Survival))
def test_a_crash_at_any_call_loses_no_acknowledged_epoch(
    survival: Survival, life: Life, tally: Tally, long_run: bool
) -> None:
    for call in range(1, calls_of(life) + 1):
        disk, told = crashed_at(call, life)
        for seed in range(SEEDS[survival][long_run]):
            after = disk.after_crash(survival, seed * 10_000 + call)
            tally.check("crashes at a call, power lost", after, told)


@every_life
def test_a_killed_process_loses_nothing_even_when_the_power_goes_later(
    life: Life, tally: Tally
) -> None:
    for call in range(1, calls_of(life) + 1):
        disk, told = crashed_at(call, life)
        after = disk.after_kill()
        tally.check("crashes at a call, process killed", after, killed(told), is_synced=False)


@every_life
def test_a_crash_during_recovery_is_recovered_from(
    life: Life, tally: Tally, long_run: bool
) -> None:
    for call in range(1, calls_of(life) + 1, 1 if long_run else 4):
        disk, told = crashed_at(call, life)
        for seed in range(10 if long_run else 1):
            broken = disk.after_crash(Survival.RANDOM, seed * 10_000 + call)
            crash_recovering(broken, told, seed * 10_000 + call, tally)


def crash_recovering(broken: SimulatedDisk, told: Told, seed: int, tally: Tally) -> None:
    """Crash at each call of a recovery, and recover from that."""
    for second in range(1, 100):
        again = broken.after_crash(Survival.KEEP)
        again.crash_at = second
        try:
            check_recovery(again, told)
        except SimulatedCrash:
            after = again.after_crash(Survival.RANDOM, seed * 60 + second)
            tally.check("crashes during recovery", after, told)
        else:
            break


def test_a_recovered_store_goes_on_and_its_new_epochs_survive(tally: Tally) -> None:
    for call in range(1, calls_of() + 1, 2):
        disk, told = crashed_at(call)
        check_going_on(disk.after_crash(Survival.RANDOM, call), told)
        tally.count("crashes after which the store went on and crashed again")


@functools.cache
def calls_for_room() -> set[int]:
    """The writes of an undisturbed life that only make room for frames to come."""
    disk, found, make = SimulatedDisk(), set(), RoomyFile._write_zeros

    def noted(room: RoomyFile, file: File, end: int) -> bool:
        before = disk.calls
        is_more = make(room, file, end)
        found.update(range(before + 1, disk.calls + 1))
        return is_more

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoomyFile, "_write_zeros", noted)
        live(disk, Diary())
    return found


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_stops_the_store_and_loses_nothing(error: int, tally: Tally) -> None:
    assert calls_for_room()
    for call in range(1, calls_of() + 1):
        disk, diary = SimulatedDisk(fail_at=call, fail_with=error), Diary()
        if error == errno.ENOSPC and call in calls_for_room():
            live(disk, diary)  # a disk that has no room to spare may have enough for the frames
            assert diary.told.acknowledged == LAST_EPOCH
        else:
            with pytest.raises(StoreError):
                live(disk, diary)
        # The process may live on and open the store again, and the power may still go then.
        tally.check("failed calls", disk.after_kill(), diary.told, is_synced=False)


def test_a_short_write_is_completed() -> None:
    whole = SimulatedDisk()
    live(whole, Diary())
    for call in [number for number, (what, _) in enumerate(whole.trace, 1) if what == "write"]:
        disk, diary = SimulatedDisk(fail_at=call, fail_with=0), Diary()
        live(disk, diary)
        assert check(disk.after_crash(Survival.DROP), diary.told) == LAST_EPOCH


def test_after_a_failure_every_call_names_the_first_cause() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.recover()
    store.commit(commit_of(1))
    disk.fail_at = disk.calls + 2
    with pytest.raises(StoreError, match=r"sync epoch 2.*reopen the store"):
        store.commit(commit_of(2))
    for action in (
        lambda: store.append(commit_of(2)),
        lambda: store.wait(2),
        lambda: store.snapshot(1, {}),
        lambda: store.write_manifest({}),
    ):
        with pytest.raises(StoreError, match=r"sync epoch 2.*reopen the store to recover"):
            action()
    store.wait(1)
    store.close()
    assert open_store(disk).recover().epoch == 2


def test_bytes_that_a_failed_sync_lost_are_written_again_by_recovery() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.recover()
    store.commit(commit_of(1))
    disk.fail_at = disk.calls + 2
    with pytest.raises(StoreError):
        store.commit(commit_of(2))
    store.close()
    store = open_store(disk)
    assert store.recover().epoch == 2
    store.commit(commit_of(3))
    assert check(disk.after_crash(Survival.DROP), Told(acknowledged=3, attempted=3)) == 3


def test_a_full_disk_stops_the_store_and_what_was_committed_stays() -> None:
    for capacity_bytes in range(1000, 60_000, 1500):
        disk, diary = SimulatedDisk(capacity_bytes=capacity_bytes), Diary()
        try:
            live(disk, diary)
        except StoreError as error:
            assert "full" in str(error) or "No space" in str(error)
        roomy = disk.after_crash(Survival.RANDOM, capacity_bytes)
        roomy.capacity_bytes = None
        check(roomy, diary.told)


def test_a_full_disk_can_still_be_opened_to_read_what_is_there() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.recover()
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths()) + 8000
    epoch = 0
    with pytest.raises(StoreError, match="the disk is full"):
        for epoch in range(1, LAST_EPOCH + 1):
            store.commit(commit_of(epoch))
    store.close()
    store = open_store(disk)
    assert store.recover().epoch == epoch - 1 > 0
    assert dict(store.results(1, 1))[1].num_rows > 0


def test_a_failed_read_is_a_named_error() -> None:
    disk = SimulatedDisk()
    live(disk, Diary())
    for read in range(1, 100):
        disk.reads, disk.fail_read_at = 0, read
        try:
            store = open_store(disk)
            try:
                store.recover()
            finally:
                store.close()
        except HeadgateError as error:
            assert isinstance(error, StoreError)
        else:
            break
    assert read > 5
