"""The queries benchmark: readers beside the stream, aborts, and the bank beside its peers.

    ./run bench queries [--quick] [--out FOLDER]

Everything is a ratio of two things measured in one run; with `--out` it also leaves a report with
plots and all figures as Parquet. Whatever ran transfers is compared with the serial oracle.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from bench import growth, peers, transfers
from bench.contest import compare_peers
from bench.transfers import (
    BATCH_EVENTS,
    FIRST_BALANCE,
    Figure,
    WrongBalances,
    accounts,
    check_total,
    make_events,
    open_bank,
    take_turns,
    transfer,
)

STREAM_RATE = 100_000  # transfers a second, beside the readers
SUM_ROWS = 1_000_000
READERS = 2


# --- readers beside the stream ----------------------------------------------------------------


class Stream:
    """Transfers at a steady rate in a thread of their own, until the end."""

    def __init__(self, engine: hg.Engine, rate: float | None) -> None:
        self._engine, self._rate = engine, rate
        self._batches = [make_events(BATCH_EVENTS, seed) for seed in range(16)]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self.per_s = 0.0

    def _run(self) -> None:
        try:
            self._run_all()
        except BaseException as error:
            self.error = error

    def _run_all(self) -> None:
        began, number = time.perf_counter(), 0
        while not self._done.is_set():
            if self._rate is not None:
                due = began + number * BATCH_EVENTS / self._rate
                if self._done.wait(max(0.0, due - time.perf_counter())):
                    break
            # Serial: readers take cores away, which the model would take for costly transactions,
            # and the first batch it shares among threads waits for a kernel to be compiled.
            batch = self._batches[number % len(self._batches)]
            self._engine.run(transfer, batch, scheme="serial")
            number += 1
        self.per_s = number * BATCH_EVENTS / (time.perf_counter() - began)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


@dataclass(frozen=True)
class Reads:
    """Seconds per look-up, by the clock on the wall and of the thread's own time."""

    plain_s: float
    got_s: float
    plain_own_s: float
    got_own_s: float


def read_points(engine: hg.Engine, seconds: float, seed: int) -> Reads:
    """Look-ups in a plain dict and by `engine.get`, in turn, with the same keys."""
    plain = {
        number: {"id": number, "balance": FIRST_BALANCE} for number in range(transfers.ACCOUNTS)
    }
    random = np.random.default_rng(seed)
    get, times = engine.get, list[tuple[float, ...]]()
    for key in plain:  # where a key is found is remembered from its first read on
        row = get("accounts", key)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not times:
        # So many that each loop spans several turns of the threads: the waits fall on both alike.
        keys = random.permutation(transfers.ACCOUNTS).tolist()
        marks = [time.perf_counter(), time.thread_time()]
        for key in keys:
            row = plain[key]
        marks += [time.perf_counter(), time.thread_time()]
        for key in keys:
            row = get("accounts", key)
        marks += [time.perf_counter(), time.thread_time()]
        times.append((marks[2] - marks[0], marks[4] - marks[2],
                      marks[3] - marks[1], marks[5] - marks[3]))  # fmt: skip
        if row is None or row["id"] != key:
            raise WrongBalances(f"the row of account {key} is {row}")
    each = [sum(column) / len(times) / len(keys) for column in zip(*times, strict=True)]
    return Reads(*each)


def compare_points(folder: Path, quick: bool) -> list[Figure]:
    """Point reads from two threads while transfers run, and what is left of the stream's rate."""
    seconds = 2.0 if quick else 6.0
    found: list[Reads] = []
    with open_bank(folder / "points") as engine:
        with Stream(engine, STREAM_RATE) as alone:
            time.sleep(seconds)
        with Stream(engine, STREAM_RATE) as beside:
            peers.share([(seed, 0, 0) for seed in range(READERS)],
                        lambda seed, _: found.append(read_points(engine, seconds, seed)),
                        READERS)  # fmt: skip
        check_total(engine)
    wall = sum(one.got_s for one in found) / sum(one.plain_s for one in found)
    own = sum(one.got_own_s for one in found) / sum(one.plain_own_s for one in found)
    got_ns = [1e9 * sum(getattr(one, name) for one in found) / len(found)
              for name in ("got_s", "got_own_s")]  # fmt: skip
    who = f"engine.get from {READERS} threads beside {STREAM_RATE:,} transfers/s"
    to = "a dict look-up in the same loop"
    return [
        Figure("points", f"{who}, by the wall clock", got_ns[0], "ns", wall, to, 10, True),
        Figure("points", f"{who}, the thread's own time", got_ns[1], "ns", own, to, 10, True),
        Figure("points", f"the stream beside {READERS} readers", beside.per_s, "transfers/s",
               beside.per_s / alone.per_s, "the stream alone", 0.9),
    ]  # fmt: skip


def compare_sums(folder: Path, quick: bool) -> list[Figure]:
    """A consistent sum over a million rows beside DuckDB's over the same Arrow data."""
    rounds = 15 if quick else 60
    query = "select sum(balance) from accounts"
    with open_bank(folder / "sums", SUM_ROWS) as engine:
        connection = duckdb.connect(":memory:")
        connection.register("accounts", engine.scan(accounts).arrow())

        def bare() -> Any:
            return connection.sql(query).fetchall()

        def ours() -> Any:
            return engine.sql(query).rows()

        still = take_turns([bare, ours], rounds, wanted=[(SUM_ROWS * FIRST_BALANCE,)])
        with Stream(engine, STREAM_RATE):
            moving = take_turns([bare, ours], rounds, wanted=[(SUM_ROWS * FIRST_BALANCE,)])
        connection.close()
    return [
        Figure("sums", f"SQL sum over {SUM_ROWS:,} rows", still[1] * 1e3, "ms", still[1] / still[0],
               "bare DuckDB over the same Arrow", 3, True),
        Figure("sums", f"the same beside a stream of {STREAM_RATE:,}/s", moving[1] * 1e3, "ms",
               moving[1] / moving[0], "bare DuckDB over the same Arrow"),
    ]  # fmt: skip


# --- aborts -----------------------------------------------------------------------------------

ABORT_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def compare_aborts(_: Path, quick: bool) -> list[Figure]:
    """Throughput by the share of transfers that abort, in memory, by the thread's own time."""
    batches = {share: [make_events(BATCH_EVENTS, seed, share) for seed in range(8)]
               for share in ABORT_SHARES}  # fmt: skip
    with ExitStack() as stack:
        engines = {share: stack.enter_context(open_bank(None)) for share in ABORT_SHARES}
        place = dict.fromkeys(ABORT_SHARES, 0)

        def runner(share: float) -> Callable[[], Any]:
            def run() -> None:
                engines[share].run(transfer, batches[share][place[share] % 8], scheme="serial")
                place[share] += 1

            return run

        ways = [runner(share) for share in ABORT_SHARES]
        seconds = take_turns(ways, 200 if quick else 800, clock=time.thread_time)
        for engine in engines.values():
            check_total(engine)
    figures = [
        Figure("aborts", f"{share:.0%} of transfers abort", BATCH_EVENTS / each, "events/s",
               seconds[0] / each, "none aborts")
        for share, each in zip(ABORT_SHARES, seconds, strict=True)
    ]  # fmt: skip
    change = max(abs(1 - figure.ratio) for figure in figures)
    return [
        *figures,
        Figure("aborts", "largest change, 0 to 50 % aborts", 100 * change, "%", change,
               "none aborts", 0.15, True),
    ]  # fmt: skip


# --- isolation --------------------------------------------------------------------------------

LEVELS = ("PL2", "PL3", "PL4")
PROTOCOLS = ("lock", "timestamp")
KEY_COUNTS = (100, 1_000, 10_000, 100_000)


def compare_isolation(_: Path, quick: bool) -> list[Figure]:
    """Throughput by level, protocol and number of keys, as in figures 7 and 10 of the paper."""
    return [
        figure
        for rows in (KEY_COUNTS[::3] if quick else KEY_COUNTS)
        for figure in _compare_levels(rows, 6 if quick else 30)
    ]


def _compare_levels(rows: int, rounds: int) -> list[Figure]:
    batches = [make_events(BATCH_EVENTS, seed, rows=rows) for seed in range(8)]
    ways = [(level, protocol) for level in LEVELS for protocol in PROTOCOLS]
    with ExitStack() as stack:
        engines = [stack.enter_context(open_bank(None, rows)) for _ in (*ways, None)]

        def runner(engine: hg.Engine, **words: str) -> Callable[[], Any]:
            turn = iter(range(rounds + 3))
            return lambda: engine.run(transfer, batches[next(turn) % 8], **words) and None

        run = [runner(engine, isolation=level, scheme=protocol)
               for engine, (level, protocol) in zip(engines, ways, strict=False)]  # fmt: skip
        seconds = take_turns([*run, runner(engines[-1], scheme="serial")], rounds)
        for engine in engines:
            check_total(engine, rows)
    return [
        Figure("isolation", f"{level} {protocol}, {rows:,} keys", BATCH_EVENTS / each, "events/s",
               seconds[-1] / each, "the serial scheme")
        for (level, protocol), each in zip([*ways, ("PL4", "serial")], seconds, strict=True)
    ]  # fmt: skip


# --- all of it --------------------------------------------------------------------------------


def compare_server(_: Path, quick: bool) -> list[Figure]:
    """Calls over HTTP beside an endpoint that only echoes."""
    from bench import server

    found = server.measure(quick)
    return [
        Figure("server", "calls of a transaction over HTTP", found.call_per_second, "requests/s",
               found.call_per_second / found.echo_per_second, "a bare echo, same stack", 0.5)
    ]  # fmt: skip


SECTIONS: dict[str, Callable[[Path, bool], list[Figure]]] = {
    "point reads beside the stream": compare_points,
    "sums over a million rows": compare_sums,
    "the first SQL over many rows": lambda _, quick: growth.compare_first_sql(quick),
    "aborts": compare_aborts,
    "isolation": compare_isolation,
    "calls over HTTP": compare_server,
}


def measure(quick: bool, folder: Path, say: Callable[[str], Any]) -> tuple[list[Figure], list[str]]:
    """All figures, and what could not be measured."""
    figures: list[Figure] = []
    for words, compare in SECTIONS.items():
        say(words)
        figures += compare(folder, quick)
    say("the bank beside its peers")
    found, notes = compare_peers(folder, quick)
    return figures + found, notes


def main(quick: bool, out: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    try:
        with console.status("") as status:
            figures, notes = measure(quick, folder, status.update)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("what", "value", "ratio", "to", "bar", title="Queries, and the bank beside peers")
    for one in figures:
        table.add_row(one.what, one.amount, f"{one.ratio:.2f}", one.to, one.verdict)
    console.print(table)
    for note in notes:
        console.print(f"not compared: {note}")
    if out is not None:
        write_report(figures, notes, Path(out))
        console.print(f"report: {Path(out) / 'queries.html'}")


def write_report(figures: Sequence[Figure], notes: Sequence[str], out: Path) -> None:
    from bench.queries_report import render

    out.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(one), "is_met": one.is_met} for one in figures]
    pq.write_table(pa.Table.from_pylist(rows), out / "queries.parquet")
    (out / "queries.html").write_text(render(figures, notes))
