"""The proof of the demo: what its results said while it ran, and what must hold of the ledger.

Invariant of the tally: an event is counted once, when its results first arrive; a micro-batch that
comes again is noted as recognised and adds nothing. Every claim is asked from the store's files.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from headgate.cli import ledger
from headgate.cli.output import visible

Ask = Callable[[str], list[tuple[Any, ...]]]

DEPOSITED = """
    select coalesce(sum({column}), 0) from events join results using (event)
    where transaction = 'deposit' and outcome = 'committed'
"""
REASONS = """
    select outcome, coalesce(reason, ''), count(*) from results
    group by outcome, reason order by outcome <> 'committed', count(*) desc
"""
TOP_ACCOUNTS = "select id, balance from accounts order by balance desc, id limit 5"


@dataclass(frozen=True)
class Claim:
    """Something that must hold, with the figures that show it."""

    what: str
    shown: str
    holds: bool


def claims(ask: Ask, tally: DemoTally, rows: int) -> list[Claim]:
    """All that the demo claims, computed anew from events, results and tables."""
    return [
        _conserved(ask, ("accounts", "balance"), "amount", ledger.FIRST_BALANCE * rows),
        _conserved(ask, ("assets", "quantity"), "quantity", ledger.FIRST_QUANTITY * rows),
        _exactly_once(ask),
        _replayed(tally),
        _whole_epochs(tally),
    ]


def _conserved(ask: Ask, place: tuple[str, str], event_column: str, first: Any) -> Claim:
    table, column = place
    deposited = ask(DEPOSITED.format(column=event_column))[0][0]
    found = ask(f"select sum({column}) from {table}")[0][0]
    shown = f"{first:,} first + {deposited:,} deposited = {found:,}"
    return Claim(f"{table}: the total is conserved", shown, first + deposited == found)


def _exactly_once(ask: Ask) -> Claim:
    events, results, distinct = ask(
        "select (select count(*) from events), count(*), count(distinct event) from results"
    )[0]
    shown = f"{events:,} events, {results:,} results of {distinct:,} events"
    return Claim("each event ran exactly once", shown, events == results == distinct)


def _replayed(tally: DemoTally) -> Claim:
    again = sum(replay.results for replay in tally.replays)
    shown = f"{again:,} events came again and were recognised"
    return Claim("nothing is applied twice", shown, len(tally.replays) > 0)


def _whole_epochs(tally: DemoTally) -> Claim:
    whole = sum(total in tally.totals for total in tally.seen)
    shown = f"{whole} of {len(tally.seen)} queries saw a whole epoch's total"
    return Claim("queries see whole epochs", shown, whole == len(tally.seen))


def _grid(title: str) -> Grid:
    return Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")


def claims_table(found: list[Claim]) -> RenderableType:
    """Every claim with a mark that says whether it holds."""
    grid = _grid("What must hold")
    grid.add_column("claim")
    grid.add_column("figures")
    for claim in found:
        mark = ("✓ ", "green") if claim.holds else ("✗ ", "red")
        grid.add_row(Text.assemble(mark, claim.what), claim.shown)
    return grid


def outcomes_table(ask: Ask) -> RenderableType:
    """How many events had which outcome, and why."""
    grid = _grid("Outcomes and their reasons")
    grid.add_column("outcome")
    grid.add_column("reason")
    grid.add_column("events", justify="right")
    for outcome, reason, count in ask(REASONS):
        grid.add_row(outcome, Text(visible(str(reason))), f"{count:,}")
    return grid


def top_accounts_table(ask: Ask) -> RenderableType:
    """The accounts with the most money."""
    grid = _grid("Top accounts")
    grid.add_column("id", justify="right")
    grid.add_column("balance", justify="right")
    for number, balance in ask(TOP_ACCOUNTS):
        grid.add_row(str(number), f"{balance:,.2f}")
    return grid


def where_to_look(store: Path) -> RenderableType:
    """Where the store is and the commands that show more of it."""
    command, path = _command(), os.path.relpath(store)
    examples = [
        f'{command} sql {path} "select * from accounts order by balance desc limit 10"',
        f'{command} sql {path} "select reason, count(*) from results group by reason"',
        f'{command} sql {path} --epoch 5 "select sum(balance) from accounts"',
        f"{command} tables {path}",
        f"{command} log {path} --last 5",
        f"{command} verify {path}",
    ]
    lines = [Text(f"The store is {path}. Look further, from any process:", "bold")]
    return Group(*lines, *(Text(f"  {example}") for example in examples))


def _command() -> str:
    """How the reader of these lines starts this program: by `./run` inside a clone of the repo."""
    in_clone = Path("run").is_file() and Path("src", "headgate").is_dir()
    return "./run headgate" if in_clone else "headgate"


@dataclass(frozen=True)
class RecognisedBatch:
    """A micro-batch that Spark sent again and the store recognised."""

    batch_id: int
    epoch: int
    results: int


class DemoTally:
    """Counts for the screen; written by the thread of foreachBatch, read by the screen's."""

    def __init__(self, events: pa.Table, total: Decimal) -> None:
        self._amounts = events.column("amount")
        self._lock = threading.Lock()
        self.outcomes: dict[str, int] = {}
        self.total = total
        self.totals = {total}  # in the accounts, after each epoch
        self.seen: list[Decimal] = []  # in the accounts, by queries while the stream ran
        self.replays: list[RecognisedBatch] = []
        self.busy_seconds = 0.0

    @property
    def events(self) -> int:
        return sum(self.outcomes.values())

    @property
    def events_per_second(self) -> float:
        return self.events / self.busy_seconds if self.busy_seconds else 0.0

    def run(self, sink: Any, engine: Any, frame: Any, batch_id: int) -> None:
        """Hand a micro-batch to the sink and count what comes back."""
        before = engine.epoch
        results = sink(frame, batch_id)
        with self._lock:
            if engine.epoch == before and results.num_rows:
                self._note_replay(batch_id, results)
            else:
                self._add(results)

    def _note_replay(self, batch_id: int, results: pa.Table) -> None:
        epoch = results.column("epoch")[0].as_py()
        self.replays.append(RecognisedBatch(batch_id, epoch, results.num_rows))

    def _add(self, results: pa.Table) -> None:
        for found in pc.value_counts(results.column("outcome")).to_pylist():
            name = found["values"]
            self.outcomes[name] = self.outcomes.get(name, 0) + found["counts"]
        self.total += self._deposited(results)
        self.totals.add(self.total)

    def _deposited(self, results: pa.Table) -> Decimal:
        """The money that the committed deposits among these results brought in."""
        is_deposit = pc.equal(results.column("transaction").cast(pa.string()), "deposit")
        is_committed = pc.equal(results.column("outcome").cast(pa.string()), "committed")
        events = results.column("event").filter(pc.and_(is_deposit, is_committed))
        return pc.sum(self._amounts.take(events)).as_py() or Decimal(0)

    def look(self, engine: Any) -> float:
        """Ask the ledger for its total while it runs; returns how long that took, in seconds."""
        started = time.perf_counter()
        self.seen.append(engine.sql("select sum(balance) from accounts").rows()[0][0])
        return time.perf_counter() - started
