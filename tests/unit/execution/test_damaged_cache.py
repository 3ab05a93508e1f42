"""The compile cache, damaged and forged: nothing of it runs that is not whole and our own."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.io import vault as vaults
from headgate.io.vault import MAGIC, Vault

SOURCE = Path(headgate.__file__).resolve().parent
PROGRAM = """
import numba.core.event as event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)

import headgate as hg

table = hg.Table("t", "id bigint, n bigint DEFAULT 0", key="id", check="n < 1000")

@hg.transaction(event="id bigint, n bigint")
def bump(event, row=table.at("id", create=True), out=hg.output("n bigint")):
    row.n += event.n
    out.n = row.n

engine = hg.open(None, tables=[table], transactions=[bump])
results = [engine.call(bump, id=number % 3, n=number).n for number in range(9)]
print(results, engine.sql("select sum(n)::bigint from t").rows(), len(compiled.buffer))
"""
EXPECTED = "[0, 1, 2, 3, 5, 7, 9, 12, 15] [(36,)]"
# What of an engine uses the cache, without the engine: it is compiled in a fraction of the time.
PARTS = """
import numba.core.event as event

compiled = event.RecordingListener()
event.register("numba:compile", compiled)

import numpy as np
import headgate as hg
from headgate.kernels.building import build_check, check_compiles
from headgate.state import index

table = hg.Table("t", "id bigint, n bigint DEFAULT 0", key="id", check="n < 1000")
check_compiles(table)
words = np.zeros((3, 8), np.int64)
first = build_check(table)(0, words.ctypes.data, 0, 3)
print(first, index.find(np.zeros(16, np.int64), words, 5), len(compiled.buffer))
"""
PARTS_EXPECTED = "-1 -1"


def run(folder: Path, cache: str | None = None, **options: Any) -> tuple[str, int, str]:
    """Run the whole program; what it found, how much it compiled, and what it said beside."""
    return run_program(PROGRAM, folder, cache, **options)


def run_parts(folder: Path, cache: str | None = None) -> tuple[str, int, str]:
    """As `run`, but only the parts that use the cache."""
    return run_program(PARTS, folder, cache)


def run_program(
    program: str, folder: Path, cache: str | None = None, **options: Any
) -> tuple[str, int, str]:
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    environment["HEADGATE_CACHE"] = cache if cache is not None else str(folder / "cache")
    finished = subprocess.run(
        [sys.executable, "-B", "program.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert finished.returncode == 0, finished.stderr
    found, _, count = finished.stdout.strip().rpartition(" ")
    return found, int(count), finished.stderr


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache").rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    found, count, _ = run(folder)
    assert found == EXPECTED and count > 0
    assert run(folder)[:2] == (EXPECTED, 0)
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    found, count, _ = run_parts(folder)
    assert found == PARTS_EXPECTED and count > 0
    assert run_parts(folder)[:2] == (PARTS_EXPECTED, 0)
    assert kinds_of(folder) == {"kernels", "package", "checked"}
    return folder


def kinds_of(folder: Path) -> set[str]:
    return {path.relative_to(folder / "cache").parts[0] for path in files_of(folder)}


# ---------------------------------------------------------------- damage

Damage = Callable[[bytes], bytes]


def _flip(place: float) -> Damage:
    def damage(content: bytes) -> bytes:
        at = min(int(len(content) * place), len(content) - 1)
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]

    return damage


DAMAGES: list[Damage] = [
    lambda content: b"",
    lambda content: content[:1],
    lambda content: content[:30],
    lambda content: content[: len(content) // 2],
    lambda content: content[:-1],
    lambda content: bytes(len(content)),
    lambda content: content[: len(content) // 3] + bytes(len(content) - len(content) // 3),
    lambda content: content + b"x",
    *(_flip(place) for place in (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)),
]


def test_a_damaged_file_is_compiled_again_and_mended(warm: Path) -> None:
    """Every file at once, each in another way."""
    files = files_of(warm)
    assert kinds_of(warm) == {"kernels", "package", "checked"} and len(files) > 10
    for number, path in enumerate(files):
        path.write_bytes(DAMAGES[number % len(DAMAGES)](path.read_bytes()))
    found, count, _ = run(warm)
    assert found == EXPECTED and count > 0
    assert run(warm)[:2] == (EXPECTED, 0)


@pytest.mark.parametrize("round_", range(3))
def test_damage_of_any_kind_is_noticed_in_every_file(
    warm: Path, tmp_path: Path, round_: int
) -> None:
    cache = Path(shutil.copytree(warm / "cache", tmp_path / "cache"))
    for path in files_of(tmp_path):
        content, name = path.read_bytes(), str(path.relative_to(cache))
        assert Vault(cache).read(name) is not None
        for damage in DAMAGES[round_::3]:
            path.write_bytes(damage(content))
            assert Vault(cache).read(name) is None


def test_two_files_that_changed_places_are_not_taken(warm: Path, parts: Path) -> None:
    for folder in (warm, parts):
        files = [path for path in files_of(folder) if path.suffix == ".code"]
        contents = [path.read_bytes() for path in files]
        assert len(files) > 1
        for path, content in zip(files, contents[1:] + contents[:1], strict=True):
            path.write_bytes(content)
            name = str(path.relative_to(folder / "cache"))
            assert Vault(folder / "cache").read(name) is None
    found, count, _ = run_parts(parts)
    assert found == PARTS_EXPECTED and count > 0
    assert run_parts(parts)[:2] == (PARTS_EXPECTED, 0)


def test_no_bit_of_a_file_can_change_unnoticed(tmp_path: Path) -> None:
    vault, payload = Vault(tmp_path / "v"), bytes(range(100))
    assert vault.write("a/b", payload) and vault.read("a/b") == payload
    path = tmp_path / "v" / "a" / "b"
    content = path.read_bytes()
    assert content.startswith(MAGIC)
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            assert vault.read("a/b") is None
        path.write_bytes(content[:place])
        assert vault.read("a/b") is None
        path.write_bytes(content[:place] + bytes(len(content) - place))
        assert vault.read("a/b") is None or content[place:] == bytes(len(content) - place)
    assert vault.write("a/b", payload) and vault.read("a/b") == payload
    assert [one.name for one in path.parent.iterdir()] == ["b"]


# ---------------------------------------------------------------- others


class Evil:
    """What an attacker leaves in a cache: unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self._trace}",)


@pytest.fixture
def forged(parts: Path, tmp_path: Path) -> Iterator[Path]:
    """A cache whose files are whole, but run something when they are read."""
    for path in files_of(parts):
        name = str(path.relative_to(parts / "cache"))
        target = tmp_path / "cache" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        payload = pickle.dumps(Evil(tmp_path / "trace"))
        target.write_bytes(MAGIC + vaults._digest(name, payload) + payload)
    yield tmp_path


def test_a_forged_file_of_our_own_would_run(forged: Path) -> None:
    """So the next tests would see it."""
    assert run_parts(forged)[0] == PARTS_EXPECTED
    assert (forged / "trace").exists()


def as_others_left_it(folder: Path, how: str) -> None:
    cache = folder / "cache"
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    if how == "owner of all":
        for path in [*folders, *files_of(folder)]:
            os.chown(path, 65534, 65534)
    elif how == "owner of the files":
        for path in files_of(folder):
            os.chown(path, 65534, 65534)
    elif how == "others may write to the root":
        cache.chmod(0o777)
    elif how == "the group may write to the folders":
        for path in folders[1:]:
            path.chmod(0o770)
    else:
        for path in files_of(folder):
            path.chmod(0o666)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    "how",
    [
        "owner of all",
        "owner of the files",
        "others may write to the root",
        "the group may write to the folders",
        "others may write to the files",
    ],
)
def test_what_others_can_write_is_not_used_and_one_warning_says_so(forged: Path, how: str) -> None:
    as_others_left_it(forged, how)
    found, count, said = run_parts(forged)
    assert found == PARTS_EXPECTED and count > 0
    assert not (forged / "trace").exists()
    assert len(re.findall("the compile cache is not used", said)) == 1, said
    assert str(forged / "cache") in said


def test_folders_that_we_make_are_ours_alone(warm: Path) -> None:
    cache = warm / "cache"
    for path in [cache, *cache.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0


def test_a_link_in_the_cache_is_not_followed(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "v")
    assert vault.write("a/b", b"x")
    (tmp_path / "v" / "a" / "b").rename(tmp_path / "elsewhere")
    (tmp_path / "v" / "a" / "b").symlink_to(tmp_path / "elsewhere")
    assert vault.read("a/b") is None
    (tmp_path / "v" / "a").rename(tmp_path / "folder")
    (tmp_path / "v" / "a").symlink_to(tmp_path / "folder")
    assert vault.read("a/b") is None
    assert not vault.write("a/b", b"y")


def test_a_fifo_in_the_cache_holds_no_one_up(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "v")
    assert vault.write("b", b"x")
    (tmp_path / "v" / "b").unlink()
    os.mkfifo(tmp_path / "v" / "b")
    assert vault.read("b") is None


def test_the_warning_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "_warned", set())
    vault = Vault(tmp_path / "v")
    assert vault.write("a", b"x")
    (tmp_path / "v").chmod(0o777)
    with caplog.at_level(logging.WARNING, "headgate"):
        assert vault.read("a") is None and not vault.write("b", b"y")
    assert len(caplog.records) == 1 and "chmod go-w" in caplog.text


# ---------------------------------------------------------------- no folder


@pytest.mark.parametrize("where", ["file", "file/cache", "/dev/null", "/dev/null/x"])
def test_with_no_folder_to_write_to_everything_runs_from_memory(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = str(tmp_path / where)
    found, count, said = run_parts(tmp_path, cache)
    assert found == PARTS_EXPECTED and count > 0
    assert said.count("\n") == 1 and "the compile cache is not used" in said, said
    assert cache in said and "HEADGATE_CACHE" in said
    assert (tmp_path / "file").read_text() == "not a folder"


def test_folders_in_the_places_of_files_cost_one_warning(parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts / "cache", tmp_path / "cache")
    files = files_of(tmp_path)
    for path in files:
        path.unlink()
        path.mkdir(mode=0o700)
    found, count, said = run_parts(tmp_path)
    assert found == PARTS_EXPECTED and count > 0
    assert said.count("\n") == 1 and "the compile cache is not used" in said, said
    assert any(f"{path} is a folder" in said for path in files)


def test_files_in_the_places_of_folders_cost_one_warning(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    for name in ("kernels", "package", "checked"):
        (tmp_path / "cache" / name).write_text("")
    found, count, said = run_parts(tmp_path)
    assert found == PARTS_EXPECTED and count > 0
    assert said.count("\n") == 1 and "is not a folder" in said, said


def test_a_cache_that_is_not_there_yet_is_no_reason_to_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "_warned", set())
    vault = Vault(tmp_path / "v" / "w")
    assert vault.read("a") is None
    assert vault.write("b", b"x") and vault.read("a") is None and vault.read("b") == b"x"
    assert caplog.text == ""


def test_a_full_disk_is_a_reason_to_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(vaults, "_warned", set())
    monkeypatch.setattr(vaults, "_replace", full)
    assert not Vault(tmp_path / "v").write("a", b"x")
    assert not Vault(tmp_path / "v").write("b", b"x")
    assert caplog.text.count("No space left") == 1


def test_no_home_makes_no_folder_where_the_process_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "_warned", set())
    monkeypatch.chdir(tmp_path)
    assert not Vault(Path("~/.cache/headgate")).write("a", b"x")
    assert list(tmp_path.iterdir()) == []
    assert "no home" in caplog.text and "HEADGATE_CACHE" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes someone else")
def test_a_user_who_can_write_nowhere_imports_and_runs() -> None:
    """A home that cannot be written, a package that belongs to root."""
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
    command = [sys.executable, "-c", "import numba"]
    try:
        subprocess.run(command, check=True, capture_output=True, cwd="/", **nobody)
    except (subprocess.CalledProcessError, OSError):
        pytest.skip("this Python is closed to others")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        found, count, _ = run(Path(name), f"{name}/cache", **nobody)
    assert found == EXPECTED and count > 0


def test_all_cached_functions_of_the_package_are_verified() -> None:
    """A module that takes Numba itself would get Numba's cache, which is not."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if re.search(r"^@numba\.njit\(.*cache=True", text, re.MULTILINE):
            taken = r"from headgate\.state\.compiled import [\w, ]*\bnumba\b"
            assert re.search(taken, text), path
            assert not re.search(r"^import numba\b", text, re.MULTILINE), path
