"""A parameter without `create` needs a row that was there before the event."""

from __future__ import annotations

from typing import Any

import pytest

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference

purses = hg.Table("purses", "id bigint, coins bigint DEFAULT 10", key="id")


def _give(
    event,
    src=purses.at("src"),
    dst=purses.at("dst", create=True),
    seen=purses.each("seen", mode="read"),
):
    src.coins -= event.coins
    dst.coins += event.coins
    if event.coins == 7:
        return hg.abort("seven")
    if event.coins == 8:
        hg.delete(dst)


def _give_all(event, targets=purses.each("targets", create=True), all_of=purses.each("seen")):
    for row in targets:
        row.coins += event.coins
    for row in all_of:
        row.coins -= 1


GIVEN = "src bigint, dst bigint, seen array<bigint>, coins bigint"
ALL = "targets array<bigint>, seen array<bigint>, coins bigint"
SCHEMES = (
    "serial", "shares", "strata", "depth", "ready", "lal", "pat", "ready-operation-eager",
    "strata-operation-lazy", "depth-chain-eager", "tstream", "lwm", "lock", "timestamp",
)  # fmt: skip
LISTED = ("serial", "ready", "ready-operation-eager", "depth-chain-eager", "lock", "timestamp")
MISSING = "missing key: purses"

# Each is one event after the others, with what must come of it; row 1 is there from the start.
EVENTS: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"src": 5, "dst": 5, "seen": [], "coins": 1}, MISSING),  # not the row that dst would make
    ({"src": 1, "dst": 6, "seen": [6], "coins": 1}, MISSING),  # nor in a list
    ({"src": 1, "dst": 5, "seen": [1, 1], "coins": 7}, "seven"),  # which puts row 5 back
    ({"src": 5, "dst": 1, "seen": [], "coins": 1}, MISSING),  # so it is not there
    ({"src": 1, "dst": 5, "seen": [1], "coins": 2}, None),  # now it is
    ({"src": 5, "dst": 5, "seen": [5], "coins": 3}, None),  # made by an event before
    ({"src": 1, "dst": 5, "seen": [], "coins": 8}, None),  # and deleted
    ({"src": 5, "dst": 5, "seen": [], "coins": 1}, MISSING),
    ({"src": 1, "dst": 1, "seen": [1], "coins": 1}, None),
)
EVENTS_OF_ALL: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"targets": [3, 1, 3], "seen": [1, 3], "coins": 5}, MISSING),
    ({"targets": [3, 4], "seen": [1], "coins": 5}, None),
    ({"targets": [4, 3, 9], "seen": [4, 1, 4], "coins": 5}, None),
    ({"targets": [8], "seen": [8], "coins": 5}, MISSING),
    ({"targets": [], "seen": [9], "coins": 5}, None),
)


def transaction(function: Any, event: str, compiled: bool) -> Any:
    return hg.transaction(event=event, compiled=compiled)(function)


@pytest.mark.parametrize(
    ("scheme", "compiled", "function", "event", "script"),
    [
        *((scheme, True, _give, GIVEN, EVENTS) for scheme in SCHEMES),
        *((scheme, True, _give_all, ALL, EVENTS_OF_ALL) for scheme in LISTED),
        ("serial", False, _give, GIVEN, EVENTS),
        ("serial", False, _give_all, ALL, EVENTS_OF_ALL),
    ],
)
def test_a_row_that_the_event_makes_is_not_one_that_was_there(
    function: Any, event: str, script: Any, compiled: bool, scheme: str
) -> None:
    one = transaction(function, event, compiled)
    oracle = SerialOracle([purses], [one])
    with hg.open(None, tables=[purses], transactions=[one]) as engine:
        for each in (engine, oracle):
            each.load(purses, [{"id": 1, "coins": 100}])
        events = [event for event, _ in script]
        found = engine.run(one, events, scheme=scheme, threads=2)
        assert found["reason"].to_pylist() == [reason for _, reason in script]
        assert results_difference(found, oracle.run(one, events)) is None
        assert difference(engine, oracle) is None
