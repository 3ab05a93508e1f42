"""A reopened engine has its rows in their slots, whatever was in snapshots and what in the log."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader, compaction, snapshot
from headgate.state import index

things = hg.Table("things", "id bigint, name string, count int DEFAULT 3", key="id")
plain = hg.Table("plain", "id bigint, value double", key="id")


@hg.transaction(event="id bigint, name string, gone boolean", compiled=False)
def put(event, thing=things.at("id", create=True), other=plain.at("id", create=True)):
    thing.name = event.name
    thing.count += 1
    other.value += 0.5
    if event.gone:
        hg.delete(thing)


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables take the way of large ones: many blocks, several threads."""
    monkeypatch.setattr(compaction, "BLOCK_ROWS", 16)
    monkeypatch.setattr(snapshot, "READ_BLOCKS_MIN", 2)
    monkeypatch.setattr(index, "ROWS_MIN", 1)


def opened(path: Path) -> hg.Engine:
    engine = hg.open(path, tables=[things, plain], transactions=[put])
    engine.load(plain, [{"id": number, "value": 0.0} for number in range(100)])
    return engine


def live(engine: hg.Engine, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        events = [
            {
                "id": chance.randrange(400),
                "name": f"n{chance.randrange(50)}",
                "gone": number % 5 == 0,
            }
            for number in range(60)
        ]
        engine.run(put, events)


def contents(engine: hg.Engine) -> Any:
    rows = engine._memory.rows
    return [
        engine.sql("select * from things order by id").rows(),
        engine.sql("select * from plain order by id").rows(),
        {name: (table.count, len(table)) for name, table in rows.items()},
        {name: table.free[: table.free_count].tolist() for name, table in rows.items()},
    ]


def snapshots(path: Path) -> list[Path]:
    return sorted((path / "snapshots").glob("*.snapshot"))


def test_rows_of_snapshot_and_log_come_back_into_their_slots(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for seed in range(4):
        with opened(path) as engine:
            live(engine, seed)
            engine._journal.store.snapshot()
            live(engine, seed + 100)
            expected = contents(engine)
        with opened(path) as engine:
            assert contents(engine) == expected
            assert len(snapshots(path)) > 0
            # The index is whole: what is there is changed, what is not is made.
            found = engine.run(put, [{"id": 7, "name": "x", "gone": False}])
            assert found.column("outcome").to_pylist() == ["committed"]
            assert engine.sql("select name from things where id = 7").rows() == [("x",)]


def test_the_streams_of_all_transactions_are_declared_when_the_store_is_opened(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    with opened(path) as engine:
        first = "epoch bigint, position bigint, transaction string, outcome string, reason string"
        assert StoreReader.open(path).manifest["streams"] == {"put": {"results": first}}
        engine.run(put, [{"id": 1, "name": "x", "gone": False}], order_by="id")
        declared = {"put": {"results": f"{first}, id bigint"}}
        assert StoreReader.open(path).manifest["streams"] == declared
    with opened(path):
        assert StoreReader.open(path).manifest["streams"] == declared


def test_a_damaged_snapshot_leaves_no_trace_in_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as engine:
        live(engine, 1)
        engine._journal.store.snapshot()
        live(engine, 2)
        engine._journal.store.snapshot()
        expected = contents(engine)
    newest = snapshots(path)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # a block in the middle: those before it are put first
    newest.write_bytes(content)
    with opened(path) as engine:
        assert contents(engine) == expected


def test_a_table_that_grew_in_the_log_has_room(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as engine:
        engine._journal.store.snapshot()
        for first in range(0, 6000, 1500):
            numbers = range(first, first + 1500)
            engine.run(put, [{"id": 1000 + n, "name": "y", "gone": False} for n in numbers])
        expected = contents(engine)
    with opened(path) as engine:
        assert contents(engine) == expected
