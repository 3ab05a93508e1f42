"""Bank: requests are validated and booked as one transaction, and readers only ever see whole ones.

    ./run python apps/bank.py              in memory
    ./run python apps/bank.py FOLDER       keeps FOLDER/bank; kill it and start it again

The application of the TSpoon paper. A request passes two tables: the validator, which limits what a
customer may move in a month, and the balances, which are never negative. If either refuses, nothing
of the request remains in the other. While the requests run, readers check on every answer that no
money was lost and that both tables tell the same story, as in the paper's section 5.2.
"""

from __future__ import annotations

import argparse
import datetime
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headgate as hg

ACCOUNTS = 100  # few, so that requests meet each other
FIRST_BALANCE = 1000
MONTH_LIMIT = 20_000  # what a customer may move in a month

balances = hg.Table("balances", "account bigint, amount bigint", key="account", check="amount >= 0")
# `paid_in` and `paid_out` tell the whole history of an account; `moved` begins anew each month.
validator = hg.Table(
    "validator",
    "account bigint, month bigint, moved bigint, paid_in bigint, paid_out bigint",
    key="account",
    check=f"moved <= {MONTH_LIMIT}",
)

PAUSE_S = 0.0005  # between two looks of an auditor
MONTH_US = 30 * 24 * 3600 * 1_000_000


# A plain function that a transaction calls is compiled along with it.
def count_month(customer: Any, time_us: int, amount: int) -> None:
    """Add to what a customer moved this month; the check of the table refuses what is too much."""
    month = time_us // MONTH_US
    if customer.month != month:
        customer.month = month
        customer.moved = 0
    customer.moved += amount


@hg.transaction(event="ts timestamp, src bigint, amount bigint")
def deposit(
    event: Any, customer: Any = validator.at("src"), balance: Any = balances.at("src")
) -> None:
    count_month(customer, event.ts, event.amount)
    customer.paid_in += event.amount
    balance.amount += event.amount


@hg.transaction(event="ts timestamp, src bigint, amount bigint")
def withdraw(
    event: Any, customer: Any = validator.at("src"), balance: Any = balances.at("src")
) -> None:
    count_month(customer, event.ts, event.amount)
    customer.paid_out += event.amount
    balance.amount -= event.amount


@hg.transaction(event="ts timestamp, src bigint, dst bigint, amount bigint")
def transfer(
    event: Any,
    sender: Any = validator.at("src"),
    receiver: Any = validator.at("dst"),
    source: Any = balances.at("src"),
    target: Any = balances.at("dst"),
) -> Any:
    if event.src == event.dst:
        return hg.abort("the same account")
    count_month(sender, event.ts, event.amount)
    sender.paid_out += event.amount
    source.amount -= event.amount
    count_month(receiver, event.ts, event.amount)
    receiver.paid_in += event.amount
    target.amount += event.amount


ROUTES = {"deposit": deposit, "withdraw": withdraw, "transfer": transfer}
ORDER = {"route_by": "kind", "order_by": "ts"}
FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


def open_bank(path: Path | None) -> hg.Engine:
    """The bank at a path, or in memory; loading is a no-op when the store is not new."""
    transactions = list(ROUTES.values())
    engine = hg.open(path, tables=[balances, validator], transactions=transactions)
    engine.load(balances, [{"account": n, "amount": FIRST_BALANCE} for n in range(ACCOUNTS)])
    nothing = {"month": 0, "moved": 0, "paid_in": 0, "paid_out": 0}
    engine.load(validator, [{"account": n, **nothing} for n in range(ACCOUNTS)])
    return engine


def make_requests(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """Transfers half of the time; some of all kinds are too large for the balance or the month."""
    dice = random.Random(seed)
    return [
        {
            "kind": dice.choice(["transfer", "transfer", "deposit", "withdraw"]),
            "ts": FIRST + datetime.timedelta(minutes=20 * number),
            "src": dice.randrange(ACCOUNTS),
            "dst": dice.randrange(ACCOUNTS),
            "amount": dice.choice([1, 10, 100, 1000, 10_000]) * dice.randrange(1, 5),
        }
        for number in range(count)
    ]


# --- the check of every answer ----------------------------------------------------------------

FAULTS = f"""
    select account, amount, {FIRST_BALANCE} + paid_in - paid_out as told, moved
    from balances join validator using (account)
    where amount <> told or amount < 0 or moved > {MONTH_LIMIT}
"""
TOTALS = f"""
    select (select sum(amount) from balances) as money,
           (select sum(paid_in) - sum(paid_out) from validator) + {ACCOUNTS * FIRST_BALANCE} as told
"""


def look_at_all(engine: hg.Engine) -> str | None:
    """Both tables in one answer: every account has what the validator let through."""
    faults = engine.sql(FAULTS).rows()
    return f"accounts that do not fit: {faults[:3]}" if faults else None


def look_at_totals(engine: hg.Engine) -> str | None:
    """Transfers neither make money nor lose it."""
    ((money, told),) = engine.sql(TOTALS).rows()
    return f"there is {money}, there should be {told}" if money != told else None


def look_at_one(engine: hg.Engine, account: int) -> str | None:
    """One row by its key: in no answer a balance is negative."""
    row = engine.get("balances", account)
    return f"account {account}: {row}" if row is None or row["amount"] < 0 else None


class Auditor:
    """Threads that look at the bank for as long as the stream runs."""

    def __init__(self, engine: hg.Engine) -> None:
        self.answers = 0
        self.faults: list[str] = []
        self._done = threading.Event()
        dice = random.Random(3)
        looks: list[Callable[[], str | None]] = [
            lambda: look_at_all(engine),
            lambda: look_at_totals(engine),
            lambda: look_at_one(engine, dice.randrange(ACCOUNTS)),
        ]
        self._threads = [threading.Thread(target=self._watch, args=(look,)) for look in looks]

    def _watch(self, look: Callable[[], str | None]) -> None:
        while not self._done.wait(PAUSE_S):
            fault = look()
            self.answers += 1
            if fault is not None:
                self.faults.append(fault)

    def __enter__(self) -> Auditor:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()


def batches(requests: list[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    return (requests[first : first + size] for first in range(0, len(requests), size))


def main(path: Path | None = None, requests: int = 20_000) -> list[str]:
    """Run requests with auditors beside them; returns what they found wrong."""
    outcomes: dict[tuple[str, str, str], int] = {}
    with open_bank(path) as engine, Auditor(engine) as auditor:
        for batch in batches(make_requests(requests), 500):
            for row in engine.run(ROUTES, batch, **ORDER).to_pylist():
                what = (row["transaction"], row["outcome"], row["reason"] or "")
                outcomes[what] = outcomes.get(what, 0) + 1
    for what, count in sorted(outcomes.items()):
        print(f"{count:8}  {' '.join(what)}")
    print(f"{auditor.answers} answers while it ran, {len(auditor.faults)} of them wrong")
    return auditor.faults


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Without FOLDER it runs in memory.")
    words.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    folder = words.parse_args().folder
    found = main(None if folder is None else folder / "bank")
    sys.exit(f"wrong answers, the first: {found[0]}" if found else None)
