"""Every scheme gives the same bytes as the serial one, on any number of threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.parallel import graph as graphs
from headgate.parallel import scheme, whole_transactions

accounts = hg.Table("accounts", "id bigint, balance double, n bigint", key="id", check="n < 60")


@hg.transaction(
    event="ts bigint, src bigint, dst bigint, seen bigint, amount double, z bigint, "
    "ids array<bigint>"
)
def move(
    event,
    src=accounts.at("src"),
    dst=accounts.at("dst", create=True),
    seen=accounts.at("seen", mode="read"),
    rows=accounts.each("ids"),
    out=hg.output("left double, share bigint"),
):
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    for row in rows:
        row.n += 1
    if event.z == 7:
        hg.delete(dst)
    out.left = src.balance + seen.balance
    out.share = 10 // event.z


@hg.transaction(event="ts bigint, src bigint, amount double")
def deposit(event, src=accounts.at("src", create=True)):
    src.balance += event.amount


PARALLEL = ("shares", "strata", "depth", "ready", "lal", "pat")
CONTENTION = {"high": 5, "middle": 60, "low": 3000}


def make_events(seed: int, keys: int, count: int, errors: float) -> pa.Table:
    random = np.random.default_rng(seed)
    z = random.integers(1, 9, count)
    z[random.random(count) < errors] = 0
    lists = [random.integers(0, keys, size).tolist() for size in random.integers(0, 4, count)]
    return pa.table(
        {
            "kind": random.choice(["move", "deposit"], count),
            "ts": random.integers(0, count // 2, count),
            "src": random.integers(0, keys, count),
            "dst": random.integers(0, keys + 3, count),
            "seen": random.integers(0, keys, count),
            "amount": random.random(count) * 30,
            "z": z,
            "ids": pa.array(lists, pa.list_(pa.int64())),
        }
    )


def outcome_of(
    keys: int, errors: float, count: int = 600, **options: Any
) -> tuple[pa.Table, pa.Table]:
    """Results and table after three batches of both transactions."""
    with hg.open(None, tables=[accounts], transactions=[move, deposit]) as engine:
        ids = np.arange(keys)
        rows = {"id": ids, "balance": np.full(keys, 100.0), "n": np.zeros(keys, np.int64)}
        engine.load(accounts, pa.table(rows))
        routes = {"move": move, "deposit": deposit}
        results = [
            engine.run(
                routes,
                make_events(seed, keys, count, errors),
                route_by="kind",
                order_by="ts",
                **options,
            )
            for seed in range(3)
        ]
        return pa.concat_tables(results), engine.sql("select * from accounts").arrow()


@pytest.fixture(scope="module")
def serial() -> dict[tuple[str, float], tuple[pa.Table, pa.Table]]:
    return {
        (name, errors): outcome_of(keys, errors, scheme="serial")
        for name, keys in CONTENTION.items()
        for errors in (0.0, 0.01)
    }


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("contention", CONTENTION)
def test_a_scheme_gives_the_bytes_of_the_serial_one(
    contention: str, name: str, threads: int, serial: Any
) -> None:
    for errors in (0.0, 0.01):
        found = outcome_of(CONTENTION[contention], errors, scheme=name, threads=threads)
        assert found[0].equals(serial[contention, errors][0])
        assert found[1].equals(serial[contention, errors][1])


def test_the_batches_have_aborts_errors_and_deletes(serial: Any) -> None:
    results = serial["high", 0.01][0].to_pandas()
    reasons = set(results["reason"].dropna())
    assert "insufficient funds" in reasons
    assert "missing key: accounts" in reasons
    assert "check failed: accounts: n < 60" in reasons
    assert "error: ZeroDivisionError: division by zero" in reasons


def backwards(graph: graphs.Graph) -> graphs.Graph:
    """Each stratum the other way round: an order that every scheduler is free to take."""
    spans = pairwise(graph.strata_starts.tolist())
    turned = [graph.by_stratum[first:last][::-1] for first, last in spans]
    return replace(graph, by_stratum=np.concatenate(turned))


def test_the_order_within_a_stratum_does_not_matter(
    serial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = graphs.build_graph
    monkeypatch.setattr(whole_transactions, "build_graph", lambda *found: backwards(build(*found)))
    found = outcome_of(5, 0.0, scheme="strata", threads=2)
    assert found[0].equals(serial["high", 0.0][0])
    assert found[1].equals(serial["high", 0.0][1])


def test_a_dropped_dependency_is_caught(serial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: with the edges of the graph forgotten, that order gives other bytes."""
    build, link = graphs.build_graph, graphs._link

    def forget(*arguments: Any) -> Any:
        sources, targets = link(*arguments)
        return sources[:0], targets[:0]

    monkeypatch.setattr(graphs, "_link", forget)
    monkeypatch.setattr(whole_transactions, "build_graph", lambda *found: backwards(build(*found)))
    found = outcome_of(5, 0.0, scheme="strata", threads=1)
    assert not found[0].equals(serial["high", 0.0][0])


def test_no_lock_is_named_incorrect() -> None:
    assert "INCORRECT" in scheme.SCHEME_NAMES["nolock"]


def test_an_unknown_scheme_names_those_there_are() -> None:
    with hg.open(None, tables=[accounts], transactions=[deposit]) as engine:
        event = [{"ts": 1, "src": 1, "amount": 1.0}]
        with pytest.raises(hg.InputError, match="strata"):
            engine.run(deposit, event, scheme="fastest")


def test_the_model_says_in_words_what_it_chose() -> None:
    with hg.open(None, tables=[accounts], transactions=[deposit]) as engine:
        events = pa.table({"ts": range(100), "src": range(100), "amount": [1.0] * 100})
        for _ in range(2):
            engine.run(deposit, events, threads=2)
        first, second = engine.decisions()
    assert first.scheme == "serial"
    assert "not known yet" in first.why
    assert second.scheme == "serial"
    assert "less than telling others" in second.why


def test_explain_counts_the_graph_and_changes_nothing() -> None:
    with hg.open(None, tables=[accounts], transactions=[deposit]) as engine:
        events = [{"ts": ts, "src": ts % 2, "amount": 1.0} for ts in range(10)]
        figures = engine.explain(deposit, events, order_by="ts")
        assert (figures.transactions, figures.rows, figures.strata) == (10, 2, 5)
        assert engine.sql("select count(*) from accounts").rows() == [(0,)]
        assert engine.load(accounts, [{"id": 1, "balance": 1.0, "n": 0}]) == 1
