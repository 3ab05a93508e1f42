"""Rows that expire and keep versions, in shards: as in one process, whatever happens."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headgate as hg
from headgate.durability import StoreReader, backup, restore, verify
from headgate.execution.expiring import Expiring
from headgate.query.store_tables import read_table
from headgate.shards import (
    components,
    epoch_run,
    placement,
    planning,
    sharding,
    share,
    warm,
    warm_files,
)
from headgate.state import trail
from headgate.state.strings import StringPool
from headgate.state.version_rows import Trail, VersionRows
from headgate.testing import SerialOracle, difference, results_difference
from headgate.testing.disk import SimulatedDisk
from tests.property.harness import decoded, same_bytes
from tests.property.seeding import plant
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.shards.wards import (
    FORMS,
    KINDS,
    OPTIONS,
    ROUTES,
    START,
    TABLES,
    TIMED,
    Lives,
    beds,
    events,
    opened,
    rows_of,
    sign,
    stay,
)

COPY = "/data/copy"
SEEDS = range(3)


def differs(
    seed: int, options: dict[str, Any] | None = None, shards: int = 3, trouble: float = 0.5
) -> str | None:
    """The first difference in some batches, with more and less time between them."""
    lives = Lives(shards, Workers(seed, 2, trouble), options)
    try:
        for turn in range(5):
            kinds = ("glance",) if turn % 2 else KINDS  # who only reads lets rows go, too
            after = (0, 2, 7)[turn % 3]
            found = lives.run(10 * seed + turn, (25, 12, 1)[turn % 3], after=after, kinds=kinds)
            if found is not None:
                return found
        return lives.flush() or lives.difference()
    except hg.HeadgateError as error:
        return str(error)
    finally:
        lives.close()


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_time_passes_in_shards_as_in_one_process(number: int) -> None:
    assert differs(number, OPTIONS[number], shards=(2, 5, 1)[number % 3]) is None


# --- canaries -------------------------------------------------------------------------------------


def _homes_sweep_what_travels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(share, "Expiring", lambda *given: Expiring(*given[:5]))


def _shards_without_events_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning.DueShards, "shards", lambda self, program, timing: [])


def _time_is_that_of_a_share(patch: pytest.MonkeyPatch) -> None:
    dealt = epoch_run.EpochRun._events

    def seeded(self: Any, rows: Any, **more: Any) -> Any:
        found = dealt(self, rows, **more)
        return {name: one.drop_columns([share.MOMENT]) for name, one in found.items()}

    patch.setattr(epoch_run.EpochRun, "_events", seeded)


def _versions_stay_at_home(patch: pytest.MonkeyPatch) -> None:
    kept = warm.ShardRows.versions

    def seeded(self: Any, name: str, slots: Any) -> Any:
        return kept(self, name, slots[:0])

    patch.setattr(warm.ShardRows, "versions", seeded)


def _versions_are_placed_by_their_number(patch: pytest.MonkeyPatch) -> None:
    made = placement.Placement.__init__

    def seeded(self: Any, tables: Any, count: int) -> None:
        made(self, tables, count)
        self._words |= {name: tuple(range(len(one.key))) for name, one in tables.items()}

    patch.setattr(placement.Placement, "__init__", seeded)


def _versions_that_went_are_all_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VersionRows, "ended", lambda self, there, gone: gone)


@pytest.mark.parametrize(
    "seed_bug",
    [
        _homes_sweep_what_travels, _shards_without_events_wait,
        _time_is_that_of_a_share, _versions_stay_at_home,
        _versions_are_placed_by_their_number, _versions_that_went_are_all_told,
    ],
)  # fmt: skip
def test_a_seeded_bug_is_caught(
    seed_bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_bug(monkeypatch)
    assert any(differs(seed, trouble=0.0) for seed in SEEDS)


# --- where time passes ----------------------------------------------------------------------------


def bed(second: int, **more: Any) -> dict[str, Any]:
    ts = START + dt.timedelta(seconds=second)
    return {"ts": ts, "id": 1, "other": 1, "x": 1.0, "back": ts, "kind": "stay", **more}


def test_no_task_runs_where_no_row_is_due() -> None:
    workers = Workers(0, 2)
    engine = open_sharded(TABLES, FORMS, 5, workers)
    engine.run(ROUTES, [bed(0, id=n, other=n) for n in range(40)], **TIMED)
    for second, shards in ((1, 1), (3, 1), (4, 5), (5, 1), (9, 1), (40, 1)):
        del workers.reports[:]
        engine.run(ROUTES, [bed(second)], **TIMED)
        assert len(workers.reports) == shards, second
        told = "; rows may be due on 4 other shards"
        assert engine.decisions()[-1].why.endswith(told) == (shards == 5)
    assert engine.counts()["beds"] == 1
    assert engine.metrics().expired["beds"] == 39 + 2  # its own, too: before 9 and 40 seconds
    engine.close()


def by_shard(keys: range, shards: int) -> dict[int, list[int]]:
    """Keys by the shard that has the bed, the ward and the notes of each."""
    found = placement.Placement({"beds": beds}, shards).shards(
        "beds", np.array([keys]), StringPool()
    )
    return {shard: [key for key in keys if found[key] == shard] for shard in range(shards)}


def test_what_a_visit_leaves_goes_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, third = (keys[0] for keys in [*by_shard(range(90), 5).values()][:3])

    def left() -> list[int]:
        with open_sharded(TABLES, FORMS, 5, Workers()) as engine:
            engine.run(ROUTES, [bed(0, id=third, other=third)], **TIMED)  # all shards tell
            engine.run(ROUTES, [bed(5, id=one, other=other)], **TIMED)
            assert engine.decisions()[-1].scheme == "driver", "a row and a ward of two shards"
            engine.run(ROUTES, [bed(20, id=third, other=third)], **TIMED)
            return sorted(row["id"] for row in engine.scan("beds").dicts())

    assert left() == [third]
    monkeypatch.setattr(planning.DueShards, "_lower", lambda *_: None)  # a canary
    assert left() == sorted([one, third])


def test_who_only_reads_a_row_that_goes_is_with_all_who_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one, same, *_), (other, *_) = by_shard(range(90), 2).values()

    def outcomes() -> list[str]:
        with open_sharded(TABLES, FORMS, 2, Workers()) as engine:
            lasting = START + dt.timedelta(days=1)
            given = [bed(0, id=one)]
            given += [bed(0, id=key, x=41.0, back=lasting) for key in (same, other)]
            engine.run(ROUTES, given, **TIMED)
            looks = [bed(6, kind="glance", id=one, other=key) for key in (same, other)]
            return engine.run(ROUTES, looks, **TIMED).column("outcome").to_pylist()

    assert outcomes() == ["aborted", "aborted"], "it went before the first of them"
    old = "not access.read_only or access.table.expires is not None"
    plant(monkeypatch, components, "touched_rows", old, "not access.read_only")  # a canary
    monkeypatch.setattr(sharding, "touched_rows", components.touched_rows)
    assert outcomes() == ["committed", "aborted"]


def test_rows_that_all_shards_have_go_where_all_rows_are() -> None:
    lives = Lives(3, Workers(1, 2, 0.3), routes={**ROUTES, "none": sign})
    for turn in range(4):
        assert lives.run(turn, 15, after=3) is None
    assert "'sign' has rows of 'signs', whose expiry" in lives.engine.decisions()[-1].why
    lives.close()


# --- what becomes of the store --------------------------------------------------------------------


def test_shards_change_while_rows_expire_and_keep_versions() -> None:
    lives = Lives(0, options={**TIMED, "watermark": "3 seconds"})
    for turn, shards in enumerate((2, 5, 0, 3)):
        assert lives.run(turn, 30, after=2) is None
        lives.reopen(shards, Workers(turn, 2, 0.3))
        assert lives.difference() is None
        assert verify(PATH, lives.disk).is_whole
    assert lives.run(9, 30, after=2) is None
    lives.close()
    told = str(hg.reshard(PATH, 4, disk=lives.disk, dry_run=True))
    assert "beds_history" in told and "beside beds" in told
    with pytest.raises(hg.InputError, match=r"has the versions of 'beds'.*place 'beds'"):
        hg.reshard(PATH, 4, disk=lives.disk, replicate=["beds_history"])
    hg.reshard(PATH, 4, disk=lives.disk, replicate=["notes"])
    reader = StoreReader.open(PATH, lives.disk)
    epoch = reader.last_epoch()
    for name in ("notes", "notes_history"):  # versions went with their rows
        assert (
            read_table(reader, name, epoch).num_rows == read_table(reader, name, epoch - 1).num_rows
        )


def test_past_epochs_backups_and_older_stores_have_the_versions_of_then() -> None:
    lives, past = Lives(3, Workers(2, 2, 0.3)), dict[int, Any]()
    for turn in range(6):
        assert lives.run(turn, 20, after=1) is None
        past[lives.engine.epoch] = rows_of(lives.engine)
        if turn == 3:
            lives.engine.snapshot()
            lives.reopen()
    lives.close()
    backup(PATH, COPY, lives.disk)
    assert verify(COPY, lives.disk).is_whole
    restore(PATH, 4, f"{COPY}-4", lives.disk)
    for path, epochs in ((PATH, past), (COPY, past), (f"{COPY}-4", [4])):
        reader = StoreReader.open(path, lives.disk)
        for epoch in epochs:
            for table in ("beds", "beds_history", "notes_history"):
                rows = read_table(reader, table, epoch)
                keys = past[epoch][table].column_names[:2]
                rows = rows.sort_by([(name, "ascending") for name in keys])
                assert rows.to_pylist() == past[epoch][table].to_pylist()


def test_a_store_goes_on_where_its_time_was(tmp_path: Path) -> None:
    options = {**TIMED, "watermark": "2 seconds"}
    lives = Lives(3, Workers(0, 1, folder=tmp_path), options)
    for turn in range(4):
        assert lives.run(turn, 15, after=2) is None
        lives.reopen(workers=Workers(turn, 1, folder=tmp_path), is_killed=bool(turn % 2))
    assert lives.difference() is None
    lives.close()


def test_images_and_mapped_files_have_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 5_000)
    monkeypatch.setattr(share, "size_of", lambda rows: 0)
    monkeypatch.setattr(warm_files, "BEHIND_BYTES_MIN", 3_000)
    monkeypatch.setattr(warm_files, "size_of", lambda rows: 0)
    workers = Workers(0, 1, folder=tmp_path)
    lives = Lives(2, workers)
    for turn in range(8):
        assert lives.run(turn, 25, after=1) is None
        if turn % 2:
            workers.workers[0].held.forget()
    assert {"mapped", "visiting"} <= set(workers.hows)
    lives.close()


def test_versions_are_read_and_never_loaded() -> None:
    lives = Lives(3)
    assert lives.run(1, 30, kinds=("glance",)) is None
    (row,) = lives.engine.sql(
        "select * from notes_history order by id, version_number limit 1"
    ).dicts()
    assert lives.engine.get("notes_history", (row["id"], row["version_number"])) == row
    with pytest.raises(hg.InputError, match="versions of those of 'notes'; load that one"):
        lives.engine.load("notes_history", [row])
    late = [{"id": 99, "x": 1.0, "n": 1, "seen": START}]
    for each in (lives.engine, lives.one, lives.oracle):
        each.load(beds, late, mode="missing")
    assert lives.run(2, 5, after=9) is None
    assert lives.engine.get("beds", 99) is None, "what was loaded is known to be due"
    lives.close()


def test_a_migration_takes_versions_and_times_along() -> None:
    disk = SimulatedDisk()
    with opened(disk, 2) as engine:
        engine.run(ROUTES, events(1, 40), **TIMED)
        before = engine.sql("select * from notes_history order by id, version_number").dicts()
    change = (
        hg.Migration("other notes")
        .rename_table("notes", "pages")
        .add_column("pages", "twice bigint", value="2 * n")
    )
    pages = hg.Table(
        "pages", "id bigint, n bigint, most double NULL, twice bigint", key="id", history="3 rows"
    )
    lasting = hg.Table(
        "wards", "id bigint, until date NULL, n bigint", key="id", expires="until + 1 day"
    )
    others = [one for one in TABLES if one.name not in ("notes", "wards")]

    @hg.transaction(event="id bigint", compiled=False)
    def write(
        event, page=pages.at("id"), seen=pages.window("id", size="3 rows"),
        out=hg.output("count bigint, twice bigint"),
    ):  # fmt: skip
        out.count = len(seen)
        out.twice = seen.twice.sum()
        page.n += 1

    with open_sharded(
        [*others, pages, lasting], [write], 2, Workers(), disk, migrations=[change]
    ) as engine:
        after = engine.sql("select * from pages_history order by id, version_number").dicts()
        assert [{**row, "twice": 2 * row["n"]} for row in before] == [
            {name: row[name] for name in (*before[0], "twice")} for row in after
        ]
        for key in {row["id"] for row in before}:
            mine = [row for row in before if row["id"] == key]
            found = engine.call(write, id=key)
            assert (found.count, found.twice) == (len(mine), sum(2 * row["n"] for row in mine))


def test_calls_pass_no_time_and_see_what_went() -> None:
    lives = Lives(2)
    assert lives.run(3, 20) is None
    for event in (bed(100, id=2), bed(0, id=1)):
        for each in (lives.engine, lives.one):
            assert each.call(stay, **event).committed
        lives.oracle.run(stay, [event])
        assert lives.difference() is None
    lives.close()


# --- versions that come to a copy -----------------------------------------------------------------

pages = hg.Table("pages", "id bigint, x double", key="id", history="3 rows")


@hg.transaction(event="n bigint, id bigint, other bigint, x double", compiled=False)
def write(
    event,
    page=pages.at("id", create=True),
    beside=pages.at("other", create=True),
    seen=pages.window("other", size="3 rows"),
    out=hg.output("first bigint NULL, count bigint, total double"),
):
    out.first = seen.version_number.first()
    out.count = len(seen)
    out.total = seen.x.sum()
    page.x = event.x
    beside.x += 1
    if event.x == 7.0:
        hg.delete(page)


def pages_differ(seed: int) -> bool:
    """Rows that are written often, go and come again within a batch, on two workers in turn."""
    draw, workers = random.Random(seed), Workers(seed, 2)
    with (
        open_sharded([pages], [write], 2, workers) as engine,
        hg.open(None, tables=[pages], transactions=[write]) as one,
    ):
        many = [{"n": n, "id": n % 30, "other": n % 30, "x": 1.0} for n in range(90)]
        batches = [many]
        for _ in range(9):
            count, keys = draw.choice((1, 6, 20)), draw.choice((2, 8))
            batches.append([
                {"n": n, "id": draw.randrange(keys), "other": draw.randrange(keys),
                 "x": draw.choice((1.5, 7.0, 0.1))}
                for n in range(count)
            ])  # fmt: skip
        for given in batches:
            try:
                found = engine.run(write, given, order_by="n")
            except hg.InvariantError:
                return True
            if not same_bytes(decoded(found), decoded(one.run(write, given, order_by="n"))):
                return True
        if rows_of(engine) != rows_of(one) or engine.counts() != one.counts():
            return True
        copies = [rows for each in workers.workers for rows in each.held._held.values()]
        return any(twice(rows.tables["pages_history"]) for rows in copies)


def twice(versions: Any) -> bool:
    """Whether a copy has a version twice; where it does, so will its next image."""
    there = versions.words[: versions.count][versions.words[: versions.count, 0] & 1 != 0]
    return len(np.unique(there[:, 1:3], axis=0)) < len(there)


def test_versions_that_come_are_put_where_their_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    added = 0
    add = Trail.add

    def counted(self: Any, *given: Any) -> None:
        nonlocal added
        added += 1
        add(self, *given)

    monkeypatch.setattr(Trail, "add", counted)
    assert not any(pages_differ(seed) for seed in SEEDS) and added > 20


def test_versions_that_stay_though_their_row_began_anew_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trail, "end_before", lambda *_: None)  # a canary
    assert any(pages_differ(seed) for seed in SEEDS)


def test_versions_are_put_by_their_keys_where_the_trails_are_not_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Trail, "can_follow", lambda self, versions: False)
    assert not any(pages_differ(seed) for seed in SEEDS)


# --- versions of rows that are placed otherwise ---------------------------------------------------

tariffs = hg.Table(
    "tariffs", "kind string, fee bigint", key="kind", replicate=True, history="3 rows"
)
tills = hg.Table(
    "tills", "id bigint, bank string, n bigint", key="id, bank", shard_by="bank",
    history="5 seconds",
)  # fmt: skip


@hg.transaction(
    event="ts timestamp, bank string, to_bank string, id bigint, kind string", compiled=False
)
def pay(
    event,
    till=tills.at("id", "bank", create=True),
    other=tills.at("id", "to_bank", create=True),
    fees=tariffs.window("kind", size="3 rows"),
    seen=tills.window("id", "to_bank", size="4 seconds"),
    out=hg.output("fees bigint, seen bigint, newest bigint NULL"),
):
    out.fees = fees.fee.sum() * 10 + len(fees)
    out.seen = seen.n.sum() * 10 + len(seen)
    out.newest = fees.version_number.last()
    till.n += 1
    other.n -= out.fees


@hg.transaction(
    event="ts timestamp, bank string, to_bank string, id bigint, kind string", compiled=False
)
def set_fee(
    event, tariff=tariffs.at("kind", create=True), till=tills.at("id", "bank", create=True)
):
    tariff.fee += 1
    till.n += tariff.fee


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_versions_are_where_their_rows_are_placed(shards: int) -> None:
    tables, routes = [tariffs, tills], {"pay": pay, "set": set_fee}
    draw, workers = random.Random(shards), Workers(shards, 2, 0.3)
    options: Any = {"route_by": "what", "order_by": "ts"}
    oracle = SerialOracle(tables, routes.values())
    with open_sharded(tables, routes.values(), shards, workers) as engine:
        for turn in range(5):
            given = [
                {"what": draw.choice(("pay",) * 9 + ("set",)), "id": draw.randrange(4),
                 "ts": START + dt.timedelta(seconds=3 * turn + draw.randrange(4)),
                 "bank": draw.choice("abcd"), "to_bank": draw.choice("abcd"),
                 "kind": draw.choice("xyz")}
                for _ in range(14)
            ]  # fmt: skip
            expected = oracle.run(routes, given, **options)
            assert results_difference(engine.run(routes, given, **options), expected) is None
            assert difference(engine, oracle) is None
