"""The applications: each runs as it stands and gives what the serial oracle gives."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from apps import bidding, grep_sum, ledger, tolls
from headgate.testing import SerialOracle, difference, results_difference

ROADS = {
    "speeds": [{"segment": n, "average": 0.0, "reports": 0} for n in range(tolls.SEGMENTS)],
    "counts": [{"segment": n, "vehicles": 0} for n in range(tolls.SEGMENTS)],
}
ITEMS = {"items": [{"id": n, "price": 50.0, "quantity": 20} for n in range(bidding.ROWS)]}
RECORDS = {"records": [{"id": n, "value": n} for n in range(grep_sum.ROWS)]}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (grep_sum.main, ["grep", "update", "over the ceiling", "check failed: records"]),
        (bidding.main, ["bid", "alter", "top", "below the asking price", "not enough of it"]),
        (tolls.main, ["committed", "negative speed"]),
        (ledger.in_memory, ["transfer", "deposit", "committed"]),
    ],
)
def test_an_application_runs_and_prints_what_became_of_its_events(
    program: Any, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program()
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []


@pytest.mark.parametrize(
    ("target", "options", "tables", "rows", "events"),
    [
        (grep_sum.ROUTES, grep_sum.ORDER, [grep_sum.records], RECORDS, grep_sum.make_events(200)),
        (bidding.ROUTES, bidding.ORDER, [bidding.items], ITEMS, bidding.make_events(200)),
        (tolls.report, {"order_by": "ts"}, [tolls.speeds, tolls.counts], ROADS,
         tolls.make_events(900)),
    ],
    ids=["grep_sum", "bidding", "tolls"],
)  # fmt: skip
def test_an_application_gives_what_the_oracle_gives(
    target: Any, options: Any, tables: Any, rows: Any, events: Any
) -> None:
    transactions = list(target.values()) if isinstance(target, dict) else [target]
    oracle = SerialOracle(tables, transactions)
    with hg.open(None, tables=tables, transactions=transactions) as engine:
        for name, found in rows.items():
            engine.load(name, found)
            oracle.load(name, found)
        results = engine.run(target, list(reversed(events)), **options)
        expected = oracle.run(target, list(reversed(events)), **options)
        assert {row["outcome"] for row in expected} == {"committed", "aborted"}
        assert results_difference(results, expected) is None
        assert difference(engine, oracle) is None


def test_a_toll_is_due_where_the_road_is_slow_and_full() -> None:
    assert tolls.toll_of(39.9, 60) == 200
    assert tolls.toll_of(40.0, 60) == 0
    assert tolls.toll_of(10.0, 50) == 0


def test_a_refused_list_changes_no_item() -> None:
    with hg.open(None, tables=[bidding.items], transactions=[bidding.alter, bidding.top]) as engine:
        engine.load("items", [{"id": n, "price": 5.0, "quantity": 3} for n in range(3)])
        when = bidding.FIRST
        altered = engine.call(bidding.alter, ts=when, items=[0, 1], prices=[1.0, -1.0])
        topped = engine.call(bidding.top, ts=when, items=[0, 2], quantities=[9, -4])
        assert (altered.outcome, topped.outcome) == ("aborted", "aborted")
        assert engine.sql("select distinct price, quantity from items").rows() == [(5.0, 3)]
