"""A small run of the benchmark of rows that expire: all ways run to their end; no test of time."""

from __future__ import annotations

from bench import expiry


def test_events_set_and_change_rows_that_expire_and_that_do_not() -> None:
    ways = {expiry.UNDECLARED, expiry.NONE, expiry.EACH}
    assert set(expiry.measure_setting(1, events=40, alive=30)) == ways
    assert set(expiry.measure_counting(1, events=40, alive=30)) == ways
