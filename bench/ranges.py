"""The benchmark of ranges and indexes: what a range costs, and what it costs to keep an index.

Ranges of 100 rows beside 100 point reads by `each`; cheap transfers over a table without an index,
with one that they do not touch and with one that they do; opening a store with and without one. All
that is compared takes turns in one process, and every figure is a ratio of medians.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg

ROWS, EVENTS, SPAN = 1_000_000, 10_240, 100
OPENED_ROWS = 10_000_000
SCHEMA = "id bigint, city bigint, balance bigint"
plain = hg.Table("accounts", SCHEMA, key="id")
by_city = hg.Table("accounts", SCHEMA, key="id", index="city")
by_balance = hg.Table("accounts", SCHEMA, key="id", index="balance")

Times = Mapping[str, float]


def in_turn(
    ways: Mapping[str, Callable[[int], None]], rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:  # fmt: skip
    """The median seconds of each way; the first round compiles and does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            way(number)  # what ran before has left the caches to this one
            began = clock()
            way(number)
            if number:
                taken[name].append(clock() - began)
    return {name: median(times) for name, times in taken.items()}


def rows_of(count: int) -> pa.Table:
    """Rows whose city is shared by SPAN of them, here and there in the table."""
    ids = np.arange(count)
    cities = np.random.default_rng(3).permutation(count) // SPAN
    return pa.table({"id": ids, "city": cities, "balance": np.full(count, 1000)})


def opened(table: hg.Table, count: int, *transactions: Any) -> hg.Engine:
    engine = hg.open(None, tables=[table], transactions=list(transactions))
    engine.load(table, rows_of(count))
    return engine


# --- ranges beside point reads --------------------------------------------------------------------


def transactions_of(table: hg.Table) -> dict[str, Any]:
    @hg.transaction(event="ids array<bigint>")
    def points(event, rows=table.each("ids", mode="read"), out=hg.output("total bigint")):
        total = 0
        for row in rows:
            total += row.balance
        out.total = total

    @hg.transaction(event="city bigint")
    def where(event, rows=table.where("city", mode="read"), out=hg.output("total bigint")):
        total = 0
        for row in rows:
            total += row.balance
        out.total = total

    @hg.transaction(event="city bigint, id bigint")
    def moving(
        event, rows=table.where("city", mode="read"), one=table.at("id"),
        out=hg.output("total bigint"),
    ):  # fmt: skip
        total = 0
        for row in rows:
            total += row.balance
        out.total = total
        if event.id < 0:
            one.city = event.city

    return {"points": points, "where": where, "moving": moving}


def measure_ranges(rounds: int, rows: int = ROWS, events: int = EVENTS // 10) -> Times:
    """100 rows by their keys, by an index that nobody moves, and by one that events may move."""
    made, table = transactions_of(by_city), rows_of(rows)
    engine = hg.open(None, tables=[by_city], transactions=list(made.values()))
    engine.load(by_city, table)
    order = np.argsort(table["city"].to_numpy(), kind="stable").reshape(-1, SPAN)

    def batch(name: str) -> Callable[[int], None]:
        def run(number: int) -> None:
            cities = np.random.default_rng(number).integers(0, rows // SPAN, events)
            columns: dict[str, Any] = {"city": cities, "id": cities}
            if name == "points":
                offsets = np.arange(0, SPAN * events + 1, SPAN, dtype=np.int32)
                ids = pa.ListArray.from_arrays(pa.array(offsets), order[cities].reshape(-1))
                columns = {"ids": ids}
            engine.run(made[name], pa.table(columns))

        return run

    with engine:
        return in_turn({name: batch(name) for name in made}, rounds)


# --- what it costs to keep an index ---------------------------------------------------------------


def transfer_of(table: hg.Table) -> Any:
    @hg.transaction(event="src bigint, dst bigint, amount bigint")
    def transfer(event, src=table.at("src"), dst=table.at("dst")):
        src.balance -= event.amount
        dst.balance += event.amount

    return transfer


def look_of(table: hg.Table) -> Any:
    @hg.transaction(event="src bigint, dst bigint, amount bigint")
    def look(event, rows=table.between("src", "dst", index="balance", mode="read", limit=1)):
        pass

    return look


def measure_keeping(rounds: int, rows: int = ROWS // 10, events: int = EVENTS) -> Times:
    """Transfers over a table without an index, with one of a column that stays, and that changes;
    the last again with a scan by the index after each batch, which brings it forward; beside a
    transaction that looks into it, for which the kernel keeps it, while no event is one of those;
    and with one of them among a hundred events."""
    tables = {"none": plain, "city": by_city, "balance": by_balance, "asked": by_balance}
    tables |= {"in step": by_balance, "looked at": by_balance}
    transfers = {name: transfer_of(table) for name, table in tables.items()}
    look = look_of(by_balance)
    engines = {name: opened(tables[name], rows, transfers[name]) for name in tables}
    programs: dict[str, Any] = dict(transfers)
    for name in ("in step", "looked at"):
        engines[name].close()
        engines[name] = opened(by_balance, rows, transfers[name], look)
        programs[name] = {0: transfers[name], 1: look}

    def batch(name: str) -> Callable[[int], None]:
        def run(number: int) -> None:
            draw = np.random.default_rng(number)
            given = {"src": draw.integers(0, rows, events), "dst": draw.integers(0, rows, events)}
            kinds = (np.arange(events) % 100 == 99) & (name == "looked at")
            given |= {"amount": np.ones(events, int), "kind": kinds.astype(int)}
            options = {"route_by": "kind"} if name in ("in step", "looked at") else {}
            engines[name].run(programs[name], pa.table(given), **options)
            if name == "asked":
                engines[name].scan("accounts", where={"balance": 0})

        return run

    try:
        return in_turn({name: batch(name) for name in tables}, rounds)
    finally:
        for engine in engines.values():
            engine.close()


# --- opening --------------------------------------------------------------------------------------


def measure_opening(rounds: int, rows: int = OPENED_ROWS) -> Times:
    """A store with so many rows in a snapshot, opened with one index and with none."""
    folder = tempfile.mkdtemp(prefix="headgate-ranges-")
    try:
        with hg.open(f"{folder}/store", tables=[plain]) as engine:
            engine.load(plain, rows_of(rows))
            engine.snapshot()

        def open_with(table: hg.Table) -> Callable[[int], None]:
            def run(number: int) -> None:
                hg.open(f"{folder}/store", tables=[table]).close()

            return run

        return in_turn({"none": open_with(plain), "one": open_with(by_city)}, rounds)
    finally:
        shutil.rmtree(folder)


def main(quick: bool = False) -> None:
    console, rounds = Console(highlight=False), 3 if quick else 15
    ranges = measure_ranges(rounds)
    keeping = measure_keeping(rounds)
    opening = measure_opening(1 if quick else 5, OPENED_ROWS // (10 if quick else 1))
    bars = [
        ("ranges of 100 rows over 100 point reads", ranges["where"] / ranges["points"], 3.0),
        ("the same over an index that events move", ranges["moving"] / ranges["points"], 3.0),
        ("transfers beside an index over none", keeping["city"] / keeping["none"], 1.4),
        ("that change its column", keeping["balance"] / keeping["none"], 1.4),
        ("opening with one index over none", opening["one"] / opening["none"], 2.0),
    ]
    for what, ratio, bar in bars:
        console.print(f"{what}: {ratio:.2f} (bar {bar}: {'met' if ratio <= bar else 'MISSED'})")
    for what, name in (
        ("and a scan by it after each batch", "asked"),
        ("beside a transaction that looks", "in step"),
        ("with a look among a hundred events", "looked at"),
    ):
        console.print(f"that change its column, {what}: {keeping[name] / keeping['none']:.2f}")
