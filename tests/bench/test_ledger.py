"""A small run of the ledger benchmark: it works and measures the right thing; no test of time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headgate as hg
from bench import bounds, ledger


def test_the_bounds_do_the_same_transfers_as_the_engine() -> None:
    random = np.random.default_rng(3)
    rows = ledger.make_accounts(random)
    events = ledger.make_events(500, 0, random)
    simple = bounds.SimpleBound(rows)
    with hg.open(None, tables=[ledger.accounts], transactions=[ledger.transfer]) as engine:
        engine.load(ledger.accounts, rows)
        own = bounds.OwnIndexBound(engine._memory.rows["accounts"])
        results = engine.run(ledger.transfer, events, order_by="ts")
        balances = dict(engine.sql("select id, balance from accounts").rows())
    simple.run(events)
    own.run(events)
    ids = own.words[: ledger.ACCOUNTS, 1]
    assert dict(zip(ids.tolist(), own.balance[: len(ids)].tolist(), strict=True)) == balances
    assert dict(zip(simple.ids.tolist(), simple.balance.tolist(), strict=True)) == balances
    aborted = results["outcome"].to_pylist().count("aborted")
    assert 0 < aborted < 50


def test_engines_are_compared_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BATCH_EVENTS", 64)
    monkeypatch.setattr(ledger, "OTHER_SIZES", (8, 128))
    found = ledger.compare_engines(tmp_path, batch_count=5)
    assert [ratio > 0 for _, _, ratio in found] == [True] * 9


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    resident, peak = ledger.measure_memory(rows=1000)
    assert 0 < resident <= peak


def test_a_long_batch_is_compared_on_one_thread_and_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "SPARK_BATCH_EVENTS", 70_000)
    monkeypatch.setattr(ledger, "COMPILE_S", 0.0)
    one, two = ledger.compare_threads(tmp_path, rounds=1)
    assert one > 0 < two
