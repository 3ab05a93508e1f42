"""`updates=True`: the rows in the results are those the oracle has after each transaction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.family import FAMILY
from tests.property.harness import Harness

# Rows named twice, arrays of rows, deleted rows, texts, floats that are not equal to themselves.
MEMBERS = ("move", "switch", "take_seat", "share_out", "offer", "clear_out")


@pytest.mark.parametrize("name", MEMBERS)
@making.examples(25)
@given(data=st.data())
def test_both_forms_show_the_rows_of_the_oracle(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    harness = Harness([name], rows)
    for events in data.draw(making.batches(making.events(member)), "batches"):
        harness.run(name, events, updates=True)
    harness.compare_tables()


# --- several transactions of one stream, under the same names ----------------------------------

pots = hg.Table("pots", "id bigint, n bigint, name string", key="id", check="n < 40")
EVENT = "kind string, id bigint, other bigint, ids array<bigint>"


def look(event, pot=pots.at("id", mode="read"), found=pots.each("ids"), out=hg.output("n bigint")):
    out.n = pot.n
    for one in found:
        one.n += pot.n


def change(event, pot=pots.at("id"), found=pots.each("ids", mode="read")):
    for one in found:
        pot.n += one.n
    if pot.n % 5 == 3:
        return hg.abort("three")


def make(event, pot=pots.at("id", create=True), found=pots.each("ids", create=True)):
    pot.n += len(found)
    for one in found:
        one.name = "made"


def drop(event, pot=pots.at("id"), found=pots.each("ids")):
    hg.delete(pot)
    for one in found:
        if one.id == event.other:
            hg.delete(one)


def follow(event, pot=pots.at("id", mode="read"), other=pots.at(lambda pot: pot.n % 4)):
    other.n += 1


FORMS = (look, change, make, drop, follow)
SETS = {
    form: {
        one.__name__: hg.transaction(event=EVENT, compiled=form == "compiled" or place % 2 == 0)(
            one
        )
        for place, one in enumerate(FORMS)
    }
    for form in ("compiled", "mixed")
}
IDS = st.integers(0, 6)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from([one.__name__ for one in FORMS]),
            "id": IDS,
            "other": IDS,
            "ids": st.lists(IDS, max_size=3),
        }
    ),
    max_size=20,
)


@pytest.mark.parametrize("form", SETS)
@making.examples(40)
@given(batches=st.lists(EVENTS, max_size=3), threads=st.sampled_from([1, 2]))
def test_routes_that_share_names_show_what_each_of_them_left(
    form: str, batches: list[list[dict[str, Any]]], threads: int
) -> None:
    """One reads and another writes under a name: who only reads leaves no row behind."""
    routes, rows = SETS[form], [{"id": n, "n": n, "name": "old"} for n in range(4)]
    oracle = SerialOracle([pots], list(routes.values()))
    with hg.open(None, tables=[pots], transactions=list(routes.values())) as engine:
        oracle.load(pots, rows)
        engine.load(pots, rows)
        for events in batches:
            told = {"route_by": "kind", "updates": True}
            wanted = oracle.run(routes, events, **told)
            found = engine.run(routes, events, **told, threads=threads)
            assert results_difference(found, wanted) is None
        assert difference(engine, oracle) is None
