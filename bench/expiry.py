"""The benchmark of rows that expire: what it costs to declare it, and to let rows go.

A table whose rows are made anew or set again by every event: without expiry, with one that no row
comes to, and with one by which a row goes before every event. The same over rows that events only
change and do not set the time of. All that is compared takes turns in one process, and every figure
is a ratio of medians of processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg
from bench.ranges import Times, in_turn

EVENTS, ALIVE = 10_240, 20_000
SCHEMA, EVENT = "id bigint, seen timestamp, n bigint", "ts timestamp, id bigint"
START_US, STEP_US = 1_700_000_000_000_000, 1000  # events come at every millisecond
UNDECLARED, NONE, EACH = "undeclared", "none expires", "one at every event"


def table_of(expires: str | None) -> hg.Table:
    return hg.Table("rows", SCHEMA, key="id", expires=expires)


def delays(alive: int) -> dict[str, str | None]:
    """By way: how long a row stays behind the event that set it."""
    short = f"seen + {alive * STEP_US // 1000} milliseconds"
    return {UNDECLARED: None, NONE: "seen + 3650 days", EACH: short}


def setting(table: hg.Table) -> Any:
    @hg.transaction(event=EVENT)
    def set_row(event, row=table.at("id", create=True)):
        row.seen = event.ts
        row.n += 1

    return set_row


def counting(table: hg.Table) -> Any:
    @hg.transaction(event=EVENT)
    def count_row(event, row=table.at("id")):
        row.n += 1

    return count_row


def times(first: int, count: int) -> pa.Array:
    found = START_US + STEP_US * np.arange(first, first + count, dtype=np.int64)
    return pa.array(found).cast(pa.timestamp("us", "UTC"))


def measure_setting(rounds: int, events: int = EVENTS, alive: int = ALIVE) -> Times:
    """Events that make a row or set it again; twice as many keys as rows are alive at a time."""
    engines, done = {}, dict.fromkeys(delays(alive), 0)
    for way, expires in delays(alive).items():
        table = table_of(expires)
        made = setting(table)
        engines[way] = hg.open(None, tables=[table], transactions=[made]), made

    def batch(way: str, count: int = events) -> Callable[[int], None]:
        def run(number: int) -> None:
            engine, made = engines[way]
            ids = np.arange(done[way], done[way] + count) % (2 * alive)
            given = {"ts": times(done[way], count), "id": ids}
            engine.run(made, pa.table(given), order_by="ts")
            done[way] += count

        return run

    try:
        for way in engines:
            batch(way, 2 * alive)(0)  # all keys have a row, and the first of them go
        return in_turn({way: batch(way) for way in engines}, rounds, time.process_time)
    finally:
        for engine, _ in engines.values():
            engine.close()


def measure_counting(rounds: int, events: int = EVENTS, alive: int = ALIVE) -> Times:
    """Events that change rows which are there, and of which one goes before every event."""
    engines, done = {}, dict.fromkeys(delays(alive), 0)
    rows = 2 * events * (rounds + 1)
    for way, expires in delays(alive).items():
        table = table_of(expires)
        made = counting(table)
        engines[way] = hg.open(None, tables=[table], transactions=[made]), made
        seen = times(-alive, rows)
        engines[way][0].load(
            table, pa.table({"id": np.arange(rows), "seen": seen, "n": [0] * rows})
        )

    def batch(way: str) -> Callable[[int], None]:
        def run(number: int) -> None:
            engine, made = engines[way]
            ids = np.random.default_rng(number).integers(0, rows, events)
            engine.run(made, pa.table({"ts": times(done[way], events), "id": ids}), order_by="ts")
            done[way] += events

        return run

    try:
        return in_turn({way: batch(way) for way in engines}, rounds, time.process_time)
    finally:
        for engine, _ in engines.values():
            engine.close()


def main(quick: bool = False) -> None:
    console, rounds = Console(highlight=False), 3 if quick else 15
    for what, found in (
        ("events that set rows", measure_setting(rounds)),
        ("events that change rows", measure_counting(rounds)),
    ):
        bars = [
            (f"{what}, an expiry that no row comes to over none declared", NONE, UNDECLARED, 1.3),
            (f"{what}, a row that expires at every event over none that does", EACH, NONE, 3.0),
        ]
        for told, way, other, bar in bars:
            ratio = found[way] / found[other]
            console.print(f"{told}: {ratio:.2f} (bar {bar}: {'met' if ratio <= bar else 'MISSED'})")
