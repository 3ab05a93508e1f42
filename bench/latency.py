"""The benchmark of latency: how long a batch is on its way, by how workers run a dataflow.

    ./run bench latency [--quick] [--out FOLDER]

StreamAPAS's figures 11 to 15 over a query of ours: rows are cleaned, kept in a table, added up over
a window, and arrive at an end that looks at the clock. Batches come at a rate that one thread takes
at half of its strength, whoever runs them; what is compared takes turns in one process. With
`--out` the plots and all latencies are left as files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headgate as hg
from bench.drawing import COLOURS, picture, rect, svg, text
from headgate.dataflow import workers as workers_module
from headgate.dataflow.buffers import LocalBuffer, PipeBuffer, Waiting

ROWS, COLUMNS = 10, "k bigint, v bigint, sent bigint"
noted = hg.Table("noted", "k bigint, v bigint", key="k")
means = hg.Table("means", "k bigint, mean double", key="k")


class Query:
    """The dataflow over some workers, and the latencies of its batches, in milliseconds."""

    def __init__(self, workers: hg.Workers) -> None:
        self.found: list[float] = []
        came, clean, kept = (hg.Stream(name, COLUMNS) for name in ("came", "clean", "kept"))
        added = hg.Stream("added", "k bigint, mean double")

        @hg.procedure(came, output=clean)
        def wash(batch: pa.Table, tx: hg.Tx) -> pa.Table:
            return batch.filter(pc.greater_equal(batch.column("v"), 0))

        @hg.procedure(clean, output=kept, writes=noted)
        def note(batch: pa.Table, tx: hg.Tx) -> pa.Table:
            tx.upsert(noted, tx.sql("select k, max(v) as v from batch group by k"))
            return batch

        @hg.procedure(kept.window("100 rows", slide="10 rows"), output=added, writes=means)
        def mean(batch: pa.Table, tx: hg.Tx) -> pa.Table:
            found = tx.sql("select k, avg(v) as mean from batch group by k")
            tx.upsert(means, found)
            return found

        @hg.procedure(kept)
        def end(batch: pa.Table, tx: hg.Tx) -> None:
            sent = batch.column("sent")[0].as_py()
            self.found.append((time.monotonic_ns() - sent) / 1e6)

        flow = hg.Dataflow("query", [wash, note, mean, end], workers=workers)
        self._engine = hg.open(None, tables=[noted, means], dataflows=flow)
        self._stream = self._engine.stream(came)

    def run(self, batches: int, seconds_apart: float) -> list[float]:
        """Hand batches in at a steady rate; the latencies of these."""
        self.found.clear()
        began = time.monotonic()
        for number in range(batches):
            time.sleep(max(0.0, began + number * seconds_apart - time.monotonic()))
            keys = [(number * ROWS + n) % 50 for n in range(ROWS)]
            now = [time.monotonic_ns()] * ROWS
            self._stream.send(pa.table({"k": keys, "v": list(range(ROWS)), "sent": now}))
        self._stream.settle()
        return list(self.found)

    def close(self) -> None:
        self._engine.close()


class LockedBuffer(LocalBuffer):
    """The plain queue under a lock: what stands between two workers where there are no links."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()

    def put(self, batch: Waiting) -> None:
        with self._lock:
            super().put(batch)

    def first(self) -> Waiting | None:
        with self._lock:
            return super().first()

    def take(self) -> Waiting | None:
        with self._lock:
            return super().take()


@contextmanager
def buffers_of(kind: type) -> Iterator[None]:
    """Between workers stand buffers of this kind."""
    patched: Any = workers_module
    patched.PipeBuffer = kind
    try:
        yield
    finally:
        patched.PipeBuffer = PipeBuffer


@dataclass(frozen=True)
class Plot:
    """One comparison: what is asked, and the ways that are compared."""

    name: str
    asks: str
    ways: Mapping[str, Callable[[], Query]]


def over(*given: Any, **said: Any) -> Callable[[], Query]:
    return lambda: Query(hg.Workers(*given, **said))


def with_buffer(kind: type) -> Callable[[], Query]:
    def make() -> Query:
        with buffers_of(kind):
            query = Query(hg.Workers(2))
            query.run(3, 0.0)  # workers take their buffers when they are first needed
            return query

    return make


PLOTS = (
    Plot("architecture", "figure 11: one thread, a pool, or nodes pinned to workers",
         {"one thread": over(), "pool of 2": over(2, "pool"), "pinned to 2": over(2, "pinned"),
          "pool of 4": over(4, "pool"), "pinned to 4": over(4, "pinned")}),
    Plot("workers", "figure 12: more workers than there are cores",
         {f"pinned to {count}": over(count, "pinned") for count in (1, 2, 3, 4)}),
    Plot("buffers", "figure 13: links without a lock, or a queue under one, between two workers",
         {"links": with_buffer(PipeBuffer), "locked": with_buffer(LockedBuffer)}),
    Plot("room", "figure 14: how many batches may wait between two nodes",
         {f"{size} batches": over(2, buffer=size) for size in (1, 4, 16, 64)}),
    Plot("grouping", "figure 15: nodes composed with those before them, or not",
         {"composed": over(2), "apart": over(2, compose=False)}),
    Plot("policy", "who runs next, of nodes that could",
         {name: over(policy=name) for name in ("fifo", "round-robin", "chain", "chain-flush")}),
)  # fmt: skip

Latencies = Mapping[str, Sequence[float]]


def measure(plot: Plot, rounds: int, batches: int, seconds_apart: float) -> Latencies:
    """The latencies of each way, from turns of a few batches each; the first do not count."""
    queries = {name: make() for name, make in plot.ways.items()}
    found: dict[str, list[float]] = {name: [] for name in queries}
    try:
        for number in range(rounds + 1):
            for name, query in queries.items():
                taken = query.run(batches, seconds_apart)
                found[name] += taken if number else []
    finally:
        for query in queries.values():
            query.close()
    return found


def pace(batches: int) -> float:
    """So far apart that one thread is half busy."""
    query = Query(hg.Workers())
    try:
        query.run(batches, 0.0)
        began = time.monotonic()
        query.run(batches, 0.0)
        return 2 * (time.monotonic() - began) / batches
    finally:
        query.close()


def spread(found: Sequence[float]) -> tuple[float, float]:
    """The median, and what 95 of 100 stay below."""
    return median(found), quantiles(found, n=20)[-1]


def drawn(plot: Plot, found: Latencies) -> str:
    """Bars of medians, each with the 95th percentile behind it."""
    width, line_height, left = 640, 26, 130
    spreads = {name: spread(each) for name, each in found.items()}
    top = max(high for _, high in spreads.values())
    parts = []
    for place, (name, (middle, high)) in enumerate(spreads.items()):
        y, scale = 8 + place * line_height, (width - left - 90) / top
        tip, colour = f"{name}: median {middle:.2f} ms, 95 % below {high:.2f} ms", COLOURS[place]
        parts += [
            text(left - 8, y + 13, name, "end"),
            rect(left, y, high * scale, 18, colour, tip, 'fill-opacity="0.35"'),
            rect(left, y, middle * scale, 18, colour, tip),
            text(left + high * scale + 6, y + 13, f"{middle:.2f} / {high:.2f} ms"),
        ]
    return picture(plot.asks, svg(width, 16 + len(found) * line_height, parts, plot.asks))


def main(quick: bool = False, out: str | None = None) -> None:
    """Print the latencies of all plots, and leave them where they are asked for."""
    rounds, batches = (2, 60) if quick else (6, 200)
    seconds_apart, pages, rows = pace(batches), [], []
    print(f"a batch of {ROWS} rows every {seconds_apart * 1e3:.2f} ms; median, 95th percentile")
    for plot in PLOTS:
        found = measure(plot, rounds, batches, seconds_apart)
        print(plot.asks)
        for name, each in found.items():
            middle, high = spread(each)
            print(f"  {name:16} {middle:8.2f} ms {high:8.2f} ms")
            rows += [{"plot": plot.name, "way": name, "latency_ms": one} for one in each]
        pages.append(drawn(plot, found))
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / "latency.parquet")
        style = "body{font:14px sans-serif;max-width:700px}svg text{font:12px sans-serif}"
        head = f"<!doctype html><meta charset=utf-8><title>Latency</title><style>{style}</style>"
        (folder / "latency.html").write_text(head + "".join(pages))
        print(f"report: {folder / 'latency.html'}")


if __name__ == "__main__":
    main()
