"""Sections and groups: a batch cut into pieces, in turn, side by side, or looked up ahead.

A large batch is cut into sections, which are planned and run in turn.

What planning looks at then stays in the caches, so that its cost grows with the operations and not
faster. Each section ends before the next one begins, so the effect is that of the serial order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from headgate.execution.run import Run
from headgate.execution.straight_run import StraightRun
from headgate.parallel.crew import workers
from headgate.parallel.decision import Decision
from headgate.parallel.graph import contended
from headgate.parallel.whole_transactions import TransactionBatch
from headgate.state.compiled import numba
from headgate.state.layout import HEADER_EPOCH_SHIFT

GAIN_MIN = 1.1  # the batch as a whole must be expected to take this much longer
SECTION_OPERATIONS = 1 << 15  # about so many are planned at once


def section_count(operations: int) -> int:
    """Into how many sections a batch of so many operations is cut."""
    return max(1, round(operations / SECTION_OPERATIONS))


def cut(run: Run) -> list[range]:
    """The positions of each section of a batch, in order."""
    count = min(section_count(_operations(run)), len(run.order))  # a transaction is not cut
    edges = np.linspace(0, len(run.order), count + 1).astype(int)
    return [range(first, last) for first, last in pairwise(edges.tolist())]


def _operations(run: Run) -> int:
    """How many rows the events of the batch name."""
    if run.operations_max() <= SECTION_OPERATIONS:
        return run.operations_max()  # no need to look closer
    count, routed = 0, run.route[run.order]
    for number, work in enumerate(run.works):
        mine = run.order[routed == number]
        count += sum(spans.count(mine) for spans in work.spans)
    return count


def run_in_turn(run: Run, sections: Iterable[range], run_section: Callable[[Run], bool]) -> None:
    """Run section after section, serially where `run_section` says so, and put all together."""
    changed: dict[str, list[np.ndarray]] = {name: [] for name in run.table_names}
    for number, places in enumerate(sections):
        # Stamped with a number of its own, a row counts as changed once in every section: what it
        # was before can be put back there. Real epochs are not negative.
        section = _section(run, places, -1 - number)
        if not run_section(section):
            section.all()
        _take(run, section, places)
        for name, slots in section.changed().items():
            changed[name].append(slots)
    for number, name in enumerate(run.table_names):
        slots = np.concatenate([np.empty(0, np.int64), *changed[name]])
        words, found = run.program.tables[name].words, run.arrays[f"changed_{number}"]
        run.counts[2 * number] = _settle(words, slots, run.epoch, found)


def _section(run: Run, places: range, stamp: int) -> Run:
    works = [replace(work, out=None, changes=[]) for work in run.works]
    order = run.order[places.start : places.stop]
    return Run(run.program, works, order, run.route, stamp, whole=run)


def _take(run: Run, section: Run, places: range) -> None:
    """Its outcomes and outputs, and whether it deleted rows."""
    here = slice(places.start, places.stop)
    run.outcome[here], run.reason[here] = section.outcome, section.reason
    for mine, theirs in zip(run.works, section.works, strict=True):
        if mine.out is not None and theirs.out is not None:
            mine.out[:, here] = theirs.out
    run.counts[1::2] |= section.counts[1::2]


@numba.njit(cache=True, nogil=True)
def _settle(words: np.ndarray, slots: np.ndarray, epoch: int, found: np.ndarray) -> int:
    """Give the rows the epoch of the batch; each is found once. Returns how many there are."""
    count = 0
    for slot in slots:
        if words[slot, 0] >> HEADER_EPOCH_SHIFT != epoch:
            words[slot, 0] = (epoch << HEADER_EPOCH_SHIFT) | (words[slot, 0] & 1)
            found[count] = slot
            count += 1
    return count


# --- two groups that share no row, each run in its own way at the same time -----------------------


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
                mine.out[:, part.places] = theirs.out
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


# --- rows looked up ahead -------------------------------------------------------------------------
# A look-up reads the key index, which no event of a batch changes, so a second thread can do it
# with no word to the first. Invariant: at most one section is looked up ahead, into the half of the
# room that the running one does not use; the rows found are those that the serial loop would find.


SECTIONS_AHEAD = 3  # enough that the other thread never waits, which has the log to write, too
log = logging.getLogger("headgate.engine")


class LookAhead:
    """A thread beside the one that runs the batches of one program."""

    def __init__(self, run: StraightRun) -> None:
        self._run = run
        self._compiled: Future[None] | None = None

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="headgate-ahead")

    def is_ready(self) -> bool:
        """Whether its kernels are there; they are compiled beside what runs, when first asked."""
        if self._compiled is None:
            self._compiled = self._thread.submit(self._run.compile_ahead)
            self._compiled.add_done_callback(_tell)
        return self._compiled.done() and self._compiled.exception() is None

    def over(self, sections: Sequence[range]) -> Generator[tuple[range, int | None]]:
        """The sections one after another, and where the slots of each stand.

        The first has none: who runs it finds its rows itself, while the next ones are looked up.
        """
        room = max(map(len, sections))
        self._run.make_room((SECTIONS_AHEAD + 1) * room)
        places = [number % (SECTIONS_AHEAD + 1) * room for number in range(len(sections))]
        waiting = deque(zip(sections[1:], places[1:], strict=True))
        ahead: deque[Future[None]] = deque()
        try:
            for number, section in enumerate(sections):
                if number:
                    ahead.popleft().result()
                while waiting and len(ahead) < SECTIONS_AHEAD:
                    ahead.append(self._find(*waiting.popleft()))
                yield section, places[number] if number else None
        finally:
            # Also when the batch has failed: no thread may write into what is used again.
            wait(ahead)

    def _find(self, section: range, place: int) -> Future[None]:
        return self._thread.submit(self._run.look_ahead, section.start, section.stop, place)


def _tell(compiled: Future[None]) -> None:
    if not compiled.cancelled() and compiled.exception() is not None:
        log.debug("no look-ups ahead: they do not compile", exc_info=compiled.exception())
