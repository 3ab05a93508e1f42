"""Shards: whatever the number of shards and whatever happens to tasks, the oracle's results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.shards import changes
from headgate.shards.planning import Costs
from headgate.shards.whole import WholeBatch
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property import test_constraints as constrained
from tests.property import test_straight as straight
from tests.property.family import FAMILY
from tests.property.harness import decoded, same_bytes, sorted_table
from tests.property.workers import Workers, open_sharded
from tests.unit.shards import wards

ROUTED = ("put", "move", "drop")
COMPILED = ("transfer", "deposit", "move")  # kernels that others build anyway


def choose(engine: hg.Engine, data: st.DataObject, *, first: bool = False) -> None:
    """Let the next batch run in the driver, where plain ones go the straight path, or in tasks."""
    # In tasks a batch takes long, or no time.
    job = 9.0 if first else data.draw(st.sampled_from((9.0, 0.0)), "job")
    engine._batches._elsewhere._costs = Costs(event=1e-9, whole=1.0, job=job, jobs=2, tasks=2)


def compare(engine: hg.Engine, one: hg.Engine, oracle: SerialOracle) -> None:
    assert difference(engine, oracle) is None
    for table in engine.tables.values():
        assert same_bytes(sorted_table(engine, table), sorted_table(one, table))
    assert engine.counts() == one.counts()


def opened(tables: Any, forms: Any, rows: Any, data: st.DataObject) -> tuple[Any, Any, Any]:
    """The engine with shards, the one in one process, and the oracle, with the same rows."""
    shards = data.draw(st.sampled_from((1, 2, 5)), "shards")
    trouble = data.draw(st.sampled_from((0.0, 0.5)), "trouble")
    workers = Workers(data.draw(st.integers(0, 99), "seed"), 2, trouble)
    engine = open_sharded(tables, forms, shards, workers, driver_bytes_max=1 << 30)
    one = hg.open(None, tables=tables, transactions=forms)
    oracle = SerialOracle(tables, forms)
    for table in tables:
        expected = oracle.load(table, rows[table.name])
        assert engine.load(table, rows[table.name]) == one.load(table, rows[table.name]) == expected
    return engine, one, oracle


@pytest.mark.parametrize("name", FAMILY)
@making.examples(6)
@given(data=st.data())
def test_results_and_rows_are_those_of_one_process(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    compiled = name in COMPILED and data.draw(st.booleans(), "compiled")
    form = member.form(compiled)
    engine, one, oracle = opened(member.tables, [form], rows, data)
    options: dict[str, Any] = {"order_by": list(member.order_by)}
    options |= {"updates": not compiled and data.draw(st.booleans(), "updates")}
    for events in data.draw(making.batches(making.events(member)), "batches"):
        expected = oracle.run(form, events, **options)
        choose(engine, data)
        found, same = engine.run(form, events, **options), one.run(form, events, **options)
        assert results_difference(found, expected) is None
        assert same_bytes(decoded(found), decoded(same))
        compare(engine, one, oracle)
    engine.close()


@pytest.mark.parametrize("name", ["transfer", "move", "hop"])
@making.examples(6)
@given(data=st.data())
def test_the_graph_of_events_is_that_of_one_process(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    form, order = member.compiled, list(member.order_by)
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    engine, one, oracle = opened(member.tables, [form], rows, data)
    for events in data.draw(making.batches(making.events(member)), "batches"):
        found, same = (each.explain(form, events, order_by=order) for each in (engine, one))
        assert repr(found) == repr(same)
        assert found.graph.units.count > 200 or found.svg() == same.svg()
        expected = oracle.run(form, events, order_by=order)
        assert results_difference(engine.run(form, events, order_by=order), expected) is None
        one.run(form, events, order_by=order)
        compare(engine, one, oracle)
    engine.close()


@making.examples(10)
@given(data=st.data())
def test_routed_events_that_create_move_and_delete_do_too(data: st.DataObject) -> None:
    forms = {name: FAMILY[name].interpreted for name in ROUTED}
    tables = FAMILY["put"].tables
    rows = data.draw(making.filled_tables(*tables), "rows")
    engine, one, oracle = opened(tables, list(forms.values()), rows, data)
    routed = st.sampled_from(ROUTED).flatmap(
        lambda name: making.events(FAMILY[name]).map(lambda event: {**event, "kind": name})
    )
    options: dict[str, Any] = {"route_by": "kind"}
    for events in data.draw(making.batches(routed), "batches"):
        expected = oracle.run(forms, events, **options)
        choose(engine, data)
        found, same = engine.run(forms, events, **options), one.run(forms, events, **options)
        assert results_difference(found, expected) is None
        assert same_bytes(decoded(found), decoded(same))
        compare(engine, one, oracle)
    engine.close()


@pytest.mark.parametrize("name", ["mixed", "move", "drop"])
def test_plain_batches_in_the_driver_and_others_in_tasks_follow_each_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SORTED_MIN", 1)
    ends, end = [], WholeBatch.end
    monkeypatch.setattr(WholeBatch, "end", lambda *given: (ends.append(1), end(*given))[1])
    options: dict[str, Any] = {"order_by": "ts"}
    if name == "mixed":  # few of these batches are plain
        tables, rows = [straight.boxes, straight.cells], {"cells": straight.CELLS}
        forms, asked = list(straight.MIXED.values()), straight.MIXED
        batches, options = straight.mixed_events(), {**options, "route_by": "kind"}
    else:
        tables, rows = [straight.boxes, straight.plain], {"plain": straight.FIRST["plain"]}
        asked = straight.FORMS[name]
        forms, batches = [asked], straight.tables().filter(straight.is_shown)
    rows["boxes"] = straight.FIRST["boxes"]

    @making.examples(20 if name == "mixed" else 8)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        engine, one, oracle = opened(tables, forms, rows, data)
        given = data.draw(st.lists(batches, min_size=1, max_size=4), "batches")
        for number, batch in enumerate(given):
            choose(engine, data, first=not number)
            found, same = engine.run(asked, batch, **options), one.run(asked, batch, **options)
            expected = oracle.run(asked, batch.to_pylist(), **options)
            assert results_difference(found, expected) is None
            assert same_bytes(decoded(found), decoded(same))
            compare(engine, one, oracle)
        engine.close()

    check()
    assert ends or name == "mixed"


@making.examples(8)
@given(data=st.data())
def test_rows_expire_keep_versions_and_are_ticked_as_in_one_process(data: st.DataObject) -> None:
    routes = data.draw(st.sampled_from((wards.ROUTES, {**wards.ROUTES, "none": wards.sign})))
    options = data.draw(st.sampled_from(wards.OPTIONS), "options")
    trouble = data.draw(st.sampled_from((0.0, 0.5)), "trouble")
    workers = Workers(data.draw(st.integers(0, 99), "seed"), 2, trouble)
    lives = wards.Lives(data.draw(st.sampled_from((1, 2, 5)), "shards"), workers, options, routes)
    keys = data.draw(st.sampled_from((3, 6, 30)), "keys")
    for _ in range(data.draw(st.integers(1, 5), "batches")):
        after, count = data.draw(st.sampled_from((0, 2, 10))), data.draw(st.integers(1, 30))
        seed = data.draw(st.integers(0, 999))
        assert lives.run(seed, count, after=after, keys=keys) is None
    assert lives.flush() is None
    lives.close()


@making.examples(8)
@given(data=st.data())
def test_constraints_judge_as_in_one_process(data: st.DataObject) -> None:
    forms, tables = constrained.INTERPRETED, constrained.TABLES
    rows = {"regions": constrained.LOADED_REGIONS, "shops": constrained.LOADED_SHOPS}
    engine, one, oracle = opened(tables, list(forms.values()), rows, data)
    options: dict[str, Any] = {"route_by": "kind", "order_by": "ts"}
    for events in data.draw(constrained.BATCHES, "batches"):
        expected = oracle.run(forms, events, **options)
        choose(engine, data)
        found, same = engine.run(forms, events, **options), one.run(forms, events, **options)
        assert results_difference(found, expected) is None
        assert same_bytes(decoded(found), decoded(same))
        compare(engine, one, oracle)
    engine.close()
