"""A small run of the growth figures: they measure what they say; no test of time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bench import growth, ledger
from bench.transfers import WrongBalances
from headgate.query.replica import Replica, StreamSide


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BATCH_EVENTS", 64)
    monkeypatch.setattr(growth, "FEW_KEYS", 100)
    monkeypatch.setattr(growth, "KEYS", (200, 300))
    monkeypatch.setattr(growth, "COPIED_ROWS", (500, 1000))
    monkeypatch.setattr(growth, "QUICK_MAX", 300)


def test_transfers_are_compared_by_the_number_of_keys() -> None:
    found = growth.compare_growth(quick=True)
    whats = [one.what for one in found]
    assert whats == ["engine, 200 keys", "bare loop, 200 keys",
                     "engine, 300 keys", "bare loop, 300 keys"]  # fmt: skip
    assert [one.bar for one in found] == [None, None, 1.8, None]
    assert all(one.ratio > 0 for one in found)


def test_events_go_to_all_keys_of_their_size() -> None:
    events = ledger.make_events(5000, 0, np.random.default_rng(1), 300)
    assert set(events["src"].to_pylist()) == set(events["dst"].to_pylist()) == set(range(300))


def test_the_first_sql_is_set_beside_a_copy_of_the_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "QUICK_MAX", 1000)
    monkeypatch.setattr(growth, "COPIED_MIN", 1000)
    asked, honest = [], Replica._follow

    def follow(replica: Replica, names: frozenset[str], stream: StreamSide) -> None:
        asked.append(names)
        honest(replica, names, stream)

    monkeypatch.setattr(Replica, "_follow", follow)
    found = growth.compare_first_sql(quick=True)
    assert [(one.bar, one.at_most) for one in found] == [(None, True), (3.0, True)]
    assert all(one.ratio > 0 for one in found)
    assert asked == [frozenset({"accounts"})] * 2 * 3  # each time the first


def test_a_bare_copy_has_memory_of_its_own() -> None:
    records = np.zeros(4, [("header", "i8"), ("id", "i8"), ("balance", "f8")])
    records["id"] = [3, 1, 2, 0]
    copied = growth.bare_copy(records)
    records["id"] = records["balance"] = 9
    wanted = {"id": [3, 1, 2, 0], "balance": [0.0] * 4}
    assert copied.equals(pa.table(wanted))


def test_a_wrong_sum_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = growth._rows
    monkeypatch.setattr(growth, "_rows", lambda count: honest(count).slice(1))
    with pytest.raises(WrongBalances, match="the accounts hold"):
        growth.compare_first_sql(quick=False)
