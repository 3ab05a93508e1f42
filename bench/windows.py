"""The benchmark of windows over versions of rows, as MorphStream's figure 14: sizes and periods.

Windows of 1,000 to 100,000 versions of one row, added up by each of a batch of events; updates that
keep versions, with one such event after so many of them, beside updates of a table that keeps none.
All that is compared takes turns in one process, and every figure is a ratio of medians.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg
from bench.ranges import Times, in_turn

ROWS, EVENTS = 4, 10_240
SIZES, PERIODS = (1_000, 10_000, 100_000), (100, 1_000, 10_000)
SCHEMA, EVENT = "id bigint, value bigint", "kind bigint, id bigint, value bigint"
KEPT = hg.Table("states", SCHEMA, key="id", history=f"{2 * max(SIZES)} rows")
BARE = hg.Table("states", SCHEMA, key="id")


def update_of(table: hg.Table) -> Any:
    @hg.transaction(event=EVENT)
    def update(event, state=table.at("id", create=True)):
        state.value += event.value

    return update


def read_of(size: int) -> Any:
    @hg.transaction(event=EVENT, name=f"read_{size}")
    def read(event, seen=KEPT.window("id", size=f"{size} rows"), out=hg.output("total bigint")):
        out.total = seen.value.sum()

    return read


def events(seed: int, count: int, period: int | None = None) -> pa.Table:
    """Updates of some rows; with a period, each so many of them one that reads a window."""
    draw = np.random.default_rng(seed)
    kinds = np.zeros(count, np.int64)
    if period is not None:
        kinds[period - 1 :: period] = 1
    ids, values = draw.integers(0, ROWS, count), draw.integers(0, 100, count)
    return pa.table({"kind": kinds, "id": ids, "value": values})


def measure_sizes(rounds: int, sizes: Sequence[int] = SIZES, count: int = EVENTS) -> Times:
    """A batch of events that each add up a window, by its size."""
    update, reads = update_of(KEPT), {size: read_of(size) for size in sizes}
    with hg.open(None, tables=[KEPT], transactions=[update, *reads.values()]) as engine:
        engine.run(update, events(0, 2 * ROWS * max(sizes)))

        def batch(size: int) -> Callable[[int], None]:
            return lambda number: engine.run(reads[size], events(number, count)) and None

        return in_turn({str(size): batch(size) for size in sizes}, rounds)


def measure_periods(
    rounds: int, periods: Sequence[int] = PERIODS, count: int = 10 * EVENTS
) -> Times:
    """Updates with a window of 1,000 versions after so many; and those of a table without history,
    and without a window."""
    update, bare, read = update_of(KEPT), update_of(BARE), read_of(SIZES[0])
    routes = {0: update, 1: read}
    engines = {
        str(period): hg.open(None, tables=[KEPT], transactions=[update, read]) for period in periods
    }
    engines["none"] = hg.open(None, tables=[KEPT], transactions=[update])
    engines["bare"] = hg.open(None, tables=[BARE], transactions=[bare])
    given: dict[str, Any] = {name: (routes, {"route_by": "kind"}) for name in engines}
    given |= {"none": (update, {}), "bare": (bare, {})}

    def batch(name: str) -> Callable[[int], None]:
        run, options = given[name]
        period = int(name) if name.isdigit() else None

        def go(number: int) -> None:
            engines[name].run(run, events(number, count, period), scheme="serial", **options)

        return go

    try:
        return in_turn({name: batch(name) for name in engines}, rounds)
    finally:
        for engine in engines.values():
            engine.close()


def main(quick: bool = False) -> None:
    console, rounds = Console(highlight=False, soft_wrap=True), 3 if quick else 15
    sizes, periods = measure_sizes(rounds), measure_periods(rounds)
    for size, seconds in sizes.items():
        console.print(f"a window of {int(size):>7,} versions: {seconds / EVENTS * 1e9:6.0f} ns")
    for name, seconds in periods.items():
        words = {"none": "no window", "bare": "no history"}
        what = words.get(name) or f"a window after each {int(name):,}"
        console.print(f"updates, {what}: {seconds / (10 * EVENTS) * 1e9:.0f} ns")
    ratio = sizes[str(SIZES[-1])] / sizes[str(SIZES[0])]
    verdict = "met" if ratio <= 2.0 else "MISSED"
    console.print(f"windows of 100,000 over 1,000 versions: {ratio:.2f} (bar 2.0: {verdict})")
