"""The engine on its store: one writer, a known format, a full disk: clear words and no loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability.manifest import read_manifest, write_manifest
from headgate.engine.declaring.declarations import FORMAT
from headgate.testing import SimulatedClock, SimulatedDisk

accounts = hg.Table("accounts", "id bigint, n bigint, note string", key="id")


@hg.transaction(event="id bigint, n bigint, note string", compiled=False)
def put(event, row=accounts.at("id", create=True), out=hg.output("total bigint")):
    row.n += event.n
    row.note = event.note
    out.total = row.n


def opened(path: Any, **options: Any) -> hg.Engine:
    return hg.open(path, tables=[accounts], transactions=[put], **options)


def events(count: int, note: str = "") -> list[dict[str, Any]]:
    return [
        {"id": number % 50, "n": 1, "note": note or f"note {number}"} for number in range(count)
    ]


def total(engine: hg.Engine) -> int:
    return int(engine.sql("select coalesce(sum(n), 0)::bigint from accounts").rows()[0][0])


# --- one writer -----------------------------------------------------------------------------------

SECOND = """
import sys
import headgate as hg
try:
    hg.open(sys.argv[1])
except hg.LockedError as error:
    print(error)
"""


def run_python(program: str, *arguments: str) -> str:
    source = str(Path(hg.__file__).resolve().parents[1])
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_a_second_process_is_told_who_writes_and_disturbs_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as engine:
        engine.run(put, events(10))
        message = run_python(SECOND, str(tmp_path / "store"))
        assert str(os.getpid()) in message and "store" in message
        engine.run(put, events(10))
        assert total(engine) == 20
    assert run_python(SECOND, str(tmp_path / "store")) == ""


def test_a_second_engine_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "store"), pytest.raises(hg.LockedError):
        opened(tmp_path / "store")
    opened(tmp_path / "store").close()


def test_a_program_that_fails_to_open_leaves_the_store_free(tmp_path: Path) -> None:
    opened(tmp_path / "store").close()
    other = hg.Table("accounts", "id bigint, n bigint, note string", key="id", check="n > 0")
    with pytest.raises(hg.DeclarationError, match="table 'accounts': the program declares check"):
        hg.open(tmp_path / "store", tables=[other])
    opened(tmp_path / "store").close()


# --- the format -----------------------------------------------------------------------------------


def test_a_store_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as engine:
        engine.run(put, events(5))
    manifest = path / "manifest.json"
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**found, "headgate": 999}))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(hg.FormatError, match="999"):
        opened(path)
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert {name: data for name, data in before.items() if name.name != "lock"} == {
        name: data for name, data in after.items() if name.name != "lock"
    }
    manifest.write_text(json.dumps(found))
    with opened(path) as engine:
        assert total(engine) == 5


def test_declarations_of_a_newer_format_are_refused() -> None:
    disk = SimulatedDisk()
    opened("/store", disk=disk).close()
    manifest = read_manifest(disk, "/store/manifest.json")
    newer = {**manifest, "format": FORMAT + 1}
    write_manifest(disk, "/store/manifest.json", newer)
    with pytest.raises(hg.FormatError, match=r"(?i)upgrade"):
        opened("/store", disk=disk)
    assert read_manifest(disk, "/store/manifest.json") == newer


def test_tables_of_the_store_need_not_be_declared(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as engine:
        engine.run(put, events(5))
    with hg.open(tmp_path / "store") as engine:
        assert engine.tables["accounts"] == accounts
        assert total(engine) == 5


DIFFERENCES = {
    "columns": hg.Table("accounts", "id bigint, n int, note string", key="id"),
    "key": hg.Table("accounts", "id bigint, n bigint, note string", key="id, note"),
    "check": hg.Table("accounts", "id bigint, n bigint, note string", key="id", check="n > 0"),
}


@pytest.mark.parametrize("part", DIFFERENCES)
def test_a_table_that_is_declared_otherwise_is_refused(tmp_path: Path, part: str) -> None:
    opened(tmp_path / "store").close()
    with pytest.raises(hg.DeclarationError) as refused:
        hg.open(tmp_path / "store", tables=[DIFFERENCES[part]])
    assert "table 'accounts'" in str(refused.value) and part[:-1] in str(refused.value)


# --- a full disk ----------------------------------------------------------------------------------


def used(disk: SimulatedDisk) -> int:
    return sum(len(disk.content(path)) for path in disk.paths())


def test_a_full_disk_stops_the_engine_and_keeps_what_was_committed() -> None:
    disk = SimulatedDisk()
    engine = opened("/store", disk=disk, clock=SimulatedClock())
    engine.run(put, events(20))
    disk.capacity_bytes = used(disk) + 2_000
    with pytest.raises(hg.StoreError, match=r"(?i)no space|full"):
        for number in range(1_000):
            engine.run(put, events(200, note=f"{number}" * 400))
    for attempt in (lambda: engine.run(put, events(1)), lambda: engine.sql("select 1")):
        with pytest.raises(hg.StoreError, match=r"open it again|reopen"):
            attempt()
    engine.close()
    disk.capacity_bytes = None
    with opened("/store", disk=disk, clock=SimulatedClock()) as again:
        committed = total(again)
        assert committed >= 20 and (committed - 20) % 200 == 0
        again.run(put, events(3))
        assert total(again) == committed + 3


# --- the end --------------------------------------------------------------------------------------


def test_a_closed_engine_says_so_and_may_be_closed_twice(tmp_path: Path) -> None:
    engine = opened(tmp_path / "store")
    engine.close()
    engine.close()
    calls: list[Any] = [
        lambda: engine.run(put, events(1)),
        lambda: engine.call(put, id=1, n=1, note=""),
        lambda: engine.load(accounts, []),
        lambda: engine.sql("select 1"),
    ]
    for call in calls:
        with pytest.raises(hg.StoreError, match="the engine is stopped: it was closed; open it"):
            call()


def test_what_an_engine_looks_like(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as engine:
        assert repr(engine) == f"<engine {tmp_path / 'store'} at epoch 0: accounts, put>"
    with opened(None) as engine:
        assert repr(engine) == "<engine in memory at epoch 0: accounts, put>"


def test_slots_of_deleted_rows_are_used_again_across_stops(tmp_path: Path) -> None:
    @hg.transaction(event="id bigint", compiled=False)
    def drop(event, row=accounts.at("id")):
        hg.delete(row)

    for start in range(4):
        engine = hg.open(tmp_path / "store", tables=[accounts], transactions=[put, drop])
        for number in range(10):
            keys = range(100 * start + 10 * number, 100 * start + 10 * number + 10)
            engine.run(put, [{"id": key, "n": 1, "note": "x"} for key in keys])
            engine.run(drop, [{"id": key} for key in keys])
        assert engine._memory.rows["accounts"].count <= 10
        engine.close()
