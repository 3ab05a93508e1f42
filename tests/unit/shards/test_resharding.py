"""Resharding: a store whose rows change their shards is the store whose rows never did."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import StoreReader, backup, restore, verify
from headgate.query.store_tables import query_store, read_table
from headgate.shards import placement, resharding
from headgate.testing import SerialOracle, difference, results_difference
from headgate.testing.disk import SimulatedDisk
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.shards.bank import (
    FIRST,
    ROUTES,
    TABLES,
    TRANSACTIONS,
    accounts,
    batch,
    close,
    follow,
    loaded,
    move,
    rows_of,
)

COPY = "/data/copy"
CHANGES = (2, 5, 0, 3, 1, 0)


def opened(
    disk: SimulatedDisk,
    shards: int,
    tables: Any = TABLES,
    forms: Any = TRANSACTIONS,
    retain: hg.Retention | None = None,
) -> hg.Engine:
    """The store, by a program that says the right number of shards."""
    if shards:
        return open_sharded(tables, forms, shards, Workers(shards, 2, 0.3), disk, retain)
    return hg.open(PATH, tables=tables, transactions=forms, disk=disk, retain=retain)


def resharded(disk: SimulatedDisk, shards: int, **more: Any) -> hg.Resharded:
    found = hg.reshard(PATH, shards, disk=disk, **more)
    assert verify(PATH, disk).is_whole
    return found


@pytest.fixture
def bank() -> Iterator[SimulatedDisk]:
    """A store in one process that has lived for a few epochs."""
    disk = SimulatedDisk()
    with loaded(opened(disk, 0)) as engine:
        engine.run(ROUTES, batch(random.Random(1), 20), route_by="what")
    yield disk
    assert verify(PATH, disk).is_whole


@pytest.mark.parametrize("seed", range(2))
def test_a_store_that_changes_its_shards_lives_as_the_oracle_which_has_none(seed: int) -> None:
    disk, draw = SimulatedDisk(), random.Random(seed)
    oracle = SerialOracle(TABLES, TRANSACTIONS)
    for table in TABLES:
        oracle.load(table, FIRST[table.name])
    loaded(opened(disk, 0)).close()
    past: dict[int, Any] = {}
    results = 0
    for turn, shards in enumerate((0, *CHANGES)):
        if turn:
            oracle.epoch += 1  # a change of shards is an epoch of its own, which changes no row
            assert resharded(disk, shards).epoch == oracle.epoch
        with opened(disk, shards) as engine:
            assert difference(engine, oracle) is None
            for _ in range(2):
                events = batch(draw, 15)
                expected = oracle.run(ROUTES, events, route_by="what")
                found = engine.run(ROUTES, events, route_by="what")
                assert results_difference(found, expected) is None
                assert engine.run(follow, []).num_rows == 0
                assert difference(engine, oracle) is None
                past[engine.epoch], results = rows_of(engine), results + len(events)
            assert engine.counts() == {one.name: len(oracle.table(one)) for one in TABLES}
            assert [engine.load(one, FIRST[one.name]) for one in TABLES] == [0, 0]
            if draw.random() < 0.5:
                engine.snapshot()
            for epoch, rows in past.items():  # whatever shards there were then
                query = "select * from accounts order by id"
                assert engine.sql(query, epoch=epoch).arrow() == rows["accounts"]
    counted = query_store(StoreReader.open(PATH, disk), "select count(*) from results")
    assert counted.rows() == [(results,)]


@hg.transaction(event="ts timestamp, id bigint, amount bigint", compiled=False)
def pay(event, row=accounts.at("id", create=True)):
    row.balance += event.amount


def test_a_query_goes_on_exactly_once_and_what_is_held_for_its_watermark_is_held_on() -> None:
    """Its batches are recognised, the last one's results are there again, keyed calls are known."""
    disk, forms = SimulatedDisk(), [*TRANSACTIONS, pay]
    one = loaded(hg.open(None, tables=TABLES, transactions=forms))
    loaded(opened(disk, 0, forms=forms)).close()
    start, draw, last = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), random.Random(4), None
    said = {"order_by": "ts", "watermark": "10 seconds"}
    for turn, shards in enumerate((0, 4, 2, 0)):
        if turn:
            resharded(disk, shards)
        with opened(disk, shards, forms=forms) as engine:
            feeds = [each.stream(pay, **said).feed() for each in (engine, one)]
            if last is not None:
                epoch = engine.epoch
                again = feeds[0].apply(last[0], ("query", turn - 1), f"run {turn}")
                assert again == last[1] and engine.epoch == epoch
            events = [
                {"ts": start + dt.timedelta(seconds=20 * turn + draw.random() * 20),
                 "id": draw.randrange(9), "amount": draw.randrange(50)}
                for _ in range(20)
            ]  # fmt: skip
            given = pa.Table.from_pylist(events)
            found, same = (feed.apply(given, ("query", turn), f"run {turn}") for feed in feeds)
            assert found.drop_columns(["epoch"]) == same.drop_columns(["epoch"])
            assert 0 < found.num_rows < 20 * (turn + 1)
            last = (given, found)
            called = {"src": 1, "dst": 2, "amount": 5, "kind": "a"}
            for key in range(turn + 1):
                calls = [each.call_once(str(key), move, **called) for each in (engine, one)]
                assert calls[0].left == calls[1].left
            assert rows_of(engine) == rows_of(one)
            origins, same_origins = engine._memory.origins, one._memory.origins
            shifted = {query: (at, epoch - turn) for query, (at, epoch) in origins.items()}
            assert shifted == same_origins


def test_a_dry_run_says_what_happens_and_touches_nothing(bank: SimulatedDisk) -> None:
    before = bank.fingerprint()
    with opened(bank, 0):  # beside the writer
        tried = hg.reshard(PATH, 3, dry_run=True, shard_by={"accounts": "id"}, disk=bank)
    assert not tried.is_applied and "would go from one process into 3 shards as epoch 4" in str(
        tried
    )
    assert bank.fingerprint() == before or verify(PATH, bank).is_whole
    done = resharded(bank, 3)
    assert done.is_applied and done.tables == tried.tables and done.bytes == tried.bytes
    assert sum(table.rows for table in done.tables) > 20
    assert done.tables[1].placed == "replicate=True"
    again = resharded(bank, 3)
    assert not again.is_applied and not again.tables and again.epoch == done.epoch
    assert "nothing to do, it is in 3 shards already" in str(again)
    assert "would go from 3 shards into one process" in str(
        hg.reshard(PATH, 0, dry_run=True, disk=bank)
    )


def test_rows_are_placed_by_what_the_command_says_and_a_program_must_say_the_same() -> None:
    def tables(**placed: Any) -> list[hg.Table]:
        return [
            hg.Table("a", "x bigint, y bigint, n bigint", key="x, y", **placed),
            hg.Table("b", "id bigint", key="id"),
        ]

    disk = SimulatedDisk()
    rows = [{"x": n % 3, "y": n, "n": n} for n in range(60)]
    with opened(disk, 0, tables(), []) as engine:
        engine.load("a", rows)
        engine.load("b", [{"id": 1}])
    by_key = hg.reshard(PATH, 4, disk=disk)
    assert by_key.tables[0].most < 60
    by_x = resharded(disk, 4, shard_by={"a": "x"}, replicate=["b"])
    assert by_x.before == by_x.shards == 4 and by_x.is_applied
    assert by_x.tables[0].placed == "shard_by='x'" and by_x.tables[0].fewest == 0
    with pytest.raises(
        hg.DeclarationError, match=r"declares shard_by='x, y'.*has shard_by='x'.*--shard-by a=x,y"
    ):
        opened(disk, 4, tables(), [])
    a, b = tables(shard_by="x")[0], hg.Table("b", "id bigint", key="id", replicate=True)
    with opened(disk, 4, [a, b], []) as engine:
        assert engine.get("a", (2, 5)) == {"x": 2, "y": 5, "n": 5}
        assert engine.sql("select x, y, n from a order by y").dicts() == rows
        assert engine.sql("select * from b").rows() == [(1,)]
    resharded(disk, 0)
    with opened(disk, 0, tables(), []) as engine:
        assert engine.sql("select x, y, n from a order by y").dicts() == rows


def test_a_large_store_is_written_piece_by_piece(
    bank: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(bank, 0) as engine:
        expected = rows_of(engine)
    monkeypatch.setattr(resharding, "SLOTS_AT_ONCE", 7)
    monkeypatch.setattr(resharding, "WAITING_BYTES_MAX", 100)
    monkeypatch.setattr(resharding, "BATCH_ROWS_MAX", 5)
    for shards in (2, 3, 0):
        resharded(bank, shards)
        assert shards != 2 or len([path for path in bank.paths() if "reshard.part" in path]) > 3
        with opened(bank, shards) as engine:
            assert rows_of(engine) == expected
            engine.run(ROUTES, [{"what": "move", **dict.fromkeys(("src", "dst"), 1), "amount": 1,
                                 "kind": "a"}], route_by="what")  # fmt: skip
            expected = rows_of(engine)


def test_a_store_that_was_migrated_has_its_rows_and_its_past_under_their_names() -> None:
    disk = SimulatedDisk()
    old = hg.Table("old", "id bigint, a string, gone int, n int", key="id")
    with opened(disk, 0, [old], []) as engine:
        engine.load(old, [{"id": n, "a": str(n), "gone": 1, "n": n} for n in range(9)])
    steps = hg.Migration("m").rename_table("old", "now").rename_column("now", "a", "b")
    steps = steps.drop_column("now", "gone").add_column("now", "gone bigint DEFAULT 7")
    steps = steps.widen("now", "n bigint")
    hg.migrate(PATH, steps, disk=disk)
    now = hg.Table("now", "id bigint, b string, n bigint, gone bigint DEFAULT 7", key="id")
    expected = [(n, str(n), n, 7) for n in range(9)]

    @hg.transaction(event="id bigint", compiled=False)
    def touch(event, row=now.at("id")):
        row.gone += 1

    for turn, shards in enumerate((3, 2, 0)):
        resharded(disk, shards)
        with opened(disk, shards, [now], [touch]) as engine:
            assert engine.sql("select * from now order by id").rows() == expected
            engine.run(touch, [{"id": turn}])
            expected[turn] = (turn, str(turn), turn, 8)
            assert engine.sql("select * from now order by id").rows() == expected
            assert engine.load(now, [{"id": 99, "b": "", "n": 1}]) == 0
            past = engine.sql("select gone, a from old where id = 4", epoch=1).rows()
            assert past == [(1, "4")]
    hg.migrate(PATH, [steps, hg.Migration("n").rename_column("now", "b", "c")], disk=disk)
    assert read_table(StoreReader.open(PATH, disk), "now").column_names[1] == "c"


def test_a_new_column_of_a_table_in_shards_has_its_default_in_older_rows() -> None:
    disk, old = SimulatedDisk(), hg.Table("a", "id bigint, n bigint", key="id")
    with opened(disk, 2, [old], []) as engine:
        engine.load(old, [{"id": n, "n": n} for n in range(4)])
    new = hg.Table("a", "id bigint, n bigint, s string DEFAULT 'x'", key="id")

    @hg.transaction(event="id bigint", compiled=False)
    def touch(event, row=new.at("id")):
        row.s += "y"

    expected = [(0, 0, "x"), (1, 1, "x"), (2, 2, "x"), (3, 3, "xy")]
    with opened(disk, 2, [new], [touch]) as engine:
        engine.run(touch, [{"id": 3}])
        assert engine.sql("select * from a order by id").rows() == expected
    resharded(disk, 0)
    with opened(disk, 0, [new], [touch]) as engine:
        assert engine.sql("select * from a order by id").rows() == expected


# --- copies and what is removed -------------------------------------------------------------------


def test_a_copy_is_changed_and_the_store_stays_as_it_is(bank: SimulatedDisk) -> None:
    with opened(bank, 0) as engine:
        expected, epoch = rows_of(engine), engine.epoch
        with pytest.raises(hg.LockedError):
            hg.reshard(PATH, 3, to=COPY, disk=bank)
    with pytest.raises(hg.InputError, match="is inside of the store"):
        hg.reshard(PATH, 3, to=f"{PATH}/inner", disk=bank)
    found = hg.reshard(PATH, 3, to=COPY, disk=bank)
    assert (found.path, found.epoch) == (COPY, epoch + 1) and verify(COPY, bank).is_whole
    reader = StoreReader.open(COPY, bank)
    for at in (epoch, epoch + 1):
        assert read_table(reader, "accounts", at).sort_by("id") == expected["accounts"]
    with opened(bank, 0) as engine:
        assert engine.epoch == epoch
    with pytest.raises(hg.InputError, match="one process already: for a copy use headgate backup"):
        hg.reshard(PATH, 0, to="/data/other", disk=bank)


def test_backups_and_older_epochs_are_copied_across_a_change(bank: SimulatedDisk) -> None:
    past: dict[int, Any] = {}
    for shards in (2, 0, 3):
        epoch = resharded(bank, shards).epoch
        with opened(bank, shards) as engine:
            past[epoch] = rows_of(engine)
            engine.run(ROUTES, batch(random.Random(shards), 10), route_by="what")
            past[engine.epoch] = rows_of(engine)
    backup(PATH, COPY, bank)
    assert verify(COPY, bank).is_whole
    for epoch, rows in past.items():
        restore(PATH, epoch, f"{COPY}-{epoch}", bank)
        assert verify(f"{COPY}-{epoch}", bank).is_whole
        for path in (COPY, f"{COPY}-{epoch}"):
            found = read_table(StoreReader.open(path, bank), "accounts", epoch)
            assert found.sort_by("id") == rows["accounts"]


def test_what_was_before_goes_with_the_retention_of_the_store(bank: SimulatedDisk) -> None:
    for shards in (2, 3, 0):
        resharded(bank, shards)
        keep = hg.Retention(snapshots=1, epochs=0)
        with opened(bank, shards, retain=keep) as engine:
            expected = rows_of(engine)
            engine.run(ROUTES, [], route_by="what")
            for _ in range(2):
                engine.call(move, src=1, dst=1, amount=0, kind="a")
                engine.snapshot()
            assert rows_of(engine)["rates"] == expected["rates"]
            named = {f"{PATH}/parts/{one.file}" for one in engine._memory.parts.names()}
        parts = {path for path in bank.paths() if path.endswith(".part")}
        assert parts == named and bool(parts) == bool(shards)


# --- what is refused ------------------------------------------------------------------------------


def test_a_writer_keeps_its_store(bank: SimulatedDisk) -> None:
    with opened(bank, 0), pytest.raises(hg.LockedError):
        hg.reshard(PATH, 2, disk=bank)
    with pytest.raises(hg.InputError, match="no store at"):
        hg.reshard("/data/none", 2, disk=bank)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shards": -1}, "shards is a number from 1 to 1024"),
        ({"shards": True}, "shards is a number from 1 to 1024"),
        ({"shards": 2, "replicate": ["acounts"]}, r"no table 'acounts'.*accounts"),
        ({"shards": 2, "shard_by": {"accounts": "owner"}}, "shard_by names columns of the key"),
        (
            {"shards": 2, "shard_by": {"accounts": "id"}, "replicate": ["accounts"]},
            "do not go together",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    bank: SimulatedDisk, options: dict[str, Any], words: str
) -> None:
    before = bank.fingerprint()
    with pytest.raises((hg.InputError, hg.DeclarationError), match=words):
        hg.reshard(PATH, disk=bank, **options)
    assert bank.fingerprint() == before


def test_tables_and_recovery_that_shards_do_not_have_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "_KNOWN", placement._KNOWN - {"expires"})
    lasting = hg.Table("lasting", "id bigint, ts timestamp", key="id", expires="ts + 1 day")
    disk = SimulatedDisk()
    opened(disk, 0, [lasting], []).close()
    with pytest.raises(hg.DeclarationError, match=r"not there for.*keep the store in one proc"):
        hg.reshard(PATH, 2, disk=disk)
    with pytest.raises(hg.InputError, match="no tables yet"):
        disk = SimulatedDisk()
        opened(disk, 0, [], []).close()
        hg.reshard(PATH, 2, disk=disk)


def test_a_table_of_which_all_rows_are_gone_changes_its_shards_too() -> None:
    disk = SimulatedDisk()
    with opened(disk, 0) as engine:
        loaded(engine).run(close, [{"src": row["id"]} for row in FIRST["accounts"]])
        assert engine.counts()["accounts"] == 0
    for shards in (3, 0, 2):
        assert resharded(disk, shards).is_applied
        with opened(disk, shards) as engine:
            assert engine.counts()["accounts"] == 0 and engine.counts()["rates"] == 2


def test_a_store_of_weak_recovery_needs_a_snapshot_behind_its_last_input() -> None:
    disk = SimulatedDisk()
    given: dict[str, Any] = {"tables": TABLES, "transactions": TRANSACTIONS, "disk": disk}
    event = {"src": 1, "dst": 2, "amount": 5, "kind": "a"}
    with hg.open(PATH, recovery="weak", **given) as engine:
        loaded(engine).run(move, [event])
    for dry_run in (True, False):
        with pytest.raises(hg.StoreError, match=r"engine.snapshot\(\) and close it; then reshard"):
            hg.reshard(PATH, 2, dry_run=dry_run, disk=disk)
    with hg.open(PATH, recovery="weak", **given) as engine:
        expected = rows_of(engine)
        engine.snapshot()
    resharded(disk, 2)
    with opened(disk, 2) as engine:
        assert rows_of(engine) == expected


def test_a_full_disk_is_told_and_leaves_the_store_as_it_was(bank: SimulatedDisk) -> None:
    with opened(bank, 0) as engine:
        expected = rows_of(engine)
    disk = bank.after_kill()
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths()) + 1500
    with pytest.raises(hg.StoreError, match=r"cannot reshard .*nothing was changed"):
        hg.reshard(PATH, 3, disk=disk)
    disk.capacity_bytes = None
    with opened(disk, 0) as engine:
        assert rows_of(engine) == expected
    resharded(disk, 3)
