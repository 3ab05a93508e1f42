"""A small run of the server benchmark: both servers answer every request; no test of time."""

from __future__ import annotations

import pytest

from bench import server


def test_calls_and_echoes_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    load = server.Load.__call__
    # Each turn takes all cores for as long as it lasts.
    monkeypatch.setattr(server.Load, "__call__", lambda self, *to: load(self, *to[:-1], to[-1] / 3))
    figures = server.measure(quick=True)
    assert figures.echo_per_second > 0
    assert figures.call_per_second > 0 and figures.keyed_per_second > 0
    assert figures.memory_per_second > 0 and figures.memory_ratio > 0
    assert figures.ratio > 0 and figures.keyed_ratio > 0
