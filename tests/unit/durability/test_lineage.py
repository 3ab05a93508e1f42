"""Files of two stores, or of two histories of one, are never read together."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader, backup, restore, verify
from headgate.durability import format as layout
from headgate.errors import DamageError, HeadgateError
from headgate.testing.disk import SimulatedDisk

accounts = hg.Table("accounts", "id bigint, name string, balance decimal(12,2)", key="id")


@hg.transaction(event="ts timestamp, id bigint, name string, amount decimal(12,2)", compiled=False)
def put(event, account=accounts.at("id", create=True), out=hg.output("left decimal(12,2)")):
    account.name = event.name
    account.balance = account.balance + event.amount
    out.left = account.balance


PROGRAM: dict[str, Any] = {"tables": [accounts], "transactions": [put]}


def add(engine: hg.Engine, key: int, amount: str = "1.00") -> None:
    engine.call(put, ts=datetime(2024, 1, 1), id=key, name="x", amount=Decimal(amount))


def make(path: Path, epochs: int, snapshot: bool = True) -> None:
    with hg.open(path, **PROGRAM) as engine:
        for number in range(epochs):
            add(engine, number)
            if snapshot and number == 1:
                assert engine._journal.store is not None
                engine._journal.store.snapshot()


def refused(path: Path) -> None:
    """Writer, reader and examination all name the file."""
    looks: list[Callable[[], Any]] = [
        lambda: hg.open(path, **PROGRAM),
        lambda: StoreReader.open(path).table("accounts"),
    ]
    for look in looks:
        with pytest.raises(DamageError, match=r"mixed|format 1"):
            look()
    report = verify(path)
    assert any("mixed" in damage or "format 1" in damage for damage in report.damages)


@pytest.mark.parametrize("name", ["manifest.json", "head", "log", "snapshots"])
def test_a_file_of_another_store_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path / "one", 4)
    make(tmp_path / "two", 4)
    source, target = tmp_path / "one" / name, tmp_path / "two" / name
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)
    refused(tmp_path / "two")


def test_a_backup_copied_over_a_store_that_went_on_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "bank", 4)
    backup(tmp_path / "bank", tmp_path / "copy")
    make(tmp_path / "bank", 6, snapshot=False)
    shutil.copytree(tmp_path / "copy", tmp_path / "bank", dirs_exist_ok=True)
    refused(tmp_path / "bank")


def test_a_copy_is_the_same_store_of_another_lineage(tmp_path: Path) -> None:
    make(tmp_path / "bank", 4)
    backup(tmp_path / "bank", tmp_path / "copy")
    restore(tmp_path / "bank", 3, tmp_path / "past")
    said = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in
            ("bank", "copy", "past")]  # fmt: skip
    assert len({one["store"] for one in said}) == 1
    assert len({one["lineage"] for one in said}) == 3
    for name in ("copy", "past"):
        with hg.open(tmp_path / name, **PROGRAM) as engine:
            add(engine, 99)
        assert verify(tmp_path / name).is_whole


def test_copies_by_the_system_that_went_on_apart_do_not_mix(tmp_path: Path) -> None:
    """They have one lineage; the chain of checksums tells them apart."""
    make(tmp_path / "one", 3)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    make(tmp_path / "one", 2, snapshot=False)
    with hg.open(tmp_path / "two", **PROGRAM) as engine:
        add(engine, 50)
    with hg.open(tmp_path / "two", **PROGRAM) as engine:
        add(engine, 51)
    newest = max((tmp_path / "two" / "log").iterdir())
    (tmp_path / "one" / "log" / newest.name).unlink(missing_ok=True)
    shutil.copy(newest, tmp_path / "one" / "log")
    with pytest.raises(HeadgateError):
        hg.open(tmp_path / "one", **PROGRAM)
    assert not verify(tmp_path / "one").is_whole


def test_a_log_without_its_manifest_is_damage_and_never_a_new_store(tmp_path: Path) -> None:
    make(tmp_path / "bank", 3)
    (tmp_path / "bank" / "manifest.json").unlink()
    before = sorted(str(path) for path in (tmp_path / "bank").rglob("*"))
    looks: list[Callable[[], Any]] = [
        lambda: hg.open(tmp_path / "bank", **PROGRAM),
        lambda: StoreReader.open(tmp_path / "bank"),
        lambda: verify(tmp_path / "bank"),
    ]
    for look in looks:
        with pytest.raises(DamageError, match="manifest is missing beside a log"):
            look()
    assert sorted(str(path) for path in (tmp_path / "bank").rglob("*")) == before


def test_damage_in_either_slot_of_the_head_is_reported_and_mended() -> None:
    for offset in layout.HEAD_SLOT_OFFSETS:
        disk = SimulatedDisk()
        with hg.open("/bank", **PROGRAM, disk=disk) as engine:
            for number in range(3):
                add(engine, number)
        content = bytearray(disk.content("/bank/head"))
        content[offset + 20] ^= 1
        disk.replace("/bank/head", bytes(content))
        with pytest.raises(DamageError, match="slot of the head"):
            StoreReader.open("/bank", disk).last_epoch()
        assert any(f"offset {offset}" in damage for damage in verify("/bank", disk).damages)
        with hg.open("/bank", **PROGRAM, disk=disk) as engine:
            assert engine.epoch == 3
        assert StoreReader.open("/bank", disk).last_epoch() == 3
        assert verify("/bank", disk).is_whole


# --- stores of older formats, made by the code that wrote them ------------------------------------

ROWS = {
    0: "11.75", 1: "13.75", 2: "14.75", 3: "11.75", 4: "11.75", 5: "1.25",
}  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return extracted("format1.zip", tmp_path / "bank")


def extracted(name: str, path: Path) -> Path:
    for folder in ("log", "snapshots", "readers"):
        (path / folder).mkdir(parents=True)
    with zipfile.ZipFile(Path(__file__).with_name(name)) as archive:
        archive.extractall(path)
    return path


def rows_of(engine: hg.Engine, epoch: int | None = None) -> dict[int, str]:
    found = engine.sql("select * from accounts", epoch=epoch).arrow().to_pylist()
    return {row["id"]: str(row["balance"]) for row in found}


def test_a_store_of_format_1_can_be_read_before_it_is_carried_over(old: Path) -> None:
    reader = StoreReader.open(old)
    assert reader.last_epoch() == 10
    assert reader.table("accounts").num_rows == 6
    assert len(list(reader.commits())) == 10
    assert verify(old).is_whole


def test_a_store_of_format_1_is_carried_over_when_it_is_opened(old: Path) -> None:
    with hg.open(old, **PROGRAM) as engine:
        assert engine.epoch == 10
        assert rows_of(engine) == ROWS
        before = rows_of(engine, 3)
        assert before[0] == "11.75" and before[1] == "11.75" and before[2] == "10.50"
        again = engine.call_once(
            "key", put, ts=datetime(2024, 1, 1, 0, 0, 9), id=1, name="once", amount=Decimal("2.00")
        )
        assert again.epoch == 8
        options = {"order_by": "ts", "watermark": "5 seconds", "name": "held"}
        assert engine.flush(put, **options).num_rows == 2
        add(engine, 7)
        assert engine._journal.store is not None
        engine._journal.store.snapshot()
        add(engine, 8)
    manifest = json.loads((old / "manifest.json").read_text())
    assert manifest["headgate"] == layout.VERSION and manifest["carried"] == 10
    assert verify(old).is_whole
    with hg.open(old, **PROGRAM) as engine:
        assert engine.epoch == 13
        assert rows_of(engine) == {**ROWS, 30: "14.00", 7: "1.00", 8: "1.00"}
        assert rows_of(engine, 10) == ROWS
    backup(old, old.parent / "copy")
    with hg.open(old.parent / "copy", **PROGRAM) as engine:
        assert rows_of(engine, 10) == ROWS


def test_a_file_of_format_1_does_not_fit_into_a_newer_store(old: Path, tmp_path: Path) -> None:
    make(tmp_path / "new", 12)
    shutil.copy(old / "snapshots" / "00000000000000000008.snapshot", tmp_path / "new" / "snapshots")
    refused(tmp_path / "new")


def test_a_store_of_format_2_goes_on_in_the_new_one(tmp_path: Path) -> None:
    path = extracted("format2.zip", tmp_path / "bank")
    assert verify(path).is_whole
    reader = StoreReader.open(path)
    assert reader.last_epoch() == 9 and reader.table("accounts", 6).num_rows == 60
    before = {epoch: batch.to_pylist() for epoch, batch in reader.results(1, 9)}
    with hg.open(path, **PROGRAM) as engine:
        assert engine.sql("select sum(balance), count(*) from accounts").rows() == [
            (Decimal("129.50"), 60)
        ]
        told = {"ts": datetime(2024, 1, 1, 0, 0, 9), "id": 1, "name": "once"}
        assert engine.call_once("key", put, **told, amount=Decimal("2.00")).epoch == 7
        options = {"order_by": "ts", "watermark": "5 seconds", "name": "held"}
        assert engine.flush(put, **options).num_rows == 2
        add(engine, 70)
        assert rows_of(engine, 5) == dict.fromkeys(range(5), "10.50")
    assert verify(path).is_whole
    found = {epoch: batch.to_pylist() for epoch, batch in StoreReader.open(path).results(1, 9)}
    assert found == before
    backup(path, tmp_path / "copy")
    with hg.open(tmp_path / "copy", **PROGRAM) as engine:
        assert engine.epoch == 11
        assert rows_of(engine, 5) == dict.fromkeys(range(5), "10.50")


def test_a_store_of_format_3_goes_on_in_the_new_one(tmp_path: Path) -> None:
    """It has short epochs, which were packed, and long ones; all of them are of whole rows."""
    path = extracted("format3.zip", tmp_path / "bank")
    assert verify(path).is_whole
    reader = StoreReader.open(path)
    assert reader.last_epoch() == 9 and reader.table("accounts", 6).num_rows == 60
    results = {epoch: batch.to_pylist() for epoch, batch in reader.results(1, 9)}
    tables = [reader.table("accounts", epoch).to_pylist() for epoch in range(10)]
    query = "select sum(balance), count(*) from accounts"
    with hg.open(path, **PROGRAM) as engine:
        assert engine.sql(query).rows() == [(Decimal("139.50"), 60)]
        assert engine.sql(query, epoch=6).rows() == [(Decimal("127.50"), 60)]
        told = {"ts": datetime(2024, 1, 1, 0, 0, 9), "id": 1, "name": "once"}
        assert engine.call_once("key", put, **told, amount=Decimal("2.00")).epoch == 7
        options = {"order_by": "ts", "watermark": "5 seconds", "name": "held"}
        assert engine.flush(put, **options).num_rows == 2
        add(engine, 4)  # a row of the old files, of which the new ones have no key
        add(engine, 70)
        after = rows_of(engine)
        assert engine._journal.store is not None
        engine._journal.store.snapshot()
        add(engine, 4)
    assert verify(path).is_whole
    reader = StoreReader.open(path)
    assert {epoch: batch.to_pylist() for epoch, batch in reader.results(1, 9)} == results
    assert [reader.table("accounts", epoch).to_pylist() for epoch in range(10)] == tables
    backup(path, tmp_path / "copy")
    for store in (path, tmp_path / "copy"):
        with hg.open(store, **PROGRAM) as engine:
            assert engine.epoch == 13
            assert rows_of(engine, 12) == after
            assert rows_of(engine) == {**after, 4: str(Decimal(after[4]) + 1)}
