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
    trial = Attempts()
    assert trial.pace_ns is None
    trial.ran(40.0)
    trial.ran(20.0)
    assert trial.pace_ns == 30.0
    for _ in range(TRIAL_BATCHES - 1):
        trial.passed()
    assert trial.pace_ns == 30.0
    trial.passed()
    assert trial.pace_ns is None


def test_a_batch_that_was_put_back_counts_as_endless() -> None:
    trial = Attempts()
    trial.ran(20.0)
    trial.failed()
    assert trial.pace_ns == float("inf")
    trial.ran(20.0)
    assert trial.pace_ns == float("inf")
