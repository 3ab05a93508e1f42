"""A small run of the durability benchmark: what it measures and what it says; no test of time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import durability
from bench.durability import Line


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "BATCH_EVENTS", 64)
    monkeypatch.setattr(durability, "THREADS", 2)
    monkeypatch.setattr(durability, "IN_FLIGHT", 8)
    monkeypatch.setattr(durability, "SNAPSHOTS", 2)
    monkeypatch.setattr(durability, "OPENINGS", 1)


def test_every_bar_has_its_line(tmp_path: Path) -> None:
    lines = durability.compare_modes(tmp_path, 12)
    lines += durability.compare_groups(tmp_path, 1)
    lines += durability.measure_big(tmp_path, 2000, 4)
    assert [line.bar for line in lines if line.bar] == [
        "at least 0.6", "at least 5", "at least 20", "at most 2", "at least 0.3",
    ]  # fmt: skip
    assert all(line.verdict in ("met", "NOT MET") for line in lines if line.bar)
    assert not any(line.verdict for line in lines if not line.bar)


def test_opening_needs_the_newest_snapshot_and_the_log_behind_it(tmp_path: Path) -> None:
    durability.measure_big(tmp_path, 500, 3)
    newest, *log = durability.needed_files(tmp_path / "big")
    assert newest[0] == sorted((tmp_path / "big" / "snapshots").glob("*.snapshot"))[-1]
    assert log[-1][0] == sorted((tmp_path / "big" / "log").iterdir())[-1]
    size, _ = durability.read_all([newest, *log])
    assert size == sum(path.stat().st_size - offset for path, offset in [newest, *log])


def test_a_line_says_whether_its_bar_is_met() -> None:
    assert Line("", "", 0.5, least=0.6).verdict == "NOT MET"
    assert Line("", "", 0.6, least=0.6).verdict == "met"
    assert Line("", "", 2.1, most=2).verdict == "NOT MET"
    assert Line("", "", 2.0, most=2).verdict == "met"
    assert Line("", "", 2.0).verdict == ""


def test_a_report_is_refused_where_there_is_none() -> None:
    command = [sys.executable, "-m", "bench", "ledger", "--out", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 2
    assert "the benchmark 'ledger' writes no report" in done.stderr
