"""The durability benchmark: what safety costs, as ratios taken in one run.

sync / none        the same batches by two engines in turn: a synced log beside a written one
group / sync       single commits: many threads that share syncs beside one by one
snapshot           the longest batch while 10 million rows are written beside the stream
replay             recovering epochs from the log beside processing them first
reopening          a cold store of 10 million rows beside the bare reading of its files
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from bench.ledger import ACCOUNTS, BATCH_EVENTS, accounts, alternate, make_accounts, make_events
from bench.ledger import transfer as pay
from headgate.durability import Commit, Store
from headgate.durability.store import Durability

BIG_ROWS = 10_000_000
THREADS = 8
IN_FLIGHT = 64


@dataclass(frozen=True)
class Line:
    """One line of the table: what was measured, the figure behind it, the ratio and its bar."""

    what: str
    figure: str
    ratio: float
    bar: str


# --- sync beside none --------------------------------------------------------------------------


def compare_modes(folder: Path, batch_count: int) -> list[Line]:
    """The price of a sync, and what recovery takes for the epochs that were made with it."""
    random = np.random.default_rng(7)
    rows = make_accounts(random)
    batches = [
        make_events(BATCH_EVENTS, number * BATCH_EVENTS, random) for number in range(batch_count)
    ]
    options = {"tables": [accounts], "transactions": [pay]}
    sync = hg.open(folder / "sync", durability="sync", **options)
    none = hg.open(folder / "none", durability="none", **options)
    with sync, none:
        for engine in (sync, none):
            engine.load(accounts, rows)
        contestants: dict[str, Callable[[pa.Table], Any]] = {
            "sync": lambda batch: sync.run(pay, batch, order_by="ts"),
            "none": lambda batch: none.run(pay, batch, order_by="ts"),
        }
        seconds = alternate(contestants, batches)
    figure = f"{seconds['sync'] * 1e3:.2f} ms, {seconds['none'] * 1e3:.2f} ms a batch"
    ratio = seconds["none"] / seconds["sync"]
    line = Line("sync / none, batches of 10,240", figure, ratio, "0.6")
    return [line, replay_line(folder / "sync", seconds["none"] * batch_count, batch_count)]


def replay_line(path: Path, seconds: float, batch_count: int) -> Line:
    """Recovering a store from its log alone, beside the time its batches took without a sync."""
    found = []
    for _ in range(5):
        store = Store.open(path)
        began = time.perf_counter()
        store.recover()
        found.append(time.perf_counter() - began)
        store.close()
    again = median(found)
    figure = f"{again:.2f} s, {seconds:.2f} s for {batch_count} batches of 10,240"
    return Line("replay of the log / processing it first", figure, seconds / again, "5")


# --- group beside one by one -------------------------------------------------------------------


# What a single call leaves: two changed rows and one result.
CHANGES = pa.record_batch({"__slot": [3, 97], "__alive": [True, True], "balance": [1.0, 2.0]})
RESULTS = pa.record_batch({"position": [0]})


class Committer:
    """Commits single changes to a store of its own; epochs are handed out in order."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.store = Store.open(path, durability=durability)
        self.store.recover()
        self._order = threading.Lock()
        self._last = 0

    def append(self) -> int:
        with self._order:
            self._last += 1
            commit = Commit(self._last, self._last, None, {"accounts": CHANGES}, RESULTS)
            return self.store.append(commit)

    def run(self, threads: int, each: int, in_flight: int) -> float:
        """Commits a second of so many threads that wait after so many commits."""

        def work() -> None:
            for number in range(1, each + 1):
                ticket = self.append()
                if number % in_flight == 0 or number == each:
                    self.store.wait(ticket)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return threads * each / (time.perf_counter() - began)


def compare_groups(folder: Path, rounds: int) -> list[Line]:
    lone = Committer(folder / "lone", "sync")
    shared = Committer(folder / "shared", "group")
    rates: dict[str, list[float]] = {"lone": [], "waiting": [], "in flight": []}
    for _ in range(rounds):
        rates["lone"].append(lone.run(1, 300, 1))
        rates["waiting"].append(shared.run(THREADS, 100, 1))
        rates["in flight"].append(shared.run(THREADS, 4 * IN_FLIGHT, IN_FLIGHT))
    for committer in (lone, shared):
        committer.store.close()
    each = {name: median(values) for name, values in rates.items()}
    what = {
        "waiting": f"group, {THREADS} threads, each waits for its own / sync one by one",
        "in flight": f"group, {THREADS} threads, {IN_FLIGHT} each in flight / sync one by one",
    }
    return [
        Line(what[name], f"{each[name]:,.0f} /s, {each['lone']:,.0f} /s",
             each[name] / each["lone"], bar)
        for name, bar in (("waiting", ""), ("in flight", "20"))
    ]  # fmt: skip


# --- a big store: snapshot, replay, reopening ---------------------------------------------------


def big_rows(count: int) -> pa.Table:
    return pa.table({"id": np.arange(count), "balance": np.full(count, 1e6)})


def spread_events(count: int, first: int, rows: int, random: np.random.Generator) -> pa.Table:
    """Transfers over all the rows, so that every block of a snapshot changes."""
    events = make_events(count, first, random)
    for name in ("src", "dst"):
        place = events.schema.get_field_index(name)
        events = events.set_column(place, name, pa.array(random.integers(0, rows, count)))
    return events


def measure_big(folder: Path, rows: int, batch_count: int) -> list[Line]:
    path = folder / "big"
    options: dict[str, Any] = {"tables": [accounts], "transactions": [pay]}
    random = np.random.default_rng(3)
    batches = [
        spread_events(BATCH_EVENTS, number * BATCH_EVENTS, rows, random)
        for number in range(batch_count)
    ]
    with hg.open(path, **options) as engine:
        engine.load(accounts, big_rows(rows))
        engine._journal.store.snapshot()
        pause = snapshot_line(engine, batches, rows)
    return [pause, *reopening_lines(path, options, rows)]


def timed(engine: Any, batch: pa.Table) -> float:
    began = time.perf_counter()
    engine.run(pay, batch, order_by="ts")
    return time.perf_counter() - began


def snapshot_line(engine: Any, batches: list[pa.Table], rows: int) -> Line:
    """The longest batch while a snapshot is written, beside twice the median of those before."""
    before = [timed(engine, batch) for batch in batches]
    snapshot = threading.Thread(target=engine._journal.store.snapshot)
    began = time.perf_counter()
    snapshot.start()
    during: list[float] = []
    while snapshot.is_alive():
        during.append(timed(engine, batches[len(during) % len(batches)]))
    seconds = time.perf_counter() - began
    snapshot.join()
    usual = median(before)
    figure = (
        f"{seconds:.1f} s, {len(during)} batches meanwhile; median and longest batch in ms: before "
        f"{usual * 1e3:.1f}, {max(before) * 1e3:.1f}; meanwhile {median(during) * 1e3:.1f}, "
        f"{max(during) * 1e3:.1f}"
    )
    what = f"snapshot of {rows:,} rows: longest pause / a batch"
    return Line(what, figure, (max(during) - usual) / usual, "at most 2")


def forget_cached(path: Path) -> int:
    """Put the store's files out of the page cache; returns how many bytes they have."""
    size = 0
    for file in (each for each in path.rglob("*") if each.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        size += file.stat().st_size
    return size


def read_rate(files: list[Path]) -> tuple[int, float]:
    """Bytes and seconds of reading files from the disk, one after another, in long pieces."""
    size, memory = 0, memoryview(bytearray(8 << 20))
    began = time.perf_counter()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        while count := os.readv(descriptor, [memory]):
            size += count
        os.close(descriptor)
    return size, time.perf_counter() - began


def reopening_lines(path: Path, options: dict[str, Any], rows: int) -> list[Line]:
    """Opening a cold store beside the bare reading of the files that opening needs."""
    times: dict[str, list[float]] = {"read": [], "recover": [], "open": []}
    size = 0
    for _ in range(3):
        newest = sorted((path / "snapshots").glob("*.snapshot"))[-1]
        last = sorted((path / "log").iterdir())[-1]
        forget_cached(path)
        size, seconds = read_rate([newest, last])
        times["read"].append(seconds)
        forget_cached(path)
        began = time.perf_counter()
        store = Store.open(path)
        store.recover()
        times["recover"].append(time.perf_counter() - began)
        store.close()
        forget_cached(path)
        began = time.perf_counter()
        hg.open(path, **options).close()
        times["open"].append(time.perf_counter() - began)
    each = {name: median(values) for name, values in times.items()}
    rate = size / each["read"] / 2**20
    return [
        Line(f"reopening {rows:,} rows, {what} / reading its files",
             f"{each[name]:.2f} s, {each['read']:.2f} s ({rate:,.0f} MiB/s)",
             each["read"] / each[name], bar)
        for name, what, bar in (("recover", "the store", ""), ("open", "the engine", "0.3"))
    ]  # fmt: skip


def main(quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    table = Table("what", "figures", "ratio", "bar", title="Durability")
    rows = BIG_ROWS // 10 if quick else BIG_ROWS
    try:
        with console.status(f"sync and none in turn, {ACCOUNTS:,} accounts"):
            lines = compare_modes(folder, 30 if quick else 120)
        with console.status("single commits: one by one, and from many threads"):
            lines += compare_groups(folder, 3 if quick else 7)
        with console.status(f"{rows:,} rows: snapshot, replay, reopening"):
            lines += measure_big(folder, rows, 60 if quick else 200)
        for line in lines:
            table.add_row(line.what, line.figure, f"{line.ratio:.2f}", line.bar)
        console.print(table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
