"""Engines with shards: the same results as in one process, and seeded bugs that are caught."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import StoreReader, verify
from headgate.parallel.decision import Decision
from headgate.shards import components, placement, share, warm
from headgate.shards.placement import Placement
from headgate.state.strings import StringPool
from headgate.testing.disk import SimulatedDisk
from tests.property.family import FAMILY
from tests.property.making import START
from tests.property.seeding import plant
from tests.property.workers import PATH, Workers, open_sharded
from tests.unit.shards.bank import (
    FIRST,
    ROUTES,
    TABLES,
    accounts,
    batch,
    charge,
    close,
    differs,
    in_one_process,
    in_shards,
    move,
    rates,
    rows_of,
)

SEEDS = range(2)


def is_caught(trouble: float = 0.6) -> bool:
    return any(differs(seed, Workers(seed, 2, trouble)) for seed in SEEDS)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_an_engine_with_shards_gives_what_one_process_gives(shards: int) -> None:
    assert not differs(1, Workers(1, 2, 0.5), shards=shards)


# --- canaries -------------------------------------------------------------------------------------


def test_without_a_seed_nothing_is_caught() -> None:
    assert not is_caught()


def test_a_stale_copy_of_a_shard_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = "links = history.links[known.index(here) :]", "links = ()"
    plant(monkeypatch, warm, "_way", old, new)
    assert is_caught(0.0)


def test_what_an_attempt_left_that_was_not_committed_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, warm, "_way", "not _names(links[:1], ran.file)", "False")
    assert is_caught()


def test_a_component_split_in_two_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def split(events: Any, rows: Any, written: Any, count: int, row_count: int) -> Any:
        return np.arange(count)

    monkeypatch.setattr(components, "_united", split)
    assert is_caught(0.0)


def test_a_part_that_is_damaged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    in_shards(Workers(), disk=disk).close()
    assert verify(PATH, disk).is_whole
    file = next(path for path in disk.paths() if path.endswith(".part"))
    content = bytearray(disk.content(file))
    content[-70] ^= 1
    disk.replace(file, bytes(content))
    assert file in verify(PATH, disk).damages[0]
    engine = open_sharded(TABLES, ROUTES.values(), 3, Workers(), disk)
    with engine, pytest.raises(hg.DamageError, match="does not match its checksum"):
        engine.sql("select * from accounts, rates")


# --- what is kept ---------------------------------------------------------------------------------


def test_a_store_goes_on_where_it_was_and_past_epochs_stay_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 10_000)  # images are written now and then
    monkeypatch.setattr(share, "size_of", lambda rows: 0)
    disk, draw, one = SimulatedDisk(), random.Random(3), in_one_process()
    past: dict[int, Any] = {}
    in_shards(Workers(), disk=disk).close()
    for turn in range(3):
        workers = Workers(turn)
        with open_sharded(TABLES, ROUTES.values(), 3, workers, disk) as engine:
            assert engine.epoch == one.epoch
            for _ in range(4):
                events = batch(draw, 40)
                found = engine.run(ROUTES, events, route_by="what")
                assert found == one.run(ROUTES, events, route_by="what")
                past[engine.epoch] = rows_of(engine)
            assert rows_of(engine) == rows_of(one)
            assert engine.counts() == one.counts() == engine.metrics().rows
            engine.snapshot()
    assert any("image" in path for path in disk.paths())
    with open_sharded(TABLES, ROUTES.values(), 3, Workers(), disk) as engine:
        for epoch, rows in past.items():
            query = "select * from accounts order by id"
            assert engine.sql(query, epoch=epoch).arrow() == rows["accounts"]


def test_nothing_is_left_of_what_no_record_names() -> None:
    disk = SimulatedDisk()
    with in_shards(Workers(2, 2, 0.7), disk=disk) as engine:
        for seed in range(4):
            engine.run(ROUTES, batch(random.Random(seed), 12), route_by="what")
        engine.get("accounts", 1)
        named = {name.file for name in engine._memory.parts.names()}
        there = {path.removeprefix(f"{PATH}/parts/") for path in disk.paths() if "/parts/" in path}
        assert {path for path in there if "/" in path} == named


def test_calls_gets_and_replays_are_as_in_one_process() -> None:
    one, engine = in_one_process(), in_shards(Workers())
    for each in (one, engine):
        assert each.call(move, src=1, dst=2, amount=5, kind="a").left == 45
        assert each.call_once("k", move, src=1, dst=2, amount=5, kind="a").left == 40
        assert each.call_once("k", move, src=1, dst=2, amount=5, kind="a").left == 40
        assert each.submit(charge, src=3, kind="a", amount=4).result().committed
        assert each.get(accounts, 1) == {"id": 1, "owner": "", "balance": 40}
        assert each.get(accounts, 999) is None
        assert each.get(rates, "a") == {"kind": "a", "fee": 4, "used": 1}
        assert each.load(accounts, FIRST["accounts"]) == 0
    assert rows_of(one) == rows_of(engine)
    feed = [{"src": 1, "dst": 9, "amount": 1, "kind": "b"}]
    inlet = engine.stream(move).feed()
    first = inlet.apply(pa.Table.from_pylist(feed), ("query", 0), "run")
    again = inlet.apply(pa.Table.from_pylist(feed), ("query", 0), "another run")
    assert first == again and engine.epoch == one.epoch + 1
    engine.close()


keyed = [
    hg.Table("small", "id int, n bigint", key="id"),
    hg.Table("flags", "id boolean, n bigint", key="id"),
    hg.Table("prices", "id decimal(5,2), n bigint", key="id"),
    hg.Table("days", "id date, n bigint", key="id"),
    hg.Table("times", "id timestamp, n bigint", key="id"),
    hg.Table("both", "a int, b string, n bigint", key="a, b"),
]
# What is kept where nothing else can be is 0: a key that is none must not find its row.
ZEROS = {
    "accounts": {"id": 0}, "rates": {"kind": ""}, "small": {"id": 0}, "flags": {"id": False},
    "prices": {"id": Decimal("0.00")}, "days": {"id": date(1970, 1, 1)}, "times": {"id": START},
    "both": {"a": 0, "b": ""},
}  # fmt: skip
KEYS: list[tuple[str, Any]] = [
    *(
        (table, key)
        for table in ZEROS
        for key in (
            None, 0, 0.0, False, "", "0", b"", Decimal(0), Decimal("0.001"), Decimal(10**5), 1.5,
            float("nan"), 2**31, 2**63, -(2**63) - 1, (), (0,), (0, ""), (None, None), (None, ""),
            (0, None), (2**40, ""), (False, ""), [0], {}, date(1970, 1, 1), START, np.int64(0),
            np.float64(0), np.bool_(False), pa.scalar(0), "\ud800",
        )
    ),
]  # fmt: skip


def test_what_cannot_be_a_key_is_refused_with_shards_as_without() -> None:
    def answer(engine: hg.Engine, table: str, key: Any) -> Any:
        try:
            return engine.get(table, key)
        except hg.InputError as error:
            return str(error)

    tables = [*TABLES, *keyed]
    one, engine = hg.open(None, tables=tables), open_sharded(tables, [], 3, Workers())
    for each in (one, engine):
        for table in tables:
            row = {"n": 7, "owner": "", "balance": 7, "fee": 7, "used": 7} | ZEROS[table.name]
            each.load(table, [{name: row[name] for name in table.schema.names}])
    found = [answer(engine, table, key) for table, key in KEYS]
    assert found == [answer(one, table, key) for table, key in KEYS]
    refused = [one for one in found if "cannot be a key of type" in str(one)]
    assert len(refused) > 100 and len({one for one in refused if "'accounts'" in one}) > 10
    engine.close()


def test_rows_that_a_batch_changes_again_are_not_counted_as_new() -> None:
    deposit, table = FAMILY["deposit"].compiled, FAMILY["deposit"].tables[0]
    event = {"ts": START, "id": 0, "amount": Decimal(1), "owner": "", "day": START.date()}
    with open_sharded([table], [deposit], 1, Workers(0, 1)) as engine:
        for _ in range(3):
            assert engine.run(deposit, [event]).column("outcome").to_pylist() == ["committed"]
            assert engine.counts() == {table.name: 1}


def test_the_decision_says_where_events_ran() -> None:
    with in_shards(Workers()) as engine:
        home = [{"src": n, "dst": n, "amount": 1, "kind": "a"} for n in range(5)]
        engine.run(move, home)
        assert engine.decisions()[-1].scheme == "executors"
        engine.run(move, [{"src": 0, "dst": n, "amount": 1, "kind": "a"} for n in range(20)])
        assert engine.decisions()[-1].scheme == "driver"
        assert "components" in engine.decisions()[-1].why


# --- what is refused ------------------------------------------------------------------------------


def test_another_number_of_shards_is_refused_with_the_right_one() -> None:
    disk = SimulatedDisk()
    in_shards(Workers(), disk=disk).close()
    with pytest.raises(hg.InputError, match=r"has 3 shards.*shards=3"):
        open_sharded(TABLES, ROUTES.values(), 4, Workers(), disk)
    with pytest.raises(hg.InputError, match="has 3 shards"):
        hg.open(PATH, tables=TABLES, transactions=[close], disk=disk)
    assert StoreReader.open(PATH, disk).declared()["shards"] == 3
    other = SimulatedDisk()
    hg.open(PATH, tables=TABLES, transactions=[close], disk=other).close()
    with pytest.raises(hg.InputError, match=r"rows in one process.*without shards"):
        open_sharded(TABLES, ROUTES.values(), 3, Workers(), other)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(hg.DeclarationError, match="shard_by names columns of the key"):
        hg.Table("t", "id bigint, owner string", key="id", shard_by="owner")
    with pytest.raises(hg.InputError, match="spark= and shards= go together"):
        hg.open("/data/bank", tables=TABLES, shards=2)


@pytest.mark.parametrize("declared", ["history", "expires"])
def test_a_program_that_is_refused_leaves_the_store_as_it_was(
    declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its declaration was in the manifest by then, and the program of before was locked out."""

    def table(**more: Any) -> hg.Table:
        return hg.Table("notes", "id bigint, ts timestamp", key="id", **more)

    disk = SimulatedDisk()
    open_sharded([table()], [], 2, Workers(), disk).close()
    before = StoreReader.open(PATH, disk).manifest
    # Whatever a table declares that nobody has added here, as these two were for long, is refused.
    monkeypatch.setattr(placement, "_KNOWN", placement._KNOWN - {declared})
    more = {"history": "5 rows"} if declared == "history" else {"expires": "ts + 1 day"}
    with pytest.raises(hg.DeclarationError, match=f"{declared} is not there for an engine with"):
        open_sharded([table(**more)], [], 2, Workers(), disk)
    assert StoreReader.open(PATH, disk).manifest == before
    open_sharded([table()], [], 2, Workers(), disk).close()


def test_rows_in_shards_are_held_to_a_constraint_that_is_new() -> None:
    def table(**more: Any) -> hg.Table:
        return hg.Table("notes", "id bigint, n bigint NULL", key="id", **more)

    other, disk = hg.Table("other", "id bigint", key="id"), SimulatedDisk()
    with open_sharded([table()], [], 2, Workers(), disk) as engine:
        engine.load("notes", [{"id": n, "n": n // 2} for n in range(4)])
    for tables, name in (
        ([table(unique=["n"])], "unique notes: n"),
        ([table(references={"n": "other"}), other], "reference notes.n: other"),
    ):
        before = StoreReader.open(PATH, disk).manifest
        with pytest.raises(hg.DeclarationError, match=f"constraint '{name}' is new, and the row"):
            open_sharded(tables, [], 2, Workers(), disk)
        assert StoreReader.open(PATH, disk).manifest == before
    new = hg.Table("new", "id bigint, n bigint", key="id", unique=["n"])  # which has no rows
    kept = table(references={"n": "notes"})
    with open_sharded([kept, new], [], 2, Workers(), disk) as engine:
        assert engine.counts() == {"notes": 4, "new": 0}
        with pytest.raises(hg.InputError, match=r"reference failed: notes\.n: notes"):
            engine.load("notes", [{"id": 9, "n": 77}], mode="missing")


def test_the_last_decision_is_that_of_the_last_batch() -> None:
    with hg.open(None, tables=TABLES, transactions=[move, charge]) as engine:
        first, second = (engine._batches.executor((one,)) for one in (move, charge))
        for executor, why in ((first, "a"), (second, "b")):
            executor.decisions.append(Decision("serial", why))
        assert engine.decisions()[-1].why == "b"
        engine._batches.executor((move,))
        assert engine.decisions()[-1].why == "a"


def test_other_code_on_an_executor_is_refused() -> None:
    class Others(Workers):
        def begin(self, code: Any) -> int:
            return super().begin(code._replace(transactions={"close": close}))

    with pytest.raises(hg.StoreError, match="other versions of the program's code"):
        open_sharded(TABLES, ROUTES.values(), 2, Others())


def test_a_folder_that_an_executor_does_not_see_is_refused() -> None:
    class Elsewhere(Workers):
        def begin(self, code: Any) -> int:
            self.disk = SimulatedDisk()
            return super().begin(code)

    with pytest.raises(hg.InputError, match="does not see the store's folder"):
        open_sharded(TABLES, ROUTES.values(), 2, Elsewhere())


def test_a_row_is_on_the_shard_of_its_key_in_every_process() -> None:
    """Whatever codes its texts have, and as stores that exist have it."""
    names = hg.Table("names", "name string, n bigint", key="name")
    placement = Placement({"names": names, "accounts": accounts}, 7)
    texts = pa.array(["a", "bb", "", "ä"])
    found = []
    for before in ([], ["x", "ä", "y"]):
        pool = StringPool()
        pool.intern(pa.array(before, pa.string()))
        found.append(placement.shards("names", pool.intern(texts).reshape(1, -1), pool).tolist())
    assert found[0] == found[1] == FOUND_TEXTS
    numbers = np.arange(-3, 5).reshape(1, -1)
    assert placement.shards("accounts", numbers, StringPool()).tolist() == FOUND_NUMBERS


FOUND_TEXTS = [6, 5, 4, 0]
FOUND_NUMBERS = [5, 6, 1, 4, 0, 5, 2, 4]
