"""Streaming Ledger: the demo's tables, transactions and events, as in TStream, section 6.1.1.

A transfer touches four rows and a deposit two. Money and goods only enter by deposits, so that at
every epoch what is in the tables is what was there at the start plus the committed deposits.
`apps/ledger.py` has the same ledger as a short program to copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.compiling.actions import abort
from headgate.state.table import Table
from headgate.transactions import output, transaction

FIRST_BALANCE = Decimal("1000.00")
FIRST_QUANTITY = 40
FIRST_TS_US = 1_704_067_200_000_000  # 2024-01-01, in UTC
EVENT_COLUMNS = (
    "kind string, ts timestamp, event bigint, src_account bigint, dst_account bigint, "
    "src_asset bigint, dst_asset bigint, amount decimal(12,2), quantity bigint"
)

accounts = Table(
    "accounts", "id bigint, balance decimal(18,2) DEFAULT 0", key="id", check="balance >= 0"
)
assets = Table("assets", "id bigint, quantity bigint", key="id", check="quantity >= 0")


@transaction(
    event="ts timestamp, event bigint, src_account bigint, dst_account bigint, "
    "src_asset bigint, dst_asset bigint, amount decimal(12,2), quantity bigint"
)
def transfer(
    event: Any,
    src_account: Any = accounts.at("src_account"),
    dst_account: Any = accounts.at("dst_account"),
    src_asset: Any = assets.at("src_asset"),
    dst_asset: Any = assets.at("dst_asset"),
    out: Any = output("balance decimal(18,2)"),
) -> Any:
    """Money goes one way and goods the other, or nothing happens at all."""
    if src_account.balance < event.amount:
        return abort("insufficient funds")
    src_account.balance -= event.amount
    dst_account.balance += event.amount
    src_asset.quantity -= event.quantity  # the check of the table refuses what is not there
    dst_asset.quantity += event.quantity
    out.balance = src_account.balance


@transaction(
    event="ts timestamp, event bigint, dst_account bigint, dst_asset bigint, "
    "amount decimal(12,2), quantity bigint"
)
def deposit(
    event: Any,
    account: Any = accounts.at("dst_account", create=True),
    asset: Any = assets.at("dst_asset"),
    out: Any = output("balance decimal(18,2)"),
) -> Any:
    """A deposit opens the account when there is none."""
    account.balance += event.amount
    asset.quantity += event.quantity
    out.balance = account.balance


def first_rows(count: int) -> tuple[pa.Table, pa.Table]:
    """The accounts and the assets that the ledger starts with."""
    numbers = pa.array(np.arange(count))
    balances = pa.repeat(pa.scalar(FIRST_BALANCE, pa.decimal128(18, 2)), count)
    quantities = pa.repeat(pa.scalar(FIRST_QUANTITY, pa.int64()), count)
    return (
        pa.table({"id": numbers, "balance": balances}),
        pa.table({"id": numbers, "quantity": quantities}),
    )


def make_events(count: int, rows: int, seed: int = 7) -> pa.Table:
    """Transfers and deposits, half of each; a few name no account or one that is not open yet."""
    random = np.random.default_rng(seed)
    numbers = np.arange(count)
    is_transfer = random.random(count) < 0.5
    # A few rows are busy and most are not: the square of a uniform number leans to small ones.
    places = (random.random((4, count)) ** 2 * rows).astype(np.int64)
    src, dst, src_asset, dst_asset = places
    dst = np.where(random.random(count) < 0.002, dst + rows, dst)  # not open at the start
    cents = random.integers(1, 40_000, count) * np.where(is_transfer, 2, 1)
    columns = {
        "kind": pa.array(np.where(is_transfer, "transfer", "deposit")),
        "ts": pa.array(FIRST_TS_US + numbers * 1000).cast(pa.timestamp("us", tz="UTC")),
        "event": pa.array(numbers),
        "src_account": pa.array(src, mask=~is_transfer | (random.random(count) < 0.0002)),
        "dst_account": pa.array(dst),
        "src_asset": pa.array(src_asset, mask=~is_transfer),
        "dst_asset": pa.array(dst_asset),
        "amount": _money(cents),
        "quantity": pa.array(random.integers(0, np.where(is_transfer, 20, 10))),
    }
    return pa.table(columns)


def _money(cents: np.ndarray) -> pa.Array:
    """Whole cents as decimal(12,2), exactly."""
    whole = pa.array(cents).cast(pa.decimal128(19, 0))
    hundredth = pa.scalar(Decimal("0.01"), pa.decimal128(3, 2))
    return pc.multiply(whole, hundredth).cast(pa.decimal128(12, 2))


def write_files(events: pa.Table, folder: Path, files: int, seed: int = 7) -> None:
    """Write the events as Parquet files; inside each they lie in no order."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for number, part in enumerate(_parts(events, files)):
        shuffled = part.take(random.permutation(part.num_rows))
        pq.write_table(shuffled, folder / f"events-{number:03d}.parquet")


def _parts(events: pa.Table, files: int) -> Iterator[pa.Table]:
    bounds = np.linspace(0, events.num_rows, files + 1).astype(int)
    for first, last in pairwise(bounds):
        yield events.slice(first, last - first)
