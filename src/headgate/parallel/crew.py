"""The crew: threads that stay for the next batch, and what they share and own while they run one.

Starting a thread costs more than a short batch, so workers wait for the next call. Kernels wait for
each other, so all calls of one `run` have a thread of their own at the same time: there are as many
workers as were ever busy at once.

Invariant: every array whose address a kernel is given lives as long as its crew; and what threads
changed in the tables can be put back until it is collected.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from headgate.execution.run import Run
from headgate.kernels import ticks
from headgate.kernels.atomics import SYNC_WORDS
from headgate.kernels.building import compile_first
from headgate.kernels.frame import TABLE_WORDS
from headgate.kernels.pointers import address, own_lines

Call = Callable[[], Any]
# Those that programs handle to stop in good order. Not alarms: they are there to break in.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_HELD = [signal.Signals[name] for name in _NAMES if hasattr(signal, name)]


class _Job:
    """One call and, when it has ended, what came of it: a result or an error."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ended = threading.Lock()
        self._ended.acquire()
        self._outcome: tuple[Any, BaseException | None] = None, None

    def run(self) -> None:
        try:
            self._outcome = self._call(), None
        except BaseException as error:
            self._outcome = None, error
        self._ended.release()

    def wait(self) -> tuple[Any, BaseException | None]:
        with self._ended:
            return self._outcome


class _Worker:
    """One thread, which runs what comes into its box."""

    def __init__(self) -> None:
        self._box: SimpleQueue[_Job] = SimpleQueue()
        self.put = self._box.put
        threading.Thread(target=self._work, name="headgate-crew", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._box.get().run()


class IdleThreads:
    """The idle threads of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[_Worker] = []

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run all calls at the same time, the first of them on this thread.

        All of them have ended when this ends: also by an error in one, or by an interrupt.
        """
        with signals_later():
            return self._run(calls)

    def _run(self, calls: Sequence[Call]) -> list[Any]:
        jobs = [_Job(call) for call in calls]
        crew = self._take(len(jobs) - 1)
        for worker, job in zip(crew, jobs[1:], strict=True):
            worker.put(job)
        jobs[0].run()
        outcomes = [job.wait() for job in jobs]
        with self._guard:
            self._idle += crew
        for _, error in outcomes:
            if error is not None:
                raise error
        return [found for found, _ in outcomes]

    def _take(self, count: int) -> list[_Worker]:
        with self._guard:
            found = [self._idle.pop() for _ in range(min(count, len(self._idle)))]
        return found + [_Worker() for _ in range(count - len(found))]

    def forget(self) -> None:
        """In a forked process: its parent's threads are not here, nor who held the guard."""
        self._guard, self._idle = threading.Lock(), []


@contextmanager
def signals_later() -> Iterator[None]:
    """Hold back Ctrl-C, and other signals that the program handles itself, until the end.

    Python runs handlers in its main thread between any two steps, and they may raise. A call that
    the others wait for would then never run, or its end would be missed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, Any]] = []
    before = {number: signal.getsignal(number) for number in _HELD}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in handled:
            signal.signal(number, lambda *given: held.append(given))
        yield
    finally:
        for number in reversed(handled):  # Ctrl-C last: it could come between two of them
            signal.signal(number, handled[number])
        for came, frame in held:
            handled[signal.Signals(came)](came, frame)


workers = IdleThreads()
os.register_at_fork(after_in_child=workers.forget)


# --- one batch ------------------------------------------------------------------------------------

Words = dict[str, np.ndarray | int]  # of a frame, by name


@dataclass(frozen=True)
class Changes:
    """What one thread changed: by table its slots, and the rows as they were before the batch."""

    counts: np.ndarray  # by table: how many rows, whether one was deleted
    slots: list[np.ndarray]
    images: list[np.ndarray]

    @staticmethod
    def of(run: Run) -> Changes:
        """Room for all that a thread can change."""
        slots, images = [], []
        for name in run.table_names:
            room, width = run.touched(name) + 1, run.program.tables[name].layout.words
            slots.append(np.empty(room, np.int64))
            images.append(np.empty(room * width, np.int64))
        return Changes(own_lines(len(run.counts)), slots, images)

    def words(self) -> Words:
        """As the steps of a thread find them in its frame."""
        found: Words = {"counts": self.counts}
        for number, (slots, images) in enumerate(zip(self.slots, self.images, strict=True)):
            found |= {f"changed_{number}": slots, f"images_{number}": images}
        return found


class Crew:
    """The threads of one batch, and the frame of each: words that all share, and its own."""

    def __init__(self, run: Run, threads: int, is_timed: bool = False) -> None:
        self.run, self.threads = run, threads
        self.sync, self.raised = np.zeros(SYNC_WORDS, np.int64), np.zeros(1, np.int64)
        self.times = np.zeros((max(1, threads), ticks.WORDS), np.int64)
        self.times[:, ticks.IS_ON] = int(is_timed)
        self.shared: Words = {"sync": self.sync, "raised": self.raised}
        self.own: list[Words] = [{"times": self.times[n]} for n in range(threads)]
        self.changes: list[Changes] = []
        self._kept: list[np.ndarray] = []

    @property
    def tables(self) -> list[Any]:
        """The rows of the tables, by number."""
        return [self.run.program.tables[name] for name in self.run.table_names]

    def address(self, array: np.ndarray) -> int:
        self._kept.append(array)
        return address(array)

    def note_changes(self) -> None:
        """Let each thread undo an event, and note what it changes in the tables themselves."""
        self.changes = [Changes.of(self.run) for _ in self.own]
        for own, changes in zip(self.own, self.changes, strict=True):
            own |= {"undo": own_lines(len(self.run.arrays["undo"])), **changes.words()}

    def homes(self, columns: Mapping[int, Sequence[int]]) -> np.ndarray:
        """What kernels know of each table, see HOME_ROWS in frame.py, by word and table."""
        found = np.zeros((len(self.run.table_names) + 1, TABLE_WORDS), np.int64)
        for word, values in columns.items():
            found[: len(self.run.table_names), word] = values
        return found

    def work(self, kernel: Any) -> None:
        """Let all threads run the kernel to its end."""
        compile_first(kernel)  # threads that wait for each other must not wait for that
        shared = self.run.frame.but(self.shared)
        frames = [shared.but(own) for own in self.own]
        workers.run([
            partial(kernel, thread, self.threads, frame.address)
            for thread, frame in enumerate(frames)
        ])  # fmt: skip

    def put_back(self) -> None:
        """Make every row what it was before the batch."""
        for changes in self.changes:
            for number, rows in enumerate(self.tables):
                count, width = int(changes.counts[2 * number]), rows.layout.words
                images = changes.images[number][: count * width]
                rows.words[changes.slots[number][:count]] = images.reshape(count, width)

    def collect(self, is_isolated: bool = True) -> None:
        """Hand what the threads changed to the run, as if one had done it all.

        Without isolation two threads may both think that they changed a row first.
        """
        run = self.run
        run.outcome[:] = run.reason != 0
        for number in range(len(run.table_names)):
            parts = [one.slots[number][: int(one.counts[2 * number])] for one in self.changes]
            merged = np.concatenate(parts)
            merged = merged if is_isolated else np.unique(merged)
            run.arrays[f"changed_{number}"][: len(merged)] = merged
            run.counts[2 * number] = len(merged)
            deleted = max(int(one.counts[2 * number + 1]) for one in self.changes)
            run.counts[2 * number + 1] = deleted
