"""Interrupts: a Ctrl-C that comes while DuckDB or Arrow works comes out as what it is.

They look after signals themselves, and make an error of their own of what a handler raised, or
none. Invariant: what a handler raised inside is raised, whatever became of it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_as_they_are() -> Iterator[None]:
    """Inside, in the main thread, what Python's handler of Ctrl-C raises is raised in the end."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    raised: list[BaseException] = []

    def note(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if raised:
            raise raised[0] from error
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
    if raised:
        raise raised[0]
