"""`headgate calibrate`: measures with the real kernels, keeps the costs, and shows old and new."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headgate.cli.commands import app
from headgate.lab import measuring
from headgate.parallel import decision as calibration
from headgate.parallel.decision import Thresholds, load_thresholds, save_thresholds


def test_every_cost_is_measured_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "costs.json"
    monkeypatch.setenv(calibration.VARIABLE, str(path))
    before = replace(Thresholds(), barrier_ns=123456.0)
    save_thresholds(before, path)
    found = CliRunner().invoke(app, ["calibrate", "--seconds", "0"])
    assert found.exit_code == 0, found.output
    kept = load_thresholds(tmp_path)
    assert json.loads(path.read_text())["thresholds"] == asdict(kept)
    for field in fields(Thresholds):
        value = getattr(kept, field.name)
        assert math.isfinite(value) and value > 0, field.name
        assert f"{value:,.6g}" in found.output
    assert "123,456" in found.output
    assert str(path) in found.output
    assert kept.plan_ns_per_operation != before.plan_ns_per_operation
    assert kept.unit_plan_ns_per_operation != before.unit_plan_ns_per_operation
    assert kept.speedup_min == before.speedup_min  # a wish, not a cost


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("switches", [0, 1])
def test_costs_of_threads_count_only_when_the_threads_had_their_cores(
    switches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measuring.spend
    monkeypatch.setattr(measuring, "spend", lambda action: replace(real(action), switches=switches))
    before = Thresholds(abort_ns=1.5, start_ns=2.5, barrier_ns=3.5, signal_ns=0.5)
    found, was_busy = measuring.measure_thresholds(before, 0.0)
    assert was_busy == bool(switches)
    for name in ("abort_ns", "start_ns", "barrier_ns", "signal_ns"):
        assert (getattr(found, name) == getattr(before, name)) == was_busy
    assert found.plan_ns_per_operation != before.plan_ns_per_operation
