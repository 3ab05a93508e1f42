"""Aggregates of a window beside SQL over its rows, and beside a loop that does nothing else.

A window slides by ten rows or by more, one push each, and its procedure wants count, sum, least and
greatest of a hundred groups: asked in SQL over the batch each time; kept by the engine, and asked
in SQL; and kept, taken as they are. Beside them a push to a procedure without a window, and a bare
compiled loop over arrays that adds and takes away counts and sums: no log, no SQL, no least and
greatest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from rich.console import Console

import headgate as hg
from bench.ranges import Times, in_turn

GROUPS, PUSHES = 100, 50
SIZES = ((1000, 10), (10_000, 10), (100_000, 10), (100_000, 10_000))  # and slides
ROWS = "k bigint, v double"
KEPT = "count(*) as n, sum(v) as total, min(v) as low, max(v) as high"
ASKED = (
    "select k, count(*) as n, sum(v) as total, min(v) as low, max(v) as high from batch group by k"
)
BEST = "select k, total from ({}) order by total desc, k limit 1"
OVER_BATCH, OVER_KEPT, KEPT_ALONE = "SQL over the rows", "SQL over aggregates", "aggregates"
NO_WINDOW, BARE = "no window", "bare loop"


def rows_of(count: int, first: int = 0) -> pa.Table:
    """Rows whose values go up and down."""
    numbers = np.arange(first, first + count)
    return pa.table({"k": numbers * 7 % GROUPS, "v": numbers * 7919 % 10_007 / 8})


@numba.njit(nogil=True)
def _slide(
    keys: Any, values: Any, first: int, slide: int, size: int, counts: Any, sums: Any
) -> None:
    """So many rows come, so many go."""
    count = len(keys)
    for number in range(first, first + slide):
        new, old = number % count, (number - size) % count
        counts[keys[new]] += 1
        sums[keys[new]] += values[new]
        counts[keys[old]] -= 1
        sums[keys[old]] -= values[old]


def bare(size: int, slide: int, pushes: int) -> Callable[[int], None]:
    """The loop alone, and the best group of each window."""
    rows = rows_of(2 * size)
    keys, values = rows.column("k").to_numpy(), rows.column("v").to_numpy()
    counts, sums = np.zeros(GROUPS, np.int64), np.zeros(GROUPS)
    place = size

    def run(_: int) -> None:
        nonlocal place
        for _ in range(pushes):
            _slide(keys, values, place, slide, size, counts, sums)
            sums.argmax()
            place += slide

    return run


def pushing(
    engine: hg.Engine, source: hg.Stream, size: int, slide: int, pushes: int
) -> Callable[[int], None]:
    """Pushes of rows, each of which moves the window on."""
    given = [rows_of(slide, slide * number) for number in range(pushes)]
    engine.push(source, rows_of(size))

    def push(_: int) -> None:
        for rows in given:
            engine.push(source, rows)

    return push


def measure(rounds: int, size: int, slide: int = 10, pushes: int = PUSHES) -> Times:
    """Seconds of so many pushes."""
    names = OVER_BATCH, OVER_KEPT, KEPT_ALONE, NO_WINDOW
    streams = {
        name: hg.Stream(f"s{number}", ROWS, recorded=False) for number, name in enumerate(names)
    }
    window = f"{size} rows", f"{slide} rows"

    @hg.procedure(streams[OVER_BATCH].window(*window))
    def over_batch(batch: pa.Table, tx: hg.Tx) -> None:
        tx.sql(BEST.format(ASKED))

    @hg.procedure(streams[OVER_KEPT].window(*window, aggregate=KEPT, by="k"))
    def over_kept(aggregates: pa.Table, tx: hg.Tx) -> None:
        tx.sql(BEST.format("from aggregates"))

    @hg.procedure(streams[KEPT_ALONE].window(*window, aggregate=KEPT, by="k"))
    def kept_alone(aggregates: pa.Table, tx: hg.Tx) -> None:
        aggregates.column("total").to_numpy().argmax()

    @hg.procedure(streams[NO_WINDOW])
    def no_window(batch: pa.Table, tx: hg.Tx) -> None:
        batch.column("v").to_numpy().argmax()

    flow = hg.Dataflow("f", [over_batch, over_kept, kept_alone, no_window])
    with hg.open(None, dataflows=flow) as engine:
        ways = {name: pushing(engine, one, size, slide, pushes) for name, one in streams.items()}
        return in_turn({**ways, BARE: bare(size, slide, pushes)}, rounds)


def main(quick: bool = False) -> None:
    """Run all sizes and print what a slide takes."""
    screen = Console(highlight=False)
    for size, slide in SIZES[:2] if quick else SIZES:
        taken = measure(3 if quick else 5, size, slide)
        screen.print(f"a window of {size:,} rows that slides by {slide:,}, {GROUPS} groups:")
        for name, seconds in taken.items():
            ratio = taken[OVER_BATCH] / seconds
            screen.print(f"    {name:24} {seconds / PUSHES * 1e6:9.1f} µs a slide {ratio:10.1f} x")
