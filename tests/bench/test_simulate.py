"""A small run of the benchmark of the simulation: said and seen for every strategy and thread."""

from __future__ import annotations

import math

from bench import simulate
from bench.workloads import make_workload
from headgate.lab.measuring import Spent
from headgate.lab.simulation import critical_path_ns
from headgate.parallel.decision import Thresholds

STRATEGIES = ("serial", "ready", "ready-operation")


def test_every_strategy_is_said_and_seen_on_one_thread_and_on_two() -> None:
    workload = make_workload("ledger", keys=200, batch_events=64, events=192, cost_us=1.0)
    batch, measured = simulate.measure_application(workload, 2, Thresholds(), STRATEGIES)
    assert batch.operations.units == 64
    longest_ns = critical_path_ns(batch, is_by_units=True)
    assert 0 < longest_ns <= batch.unit_factor * batch.serial_ns
    rows = simulate.compare("ledger", batch, measured, Thresholds())
    assert [(row.strategy, row.threads) for row in rows] == [
        ("ready", 1), ("ready", 2), ("ready-operation", 1), ("ready-operation", 2),
    ]  # fmt: skip
    for row in rows:
        assert row.threads == 2 or row.measured is not None  # two may never have had two cores
        if row.measured is not None and row.error is not None:
            assert row.measured > 0
            assert math.isclose((1 + row.error) * row.measured, row.predicted)


def test_a_run_whose_threads_had_to_wait_for_a_core_is_not_counted() -> None:
    shared = Spent(wall_ns=1000, processor_ns=1200, switches=3)
    own = Spent(wall_ns=1100, processor_ns=2100, switches=0)
    assert simulate._quickest_ns([shared], 2) is None
    assert simulate._quickest_ns([shared, own], 2) == 1100
    assert simulate._quickest_ns([Spent(5000, 900, 2), Spent(950, 950, 0)], 1) == 900
