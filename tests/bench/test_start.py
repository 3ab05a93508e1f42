"""A small run of the start benchmark: its programs run to their results; no test of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import start


@pytest.mark.parametrize("name", start.PROGRAMS)
def test_a_start_comes_to_its_results(name: str, tmp_path: Path) -> None:
    assert start.start(start.PROGRAMS[name], tmp_path, tmp_path / "cache") > 0


def test_a_program_that_fails_is_not_timed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed with 3"):
        start.start("raise SystemExit(3)", tmp_path, tmp_path / "cache")
