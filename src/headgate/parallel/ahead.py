"""Ahead: the rows of the next section of a batch are looked up while this one runs.

A look-up reads the key index, which no event of a batch changes, so a second thread can do it with
no word to the first. Invariant: at most one section is looked up ahead, into the half of the room
that the running one does not use; the rows found are those that the serial loop would find.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property

from headgate.execution.straight import StraightRun

SECTIONS_AHEAD = 3  # enough that the other thread never waits, which has the log to write, too
log = logging.getLogger("headgate.engine")


class LookAhead:
    """A thread beside the one that runs the batches of one program."""

    def __init__(self, run: StraightRun) -> None:
        self._run = run
        self._compiled: Future[None] | None = None

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="headgate-ahead")

    def is_ready(self) -> bool:
        """Whether its kernels are there; they are compiled beside what runs, when first asked."""
        if self._compiled is None:
            self._compiled = self._thread.submit(self._run.compile_ahead)
            self._compiled.add_done_callback(_tell)
        return self._compiled.done() and self._compiled.exception() is None

    def over(self, sections: Sequence[range]) -> Generator[tuple[range, int | None]]:
        """The sections one after another, and where the slots of each stand.

        The first has none: who runs it finds its rows itself, while the next ones are looked up.
        """
        room = max(map(len, sections))
        self._run.make_room((SECTIONS_AHEAD + 1) * room)
        places = [number % (SECTIONS_AHEAD + 1) * room for number in range(len(sections))]
        waiting = deque(zip(sections[1:], places[1:], strict=True))
        ahead: deque[Future[None]] = deque()
        try:
            for number, section in enumerate(sections):
                if number:
                    ahead.popleft().result()
                while waiting and len(ahead) < SECTIONS_AHEAD:
                    ahead.append(self._find(*waiting.popleft()))
                yield section, places[number] if number else None
        finally:
            # Also when the batch has failed: no thread may write into what is used again.
            wait(ahead)

    def _find(self, section: range, place: int) -> Future[None]:
        return self._thread.submit(self._run.look_ahead, section.start, section.stop, place)


def _tell(compiled: Future[None]) -> None:
    if not compiled.cancelled() and compiled.exception() is not None:
        log.debug("no look-ups ahead: they do not compile", exc_info=compiled.exception())
