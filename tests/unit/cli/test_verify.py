"""The examination of stores: whole ones, torn ones, and damage of every kind with its place."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import headgate as hg
from headgate.cli.commands import app
from headgate.cli.stores import verdict
from headgate.durability import Commit, Report, Retention, Store, StoreReader
from headgate.durability import verify as examine
from tests.unit.cli.bank import open_bank, pay

MANIFEST = {"tables": {"things": {"columns": "id bigint", "key": ["id"], "check": None}}}
SEGMENT_BYTES = 1024


def run(runner: CliRunner, *words: object) -> Result:
    return runner.invoke(app, [str(word) for word in words])


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def segments(store: Path) -> list[Path]:
    return sorted((store / "log").glob("*.log"))


def places(store: Path) -> dict[int, tuple[Path, int]]:
    """Where each epoch's frame begins: its file and offset."""
    commits = StoreReader.open(store).commits()
    return {info.epoch: (Path(info.file), info.offset) for info in commits}


def write_store(
    path: Path, epochs: int, snapshot_at: int | None = None, retain: Retention | None = None
) -> Path:
    """A store in several segments: epoch n writes the one row n."""
    store = Store.open(path, segment_bytes=SEGMENT_BYTES, retain=retain)
    store.recover()
    store.write_manifest(MANIFEST)
    for epoch in range(1, epochs + 1):
        row = pa.record_batch({"__slot": [epoch], "__alive": [True], "id": [epoch]})
        store.commit(Commit(epoch, 0, changes={"things": row}))
        if epoch == snapshot_at:
            image = pa.record_batch({"__slot": range(1, epoch + 1), "id": range(1, epoch + 1)})
            store.snapshot(epoch, {"things": [image]})
    store.close()
    return path


def opens(path: Path) -> int:
    """The epoch at which the store opens; DamageError when it is refused."""
    store = Store.open(path)
    try:
        return store.recover().epoch
    finally:
        store.close()


def test_a_whole_store_is_called_whole(runner: CliRunner, bank: Path) -> None:
    found = run(runner, "verify", bank)
    assert found.exit_code == 0
    assert "whole: opening the store gives epoch 5, nothing is lost" in found.stdout


def test_a_flipped_byte_is_named_by_file_and_offset(runner: CliRunner, bank: Path) -> None:
    file, offset = places(bank)[3]
    flip(file, offset + 200)
    found = run(runner, "verify", bank)
    assert found.exit_code == 1
    assert f"{file} at offset {offset}: the frame does not match its checksum" in found.stdout
    assert "the changes and results of epoch 3 are lost" in found.stdout
    assert "opening the store to write is refused" in found.stdout


def test_the_command_that_it_recommends_reads_what_is_left(runner: CliRunner, bank: Path) -> None:
    file, offset = places(bank)[4]
    flip(file, offset + 100)
    said = run(runner, "verify", bank).stdout
    advice = re.search(r'headgate (sql .* --epoch 3) "select ..."', said)
    assert advice
    found = run(runner, *advice[1].split(), "--format", "csv", "select sum(balance) from accounts")
    assert found.stdout.endswith("\n500\n")


def test_every_flipped_byte_of_the_log_is_noticed(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 6)
    missed = []
    for file in segments(store):
        content = file.read_bytes()
        for offset in range(0, len(content), 61):
            flip(file, offset)
            report = examine(store)
            if report.is_whole or str(file) not in report.damages[0]:
                missed.append((file.name, offset, report.damages))
            file.write_bytes(content)
    assert not missed


def test_damage_in_two_places_is_reported_twice(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 40)
    where = places(store)
    for epoch in (5, 30):
        flip(where[epoch][0], where[epoch][1] + 70)
    report = examine(store)
    assert len(report.damages) == 2
    assert report.lost == [5, 30]
    assert report.readable == list(range(5))


def test_a_damaged_segment_header_loses_no_epoch_of_the_segment(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 40)
    damaged = segments(store)[1]
    flip(damaged, 20)
    report = examine(store)
    assert len(report.damages) == 1
    assert f"{damaged} at offset 0" in report.damages[0]
    assert report.lost == []


def test_a_missing_segment_is_named_with_its_epochs(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 40)
    first, second, third = segments(store)[:3]
    second.unlink()
    report = examine(store)
    assert report.lost == list(range(int(second.stem), int(third.stem)))
    assert first.name in report.damages[0]
    with pytest.raises(hg.DamageError):
        opens(store)


def test_a_missing_first_segment_is_damage(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 40)
    first, second = segments(store)[:2]
    first.unlink()
    report = examine(store)
    assert str(first) in report.damages[0]
    assert report.lost == list(range(1, int(second.stem)))
    assert report.readable == [0]


def test_what_retention_removed_is_no_damage(tmp_path: Path) -> None:
    retain = Retention(snapshots=1)
    store = write_store(tmp_path / "store", 40, snapshot_at=30, retain=retain)
    assert int(segments(store)[0].stem) > 1
    report = examine(store)
    assert (report.is_whole, report.floor, report.lost) == (True, 30, [])
    assert report.readable == list(range(30, 41))


def test_a_damaged_floor_is_damage_that_opening_mends(tmp_path: Path) -> None:
    retain = Retention(snapshots=1)
    store = write_store(tmp_path / "store", 40, snapshot_at=30, retain=retain)
    flip(store / "floor", 10)
    report = examine(store)
    assert len(report.damages) == 1
    assert str(store / "floor") in report.damages[0]
    assert report.readable[-1] == 40
    assert opens(store) == 40
    assert examine(store).is_whole


def test_a_log_cut_before_its_published_end_is_damage(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 6)
    file, offset = places(store)[6]
    file.write_bytes(file.read_bytes()[: offset + 64])
    report = examine(store)
    assert report.lost == [6]
    assert f"{file} at offset {offset}" in report.damages[0]


def test_an_unfinished_tail_is_no_damage(runner: CliRunner, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 6)
    last = segments(store)[-1]
    with last.open("ab") as file:
        file.write(b"HGfr" + b"\x01" * 300)
    found = run(runner, "verify", store)
    assert found.exit_code == 0
    assert f"unfinished bytes in {last.name}" in found.stdout
    assert opens(store) == 6


def test_a_whole_epoch_behind_the_published_one_is_no_damage(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 5)
    head = (store / "head").read_bytes()
    again = Store.open(store)
    again.recover()
    again.append(Commit(6, 0))
    again.close()
    (store / "head").write_bytes(head)
    report = examine(store)
    assert (report.is_whole, report.unpublished) == (True, [6])
    assert "gives epoch 6" in verdict(report, "store")
    assert opens(store) == 6


def test_a_damaged_head_is_damage_that_opening_mends(runner: CliRunner, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 6)
    for offset in (10, 522):
        flip(store / "head", offset)
    found = run(runner, "verify", store)
    assert found.exit_code == 1
    assert f"{store / 'head'} at offset 0" in found.stdout
    assert "opening the store gives epoch 6" in found.stdout
    assert opens(store) == 6
    assert examine(store).is_whole


def test_a_damaged_manifest_is_damage(runner: CliRunner, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 3)
    manifest = store / "manifest.json"
    manifest.write_text(manifest.read_text().replace("things", "thinks"))
    found = run(runner, "verify", store)
    assert found.exit_code == 1
    assert f"{manifest} at offset 0" in found.stdout


def test_a_damaged_snapshot_costs_no_data(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 8, snapshot_at=5)
    (snapshot,) = (store / "snapshots").glob("*.snapshot")
    assert examine(store).snapshots == [5]
    flip(snapshot, 100)
    report = examine(store)
    assert (report.is_whole, report.snapshots, report.lost) == (False, [], [])
    assert str(snapshot) in report.damages[0]
    assert "opening the store gives epoch 8" in verdict(report, "store")
    assert opens(store) == 8


def test_damage_before_a_snapshot_leaves_the_newest_epoch(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 8, snapshot_at=5)
    file, offset = places(store)[3]
    flip(file, offset + 70)
    report = examine(store)
    assert report.lost == [3]
    assert report.readable == [0, 1, 2, 5, 6, 7, 8]
    assert "the tables can be read at epoch 0 to 2, 5 to 8" in verdict(report, "store")
    assert opens(store) == 8


def test_what_it_calls_readable_can_be_read_and_nothing_else(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", 9, snapshot_at=6)
    where = places(store)
    for epoch in (4, 8):
        flip(where[epoch][0], where[epoch][1] + 70)
    report = examine(store)
    assert [epoch for epoch in range(10) if _can_read(store, epoch)] == report.readable


def _can_read(store: Path, epoch: int) -> bool:
    try:
        StoreReader.open(store).table("things", epoch)
    except hg.DamageError:
        return False
    return True


def test_it_changes_nothing(bank: Path) -> None:
    def digest() -> dict[str, str]:
        files = [path for path in bank.rglob("*") if path.is_file()]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    with segments(bank)[-1].open("ab") as file:
        file.write(b"torn")
    before = digest()
    examine(bank)
    assert digest() == before


def test_a_store_is_whole_at_every_moment_of_its_writer(bank: Path) -> None:
    done = threading.Event()
    reports: list[Report] = []

    def look() -> None:
        while not done.is_set():
            reports.append(examine(bank))

    with open_bank(bank) as engine:
        looking = threading.Thread(target=look)
        looking.start()
        for _ in range(60):
            pay(engine, 0, 1, 0.5)
        done.set()
        looking.join()
    assert [report.damages for report in reports if not report.is_whole] == []
    assert len({report.last_epoch for report in reports}) > 1
