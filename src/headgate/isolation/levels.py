"""Isolation: how much of each other a batch's transactions may see, and the executor that runs it.

    PL1  read-uncommitted  only writes are ordered
    PL2  read-committed    and reads see only what was committed
    PL3  serializable      and all is as in some serial order, which the results are in
    PL4  strict            and that order is the event order: the default

Two protocols keep a level on several threads: `lock` and `timestamp`, see kernels/protocols.py.
Every level keeps transactions whole and checks true, and loses no write: a row that a transaction
may write is its own until it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import InputError, did_you_mean, shown
from headgate.execution.expiring import Expiring
from headgate.execution.program import Program
from headgate.execution.run import Run, Work
from headgate.io import Clock
from headgate.kernels.frame import (
    HOME_CHANGED,
    HOME_COPIES,
    HOME_IMAGES,
    HOME_ROWS,
    HOME_SCRATCH,
    HOME_WIDTH,
)
from headgate.kernels.pointers import own_lines
from headgate.kernels.protocols import OPERATION_WORDS, ROW_WORDS, SEEN_WORDS
from headgate.kernels.serial import BLOCK_EVENTS
from headgate.parallel.crew import Crew, Words
from headgate.parallel.decision import Decision, Thresholds
from headgate.parallel.figures import Figures
from headgate.parallel.scheduler import Scheduler
from headgate.parallel.scheme import SERIAL, Scheme, make_scheme

LEVELS = {"PL1": 1, "PL2": 2, "PL3": 3, "PL4": 4}
ALIASES = {
    "read-uncommitted": "PL1",
    "read-committed": "PL2",
    "serializable": "PL3",
    "strict": "PL4",
}


def make_isolation(text: str) -> str:
    """A level by its name or its alias.

    >>> make_isolation("serializable")
    'PL3'
    """
    level = ALIASES.get(str(text), str(text))
    if level not in LEVELS:
        names = ", ".join(f"{level} ({alias})" for alias, level in ALIASES.items())
        hint = did_you_mean(text, [*LEVELS, *ALIASES])
        raise InputError(f"isolation {shown(text)} is unknown; the levels are: {names}{hint}")
    return level


def choose_protocol(
    level: str, cost_ns: float | None, count: int, threads: int, costs: Thresholds
) -> Decision | None:
    """For `auto` below PL4: a protocol where threads pay, None to go on as at PL4."""
    if level == "PL4" or threads < 2 or cost_ns is None or cost_ns < costs.cost_ns_min:
        return None
    gain_ns = cost_ns * count * (1 - 1 / threads)
    if gain_ns < 2 * costs.start_ns:
        return None
    why = f"{level} needs no graph, and a transaction costs {cost_ns:.0f} ns"
    return Decision("timestamp", why)


@dataclass(frozen=True)
class Recording:
    """What the transactions of one batch read and wrote, as the kernels saw it.

    By event in event order: `numbers` is its place in the commit order, `committed` whether it
    did. From `starts` on, until a row is -1: the rows it touched, the versions it read (0: as
    before the batch, n: by number n - 1, -1 - i: by event i while that was at work), whether it
    wrote them. `bases` is the first row of each table.
    """

    numbers: np.ndarray
    committed: np.ndarray
    starts: np.ndarray
    seen: np.ndarray
    bases: Mapping[str, int]


@dataclass(frozen=True)
class Isolated:
    """How a batch went: its events in commit order, how often one had to run again."""

    scheme: str
    order: np.ndarray
    retries: int
    recording: Recording | None


def scratch_rows(works: Sequence[Work], threads: int) -> int:
    """How many scratch slots a table needs: for each thread the rows of one event."""
    return threads * max((_elements_max(work) for work in works), default=0)


def _elements(work: Work) -> np.ndarray:
    """By event: how many rows its parameters name."""
    found = np.zeros(len(work.skip), np.int64)
    for spans in work.spans:
        found += spans.lengths
    return found


def _elements_max(work: Work) -> int:
    """At most so many rows are named by one event, and one more."""
    return sum(spans.most for spans in work.spans) + 1


def run_isolated(
    kernels: Mapping[str, Any], run: Run, scheme: Scheme, level: int, is_recorded: bool
) -> Isolated | None:
    """Run the batch by a protocol; None when it was put back and must be run serially."""
    isolation = _Isolation(run, scheme, level, is_recorded)
    crew = isolation.crew
    crew.work(kernels[scheme.kind.kernel])
    if crew.raised[0]:
        crew.put_back()
        isolation.clear_scratch()
        return None
    crew.collect()
    isolation.clear_scratch()
    return isolation.result()


class _Isolation:
    """A batch that a protocol runs: what its threads share, and what each has of its own."""

    def __init__(self, run: Run, scheme: Scheme, level: int, is_recorded: bool) -> None:
        self.run, self.scheme = run, scheme
        self.count = len(run.order)
        self.crew = Crew(run, scheme.threads)
        self.crew.note_changes()
        self.most = max(_elements_max(work) for work in run.works)
        self.bases = np.cumsum([0, *(rows.count for rows in self.crew.tables)])
        self.stamps, self.retries = np.zeros(self.count, np.int64), np.zeros(1, np.int64)
        self.starts, self.seen = self._recording(is_recorded)
        self.crew.shared |= {
            "level": level, "bases": self.bases, "stamps": self.stamps, "retries": self.retries,
            # Made for each batch: new pages are in the cache, those of an old array are not.
            "held": np.zeros(ROW_WORDS * (int(self.bases[-1]) + 1), np.int64),
            "seen_starts": self.starts, "seen": 0 if self.seen is None else self.seen,
            "done_blocks": np.zeros(self.count // BLOCK_EVENTS + 1, np.int64),
        }  # fmt: skip
        for thread, own in enumerate(self.crew.own):
            own |= self._own(thread, own)

    def _recording(self, is_recorded: bool) -> tuple[np.ndarray, np.ndarray | None]:
        if not is_recorded:
            return np.zeros(1, np.int64), None
        each = np.stack([_elements(work) for work in self.run.works])
        room = each[self.run.route[self.run.order], self.run.order] + 1
        starts = np.concatenate([[0], np.cumsum(room)])
        return starts, np.full((int(starts[-1]) + 1, SEEN_WORDS), -1, np.int64)

    def _own(self, thread: int, own: Words) -> Words:
        """A thread's words: for the step, and where its final changes are listed."""
        crew, changes, room = self.crew, self.crew.changes[thread], self.most + 2
        sizes = [len(changes.counts), OPERATION_WORDS * room, *[room] * (3 + len(crew.tables))]
        words, ends = own_lines(sum(sizes)), [0, *accumulate(sizes)]
        counts, mine, turn, elements, private, *copies = (
            words[first:last] for first, last in pairwise(ends)
        )
        step: Words = dict(own)
        if self.scheme.kind.on_copies:
            step["counts"] = counts
            for number, listed in enumerate(copies):
                step |= {f"changed_{number}": listed, f"images_{number}": 0}
        homes = crew.homes({
            HOME_ROWS: [crew.address(rows.words) for rows in crew.tables],
            HOME_WIDTH: [rows.layout.words for rows in crew.tables],
            HOME_SCRATCH: [rows.count + thread * self.most for rows in crew.tables],
            HOME_CHANGED: [crew.address(slots) for slots in changes.slots],
            HOME_IMAGES: [crew.address(images) for images in changes.images],
            HOME_COPIES: [crew.address(listed) for listed in copies],
        })  # fmt: skip
        return {
            **step, "homes": homes, "final": changes.counts,
            "mine": mine, "turn": turn, "elements": elements, "private": private,
            "own": self.run.frame.but(step).words,  # the kernel sets its slots for each event
        }  # fmt: skip

    def clear_scratch(self) -> None:
        for rows in self.crew.tables:
            rows.words[rows.count : rows.count + self.crew.threads * self.most] = 0

    def result(self) -> Isolated:
        """The commit order; the run's arrays are put in it, so that a position is a place in it."""
        run, recording = self.run, None
        if self.seen is not None:
            bases = dict(zip(run.table_names, self.bases.tolist(), strict=False))
            committed = run.outcome == 0
            recording = Recording(self.stamps, committed, self.starts, self.seen, bases)
        order, retries = run.order, int(self.retries[0])
        if (self.stamps[1:] > self.stamps[:-1]).all():  # as at PL4
            return Isolated(self.scheme.name, order, retries, recording)
        places = np.argsort(self.stamps, kind="stable")
        run.outcome[:] = run.outcome[places]
        run.reason[:] = run.reason[places]
        for work in run.works:
            if work.out is not None:
                work.out = np.ascontiguousarray(work.out[:, places])
        return Isolated(self.scheme.name, order[places], retries, recording)


# --- the executor ---------------------------------------------------------------------------------
# A protocol runs a batch below the serial order, or because it was named; all others go to the
# scheduler, whose threads keep the event order. What a protocol cannot run, the scheduler runs.


@dataclass(frozen=True)
class Execution:
    """What running a batch gave, by position: outcome and reason codes, and the changed slots."""

    outcome: np.ndarray
    reason: np.ndarray  # 0, a text's code, or -1 - i for the i-th fixed reason
    fixed_reasons: tuple[str, ...]
    changed: Mapping[str, np.ndarray]
    written: Mapping[str, tuple[str, ...]]  # by table: the only columns that rows may differ in
    isolated: Isolated | None = None  # when a protocol ran it: the order of its commits
    # Of a batch that ran elsewhere: its output columns, and what the log is to name.
    made: Mapping[str, pa.Array] | None = None
    named: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    # By table: how many rows went because their time came, and how many stay though it has.
    expired: Mapping[str, int] = field(default_factory=dict)
    overdue: Mapping[str, int] = field(default_factory=dict)


class Executor:
    """Runs the batches of one program."""

    def __init__(self, program: Program, clock: Clock | None = None) -> None:
        self.program = program
        self.scheduler = Scheduler(program, clock)
        self.turn = 0  # of an engine's executors, who was asked for last has the highest
        self.retries = 0  # how often a transaction ran again because another was faster

    @property
    def decisions(self) -> deque[Decision]:
        """What was chosen for the last batches, and why."""
        return self.scheduler.decisions

    def execute(
        self,
        works: Sequence[Work],
        order: np.ndarray,
        route: np.ndarray,
        epoch: int,
        scheme: Scheme = SERIAL,
        isolation: str = "PL4",
        is_recorded: bool = False,
        expiring: Expiring | None = None,
    ) -> Execution:
        """Run resolved events in this order; `route` has the number of each one's transaction.

        Where rows may expire in between, one after another.
        """
        program = self.program
        if expiring is not None and not scheme.is_serial:
            names = ", ".join(table.name for table in program.expiring)
            self.decisions.append(Decision("serial", f"rows may expire between events: {names}"))
        scheme = scheme if expiring is None else SERIAL
        protocol = self._protocol(scheme, isolation, len(order))
        if protocol is not None:
            for table in program.kernel.tables if program.kernel is not None else ():
                program.tables[table.name].reserve(scratch_rows(works, protocol.threads))
        run = Run(program, works, order, route, epoch, expiring=expiring)
        isolated = None
        if protocol is not None:
            isolated = self._isolated(run, protocol, LEVELS[isolation], is_recorded)
        if isolated is None:
            self.scheduler.run(run, SERIAL if scheme.is_protocol else scheme)
        changed = run.changed()
        run.release(changed)
        return Execution(
            run.outcome, run.reason, program.fixed_reasons, changed, program.written, isolated,
            expired={} if expiring is None else expiring.expired,
            overdue={} if expiring is None else expiring.overdue,
        )  # fmt: skip

    def _isolated(
        self, run: Run, protocol: Scheme, level: int, is_recorded: bool
    ) -> Isolated | None:
        """Run it by a protocol; None when it was put back and must run in event order."""
        clock, kernels = self.scheduler.clock, self.scheduler.readiness.protocol_kernels
        began = clock.monotonic()
        isolated = run_isolated(kernels, run, protocol, level, is_recorded)
        if isolated is not None:
            self.retries += isolated.retries
            self.scheduler.note_pace(clock.monotonic() - began, len(run.order))
        return isolated

    def _protocol(self, scheme: Scheme, isolation: str, count: int) -> Scheme | None:
        """The protocol that runs a batch, or None when it runs in event order."""
        scheduler = self.scheduler
        protocol, chosen = scheme, None
        if scheme.is_chosen:
            if scheduler.probing.is_due:
                return None
            cost_ns, threads = scheduler.cost_ns, scheme.threads
            chosen = choose_protocol(isolation, cost_ns, count, threads, scheduler.costs)
            if chosen is None or self._unfit() is not None:
                return None
            protocol = make_scheme(chosen.scheme, threads)
        if not protocol.is_protocol or not count:
            return None
        why = self._unfit()
        if why is not None:
            self.decisions.append(Decision("serial", f"{protocol} cannot see to it: {why}"))
            return None
        protocol = replace(protocol, threads=min(protocol.threads, count))
        refused = scheduler.readiness.decision(protocol)
        noted = refused if refused is not None else chosen
        if noted is not None:
            self.decisions.append(noted)
        return protocol if refused is None else None

    def _unfit(self) -> str | None:
        """Why no protocol can run these transactions; None if one can."""
        program = self.program
        if program.constraints:
            return program.constraints[0].name
        if program.is_dynamic:
            return "a key that depends on rows"
        if program.moving:
            return f"ranges over rows that the transactions move: {program.moving[0].name}"
        if program.trailed:
            return f"versions of rows: {program.trailed[0].name}"
        is_plain = program.compiled_count < len(program.signatures)
        return "a plain Python function" if is_plain else None

    def explain(self, works: Sequence[Work], order: np.ndarray, route: np.ndarray) -> Figures:
        """The figures of the graph of a resolved batch, which does not run."""
        return self.scheduler.explain(works, order, route)
