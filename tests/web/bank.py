"""The bank that the tests serve: transfers that abort, and a table with every type of column."""

from __future__ import annotations

import os
from typing import Any

import headgate as hg

ACCOUNTS = 100
TOTAL = ACCOUNTS * 100

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")
things = hg.Table(
    "things",
    "code string, day date, flag boolean DEFAULT false, small int DEFAULT 0, price decimal(12,2) "
    "DEFAULT 0, weight float DEFAULT 0, size double DEFAULT 0, "
    "seen timestamp DEFAULT '1970-01-01 00:00:00', count bigint DEFAULT 0",
    key="code, day",
)


@hg.transaction(event="src bigint, dst bigint, amount bigint", compiled=False)
def transfer(
    event: Any,
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
    out: Any = hg.output("left bigint"),
) -> Any:
    if event.amount < 0:
        return hg.abort("a transfer of less than nothing")
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount
    out.left = src.balance


@hg.transaction(
    event="code string, day date, flag boolean, small int, price decimal(12,2), weight float, "
    "size double, seen timestamp, counts array<bigint>",
    compiled=False,
)
def note(
    event: Any,
    thing: Any = things.at("code", "day", create=True),
    out: Any = hg.output("price decimal(12,2), seen timestamp, day date, size double"),
) -> Any:
    thing.flag = event.flag
    thing.small = event.small
    thing.price = event.price
    thing.weight = event.weight
    thing.size = event.size
    thing.seen = event.seen
    thing.count = len(event.counts)
    out.price = event.price
    out.seen = event.seen
    out.day = event.day
    out.size = event.size


def open_bank(path: str | None, **options: Any) -> hg.Engine:
    engine = hg.open(path, tables=[accounts, things], transactions=[transfer, note], **options)
    engine.load(accounts, [{"id": number, "balance": 100} for number in range(ACCOUNTS)])
    return engine


def make_engine() -> hg.Engine:
    """What `headgate serve tests/web/bank.py:make_engine` serves."""
    return open_bank(os.environ.get("BANK_STORE"), durability="group")
