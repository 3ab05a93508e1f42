"""The applications: each runs as it stands and gives what the serial oracle gives."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from apps import (
    bidding,
    congestion,
    detection,
    exchange,
    grep_sum,
    hotel,
    leaderboard,
    ledger,
    linear_road,
    pairs,
    routing,
    shop,
    steps,
    tolls,
)
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
        (lambda: leaderboard.in_memory(600), ["contestant 6 leaves", "as plain Python has it"]),
        (lambda: linear_road.in_memory(500, 8), ["tolls", "as plain Python has it"]),
        (lambda: routing.in_memory(300), ["300 orders", "no cent is lost"]),
        (lambda: pairs.in_memory(530), ["pairs below 50 in 4 windows", "as plain Python has it"]),
        (lambda: steps.in_memory(120), ["by_hand", "client", "as plain Python has it"]),
    ],
)
def test_an_application_runs_and_prints_what_became_of_its_events(
    program: Any, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program() in (None, True)  # those that compare say whether it was right
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


@pytest.mark.parametrize(
    ("study", "target", "tables", "events"),
    [
        (exchange, exchange.ROUTES, [exchange.quotes, exchange.trades, exchange.turnover],
         exchange.with_period(exchange.make_events(300))),
        (congestion, congestion.report, [congestion.minutes, congestion.vehicles],
         congestion.with_minutes(congestion.make_events(600))),
    ],
    ids=["exchange", "congestion"],
)  # fmt: skip
def test_a_case_study_gives_what_sql_over_all_events_and_the_oracle_give(
    study: Any, target: Any, tables: Any, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert study.in_memory(4000)
    wanted = study.expected(study.make_events(4000))
    monkeypatch.setattr(study, "expected", lambda _: wanted[:-1])
    assert not study.in_memory(4000)  # it would say so
    transactions = list(target.values()) if isinstance(target, dict) else [target]
    oracle = SerialOracle(tables, transactions)
    with hg.open(None, tables=tables, transactions=transactions) as engine:
        results = engine.run(target, events[::-1], **study.ORDER)
        expected = oracle.run(target, events[::-1], **study.ORDER)
        assert results_difference(results, expected) is None
        assert difference(engine, oracle) is None


def test_planted_events_are_detected_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert detection.in_memory(16)
    assert "detected in time: storm" in capsys.readouterr().out
    first = int(detection.FIRST.timestamp()) // 10
    assert detection.judge([(first + 2, 7, 9, "tea storm")], 16) == (
        [],
        ["cluster 7 at step 2: tea storm"],
    )
    assert detection.judge([(first + 12, 7, 9, "storm flood rescue river")], 16)[0] == []


def test_a_shop_gives_what_the_oracle_gives_and_says_when_goods_are_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.in_memory(900)
    assert "goods and money add up" in capsys.readouterr().out
    transactions = [*shop.ROUTES.values(), shop.give_up]
    oracle = SerialOracle(shop.TABLES, transactions)
    events = shop.make_events(120)
    with shop.open_shop(None) as engine:
        for name, rows in shop.FIRST_ROWS.items():
            oracle.load(name, rows)
        for batch in (events[::-1][: len(events) // 2], events[: len(events) // 2]):
            results = engine.run(shop.ROUTES, batch, **shop.ORDER)
            expected = oracle.run(shop.ROUTES, batch, **shop.ORDER)
            assert results_difference(results, expected) is None
            assert difference(engine, oracle) is None
        assert shop.adds_up(engine)
        monkeypatch.setattr(shop, "EACH", shop.EACH + 1)
        assert not shop.adds_up(engine)  # it would say so


def test_hotels_give_what_the_oracle_gives_and_say_when_rooms_or_searches_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oracle = SerialOracle(hotel.TABLES, [*hotel.ROUTES.values(), hotel.lapse])
    monkeypatch.setattr(hotel, "DAYS", 12)  # so that rooms become scarce
    events = hotel.make_events(240)
    with hotel.open_hotels(None) as engine:
        for name, rows in hotel.FIRST_ROWS.items():
            oracle.load(name, rows)
        for batch in (events[: len(events) // 2][::-1], events[len(events) // 2 :]):
            results = engine.run(hotel.ROUTES, batch, **hotel.ORDER)
            expected = oracle.run(hotel.ROUTES, batch, **hotel.ORDER)
            assert results_difference(results, expected) is None
            assert difference(engine, oracle) is None
        assert hotel.compare(engine, events, None)
        wanted = hotel.expected(events)
        with monkeypatch.context() as patch:
            patch.setattr(hotel, "expected", lambda _: wanted[:-1])
            assert not hotel.compare(engine, events, None)
        with monkeypatch.context() as patch:
            patch.setattr(hotel, "WRONG", hotel.WRONG.replace("sold <>", "sold + 1 <>"))
            assert not hotel.compare(engine, events, None)
        engine.run(hotel.search, [events[-1] | {"id": -1}])
        assert not hotel.compare(engine, events, None)


def test_the_judge_of_routed_orders_sees_a_wrong_venue_a_lost_cent_and_an_order_without_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = routing.make_orders(60)
    with routing.open_desk(None) as engine:
        rows = engine.push(routing.orders, given).to_pylist()
        assert not routing.compare(engine, given)  # nothing is settled yet
        engine.push(routing.answers, routing.answers_to(rows))
        assert routing.compare(engine, given)
        with monkeypatch.context() as patch:
            patch.setattr(routing, "CASH", routing.CASH + 1)
            assert not routing.compare(engine, given)
        with monkeypatch.context() as patch:
            patch.setattr(routing, "VENUES", 1)
            assert not routing.compare(engine, given)


def test_the_road_tells_tolls_and_accidents_and_says_when_an_answer_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = linear_road.make_inputs(500, 8)
    wanted = linear_road.expected(given, linear_road.make_history(500))
    tolls, warned, balances, spent = (
        {number for number, one in wanted.items() if one[place] > 0} for place in range(4)
    )
    assert tolls and warned and balances and spent  # each is asked of the road at least once
    assert not tolls & warned  # no toll where an accident is ahead
    some = min(warned)
    monkeypatch.setattr(linear_road, "expected", lambda *_: wanted | {some: (0, 0, 0, 0)})
    answered = [(number, *one) for number, one in wanted.items()]
    assert not linear_road.compare(answered, given, 500)
    assert f"input {some}" in capsys.readouterr().out
