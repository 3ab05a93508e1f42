"""The durability benchmark: what safety costs, as ratios taken in one run.

sync / none        the same batches by two engines in turn: a synced log beside a written one
replay             recovering epochs from the log beside processing them first
group / sync       single calls: threads that share epochs and syncs beside one by one
snapshot           how long the stream stands still while all rows are written beside it
reopening          a cold store of 10 million rows beside the bare reading of its files

Each line has its bar and says whether it was met. The files are put out of the page cache before
they are read (posix_fadvise), so "cold" is as cold as the machine below lets it be.
"""

from __future__ import annotations

import datetime as dt
import gc
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
from headgate.durability import Store
from headgate.durability import format as layout
from headgate.durability.snapshot import newest_snapshot
from headgate.engine.declaring.declarations import storages_of
from headgate.engine.memory import Memory
from headgate.io import RealDisk
from headgate.state.stored_names import Storages

BIG_ROWS = 10_000_000
THREADS = 8
IN_FLIGHT = 64
SNAPSHOTS = 9
OPENINGS = 7
MEMORY_BYTES = 1 << 30  # more than reopening takes
OPTIONS: dict[str, Any] = {"tables": [accounts], "transactions": [pay]}


@dataclass(frozen=True)
class Line:
    """One line of the table: what was measured, the figures behind it, the ratio and its bar."""

    what: str
    figure: str
    ratio: float
    least: float | None = None
    most: float | None = None

    @property
    def bar(self) -> str:
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    @property
    def verdict(self) -> str:
        if self.least is None and self.most is None:
            return ""
        over = self.least is not None and self.ratio < self.least
        under = self.most is not None and self.ratio > self.most
        return "NOT MET" if over or under else "met"


# --- sync beside none --------------------------------------------------------------------------


def compare_modes(folder: Path, batch_count: int) -> list[Line]:
    """The price of a sync, and what recovery takes for the epochs that were made with it."""
    random = np.random.default_rng(7)
    rows = make_accounts(random)
    batches = [
        make_events(BATCH_EVENTS, number * BATCH_EVENTS, random) for number in range(batch_count)
    ]
    sync = hg.open(folder / "sync", durability="sync", **OPTIONS)
    none = hg.open(folder / "none", durability="none", **OPTIONS)
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
    line = Line(f"sync / none, batches of {BATCH_EVENTS:,}", figure, ratio, least=0.6)
    return [line, replay_line(folder / "sync", seconds["none"] * batch_count, batch_count)]


def replay_line(path: Path, seconds: float, batch_count: int) -> Line:
    """Bringing rows back from the log alone, beside the time its batches took without a sync."""
    found = []
    for _ in range(5):
        tables = {"accounts": accounts}
        store = Store.open(path)
        memory = Memory(tables, Storages(storages_of(store.manifest, tables)))
        began = time.perf_counter()
        memory.restore(store.recover(memory.restoring))
        found.append(time.perf_counter() - began)
        store.close()
    again = median(found)
    figure = f"{again:.3f} s, {seconds:.3f} s for {batch_count} batches of {BATCH_EVENTS:,}"
    return Line("replay of the log / processing it first", figure, seconds / again, least=5)


# --- group beside one by one -------------------------------------------------------------------

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def calls_a_second(engine: hg.Engine, threads: int, each: int, in_flight: int) -> float:
    """Single calls a second of threads that wait after so many of them."""

    def work(thread: int) -> None:
        random = np.random.default_rng(thread)
        keys = random.integers(0, ACCOUNTS, (each, 2)).tolist()
        for first in range(0, each, in_flight):
            promises = [
                engine.submit(pay, ts=NOON, src=src, dst=dst, amount=0.5)
                for src, dst in keys[first : first + in_flight]
            ]
            for promise in promises:
                promise.result()

    def work_one_by_one(thread: int) -> None:
        keys = np.random.default_rng(thread).integers(0, ACCOUNTS, (each, 2)).tolist()
        for src, dst in keys:
            engine.call(pay, ts=NOON, src=src, dst=dst, amount=0.5)

    target = work_one_by_one if in_flight == 1 else work
    workers = [threading.Thread(target=target, args=(number,)) for number in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - began)


def sync_us(folder: Path, count: int = 300) -> float:
    """What the disk takes to sync a short record at the end of a growing file."""
    descriptor = os.open(folder / "syncs", os.O_RDWR | os.O_CREAT)
    times = []
    for number in range(count):
        os.pwrite(descriptor, bytes(1536), number * 1536)
        began = time.perf_counter()
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - began)
    os.close(descriptor)
    return median(times) * 1e6


def compare_groups(folder: Path, rounds: int) -> list[Line]:
    """Single calls through the engine: one by one with a sync each, and from many threads."""
    rows = make_accounts(np.random.default_rng(5))
    engines = {
        name: hg.open(folder / f"calls-{name}", durability=name, **OPTIONS)
        for name in ("sync", "group", "none")
    }
    rates: dict[str, list[float]] = {"sync": [], "none": [], "waiting": [], "in flight": []}
    for engine in engines.values():
        engine.load(accounts, rows)
        calls_a_second(engine, 1, 30, 1)
    for _ in range(rounds):
        rates["sync"].append(calls_a_second(engines["sync"], 1, 300, 1))
        rates["none"].append(calls_a_second(engines["none"], 1, 300, 1))
        rates["waiting"].append(calls_a_second(engines["group"], THREADS, 100, 1))
        rates["in flight"].append(
            calls_a_second(engines["group"], THREADS, 16 * IN_FLIGHT, IN_FLIGHT)
        )
    for engine in engines.values():
        engine.close()
    each = {name: median(values) for name, values in rates.items()}
    lone = each["sync"]
    disk = f"{each['none']:,.0f} /s with no sync; the disk syncs in {sync_us(folder):.0f} us"
    # With one call each in flight, at most THREADS calls can share a sync, however fast they are.
    return [
        Line("single calls, sync one by one", f"{lone:,.0f} /s; {disk}", 1.0),
        Line(f"group, {THREADS} threads, 1 call each in flight / sync one by one",
             f"{each['waiting']:,.0f} /s, {lone:,.0f} /s", each["waiting"] / lone),
        Line(f"group, {THREADS} threads, {IN_FLIGHT} calls each in flight / sync one by one",
             f"{each['in flight']:,.0f} /s, {lone:,.0f} /s", each["in flight"] / lone, least=20),
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
    random = np.random.default_rng(3)
    batches = [
        spread_events(BATCH_EVENTS, number * BATCH_EVENTS, rows, random)
        for number in range(batch_count)
    ]
    with hg.open(path, **OPTIONS) as engine:
        engine.load(accounts, big_rows(rows))
        engine._journal.store.snapshot()
        pause = snapshot_line(engine, batches, rows)
        engine._journal.store.snapshot()
    return [pause, reopening_line(path, rows)]


def timed(engine: Any, batch: pa.Table) -> tuple[float, float]:
    """The seconds of a batch, and how many of them it stood still.

    A batch runs on this thread: what is not its own processor time is waiting, for a lock, for the
    disk, for the interpreter or for a core. Time in which a machine below is slow is not.
    """
    began, worked = time.perf_counter(), time.thread_time()
    engine.run(pay, batch, order_by="ts")
    lasted = time.perf_counter() - began
    return lasted, lasted - (time.thread_time() - worked)


def snapshot_line(engine: Any, batches: list[pa.Table], rows: int) -> Line:
    """How long the stream stands still at most while a snapshot is written.

    On a shared machine some batch always waits: as many batches without a snapshot say how long.
    Each is the median of several rounds. Python's collector stops every thread for as long as it
    takes to go through all objects of the process, which here are mostly the benchmark's own:
    those of now are put aside.
    """
    gc.collect()
    gc.freeze()
    usual, alone, during, seconds, longest, count = [], [], [], [], [], 0
    for _ in range(SNAPSHOTS):
        quiet = [timed(engine, batch) for batch in batches]
        usual.append(median(lasted for lasted, _ in quiet))
        snapshot = threading.Thread(target=engine._journal.store.snapshot)
        began = time.perf_counter()
        snapshot.start()
        busy: list[tuple[float, float]] = []
        while not busy or snapshot.is_alive():  # one that is over at once had a batch beside it
            busy.append(timed(engine, batches[len(busy) % len(batches)]))
        seconds.append(time.perf_counter() - began)
        snapshot.join()
        quiet += [timed(engine, batch) for batch in batches[: len(busy) - len(quiet)]]
        alone.append(max(waited for _, waited in quiet[: len(busy)]))
        during.append(max(waited for _, waited in busy))
        longest.append(max(lasted for lasted, _ in busy))
        count += len(busy)
    gc.unfreeze()
    batch = median(usual)
    figure = (
        f"{median(seconds):.1f} s and {count // SNAPSHOTS} batches a snapshot; a batch "
        f"{batch * 1e3:.1f} ms, the longest meanwhile {median(longest) * 1e3:.1f} ms; longest "
        f"wait of one {median(during) * 1e3:.1f} ms, of as many before {median(alone) * 1e3:.1f} ms"
    )
    what = f"snapshot of {rows:,} rows: longest pause / a batch"
    return Line(what, figure, median(during) / batch, most=2)


def forget_cached(path: Path) -> None:
    """Put the store's files out of the page cache."""
    for file in (each for each in path.rglob("*") if each.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def needed_files(path: Path) -> list[tuple[Path, int]]:
    """What opening has to read: the newest snapshot, and the log from the snapshot's place on."""
    snapshot = newest_snapshot(RealDisk(), str(path / layout.SNAPSHOT_FOLDER))
    if snapshot is None:
        raise RuntimeError(f"no snapshot in {path}")
    place = snapshot.position
    snapshot.close()
    found = [(path / layout.SNAPSHOT_FOLDER / layout.snapshot_name(snapshot.epoch), 0)]
    for file in sorted((path / layout.LOG_FOLDER).iterdir()):
        if int(file.stem) >= place.segment:
            found.append((file, place.offset if int(file.stem) == place.segment else 0))
    return found


def read_all(files: list[tuple[Path, int]]) -> tuple[int, float]:
    """Bytes and seconds of reading files from the disk, one after another, in long pieces."""
    size, memory = 0, memoryview(bytearray(8 << 20))
    began = time.perf_counter()
    for file, offset in files:
        descriptor = os.open(file, os.O_RDONLY)
        while count := os.preadv(descriptor, [memory], offset):
            size += count
            offset += count
        os.close(descriptor)
    return size, time.perf_counter() - began


def have_memory(size: int) -> None:
    """Touch so much memory and give it back.

    A virtual machine may hand free memory back to its host; whoever touches it next waits for the
    host, ten times longer than for the disk. Neither side shall pay for that.
    """
    np.zeros(size, np.int8).fill(1)


def reopening_line(path: Path, rows: int) -> Line:
    """Opening a cold store beside the bare reading of what opening needs, in turn."""
    reading, opening, size = [], [], 0
    for _ in range(OPENINGS):
        forget_cached(path)
        have_memory(MEMORY_BYTES)
        size, seconds = read_all(needed_files(path))
        reading.append(seconds)
        forget_cached(path)
        have_memory(MEMORY_BYTES)
        began = time.perf_counter()
        engine = hg.open(path, **OPTIONS)
        opening.append(time.perf_counter() - began)
        engine.close()
        del engine
        gc.collect()  # an engine refers to itself; its memory is to be there for the next one
    bare, whole = median(reading), median(opening)
    figure = (
        f"{whole:.2f} s; {bare:.3f} s for {size / 2**20:,.0f} MiB, a disk of "
        f"{size / bare / 2**20:,.0f} MiB/s"
    )
    return Line(f"reopening {rows:,} rows / reading its files", figure, bare / whole, least=0.3)


def main(quick: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    table = Table("what", "figures", "ratio", "bar", "", title="Durability")
    rows = BIG_ROWS // 10 if quick else BIG_ROWS
    try:
        with console.status(f"sync and none in turn, {ACCOUNTS:,} accounts"):
            lines = compare_modes(folder, 30 if quick else 120)
        with console.status("single calls: one by one, and from many threads"):
            lines += compare_groups(folder, 3 if quick else 7)
        with console.status(f"{rows:,} rows: snapshot and reopening"):
            lines += measure_big(folder, rows, 60 if quick else 200)
        for line in lines:
            table.add_row(line.what, line.figure, f"{line.ratio:.2f}", line.bar, line.verdict)
        console.print(table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
