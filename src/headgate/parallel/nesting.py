"""Nesting: a batch in two groups that share no row, each run in its own way at the same time.

One group holds the transactions that hang together by their rows, the other all the rest. Since no
row is in both, they need not know of each other, and each gets the decision that suits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from headgate.execution.run import Run
from headgate.parallel.crew import workers
from headgate.parallel.decision import Decision
from headgate.parallel.groups import contended
from headgate.parallel.transactions import TransactionBatch

GAIN_MIN = 1.1  # the batch as a whole must be expected to take this much longer


@dataclass
class Part:
    """One group: where it stands in the batch, its own run, and how that goes."""

    places: np.ndarray
    run: Run
    batch: TransactionBatch
    decision: Decision


class Nested:
    """The parts of one batch."""

    def __init__(self, run: Run, parts: Sequence[Part]) -> None:
        self.run, self.parts = run, parts

    @property
    def decisions(self) -> list[Decision]:
        return [part.decision for part in self.parts]

    def work(self, run_as_decided: Callable[[TransactionBatch, Decision], bool]) -> None:
        """Run all parts at once and put together what they gave."""

        def one(part: Part) -> None:
            if not run_as_decided(part.batch, part.decision):
                part.run.all()

        workers.run([partial(one, part) for part in self.parts])
        for part in self.parts:
            self._take(part)

    def _take(self, part: Part) -> None:
        run = self.run
        run.outcome[part.places] = part.run.outcome
        run.reason[part.places] = part.run.reason
        for mine, theirs in zip(run.works, part.run.works, strict=True):
            if mine.out is not None and theirs.out is not None:
                mine.out[part.places] = theirs.out
        for number in range(len(run.table_names)):
            count, more = int(run.counts[2 * number]), int(part.run.counts[2 * number])
            changed = part.run.arrays[f"changed_{number}"][:more]
            run.arrays[f"changed_{number}"][count : count + more] = changed
            run.counts[2 * number] = count + more
            run.counts[2 * number + 1] |= part.run.counts[2 * number + 1]


def nest(run: Run, batch: TransactionBatch, whole: Decision, serial_ns: float) -> Nested | None:
    """Two groups with a decision each, if that should take clearly less time than the whole."""
    threads = batch.scheme.threads
    if threads < 2 or whole.ns <= GAIN_MIN * serial_ns / threads:
        return None  # no way of sharing the work out could be so much faster
    operations, _, rows = batch.graph()
    is_contended = contended(operations, rows, threads)
    if is_contended is None:
        return None
    groups = {"contended": is_contended, "spread": ~is_contended}
    parts = {name: _part(run, batch, np.flatnonzero(chosen)) for name, chosen in groups.items()}
    best: tuple[float, dict[str, Decision], int] | None = None
    for share in range(1, threads):
        shares = {"contended": share, "spread": threads - share}
        made = {name: part.batch.decide(shares[name]) for name, part in parts.items()}
        ns = max(decision.ns for decision in made.values())
        if best is None or ns < best[0]:
            best = ns, made, share
    if best is None or best[0] * GAIN_MIN > whole.ns:
        return None
    _, made, share = best
    for name, part in parts.items():
        part.batch.scheme = replace(
            part.batch.scheme, threads=share if name == "contended" else threads - share
        )
        count, own = len(part.places), part.batch.scheme.threads
        words = f"group of {count} {name} transactions on {own} of {threads} threads: "
        part.decision = replace(made[name], why=words + made[name].why)
    return Nested(run, list(parts.values()))


def _part(run: Run, batch: TransactionBatch, places: np.ndarray) -> Part:
    """A run of its own over some of the events."""
    works = [replace(work, out=None, changes=[]) for work in run.works]
    part = Run(run.program, works, run.order[places], run.route, run.epoch, True, run)
    return Part(places, part, batch.of(part), Decision("serial", ""))
