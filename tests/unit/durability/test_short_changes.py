"""Short epochs that are applied together leave what each of them would have left by itself."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.durability import ALIVE, SLOT, Commit, Store, short_changes
from headgate.durability.scan import LogReader
from headgate.durability.short_changes import SHORT_ROWS, ShortChanges
from headgate.engine.memory import Restoring
from headgate.errors import DamageError
from headgate.io import RealDisk
from headgate.state.rows import TableRows
from headgate.state.stored_names import Storage, Storages
from headgate.state.strings import StringPool
from tests.unit.durability.conftest import Place as Where

things = hg.Table("things", "id bigint, name string, weight double", key="id")


@hg.transaction(event="id bigint, name string, weight double")
def put(event: hg.Event, thing: hg.Row = things.at("id", create=True)) -> None:
    thing.name = event.name
    thing.weight = event.weight


@hg.transaction(event="id bigint")
def drop(event: hg.Event, thing: hg.Row = things.at("id")) -> None:
    hg.delete(thing)


def write(
    path: Path, seed: int, epochs: int = 300, rows: dict[int, tuple[str, float]] | None = None
) -> tuple[dict[int, tuple[str, float]], int]:
    """Epochs of one event, some of many, in which rows come, change, go and come again."""
    chance, rows = random.Random(seed), dict(rows or {})
    with hg.open(str(path), tables=[things], transactions=[put, drop], durability="none") as engine:
        for number in range(epochs):
            if rows and chance.random() < 0.3:
                one = chance.choice(sorted(rows))
                engine.call(drop, id=one)
                del rows[one]
                continue
            size = 1 if chance.random() < 0.97 else SHORT_ROWS + 9
            given = [(chance.randrange(40), f"n{number}", number + 0.5) for _ in range(size)]
            names = ("id", "name", "weight")
            engine.run(put, [dict(zip(names, one, strict=True)) for one in given])
            rows.update({one: (name, weight) for one, name, weight in given})
        return rows, engine.epoch


@pytest.mark.parametrize("gathered_bytes", [1, 3000, 4 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_reopened_store_has_the_rows_that_were_written(
    tmp_path: Path, seed: int, gathered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, epoch = write(tmp_path / "store", seed)
    monkeypatch.setattr(short_changes, "_GATHERED_BYTES", gathered_bytes)
    with hg.open(str(tmp_path / "store"), tables=[things], transactions=[put, drop]) as engine:
        found = engine.sql("select id, name, weight from things").rows()
        assert {one: (name, weight) for one, name, weight in found} == rows
        assert engine.epoch == epoch
        engine.call(put, id=1000, name="new", weight=1.0)
        assert engine.get(things, 1000) is not None


@pytest.mark.parametrize("gathered_bytes", [1, 3000, 4 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_snapshots_made_of_short_epochs_have_the_rows_that_were_written(
    tmp_path: Path, seed: int, gathered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is of the log alone, the second of the first and the log behind it."""
    monkeypatch.setattr(short_changes, "_GATHERED_BYTES", gathered_bytes)
    rows: dict[int, tuple[str, float]] = {}
    for part in range(2):
        rows, epoch = write(tmp_path / "store", seed + 10 * part, rows=rows)
        store = Store.open(str(tmp_path / "store"))
        store.recover()
        assert store.snapshot() == epoch
        store.close()
        store = Store.open(str(tmp_path / "store"))
        image = store.recover().images["things"].to_pylist()
        assert {one["id"]: (one["name"], one["weight"]) for one in image} == rows
        store.close()


def test_rows_keep_their_own_epochs_and_free_slots_are_free(tmp_path: Path) -> None:
    """The words of every row, its epoch with it, as when each epoch is applied alone."""
    write(tmp_path / "store", 7)
    words = []
    for together in (True, False):
        rows = TableRows(things, StringPool())
        restoring = Restoring({"things": rows}, Storages({"things": Storage("things")}))
        with pytest.MonkeyPatch.context() as patch:
            if not together:
                patch.setattr(ShortChanges, "_apply_together", lambda *_: False)
            store = Store.open(str(tmp_path / "store"))
            store.recover(restoring)
            store.close()
        restoring.end()
        alive = (rows.words[: rows.count, 0] & 1) == 1
        names = rows.arrow(np.flatnonzero(alive))
        words.append((rows.words[: rows.count, 0].tolist(), names, np.sort(rows.free).tolist()))
    assert words[0][0] == words[1][0] and words[0][2] == words[1][2]
    assert words[0][1].equals(words[1][1])
    assert len({header for header in words[0][0] if header & 1}) > 10


def changes(slot: int, alive: bool, **columns: object) -> pa.RecordBatch:
    given = {name: pa.array([value]) for name, value in columns.items()}
    begin = {SLOT: pa.array([slot], pa.int64()), ALIVE: pa.array([alive])}
    return pa.record_batch({**begin, **given})


def test_columns_that_come_later_and_types_that_widen_end_a_gathering(place: Where) -> None:
    store = place.store()
    given = [
        changes(0, True, a=1), changes(0, True, a=2, b="x"), changes(1, True, a=3, b="y"),
        changes(0, False, a=0), changes(2, True, a=5, b="z"), changes(1, True, a=2.5),
    ]  # fmt: skip
    for epoch, batch in enumerate(given, 1):
        store.commit(Commit(epoch, 0, None, {"t": batch}, None))
    store.close()
    store = Store.open(place.path, place.disk)
    image = store.recover().images["t"].to_pylist()
    assert image == [
        {SLOT: 1, "a": 2.5, "b": None},
        {SLOT: 2, "a": 5.0, "b": "z"},
    ]
    store.close()


def test_an_epoch_that_cannot_be_applied_is_named_by_its_own_place(tmp_path: Path) -> None:
    """Its checksum is right and its content is not: what was gathered with it is not blamed."""
    write(tmp_path / "store", 3, epochs=5)
    with hg.open(str(tmp_path / "store"), tables=[things], transactions=[put, drop]) as engine:
        before = engine.epoch
    store = Store.open(str(tmp_path / "store"))
    store.recover()
    for number in range(3):
        whole = changes(number, True, id=number, name="x", weight=1.0)
        batch = whole if number != 1 else whole.drop_columns(["weight"])
        store.commit(Commit(before + 1 + number, 0, None, {"things": batch}, None))
    offset = LogReader(RealDisk(), str(tmp_path / "store" / "log")).locate(before + 2).offset
    store.close()
    with pytest.raises(DamageError, match=f"at offset {offset}: .*'weight'.*null"):
        hg.open(str(tmp_path / "store"), tables=[things], transactions=[put, drop])
