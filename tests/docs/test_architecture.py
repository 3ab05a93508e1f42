"""ARCHITECTURE.md names every file of the package, and none that is not there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headgate"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()


def existing(package: Path) -> set[str]:
    """The modules below a package; a folder's own `__init__` is spoken of once for all."""
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    return {name for name in files if not name.endswith("/__init__.py")}


def drafts(package: Path) -> set[str]:
    """The modules that git does not have yet: whoever commits one gives it its line."""
    if not (ROOT / ".git").exists():
        return set()
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard", "."]
    listing = subprocess.run(command, cwd=package, check=True, capture_output=True)
    return {name for name in listing.stdout.decode().split("\0") if name}


def named(text: str) -> set[str]:
    """The modules that a text names in backquotes, below the package."""
    found = set(re.findall(r"`([\w/]+\.py)`", text))
    return {name for name in found if name.split("/")[0] not in ("tests", "apps", "bench")}


def described(text: str) -> list[str]:
    """The modules with a line of their own in a table of files."""
    return re.findall(r"^\| `([\w/]+\.py)` \| \S", text, re.MULTILINE)


def test_every_file_has_its_line() -> None:
    assert existing(PACKAGE) - drafts(PACKAGE) - set(described(TEXT)) == set()


def test_no_file_has_two_lines() -> None:
    lines = described(TEXT)
    assert sorted(lines) == sorted(set(lines))


def test_no_file_is_named_that_is_not_there() -> None:
    assert named(TEXT) - existing(PACKAGE) == set()


def test_other_files_it_names_exist() -> None:
    others = re.findall(r"`((?:tests|apps|bench)/[\w/.]*|\w+\.md)`", TEXT)
    assert others
    assert [name for name in others if not (ROOT / name).exists()] == []


def test_a_file_too_many_and_one_too_few_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for name in ("engine.py", "state/__init__.py", "state/rows.py"):
        (tmp_path / name).touch()
    text = "see `engine.py` and `state/gone.py`\n| `engine.py` | the engine |\n"
    assert existing(tmp_path) - set(described(text)) == {"state/rows.py"}
    assert named(text) - existing(tmp_path) == {"state/gone.py"}
