"""Members of the family over rows that expire: ranges that lose them, computed keys, references."""

from __future__ import annotations

from typing import Any

import headgate as hg
from tests.property.members import Member, member

guests = hg.Table(
    "guests",
    "id bigint, seen timestamp, n bigint",
    key="id",
    index="n",
    expires="seen + 3 seconds",
    check="n < 90",
)
stages = hg.Table(
    "stages", "id bigint, after bigint DEFAULT 2, day date NULL", key="id", expires="day"
)
clubs = hg.Table(
    "clubs", "id bigint, name string, until timestamp NULL", key="id", unique="name",
    expires="until",
)  # fmt: skip
cards = hg.Table(
    "cards",
    "number bigint, club bigint NULL, friend bigint NULL, since timestamp",
    key="number",
    references={"club": clubs, "friend": "cards"},
    expires="since + 2 seconds",
)


@member("ts timestamp, id bigint, a bigint, b bigint, back timestamp, n bigint", "ts")
def drop_in(
    event,
    near=guests.between("a", "b"),
    most=guests.where("n", descending=True, limit=2, mode="read"),
    mine=guests.at("id", create=True),
    out=hg.output("count bigint, others bigint, n bigint"),
):
    out.others = len(most)
    for one in near:
        out.count = out.count * 5 + one.id
        if event.n == 13:
            one.seen = event.back
    mine.n += event.n
    mine.seen = event.ts if event.n % 3 else event.back
    out.n = mine.n
    if event.n == 7:
        return hg.abort("seven")


@member("ts timestamp, id bigint, n bigint, day date NULL", "ts")
def stage(
    event,
    first=stages.at("id"),
    second=stages.at(lambda first: first.after % 5, create=True),
    out=hg.output("id bigint"),
):
    out.id = second.id
    second.after += event.n
    if event.n % 2:
        second.day = event.day
        first.after = event.n
    if event.n == 12:
        second.after = event.n // (event.n - 12)


def _both(event: str, *order_by: str) -> Any:
    def declare(function: Any) -> Member:
        forms = [hg.transaction(event=event, compiled=form)(function) for form in (True, False)]
        return Member(forms[0], forms[1], order_by)

    return declare


@_both("kind string, ts timestamp, id bigint, src bigint, name string, until timestamp NULL, n int")
def enroll(
    event,
    club=clubs.at("id", create=True),
    card=cards.at("src", create=True),
    out=hg.output("was boolean"),
):
    out.was = card.club is not None
    club.name = event.name
    club.until = event.until
    card.since = event.ts
    card.club = event.id if event.n > 0 else None
    card.friend = event.src if event.n == 2 else None
    if event.n == 9:
        return hg.abort("nine")


@_both("kind string, ts timestamp, src bigint, other bigint, n int")
def befriend(event, card=cards.at("src"), friend=cards.at("other", mode="read")):
    card.friend = friend.number
    if event.n == 5:
        hg.delete(card)


@_both("kind string, ts timestamp, id bigint")
def look(event, club=clubs.at("id", mode="read"), out=hg.output("found string")):
    out.found = club.name


ROUTED = {"enroll": enroll, "befriend": befriend, "look": look}


def routes(mix: dict[str, bool]) -> dict[str, Any]:
    """Which of the routed ones run compiled."""
    return {name: one.form(mix[name]) for name, one in ROUTED.items()}
