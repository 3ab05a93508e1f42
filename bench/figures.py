"""Figures: what one scheme did at one point, out of the rows of its race."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.race import MODEL, SERIAL
from bench.stopwatch import COUNTED, PARTS, SHARES, UNCOUNTED

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """What one scheme did with one number of threads at one point."""

    scheme: str
    threads: int
    value: float
    batches: int
    ratio: float  # of its throughput to that of the serial scheme in the same rounds
    thousand_per_s: float
    latency_ms: tuple[float, float]  # end to end, of an event: median and 99th percentile
    parts_us: Mapping[str, float]  # wall time per event, medians
    shares: Mapping[str, float]  # of the thread time: what it was spent on; empty: never counted
    is_told_apart: bool  # whether the threads counted, or the shares were taken from outside
    fallbacks: int  # batches that it could not finish, run serially in its place
    is_equal: bool

    @property
    def name(self) -> str:
        return self.scheme if self.scheme == SERIAL else f"{self.scheme} ×{self.threads}"


def figures(rows: Iterable[Row]) -> list[Figure]:
    """One figure a contestant of one race; warm batches do not count."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if not row["is_warm"]:
            found[row["scheme"], row["threads"]].append(row)
    serial = found.get((SERIAL, 1), [])
    return [_figure(mine, serial) for mine in found.values()] if serial else []


def _figure(mine: Sequence[Row], serial: Sequence[Row]) -> Figure:
    first = mine[0]
    timed = [row for row in mine if not row["is_counted"]]
    seconds = [row["seconds"] for row in timed]
    rounds = {row["batch"] for row in timed}
    serial_s = median(row["seconds"] for row in serial if row["batch"] in rounds)
    counting = [row for row in mine if row["is_counted"]]
    return Figure(
        scheme=first["scheme"],
        threads=first["threads"],
        value=first["value"],
        batches=len(timed),
        ratio=serial_s / median(seconds),
        thousand_per_s=median(row["events"] / row["seconds"] for row in timed) / 1e3,
        latency_ms=latency_ms(seconds),
        parts_us={
            part: median(row[f"{part}_s"] / row["events"] for row in timed) * 1e6 for part in PARTS
        },
        shares=_shares(counting, serial),
        is_told_apart=bool(counting) and all(_is_told(row) for row in counting),
        fallbacks=sum(first["scheme"] not in (SERIAL, MODEL) and bool(r["decision"]) for r in mine),
        is_equal=all(row["is_equal"] for row in mine),
    )


def latency_ms(batch_s: Sequence[float]) -> tuple[float, float]:
    """End to end, of an event of a stream as fast as the scheme: median and 99th percentile.

    Batches follow each other without a pause. While one runs, the next one's events arrive evenly;
    an event waits until its batch is complete and then as long as the batch runs.
    """
    places = (np.arange(100) + 0.5) / 100
    runs = np.asarray(batch_s)
    arriving = np.concatenate([runs[:1], runs[:-1]])
    waits = (arriving[:, None] * places + runs[:, None]).ravel() * 1e3
    low, high = np.percentile(waits, (50, 99))
    return float(low), float(high)


def _is_told(row: Row) -> bool:
    return row["useful_s"] is not None or SERIAL in (row["scheme"], row["decision"])


def _shares(rows: Sequence[Row], serial: Sequence[Row]) -> dict[str, float]:
    """The shares of the thread time over the counted batches."""
    spent = dict.fromkeys(SHARES, 0.0)
    expected = {row["batch"]: row["execute_s"] for row in serial if row["is_counted"]}
    for row in rows:
        for part, seconds in _spent(row, expected[row["batch"]]).items():
            spent[part] += seconds
    total = sum(spent.values())
    return {part: seconds / total for part, seconds in spent.items()} if total else {}


def _spent(row: Row, serial_s: float) -> dict[str, float]:
    """Seconds of thread time by what they were spent on, as counted, or else as seen from outside.

    From outside: useful is what the serial scheme needed for that batch, construction is planning;
    what remains of the threads' time is waiting, locking, finding work and undoing, all in one.
    """
    if row["useful_s"] is not None:
        spent = {part: row[f"{part}_s"] for part in COUNTED}
        # The model looks at a graph before it decides: only seen from outside.
        return spent | {"construct": max(spent["construct"], row["plan_s"])}
    all_s = row["execute_s"] * threads_used(row)
    useful_s = all_s if _is_told(row) else min(serial_s, all_s)
    return {"useful": useful_s, "construct": row["plan_s"], UNCOUNTED: all_s - useful_s}


def threads_used(row: Row) -> int:
    return 1 if SERIAL in (row["scheme"], row["decision"]) else int(row["threads"])


def split(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some columns, in the order in which these first come."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns)].append(row)
    return found


def model_ratio(
    found: Sequence[Figure], incorrect: Iterable[str], threads: int
) -> tuple[float, Figure] | None:
    """The model's throughput over that of the best fixed scheme with these threads, and which."""
    able = [one for one in found if one.threads == threads or one.scheme == SERIAL]
    model = [one for one in able if one.scheme == MODEL]
    fixed = [one for one in able if one.scheme not in (MODEL, *incorrect)]
    if not model or not fixed:
        return None
    best = max(fixed, key=lambda one: one.ratio)
    return model[0].ratio / best.ratio, best
