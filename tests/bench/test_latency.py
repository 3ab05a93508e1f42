"""A small run of the benchmark of latency: all ways come to their end; no test of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import latency
from headgate.dataflow import workers


@pytest.mark.parametrize("plot", latency.PLOTS, ids=lambda plot: plot.name)
def test_every_way_takes_every_batch(plot: latency.Plot) -> None:
    found = latency.measure(plot, rounds=1, batches=12, seconds_apart=0.0)
    assert {name: len(each) for name, each in found.items()} == dict.fromkeys(plot.ways, 12)
    assert all(one > 0 for each in found.values() for one in each)
    assert workers.PipeBuffer is latency.PipeBuffer  # what was put in its place is gone
    drawing = latency.drawn(plot, found)
    assert all(name in drawing for name in plot.ways)


def test_the_report_has_all_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "PLOTS", latency.PLOTS[2:3])
    monkeypatch.setattr(latency, "pace", lambda batches: 0.0)
    latency.main(quick=True, out=str(tmp_path))
    assert "figure 13" in (tmp_path / "latency.html").read_text()
    assert (tmp_path / "latency.parquet").exists()
