"""Designs: what is foretold is what an engine with shards then does, and what is best is found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.lab.designing import (
    BEST,
    HASHED,
    NOW,
    PROPOSED,
    Choice,
    Design,
    Judge,
    Trace,
    Weights,
    choices_of,
    cut_graph,
    dealt,
    propose,
    read_trace,
    recommend,
)
from headgate.lab.flow_design import FlowCounts, FlowJudge, propose_flows
from tests.property.workers import Workers, open_sharded
from tests.unit.dataflow import shows

BANKS, EACH = 24, 8
accounts = hg.Table("accounts", "bank int, id bigint, balance double", key="bank, id")
rates = hg.Table("rates", "kind int, fee double", key="kind")
TABLES = {"accounts": accounts, "rates": rates}


def transfers(accounts: hg.Table, rates: hg.Table) -> Any:
    @hg.transaction(event="bank int, src bigint, to_bank int, dst bigint, kind int", compiled=False)
    def transfer(
        event: Any,
        src: Any = accounts.at("bank", "src"),
        dst: Any = accounts.at("to_bank", "dst"),
        rate: Any = rates.at("kind", mode="read"),
    ) -> None:
        src.balance -= rate.fee
        dst.balance += 1

    return transfer


transfer = transfers(accounts, rates)


@hg.transaction(event="kind int", compiled=False)
def set_rate(event: Any, rate: Any = rates.at("kind")) -> None:
    rate.fee += 1


def events_of(count: int, across: float, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    bank, other = (draw.integers(0, BANKS, count) for _ in range(2))
    src, dst = (draw.integers(0, EACH, count) for _ in range(2))
    to_bank = np.where(draw.random(count) < across, other, bank)
    columns = {"bank": bank.astype(np.int32), "src": src, "to_bank": to_bank.astype(np.int32)}
    return pa.table({**columns, "dst": dst, "kind": (src % 3).astype(np.int32)})


def traced(events: pa.Table, batch_events: int = 1000, **tables: hg.Table) -> Trace:
    known = {**TABLES, **tables}
    return read_trace(known, {"transfer": transfer}, transfer, events, batch_events, {})


@pytest.mark.parametrize("across", [0.0, 0.1])
def test_an_engine_with_the_shards_of_a_design_finds_what_was_foretold(across: float) -> None:
    events = events_of(400, across, 3)
    trace = traced(events, batch_events=100)
    judge = Judge(trace, 2, Weights())
    for choices in ({}, {"accounts": Choice(("bank",))}, {"rates": Choice(replicate=True)}):
        design = Design({name: Choice.of(one) for name, one in TABLES.items()}, 3).changed(choices)
        said = judge.verdict(judge.placed(design), 3)
        assert said.travelling == pytest.approx(_ran(design, events, 100))
        assert said.cross == pytest.approx(_by_hand(trace, design, events))


def _ran(design: Design, events: pa.Table, batch_events: int) -> float:
    """The share of events that travel when an engine runs them, batch after batch."""
    tables = [design.choices[name].applied(table) for name, table in TABLES.items()]
    rows = [{"bank": n % BANKS, "id": n // BANKS, "balance": 0.0} for n in range(BANKS * EACH)]
    travelling, declared = 0, transfers(*tables)
    with open_sharded(tables, [declared], design.shards, Workers()) as engine:
        engine.load("accounts", rows)
        engine.load("rates", [{"kind": n, "fee": 1.0} for n in range(3)])
        for first in range(0, events.num_rows, batch_events):
            found = engine.run(declared, events.slice(first, batch_events))
            assert set(found.column("outcome").to_pylist()) == {"committed"}
            told = re.search(r"([\d,]+) events in", engine.decisions()[-1].why)
            travelling += 0 if told is None else int(told[1].replace(",", ""))
    return travelling / events.num_rows


def _by_hand(trace: Trace, design: Design, events: pa.Table) -> float:
    """The share of events with rows on two shards, by asking for each row where it is."""
    shard_of: dict[tuple[Any, ...], int] = {}
    for name in TABLES:
        keys = trace._key_words(name).T.tolist()
        shards = trace.shards(name, design.choices[name], design.shards).tolist()
        shard_of.update({(name, *key): shard for key, shard in zip(keys, shards, strict=True)})
    cross = 0
    for one in events.to_pylist():
        rows = [
            ("accounts", one["bank"], one["src"]), ("accounts", one["to_bank"], one["dst"]),
            ("rates", one["kind"]),
        ]  # fmt: skip
        cross += len({shard_of[row] for row in rows} - {-1}) > 1
    return cross / events.num_rows


def test_rows_that_go_together_by_a_column_are_found_and_what_is_read_is_replicated() -> None:
    found = propose(traced(events_of(2000, 0.02, 1)), 4, Weights(), None)
    assert found.design.choices["accounts"] == Choice(("bank",))
    assert found.design.choices["rates"] == Choice(replicate=True)
    said = found.verdicts
    assert said[PROPOSED].cross < 0.03 < 0.9 < said[HASHED].cross
    assert said[NOW].shards == 1 and said[NOW].fullest == 4.0 and said[NOW].cross == 0.0
    assert said[BEST].cross < 0.1
    assert said[PROPOSED].cost < min(said[HASHED].cost, said[NOW].cost)


def test_what_the_store_declares_now_is_judged_with_its_own_shards() -> None:
    declared = replace(Choice(), shard_by=("id",)).applied(accounts)
    trace = traced(events_of(500, 0.0, 1), accounts=declared)
    said = propose(trace, 2, Weights(), 5).verdicts[NOW]
    assert said.shards == 5
    judge = Judge(trace, 2, Weights())
    same = Design({"accounts": Choice(("id",)), "rates": Choice()}, 5)
    assert said == judge.verdict(judge.placed(same), 5)


def test_a_column_with_one_value_is_not_sharded_by_though_nothing_would_cross() -> None:
    events = events_of(2000, 0.0, 1)
    one = events.set_column(0, "bank", pa.array([7] * 2000, pa.int32()))
    one = one.set_column(2, "to_bank", pa.array([7] * 2000, pa.int32()))
    design = recommend(Judge(traced(one), 4, Weights()))
    assert design.choices["accounts"].shard_by != ("bank",)
    heavy = Weights(state=1000.0)  # unless rows that are apart count for everything
    assert recommend(Judge(traced(one), 4, heavy)).choices["accounts"].shard_by == ("bank",)


def test_two_tables_that_gain_only_together_are_changed_together() -> None:
    items = hg.Table("items", "shop int, item bigint, n bigint", key="shop, item")
    orders = hg.Table("orders", "number bigint, shop int, n bigint", key="number, shop")

    @hg.transaction(event="shop int, item bigint, number bigint", compiled=False)
    def order(event: Any, i: Any = items.at("shop", "item"),
              o: Any = orders.at("number", "shop")) -> None:  # fmt: skip
        i.n += 1
        o.n += 1

    draw = np.random.default_rng(1)
    shop = draw.integers(0, 64, 2000).astype(np.int32)
    events = pa.table({"shop": shop, "item": draw.integers(0, 20, 2000), "number": range(2000)})
    tables = {"items": items, "orders": orders}
    trace = read_trace(tables, {"order": order}, order, events, 500, {})
    found = propose(trace, 2, Weights(), None)
    assert {one.shard_by for one in found.design.choices.values()} == {("shop",)}
    assert found.verdicts[PROPOSED].cross == 0.0


def test_a_table_that_is_often_written_or_large_is_not_replicated() -> None:
    events = events_of(100, 0.0, 1)
    trace = traced(events)
    assert Choice(replicate=True) in choices_of(trace, rates)
    assert Choice(replicate=True) not in choices_of(trace, accounts)  # each look may write
    large = replace(trace, sizes={"rates": 10_000_000})
    assert Choice(replicate=True) not in choices_of(large, rates)
    written = read_trace(
        TABLES, {"set_rate": set_rate}, set_rate, events.select(["kind"]), 100, {}
    )  # fmt: skip
    assert Choice(replicate=True) not in choices_of(written, rates)


def test_dearer_events_count_for_more_of_the_load() -> None:
    trace = traced(events_of(400, 0.0, 1))
    design = Design({"accounts": Choice(("bank",)), "rates": Choice(replicate=True)}, 2)
    judge = Judge(trace, 2, Weights())
    homes = judge.placed(design)[trace.touched.rows[::3]]  # each event looks at three rows
    assert len(homes) == 400
    dear = Judge(replace(trace, costs=np.where(homes == 1, 9.0, 1.0)), 2, Weights())
    even, uneven = (one.verdict(one.placed(design), 2) for one in (judge, dear))
    assert uneven.load_cost > 0.5 > even.load_cost


def test_shards_are_dealt_out_evenly_and_metis_cuts_where_it_is_thin() -> None:
    assert sorted(dealt(np.array([5.0, 4.0, 3.0, 2.0]), 2).tolist()) == [7.0, 7.0]
    cliques = [(one, other) for base in (0, 4) for one in range(base, base + 4)
               for other in range(base, one)]  # fmt: skip
    edges = np.array([*cliques, (3, 4)]).T
    parts = cut_graph(edges, np.ones(edges.shape[1]), np.ones((1, 8), np.int64), 2)
    assert len(set(parts[:4])) == 1 == len(set(parts[4:])) and parts[0] != parts[7]


# ---------------------------------------------------------------- dataflows


def judged(seconds: Mapping[str, float], workers: int = 2, weights: Weights | None = None) -> Any:
    graph = shows.show(()).graph
    queues = {"valid": 100, "trending": 10}
    counted = FlowCounts(dict.fromkeys(seconds, 100), seconds, queues)
    return propose_flows(graph, counted, workers, weights or Weights()), FlowJudge(
        graph, counted, workers, weights or Weights()
    )


def test_units_are_dealt_out_by_their_time_and_queues_cost_where_they_cross() -> None:
    found, judge = judged({"validate": 1.0, "count": 1.0, "trend": 2.0})
    best = found.verdicts[PROPOSED]
    assert best.workers["validate"] == best.workers["count"] != best.workers["trend"]
    assert best.load_cost == 0.0 and best.state_cost == 0.0
    assert best.processing_cost == 0.5  # one of two queues of 100 rows
    assert best.cost == pytest.approx(0.5)
    assert judge.alone().cost == 3.0
    # Where queues count for more than load, nothing is taken apart.
    together = judged({"validate": 1.0, "count": 1.0, "trend": 2.0}, 2, Weights(2.0, 9.0, 1.0))[0]
    assert set(together.verdicts[PROPOSED].workers.values()) == {
        together.verdicts[PROPOSED].workers["trend"]
    }


def test_pins_that_are_proposed_can_be_declared_and_are_run() -> None:
    found, _ = judged({"validate": 1.0, "count": 1.0, "trend": 2.0})
    pins = found.verdicts[PROPOSED].workers
    flow = hg.Dataflow("show", [shows.validate, shows.count, shows.trend],
                       workers=hg.Workers(2, pins=pins))  # fmt: skip
    with hg.open(None, tables=shows.TABLES, dataflows=[flow]) as engine:
        engine.load(shows.contestants, [{"id": 1, "name": "a"}])
        engine.push(shows.votes, [shows.vote(n, n) for n in range(6)])
        assert engine.get("tallies", 1) == {"contestant": 1, "votes": 6}
