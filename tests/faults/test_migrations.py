"""A migration, and a crash at every call to the disk: a store is wholly before it or after it.

What survives is opened by the program from before the migration, which goes on with an epoch of its
own, and by the one from after it, which brings the migration about.
"""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader, folder, manifest
from headgate.errors import DamageError
from headgate.query.store_tables import query_store
from headgate.testing.disk import SimulatedClock, SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.faults.tally import Tally

accounts = hg.Table("accounts", "id bigint, owner string, n int", key="id")
ledger = hg.Table(
    "ledger", "id bigint, holder string, n bigint, twice bigint", key="id", check="twice >= 0"
)
gone = hg.Table("gone", "id bigint", key="id")


@hg.transaction(event="id bigint, n int", compiled=False)
def put(event: Any, row: Any = accounts.at("id", create=True)) -> Any:
    row.n = event.n


ONE = (
    hg.Migration("one")
    .rename_table("accounts", "ledger")
    .rename_column("ledger", "owner", "holder")
    .widen("ledger", "n bigint")
)
TWO = (
    hg.Migration("two")
    .add_column("ledger", "twice bigint", value="2 * n")
    .set_check("ledger", "twice >= 0")
    .drop_table("gone")
)
FIRST = [{"id": number, "owner": f"o{number}", "n": number} for number in range(4)]
EPOCHS = 5  # those before the migrations


def opened(disk: SimulatedDisk) -> hg.Engine:
    tables = [accounts, gone]
    return hg.open("/bank", tables=tables, transactions=[put], disk=disk, clock=SimulatedClock())


def begin(disk: SimulatedDisk) -> None:
    """A store with a snapshot in the middle of its log."""
    with opened(disk) as engine:
        engine.load(accounts, FIRST)
        engine.load(gone, [{"id": 1}])
        engine.call(put, id=1, n=10)
        engine.snapshot()
        engine.call(put, id=7, n=70)
        engine.call(put, id=2, n=20)


EXPECTED = [(0, "o0", 0), (1, "o1", 10), (2, "o2", 20), (3, "o3", 3), (7, "", 70)]


def live(disk: SimulatedDisk) -> None:
    begin(disk)
    hg.migrate("/bank", [ONE, TWO], disk=disk, clock=SimulatedClock())


def calls_of(action: Any) -> int:
    disk = SimulatedDisk()
    action(disk)
    return disk.calls


def rows_at(disk: SimulatedDisk, epoch: int) -> list[Any]:
    """The rows at an epoch in the names and columns that its declarations must have."""
    query = {
        EPOCHS: "select id, owner, n from accounts order by id",
        EPOCHS + 1: "select id, holder, n from ledger order by id",
        EPOCHS + 2: "select id, holder, n from ledger order by id",
    }[epoch]
    return query_store(StoreReader.open("/bank", disk), query, None, epoch).rows()


def check(disk: SimulatedDisk) -> None:
    try:
        last = StoreReader.open("/bank", disk).last_epoch()
    except DamageError as error:
        # A crash may tear a slot of the head; readers say so, until a writer has opened the store.
        assert "a slot of the head is not whole" in str(error)
        last = EPOCHS - 1
    for epoch in range(EPOCHS, last + 1):
        assert rows_at(disk, epoch) == EXPECTED
    go_on_as_before(disk.after_kill())
    go_on_after(disk.after_kill())


def go_on_as_before(disk: SimulatedDisk) -> None:
    """The old program opens what is not migrated, and its next epoch brings no migration."""
    try:
        engine = opened(disk)
    except hg.DeclarationError:
        # At least the first migration is in the log, though maybe not published yet.
        try:
            reader = StoreReader.open("/bank", disk)
            assert reader.manifest["since"] > EPOCHS
            assert ("ledger" in reader.declared()["tables"]) == (reader.last_epoch() > EPOCHS)
        except DamageError as error:
            assert "a slot of the head is not whole" in str(error)
        return
    with engine:
        assert engine.epoch == EPOCHS
        engine.call(put, id=9, n=90)
        assert engine.sql("select count(*) from accounts").rows() == [(len(EXPECTED) + 1,)]
    reader = StoreReader.open("/bank", disk)
    assert list(reader.declared()["tables"]) == ["accounts", "gone"]
    assert rows_at(disk, EPOCHS) == EXPECTED
    with opened(disk) as engine:
        assert engine.get(accounts, 9) == {"id": 9, "owner": "", "n": 90}


def go_on_after(disk: SimulatedDisk) -> None:
    """The new program brings about what is missing of the migrations, once."""
    for _ in range(2):
        with hg.open("/bank", tables=[ledger], migrations=[ONE, TWO], disk=disk) as engine:
            assert engine.epoch == EPOCHS + 2
            found = engine.sql("select * from ledger order by id").rows()
            assert found == [(*row, 2 * row[2]) for row in EXPECTED]
    for epoch in range(EPOCHS, EPOCHS + 3):
        assert rows_at(disk, epoch) == EXPECTED
    reader = StoreReader.open("/bank", disk)
    assert query_store(reader, "select * from gone", None, EPOCHS + 1).rows() == [(1,)]
    assert "gone" not in reader.declared()["tables"]


def test_a_crash_at_any_call_of_a_migration_leaves_all_or_nothing(
    tally: Tally, long_run: bool
) -> None:
    survivals = [None, *Survival]
    first, last = calls_of(begin), calls_of(live)
    assert last - first > 20
    for call in range(first + 1, last + 1):
        disk = SimulatedDisk(crash_at=call)
        with pytest.raises(SimulatedCrash):
            live(disk)
        for survival in survivals if long_run else [survivals[call % len(survivals)]]:
            after = disk.after_kill() if survival is None else disk.after_crash(survival, call)
            check(after)
            tally.count("crashes in migrations")


def test_declarations_that_are_not_cut_off_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary: without the cut, an epoch of the old program would bring the new declarations."""
    monkeypatch.setattr(folder, "_settled", lambda disk, path, manifest, lineage: manifest)
    # From the end, where the declarations are new and the last epoch is not yet published.
    for call in reversed(range(calls_of(begin) + 1, calls_of(live) + 1)):
        disk = SimulatedDisk(crash_at=call)
        with pytest.raises(SimulatedCrash):
            live(disk)
        try:
            check(disk.after_kill())
        except (AssertionError, hg.HeadgateError, KeyError):
            return
    pytest.fail("no crash was noticed")


def test_a_version_is_found_by_its_epoch_and_cut_with_it() -> None:
    whole = {"since": 7, "n": 3, "past": [{"n": 1}, {"since": 4, "n": 2}]}
    found = [manifest.version_at(whole, epoch)["n"] for epoch in (0, 3, 4, 6, 7, 99)]
    assert found == [1, 1, 2, 2, 3, 3]
    assert manifest.cut_at(whole, 8) == whole
    assert manifest.cut_at(whole, 6) == {"since": 4, "n": 2, "past": [{"n": 1}]}
    assert manifest.cut_at(whole, 2) == {"n": 1}
