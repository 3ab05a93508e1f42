"""Files of two histories in one folder, and things that are no files: refused by all, in words.

A copy that a plain `cp` made has the lineage of its original; when both go on, only the chain of
checksums tells their files apart.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.commands import app
from headgate.durability import StoreReader, backup, restore, verify
from headgate.durability import format as layout
from headgate.durability.log_record import commit_of
from headgate.durability.scan import LogReader
from headgate.errors import DamageError, HeadgateError
from headgate.io import RealDisk
from headgate.query.store_tables import query_store

things = hg.Table("things", "id bigint, v bigint", key="id")


@hg.transaction(event="id bigint, v bigint", compiled=False)
def put(event: hg.Event, thing: hg.Row = things.at("id", create=True)) -> None:
    thing.v = event.v


def opened(path: Path, recovery: str = "strong") -> hg.Engine:
    return hg.open(str(path), tables=[things], transactions=[put], recovery=recovery)


def live(path: Path, keys: list[int], snapshot_at: int | None = None, **options: str) -> None:
    with opened(path, **options) as engine:
        for key in keys:
            engine.call(put, id=key, v=key)
            if engine.epoch == snapshot_at:
                engine.snapshot()


def diverged(folder: Path, snapshot_at: int, **options: str) -> tuple[Path, Path]:
    """A store of epochs 1 to 5 and a copy of its first epoch that went on by itself."""
    mine, other = folder / "mine", folder / "other"
    live(mine, [1], **options)
    shutil.copytree(mine, other)
    live(mine, [2, 3, 4, 5], **options)
    live(other, [702, 703, 704, 705], snapshot_at, **options)
    return mine, other


def answers(path: Path, to: Path) -> dict[str, Callable[[], object]]:
    """Every way to the rows of a store."""
    store = str(path)
    return {
        "open": lambda: opened(path).close(),
        "sql": lambda: query_store(StoreReader.open(store), "select id from things").rows(),
        "slots": lambda: StoreReader.open(store).table("things", None, (0, 3)),
        "backup": lambda: backup(store, str(to / "copy")),
        "restore": lambda: restore(store, 5, str(to / "old")),
    }


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("epoch", [3, 5])
def test_a_snapshot_of_a_copy_that_went_on_by_itself_is_refused(
    tmp_path: Path, epoch: int, recovery: str
) -> None:
    mine, other = diverged(tmp_path, epoch, recovery=recovery)
    name = Path(layout.SNAPSHOT_FOLDER, layout.snapshot_name(epoch))
    shutil.copy(other / name, mine / name)
    for what, ask in answers(mine, tmp_path).items():
        with pytest.raises(DamageError, match=rf"{name}.*two histories"):
            ask()
        assert what
    report = verify(mine)
    assert report.is_mixed and not report.is_whole
    os.remove(mine / name)
    assert verify(mine).is_whole
    with opened(mine, recovery) as engine:
        assert engine.sql("select id from things order by id").rows() == [(n,) for n in range(1, 6)]


def test_a_past_epoch_is_not_read_from_the_snapshot_of_a_copy(tmp_path: Path) -> None:
    mine, other = diverged(tmp_path, 3)
    name = Path(layout.SNAPSHOT_FOLDER, layout.snapshot_name(3))
    shutil.copy(other / name, mine / name)
    with pytest.raises(DamageError, match="two histories"):
        query_store(StoreReader.open(mine), "select id from things", epoch=3)
    with pytest.raises(DamageError, match="two histories"):
        restore(mine, 3, tmp_path / "old")
    found = query_store(StoreReader.open(mine), "select id from things", epoch=2).rows()
    assert sorted(found) == [(1,), (2,)]


def test_the_log_of_a_copy_that_went_on_by_itself_is_refused(tmp_path: Path) -> None:
    mine, other = diverged(tmp_path, 0)
    shutil.rmtree(mine / "log")
    shutil.copytree(other / "log", mine / "log")
    for ask in answers(mine, tmp_path).values():
        with pytest.raises(DamageError, match="epoch 5 is not the frame that was published"):
            ask()
    with pytest.raises(DamageError, match="not the frame that was published"):
        list(StoreReader.open(mine).results(4, 5))
    assert not verify(mine).is_whole


def test_a_snapshot_beyond_a_log_that_was_put_back_is_found_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "store"
    live(path, [1, 2])
    kept = tmp_path / "kept"
    shutil.copytree(path, kept)
    live(path, [3, 4], 4)
    for name in ("log", "head"):
        target = path / name
        shutil.rmtree(target) if target.is_dir() else os.remove(target)
    shutil.copytree(kept / "log", path / "log")
    shutil.copy(kept / "head", path / "head")
    report = verify(path)
    assert [one for one in report.damages if "the log ends before it" in one]
    with pytest.raises(HeadgateError):
        opened(path)


LOG = f"log/{layout.segment_name(1)}"


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else os.remove(path)


SURGERY: dict[str, Callable[[Path], None]] = {
    "no log folder": lambda store: _remove(store / "log"),
    "no snapshots folder": lambda store: _remove(store / "snapshots"),
    "no manifest": lambda store: _remove(store / "manifest.json"),
    **{
        f"{name} is {kind}": lambda store, name=name, make=make: (  # type: ignore[misc]
            _remove(store / name),
            make(store / name),
        )
        for name in ("log", "snapshots", "readers", "head", "manifest.json", LOG)
        for kind, make in {
            "a file": lambda path: path.write_text(""),
            "a folder": os.mkdir,
            "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
            "a link to itself": lambda path: path.symlink_to(path),
            "a pipe": os.mkfifo,
        }.items()
    },
}
COMMANDS = ("verify", "backup", "restore", "sql", "tables", "log")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store"
    live(path, [1, 2, 3, 4], 3)
    return path


@pytest.mark.parametrize("what", SURGERY)
def test_a_thing_in_a_files_place_is_an_error_in_words_or_no_matter(
    what: str, whole: Path, tmp_path: Path
) -> None:
    for command in (*COMMANDS, "open"):
        store, to = tmp_path / command, tmp_path / f"{command}-copy"
        shutil.copytree(whole, store)
        SURGERY[what](store)
        more = {
            "backup": [str(to)],
            "restore": ["--epoch", "2", "--to", str(to)],
            "sql": ["select count(*) as n from things"],
        }
        if command == "open":
            with contextlib.suppress(HeadgateError):
                opened(store).close()
            continue
        ran = CliRunner().invoke(app, [command, str(store), *more.get(command, [])])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), (command, ran)
        assert command != "sql" or ran.exit_code or "4" in ran.output


@pytest.mark.parametrize("name", ["lock", "readers"])
def test_verify_sees_what_keeps_a_store_from_being_opened(
    name: str, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "store")
    path = tmp_path / "store" / name
    _remove(path)
    path.mkdir() if name == "lock" else path.write_text("")
    assert not verify(tmp_path / "store").is_whole
    with pytest.raises(HeadgateError):
        opened(tmp_path / "store")


def test_logged_input_that_does_not_say_how_it_was_run_is_damage(tmp_path: Path) -> None:
    """Each byte of it changed in turn, under right checksums."""
    live(tmp_path / "store", [1], recovery="weak")
    log = tmp_path / "store" / LOG
    content = log.read_bytes()
    header = layout.parse_frame_header(content[64:128])
    assert header is not None
    found = next(LogReader(RealDisk(), str(log.parent)).frames(layout.BEGINNING, 1))
    assert commit_of(found.header, found.payload).input is not None
    for place in range(128, len(content), 3):
        payload = bytearray(content[128:])
        payload[place - 128] ^= 4
        covered = layout.frame_header(1, header.time_us, 0, len(payload), header.previous)
        checksum = layout.frame_checksum(bytes(payload), covered, header.previous)
        sealed = layout.sealed_frame_header(covered, checksum)
        log.write_bytes(content[:64] + sealed + bytes(payload))
        (tmp_path / "store" / "head").unlink(missing_ok=True)
        try:
            opened(tmp_path / "store", "weak").close()
        except HeadgateError:
            continue


def test_a_child_is_not_told_to_take_over_the_store_of_its_parent(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as engine:
        engine.call(put, id=1, v=1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                opened(tmp_path / "store")
            except BaseException as error:
                said = str(error)
            os.write(writing, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reading, 10_000).decode()
        os.close(reading)
        os.close(writing)
        assert "store" in said and "takeover" not in said
        engine.call(put, id=2, v=2)
