"""A small bank for the tests of the command line."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import headgate as hg

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
owners = hg.Table("owners", "name string, since date DEFAULT '2024-01-01'", key="name")


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double", compiled=False)
def transfer(
    event: Any,
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
    out: Any = hg.output("balance double"),
) -> Any:
    src.balance -= event.amount
    dst.balance += event.amount
    out.balance = src.balance


def open_bank(path: Path) -> hg.Engine:
    return hg.open(path, tables=[accounts, owners], transactions=[transfer])


def pay(engine: hg.Engine, src: int, dst: int, amount: float) -> hg.Result:
    moment = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    return engine.call(transfer, ts=moment, src=src, dst=dst, amount=amount)
