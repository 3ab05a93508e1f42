"""Running by operations gives the bytes of the serial scheme: every exploration, granularity,
handling of aborts and number of threads, on few rows and on many."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.kernels import building, over_versions
from headgate.parallel import precedence, scheduler, sections, units
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.family import FAMILY
from tests.property.test_schemes import CONTENTION, outcome_of
from tests.property.test_watch import python

cards = hg.Table("cards", "id bigint, points bigint, used bigint", key="id", check="points <= 90")
shops = hg.Table("shops", "id bigint, income bigint, best bigint", key="id", check="income < 4000")


def bonus(points: int) -> int:
    return points // 10 + 1


@hg.transaction(event="ts bigint, card bigint, shop bigint, friend bigint, price bigint")
def pay(
    event,
    card=cards.at("card"),
    shop=shops.at("shop"),
    friend=cards.at("friend", create=True),
    out=hg.output("income bigint"),
):
    if event.price % 7 == 0:
        return hg.abort("not today")
    card.points += event.price // 3
    card.used += 1
    if shop.best < event.price:
        shop.best = event.price
    shop.income += event.price + card.points  # a parametric dependency on another row
    friend.points += bonus(shop.income)  # and a longer one
    if friend.points > 85:
        hg.delete(friend)
    out.income = shop.income


@hg.transaction(event="ts bigint, card bigint, price bigint")
def refund(event, card=cards.at("card", create=True)):
    card.points -= event.price
    if card.points < -40:
        return hg.abort("too low")


EXPLORED = ["-".join(one) for one in product(
    ("strata", "depth", "ready"), ("operation", "chain"), ("eager", "lazy"))]  # fmt: skip
OTHERS = ["lwm", "tstream", "tstream-nothing", "tstream-socket", "tstream-everything-static"]
ROUTES = {"pay": pay, "refund": refund}


def purchases(seed: int, keys: int, count: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "kind": random.choice(["pay", "pay", "refund"], count),
            "ts": random.integers(0, count, count),
            "card": random.integers(0, keys, count),
            "friend": random.integers(0, keys + 2, count),
            "shop": random.integers(0, max(1, keys // 3), count),
            "price": random.integers(1, 60, count),
        }
    )


def spent(keys: int, count: int = 500, **options: Any) -> tuple[Any, ...]:
    """Results and tables after two batches, and why one of them was run serially, if it was."""
    with hg.open(None, tables=[cards, shops], transactions=[pay, refund]) as engine:
        engine.load(cards, [{"id": n, "points": 10, "used": 0} for n in range(keys)])
        engine.load(shops, [{"id": n, "income": 0, "best": 0} for n in range(max(1, keys // 3))])
        found = [
            engine.run(
                ROUTES, purchases(seed, keys, count), route_by="kind", order_by="ts", **options
            )
            for seed in (1, 2)
        ]
        tables = [engine.sql(f"select * from {name} order by id").arrow() for name in engine.tables]
        return pa.concat_tables(found), *tables, engine.decisions()


@pytest.fixture(scope="module")
def serial() -> dict[str, tuple[Any, ...]]:
    return {name: spent(keys, scheme="serial") for name, keys in CONTENTION.items()}


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(left.equals(right) for left, right in zip(one[:3], other[:3], strict=True))


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("scheme", [*EXPLORED, *OTHERS])
def test_a_scheme_gives_the_bytes_of_the_serial_one(scheme: str, threads: int, serial: Any) -> None:
    for contention, keys in CONTENTION.items():
        found = spent(keys, scheme=scheme, threads=threads)
        assert same(found, serial[contention]), contention
        if not scheme.startswith("tstream"):  # which runs a batch again as a whole
            assert found[3] == [], "run serially"


@pytest.mark.parametrize("scheme", ["ready-operation-eager", "strata-chain-lazy", "tstream", "lwm"])
def test_lists_of_rows_shared_rows_and_raised_errors(scheme: str) -> None:
    """The transactions of test_schemes: `each`, the same row twice, errors in the function."""
    for keys, errors in ((5, 0.0), (60, 0.01)):
        expected = outcome_of(keys, errors, scheme="serial")
        found = outcome_of(keys, errors, scheme=scheme, threads=2)
        assert found[0].equals(expected[0])
        assert found[1].equals(expected[1])


def two_groups(scheme: str, threads: int) -> tuple[Any, ...]:
    """Cards 0 to 3 with shops of their own, and 2,000 others that hardly meet."""
    random = np.random.default_rng(3)
    count = 600
    is_hot = random.random(count) < 0.5
    events = pa.table(
        {
            "kind": random.choice(["pay", "refund"], count),
            "ts": np.arange(count),
            "card": np.where(is_hot, random.integers(0, 4, count), 10 + np.arange(count)),
            "friend": np.where(is_hot, random.integers(0, 4, count), 1000 + np.arange(count)),
            "shop": np.where(is_hot, random.integers(0, 2, count), 10 + np.arange(count)),
            "price": random.integers(1, 60, count),
        }
    )
    with hg.open(None, tables=[cards, shops], transactions=[pay, refund]) as engine:
        engine.load(cards, [{"id": n, "points": 10, "used": 0} for n in range(2000)])
        engine.load(shops, [{"id": n, "income": 0, "best": 0} for n in range(1000)])
        for executor in engine._executors.values():
            executor.scheduler.cost_ns = 50_000.0  # as if they were costly
        engine.run(ROUTES, events.slice(0, 1), route_by="kind", order_by="ts", scheme="serial")
        for executor in engine._executors.values():
            executor.scheduler.cost_ns = 50_000.0
        results = engine.run(
            ROUTES, events, route_by="kind", order_by="ts", scheme=scheme, threads=threads
        )
        tables = [engine.sql(f"select * from {name} order by id").arrow() for name in engine.tables]
        return results, *tables, engine.decisions()


@pytest.mark.parametrize("threads", [2, 4])
def test_groups_that_share_no_row_may_go_different_ways(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = two_groups("serial", 1)
    monkeypatch.setattr(sections, "GAIN_MIN", 0.0)  # two groups whatever they gain
    found = two_groups("auto", threads)
    assert same(found, expected)
    contended, spread = found[3][-2:]
    assert "contended transactions on" in contended.why
    assert "spread transactions on" in spread.why
    assert contended.transactions + spread.transactions == 600


def test_the_batches_have_what_makes_it_hard(serial: Any) -> None:
    reasons = set(serial["high"][0]["reason"].to_pylist()) | set(
        serial["middle"][0]["reason"].to_pylist()
    )
    assert {"not today", "too low", "missing key: cards"} <= reasons
    assert "check failed: cards: points <= 90" in reasons
    assert "check failed: shops: income < 4000" in reasons


SHAPES = ["transfer", "share_out", "audit"]
PAIRS = dict(zip(SHAPES, cycle(zip(EXPLORED[::2], EXPLORED[1::2], strict=True)), strict=False))


@pytest.mark.parametrize("name", [name for name in SHAPES if name in FAMILY])
@making.examples(15)
@given(data=st.data())
def test_the_oracle_agrees(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    events = data.draw(making.batch(making.sound_events(member), 24), "events")
    scheme = data.draw(st.sampled_from(PAIRS[name]), "scheme")
    order = list(member.order_by) or None
    oracle = SerialOracle(member.tables, [member.interpreted])
    with hg.open(None, tables=member.tables, transactions=[member.compiled]) as engine:
        for table in member.tables:
            engine.load(table, rows[table.name])
            oracle.load(table, rows[table.name])
        expected = oracle.run(member.interpreted, events, order_by=order)
        found = engine.run(member.compiled, events, order_by=order, scheme=scheme, threads=2)
        assert results_difference(found, expected) is None
        assert difference(engine, oracle) is None


def test_no_scheme_hangs() -> None:
    """A watchdog in the child ends it with the stacks of all threads when a batch takes minutes.

    It stands behind the tests that run the same transactions: the child finds them compiled.
    """
    done = python("tests.property.stress_program", "3")
    assert done.returncode == 0, f"hung after: {done.stdout.splitlines()[-1:]}\n{done.stderr}"
    assert done.stdout.endswith("all done\n")


# --- canaries: each of these mistakes must show -------------------------------------------------


def test_a_dropped_temporal_dependency_is_caught(
    serial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without TD edges, and each stratum the other way round, some result is another."""
    real = units.link

    def forget(batch: precedence.Units, scratch: Any = None) -> precedence.Precedence:
        graph = real(batch, scratch)
        kept = graph.kinds == precedence.PD
        targets = np.repeat(np.arange(batch.count), np.diff(graph.before_starts))[kept]
        starts = np.searchsorted(targets, np.arange(batch.count + 1))
        stratum = np.zeros(batch.count, np.int64)
        for unit, source in zip(targets.tolist(), graph.before[kept].tolist(), strict=True):
            stratum[unit] = max(stratum[unit], stratum[source] + 1)
        strata = int(stratum.max()) + 1
        return replace(
            graph, before_starts=starts, before=graph.before[kept], kinds=graph.kinds[kept],
            stratum=stratum, strata=strata,
        )  # fmt: skip

    def backwards(graph: precedence.Precedence) -> precedence.Tasks:
        tasks = precedence.unit_tasks(graph)
        starts, order = tasks.by_stratum
        spans = pairwise(starts.tolist())
        turned = np.concatenate([order[first:last][::-1] for first, last in spans])
        return replace(tasks, by_stratum=(starts, turned))

    monkeypatch.setattr(units, "unit_tasks", backwards)
    assert same(spent(5, scheme="strata-operation-lazy", threads=1), serial["high"])
    monkeypatch.setattr(units, "link", forget)
    assert not same(spent(5, scheme="strata-operation-lazy", threads=1), serial["high"])


def test_a_version_one_too_new_is_caught(serial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parametric read that skips one version of its row, the newest, gives other results."""
    real = units.link

    def older(batch: precedence.Units, scratch: Any = None) -> precedence.Precedence:
        graph = real(batch, scratch)
        found = graph.previous
        # One version off: what the writer before the right one left.
        before = np.where(found >= 0, found[found], -1)
        wrong = (found >= 0) & (np.arange(len(found)) % 3 == 1)
        return replace(graph, previous=np.where(wrong, before, found))

    monkeypatch.setattr(units, "link", older)
    assert not same(spent(5, scheme="strata-operation-lazy", threads=1), serial["high"])


def test_an_abort_that_forgets_the_rest_is_caught(
    serial: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """With LD forgotten, what else the aborted transaction wrote stays."""
    import numba

    @numba.njit(nogil=True)
    def forget(unit: int, frame: int) -> int:
        return 0

    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    monkeypatch.setattr(over_versions, "fail", forget)
    monkeypatch.setattr(scheduler, "build_unit_kernels", building.build_unit_kernels)
    assert not same(spent(5, scheme="strata-operation-lazy", threads=1), serial["high"])
