"""The table `results`: what became of the events can be asked in SQL, wherever the engine is."""

from __future__ import annotations

from pathlib import Path

import pytest

import headgate as hg
from headgate.engine import memory
from tests.unit.engine.test_carry import event, open_bank, pay

QUERY = "select epoch, event_id, outcome, reason from results order by epoch, position"


@pytest.mark.parametrize("is_durable", [True, False])
def test_results_are_a_table(tmp_path: Path, is_durable: bool) -> None:
    with open_bank(tmp_path / "bank" if is_durable else None) as engine:
        assert engine.sql("select count(*) from results").rows() == [(0,)]
        engine.run(pay, [event("a", 1), event("b", 2, amount=200)], order_by="ts", carry="event_id")
        engine.run(pay, [event("c", 3, number=None)], order_by="ts", carry="event_id")
        expected = [
            (2, "a", "committed", None), (2, "b", "aborted", "too much"),
            (3, "c", "rejected", "null key: id"),
        ]  # fmt: skip
        assert engine.sql(QUERY).rows() == expected
        joined = "select count(*) from Results r, accounts a where r.outcome = ? and a.id = 1"
        assert engine.sql(joined, ["committed"]).rows() == [(1,)]
        if is_durable:
            assert engine.sql(QUERY, epoch=2).rows() == expected[:2]
    if is_durable:
        with open_bank(tmp_path / "bank") as engine:
            assert engine.sql(QUERY).rows() == expected


def test_an_engine_in_memory_keeps_the_newest_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RESULTS_KEPT_ROWS", 5)
    engine = open_bank()
    for n in range(10):
        engine.run(pay, [event(n, n), event(n, n)], order_by="ts")
    assert engine.sql("select distinct epoch from results order by 1").rows() == [(10,), (11,)]


def test_a_table_of_that_name_comes_first() -> None:
    mine = hg.Table("results", "id bigint, n bigint", key="id")
    with hg.open(None, tables=[mine]) as engine:
        engine.load(mine, [{"id": 1, "n": 7}])
        assert engine.sql("select n from results").rows() == [(7,)]
