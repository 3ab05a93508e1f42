"""Transfers: the bank's table, transaction and events for the benchmarks of queries and peers.

A figure is a ratio of two things measured in one run; one whose balances are not those of the
serial oracle is never reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg

ACCOUNTS = 100_000
FIRST_BALANCE = 1_000_000
TOO_MUCH = 1 << 40  # more than there is: such a transfer is refused, in whatever order they run
ABORT_SHARE = 0.01
BATCH_EVENTS = 10_240

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")


@hg.transaction(event="src bigint, dst bigint, amount bigint")
def transfer(event: Any, src: Any = accounts.at("src"), dst: Any = accounts.at("dst")) -> Any:
    if src.balance < event.amount:
        return hg.abort("insufficient funds")
    src.balance -= event.amount
    dst.balance += event.amount


@dataclass(frozen=True)
class Figure:
    """One line of the answer: what was measured, in which unit, and its ratio to what."""

    section: str
    what: str
    value: float
    unit: str
    ratio: float
    to: str
    bar: float | None = None
    at_most: bool = False  # the bar is an upper one

    @property
    def is_met(self) -> bool:
        if self.bar is None:
            return True
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar

    @property
    def amount(self) -> str:
        return (
            f"{self.value:,.0f} {self.unit}"
            if self.value >= 10
            else f"{self.value:.2f} {self.unit}"
        )

    @property
    def verdict(self) -> str:
        """The bar and whether it is met; empty where there is none."""
        if self.bar is None:
            return ""
        words = "met" if self.is_met else "not met"
        return f"{'at most' if self.at_most else 'at least'} {self.bar:g}: {words}"


class WrongBalances(Exception):
    """Other balances than the serial oracle has: figures of such a run are worth nothing."""


# --- events -----------------------------------------------------------------------------------


def make_events(
    count: int, seed: int, abort_share: float = ABORT_SHARE, rows: int | None = None
) -> pa.Table:
    """Uniform transfers of small sums; a share of them asks for more than there is."""
    random = np.random.default_rng(seed)
    amount = random.integers(1, 10, count)
    amount[random.random(count) < abort_share] = TOO_MUCH
    keys = random.integers(0, rows or ACCOUNTS, (2, count))
    return pa.table({"src": keys[0], "dst": keys[1], "amount": amount})


def first_rows(count: int | None = None) -> pa.Table:
    rows = count or ACCOUNTS
    return pa.table({"id": np.arange(rows), "balance": np.full(rows, FIRST_BALANCE)})


def open_bank(path: Path | None, rows: int | None = None, **options: Any) -> hg.Engine:
    engine = hg.open(path, tables=[accounts], transactions=[transfer], **options)
    engine.load(accounts, first_rows(rows))
    return engine


def moves_of(events: pa.Table) -> list[tuple[int, int, int]]:
    return list(zip(*(column.to_pylist() for column in events.columns), strict=True))


# --- measuring --------------------------------------------------------------------------------


def check_total(engine: hg.Engine, accounts_count: int | None = None) -> None:
    """No money came or went."""
    rows = accounts_count or ACCOUNTS
    found = engine.sql("select sum(balance) from accounts").rows()
    if found != [(rows * FIRST_BALANCE,)]:
        raise WrongBalances(f"the accounts hold {found}, not {rows * FIRST_BALANCE}")


def take_turns(
    contestants: Sequence[Callable[[], Any]],
    rounds: int,
    wanted: Any = None,
    warm: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median seconds of each, all running in turn; every answer must be the wanted one."""
    times: list[list[float]] = [[] for _ in contestants]
    for number in range(rounds + warm):
        for place, run in enumerate(contestants):
            began = clock()
            found = run()
            if number >= warm:
                times[place].append(clock() - began)
            if wanted is not None and found != wanted:
                raise WrongBalances(f"an answer is {found}, not {wanted}")
    return [median(values) for values in times]
