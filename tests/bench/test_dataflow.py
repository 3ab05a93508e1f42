"""A small run of the benchmark of dataflows: all ways run to their end; no test of time."""

from __future__ import annotations

from bench import dataflow


def test_nodes_run_alone_in_a_row_and_nested() -> None:
    found = dataflow.measure_nodes(1, pushes=1, chain=2)
    assert set(found) == {"one transaction", "transactions", "nested", "one procedure"}


def test_flows_run_beside_plain_streams_and_windows_by_hand() -> None:
    assert set(dataflow.measure_plain(1, rows=20)) == {"flow", "plain"}
    assert set(dataflow.measure_windows(1, pushes=1, size=20)) == {"native", "by hand"}


def test_stores_of_both_recoveries_and_the_leaderboard_run() -> None:
    assert set(dataflow.measure_recovery(1, pushes=1, chain=2)) == {"strong", "weak"}
    assert set(dataflow.measure_leaderboard(1, votes=2)) == {"votes"}


def test_a_pipeline_runs_on_one_worker_and_on_two() -> None:
    assert set(dataflow.measure_workers(1, batches=2, rows=20)) == {"1 workers", "2 workers"}
