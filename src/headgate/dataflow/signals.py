"""Signals: Ctrl-C and SIGTERM let an execution end, and end a dataflow in order.

A process that is told to end would be gone at once: nothing is lost by it, since the store goes on
where it was, but what its workers are at is done again. So while somebody waits for a dataflow
SIGTERM is an exception in the main thread, unless the program has a handler of its own: executions
end, nothing more begins, and the engine can be closed by whoever opened it.

An execution in the main thread is not interrupted in the middle. What a procedure calls may take
the exception of an interrupt for an error of its own, as DuckDB does, and a batch would be aborted
for good that nothing is wrong with. So the signal waits until the execution is committed. Who
presses Ctrl-C again, because a procedure comes to no end, does not wait.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

CODE_OF_SIGNAL = 128  # what a shell adds to the number of the signal that ended a process


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit in the main thread; elsewhere nothing is changed."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(CODE_OF_SIGNAL + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupts:
    """Signals of the main thread, which wait while an execution runs there."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, FrameType | None]] | None = None
        self.is_forced: bool = False  # a second one did not wait: what fails now fails for that

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, a signal for which Python has a handler waits; it is handled at the end."""
        if threading.current_thread() is not threading.main_thread() or self._waiting is not None:
            yield
            return
        handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        for kind in (signal.SIGINT, signal.SIGTERM):
            found = signal.getsignal(kind)
            if callable(found):
                handlers[int(kind)] = found
        waiting = self._waiting = list[tuple[int, FrameType | None]]()

        def note(number: int, frame: FrameType | None) -> None:
            waiting.append((number, frame))
            if len(waiting) > 1:
                self.is_forced = True
                handlers[number](number, frame)

        try:
            for number in handlers:
                signal.signal(number, note)
            yield
        finally:
            self._waiting, was_forced, self.is_forced = None, self.is_forced, False
            for number in reversed(handlers):  # Ctrl-C last: from then on it may come at once
                signal.signal(number, handlers[number])
            if waiting and not was_forced:
                number, frame = waiting[0]
                handlers[number](number, frame)
