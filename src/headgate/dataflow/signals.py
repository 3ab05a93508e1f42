"""Signals: SIGTERM ends a dataflow in order, as Ctrl-C does.

A process that is told to end would be gone at once: nothing is lost by it, since the store goes on
where it was, but what its workers are at is done again. So while somebody waits for a dataflow
SIGTERM is an exception in the main thread, unless the program has a handler of its own: executions
end, nothing more begins, and the engine can be closed by whoever opened it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
