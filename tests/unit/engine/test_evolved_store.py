"""A migrated store: snapshots, retention, backup, restore, weak recovery and other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate import durability
from headgate.durability import StoreReader
from headgate.query.store_tables import query_store

accounts = hg.Table("accounts", "id bigint, n int, note string", key="id")
ledger = hg.Table("ledger", "id bigint, n bigint, twice bigint", key="id", check="n >= 0")
old_cards = hg.Table("cards", "id bigint", key="id")

CHANGE = (
    hg.Migration("change")
    .rename_table("accounts", "ledger")
    .add_column("ledger", "twice bigint", value="2 * n")
    .widen("ledger", "n bigint")
    .drop_column("ledger", "note")
    .drop_table("cards")
    .set_check("ledger", "n >= 0")
)


@hg.transaction(event="id bigint, n int", compiled=False)
def put(event: Any, row: Any = accounts.at("id", create=True)) -> Any:
    row.n = event.n


@hg.transaction(event="id bigint, n bigint", compiled=False)
def raise_to(event: Any, row: Any = ledger.at("id", create=True)) -> Any:
    row.n = event.n
    row.twice = 2 * event.n


def begin(path: Path, **options: Any) -> None:
    tables, made = [accounts, old_cards], [put]
    with hg.open(path, tables=tables, transactions=made, **options) as engine:
        engine.load(accounts, [{"id": i, "n": i, "note": "x"} for i in range(5)])
        engine.load(old_cards, [{"id": 1}])
        engine.call(put, id=1, n=10)


def after(path: Path, **options: Any) -> hg.Engine:
    made = [raise_to]
    return hg.open(path, tables=[ledger], transactions=made, migrations=[CHANGE], **options)


def rows(path: Path, query: str, epoch: int | None = None) -> list[Any]:
    return query_store(StoreReader.open(path), query, None, epoch).rows()


NOW = [(0, 0, 0), (1, 10, 20), (2, 2, 4), (3, 3, 6), (4, 4, 8)]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_snapshots_on_either_side_give_the_same_rows(
    tmp_path: Path, before: bool, behind: bool
) -> None:
    begin(tmp_path / "bank")
    if before:
        with hg.open(tmp_path / "bank") as engine:
            engine.snapshot()
    with after(tmp_path / "bank") as engine:
        if behind:
            engine.snapshot()
        engine.call(raise_to, id=4, n=2**40)
        if behind:
            engine.snapshot()
    expected = [*NOW[:4], (4, 2**40, 2**41)]
    with after(tmp_path / "bank") as engine:
        assert engine.epoch == 5
        assert engine.sql("select * from ledger order by id").rows() == expected
    path = tmp_path / "bank"
    assert rows(path, "select * from ledger order by id") == expected
    assert rows(path, "select * from ledger order by id", 4) == NOW
    assert rows(path, "select sum(n), count(note) from accounts", 3) == [(19, 5)]
    assert rows(path, "select * from cards", 3) == [(1,)]
    assert durability.verify(path).is_whole


def test_retention_keeps_the_declarations_of_the_epochs_it_keeps(tmp_path: Path) -> None:
    begin(tmp_path / "bank")
    with after(tmp_path / "bank", retain=hg.Retention(snapshots=1)) as engine:
        for number in range(3):
            engine.call(raise_to, id=4, n=number)
            engine.snapshot()
        with pytest.raises(hg.InputError, match="epoch"):
            engine.sql("select * from accounts", epoch=3)
        assert engine.sql("select count(*) from ledger").rows() == [(5,)]
    with after(tmp_path / "bank") as engine:
        assert engine.sql("select count(*) from ledger").rows() == [(5,)]


def test_a_backup_has_both_sides_and_a_restore_the_one_of_its_epoch(tmp_path: Path) -> None:
    begin(tmp_path / "bank")
    with after(tmp_path / "bank") as engine:
        engine.call(raise_to, id=4, n=44)
        durability.backup(tmp_path / "bank", tmp_path / "copy")
    durability.restore(tmp_path / "bank", 3, tmp_path / "old")
    durability.restore(tmp_path / "bank", 4, tmp_path / "new")
    assert rows(tmp_path / "copy", "select n from ledger where id = 4") == [(44,)]
    assert rows(tmp_path / "copy", "select note from accounts where id = 4", 3) == [("x",)]
    with hg.open(tmp_path / "old", tables=[accounts, old_cards], transactions=[put]) as engine:
        assert engine.call(put, id=2, n=5).committed
    with after(tmp_path / "old") as engine:  # and may be migrated again
        assert engine.epoch == 5
        assert engine.get(ledger, 2) == {"id": 2, "n": 5, "twice": 10}
    with after(tmp_path / "new") as engine:
        assert engine.epoch == 4
        assert engine.sql("select * from ledger order by id").rows() == NOW


def test_weak_recovery_goes_on_after_a_migration(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    begin(path, recovery="weak")
    with pytest.raises(hg.StoreError, match=r"epochs 3 to 3 were logged as input.*snapshot"):
        after(path, recovery="weak")
    tables = [accounts, old_cards]
    with hg.open(path, tables=tables, transactions=[put], recovery="weak") as engine:
        engine.snapshot()
    with after(path, recovery="weak") as engine:
        engine.call(raise_to, id=4, n=44)
        engine.call(raise_to, id=9, n=9)
    for _ in range(2):
        with after(path, recovery="weak") as engine:
            expected = [*NOW[:4], (4, 44, 88), (9, 9, 18)]
            assert engine.sql("select * from ledger order by id").rows() == expected
            engine.snapshot()
    assert rows(path, "select n from accounts where id = 1", 3) == [(10,)]


READER = """
import sys, json
from headgate.durability import StoreReader
from headgate.query.store_tables import query_store

reader = StoreReader.open(sys.argv[1])
for line in sys.stdin:
    query, epoch = json.loads(line)
    print(json.dumps(query_store(reader, query, None, epoch).rows()), flush=True)
"""


def test_a_reader_in_another_process_notices(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    begin(path)
    words = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:

        def ask(query: str, epoch: int | None = None) -> Any:
            assert other.stdin is not None and other.stdout is not None
            other.stdin.write(json.dumps([query, epoch]) + "\n")
            other.stdin.flush()
            return json.loads(other.stdout.readline())

        assert ask("select count(note) from accounts") == [[5]]
        with after(path) as engine:
            engine.call(raise_to, id=4, n=44)
            assert ask("select n, twice from ledger where id = 4") == [[44, 88]]
            assert ask("select n, twice from ledger where id = 4", 4) == [[4, 8]]
            assert ask("select n, note from accounts where id = 4", 3) == [[4, "x"]]
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait(30) == 0


def test_an_older_headgate_is_told_to_upgrade(tmp_path: Path) -> None:
    begin(tmp_path / "bank")
    assert StoreReader.open(tmp_path / "bank").manifest["format"] == 1
    hg.migrate(tmp_path / "bank", [CHANGE])
    assert StoreReader.open(tmp_path / "bank").manifest["format"] == 3
