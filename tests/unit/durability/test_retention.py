"""Retention: what the policy keeps stays readable, what no one needs goes, and readers hold on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.durability import Commit, Retention, Store, StoreReader
from headgate.durability import retention as retention_module
from headgate.durability.retention import SNAPSHOTS_KEPT
from headgate.errors import DamageError, InputError
from headgate.io import RealDisk
from headgate.testing.disk import SimulatedClock
from tests.unit.durability.conftest import Place

TABLES = {"tables": {"t": {}}}


def commit(epoch: int, query: str = "q") -> Commit:
    rows = {"__slot": [0, epoch], "__alive": [True, True], "value": [epoch, epoch]}
    results = pa.record_batch({"position": [epoch]})
    return Commit(epoch, epoch * 1_000_000, (query, epoch), {"t": pa.record_batch(rows)}, results)


def values_at(epoch: int) -> list[int]:
    return [epoch, *range(1, epoch + 1)] if epoch else []


def lived(place: Place, epochs: int, every: int, retain: Retention | None, **more: Any) -> Store:
    """A store of so many epochs, one a second, a segment for every few and regular snapshots."""
    store = Store.open(
        place.path, place.disk, SimulatedClock(0), segment_bytes=600, retain=retain, **more
    )
    first = store.recover().epoch + 1
    store.write_manifest(TABLES)
    for epoch in range(first, first + epochs):
        store.commit(commit(epoch))
        if epoch % every == 0:
            store.snapshot()
    return store


def names(place: Place, folder: str) -> list[str]:
    return place.disk.list(f"{place.path}/{folder}")


def check_all(place: Place, first: int, last: int) -> None:
    reader = place.reader()
    assert (reader.first_epoch(), reader.last_epoch()) == (first, last)
    for epoch in range(max(first, 1), last + 1):
        assert reader.table("t", epoch).column("value").to_pylist() == values_at(epoch)
        assert reader.slots("t", epoch) == epoch + 1
    assert [epoch for epoch, _ in reader.results(first + 1, last)] == [*range(first + 1, last + 1)]
    assert [info.epoch for info in reader.commits()] == [*range(first + 1, last + 1)]


def test_without_a_policy_every_epoch_stays(place: Place) -> None:
    lived(place, 30, 5, None)
    check_all(place, 0, 30)
    assert len([name for name in names(place, "snapshots") if name.endswith(".snapshot")]) == 2


def test_the_newest_snapshots_and_what_follows_them_stay(place: Place) -> None:
    lived(place, 32, 5, Retention(snapshots=3))
    check_all(place, 20, 32)
    assert int(names(place, "log")[0].partition(".")[0]) > 10


def test_the_last_epochs_stay_whatever_the_number_of_snapshots(place: Place) -> None:
    lived(place, 32, 5, Retention(snapshots=1, epochs=12))
    check_all(place, 15, 32)


def test_epochs_stay_for_as_long_as_their_age_asks(place: Place) -> None:
    store = lived(place, 32, 5, Retention(snapshots=100))
    clock = SimulatedClock(32_000_000)
    store._clock = clock
    assert store.trim(Retention(snapshots=1, age_us=12_000_000)).first_epoch == 20
    check_all(place, 20, 32)
    clock.advance(6)
    store.trim(Retention(snapshots=1, age_us=12_000_000))
    check_all(place, 25, 32)


def test_too_few_snapshots_let_nothing_go(place: Place) -> None:
    store = lived(place, 12, 10, None)
    assert store.trim(Retention(snapshots=2)).removed == ()
    check_all(place, 0, 12)


def test_a_trimmed_store_recovers_and_goes_on(place: Place) -> None:
    lived(place, 22, 5, Retention(snapshots=2)).close()
    store = lived(place, 10, 5, Retention(snapshots=2))
    check_all(place, 25, 32)
    store.close()
    assert place.store().outcome is not None


def test_an_epoch_that_was_trimmed_is_named_with_those_that_are_there(place: Place) -> None:
    store = lived(place, 22, 5, Retention(snapshots=2))
    with pytest.raises(InputError, match=r"no epoch 3 .* 15 to 22; older ones were trimmed"):
        place.reader().table("t", 3)
    with pytest.raises(InputError, match=r"epochs 16 to 22; those before 16 were trimmed"):
        place.reader().results(3, 20)
    with pytest.raises(InputError, match=r"epochs 16 to 22"):
        store.results(2, 2)


def test_the_last_results_of_every_source_outlive_the_log(place: Place) -> None:
    store = Store.open(
        place.path, place.disk, SimulatedClock(), segment_bytes=600, retain=Retention(2)
    )
    store.recover()
    store.write_manifest(TABLES)
    for epoch in range(1, 30):
        store.commit(commit(epoch, "early" if epoch < 4 else "late"))
        if epoch % 5 == 0:
            store.snapshot()
    assert place.reader().first_epoch() == 20
    for reader in (store, place.reader()):
        assert dict(reader.results(3, 3))[3].to_pydict() == {"position": [3]}
    store.close()
    store = place.store()
    assert dict(store.results(3, 3))[3].to_pydict() == {"position": [3]}
    with pytest.raises(InputError, match="trimmed"):
        store.results(2, 2)


def test_a_hold_keeps_what_could_be_read_when_it_was_taken(place: Place) -> None:
    store = lived(place, 12, 5, Retention(snapshots=2))
    reader = place.reader()
    held = reader.hold()
    assert held.first_epoch == 5
    for epoch in range(13, 40):
        store.commit(commit(epoch))
        if epoch % 5 == 0:
            store.snapshot()
    assert place.reader().first_epoch() == 30
    with pytest.raises(InputError, match="trimmed"):
        reader.table("t", 7)
    trusting = StoreReader.open(place.path, place.disk, held_from=held.first_epoch)
    for epoch in (5, 7, 12, 39):
        assert trusting.table("t", epoch).column("value").to_pylist() == values_at(epoch)
    assert [epoch for epoch, _ in trusting.results(6, 9)] == [6, 7, 8, 9]
    before = len(names(place, "log"))
    held.release()
    store.trim()
    assert len(names(place, "log")) < before
    assert names(place, "readers") == []


def test_a_reader_in_the_middle_of_a_stream_of_results_is_not_disturbed(place: Place) -> None:
    store = lived(place, 12, 5, Retention(snapshots=1))
    results = place.reader().results(11, 12)
    assert next(results)[0] == 11
    for epoch in range(13, 40):
        store.commit(commit(epoch))
    store.snapshot()
    assert place.reader().first_epoch() == 39
    assert [epoch for epoch, _ in results] == [12]


def test_a_lease_that_the_writer_swept_away_at_birth_is_taken_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(place, 3, 5, None)
    real_exists = place.disk.exists
    swept: list[str] = []

    def sweep_once(path: str) -> bool:
        if path.endswith(".lease") and not swept:
            swept.append(path)
            return False
        return real_exists(path)

    monkeypatch.setattr(place.disk, "exists", sweep_once)
    lease = retention_module.take_lease(place.disk, place.path, 0)
    assert lease is not None and swept
    assert retention_module.leased_epochs(place.disk, place.path, 0) == [0]
    lease.release()
    assert retention_module.leased_epochs(place.disk, place.path, 0) == []


def test_a_hold_is_taken_again_when_the_floor_rose_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lived(place, 12, 5, None)
    real_lease = retention_module.take_lease

    def slow_lease(*arguments: Any) -> Any:
        monkeypatch.undo()
        store.trim(Retention(snapshots=1))
        return real_lease(*arguments)

    monkeypatch.setattr(retention_module, "take_lease", slow_lease)
    with place.reader().hold() as held:
        assert held.first_epoch == 10
        assert retention_module.leased_epochs(place.disk, place.path, 0) == [10]


def test_a_store_that_was_trimmed_once_keeps_its_floor_when_it_keeps_everything(
    place: Place,
) -> None:
    lived(place, 12, 5, Retention(snapshots=1)).close()
    lived(place, 12, 5, None).close()
    check_all(place, 10, 24)


def test_who_follows_the_log_does_not_keep_old_snapshots(place: Place) -> None:
    store = lived(place, 12, 5, None)
    place.reader().hold_for(3600)
    followed = StoreReader.open(place.path, place.disk, held_from=12).hold()
    for epoch in range(13, 30):
        store.commit(commit(epoch))
        if epoch % 5 == 0:
            store.snapshot()
    assert len(names(place, "snapshots")) == SNAPSHOTS_KEPT
    check_all(place, 0, 29)
    followed.release()


def test_a_hold_for_a_time_lasts_that_long_and_is_taken_over_by_others(place: Place) -> None:
    clock = SimulatedClock(0, step_us=0)
    store = Store.open(place.path, place.disk, clock, segment_bytes=600)
    store.recover()
    store.write_manifest(TABLES)
    policy = Retention(snapshots=1)

    def grow(first: int, last: int) -> None:
        for epoch in range(first, last + 1):
            store.commit(commit(epoch))
        store.snapshot()
        store.trim(policy)

    grow(1, 10)
    held_from = place.reader().hold_for(60, clock)
    assert held_from == 10
    grow(11, 20)
    clock.advance(59)
    grow(21, 30)
    assert place.reader().first_epoch() == 30
    taken_over = StoreReader.open(place.path, place.disk, held_from=held_from)
    assert taken_over.table("t", 12).column("value").to_pylist() == values_at(12)
    assert taken_over.hold_for(60, clock) == held_from
    clock.advance(30)
    store.trim(policy)
    assert [epoch for epoch, _ in taken_over.results(11, 25)] == [*range(11, 26)]
    clock.advance(31)
    with taken_over.hold():  # while someone reads, the end of the time changes nothing
        store.trim(policy)
        assert taken_over.table("t", 12).column("value").to_pylist() == values_at(12)
    assert store.trim(policy).removed
    assert names(place, "readers") == []
    with pytest.raises(InputError, match="trimmed while they were read: a lease had ended"):
        taken_over.table("t", 12)
    store.close()


HOLD = """
import sys, time
from headgate.durability import StoreReader
held = StoreReader.open(sys.argv[1]).hold()
print(held.first_epoch, flush=True)
time.sleep(60)
"""


def test_a_hold_of_another_process_dies_with_it(tmp_path: Path) -> None:
    place = Place(RealDisk(), str(tmp_path / "bank"))
    store = lived(place, 12, 5, Retention(snapshots=1))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, place.path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"10\n"
        for epoch in range(13, 30):
            store.commit(commit(epoch))
        store.snapshot()
        trusting = StoreReader.open(place.path, held_from=10)
        assert trusting.table("t", 11).column("value").to_pylist() == values_at(11)
    finally:
        holder.kill()
        holder.wait()
    assert store.trim().removed
    assert names(place, "readers") == []


def test_a_reader_that_may_not_write_reads_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(place, 12, 5, Retention(snapshots=1))

    def refused(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(place.disk, "lock", refused)
    check_all(place, 10, 12)


def test_a_lease_that_cannot_be_tested_is_taken_for_a_living_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lived(place, 12, 5, None)
    lease = retention_module.take_lease(place.disk, place.path, 0)
    assert lease is not None

    def refused(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(place.disk, "lock", refused)
    assert store.trim(Retention(snapshots=1)).removed == ()
    monkeypatch.undo()
    lease.release()
    assert store.trim(Retention(snapshots=1)).removed


def test_a_damaged_floor_is_rebuilt_by_the_writer_and_named_to_readers(place: Place) -> None:
    lived(place, 22, 5, Retention(snapshots=2)).close()
    file = place.disk.open(f"{place.path}/floor", "write")
    file.write(20, b"x")
    with pytest.raises(DamageError, match=r"floor at offset 0.*opening the store to write"):
        place.reader().first_epoch()
    place.store().close()
    check_all(place, 15, 22)


def test_without_any_whole_snapshot_a_trimmed_store_is_refused(place: Place) -> None:
    lived(place, 22, 5, Retention(snapshots=2)).close()
    for name in names(place, "snapshots"):
        file = place.disk.open(f"{place.path}/snapshots/{name}", "write")
        file.write(10, b"x")
    with pytest.raises(DamageError, match="before epoch 15 was trimmed and no whole snapshot"):
        place.store()


def test_a_senseless_policy_is_refused(place: Place) -> None:
    with pytest.raises(InputError, match="at least 1"):
        Retention(snapshots=0)
    with pytest.raises(InputError, match="epochs=-1"):
        Retention(epochs=-1)
    with pytest.raises(InputError, match="keep everything"):
        place.store().trim()
