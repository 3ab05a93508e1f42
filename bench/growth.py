"""Growth: what a table of many rows costs: a transfer in it, and the first SQL over it.

A transfer is set beside the same one over few rows, the first SQL beside a bare copy of its
columns. All are measured in turn in one process, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from bench import ledger
from bench.bounds import SimpleBound
from bench.transfers import Figure, WrongBalances

FEW_KEYS = 100_000
KEYS = (1_000_000, 10_000_000, 30_000_000)
COPIED_ROWS = (1_000_000, 10_000_000, 30_000_000)
QUICK_MAX = 1_000_000
GROWTH_MAX = 1.8
COPIES_MAX = 3.0
COPIED_MIN = 10_000_000  # below that the query itself takes longer than the copy
TURN_BATCHES = 10  # in a row, so that each size has its own rows in the caches
COLD_BATCHES = 3  # of these: not counted
FIRST_BALANCE = 1e6


def _sizes(all_sizes: Sequence[int], quick: bool) -> list[int]:
    return [size for size in all_sizes if not quick or size <= QUICK_MAX]


def _rows(count: int) -> pa.Table:
    ids = np.random.default_rng(count).permutation(count)
    return pa.table({"id": ids, "balance": np.full(count, FIRST_BALANCE)})


# --- transfers ------------------------------------------------------------------------------------


class Sized:
    """The engine and the bare loop over that many accounts, and events that go to all of them."""

    def __init__(self, keys: int, stack: ExitStack) -> None:
        rows = _rows(keys)
        self._keys, self._random, self._number = keys, np.random.default_rng(keys), 0
        self._engine = stack.enter_context(
            hg.open(None, tables=[ledger.accounts], transactions=[ledger.transfer])
        )
        self._engine.load(ledger.accounts, rows)
        self._bare = SimpleBound(rows)

    def batches(self, count: int) -> list[pa.Table]:
        found = []
        for _ in range(count):
            first = self._number * ledger.BATCH_EVENTS
            events = ledger.make_events(ledger.BATCH_EVENTS, first, self._random, self._keys)
            found.append(events)
            self._number += 1
        return found

    def run_engine(self, events: pa.Table) -> Any:
        return self._engine.run(ledger.transfer, events, order_by="ts", scheme="serial")

    def run_bare(self, events: pa.Table) -> None:
        self._bare.run(events)


def _turn(run: Callable[[pa.Table], Any], batches: Sequence[pa.Table]) -> list[float]:
    """Nanoseconds a transfer, of each batch that counts, by the thread's own time."""
    times = []
    for events in batches:
        began = time.thread_time()
        run(events)
        times.append((time.thread_time() - began) / events.num_rows * 1e9)
    return times[COLD_BATCHES:]


def compare_growth(quick: bool) -> list[Figure]:
    """A transfer over more and more keys beside one over few, through the engine and bare."""
    figures = []
    for keys in _sizes(KEYS, quick):
        with ExitStack() as stack:
            engine, bare = _grown(Sized(FEW_KEYS, stack), Sized(keys, stack), 5 if quick else 15)
        gc.collect()
        bar = GROWTH_MAX if keys == KEYS[-1] else None
        figures += [
            Figure("growth", f"{who}, {keys:,} keys", many, "ns a transfer", many / few,
                   f"{FEW_KEYS:,} keys", most, True)
            for who, (few, many), most in (("engine", engine, bar), ("bare loop", bare, None))
        ]  # fmt: skip
    return figures


def _grown(few: Sized, many: Sized, rounds: int) -> list[tuple[float, float]]:
    """Medians over few and over many keys: of the engine, then of the bare loop."""
    ways = [few.run_engine, many.run_engine, few.run_bare, many.run_bare]
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        batches = {True: few.batches(TURN_BATCHES), False: many.batches(TURN_BATCHES)}
        for place, run in enumerate(ways):
            times[place] += _turn(run, batches[place % 2 == 0])
    each = [median(one) for one in times]
    return [(each[0], each[1]), (each[2], each[3])]


# --- the first SQL --------------------------------------------------------------------------------


def bare_copy(records: np.ndarray) -> pa.Table:
    """The columns of rows, copied into new arrays that Arrow takes as they are: no query can do
    with less that is to go on while the rows change."""
    columns = {}
    for name in ("id", "balance"):
        columns[name] = np.empty(len(records), records.dtype[name])
        columns[name][:] = records[name]
    return pa.table(columns)


def compare_first_sql(quick: bool) -> list[Figure]:
    """The first query over a table beside a bare copy of the columns that the table has."""
    return [_first_sql(count, 3 if quick else 5) for count in _sizes(COPIED_ROWS, quick)]


def _first_sql(count: int, rounds: int) -> Figure:
    times: dict[str, list[float]] = {"copy": [], "sql": []}
    with hg.open(None, tables=[ledger.accounts]) as engine:
        engine.load(ledger.accounts, _rows(count))
        records = engine._memory.rows["accounts"].records[:count]
        for _ in range(rounds):
            with engine._memory.replica.lock:  # as if nobody had ever asked
                engine._memory.replica.forget(engine._reading)
            began = time.perf_counter()
            found = engine.sql("select sum(balance) from accounts").rows()
            times["sql"].append(time.perf_counter() - began)
            if found != [(count * FIRST_BALANCE,)]:
                raise WrongBalances(f"the accounts hold {found}, not {count * FIRST_BALANCE}")
            began = time.perf_counter()
            bare_copy(records)
            times["copy"].append(time.perf_counter() - began)
    gc.collect()
    sql, copy = median(times["sql"]), median(times["copy"])
    bar = COPIES_MAX if count >= COPIED_MIN else None
    return Figure("first SQL", f"the first SQL sum over {count:,} rows", sql * 1e3, "ms",
                  sql / copy, "a bare copy of the columns", bar, True)  # fmt: skip
