"""Keys that depend on rows: every way to run a batch gives what the serial oracle gives.

Orders lead to their stock, and that to a region: rows that other events of the same batch create,
change, delete, or would have changed if they had not aborted.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import headgate as hg
from headgate.kernels.generating_keys import DynamicText
from headgate.kernels.generating_look_ups import LookUpText
from headgate.testing import SerialOracle, difference, results_difference

orders = hg.Table("orders", "id bigint, sku string, n int", key="id")
stock = hg.Table("stock", "sku string, left int, region bigint", key="sku", check="left >= -40")
regions = hg.Table("regions", "number int, sku string, value bigint", key="number, sku")
TABLES = [orders, stock, regions]
COSTLY_NS = 500_000.0  # as if a transaction took so long: few of them are worth threads
EVENT = "kind string, order bigint, sku string, n int"


def sku_of(order: Any) -> Any:
    return order.sku


def make_routes(compiled: bool) -> dict[str, Any]:
    """The transactions of a shop whose events know the number of an order, and nothing else."""

    @hg.transaction(event=EVENT, compiled=compiled)
    def place(
        event,
        order=orders.at("order", create=True),
        goods=stock.at(lambda event: event.sku, create=True),
        out=hg.output("left int"),
    ):
        if event.n > 8:
            return hg.abort("too many")
        order.sku = event.sku
        order.n += event.n
        goods.left -= event.n
        goods.region = event.order % 3
        out.left = goods.left

    @hg.transaction(event=EVENT, compiled=compiled)
    def cancel(
        event,
        order=orders.at("order"),
        goods=stock.at(sku_of),
        region=regions.at(
            lambda goods: goods.region % 2, lambda event, order: order.sku, create=True
        ),
    ):
        goods.left += order.n
        region.value += 100 // order.n
        if event.n == 3:
            hg.delete(order)
        if event.n == 4:
            hg.delete(goods)

    @hg.transaction(event=EVENT, compiled=compiled)
    def look(
        event,
        seen=stock.at("sku", mode="read"),
        found=regions.at(lambda event, seen: (event.n % 2, seen.sku), mode="read"),
        again=stock.at(lambda found: found.sku),
        out=hg.output("value bigint"),
    ):
        out.value = found.value + 1000 // again.left

    @hg.transaction(event=EVENT, compiled=compiled)
    def follow(
        event,
        order=orders.at("order"),
        other=orders.at(lambda order: 60 // (order.n - 3)),
        out=hg.output("value bigint"),
    ):
        other.n = order.n
        order.sku = event.sku
        out.value = other.id

    return {one.name: one for one in (place, cancel, look, follow)}


COMPILED, PLAIN = make_routes(True), make_routes(False)


KINDS = ("place", "place", "cancel", "cancel", "look", "follow")


def make_events(
    seed: int, keys: int, count: int, kinds: tuple[str, ...] = KINDS
) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "kind": draw.choice(kinds),
            "order": draw.randrange(keys),
            "sku": draw.choice("abcdefgh"[: max(2, keys // 8)]),
            "n": draw.randrange(1, 10),
        }
        for _ in range(count)
    ]


def compare(
    routes: dict[str, Any], batches: list[list[dict[str, Any]]], updates: bool = False, **how: Any
) -> hg.Engine:
    """Run the batches by an engine and by the oracle; both must say and hold the same."""
    oracle = SerialOracle(TABLES, list(routes.values()))
    engine = hg.open(None, tables=TABLES, transactions=list(routes.values()))
    for events in batches:
        told = {"route_by": "kind", "updates": updates}
        for executor in engine._executors.values():
            executor.scheduler.cost_ns = COSTLY_NS
        got = engine.run(routes, events, **told, **how)
        found = results_difference(got, oracle.run(routes, events, **told))
        assert found is None, found
        assert difference(engine, oracle) is None, difference(engine, oracle)
    return engine


BATCHES = [make_events(seed, keys, 260) for seed, keys in enumerate((8, 40, 300))]
# In these none raises, which would end the work of all threads.
BATCHES += [make_events(9, keys, 300, ("place", "cancel", "cancel")) for keys in (60, 2000)]
# One for each text that looks for such rows, and with --long others by the same texts: how threads
# go through the tasks is proved over the widest shape (tests/property/test_wide.py).
WAYS = ("serial", "auto", "shares", "ready", "strata-operation-lazy", "virtual", "virtual-rows")
SCHEMES = (*WAYS, "depth-chain", "tstream", "lal")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_scheme" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("long")
        metafunc.parametrize("any_scheme", SCHEMES if is_long else WAYS)


def test_every_scheme_finds_the_rows_that_the_serial_order_finds(any_scheme: str) -> None:
    engine = compare(COMPILED, BATCHES, scheme=any_scheme, threads=2)
    engine.close()


def test_plain_functions_and_results_with_updates_do_too() -> None:
    compare(PLAIN, BATCHES[:2]).close()
    compare(COMPILED, BATCHES, updates=True).close()


def test_plain_and_compiled_functions_share_a_batch() -> None:
    mixed = {**COMPILED, "place": PLAIN["place"], "look": PLAIN["look"]}
    compare(mixed, BATCHES).close()


def test_explain_counts_computed_keys_and_changes_nothing() -> None:
    with compare(COMPILED, BATCHES[:1]) as engine:
        before = [engine.sql(f"select * from {table.name}").rows() for table in TABLES]
        figures = engine.explain(COMPILED, BATCHES[1], route_by="kind")
        kinds = [event["kind"] for event in BATCHES[1]]
        named = {"place": 1, "cancel": 2, "look": 2, "follow": 1}
        assert figures.dynamic == sum(named[kind] for kind in kinds)
        assert 1 < figures.certain_sections < len(kinds)
        assert before == [engine.sql(f"select * from {table.name}").rows() for table in TABLES]


@pytest.mark.parametrize("level", ["PL1", "PL2", "PL3"])
def test_weaker_levels_run_in_event_order(level: str) -> None:
    compare(COMPILED, BATCHES[:2], scheme="lock", threads=2, isolation=level).close()


def test_sections_in_which_keys_are_certain_run_on_threads() -> None:
    with compare(COMPILED, BATCHES[3:], scheme="ready", threads=2) as engine:
        told = " ".join(decision.why for decision in engine.decisions())
        assert "sections in which they are certain" in told
        assert "could not finish" not in told


def forget_certainty(self: DynamicText, *given: Any) -> list[str]:
    """A canary: rows that were looked up before are taken for those of the serial order."""
    return []


def some_routes(*names: str) -> dict[str, Any]:
    """Those of the transactions that a canary needs, to be compiled with its bug."""
    return {name: one for name, one in make_routes(True).items() if name in names}


def test_a_stale_prediction_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DynamicText, "_certain", forget_certainty)
    with pytest.raises(AssertionError, match=r"result|table"):
        compare(some_routes("place", "cancel"), BATCHES[3:], scheme="ready", threads=2)


def test_a_row_made_in_the_batch_and_not_looked_for_again_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A canary: a static key that was looked for some events ahead is not looked for again.
    monkeypatch.setattr(LookUpText, "_may_be_made", lambda self, table: False)
    with pytest.raises(AssertionError, match=r"result|table"):
        events = make_events(3, 8, 260, ("place", "look", "look"))
        compare(some_routes("place", "look"), [events], scheme="serial")


def slots_of(engine: hg.Engine) -> dict[str, Any]:
    """By table: the keys of all slots that were ever used, and how many of them are free."""
    return {
        name: (rows.words[: rows.count, 1].tolist(), rows.free_count)
        for name, rows in engine._memory.rows.items()
    }


def test_rows_are_made_in_the_same_slots_by_every_scheme() -> None:
    found = []
    for scheme in ("serial", "shares", "ready", "virtual"):
        with compare(COMPILED, BATCHES, scheme=scheme, threads=2) as engine:
            found.append(slots_of(engine))
    assert all(slots == found[0] for slots in found)


def test_slots_that_no_row_was_made_in_are_given_back() -> None:
    with compare(COMPILED, BATCHES[:1]) as engine:
        before = slots_of(engine)
        many = [{**event, "kind": "place", "n": 9} for event in BATCHES[2]]  # all of them abort
        results = engine.run(COMPILED, many, route_by="kind")
        assert set(results["outcome"].to_pylist()) == {"aborted"}
        after = slots_of(engine)
    skus = {event["sku"] for event in many}
    assert len(after["stock"][0]) <= len(before["stock"][0]) + len(skus) < len(many)
    for name, (keys, free) in before.items():
        assert len(after[name][0]) - after[name][1] == len(keys) - free
