"""A bank in shards: accounts that are made, moved between and closed, and a table on all shards."""

from __future__ import annotations

import random
from typing import Any

import headgate as hg
from tests.property.harness import decoded, same_bytes
from tests.property.workers import Workers, open_sharded

accounts = hg.Table("accounts", "id bigint, owner string, balance bigint", key="id")
rates = hg.Table("rates", "kind string, fee bigint, used bigint", key="kind", replicate=True)
TABLES = [accounts, rates]


@hg.transaction(event="src bigint, dst bigint, amount bigint, kind string", compiled=False)
def move(
    event,
    src=accounts.at("src", create=True),
    dst=accounts.at("dst", create=True),
    rate=rates.at("kind", mode="read"),
    out=hg.output("left bigint, owner string"),
):
    if src.balance < event.amount:
        return hg.abort(f"only {src.balance}")
    src.balance -= event.amount + rate.fee
    dst.balance += event.amount
    dst.owner = event.kind + src.owner
    out.left = src.balance
    out.owner = dst.owner


@hg.transaction(event="src bigint", compiled=False)
def close(event, src=accounts.at("src")):
    hg.delete(src)


@hg.transaction(event="src bigint, kind string, amount bigint", compiled=False)
def charge(event, rate=rates.at("kind", create=True), src=accounts.at("src", create=True)):
    rate.fee = event.amount
    rate.used += 1
    src.balance -= rate.fee


@hg.transaction(event="src bigint, amount bigint", compiled=False)
def follow(
    event,
    src=accounts.at("src", create=True),
    other=accounts.at(lambda src: src.balance % 30, create=True),
):
    """Where it leads depends on rows: only where all of them are it can run."""
    src.balance += event.amount
    other.balance -= 1


ROUTES = {"move": move, "close": close, "charge": charge}
TRANSACTIONS = [*ROUTES.values(), follow]
FIRST = {
    "accounts": [{"id": n, "owner": "", "balance": 50} for n in range(20)],
    "rates": [{"kind": kind, "fee": 0, "used": 0} for kind in "ab"],
}


def batch(draw: random.Random, count: int, keys: int = 30) -> list[dict[str, Any]]:
    """Random events of all kinds; charges are rare, as each ties its readers together."""
    return [
        {
            "what": draw.choice(("move",) * 12 + ("close", "charge")),
            "src": draw.randrange(keys), "dst": draw.randrange(keys),
            "amount": draw.randrange(40), "kind": draw.choice("abc"),
        }
        for _ in range(count)
    ]  # fmt: skip


def loaded(engine: hg.Engine) -> hg.Engine:
    for table in TABLES:
        engine.load(table, FIRST[table.name])
    return engine


def in_one_process() -> hg.Engine:
    return loaded(hg.open(None, tables=TABLES, transactions=TRANSACTIONS))


def in_shards(
    workers: Workers, shards: int = 3, disk: Any = None, retain: hg.Retention | None = None
) -> hg.Engine:
    return loaded(open_sharded(TABLES, TRANSACTIONS, shards, workers, disk, retain))


def rows_of(engine: hg.Engine) -> dict[str, Any]:
    return {
        table.name: engine.sql(f"select * from {table.name} order by {table.key[0]}").arrow()
        for table in TABLES
    }


def differs(seed: int, workers: Workers, batches: int = 5, shards: int = 3) -> bool:
    """Whether an engine with shards gives other results or rows than one process, or fails."""
    draw, one = random.Random(seed), in_one_process()
    engine = in_shards(workers, shards)
    try:
        for _ in range(batches):
            events = batch(draw, 12)
            expected = one.run(ROUTES, events, route_by="what")
            found = engine.run(ROUTES, events, route_by="what")
            if not same_bytes(decoded(found), decoded(expected)) or rows_of(engine) != rows_of(one):
                return True
        return engine.counts() != one.counts()
    except hg.HeadgateError:
        return True
    finally:
        engine.close()
