"""Transactions of the workloads: the papers' Streaming Ledger, and a costed form of every one.

A costed transaction gives the same results as the cheap one, but takes `work` steps for every row
it writes or sums; what aborts before it writes costs nothing.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import headgate as hg
from apps import bidding, grep_sum, tolls
from headgate.compiling.compiler import compile_along
from headgate.state.compiled import kernel_of

# --- the cost of an operation -----------------------------------------------------------------

PRIME = 2_147_483_647
FACTOR = 48_271


def busy(work: int, seed: int) -> int:
    """Pass the time of `work` steps; returns 0, which the compiler cannot know.

    Each step multiplies by a number that the prime does not divide, so 0 is never reached. The seed
    is the row's key: two calls in one transaction are then never taken for one.
    """
    state = seed % (PRIME - 1) + 1
    for _ in range(work):
        state = state * FACTOR % PRIME
    return 1 if state == 0 else 0


@functools.cache
def busy_loop() -> Any:
    """`busy` as it runs in a transaction, for Python to call."""
    compiled = compile_along(busy)

    def loop(work, seed):
        return compiled(work, seed)

    return kernel_of(loop, is_kept=False)


@functools.cache
def steps_per_us() -> float:
    """How many steps of `busy` this machine makes in a microsecond, at its best of nine."""
    loop = busy_loop()
    loop(1, 1)
    steps, best_s = 200_000, float("inf")
    for attempt in range(9):
        began = time.thread_time()
        loop(steps, attempt)
        best_s = min(best_s, time.thread_time() - began)
    return steps / (best_s * 1e6)


# --- transactions: Streaming Ledger -----------------------------------------------------------
# Whole numbers in place of apps/ledger.py's decimals, and no account is made by a deposit: as in
# the papers.

accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")
assets = hg.Table("assets", "id bigint, quantity bigint", key="id", check="quantity >= 0")
DEPOSIT = "ts timestamp, dst_account bigint, dst_asset bigint, amount bigint, quantity bigint"
TRANSFER = f"{DEPOSIT}, src_account bigint, src_asset bigint"
WORK = ", work bigint"


@hg.transaction(event=DEPOSIT)
def deposit(
    event: Any,
    account: Any = accounts.at("dst_account"),
    asset: Any = assets.at("dst_asset"),
    out: Any = hg.output("balance bigint"),
) -> Any:
    account.balance += event.amount
    asset.quantity += event.quantity
    out.balance = account.balance


@hg.transaction(event=DEPOSIT + WORK, name="deposit")
def costed_deposit(
    event: Any,
    account: Any = accounts.at("dst_account"),
    asset: Any = assets.at("dst_asset"),
    out: Any = hg.output("balance bigint"),
) -> Any:
    account.balance += event.amount + busy(event.work, event.dst_account)
    asset.quantity += event.quantity + busy(event.work, event.dst_asset)
    out.balance = account.balance


@hg.transaction(event=TRANSFER)
def transfer(
    event: Any,
    src_account: Any = accounts.at("src_account"),
    dst_account: Any = accounts.at("dst_account"),
    src_asset: Any = assets.at("src_asset"),
    dst_asset: Any = assets.at("dst_asset"),
    out: Any = hg.output("balance bigint"),
) -> Any:
    if src_account.balance < event.amount or src_asset.quantity < event.quantity:
        return hg.abort("insufficient funds")
    src_account.balance -= event.amount
    dst_account.balance += event.amount
    src_asset.quantity -= event.quantity
    dst_asset.quantity += event.quantity
    out.balance = src_account.balance


@hg.transaction(event=TRANSFER + WORK, name="transfer")
def costed_transfer(
    event: Any,
    src_account: Any = accounts.at("src_account"),
    dst_account: Any = accounts.at("dst_account"),
    src_asset: Any = assets.at("src_asset"),
    dst_asset: Any = assets.at("dst_asset"),
    out: Any = hg.output("balance bigint"),
) -> Any:
    if src_account.balance < event.amount or src_asset.quantity < event.quantity:
        return hg.abort("insufficient funds")
    src_account.balance -= event.amount + busy(event.work, event.src_account)
    dst_account.balance += event.amount + busy(event.work, event.dst_account)
    src_asset.quantity -= event.quantity + busy(event.work, event.src_asset)
    dst_asset.quantity += event.quantity + busy(event.work, event.dst_asset)
    out.balance = src_account.balance


# --- transactions: the costed forms of the other applications ---------------------------------

records, items, speeds, counts = grep_sum.records, bidding.items, tolls.speeds, tolls.counts
LIMIT = grep_sum.LIMIT
toll_of = tolls.toll_of


@hg.transaction(event="ts timestamp, keys array<bigint>, ceiling bigint" + WORK, name="grep")
def costed_grep(
    event: Any,
    found: Any = records.each("keys", mode="read"),
    out: Any = hg.output("total bigint"),
) -> Any:
    total = 0
    for record in found:
        total += record.value + busy(event.work, record.id)
    if total > event.ceiling:
        return hg.abort("over the ceiling")
    out.total = total


@hg.transaction(
    event="ts timestamp, keys array<bigint>, sources array<bigint>, value bigint" + WORK,
    name="update",
)
def costed_update(
    event: Any,
    targets: Any = records.each("keys"),
    sources: Any = records.each("sources", mode="read"),
) -> Any:
    total = 0
    for source in sources:
        total += source.value
    for target in targets:
        added = event.value + busy(event.work, target.id)
        target.value = (target.value + total) % LIMIT + added


@hg.transaction(event="ts timestamp, item bigint, price double, quantity bigint" + WORK, name="bid")
def costed_bid(
    event: Any, item: Any = items.at("item"), out: Any = hg.output("remaining bigint")
) -> Any:
    if event.price < item.price:
        return hg.abort("below the asking price")
    if event.quantity > item.quantity:
        return hg.abort("not enough of it")
    item.quantity -= event.quantity + busy(event.work, event.item)
    out.remaining = item.quantity


@hg.transaction(
    event="ts timestamp, items array<bigint>, prices array<double>" + WORK, name="alter"
)
def costed_alter(event: Any, listed: Any = items.each("items")) -> Any:
    for place, item in enumerate(listed):
        item.price = event.prices[place] + busy(event.work, item.id)


@hg.transaction(
    event="ts timestamp, items array<bigint>, quantities array<bigint>" + WORK, name="top"
)
def costed_top(event: Any, listed: Any = items.each("items")) -> Any:
    for place, item in enumerate(listed):
        item.quantity += event.quantities[place] + busy(event.work, item.id)


@hg.transaction(
    event="ts timestamp, vehicle bigint, segment bigint, speed double" + WORK, name="report"
)
def costed_report(
    event: Any,
    road: Any = speeds.at("segment"),
    count: Any = counts.at("segment"),
    out: Any = hg.output("vehicle bigint, toll bigint"),
) -> Any:
    if event.speed < 0:
        return hg.abort("negative speed")
    road.reports += 1 + busy(event.work, event.segment)
    road.average += (event.speed - road.average) / road.reports
    count.vehicles += 1 + busy(event.work, event.vehicle)
    out.vehicle = event.vehicle
    out.toll = toll_of(road.average, count.vehicles)
