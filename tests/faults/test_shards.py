"""Engines with shards on a disk that loses its power, and drivers that are not the only ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.durability import StoreReader, verify
from headgate.engine import straight_path
from headgate.query.store_tables import read_table
from headgate.shards import share
from headgate.shards.planning import Costs
from headgate.shards.whole import WholeBatch
from headgate.testing.disk import SimulatedCrash, SimulatedDisk
from headgate.testing.survival import Survival
from tests.property import test_straight as straight
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.shards import wards
from tests.unit.shards.bank import (
    FIRST,
    ROUTES,
    TABLES,
    TRANSACTIONS,
    batch,
    follow,
    in_one_process,
    loaded,
    rates,
    rows_of,
)

# Engines of lives that end in a crash are lost, and say so when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SHARDS = 3
BATCHES = [batch(random.Random(seed), 8) for seed in range(3)]


def run_from(engine: hg.Engine, acknowledged: list[int]) -> None:
    """Run what is still to be run: two loads, then a batch an epoch."""
    for table in TABLES:
        engine.load(table, FIRST[table.name])
        acknowledged[0] = engine.epoch
    for number in range(engine.epoch - len(TABLES), len(BATCHES)):
        run_batch(engine, number)
        acknowledged[0] = engine.epoch


def run_batch(engine: hg.Engine, number: int) -> None:
    """The second one runs in the driver, whose copy of all rows the others do not keep."""
    if number == 1:
        engine.run(follow, BATCHES[number])
    else:
        engine.run(ROUTES, BATCHES[number], route_by="what")


@pytest.fixture(scope="module")
def expected() -> dict[int, Any]:
    """The rows after each epoch from the last load on."""
    one = in_one_process()
    found = {one.epoch: rows_of(one)}
    for number in range(len(BATCHES)):
        run_batch(one, number)
        found[one.epoch] = rows_of(one)
    return found


def opened(disk: SimulatedDisk, seed: int = 0, retain: hg.Retention | None = None) -> hg.Engine:
    return open_sharded(TABLES, TRANSACTIONS, SHARDS, Workers(seed, 2, 0.3), disk, retain)


def calls_of_a_life() -> int:
    disk = SimulatedDisk()
    engine = opened(disk)
    run_from(engine, [0])
    engine.close()
    return disk.calls


def test_a_loss_of_power_at_any_call_loses_no_acknowledged_epoch_and_halves_none(
    expected: dict[int, Any], long_run: bool
) -> None:
    """Of the driver and all its tasks at once: they share the disk."""
    survivals = [Survival.DROP, Survival.KEEP, Survival.RANDOM]
    step = 1 if long_run else 23
    for number in range(3, calls_of_a_life(), step):
        disk, acknowledged = SimulatedDisk(crash_at=number), [0]
        with pytest.raises(SimulatedCrash):
            run_from(opened(disk), acknowledged)
        after = disk.after_crash(survivals[number % 3], number)
        engine = opened(after, number)
        assert acknowledged[0] <= engine.epoch <= acknowledged[0] + 1
        if engine.epoch in expected:
            assert rows_of(engine) == expected[engine.epoch]
        run_from(engine, [0])
        assert rows_of(engine) == expected[max(expected)]
        named = {name.file for name in engine._memory.parts.names()}
        assert files_of(after) == named
        engine.close()


def test_a_loss_of_power_while_parts_are_removed_loses_none_that_an_epoch_names(
    expected: dict[int, Any], long_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 2_000)  # images take the place of parts
    monkeypatch.setattr(share, "size_of", lambda rows: 0)
    first, last = calls_of_trimming()
    survivals = [Survival.DROP, Survival.KEEP, Survival.RANDOM]
    for number in range(first, last, 1 if long_run else 7):
        disk = SimulatedDisk(crash_at=number)
        with pytest.raises(SimulatedCrash):
            trimmed_life(disk)
        after = disk.after_crash(survivals[number % 3], number)
        assert verify(PATH, after).is_whole
        with opened(after, number, KEEP_LITTLE) as engine:
            reader = StoreReader.open(PATH, after)
            for epoch in range(max(reader.first_epoch(), min(expected)), engine.epoch + 1):
                assert (
                    read_table(reader, "accounts", epoch).sort_by("id")
                    == (expected[epoch]["accounts"])
                )
            run_from(engine, [0])
            engine.snapshot()
            engine.snapshot()
            assert rows_of(engine) == expected[max(expected)]
            named = {name.file for name in engine._memory.parts.names()}
            assert files_of(after) == named


def test_a_loss_of_power_in_plain_batches_in_the_driver_halves_none(
    long_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their results are in the log before their part is there; only then the record is whole."""
    monkeypatch.setattr(straight_path, "SECTION_EVENTS", 3)
    form, tables = straight.FORMS["drop"], [straight.boxes]
    columns = {name: np.arange(12) % 5 for name in straight.TYPES} | {"ts": np.arange(12)}
    events = straight.table_of({**columns, "n": np.arange(12) % 7})

    def opened_on(disk: SimulatedDisk | None) -> hg.Engine:
        if disk is None:
            return hg.open(None, tables=tables, transactions=[form])
        engine = open_sharded(tables, [form], SHARDS, Workers(), disk, driver_bytes_max=1 << 30)
        engine._batches._elsewhere._costs = Costs(event=1e-9, whole=1.0, job=9.0, jobs=2)
        return engine

    def run_on(engine: hg.Engine, acknowledged: list[int]) -> None:
        engine.load(straight.boxes, straight.FIRST["boxes"])
        for number in range(max(engine.epoch - 1, 0), 3):
            given = events.slice(number, 9)  # of an epoch: in three sections
            engine.run(form, given, order_by="ts", scheme="serial", threads=1)
            acknowledged[0] = engine.epoch
            expected.setdefault(engine.epoch, boxes_of(engine))

    def boxes_of(engine: hg.Engine) -> Any:
        return engine.sql("select * from boxes order by id").arrow()

    expected: dict[int, Any] = {}
    run_on(opened_on(None), [0])
    ends, end = [], WholeBatch.end
    monkeypatch.setattr(WholeBatch, "end", lambda *given: (ends.append(1), end(*given))[1])
    counting = SimulatedDisk()
    with opened_on(counting) as engine:
        run_on(engine, [0])
    assert len(ends) == 3  # the path that is meant
    survivals = [Survival.DROP, Survival.KEEP, Survival.RANDOM]
    for number in range(30, counting.calls, 1 if long_run else 7):
        disk, acknowledged = SimulatedDisk(crash_at=number), [0]
        with pytest.raises(SimulatedCrash), opened_on(disk) as engine:
            run_on(engine, acknowledged)
        after = disk.after_crash(survivals[number % 3], number)
        with opened_on(after) as engine:
            assert acknowledged[0] <= engine.epoch
            if engine.epoch > 1:
                assert boxes_of(engine) == expected[engine.epoch]
            run_on(engine, [0])
            assert boxes_of(engine) == expected[4]
            named = {name.file for name in engine._memory.parts.names()}
            assert files_of(after) == named
        assert verify(PATH, after).is_whole


def test_a_loss_of_power_leaves_rows_that_expire_and_versions_at_an_epoch(long_run: bool) -> None:
    """Of the wards: what time let go stays gone, and versions are those of their rows."""

    def run_on(engine: hg.Engine, acknowledged: list[int]) -> None:
        for epoch in range(engine.epoch + 1, 5):
            given = wards.events(epoch, 12, begin=4 * epoch)
            engine.run(wards.ROUTES, given, **wards.TIMED)
            acknowledged[0] = engine.epoch

    one, expected = wards.opened(None, 0), {0: wards.rows_of(wards.opened(None, 0))}
    for epoch in range(1, 5):
        one.run(wards.ROUTES, wards.events(epoch, 12, begin=4 * epoch), **wards.TIMED)
        expected[epoch] = wards.rows_of(one)
    counting = SimulatedDisk()
    run_on(wards.opened(counting, SHARDS), [0])
    survivals = [Survival.DROP, Survival.KEEP, Survival.RANDOM]
    for number in range(30, counting.calls, 1 if long_run else 41):
        disk, acknowledged = SimulatedDisk(crash_at=number), [0]
        with pytest.raises(SimulatedCrash):
            run_on(wards.opened(disk, SHARDS), acknowledged)
        after = disk.after_crash(survivals[number % 3], number)
        engine = wards.opened(after, SHARDS, Workers(number, 2, 0.3))
        assert acknowledged[0] <= engine.epoch <= acknowledged[0] + 1
        assert wards.rows_of(engine) == expected[engine.epoch]
        run_on(engine, [0])
        assert wards.rows_of(engine) == expected[4]
        assert verify(PATH, after).is_whole
        engine.close()


KEEP_LITTLE = hg.Retention(snapshots=1, epochs=0)


def trimmed_life(disk: SimulatedDisk) -> tuple[int, int]:
    """Two snapshots, and the calls between which the second one removes parts."""
    engine = opened(disk, 0, KEEP_LITTLE)
    run_from(engine, [0])
    begun = disk.calls
    engine.snapshot()
    done = disk.calls
    engine.close()
    return begun, done


def calls_of_trimming() -> tuple[int, int]:
    disk = SimulatedDisk()
    begun, done = trimmed_life(disk)
    assert done - begun > 20
    return begun + 1, done


def files_of(disk: SimulatedDisk) -> set[str]:
    """The parts there are."""
    below = f"{PATH}/parts/"
    found = {path.removeprefix(below) for path in disk.paths() if path.startswith(below)}
    return {path for path in found if "/" in path}


def test_an_older_driver_that_wakes_up_cannot_commit(expected: dict[int, Any]) -> None:
    disk = SimulatedDisk()
    older = opened(disk)
    loaded(older)
    disk.remove(f"{PATH}/lock")  # as where a lock ends with the host that held it
    newer = opened(disk, 1)
    run_batch(newer, 0)
    with pytest.raises(hg.StoreError, match="may have another writer"):
        older.run(ROUTES, BATCHES[1], route_by="what")
    for number in range(1, len(BATCHES)):
        run_batch(newer, number)
    assert rows_of(newer) == expected[max(expected)]
    newer.close()
    again = opened(disk, 2)
    assert rows_of(again) == expected[max(expected)]
    assert again.epoch == max(expected)
    again.close()


# --- a change of shards ---------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 2), (2, 0)])
def test_a_loss_of_power_at_any_call_leaves_a_store_before_its_change_of_shards_or_after_it(
    before: int, after: int, long_run: bool
) -> None:
    """In either it is whole and has all its rows; and the change can be made again."""
    lived = SimulatedDisk()
    with in_shards_or_not(lived, before) as engine:
        run_batch(loaded(engine), 0)
        rows, epoch = rows_of(engine), engine.epoch
    counting = lived.after_kill()
    hg.reshard(PATH, after, disk=counting)
    found = set()
    survivals = [Survival.DROP, Survival.KEEP, Survival.RANDOM]
    for number in range(1, counting.calls + 1, 1 if long_run else 8):
        disk = lived.after_kill()
        disk.crash_at = number
        with pytest.raises(SimulatedCrash):
            hg.reshard(PATH, after, disk=disk)
        disk = disk.after_crash(survivals[number % 3], number)
        assert verify(PATH, disk).is_whole
        try:
            engine, is_done = in_shards_or_not(disk, before), False
        except hg.InputError:  # it has the other number
            engine, is_done = in_shards_or_not(disk, after), True
        with engine:
            assert (engine.epoch, rows_of(engine)) == (epoch + is_done, rows)
        found.add(is_done)
        assert hg.reshard(PATH, after, disk=disk).is_applied != is_done
        with in_shards_or_not(disk, after) as engine:
            assert (engine.epoch, rows_of(engine)) == (epoch + 1, rows)
            left = files_of(disk) - {name.file for name in engine._memory.parts.names()}
            assert not any(path.endswith("reshard.part") for path in left)
    assert found == {False, True}


def in_shards_or_not(disk: SimulatedDisk, shards: int) -> hg.Engine:
    if shards:
        return open_sharded(TABLES, TRANSACTIONS, shards, Workers(), disk)
    return hg.open(PATH, tables=TABLES, transactions=TRANSACTIONS, disk=disk)


def test_a_loss_of_power_at_any_call_leaves_a_store_before_its_migration_or_after_it(
    long_run: bool,
) -> None:
    lived, shards = SimulatedDisk(), 2
    with open_sharded(TABLES, TRANSACTIONS, shards, Workers(), lived) as engine:
        run_batch(loaded(engine), 0)
        rows, epoch = rows_of(engine)["accounts"].to_pylist(), engine.epoch
    change = (
        hg.Migration("double")
        .rename_column("accounts", "balance", "cents")
        .add_column("accounts", "twice bigint", value="cents * 2")
    )
    changed = hg.Table("accounts", "id bigint, owner string, cents bigint, twice bigint", key="id")
    expected = [
        {"id": row["id"], "owner": row["owner"], "cents": row["balance"],
         "twice": row["balance"] * 2}
        for row in rows
    ]  # fmt: skip
    counting, found = lived.after_kill(), set()
    assert hg.migrate(PATH, [change], disk=counting)[0].is_applied
    survivals = [Survival.DROP, Survival.KEEP, Survival.RANDOM]
    for number in range(1, counting.calls + 1, 1 if long_run else 5):
        disk = lived.after_kill()
        disk.crash_at = number
        with pytest.raises(SimulatedCrash):
            hg.migrate(PATH, [change], disk=disk)
        disk = disk.after_crash(survivals[number % 3], number)
        assert verify(PATH, disk).is_whole
        found.add(not hg.migrate(PATH, [change], disk=disk))
        given = ([changed, rates], [], shards, Workers(), disk)
        with open_sharded(*given, migrations=[change]) as engine:
            assert engine.epoch == epoch + 1
            query = "select * from accounts order by id"
            assert engine.sql(query, epoch=epoch).dicts() == rows
            assert engine.sql(query).dicts() == expected
            left = files_of(disk) - {name.file for name in engine._memory.parts.names()}
            assert not any(path.endswith("reshard.part") for path in left)
    assert found == {False, True}
