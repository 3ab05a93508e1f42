"""The demo: Streaming Ledger on a real Spark query, interrupted half-way and started again.

It tells a story and then proves it: every claim on the screen is computed from the store, and one
that does not hold ends the demo with an error.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid

from headgate.cli import ledger, proof
from headgate.cli.proof import DemoTally, RecognisedBatch
from headgate.durability import StoreReader
from headgate.engine.engine import Engine, open_engine
from headgate.errors import HeadgateError, InputError
from headgate.query.sql import run_sql

MARKER = "made-by-headgate-demo"
ROWS = 10_000
LOOK_SECONDS = 0.5
SHOW_SECONDS = 0.1
RELEASE_SECONDS = 0.5
RELEASE_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class DemoFolder:
    """The demo's folder and what lies in it."""

    folder: Path

    @property
    def events(self) -> Path:
        return self.folder / "events"

    @property
    def store(self) -> Path:
        return self.folder / "bank"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def spark_log(self) -> Path:
        return self.folder / "spark.log"


def run_demo(console: Console, folder: Path, count: int, files: int) -> None:
    """The whole demo, from empty folder to proof."""
    started = time.perf_counter()
    from headgate.spark.session import require_java, start_session

    require_java()
    place = _fresh(folder)
    events = ledger.make_events(count, ROWS)
    console.rule("[bold]Headgate: Streaming Ledger")
    console.print(
        f"{count:,} events over {ROWS:,} accounts and {ROWS:,} assets: transfers, which move money "
        "one way and goods the other (four rows), and deposits (two rows)."
    )
    with _step(console, "write", f"the events as {files} Parquet files, out of order inside each"):
        ledger.write_files(events, place.events, files)
    with _step(console, "start", "Spark on this machine"):
        spark = start_session("headgate demo", place.spark_log)
    try:
        tally = _run_with_restart(console, spark, place, events)
        with _step(console, "read", "all results back with spark.read"):
            results = _read_results(spark, place)
    finally:
        spark.stop()
    _prove(console, place, events, results, tally)
    console.print(f"All of it took {time.perf_counter() - started:.0f} s.")


def _fresh(folder: Path) -> DemoFolder:
    """An empty folder for the demo; only what an earlier demo made is ever removed."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise InputError(f"{folder} is not empty and no demo made it; name another --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("headgate demo replaces this folder whenever it runs again\n")
    return DemoFolder(folder.resolve())


@contextmanager
def _step(console: Console, verb: str, what: str) -> Iterator[None]:
    """One line for one thing done, with the time it took."""
    started = time.perf_counter()
    with console.status(f"{verb} {what}"):
        yield
    _done(console, f"{verb} {what} [dim]({time.perf_counter() - started:.1f} s)[/dim]")


def _done(console: Console, what: str) -> None:
    console.print(f"[green]✓[/green] {what}")


# --- the query, its stop and its restart ------------------------------------------------------


def _run_with_restart(
    console: Console, spark: Any, place: DemoFolder, events: pa.Table
) -> DemoTally:
    with _step(console, "open", "the store, its transactions compiled"):
        engine = _open(place)
        _load(engine)
    tally = DemoTally(events, ledger.FIRST_BALANCE * ROWS)
    with engine:
        _Run(spark, place, engine, tally, events.num_rows // 2).watch(console, events.num_rows)
    batch_id = forget_last_commit(place.checkpoint)
    _done(
        console,
        f"stop the query half-way, after the store had committed micro-batch {batch_id} "
        "and before Spark had noted it: as in a crash",
    )
    with _step(console, "open", "the store again, recovered from its log"):
        engine = _open(place)
    with engine:
        _Run(spark, place, engine, tally, None).watch(console, events.num_rows)
    _show_replay(console, tally, batch_id)
    return tally


def _show_replay(console: Console, tally: DemoTally, batch_id: int) -> None:
    wanted = [replay for replay in tally.replays if replay.batch_id == batch_id]
    if not wanted:
        raise HeadgateError(f"Spark sent micro-batch {batch_id} again and it was not recognised")
    replay: RecognisedBatch = wanted[0]
    _done(
        console,
        f"start it again on the same checkpoint: Spark sent micro-batch {batch_id} again, the "
        f"store knew it as epoch {replay.epoch}, gave its {replay.results:,} recorded results and "
        "ran none of it twice",
    )


def _open(place: DemoFolder) -> Engine:
    return open_engine(
        place.store,
        tables=[ledger.accounts, ledger.assets],
        transactions=[ledger.transfer, ledger.deposit],
    )


def _load(engine: Engine) -> None:
    accounts, assets = ledger.first_rows(ROWS)
    engine.load(ledger.accounts, accounts)
    engine.load(ledger.assets, assets)


class _Run:
    """One run of the streaming query; with `stop_at` it is stopped when so many events ran."""

    def __init__(
        self, spark: Any, place: DemoFolder, engine: Engine, tally: DemoTally, stop_at: int | None
    ) -> None:
        self._place = place
        self._engine = engine
        self._tally = tally
        self._stop_at = stop_at
        self._is_there = threading.Event()
        self._release = threading.Event()
        self._query = self._start(spark)

    def _start(self, spark: Any) -> Any:
        engine, tally = self._engine, self._tally
        sink = engine.sink(
            {"transfer": ledger.transfer, "deposit": ledger.deposit},
            route_by="kind",
            order_by=["ts", "event"],
        )

        def apply(frame: Any, batch_id: int) -> None:
            tally.run(sink, engine, frame, batch_id)
            if self._stop_at is not None and tally.events >= self._stop_at:
                self._is_there.set()
                self._release.wait(RELEASE_SECONDS_MAX)

        stream = (
            spark.readStream.schema(ledger.EVENT_COLUMNS)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._place.events))
        )
        return (
            stream.writeStream.foreachBatch(apply)
            .option("checkpointLocation", str(self._place.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def watch(self, console: Console, count: int) -> None:
        """Show the progress and query the tables until the query has ended or is stopped."""
        began, before = time.perf_counter(), self._tally.busy_seconds
        query_seconds, looked = self._tally.look(self._engine), began
        with Live(console=console, refresh_per_second=10) as live:
            while self._query.isActive and not self._is_there.wait(SHOW_SECONDS):
                now = time.perf_counter()
                self._tally.busy_seconds = before + now - began
                if now - looked > LOOK_SECONDS:
                    query_seconds, looked = self._tally.look(self._engine), now
                live.update(_screen(self._tally, self._engine, count, query_seconds))
            live.update(_screen(self._tally, self._engine, count, query_seconds))
        if not console.is_terminal:
            console.line()  # rich ends the last line of a live display on terminals only
        self._end()

    def _end(self) -> None:
        """Stop the query inside its micro-batch when asked to; raise what made it fail, if any."""
        if self._is_there.is_set():
            # The micro-batch must not end before Spark has heard that it should stop.
            threading.Timer(RELEASE_SECONDS, self._release.set).start()
            self._query.stop()
            return
        failure = self._query.exception()
        if failure is not None:
            reason = str(failure).strip().partition("\n")[0]
            log = self._place.spark_log
            raise HeadgateError(f"the streaming query failed: {reason}; Spark's log is {log}")


def _screen(tally: DemoTally, engine: Engine, count: int, query_seconds: float) -> Grid:
    """What is shown while the stream flows."""
    outcomes = ", ".join(f"{number:,} {name}" for name, number in sorted(tally.outcomes.items()))
    grid = Grid.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=count, completed=tally.events, width=60))
    grid.add_row(f"{tally.events:,} of {count:,} events, {tally.events_per_second:,.0f} a second")
    grid.add_row(f"epoch {engine.epoch}: {outcomes or 'waiting for the first micro-batch'}")
    grid.add_row(
        f"select sum(balance) from accounts: {tally.seen[-1]:,.2f} "
        f"in {query_seconds * 1000:.0f} ms, while it runs"
    )
    return grid


def forget_last_commit(checkpoint: Path) -> int:
    """Make Spark's checkpoint one in which the last micro-batch was begun and not noted as done.

    That is what a crash after the store's commit leaves behind. Returns the micro-batch's number.
    """
    last = max(_numbers(checkpoint / "offsets"))
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def _numbers(folder: Path) -> Iterator[int]:
    return (int(path.name) for path in folder.iterdir() if path.name.isdecimal())


# --- the proof --------------------------------------------------------------------------------


def _read_results(spark: Any, place: DemoFolder) -> pa.Table:
    # One task for each thread: starting a Python worker costs more than reading an epoch.
    reader = spark.read.format("headgate").option("stream", "*").option("partitions", 2)
    columns = ["epoch", "event", "transaction", "outcome", "reason"]
    results: pa.Table = reader.load(str(place.store)).select(*columns).toArrow()
    return results


def _prove(
    console: Console, place: DemoFolder, events: pa.Table, results: pa.Table, tally: DemoTally
) -> None:
    tables = {"events": events, "results": results, **_tables(place)}

    def ask(query: str) -> list[tuple[Any, ...]]:
        return run_sql(query, tables).rows()

    claims = proof.claims(ask, tally, ROWS)
    console.print(proof.claims_table(claims))
    console.print(proof.outcomes_table(ask))
    console.print(proof.top_accounts_table(ask))
    console.print(proof.where_to_look(place.store), soft_wrap=True)
    broken = [claim.what for claim in claims if not claim.holds]
    if broken:
        raise HeadgateError(f"the demo's proof does not hold: {'; '.join(broken)}")


def _tables(place: DemoFolder) -> dict[str, pa.Table]:
    reader = StoreReader.open(place.store)
    return {name: reader.table(name) for name in ("accounts", "assets")}
