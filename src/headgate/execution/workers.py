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


class _Worker:
    """One thread, which runs what comes into its box."""

    def __init__(self) -> None:
        self.is_busy = False
        self._box: SimpleQueue[Call] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._work, name="headgate-crew", daemon=True).start()

    def begin(self, call: Call) -> None:
        self.is_busy = True
        self._box.put(call)

    def end(self) -> tuple[Any, BaseException | None]:
        """Wait for the call; an interrupt has to wait, too, as the call uses the batch's arrays."""
        interrupt: BaseException | None = None
        while True:
            try:
                found, error = self._done.get()
                self.is_busy = False
                return found, interrupt or error
            except KeyboardInterrupt as stop:
                interrupt = stop

    def _work(self) -> None:
        while True:
            self._done.put(_outcome(self._box.get()))


def _outcome(call: Call) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


class Workers:
    """The idle threads of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._idle: list[_Worker] = []

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run all calls at the same time, the first of them on this thread.

        Whatever happens, no call is still running when this ends.
        """
        crew, outcomes = self._take(len(calls) - 1), []
        try:
            for worker, call in zip(crew, calls[1:], strict=True):
                worker.begin(call)
            outcomes.append(_outcome(calls[0]))
        finally:
            outcomes += [worker.end() for worker in crew if worker.is_busy]
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


workers = Workers()
os.register_at_fork(after_in_child=workers.forget)
