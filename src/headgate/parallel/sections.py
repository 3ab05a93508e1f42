"""Sections and groups: a batch cut into pieces, in turn, side by side, or looked up ahead.

A large batch is cut into sections, which are planned and run in turn.

What planning looks at then stays in the caches, so that its cost grows with the operations and not
faster. Each section ends before the next one begins, so the effect is that of the serial order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
VIRTUAL_OPERATIONS = 1 << 22  # the same of those that computed keys only may come to


def section_count(operations: int) -> int:
    """Into how many sections a batch of so many operations is cut."""
    return max(1, round(operations / SECTION_OPERATIONS))


def cut(run: Run, *, by_rows: bool = False) -> list[range]:
    """The positions of each section of a batch, in order; with `by_rows` of one where a computed
    key touches every row of its table."""
    count = section_count(_operations(run))
    if by_rows:
        count = max(count, -(-_virtual_operations(run) // VIRTUAL_OPERATIONS))
    count = min(count, len(run.order))  # a transaction is not cut
    edges = np.linspace(0, len(run.order), count + 1).astype(int)
    return [range(first, last) for first, last in pairwise(edges.tolist())]


def _virtual_operations(run: Run) -> int:
    """How many rows the computed keys of the batch may lead to, counted for each of them."""
    tables = run.program.tables
    each = [
        sum(tables[one.table.name].count for one in work.signature.accesses if one.is_dynamic)
        for work in run.works
    ]
    return int(np.array(each)[run.route[run.order]].sum())


def _operations(run: Run) -> int:
    """How many rows the events of the batch name."""
    if run.operations_max() <= SECTION_OPERATIONS:
        return run.operations_max()  # no need to look closer
    count, routed = 0, run.route[run.order]
    for number, work in enumerate(run.works):
        mine = run.order[routed == number]
        count += sum(spans.count(mine) for spans in work.spans)
    return count


def run_in_turn(
    run: Run, sections: Iterable[range], run_section: Callable[[Run], bool], stamp: int = -1
) -> None:
    """Run section after section, serially where `run_section` says so, and put all together.

    Their numbers go down from `stamp`; those of sections of a section must be others.
    """
    changed: dict[str, list[np.ndarray]] = {name: [] for name in run.table_names}
    for number, places in enumerate(sections):
        # Stamped with a number of its own, a row counts as changed once in every section: what it
        # was before can be put back there. Real epochs are not negative.
        section = _section(run, places, stamp - number)
        if not run_section(section):
            section.all()
        _take(run, section, places)
        for name, slots in section.changed().items():
            changed[name].append(slots)
            for kept in run.indexes:
                if kept.index.index.table == name:  # it is brought forward when somebody looks
                    kept.index.note(slots)
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


# --- foresight ------------------------------------------------------------------------------------
# Rows whose keys depend on other rows, found before their events run.
#
# Threads that share a batch must know its rows beforehand. A look-up on the rows as they stand is
# certain for an event when no earlier event of the section may write what it reads. So a batch is
# cut into sections of certainty: the longest stretch of events whose rows are certain runs with
# its slots given, and the next one begins with the first that is not, and is looked up anew.
# Nothing is guessed wrong, and nothing undone. Where stretches are short, one thread runs more
# and more events before the next attempt.


AHEAD_EVENTS = 1024  # looked up at once: what is not certain is looked up again
STRETCH_MIN = 128  # fewer events are run by one thread, where nothing is known of their cost
ALONE_MAX = 1 << 14  # at most so many of them before the next attempt


class Foresight:
    """The sections of certainty of one batch, each found when those before it have run."""

    def __init__(self, run: Run, most: int, least: int = STRETCH_MIN) -> None:
        """`most` events are in a section, and at least `least`, but for what one thread runs."""
        self.run, self.most, self.least = run, most, least
        self.is_certain = False  # whether the rows of the last section are known
        self.sections = self.alone = 0  # how many were certain; how many events were not

    def __iter__(self) -> Iterator[range]:
        begin, alone = 0, self.least
        count = len(self.run.order)
        while begin < count:
            end = self._certain_end(begin, min(begin + self.most, count))
            self.is_certain = end - begin >= self.least or end == count > begin
            if self.is_certain:
                self.sections, alone = self.sections + 1, self.least
            else:
                end = min(begin + alone, count)
                self.alone, alone = self.alone + end - begin, min(2 * alone, ALONE_MAX)
            yield range(begin, end)
            begin = end

    def predict(self) -> int:
        """Find the rows of all events as the tables are now, for a graph that is only looked at.

        Returns into how many sections of certainty the batch would be cut.
        """
        begin, count, sections = 0, len(self.run.order), 0
        while begin < count:
            end = self._certain_end(begin, count)
            sections += 1
            begin = max(end, begin + 1)  # where the function of a key raised, there is no row
        return sections

    def _certain_end(self, begin: int, end: int) -> int:
        """The end of the longest stretch from `begin` on whose rows are certain."""
        program, frame = self.run.program, self.run.frame.address
        kernel, section = program.compiled_kernel, program.next_section()
        for first in range(begin, end, AHEAD_EVENTS):
            last = min(first + AHEAD_EVENTS, end)
            kernel.resolve(first, last, frame)
            self.run.progress[0] = -1
            try:
                stop = int(kernel.predict(first, last, section, frame))
            except Exception:
                # The function of a key raised: its event runs by the loop, which knows how to say
                # that.
                stop = int(self.run.progress[0])
                if stop < 0:  # it did not come to run: the kernel itself did not compile
                    raise
            if stop < last:
                return stop
        return end


# --- stretches ------------------------------------------------------------------------------------
# A batch cut where its events look into an index that others of them move.
#
# Which rows a range has is known when all have run that may move rows there. So events that look
# run on one thread, which keeps the index in step; the events between two of them look at nothing
# that others move, and where they are many enough threads share them, as if there were no index.
# Behind each stretch the index is told what changed, and is brought forward when the next event
# looks.
#
# Invariant: no event that looks is in a stretch that is shared.


ALONE_NS = 500_000.0  # a stretch of less work costs more to begin and end than threads may gain
STAMP = -(1 << 40)  # the first number of a stretch, which may be cut into sections in its turn


@dataclass(frozen=True)
class Stretch:
    """Positions that run together, by threads or one after another."""

    places: range
    is_shared: bool


def looking(run: Run) -> np.ndarray:
    """By position: whether the event looks into an index that transactions of the program move."""
    moving = set(run.program.moving)
    looks = [
        any(one.span is not None and one.span.index in moving for one in signature.accesses)
        for signature in run.program.signatures
    ]
    return np.array(looks)[run.route[run.order]]


def stretches(run: Run, least: int) -> list[Stretch]:
    """All positions in their order; at least so many events are shared at once."""
    is_look, count = looking(run), len(run.order)
    edges = [-1, *np.flatnonzero(is_look).tolist(), count]
    found: list[Stretch] = []
    begin = 0
    for before, look in pairwise(edges):
        if look - before - 1 >= least:
            if begin <= before:
                found.append(Stretch(range(begin, before + 1), is_shared=False))
            found.append(Stretch(range(before + 1, look), is_shared=True))
            begin = look
    if begin < count:
        found.append(Stretch(range(begin, count), is_shared=False))
    return found


def run_stretches(run: Run, least: int, share: Callable[[Run], bool]) -> tuple[bool, str]:
    """Run a batch stretch by stretch, those of at least so many events by `share`.

    Returns whether it ran, and why so where that is more or less than one stretch to be shared.
    """
    found = stretches(run, least)
    alone = sum(len(one.places) for one in found if not one.is_shared)
    if not alone:
        return share(run), ""
    why = f"ranges over rows that the transactions move: {run.program.moving[0].name}"
    if alone == len(run.order):
        return False, f"{why}: too few events between two that look"
    turns = iter(found)
    places = (one.places for one in found)
    run_in_turn(run, places, lambda section: next(turns).is_shared and share(section), STAMP)
    return True, f"{why}: {alone} transactions one after another"
