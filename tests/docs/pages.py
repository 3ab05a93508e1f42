"""The documents that run: the README and every page of docs/."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Documents with links, but no programs.
OTHERS = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
