"""The README as a program: every Python block runs, in order, and every command it names exists."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import headgate
from headgate.cli.commands import app
from tests.docs.blocks import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCKS = list(blocks_of(README.read_text()))
PROGRAMS = [block for block in BLOCKS if block.language == "python"]
SHELLS = [block for block in BLOCKS if block.language == "sh"]
# The blocks start Spark as a user would; a small and quiet one is the environment's business.
SPARK = (
    "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false "
    "--conf spark.ui.showConsoleProgress=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "
    "--conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 pyspark-shell"
)


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str | None]:
    """The error of every block by its line, after one run of the whole README."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    sources = Path(headgate.__path__[0]).parent
    paths = os.pathsep.join([str(sources), str(ROOT)])
    finished = subprocess.run(
        [sys.executable, "-m", "tests.docs.readme_program", str(README)],
        cwd=tmp_path_factory.mktemp("readme"),
        env={**kept, "PYTHONPATH": paths, "PYSPARK_SUBMIT_ARGS": SPARK},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"line"')]
    found = {entry["line"]: entry["error"] for entry in map(json.loads, lines)}
    missing = f"the program ended before this block:\n{finished.stderr[-3000:]}"
    return {block.line: found.get(block.line, missing) for block in PROGRAMS}


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"line {block.line}")
def test_a_python_block_runs(block: Block, errors: dict[int, str | None]) -> None:
    assert errors[block.line] is None, errors[block.line]


def test_every_block_says_what_it_is() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh", "text"}
    assert len(PROGRAMS) > 5


def commands() -> list[tuple[int, list[str]]]:
    """Every command in the shell blocks and in the text, with the line it stands in."""
    found = []
    for block in SHELLS:
        for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
            found.append((number, shlex.split(line, comments=True)))
    for number, line in enumerate(README.read_text().splitlines(), start=1):
        for command in re.findall(r"`((?:\./run|headgate) [^`]*)`", line):
            found.append((number, shlex.split(command)))
    return [(line, words) for line, words in found if words]


@pytest.mark.parametrize(("line", "words"), commands(), ids=lambda value: str(value)[:50])
def test_a_named_command_exists(line: int, words: list[str]) -> None:
    assert all((ROOT / word).exists() for word in words if word.startswith(("tests/", "apps/")))
    if words[0] == "./run":
        known = set(re.findall(r"^    ([\w| -]+)\)", (ROOT / "run").read_text(), re.MULTILINE))
        assert words[1] in {word.strip() for group in known for word in group.split("|")}
        words = words[1:] if words[1] in ("headgate", "demo") else []
    if words[:1] == ["headgate"]:
        words = words[1:]
    if words and words[0] in get_command(app).commands:  # type: ignore[attr-defined]
        _check_options(words)
        return
    assert not words or words[0] == "--version", f"line {line}: no command {words}"


def _check_options(words: list[str]) -> None:
    command = get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    asked = {word for word in words if word.startswith("--") and word != "--help"}
    assert asked <= known


@pytest.mark.parametrize("name", re.findall(r"`((?:apps|src|tests)/[\w/.]+)`", README.read_text()))
def test_a_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists()
