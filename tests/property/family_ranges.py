"""The members of the family that name rows by ranges, which come, go and move within a batch."""

from __future__ import annotations

import headgate as hg
from tests.property.members import member

lots = hg.Table(
    "lots",
    "id bigint, owner string, price double, n bigint",
    key="id",
    check="n < 60",
    index=["owner", ("price", "n"), ("owner", "price")],
)
tags = hg.Table("tags", "name string, n bigint", key="name", index="n")


@member("n bigint, id bigint, owner string, low double, high double", "n")
def offer(
    event,
    mine=lots.where("owner"),
    dear=lots.between("low", "high", index=("price", "n"), descending=True, limit=3),
    lot=lots.at("id", create=True),
    out=hg.output("count bigint, total double, first bigint, last double"),
):
    out.count = len(mine)
    for one in mine:
        out.total = out.total * 0.5 + one.price
        one.n += 1
    for one in dear:
        out.first = out.first * 7 + one.id
        out.last = one.price
        if one.n % 3 == 1:
            one.price = event.low
        if event.n == 13:
            hg.delete(one)
    lot.owner = event.owner
    lot.price = event.high
    lot.n += event.n
    if len(dear) > 0 and dear[0].n < 0:
        return hg.abort("below")


@member("n bigint, owner string, a bigint, b bigint, low double, high double", "n")
def clear_out(
    event,
    some=lots.between("a", "b"),
    dear=lots.between(("owner", "low"), ("owner", "high"), index=("owner", "price"), mode="read"),
    out=hg.output("ids bigint, others bigint"),
):
    out.others = len(dear)
    for lot in some:
        out.ids = out.ids * 3 + lot.id
        if lot.n > event.n:
            hg.delete(lot)
    if len(some) == 2 and some[1].price < 1:
        raise ValueError("two")


@member("n bigint, low string, high string, name string", "n")
def name_all(
    event,
    named=tags.between("low", "high"),
    few=tags.where("n", descending=True, limit=2, mode="read"),
    tag=tags.at("name", create=True),
    out=hg.output("names string, sum bigint"),
):
    for one in named:
        out.names = one.name
        out.sum = out.sum * 5 + one.n
        one.n += 1
    for one in few:
        out.sum = out.sum * 2 + len(named)
        out.names = one.name
    tag.n += event.n % 4
