"""Parts that no epoch needs any more are removed, and no others, whoever reads meanwhile."""

from __future__ import annotations

import random
import re
from functools import partial
from typing import Any

import pytest

import headgate as hg
from headgate.cli.output import numbers
from headgate.cli.stores import verdict
from headgate.durability import StoreReader, backup, restore, verify
from headgate.durability.part_file import write_part
from headgate.query.store_tables import read_table
from headgate.shards import share
from headgate.testing.disk import SimulatedDisk
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.shards.bank import (
    ROUTES,
    TABLES,
    batch,
    charge,
    follow,
    in_one_process,
    in_shards,
    rows_of,
)

KEEP_LITTLE = hg.Retention(snapshots=1, epochs=2)


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks write all rows of their shard every few epochs."""
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 10_000)
    monkeypatch.setattr(share, "size_of", lambda rows: 0)


def files_of(disk: SimulatedDisk) -> set[str]:
    below = f"{PATH}/parts/"
    found = {path.removeprefix(below) for path in disk.paths() if path.startswith(below)}
    return {path for path in found if "/" in path}


def named_by(engine: hg.Engine) -> set[str]:
    return {name.file for name in engine._memory.parts.names()}


def run(engine: hg.Engine, draw: random.Random, batches: int) -> dict[int, Any]:
    """The rows after each of some batches."""
    found = {}
    for _ in range(batches):
        engine.run(ROUTES, batch(draw, 40), route_by="what")
        found[engine.epoch] = rows_of(engine)
    return found


def test_what_the_oldest_epoch_that_is_kept_does_not_name_is_removed(images: None) -> None:
    disk, draw, one = SimulatedDisk(), random.Random(3), in_one_process()
    with in_shards(Workers(), disk=disk, retain=KEEP_LITTLE) as engine:
        run(engine, draw, 9)
        before = files_of(disk)
        engine.snapshot()
        past = run(engine, draw, 5)
        engine.snapshot()  # the last one is older than two epochs by now: the floor rises to it
        after = files_of(disk)
        assert len(before - after) > 9 and any("image" in name for name in after)
        floor = StoreReader.open(PATH, disk).first_epoch()
        epochs = {int(name.partition("/")[0]) for name in before - after}
        assert max(epochs) <= floor < engine.epoch
        for epoch in range(floor + 1, engine.epoch + 1):
            found = engine.sql("select * from accounts order by id", epoch=epoch).arrow()
            assert found == past[epoch]["accounts"]
        with pytest.raises(hg.InputError, match="this store has the epochs"):
            engine.sql("select * from accounts", epoch=floor - 1)
    assert verify(PATH, disk).is_whole
    draw = random.Random(3)
    run(one, draw, 14)
    with open_sharded(TABLES, ROUTES.values(), 3, Workers(), disk, KEEP_LITTLE) as engine:
        assert rows_of(engine) == rows_of(one)
        folders = set(disk.list(f"{PATH}/parts")) - {"work"}
        assert folders == {name.partition("/")[0] for name in files_of(disk)}


@pytest.mark.parametrize(("transaction", "where"), [(charge, "executors"), (follow, "driver")])
def test_small_parts_do_not_pile_up_wherever_batches_run(transaction: Any, where: str) -> None:
    """Their bytes would never make an image due."""
    disk, keep = SimulatedDisk(), hg.Retention(snapshots=1, epochs=5)
    options = ([charge, follow], 1, Workers(1, 1), disk, keep)
    draw, past = random.Random(3), dict[int, Any]()
    most, query = 0, "select * from accounts order by id"
    with open_sharded(TABLES, *options) as engine:
        for number in range(150):
            more = {"kind": "a"} if transaction is charge else {}
            engine.call(transaction, src=draw.randrange(7), amount=number, **more)
            most = max(most, len(engine._memory.parts.names()))
            if number > 140:
                past[engine.epoch] = engine.sql(query).arrow()
            if number in (120, 149):
                engine.snapshot()
        assert most < 70
        assert len(files_of(disk)) < 120  # those of the epochs that are kept, too
        for epoch, rows in past.items():
            assert engine.sql(query, epoch=epoch).arrow() == rows
        assert {one.scheme for one in engine.decisions()} == {where}
        before = {name: engine.get("accounts", name) for name in range(7)}
    with open_sharded(TABLES, *options) as engine:
        assert {name: engine.get("accounts", name) for name in range(7)} == before


def test_without_a_policy_every_epoch_keeps_its_parts(images: None) -> None:
    disk = SimulatedDisk()
    with in_shards(Workers(), disk=disk) as engine:
        run(engine, random.Random(3), 6)
        before = files_of(disk)
        engine.snapshot()
        assert files_of(disk) == before > named_by(engine)


def test_a_reader_that_holds_an_epoch_keeps_its_parts(images: None) -> None:
    disk, draw = SimulatedDisk(), random.Random(3)
    with in_shards(Workers(), disk=disk, retain=KEEP_LITTLE) as engine:
        past = run(engine, draw, 3)
        engine.snapshot()
        reader, before = StoreReader.open(PATH, disk), files_of(disk)
        with reader.hold() as held:
            holding = StoreReader.open(PATH, disk, held_from=held.first_epoch)
            for _ in range(2):
                run(engine, draw, 4)
                engine.snapshot()
            assert before <= files_of(disk) and reader.first_epoch() > max(past)
            for epoch, rows in past.items():
                found = read_table(holding, "accounts", epoch).sort_by("id")
                assert found == rows["accounts"]
        run(engine, draw, 1)
        engine.snapshot()
        assert not before <= files_of(disk)


def test_what_a_late_task_wrote_for_a_past_epoch_is_removed() -> None:
    disk, draw = SimulatedDisk(), random.Random(3)
    with in_shards(Workers(), disk=disk) as engine:
        run(engine, draw, 2)
        leave_behind(engine, disk, engine.epoch - 1)
        assert files_of(disk) > named_by(engine)
        engine.snapshot()
        assert files_of(disk) == named_by(engine)
        run(engine, draw, 3)
        leave_behind(engine, disk, engine.epoch - 2)
        named = named_by(engine)
    with open_sharded(TABLES, ROUTES.values(), 3, Workers(), disk) as engine:
        assert files_of(disk) == named == named_by(engine)


def leave_behind(engine: hg.Engine, disk: SimulatedDisk, epoch: int) -> None:
    """A file as a task of an older driver writes it that has not heard of its end."""
    store = engine._journal.store
    assert store is not None
    write_part(disk, PATH, store.lineage, epoch, "00001-dead-5-1-9.part", {}, {})


# --- parts that are lost --------------------------------------------------------------------------


def damage(disk: SimulatedDisk, file: str, how: str) -> None:
    path = f"{PATH}/parts/{file}"
    content = disk.content(path)
    if how == "gone":
        disk.remove(path)
    else:
        disk.replace(path, b"" if how == "emptied" else content[:-1] + bytes([content[-1] ^ 1]))


def put_back(disk: SimulatedDisk, file: str, content: bytes) -> None:
    opened = disk.open(f"{PATH}/parts/{file}", "create")
    opened.write(0, content)
    opened.close()


def can_read(disk: SimulatedDisk, epoch: int) -> bool:
    try:
        for table in TABLES:
            read_table(StoreReader.open(PATH, disk), table.name, epoch)
    except hg.DamageError as error:
        assert re.search(r"/parts/.* at offset \d+: .*`headgate verify`", str(error))
        return False
    return True


def test_what_verify_calls_readable_can_be_read_and_nothing_else(images: None) -> None:
    disk, seen = SimulatedDisk(), set()
    with in_shards(Workers(), disk=disk) as engine:
        run(engine, random.Random(3), 5)
        engine.snapshot()
        run(engine, random.Random(4), 3)
        last = engine.epoch
    assert verify(PATH, disk).parts == len(files_of(disk))
    for number, file in enumerate(sorted(files_of(disk))[::3]):
        before = disk.content(f"{PATH}/parts/{file}")
        damage(disk, file, ("gone", "emptied", "flipped")[number % 3])
        report = verify(PATH, disk)
        readable = [epoch for epoch in range(last + 1) if can_read(disk, epoch)]
        assert report.readable == readable != [*range(last + 1)]
        assert not report.is_whole and file in report.damages[0]
        is_here = last in readable
        said = verdict(report, "store")
        assert f"parts with rows of epoch {numbers(report.partless)} are" in said
        assert ("the newest one" in said) == is_here != ("restore it from a backup" in said)
        best = report.recoverable
        assert best is not None
        assert restore(PATH, best, f"{PATH}-{number}", disk).last_epoch == best
        put_back(disk, file, before)
        seen.add(is_here)
    assert seen == {True, False}


def test_a_copy_that_fails_leaves_nothing_behind(images: None) -> None:
    disk, to = SimulatedDisk(), f"{PATH}-copy"
    with in_shards(Workers(), disk=disk) as engine:
        run(engine, random.Random(3), 5)
        last = engine.epoch
    file = max(files_of(disk))
    before = disk.content(f"{PATH}/parts/{file}")
    damage(disk, file, "gone")
    for copy in (partial(backup, PATH, to, disk), partial(restore, PATH, last, to, disk)):
        with pytest.raises(hg.DamageError, match="it is not there"):
            copy()
        assert not disk.exists(to)
    disk.make_folder(to)
    with pytest.raises(hg.DamageError, match="it is not there"):
        backup(PATH, to, disk)
    assert disk.list(to) == []  # the folder itself was there before
    disk.make_folder(f"{PATH}/parts/{file}")
    with pytest.raises(hg.DamageError, match="it is not there"):
        backup(PATH, to, disk)
    disk.remove_folder(f"{PATH}/parts/{file}")
    put_back(disk, file, before)
    assert backup(PATH, to, disk).last_epoch == last
    assert verify(to, disk).is_whole
    with pytest.raises(hg.InputError, match="is not empty"):
        backup(PATH, to, disk)
    assert verify(to, disk).is_whole
    for inside in (f"{PATH}/inner", f"{to}/../bank/log/inner"):
        with pytest.raises(hg.InputError, match="is inside of the store"):
            backup(PATH, inside, disk)
