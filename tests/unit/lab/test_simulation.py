"""The simulation keeps to what no schedule can beat, and agrees with what a hand can compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InputError
from headgate.kernels.shares import RUN_EVENTS
from headgate.lab.simulation import (
    STRATEGIES,
    PlannedBatch,
    critical_path_ns,
    plan_batch,
    simulate,
    speedups,
    with_units,
)
from headgate.parallel.decision import Thresholds
from tests.unit.parallel.units import Unit, linked

FREE = Thresholds(
    plan_ns_per_operation=0, unit_plan_ns_per_operation=0, version_ns_per_operation=0,
    abort_ns=0, start_ns=0, barrier_ns=0, signal_ns=0, share_ns_per_operation=0, share_start_ns=0,
    thread_ns=0,
)  # fmt: skip
BY_UNITS = [name for name in STRATEGIES if name.endswith(("operation", "chain")) or "tst" in name]
ROWS = 5
parts = st.tuples(st.integers(0, ROWS - 1), st.lists(st.integers(0, ROWS - 1), max_size=2))
transactions = st.lists(
    st.lists(parts, min_size=1, max_size=3, unique_by=lambda unit: unit[0]), min_size=1, max_size=12
)


def planned(
    given: Sequence[Sequence[Unit]], rows: int, work: Sequence[float] | float = 100.0
) -> PlannedBatch:
    work_ns = np.full(len(given), work) if isinstance(work, float) else np.array(work, float)
    return replace(plan_batch(linked(given, rows), 1.0), work_ns=work_ns)


@st.composite
def batches(draw: st.DrawFn) -> PlannedBatch:
    found = draw(transactions)
    work = draw(st.lists(st.integers(1, 50), min_size=len(found), max_size=len(found)))
    return planned(found, ROWS, [float(one) for one in work])


# ---------------------------------------------------------------- what always holds


@given(batches(), st.integers(1, 9))
def test_no_strategy_beats_the_longest_path_or_an_even_share_of_the_work(
    batch: PlannedBatch, cores: int
) -> None:
    for strategy in STRATEGIES:
        is_by_units = strategy in BY_UNITS
        work = float(batch.unit_ns.sum()) if is_by_units else batch.serial_ns
        path = critical_path_ns(batch, is_by_units)
        if strategy == "lwm":  # a writer does not wait for readers, so not every edge counts
            path = float(batch.work_ns.max())
        makespan = simulate(batch, strategy, cores, FREE)
        assert makespan >= max(work / cores, path) - 1e-6, strategy


@given(batches())
def test_one_core_takes_the_whole_work_and_not_more_when_all_else_is_free(
    batch: PlannedBatch,
) -> None:
    for strategy in STRATEGIES:
        work = float(batch.unit_ns.sum()) if strategy in BY_UNITS else batch.serial_ns
        assert simulate(batch, strategy, 1, FREE) == pytest.approx(work), strategy


@given(batches(), st.integers(2, 8))
def test_more_cores_never_take_longer_than_one_when_all_else_is_free(
    batch: PlannedBatch, cores: int
) -> None:
    for strategy in STRATEGIES:
        one, many = (simulate(batch, strategy, count, FREE) for count in (1, cores))
        assert many <= one + 1e-6, strategy


@given(batches(), st.integers(1, 8))
def test_what_hands_out_ready_tasks_stays_within_grahams_bound(
    batch: PlannedBatch, cores: int
) -> None:
    """At most work / cores + (1 - 1 / cores) * longest path: an anomaly is never worse."""
    makespan = simulate(batch, "ready-operation", cores, FREE)
    path, work = critical_path_ns(batch, is_by_units=True), float(batch.unit_ns.sum())
    assert makespan <= work / cores + (1 - 1 / cores) * path + 1e-6


@given(transactions, st.integers(1, 8))
def test_with_equal_work_one_core_more_never_hurts_turns_and_strata(
    given: list[list[Unit]], cores: int
) -> None:
    batch = planned(given, ROWS)
    for strategy in ("serial", "strata", "lal", "lwm"):
        fewer, more = (simulate(batch, strategy, count, FREE) for count in (cores, cores + 1))
        assert more <= fewer + 1e-6, strategy


COSTS = [
    field for field in Thresholds.__dataclass_fields__ if field.endswith(("_ns", "_per_operation"))
]


@given(batches(), st.sampled_from(COSTS))
def test_a_cost_never_makes_one_core_faster(batch: PlannedBatch, field: str) -> None:
    dear = replace(FREE, **{field: 25.0})
    for strategy in STRATEGIES:
        assert simulate(batch, strategy, 1, dear) >= simulate(batch, strategy, 1, FREE) - 1e-6


# ---------------------------------------------------------------- by hand

ONE_ROW: list[list[Unit]] = [[(0, [])]] * 6
APART: list[list[Unit]] = [[(row, [])] for row in range(6)]
# A transfer 0 -> 1, one 2 -> 3, and one 1 -> 2: as wholes the third waits for both.
TRANSFERS: list[list[Unit]] = [[(0, []), (1, [])], [(2, []), (3, [])], [(1, []), (2, [1])]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_six_on_one_row_cannot_be_shared(strategy: str) -> None:
    assert simulate(planned(ONE_ROW, 1), strategy, 4, FREE) == 600


UNCUT = ("serial", "shares")  # nothing, or blocks of more than six


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in UNCUT])
def test_six_apart_take_two_rounds_on_three_cores(strategy: str) -> None:
    assert simulate(planned(APART, 6), strategy, 3, FREE) == 200


def test_shares_take_blocks_as_they_come_and_wait_for_those_that_wrote_their_rows() -> None:
    apart = planned([[(row, [])] for row in range(3 * RUN_EVENTS)], 3 * RUN_EVENTS)
    block_ns = 100 * RUN_EVENTS
    assert simulate(apart, "shares", 2, FREE) == 2 * block_ns
    assert simulate(apart, "shares", 3, FREE) == block_ns
    alike = planned([[(row % RUN_EVENTS, [])] for row in range(2 * RUN_EVENTS)], RUN_EVENTS)
    assert simulate(alike, "shares", 2, FREE) == 2 * block_ns  # each waits for the whole block


def test_shares_meet_twice_in_a_section_and_plan_together() -> None:
    apart = planned([[(row, [])] for row in range(2 * RUN_EVENTS)], 2 * RUN_EVENTS)
    block_ns = 100 * RUN_EVENTS
    met = replace(FREE, barrier_ns=7)
    assert simulate(apart, "shares", 2, met) == block_ns + 14
    assert simulate(apart, "shares", 1, met) == 2 * block_ns
    late = replace(FREE, share_start_ns=1000, thread_ns=50)
    assert simulate(apart, "shares", 2, late) == block_ns + 1000
    assert simulate(apart, "shares", 4, late) == block_ns + 1100
    dear = replace(FREE, share_ns_per_operation=10)
    least_ns = block_ns + 10 * 2 * RUN_EVENTS / 2
    assert least_ns <= simulate(apart, "shares", 2, dear) < 2 * block_ns


def test_whole_transfers_wait_for_each_other_and_their_operations_do_not() -> None:
    batch = planned(TRANSFERS, 4)  # 100 each, 50 an operation
    assert simulate(batch, "ready", 2, FREE) == 200
    assert simulate(batch, "ready-operation", 4, FREE) == 100  # all four, then both of the third
    assert simulate(batch, "ready-operation", 2, FREE) == 150
    assert simulate(batch, "strata-operation", 4, FREE) == 100


def test_a_stratum_ends_when_its_slowest_does() -> None:
    # 0 and 1 are alone; 2 and 3 follow them. Work 10, 40, 40, 10.
    batch = planned([[(0, [])], [(1, [])], [(0, [])], [(1, [])]], 2, [10, 40, 40, 10])
    assert simulate(batch, "strata", 2, FREE) == 80
    assert simulate(batch, "ready", 2, FREE) == 50
    assert simulate(batch, "depth", 2, FREE) == 50
    assert simulate(batch, "strata", 2, replace(FREE, barrier_ns=7)) == 94
    assert simulate(batch, "strata", 1, replace(FREE, barrier_ns=7)) == 100


def test_turns_are_handed_on_after_the_locks_or_before_the_versions() -> None:
    # The second waits for the first's row; the third is free, but its turn comes after the second.
    batch = planned([[(0, [])], [(0, [])], [(1, [])]], 2)
    assert simulate(batch, "lal", 3, FREE) == 200
    assert simulate(batch, "lwm", 3, FREE) == 200
    blocked = planned([[(0, [])], [(0, [])], [(1, [])], [(1, [])]], 2)
    assert simulate(blocked, "lal", 4, FREE) == 300  # the third locks when the second has its own
    assert simulate(blocked, "lwm", 4, FREE) == 200  # and here it need not wait for that


def test_a_writer_waits_for_readers_of_a_lock_and_not_of_a_version() -> None:
    batch = planned([[(None, [0])], [(0, [])]], 1)
    assert simulate(batch, "lal", 2, FREE) == 200
    assert simulate(batch, "lwm", 2, FREE) == 100
    assert simulate(batch, "ready", 2, FREE) == 200
    assert simulate(batch, "ready-operation", 2, FREE) == 100


def test_rows_of_one_partition_wait_for_each_other_though_they_differ() -> None:
    # On two cores there are 16 partitions: rows 0 and 16 share one, 0 and 1 do not.
    assert simulate(planned([[(0, [])], [(16, [])]], 17), "pat", 2, FREE) == 200
    assert simulate(planned([[(0, [])], [(1, [])]], 17), "pat", 2, FREE) == 100


def test_chains_of_a_pool_of_ones_own_are_not_taken_by_others() -> None:
    # Chains 0 and 2 are in the first pool of two; all work is there.
    batch = planned([[(0, [])], [(1, [])], [(2, [])]], 3, [100, 10, 100])
    assert simulate(batch, "tstream-nothing", 2, FREE) == 200
    assert simulate(batch, "tstream", 2, FREE) == 110


def test_threads_start_one_after_another() -> None:
    late = replace(FREE, start_ns=2000)  # of two: they come after 1000 and 2000
    batch = planned(APART, 6)
    assert simulate(batch, "ready", 2, late) == 1600  # over before the second comes
    assert simulate(batch, "depth", 2, late) == 2300  # whose share waits for it all the same
    assert simulate(batch, "depth", 1, late) == 600  # and one alone is there already


def test_the_head_of_the_queue_is_one_word() -> None:
    slow = replace(FREE, signal_ns=100)
    assert simulate(planned(APART, 6), "ready", 6, slow) == 700  # the last is taken at 600


def test_planning_versions_and_aborts_are_counted_where_they_are_needed() -> None:
    batch = replace(planned(APART, 6), aborts=3)
    planning = replace(FREE, plan_ns_per_operation=1, unit_plan_ns_per_operation=2)
    assert simulate(batch, "ready", 6, planning) == 106
    assert simulate(batch, "ready-operation", 6, planning) == 112
    assert simulate(batch, "serial", 6, planning) == 600
    assert simulate(batch, "ready-operation", 6, replace(FREE, version_ns_per_operation=5)) == 105
    aborting = replace(FREE, abort_ns=50)
    assert simulate(batch, "ready", 6, aborting) == 100
    assert simulate(batch, "ready-operation", 6, aborting) == 250
    assert simulate(batch, "tstream", 6, aborting) == 150


def test_a_row_that_is_only_read_costs_every_unit_that_needs_it() -> None:
    batch = planned([[(0, [2]), (1, [2])]], 3, [300.0])  # three rows: 100 each
    assert batch.unit_ns.tolist() == [200, 200]


def test_units_that_compute_a_row_again_take_as_long_as_they_were_seen_to() -> None:
    batch = planned([[(0, []), (1, [0])]], 2, [200.0])  # two units that look at three rows
    assert batch.unit_ns.tolist() == [100, 100]
    seen = with_units(batch, 330.0, replace(FREE, version_ns_per_operation=10))
    assert seen.unit_ns.tolist() == [150, 150]
    assert seen.serial_ns == 200
    again = with_units(seen, 230.0, replace(FREE, version_ns_per_operation=10))
    assert again.unit_ns.tolist() == [100, 100]  # what was seen last counts
    assert with_units(batch, 10.0, FREE).unit_factor == 1.0  # less than the work itself cannot be


def test_a_transaction_takes_as_long_as_its_operations() -> None:
    batch = plan_batch(linked([[(0, [1]), (2, [])], [(None, [0])]], 3), 50.0)
    assert batch.work_ns.tolist() == [150, 50]
    assert batch.serial_ns == 200


def test_speedups_are_ratios_to_one_after_another() -> None:
    found = speedups(planned(APART, 6), FREE, cores=(1, 2, 6), strategies=("serial", "ready"))
    assert found == {"serial": [1, 1, 1], "ready": [1, 2, 6]}


def test_an_empty_batch_takes_no_time() -> None:
    for strategy in STRATEGIES:
        assert simulate(planned([], 0), strategy, 3, Thresholds()) == 0


def test_what_cannot_be_simulated_is_refused() -> None:
    batch = planned(ONE_ROW, 1)
    with pytest.raises(InputError, match="at least 1"):
        simulate(batch, "ready", 0, FREE)
    with pytest.raises(InputError, match="no strategy 'magic'"):
        simulate(batch, "magic", 2, FREE)
