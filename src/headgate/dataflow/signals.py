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

import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, TypeAlias

Noted: TypeAlias = tuple[int, FrameType | None]
try:
    # Python's own module makes enums of all it takes and gives, which takes ten times as long.
    _bare: Any = importlib.import_module("_signal")
except ImportError:
    _bare = signal
_KINDS = int(signal.SIGINT), int(signal.SIGTERM)
_NOTHING = nullcontext()
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
        self.held: list[Noted] | None = None
        self.is_forced: bool = False  # a second one did not wait: what fails now fails for that

    def waiting(self) -> AbstractContextManager[None]:
        """Inside, a signal for which Python has a handler waits; it is handled at the end."""
        is_main = threading.current_thread() is threading.main_thread()
        return _Holding(self) if is_main and self.held is None else _NOTHING


class _Holding:
    """What `Interrupts.waiting` gives; each push has some, and a generator is dear for that."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._held: list[Noted] = []

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._held.append((number, frame))
        if len(self._held) > 1:
            self._interrupts.is_forced = True
            self._handlers[number](number, frame)

    def __enter__(self) -> None:
        for kind in _KINDS:
            found = _bare.getsignal(kind)
            if callable(found):
                self._handlers[kind] = found
        self._interrupts.held = self._held
        try:
            for number in self._handlers:
                _bare.signal(number, self._note)
        except BaseException:
            self._end()
            raise

    def __exit__(self, *error: object) -> None:
        was_forced = self._end()
        if self._held and not was_forced:
            number, frame = self._held[0]
            self._handlers[number](number, frame)

    def _end(self) -> bool:
        """Put the handlers back; whether a second signal did not wait."""
        interrupts = self._interrupts
        was_forced, interrupts.held, interrupts.is_forced = interrupts.is_forced, None, False
        for number in reversed(self._handlers):  # Ctrl-C last: from then on it may come at once
            _bare.signal(number, self._handlers[number])
        return was_forced
