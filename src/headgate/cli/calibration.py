"""`headgate calibrate`: what planning, threads and aborts cost here, measured and kept.

How it is measured is in lab/measuring.py; who uses it, in parallel/decision.py.
"""

from __future__ import annotations

from dataclasses import fields

from headgate.cli.output import make_console, make_grid
from headgate.lab.measuring import measure_thresholds
from headgate.parallel.decision import (
    Thresholds,
    calibration_path,
    check_place,
    load_thresholds,
    save_thresholds,
)
from headgate.state.compiled import cache_folder


def run_calibration(seconds: float) -> None:
    """Measure, keep the costs, and show them beside those that held before."""
    path = calibration_path(cache_folder())
    check_place(path)
    before = load_thresholds(cache_folder())
    console = make_console()
    with console.status("measuring planning, threads, barriers, signals, versions and aborts"):
        measured, was_busy = measure_thresholds(before, seconds)
    save_thresholds(measured, path)
    sides = {"cost": "left", "before": "right", "now": "right"}
    grid = make_grid("Costs in nanoseconds", sides)
    for field in fields(Thresholds):
        old, new = getattr(before, field.name), getattr(measured, field.name)
        grid.add_row(field.name, f"{old:,.6g}", f"{new:,.6g}")
    console.print(grid)
    console.print(f"Kept in {path}; engines of new processes use it")
    if was_busy:
        console.print(
            "Other programs held the cores, so the costs of threads stay as they were: "
            "try again when the machine is idle"
        )
