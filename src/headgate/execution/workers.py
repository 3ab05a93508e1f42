"""Workers: threads that stay for the next batch, as starting one costs more than a short batch.

Kernels wait for each other, so all calls of one `run` have a thread of their own at the same time:
there are as many workers as were ever busy at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

Call = Callable[[], Any]


class _Job:
    """One call and, when it has ended, what came of it: a result or an error."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ended = threading.Lock()
        self._ended.acquire()
        self.outcome: tuple[Any, BaseException | None] | None = None

    def run(self) -> None:
        """Run the call, unless it was run before."""
        if self.outcome is not None:
            return
        try:
            self.outcome = self._call(), None
        except BaseException as error:
            self.outcome = None, error
        self._ended.release()

    def wait(self) -> tuple[Any, BaseException | None]:
        while self.outcome is None:
            self._ended.acquire()
        return self.outcome


class _Worker:
    """One thread, which runs what comes into its box."""

    def __init__(self) -> None:
        self._box: SimpleQueue[_Job] = SimpleQueue()
        self.put = self._box.put
        threading.Thread(target=self._work, name="headgate-crew", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._box.get().run()


class Workers:
    """The idle threads of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[_Worker] = []

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run all calls at the same time, the first of them on this thread if it cannot be
        interrupted. Whatever happens, all of them have ended when this ends.

        Python interrupts its main thread alone, at any place, and then a call that the others wait
        for would not run, or run twice. So the main thread only hands calls on and waits.
        """
        jobs = [_Job(call) for call in calls]
        is_main = threading.current_thread() is threading.main_thread()
        handed = jobs if is_main else jobs[1:]
        crew, interrupt = self._take(len(handed)), None
        while True:
            try:
                for worker, job in zip(crew, handed, strict=True):
                    worker.put(job)  # once more after an interrupt, and then nothing comes of it
                if not is_main:
                    jobs[0].run()
                outcomes = [job.wait() for job in jobs]
                break
            except KeyboardInterrupt as stop:
                interrupt = stop
        with self._guard:
            self._idle += crew
        for _, error in (*outcomes, (None, interrupt)):
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


workers = Workers()
os.register_at_fork(after_in_child=workers.forget)
