"""The pages as programs: Python and commands that say so run, in order; every command exists.

Each page has a folder, a namespace and a session of Spark to itself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

import headgate
from headgate.cli.commands import app
from headgate.engine.metrics import Metrics, StreamMetrics, Times
from tests.docs.blocks import Block, blocks_of
from tests.docs.pages import PAGES, ROOT, name_of

# The blocks start Spark as a user would; a small and quiet one is the environment's business.
SPARK = (
    "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false "
    "--conf spark.ui.showConsoleProgress=false --conf spark.sql.shuffle.partitions=2 "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "
    "--conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 "
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN "
    "pyspark-shell"
)
LANGUAGES = {"python", "sh", "text"}


def programs(page: Path) -> list[Block]:
    return [block for block in blocks_of(page.read_text()) if block.runs]


BLOCKS = [(page, block) for page in PAGES for block in programs(page)]


class Running:
    """Pages that one process runs, one after another; who asks for one waits for no later one."""

    def __init__(self, pages: Sequence[Path], folder: Path) -> None:
        self._pages = list(pages)
        self._found: dict[tuple[int, int], str | None] = {}
        words = [sys.executable, "-m", "tests.docs.page_program", *map(str, self._pages)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
        sources = Path(headgate.__path__[0]).parent
        paths = os.pathsep.join([str(sources), str(ROOT)])
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is closed in `end`
        self._process = subprocess.Popen(
            words,
            cwd=folder,
            env={**kept, "PYTHONPATH": paths, "PYSPARK_SUBMIT_ARGS": SPARK},
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def errors(self, page: Path) -> dict[int, str | None]:
        """The error of every block of a page, by its line."""
        number = self._pages.index(page)
        places = [(number, block.line) for block in programs(page)]
        assert self._process.stdout is not None
        while not all(place in self._found for place in places):
            line = self._process.stdout.readline()
            if not line:
                break
            if line.startswith('{"page"'):
                entry = json.loads(line)
                self._found[entry["page"], entry["line"]] = entry["error"]
        self._said.seek(0)
        missing = f"the program ended before this block:\n{self._said.read()[-3000:]}"
        return {line: self._found.get((number, line), missing) for number, line in places}

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


def run_page(page: Path, folder: Path) -> dict[int, str | None]:
    """The error of every block by its line, after one run of the whole page."""
    folder.mkdir()
    running = Running([page], folder)
    try:
        return running.errors(page)
    finally:
        running.end()


@pytest.fixture(scope="module")
def errors(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], dict[int, str | None]]]:
    """The errors of a page; all that are asked for run from the first one on."""
    asked = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    pages = {one["page"] for one in asked if "block" in one}
    running = Running([page for page in PAGES if page in pages], tmp_path_factory.mktemp("pages"))
    yield cache(running.errors)
    running.end()


def block_name(value: object) -> str:
    return f"line {value.line}" if isinstance(value, Block) else name_of(value)  # type: ignore


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=block_name)
def test_a_block_runs(page: Path, block: Block, errors) -> None:  # type: ignore
    assert errors(page)[block.line] is None, errors(page)[block.line]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks_of(page.read_text())} <= LANGUAGES


def test_there_are_programs_to_run() -> None:
    assert len(BLOCKS) > 20 and len({page for page, _ in BLOCKS}) >= 10


def test_a_block_that_fails_and_a_test_that_fails_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    found = run_page(page, tmp_path / "first")
    assert found[1] is None and "AssertionError" in str(found[5])
    page.write_text("```python\ndef test_it():\n    assert 1 == 2\n```\n")
    assert "1 failed" in str(run_page(page, tmp_path / "second")[1])
    page.write_text("```sh run\nheadgate tables no-store\n```\n")
    assert "headgate tables no-store" in str(run_page(page, tmp_path / "third")[1])


# ---------------------------------------------------------------- commands and files


def commands() -> list[tuple[str, list[str]]]:
    """Every command in the shell blocks and in the text, with the line it stands in."""
    found = []
    for page in PAGES:
        for block in blocks_of(page.read_text()):
            if block.language == "sh":
                for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
                    found.append((f"{name_of(page)}:{number}", shlex.split(line, comments=True)))
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            for command in re.findall(r"`((?:\./run|headgate) [^`]*)`", line):
                found.append((f"{name_of(page)}:{number}", shlex.split(command)))
    return [(place, words) for place, words in found if words]


@pytest.mark.parametrize(("place", "words"), commands(), ids=lambda value: str(value)[:50])
def test_a_named_command_exists(place: str, words: list[str]) -> None:
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
    assert not words or words[0] == "--version", f"{place}: no command {words}"


def _check_options(words: list[str]) -> None:
    command = get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    asked = {word for word in words if word.startswith("--") and word != "--help"}
    assert asked <= known


def sections_without_command(text: str) -> list[str]:
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return [found.splitlines()[0] for found in sections if not re.search(r"`\./run \w+", found)]


def test_every_figure_names_the_command_that_makes_it() -> None:
    assert sections_without_command((ROOT / "docs" / "figures.md").read_text()) == []
    assert sections_without_command("# F\n## Speed\nIt is fast.\n") == ["Speed"]


@pytest.mark.parametrize("kind", [Metrics, StreamMetrics, Times])
def test_every_attribute_of_the_metrics_is_named_where_operations_are_told(kind: type) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    names = [one.name for one in fields(kind) if one.name != "buckets"]  # these are Prometheus'
    assert [name for name in names if f"`{name}`" not in page] == []
