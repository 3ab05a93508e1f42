"""Members of the family with nulls: in every type, in rows, events and outputs."""

from __future__ import annotations

from typing import Any

import headgate as hg
from tests.property.members import member

parcels = hg.Table(
    "parcels",
    """id bigint, weight double NULL, height float NULL, label string NULL,
       stops int NULL DEFAULT 2, due decimal(10,2) NULL, seen timestamp NULL, day date NULL,
       fragile boolean NULL, n bigint NULL""",
    key="id",
    check="""(stops > -50 or fragile) and not (n between -90 and -60) and label <> 'mallory' and
             (length(label) < 20 or label not like 'a%' or label > 'it')""",
)


def _later(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return one if one > other else other


@member(
    """ts timestamp NULL, id bigint, weight double NULL, height float NULL, label string NULL,
       stops int NULL, due decimal(10,2) NULL, day date NULL, fragile boolean NULL, n bigint""",
    "n",
)
def stow(
    event,
    parcel=parcels.at("id", create=True),
    out=hg.output(
        """was string NULL, stops int NULL, owed decimal(12,3) NULL,
           seen timestamp NULL, before bigint"""
    ),
):
    out.was = parcel.label
    out.seen = parcel.seen
    parcel.weight = event.weight
    parcel.height = event.height or parcel.height
    parcel.label = event.label
    parcel.due = event.due if event.due is not None else parcel.due
    parcel.seen = _later(parcel.seen, event.ts)
    parcel.day = _later(event.day, parcel.day)
    if event.stops != parcel.stops:
        parcel.fragile = event.fragile
    stops = event.stops
    if stops is not None:
        parcel.stops = None if stops == 0 else stops % 7
        out.stops = stops // 2
    out.owed = parcel.due
    out.before = 0 if parcel.n is None else parcel.n
    parcel.n = event.n
    if event.label == "a":
        hg.delete(parcel)


@member("n bigint NULL, ids array<bigint>, src bigint, factor double NULL, add boolean NULL")
def weigh(
    event,
    source=parcels.at("src"),
    others=parcels.each("ids", create=True),
    out=hg.output("top bigint NULL, total double NULL"),
):
    top = None
    for other in others:
        number = other.n
        if number is not None and (top is None or number > top):
            top = number
        if event.add:
            other.n = other.n + event.n
            other.weight = source.weight
    out.top = top
    source.n = top
    if not event.add and source.weight != event.factor:
        out.total = source.weight * event.factor
