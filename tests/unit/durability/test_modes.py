"""Durability modes: what a wait promises, and that a group shares its sync within its delay."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from headgate.durability import Commit, Durability, Store, StoreReader
from headgate.errors import InputError, StoreError
from headgate.testing.disk import SimulatedClock, SimulatedDisk
from headgate.testing.survival import Survival

PATH = "/bank"
TABLES = {"tables": {"t": {}}}


def commit(epoch: int) -> Commit:
    rows = {"__slot": [epoch % 7], "__alive": [True], "value": [epoch]}
    return Commit(epoch, epoch, None, {"t": pa.record_batch(rows)})


def opened(disk: SimulatedDisk, durability: Durability, **more: Any) -> Store:
    store = Store.open(PATH, disk, SimulatedClock(), durability=durability, **more)
    store.recover()
    store.write_manifest(TABLES)
    return store


def epoch_after(disk: SimulatedDisk) -> int:
    store = Store.open(PATH, disk, SimulatedClock())
    epoch = store.recover().epoch
    store.close()
    return epoch


def log_syncs(disk: SimulatedDisk) -> int:
    return sum(what == "sync" and path.endswith(".log") for what, path in disk.trace)


def test_without_durability_a_wait_shows_the_epoch_but_syncs_nothing() -> None:
    disk = SimulatedDisk()
    store = opened(disk, "none")
    store.commit(commit(1))
    before = log_syncs(disk)
    for epoch in range(2, 20):
        store.commit(commit(epoch))
        assert StoreReader.open(PATH, disk).last_epoch() == epoch
    assert log_syncs(disk) == before
    assert epoch_after(disk.after_kill()) == 19
    assert epoch_after(disk.after_crash(Survival.DROP)) == 0


def test_without_durability_a_snapshot_and_the_end_are_synced_all_the_same() -> None:
    disk = SimulatedDisk()
    store = opened(disk, "none")
    for epoch in range(1, 5):
        store.commit(commit(epoch))
    store.snapshot()
    store.commit(commit(5))
    assert epoch_after(disk.after_crash(Survival.DROP)) == 4
    store.close()
    assert epoch_after(disk.after_crash(Survival.DROP)) == 5


def test_epochs_that_a_loss_of_power_took_are_counted_and_readers_are_told() -> None:
    disk = SimulatedDisk()
    store = opened(disk, "none")
    for epoch in range(1, 9):
        store.commit(commit(epoch))
    path = f"{PATH}/log/00000000000000000001.log"
    lost = disk.after_kill()
    lost.replace(path, disk.content(path)[: len(disk.content(path)) // 2])
    with pytest.raises(StoreError, match=r'durability "none".*opening the store to write'):
        StoreReader.open(PATH, lost).table("t")
    again = Store.open(PATH, lost, SimulatedClock())
    epoch = again.recover().epoch
    assert 0 < epoch < 8
    assert again.outcome is not None and again.outcome.lost_epochs == 8 - epoch
    assert StoreReader.open(PATH, lost).last_epoch() == epoch


class GatedSyncs:
    """A disk whose syncs of the log wait, when the gate is shut, until it is opened."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.gate = threading.Event()
        self.gate.set()
        self.came = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, mode: Any) -> Any:
        file = self._disk.open(path, mode)
        if path.endswith(".log"):
            real_sync = file.sync

            def gated_sync() -> None:
                self.came.set()
                self.gate.wait()
                real_sync()

            file.sync = gated_sync  # type: ignore[method-assign]
        return file


def commits_by_threads(store: Store, threads: int, each: int) -> list[int]:
    """Commit from several threads, each waiting for one before it makes the next."""
    order = threading.Lock()
    last, acknowledged = [0], []

    def work() -> None:
        for _ in range(each):
            with order:
                last[0] += 1
                ticket = store.append(commit(last[0]))
            store.wait(ticket)
            acknowledged.append(ticket)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    return sorted(acknowledged)


@pytest.mark.parametrize("durability", ["sync", "group"])
def test_threads_that_come_during_a_sync_share_the_next_one(durability: Durability) -> None:
    disk = SimulatedDisk()
    gated = GatedSyncs(disk)
    store = Store.open(PATH, gated, SimulatedClock(), durability=durability)
    store.recover()
    store.commit(commit(1))  # it also begins the segment
    before = log_syncs(disk)
    gated.gate.clear()
    gated.came.clear()
    store.append(commit(2))
    threads = [threading.Thread(target=store.wait, args=(2,))]
    threads[0].start()
    gated.came.wait()
    for epoch in range(3, 10):
        store.append(commit(epoch))
        threads.append(threading.Thread(target=store.wait, args=(epoch,)))
        threads[-1].start()
    gated.gate.set()
    for thread in threads:
        thread.join()
    assert log_syncs(disk) - before == 2
    assert epoch_after(disk.after_crash(Survival.DROP)) == 9


def test_many_threads_of_a_group_are_all_acknowledged() -> None:
    disk = SimulatedDisk()
    store = opened(disk, "group")
    assert commits_by_threads(store, 8, 20) == list(range(1, 161))
    assert epoch_after(disk.after_crash(Survival.DROP)) == 160


# So long that a wait for a group that does not come would never end in the time of a test.
ENDLESS_US = 3_600_000_000


def test_a_lonely_thread_does_not_wait_for_a_group() -> None:
    store = opened(SimulatedDisk(), "group", group_delay_us=ENDLESS_US)
    for epoch in range(1, 30):
        store.commit(commit(epoch))


def test_a_group_that_does_not_come_again_is_waited_for_only_once() -> None:
    store = opened(SimulatedDisk(), "group", group_delay_us=15_000)
    store._group = 8
    store.commit(commit(1))
    assert store._group == 1
    store._group_delay_us = ENDLESS_US
    store.commit(commit(2))


def test_every_epoch_acknowledged_in_a_group_survives_a_loss_of_power() -> None:
    disk = SimulatedDisk()
    store = opened(disk, "group", group_delay_us=1000, segment_bytes=900)
    acknowledged = commits_by_threads(store, 4, 10)
    assert epoch_after(disk.after_crash(Survival.DROP)) == acknowledged[-1] == 40


def test_a_failed_sync_reaches_every_thread_of_the_group() -> None:
    disk = SimulatedDisk()
    store = opened(disk, "group", group_delay_us=20_000)
    for epoch in (1, 2, 3):
        store.append(commit(epoch))
    store._group = 3
    disk.fail_at = disk.calls + 1
    failures: list[str] = []

    def wait(ticket: int) -> None:
        try:
            store.wait(ticket)
        except StoreError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=wait, args=(ticket,)) for ticket in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(failures) == 3
    assert all("reopen the store to recover" in failure for failure in failures)


def test_an_unknown_mode_or_delay_is_refused() -> None:
    with pytest.raises(InputError, match="sync, group, none"):
        opened(SimulatedDisk(), "often")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="group_delay_us is -1"):
        opened(SimulatedDisk(), "group", group_delay_us=-1)
