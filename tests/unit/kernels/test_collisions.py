"""Keys whose index entries look alike are told apart: by the row, in whatever way a batch runs."""

from __future__ import annotations

import numpy as np
import pytest

import headgate as hg
from headgate.state.integrity import hash_of
from headgate.testing import SerialOracle, difference, results_difference

MULTIPLIER = 0x9E3779B97F4A7C15
WORD = 2**64

counters = hg.Table("counters", "id bigint, n bigint DEFAULT 0", key="id")


@hg.transaction(event="id bigint, other bigint, n bigint")
def add(event, one=counters.at("id"), two=counters.at("other"), out=hg.output("n bigint")):
    one.n += event.n
    two.n += 10 * event.n
    out.n = one.n


def key_with_hash(value: int) -> int:
    """The key that has this hash: every step of `mix` can be taken back."""
    high = value >> 32
    mixed = (high << 32) | ((value & 0xFFFFFFFF) ^ high)
    key = mixed * pow(MULTIPLIER, -1, WORD) % WORD
    return key - WORD if key >= WORD // 2 else key


def alike(count: int) -> list[int]:
    """Keys of one tag, whose entries begin at one place in any index of fewer than 2**20 places."""
    return [key_with_hash((0x12345678 << 32) | (number << 20) | 77) for number in range(count)]


def test_the_keys_are_alike() -> None:
    found = [int(hash_of(np.array([key]))) for key in alike(9)]
    assert len({*alike(9)}) == 9 and len({value >> 32 for value in found}) == 1
    assert len({value & 0xFFFFF for value in found}) == 1


@pytest.mark.parametrize(
    "scheme", ["serial", "shares", "strata", "ready-operation-eager", "timestamp"]
)
def test_entries_that_look_alike_are_told_apart(scheme: str) -> None:
    there, absent = alike(9)[:6], alike(9)[6:]
    rows = [{"id": key, "n": place} for place, key in enumerate(there)]
    random = np.random.default_rng(3)
    events = [
        {"id": int(one), "other": int(two), "n": place}
        for place, (one, two) in enumerate(random.choice(there + absent[:1], (300, 2)))
    ]
    oracle = SerialOracle([counters], [add])
    oracle.load(counters, rows)
    with hg.open(None, tables=[counters], transactions=[add]) as engine:
        engine.load(counters, rows)
        found = engine.run(add, events, scheme=scheme, threads=2)
        assert results_difference(found, oracle.run(add, events)) is None
        assert difference(engine, oracle) is None
