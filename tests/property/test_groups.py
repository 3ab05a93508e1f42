"""Groups of a batch that share no row run side by side, and give what the serial order gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.parallel import scheduler, sections
from headgate.testing import SerialOracle, difference, results_difference

ROWS = 400
HOT = 3
COSTLY_NS = 500_000.0  # as if a transaction took so long: whatever it takes here, groups pay

accounts = hg.Table("accounts", "id bigint, n bigint", key="id")
names = hg.Table("names", "name string, n bigint", key="name")


@hg.transaction(event="src bigint, dst bigint, amount bigint, name string")
def move(
    event,
    src=accounts.at("src"),
    dst=accounts.at("dst"),
    who=names.at("name", create=True),
    out=hg.output("src bigint, dst bigint"),
):
    if event.amount == 7:
        return hg.abort("seven")
    for step in range(30):
        src.n = (src.n * 31 + step) % 1_000_003
    dst.n += src.n // (event.amount - 5)
    who.n += 1
    out.src, out.dst = src.n, dst.n


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every batch that has two groups is run in two; how many events each group had."""
    found: list[int] = []
    work = sections.Nested.work

    def noted(self: Any, run: Any) -> None:
        found.extend(len(part.places) for part in self.parts)
        work(self, run)

    monkeypatch.setattr(sections, "GAIN_MIN", 0.0)
    monkeypatch.setattr(scheduler, "before_a_graph", lambda load, costs: None)
    monkeypatch.setattr(sections.Nested, "work", noted)
    return found


def events(seed: int, count: int, hot: float) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    rows = []
    for place in range(count):
        is_hot = chance.random() < hot
        src = chance.randrange(HOT) if is_hot else chance.randrange(HOT, ROWS + 5)
        dst = chance.randrange(HOT) if is_hot else chance.randrange(HOT, ROWS)
        name = f"hot {place % 2}" if is_hot else f"name {place}"
        rows.append({"src": src, "dst": dst, "amount": chance.randrange(9), "name": name})
    return rows


@pytest.mark.parametrize("threads", [2, 3])
def test_groups_side_by_side_give_what_the_serial_order_gives(
    threads: int, nested: list[int]
) -> None:
    first = [{"id": key, "n": key} for key in range(ROWS)]

    @settings(max_examples=20)
    @given(seed=st.integers(0, 10**6), count=st.integers(50, 500), hot=st.floats(0.1, 0.6))
    def check(seed: int, count: int, hot: float) -> None:
        oracle = SerialOracle([accounts, names], [move])
        oracle.load(accounts, first)
        with hg.open(None, tables=[accounts, names], transactions=[move]) as engine:
            engine.load(accounts, first)
            for batch in range(3):
                given_ = events(seed + batch, count, hot)
                for executor in engine._executors.values():
                    executor.scheduler.cost_ns = COSTLY_NS
                found = engine.run(move, given_, threads=threads)
                assert results_difference(found, oracle.run(move, given_)) is None
            assert difference(engine, oracle) is None

    check()
    assert len(nested) >= 2 * 20 and min(nested) > 0
