"""A small run of the benchmark of ranges: all ways run to their end; no test of time."""

from __future__ import annotations

from bench import ranges


def test_ranges_and_point_reads_run_in_turn() -> None:
    found = ranges.measure_ranges(1, rows=1000, events=20)
    assert set(found) == {"points", "where", "moving"}


def test_transfers_run_beside_every_kind_of_index() -> None:
    found = ranges.measure_keeping(1, rows=1000, events=50)
    assert set(found) == {"none", "city", "balance", "asked", "in step", "looked at"}


def test_a_store_opens_with_an_index_and_without() -> None:
    assert set(ranges.measure_opening(1, rows=2000)) == {"none", "one"}
