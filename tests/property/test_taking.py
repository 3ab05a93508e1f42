"""sum, min, max, any and all over rows and arrays: compiled, plain and in the oracle the same.

Each form is a loop in disguise: what it gives, what it raises and at which value it stops is what
Python says, whatever the rows hold.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.harness import decoded, same_bytes

orders = hg.Table(
    "orders",
    "id bigint, customer bigint, total bigint, weight double, price decimal(9,2), "
    "state string, coupon bigint NULL",
    key="id",
    index=["customer"],
)
EVENT = (
    "customer bigint, ids array<bigint>, amounts array<double>, flags array<boolean>, least bigint"
)
OUT = "n bigint, f double, d decimal(18,2), b boolean, c boolean, s string, m bigint NULL"
TENTH = 0.1


def worth(row, factor):
    return row.total * factor


def over_a_range(event, theirs=orders.where("customer"), out=hg.output(OUT)):
    factor = len(theirs) + 1
    out.n = sum(row.total for row in theirs if row.state == "open")
    out.f = sum(row.weight * TENTH for row in theirs)
    out.d = sum((row.price for row in theirs), hg.decimal("0.01"))
    out.b = any(row.total > event.least for row in theirs)
    out.c = all(worth(row, factor) > event.least for row in theirs if row.state != "open")
    out.m = max((row.total for row in theirs), default=-1)


def over_each(event, found=orders.each("ids"), out=hg.output(OUT)):
    if any(row.state == "lost" for row in found):
        return hg.abort("lost")
    out.n = sum(1 for row in found if row.total > 0) + sum(row.total > 2 for row in found)
    out.f = min((row.weight for row in found), default=0.5)
    out.s = max((row.state for row in found), default="none")
    out.m = min(row.total for row in found)
    for row in found:
        row.total += out.n
        row.weight = sum(other.weight for other in found)


def over_arrays(event, theirs=orders.where("customer", mode="read"), out=hg.output(OUT)):
    out.f = sum(event.amounts) + sum((x * y for x in event.amounts for y in event.amounts), 0.0)
    out.b = any(event.flags) or any(any(x < y for y in event.amounts) for x in event.amounts)
    out.c = all(event.flags)
    out.n = sum(place for place, flag in enumerate(event.flags) if flag)
    out.m = sum(a * 2**40 for a in event.ids) if all(event.flags) else None
    if max(event.amounts) > 1.0:
        out.d = sum((row.price for row in theirs), hg.decimal("0.00"))


def over_nulls(event, theirs=orders.where("customer"), out=hg.output(OUT)):
    out.b = any(row.coupon is None for row in theirs)
    out.c = all(row.coupon for row in theirs)
    out.n = sum(row.coupon or 0 for row in theirs)
    if event.least > 0:
        out.m = sum(row.coupon for row in theirs)
    for row in theirs:
        row.coupon = None if row.coupon else 3


FORMS = {one.__name__: one for one in (over_a_range, over_each, over_arrays, over_nulls)}
COMPILED = {name: hg.transaction(event=EVENT)(one) for name, one in FORMS.items()}
PLAIN = {name: hg.transaction(event=EVENT, compiled=False)(one) for name, one in FORMS.items()}
WHOLE = st.integers(-3, 3) | st.sampled_from([2**62, -(2**62)])
REAL = st.sampled_from([0.1, 0.2, -0.0, 1e16, -1e16, 3.0, float("inf"), float("nan")])
ROW = st.fixed_dictionaries(
    {
        "customer": st.integers(0, 2),
        "total": WHOLE,
        "weight": REAL,
        "price": st.decimals(-5, 5, places=2, allow_nan=False),
        "state": st.sampled_from(["open", "shut", "lost"]),
        "coupon": st.none() | st.integers(-1, 2) | st.just(2**63 - 1),
    }
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(list(FORMS)),
            "customer": st.integers(0, 3),
            "ids": st.lists(st.integers(0, 4), max_size=3),
            "amounts": st.lists(REAL, max_size=4),
            "flags": st.lists(st.booleans(), max_size=3),
            "least": st.integers(-2, 3),
        }
    ),
    max_size=8,
)


@making.examples(60)
@given(rows=st.lists(ROW, max_size=6), events=EVENTS)
def test_all_forms_give_what_python_gives(
    rows: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    rows = [{"id": number, **row} for number, row in enumerate(rows)]
    oracle, found = SerialOracle([orders], list(PLAIN.values())), []
    oracle.load(orders, rows)
    wanted = oracle.run(PLAIN, events, route_by="kind")
    for routes in (COMPILED, PLAIN):
        with hg.open(None, tables=[orders], transactions=list(routes.values())) as engine:
            engine.load(orders, rows)
            found.append(engine.run(routes, events, route_by="kind"))
            assert results_difference(found[-1], wanted) is None
            assert difference(engine, oracle) is None
    assert same_bytes(decoded(found[0]), decoded(found[1]))
