"""When the cost of a transaction is measured again, and when shares are tried again."""

from __future__ import annotations

from headgate.parallel.decision import (
    CHANGED_BATCHES,
    PROBE_BATCHES,
    TRIAL_BATCHES,
    Attempts,
    Probing,
)


def test_after_so_many_parallel_batches() -> None:
    probing = Probing()
    for _ in range(PROBE_BATCHES - 1):
        probing.ran(1000.0)
        assert not probing.is_due
    probing.ran(1000.0)
    assert probing.is_due
    probing.learnt()
    assert not probing.is_due


def test_soon_when_the_pace_changes_and_stays_so() -> None:
    for pace_ns in (400.0, 2500.0):
        probing = Probing()
        probing.ran(1000.0)
        probing.ran(pace_ns)
        probing.ran(1200.0)
        for _ in range(CHANGED_BATCHES):
            assert not probing.is_due
            probing.ran(pace_ns)
        assert probing.is_due
        probing.learnt()
        probing.ran(pace_ns)
        assert not probing.is_due


def test_what_shares_took_is_remembered_until_enough_other_batches_ran() -> None:
    attempts = Attempts()
    assert attempts.pace_ns is None
    attempts.ran(40.0)
    attempts.ran(20.0)
    assert attempts.pace_ns == 30.0
    for _ in range(TRIAL_BATCHES - 1):
        attempts.passed()
    assert attempts.pace_ns == 30.0
    attempts.passed()
    assert attempts.pace_ns is None


def test_a_batch_that_was_put_back_counts_as_endless() -> None:
    attempts = Attempts()
    attempts.ran(20.0)
    attempts.failed()
    assert attempts.pace_ns == float("inf")
    attempts.ran(20.0)
    assert attempts.pace_ns == float("inf")
