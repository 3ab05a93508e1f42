"""The tally: what the results of the demo's ledger said so far, and what it was seen to hold.

Invariant: an event is counted once, when its results first arrive; a micro-batch that comes again
is noted as a replay and adds nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Replay:
    """A micro-batch that Spark sent again and the store recognised."""

    batch_id: int
    epoch: int
    results: int


class Tally:
    """Counts for the screen; written by the thread of foreachBatch, read by the screen's."""

    def __init__(self, events: pa.Table, total: Decimal) -> None:
        self._amounts = events.column("amount")
        self._lock = threading.Lock()
        self.outcomes: dict[str, int] = {}
        self.total = total
        self.totals = {total}  # in the accounts, after each epoch
        self.seen: list[Decimal] = []  # in the accounts, by queries while the stream ran
        self.replays: list[Replay] = []
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
        self.replays.append(Replay(batch_id, epoch, results.num_rows))

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
