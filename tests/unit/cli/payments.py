"""A small engine for the tests of commands that take a program."""

from __future__ import annotations

from typing import Any

import headgate as hg

accounts = hg.Table("accounts", "id bigint, balance double", key="id", check="balance >= 0")
FIRST_BALANCE = 100.0


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount double")
def pay(event: Any, src: Any = accounts.at("src"), dst: Any = accounts.at("dst")) -> Any:
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount


@hg.transaction(event="ts timestamp, dst bigint, amount double")
def deposit(event: Any, dst: Any = accounts.at("dst", create=True)) -> Any:
    dst.balance += event.amount


def open_payments(path: Any = None) -> hg.Engine:
    engine = hg.open(path, tables=[accounts], transactions=[pay, deposit])
    engine.load(accounts, [{"id": number, "balance": FIRST_BALANCE} for number in range(50)])
    return engine
