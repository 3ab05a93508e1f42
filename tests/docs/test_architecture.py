"""ARCHITECTURE.md: its list of files is what the docstrings say, and its prose names what is there.

The list is written by `docs/file_list.py` from the first sentence of each module.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.file_list import BEGIN, END, PACKAGE, STYLE, file_list, first_sentence, layers, with_list

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
WRITE_IT = (
    "the file list of ARCHITECTURE.md is old: run `./run format` or `python docs/file_list.py`"
)


def existing(package: Path) -> set[str]:
    return {path.relative_to(package).as_posix() for path in package.rglob("*.py")}


def named(text: str) -> set[str]:
    """The modules that a text names in backquotes, below the package."""
    found = set(re.findall(r"`([\w/]+\.py)`", text))
    elsewhere = ("tests", "apps", "bench", "docs", "src")
    return {name for name in found if name.split("/")[0] not in elsewhere}


def test_the_file_list_is_what_the_docstrings_say() -> None:
    assert with_list(TEXT, file_list()) == TEXT, WRITE_IT


def test_every_file_has_one_line() -> None:
    lines = re.findall(r"^\| `([\w/]*)(\.py|/)` \| \S", file_list(), re.MULTILINE)
    names = sorted(name + "/__init__" if end == "/" else name for name, end in lines)
    assert [f"{name}.py" for name in names] == sorted(existing(PACKAGE))


def test_the_rooms_stand_in_the_order_of_their_imports() -> None:
    rooms = re.findall(r"^\| `(\w+)/` \|.*\n\|---", file_list(), re.MULTILINE)
    order = [name for name in layers(STYLE) if name in rooms]
    assert rooms[: len(order)] == order and len(order) > 10


def test_no_file_is_named_that_is_not_there() -> None:
    assert named(TEXT) - existing(PACKAGE) == set()


def test_other_files_it_names_exist() -> None:
    others = re.findall(r"`((?:tests|apps|bench|docs|src)/[\w/.-]*|\w+\.md)`", TEXT)
    assert others
    assert [name for name in others if not (ROOT / name).exists()] == []


def test_a_changed_sentence_and_a_new_file_change_the_list(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "__init__.py").write_text('"""Names."""')
    (tmp_path / "state" / "__init__.py").write_text('"""State: what rows are."""')
    rows = tmp_path / "state" / "rows.py"
    rows.write_text('"""Rows: as of 6.1.1, a | b.\nMore of them."""')
    seen = file_list(tmp_path)
    assert "| `state/rows.py` | Rows: as of 6.1.1, a \\| b |" in seen
    rows.write_text('"""Rows: others."""')
    assert file_list(tmp_path) != seen
    (tmp_path / "state" / "index.py").write_text('"""The index."""')
    assert "| `state/index.py` | The index |" in file_list(tmp_path)


def test_what_is_outside_the_markers_stays() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_list(text, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(SystemExit, match="lacks its markers"):
        with_list("no markers", "new\n")


def test_a_name_that_is_gone_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text('"""The engine."""')
    assert named("see `engine.py` and `state/gone.py`") - existing(tmp_path) == {"state/gone.py"}
    assert first_sentence(tmp_path / "engine.py") == "The engine"
