"""The checker of schedules: a correct one passes, and each kind of fault is named."""

from __future__ import annotations

import pytest

from headgate.testing import Executed, schedule_faults
from tests.unit.dataflow.shows import show

GOOD = [
    Executed(1, 0, "validate", 1),
    Executed(1, 1, "count", 1),
    Executed(2, 0, "trend", 1),
    Executed(4, 0, "validate", 2),
    Executed(4, 1, "count", 2),
    Executed(5, 0, "validate", 3),
    Executed(5, 1, "count", 3),
    Executed(6, 0, "trend", 2),
    Executed(7, 0, "trend", 3),
]


def test_a_correct_schedule_has_no_faults() -> None:
    assert schedule_faults(show(), GOOD, calls=[3, 8]) == []


FAULTS = [
    (Executed(8, 0, "validate", 2), "validate runs batch 2 twice"),  # as after a bad recovery
    (Executed(3, 0, "trend", 4), "trend runs batch 2 after batch 4"),
    (Executed(3, 0, "count", 5), "count runs batch 2 after batch 5"),
]


@pytest.mark.parametrize(("seeded", "fault"), FAULTS)
def test_a_batch_that_runs_twice_or_overtakes_is_named(seeded: Executed, fault: str) -> None:
    assert fault in schedule_faults(show(), [*GOOD, seeded])


def test_a_node_before_what_it_takes_is_named() -> None:
    early = [Executed(3, 0, "trend", 2) if one == GOOD[7] else one for one in GOOD]
    assert schedule_faults(show(), early) == ["trend runs batch 2 before validate"]


def test_a_nest_that_is_apart_or_has_a_call_inside_is_named() -> None:
    apart = [Executed(5, 0, "count", 2) if one == GOOD[4] else one for one in GOOD]
    assert "the nest validate + count is apart in batch 2" in schedule_faults(show(), apart)
    assert schedule_faults(show(), GOOD, calls=[4]) == ["a call inside validate + count, batch 2"]
