"""The demo, whole, in a process of its own: what it shows, what it leaves, what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.demo import MARKER, forget_last_commit
from headgate.errors import InputError
from headgate.spark import session

EVENTS = 6000
FILES = 6


def headgate(
    environment: dict[str, str], folder: Path, *words: object
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headgate.cli", *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def demo(
    tmp_path_factory: pytest.TempPathFactory, program_environment: dict[str, str]
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder in which the demo ran, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    options = ["--folder", "here", "--events", EVENTS, "--files", FILES]
    wide = {**program_environment, "COLUMNS": "200"}
    return folder, headgate(wide, folder, "demo", *options)


def test_the_demo_ends_well_and_quietly(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, said = demo
    assert (said.returncode, said.stderr) == (0, "")


def test_it_shows_that_a_micro_batch_came_again_and_was_recognised(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, said = demo
    assert "Spark sent micro-batch 2 again, the store knew it as epoch 5" in said.stdout
    assert "ran none of it twice" in said.stdout


def test_it_shows_its_claims_and_all_hold(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, said = demo
    assert "✓ accounts: the total is conserved" in said.stdout
    assert "✓ assets: the total is conserved" in said.stdout
    assert f"{EVENTS:,} events, {EVENTS:,} results of {EVENTS:,} events" in said.stdout
    assert "✓ queries see whole epochs" in said.stdout
    assert "✗" not in said.stdout
    assert "insufficient funds" in said.stdout
    assert "Top accounts" in said.stdout


def test_the_commands_it_recommends_work(
    demo: tuple[Path, subprocess.CompletedProcess[str]], program_environment: dict[str, str]
) -> None:
    folder, said = demo
    query = "select count(*) n, count(distinct event) d from results"
    found = headgate(program_environment, folder, "sql", "here/bank", "--format", "json", query)
    assert json.loads(found.stdout) == [{"n": EVENTS, "d": EVENTS}]
    assert "headgate verify here/bank" in said.stdout
    assert headgate(program_environment, folder, "verify", "here/bank").returncode == 0
    log = headgate(program_environment, folder, "log", "here/bank").stdout
    assert log.count(", batch ") == FILES


# ---------------------------------------------------------------- what it refuses


def test_it_never_empties_a_folder_that_it_did_not_make(
    tmp_path: Path, program_environment: dict[str, str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    said = headgate(program_environment, tmp_path, "demo", "--folder", ".")
    assert said.returncode == 1
    assert "is not empty and no demo made it" in said.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_without_java_it_says_what_to_install(
    tmp_path: Path, program_environment: dict[str, str]
) -> None:
    without = {**program_environment, "PATH": str(tmp_path)}
    without.pop("JAVA_HOME", None)
    said = headgate(without, tmp_path, "demo")
    assert said.returncode == 1
    assert said.stderr.startswith("error: Spark needs Java 17 or newer and none is on PATH")
    assert "apt-get install" in said.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "accepted"), [('"1.8.0_402"', False), ('"11.0.2"', False), ('"21-ea"', True)]
)
def test_an_old_java_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, accepted: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version {version} 2024-01-16' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if accepted:
        session.require_java()
        return
    with pytest.raises(InputError, match=r"is Java (8|11)"):
        session.require_java()


def test_a_second_demo_takes_the_place_of_the_first(tmp_path: Path) -> None:
    from headgate.cli.demo import _fresh

    _fresh(tmp_path / "here")
    (tmp_path / "here" / "bank").mkdir()
    _fresh(tmp_path / "here")
    assert os.listdir(tmp_path / "here") == [MARKER]


@pytest.mark.parametrize("noted", [True, False])
def test_the_last_commit_is_forgotten_whether_spark_noted_it_or_not(
    tmp_path: Path, noted: bool
) -> None:
    for folder, count in (("offsets", 3), ("commits", 3 if noted else 2)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / str(number)).touch()
            (tmp_path / folder / f".{number}.crc").touch()
    assert forget_last_commit(tmp_path) == 2
    left = sorted(path.name for path in (tmp_path / "commits").iterdir())
    assert left == [".0.crc", ".1.crc", "0", "1"]
