"""A small run of the benchmark of windows: all sizes and periods run to their end."""

from __future__ import annotations

from bench import windows


def test_windows_of_all_sizes_run_in_turn() -> None:
    assert set(windows.measure_sizes(1, (10, 100), 50)) == {"10", "100"}


def test_updates_run_with_windows_and_without() -> None:
    assert set(windows.measure_periods(1, (10, 20), 60)) == {"10", "20", "none", "bare"}
