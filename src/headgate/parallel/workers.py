"""Workers: threads that stay for the next batch, as starting one costs more than a short batch.

Kernels wait for each other, so all calls of one `run` have a thread of their own at the same time:
there are as many workers as were ever busy at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

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


class Workers:
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


workers = Workers()
os.register_at_fork(after_in_child=workers.forget)
