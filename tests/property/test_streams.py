"""Streams: routes, watermarks, late events and flushes, every mix of forms against the oracle."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.family import FAMILY, ROUTED, book, routes
from tests.property.harness import decoded, same_bytes, sorted_table

# Which of put, move and drop run compiled.
MIXES = (
    (True, True, True, True), (False, False, False, False), (True, False, True, False),
    (False, True, False, True),
)  # fmt: skip
SECONDS = st.integers(0, 20).map(lambda s: making.START + datetime.timedelta(seconds=s))
KINDS = st.sampled_from(
    ("put", "move", "drop", "put", "move", "drop", "chase", "chase", "fly", None)
)


@st.composite
def routed_events(draw: st.DrawFn) -> dict[str, Any]:
    """An event for one of the set; what its transaction does not need may well be null."""
    kind = draw(KINDS)
    event = {
        "kind": kind,
        "ts": draw(SECONDS),
        "id": draw(making.SMALL),
        "other": draw(making.SMALL),
        "n": draw(st.integers(-3, 8)),
        "note": draw(st.sampled_from(making.TEXTS)),
        "tag": draw(st.sampled_from((None, "a", "é", ""))),  # which no transaction declares
    }
    if draw(st.sampled_from((False,) * 6 + (True,))):
        event[draw(st.sampled_from(("ts", "id", "other", "n", "note")))] = None
    return event


class Routed:
    """An engine for every mix, and the oracle, over the routed set."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.routes = [routes(dict(zip(ROUTED, mix, strict=True))) for mix in MIXES]
        self.engines = [
            hg.open(None, tables=[book], transactions=found.values()) for found in self.routes
        ]
        self.oracle = SerialOracle([book])
        for target in (*self.engines, self.oracle):
            target.load(book, rows)

    def do(self, what: str, *events: Any, **options: Any) -> list[dict[str, Any]]:
        """Call `run` or `flush` of all, and compare their results."""
        expected = getattr(self.oracle, what)(self.routes[1], *events, **options)
        results = [
            getattr(engine, what)(found, *events, **options)
            for engine, found in zip(self.engines, self.routes, strict=True)
        ]
        for found in results:
            assert results_difference(found, expected) is None
            assert same_bytes(decoded(found), decoded(results[0]))
        return list(expected)

    def compare(self) -> None:
        for engine in self.engines:
            assert difference(engine, self.oracle) is None
            assert same_bytes(sorted_table(engine, book), sorted_table(self.engines[0], book))


CARRY = st.sampled_from((None, "tag", "tag, other", ["kind", "tag"], "id, ts, tag"))


@making.examples(40)
@given(
    rows=making.rows(book),
    batches=making.batches(routed_events()),
    carry=CARRY,
    order_by=st.sampled_from((None, "ts", ["ts", "id"], ["id"])),
)
def test_routed_events_run_as_the_oracle_runs_them(
    rows: Any, batches: Any, carry: Any, order_by: Any
) -> None:
    routed = Routed(rows)
    for events in batches:
        routed.do("run", events, route_by="kind", order_by=order_by, carry=carry)
    routed.compare()


@making.examples(40)
@given(
    rows=making.rows(book),
    batches=making.batches(routed_events(), most=5),
    watermark=st.sampled_from(("2 seconds", "0 seconds", "1 minute")),
    late=st.sampled_from(("reject", "append")),
    order_by=st.sampled_from(("ts", ["ts", "id"])),
    carry=CARRY,
    flushes=st.sets(st.integers(0, 4)),
)
def test_a_watermark_holds_back_what_the_oracle_holds_back(
    rows: Any,
    batches: Any,
    watermark: str,
    late: str,
    order_by: Any,
    carry: Any,
    flushes: set[int],
) -> None:
    options = {"watermark": watermark, "late": late, "order_by": order_by, "route_by": "kind"}
    options["carry"] = carry
    routed = Routed(rows)
    for number, events in enumerate(batches):
        routed.do("run", events, **options)
        if number in flushes:
            routed.do("flush", **options)
    routed.do("flush", **options)
    assert routed.do("flush", **options) == []
    routed.compare()


@making.examples(25)
@given(
    events=st.lists(making.sound_events(FAMILY["put"]), min_size=1, max_size=20),
    size=st.integers(1, 6),
)
def test_without_late_events_a_watermark_only_postpones(events: Any, size: int) -> None:
    """A watermark as long as the whole stream, then a flush: the order of one sorted batch."""
    put = FAMILY["put"].compiled
    whole, held = (hg.open(None, tables=[book], transactions=[put]) for _ in range(2))
    options = {"order_by": "ts", "watermark": "1 hour"}
    assert held.run(put, events, batch_size=size, **options).num_rows == 0
    expected = whole.run(put, events, order_by="ts")
    found = held.flush(put, **options)
    assert same_bytes(decoded(found.drop(["epoch"])), decoded(expected.drop(["epoch"])))
    assert same_bytes(sorted_table(held, book), sorted_table(whole, book))


@pytest.mark.parametrize("late", ["reject", "append"])
def test_two_names_are_two_streams(late: str) -> None:
    put = FAMILY["put"].compiled
    engine, oracle = hg.open(None, tables=[book], transactions=[put]), SerialOracle([book])
    early, later = making.START, making.START + datetime.timedelta(seconds=50)
    for name, ts in (("one", later), ("two", early), ("one", early), ("two", later)):
        event = {"ts": ts, "id": 1, "n": 1, "note": name}
        options = {"order_by": "ts", "watermark": "5 seconds", "late": late, "name": name}
        expected = oracle.run(put, [event], **options)
        assert results_difference(engine.run(put, [event], **options), expected) is None
    assert difference(engine, oracle) is None
