"""The history checker: hand-made histories, each with the anomalies it shows and no other."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headgate.testing.history import KINDS, PROSCRIBED, History, Observed, Read

SHOWN = {
    "two writes in two orders": ("w1(x) w2(x) w2(y) w1(y) c1 c2 [x: 1 2] [y: 2 1]", "G0"),
    "three writes in a circle": (
        "w1(x) w2(x) w2(y) w3(y) w3(z) w1(z) c1 c2 c3 [x: 1 2] [y: 2 3] [z: 3 1]",
        "G0",
    ),
    "a read of an aborted write": ("w1(x) r2(x1) a1 c2", "G1a"),
    "a read of a write that never ended": ("w1(x) r2(x1) c2", "G1a"),
    "a read of the first of two writes": ("w1(x) r2(x1.1) w1(x) c1 c2", "G1b"),
    "each read what the other wrote": ("w1(x) w2(y) r1(y2) r2(x1) c1 c2", "G1c"),
    "a write before, a read after": ("w1(x) w2(x) w2(y) r1(y2) c1 c2 [x: 1 2]", "G1c"),
    "a read skew": ("r1(x0) w2(x) w2(y) c2 r1(y2) c1", "G-single"),
    "a lost update": ("r1(x0) r2(x0) w1(x) c1 w2(x) c2", "G-single"),
    "a write skew": ("r1(x0) r1(y0) r2(x0) r2(y0) w1(x) w2(y) c1 c2", "G2"),
    "a write skew of three": ("r1(x0) r2(y0) r3(z0) w1(z) w2(x) w3(y) c1 c2 c3", "G2"),
    "a later event first": ("w2(x) c2 r1(x2) c1", "order"),
    "a later event overwritten": ("w2(x) c2 w1(x) c1", "order"),
    "a read overwritten by an earlier event": ("r2(x0) w1(x) c2 c1", "order"),
}
# What also holds whenever a kind is shown.
IMPLIED = {
    "G0": {"order"},
    "G1c": {"order"},
    "G-single": {"G2", "order"},
    "G2": {"order"},
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_anomaly_is_seen_and_named(name: str) -> None:
    text, kind = SHOWN[name]
    kinds = {anomaly.kind for anomaly in History.parse(text).anomalies()}
    assert kind in kinds
    assert kinds - {kind} <= IMPLIED.get(kind, set())


CLEAN = [
    "",
    "r1(x0) c1",
    "w1(x) c1 r2(x1) w2(x) c2 r3(x2) c3",
    "r1(x0) w1(x) r2(y0) w2(y) c2 c1",
    "w1(x) r1(x1) w1(x) r1(x1) c1",
    "w1(x) a1 r2(x0) w2(x) c2",
    "r1(x0) w2(x) c2 c1",
    "w1(x) w1(y) c1 w2(x) w2(y) c2 r3(x2) r3(y2) c3",
    "w1(x) r2(x1) a1 a2",  # who aborted may have read anything
]


@pytest.mark.parametrize("text", CLEAN)
def test_a_clean_history_shows_nothing(text: str) -> None:
    assert History.parse(text).anomalies() == []


def test_some_serial_order_is_enough_for_the_third_level_but_not_for_the_fourth() -> None:
    history = History.parse("w2(x) c2 r1(x2) w1(x) c1")
    assert history.violations("PL3") == []
    assert [one.kind for one in history.violations("PL4")] == ["order"]


def test_every_kind_has_a_history_and_every_level_admits_less_than_the_one_below() -> None:
    assert {kind for _, kind in SHOWN.values()} == set(KINDS)
    levels = [set(PROSCRIBED[level]) for level in ("PL1", "PL2", "PL3", "PL4")]
    assert all(one < other for one, other in pairwise(levels))
    assert levels[-1] == set(KINDS)


def test_an_anomaly_names_who_took_part_and_how() -> None:
    (anomaly, *_) = History.parse("r1(x0) w2(x) w2(y) c2 r1(y2) c1").anomalies()
    assert str(anomaly) == "G-single: 1 -rw-> 2 -wr-> 1"
    assert set(anomaly.names) == {1, 2}


def test_a_long_chain_is_no_cycle_and_needs_no_deep_recursion() -> None:
    count = 5000
    chain = [Observed(i, True, (Read("x", i - 1 if i else None),), ("x",)) for i in range(count)]
    assert History(chain, {"x": range(count)}).anomalies() == []
