"""A small run of the benchmark of dataflows: all ways run to their end; no test of time."""

from __future__ import annotations

import pytest

from bench import dataflow, kept_windows, leaderboards


def test_nodes_run_alone_in_a_row_and_nested() -> None:
    found = dataflow.measure_nodes(1, pushes=1, chain=2)
    assert set(found) == {"one transaction", "transactions", "nested", "one procedure"}


def test_flows_run_beside_plain_streams_and_windows_by_hand() -> None:
    for in_store in (False, True):
        found = dataflow.measure_plain(1, rows=20, in_store=in_store)
        assert set(found) == {"flow", "unrecorded", "plain"}
    assert set(dataflow.measure_windows(1, pushes=1, size=20)) == {"native", "by hand"}
    assert set(kept_windows.measure(1, size=20, pushes=1)) == {
        kept_windows.OVER_BATCH, kept_windows.OVER_KEPT, kept_windows.KEPT_ALONE,
        kept_windows.NO_WINDOW, kept_windows.BARE,
    }  # fmt: skip


def test_stores_of_both_recoveries_run() -> None:
    found = dataflow.measure_recovery(1, pushes=1, chain=2)
    assert set(found) == {"strong", "each synced", "weak"}


def test_leaderboards_come_to_what_plain_python_has_with_and_without_postgresql(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = leaderboards.measure(1, few=40, many=400)  # which compares, and raises
    here = {leaderboards.CHUNKED, leaderboards.ALONE}
    there = {leaderboards.IN_ORDER, leaderboards.STATEMENTS, leaderboards.IN_NONE}
    has_peer = "is not installed" not in capsys.readouterr().out
    assert set(found) == (here | there if has_peer else here)


def test_a_leaderboard_of_another_show_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"losers": [1], "tallies": {}, "ballots": 0}
    monkeypatch.setattr(leaderboards.leaderboard, "found", lambda engine: wrong)
    with pytest.raises(leaderboards.WrongBoard):
        leaderboards.measure(0, few=1, many=2)


def test_a_pipeline_runs_on_one_worker_and_on_two() -> None:
    assert set(dataflow.measure_workers(1, batches=2, rows=20)) == {
        "1 workers", "2 workers", "1 bare", "2 bare",
    }  # fmt: skip


def test_a_flow_and_a_plain_stream_are_sinks_of_one_query() -> None:
    assert set(dataflow.measure_sinks(1, rows=20)) == {"flow", "unrecorded", "plain"}
