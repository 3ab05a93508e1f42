"""Isolation: how much of each other the transactions of a batch may see, and who sees to it.

    PL1  read-uncommitted  only writes are ordered
    PL2  read-committed    and reads see only what was committed
    PL3  serializable      and all is as in some serial order, which the results are in
    PL4  strict            and that order is the event order: the default

Two protocols keep a level on several threads: `lock` and `timestamp`, see isolation_source.py.
Every level keeps transactions whole and checks true, and loses no write: a row that a transaction
may write is its own until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headgate.errors import InputError, did_you_mean, not_among, shown
from headgate.execution.run import Run, Work
from headgate.kernels.isolation_source import (
    OPERATION_WORDS,
    ROW_WORDS,
    SEEN_WORDS,
    SYNC_WORDS,
    TABLE_WORDS,
)
from headgate.kernels.kernel import IsolationKernels, compile_first
from headgate.kernels.pointers import address
from headgate.parallel.decision import Decision, Thresholds
from headgate.parallel.scheme import SCHEME_NAMES, VARIANTS, Scheme, make_scheme
from headgate.parallel.workers import workers

LEVELS = {"PL1": 1, "PL2": 2, "PL3": 3, "PL4": 4}
ALIASES = {
    "read-uncommitted": "PL1",
    "read-committed": "PL2",
    "serializable": "PL3",
    "strict": "PL4",
}
PROTOCOLS = {
    "lock": "two-phase locking, at the level that isolation= says",
    "timestamp": "copies, stamps and validation, again where another was faster",
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


def make_protocol(scheme: str, threads: int | None) -> Scheme:
    """Check the words of `run` and `sink`, those of the protocols included."""
    given: Any = threads
    if given is not None and (not isinstance(given, int) or given < 1):
        raise InputError(
            f"threads is a number of at least 1, or None for all cores; not {shown(given)}"
        )
    if not isinstance(scheme, str):
        raise InputError(f"scheme is a text, such as 'auto'; not {shown(scheme)}")
    if scheme not in PROTOCOLS:
        if scheme.split("-")[0] not in SCHEME_NAMES:
            names = [*SCHEME_NAMES, *PROTOCOLS]
            among = not_among(scheme, names, "schemes")
            raise InputError(f"scheme {shown(scheme)} is unknown; {VARIANTS}; {among}")
        return make_scheme(scheme, threads)
    count = threads if threads is not None else len(os.sched_getaffinity(0))
    return Scheme(scheme, count)


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
    for access in work.signature.accesses:
        found += 1 if access.form == "at" else work.key_columns(access)[0].lengths
    return found


def _elements_max(work: Work) -> int:
    return int(_elements(work).max(initial=0)) + 1


def run_isolated(
    kernels: IsolationKernels, run: Run, scheme: Scheme, level: int, is_recorded: bool
) -> Isolated | None:
    """Run the batch by a protocol; None when it was put back and must be run serially."""
    crew = _Crew(kernels, run, scheme, level, is_recorded)
    crew.work()
    if crew.raised[0]:
        crew.put_back()
        crew.clear_scratch()
        return None
    crew.collect()
    crew.clear_scratch()
    return crew.result()


class _Crew:
    """The threads of one batch: what they share, and what each has of its own."""

    def __init__(
        self, kernels: IsolationKernels, run: Run, scheme: Scheme, level: int, is_recorded: bool
    ) -> None:
        self.kernels = kernels
        self.run, self.scheme, self.level = run, scheme, level
        self.count = len(run.order)
        self.threads = scheme.threads
        self.kept: list[np.ndarray] = []  # arrays that live as long as the threads use them
        self.tables = [run.program.tables[name] for name in run.table_names]
        self.most = max(_elements_max(work) for work in run.works)
        self.bases = np.cumsum([0, *(rows.count for rows in self.tables)])
        self.rows = np.zeros(ROW_WORDS * (int(self.bases[-1]) + 1), np.int64)
        self.stamps = np.zeros(self.count, np.int64)
        self.raised, self.retries = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.starts, self.seen = self._recording(is_recorded)
        self.own = [self._own(thread) for thread in range(self.threads)]

    def _recording(self, is_recorded: bool) -> tuple[np.ndarray, np.ndarray | None]:
        if not is_recorded:
            return np.zeros(self.count + 1, np.int64), None
        each = np.stack([_elements(work) for work in self.run.works])
        room = each[self.run.route[self.run.order], self.run.order] + 1
        starts = np.concatenate([[0], np.cumsum(room)])
        return starts, np.full((int(starts[-1]) + 1, SEEN_WORDS), -1, np.int64)

    def _own(self, thread: int) -> dict[str, Any]:
        """A thread's arrays: for the step, and where its final changes are listed."""
        arrays: dict[str, Any] = {"undo": np.empty_like(self.run.arrays["undo"])}
        final = np.zeros_like(self.run.counts)
        places = np.zeros((len(self.tables) + 1, TABLE_WORDS), np.int64)
        lists = []
        for number, (name, rows) in enumerate(zip(self.run.table_names, self.tables, strict=True)):
            room, width = self.run.touched(name) + 1, rows.layout.words
            changed, images = np.empty(room, np.int64), np.empty(room * width, np.int64)
            copies = np.empty(self.most + 1, np.int64)
            scratch = rows.count + thread * self.most
            places[number, :6] = (
                self.address(rows.words), width, scratch,
                self.address(changed), self.address(images), self.address(copies),
            )  # fmt: skip
            is_lock = self.scheme.name == "lock"
            arrays[f"changed_{number}"] = changed if is_lock else copies
            arrays[f"images_{number}"] = images if is_lock else 0
            lists.append((changed, images))
        arrays["counts"] = final if self.scheme.name == "lock" else np.zeros_like(final)
        return {"arrays": arrays, "final": final, "places": places, "lists": lists}

    def address(self, array: np.ndarray) -> int:
        self.kept.append(array)
        return address(array)

    def work(self) -> None:
        """Find the rows, then let all threads run to the end."""
        run, found = self.run, self.kernels
        frame = run.frame_of(found.layout)
        found.kernels["resolve_all"](self.count, frame.address)
        shared = frame.but({
            "level": self.level, "count": self.count, "sync": np.zeros(SYNC_WORDS, np.int64),
            "rows": self.rows, "stamps": self.stamps, "bases": self.bases,
            "retries": self.retries, "starts": self.starts,
            "seen": 0 if self.seen is None else self.seen, "raised": self.raised,
        })  # fmt: skip
        kernel, frames = found.kernels[self.scheme.name], []
        for own in self.own:
            mine = np.empty(OPERATION_WORDS * (self.most + 2), np.int64)
            turn, elements, private = (np.empty(self.most + 2, np.int64) for _ in range(3))
            step = frame.but(own["arrays"])  # the kernel sets its slots for each event
            frames.append(shared.but({
                **own["arrays"], "tables": own["places"], "final": own["final"], "mine": mine,
                "turn": turn, "elements": elements, "private": private, "own": step.words,
            }))  # fmt: skip
        calls = enumerate(frame.address for frame in frames)
        compile_first(kernel)
        workers.run([partial(kernel, thread, run.epoch, at) for thread, at in calls])

    def put_back(self) -> None:
        """Make every row what it was before the batch."""
        for own in self.own:
            for number, rows in enumerate(self.tables):
                count, width = int(own["final"][2 * number]), rows.layout.words
                changed, images = own["lists"][number]
                rows.words[changed[:count]] = images[: count * width].reshape(count, width)

    def clear_scratch(self) -> None:
        for rows in self.tables:
            rows.words[rows.count : rows.count + self.threads * self.most] = 0

    def collect(self) -> None:
        """Hand what the threads found to the run, as if one had done it all."""
        run = self.run
        run.outcome[:] = run.reason != 0
        for number in range(len(self.tables)):
            counts = [int(own["final"][2 * number]) for own in self.own]
            parts = [
                own["lists"][number][0][:count] for own, count in zip(self.own, counts, strict=True)
            ]
            run.arrays[f"changed_{number}"][: sum(counts)] = np.concatenate(parts)
            run.counts[2 * number] = sum(counts)
            deleted = max(int(own["final"][2 * number + 1]) for own in self.own)
            run.counts[2 * number + 1] = deleted

    def result(self) -> Isolated:
        """The commit order; the run's arrays are put in it, so that a position is a place in it."""
        run, recording = self.run, None
        if self.seen is not None:
            names = self.run.table_names
            bases = dict(zip(names, self.bases.tolist(), strict=False))
            committed = run.outcome == 0
            recording = Recording(self.stamps, committed, self.starts, self.seen, bases)
        places = np.argsort(self.stamps, kind="stable")
        run.outcome[:] = run.outcome[places]
        run.reason[:] = run.reason[places]
        for work in run.works:
            if work.out is not None:
                work.out = work.out[places]
        order = run.order[places]
        return Isolated(self.scheme.name, order, int(self.retries[0]), recording)
