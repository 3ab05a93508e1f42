"""A small run of the benchmark of cheap transfers: seen on one thread and two, said of more."""

from __future__ import annotations

from bench import cores
from headgate.parallel.decision import Thresholds


def test_shares_are_seen_on_one_thread_and_two_and_said_of_more() -> None:
    found = cores.measure(640, 2, Thresholds(), rows=500)
    assert found.serial_ns > 0
    assert set(found.seen) == set(found.medians) == {1, 2}
    assert all(value > 0 for value in found.seen.values())
    assert list(found.said) == list(cores.CORES)
    assert "640 transfers" in cores.lines(found)[0]


def test_a_run_that_had_its_cores_counts_before_a_quicker_one_that_had_not() -> None:
    lucky, own = cores.Seen(5.0, False), cores.Seen(7.0, True)
    assert cores.quickest_ns([lucky, own, cores.Seen(9.0, True)]) == 7.0
    assert cores.quickest_ns([lucky, cores.Seen(6.0, False)]) == 5.0
