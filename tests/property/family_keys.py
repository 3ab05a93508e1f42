"""Members of the family whose keys depend on rows: chains, creates, texts, errors."""

from __future__ import annotations

import headgate as hg
from tests.property.members import member

hops = hg.Table(
    "hops", "id bigint, after bigint DEFAULT 2, n bigint DEFAULT 1", key="id", check="n > -40"
)
marks = hg.Table("marks", "number int, word string, n bigint", key="number, word")


@member("ts timestamp, id bigint, after bigint, n bigint, word string", "ts")
def hop(
    event,
    first=hops.at("id", create=True),
    second=hops.at(lambda first: first.after % 5, create=True),
    third=hops.at(lambda event, second: second.after - event.n),
    mark=marks.at(lambda third: 12 // (third.n - 3), lambda event, second: event.word, create=True),
    out=hg.output("id bigint, n bigint"),
):
    if third.n == 5:
        return hg.abort("five")
    third.n += event.n
    first.after = event.after
    mark.n += third.n
    out.id = third.id
    out.n = mark.n
    if event.n == 2:
        hg.delete(second)
