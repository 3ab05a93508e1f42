"""Grep-Sum: an event sums the records of a list of keys, or updates them, in event-time order.

./run python apps/grep_sum.py
"""

from __future__ import annotations

import datetime
import random
from typing import Any

import headgate as hg

records = hg.Table("records", "id bigint, value bigint", key="id", check="value >= 0")
LIMIT = 1_000_000  # an update keeps what it adds up below this, so that no value grows for ever


# `each` stands for the rows of a list of keys, in its order; `mode="read"` promises not to change
# them, so that two sums of the same records never wait for each other.
@hg.transaction(event="ts timestamp, keys array<bigint>, ceiling bigint")
def grep(
    event: Any,
    found: Any = records.each("keys", mode="read"),
    out: Any = hg.output("total bigint"),
) -> Any:
    total = 0
    for record in found:
        total += record.value
    if total > event.ceiling:
        return hg.abort("over the ceiling")
    out.total = total


# Every record of `keys` takes up the sum of those of `sources`, which may be none.
@hg.transaction(event="ts timestamp, keys array<bigint>, sources array<bigint>, value bigint")
def update(
    event: Any,
    targets: Any = records.each("keys"),
    sources: Any = records.each("sources", mode="read"),
) -> Any:
    total = 0
    for source in sources:
        total += source.value
    for target in targets:
        # A negative value may leave less than nothing: the check of the table then refuses it.
        target.value = (target.value + total) % LIMIT + event.value


ROUTES = {"grep": grep, "update": update}
ORDER = {"route_by": "kind", "order_by": "ts"}
FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
ROWS = 1_000


def make_events(count: int) -> list[dict[str, Any]]:
    """Half sums, half updates; a few of each ask for what is refused."""
    dice = random.Random(7)
    return [
        {
            "kind": dice.choice(["grep", "update"]),
            "ts": FIRST + datetime.timedelta(milliseconds=number),
            "keys": dice.sample(range(ROWS), 10),
            "sources": dice.sample(range(ROWS), 2),
            "ceiling": dice.choice([2_000_000, 9_000_000]),
            "value": dice.choice([1, 2, 3, -LIMIT]),
        }
        for number in range(count)
    ]


def main() -> None:
    with hg.open(None, tables=[records], transactions=[grep, update]) as engine:
        engine.load(records, [{"id": number, "value": number} for number in range(ROWS)])
        results = engine.run(ROUTES, make_events(10_000), **ORDER)
        by = ["transaction", "outcome", "reason"]
        found = results.group_by(by).aggregate([([], "count_all")])
        print(found.to_pandas().to_string(index=False))
        print(engine.sql("select id, value from records order by value desc limit 3").rows())


if __name__ == "__main__":
    main()
