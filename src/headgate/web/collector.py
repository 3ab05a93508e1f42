"""The collector: calls that came while others ran wait, and then run together.

They run in the event loop itself, where that takes a moment, and a thread waits for the disk: to
hand them to a thread and back would cost more than to run them. Where another thread holds the
engine, or a transaction runs for the first time, the thread runs them, so the loop never waits.

While a round is synced the next one may run, so that the thread finds it in the log when it comes
back and need not wait for a busy event loop: many calls, or as many as are synced, are enough.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from headgate.engine.calls.calling import Begun, Call
from headgate.engine.results import Result
from headgate.errors import InputError

TOGETHER_MAX = 512
ROUNDS_MAX = 2  # on their way: one can be synced while the other runs
MANY = 32  # calls that wait: enough for a round of their own while another is synced

Asked = tuple[Call, "asyncio.Future[Any]"]


class Callee(Protocol):
    """Where calls are handed in."""

    def begin_at_once(self, calls: Sequence[Call], /) -> Begun | None: ...

    def call_all(self, calls: Sequence[Call], /) -> list[Result | Exception]: ...

    def finish(self, begun: Begun, /) -> list[Result | Exception]: ...


class Collector:
    """The calls of one server; used in the thread of its event loop."""

    def __init__(self, calling: Callee | None) -> None:
        self._calling = calling
        self._known: set[str] = set()  # the transactions that have run before
        self._waiting: list[Asked] = []
        self._is_due = False  # a round is about to begin
        self._rounds = 0  # that are on their way
        self._enough = 0  # so many calls make another round beside them; 0: none do
        self._queue: SimpleQueue[tuple[Any, list[Asked], Begun | None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def count(self) -> int:
        """How many calls wait for their turn."""
        return len(self._waiting)

    def submit(self, call: Call) -> asyncio.Future[Result]:
        """The promise of the call's result."""
        loop = asyncio.get_running_loop()
        promise: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((call, promise))
        if not self._is_due and self._is_enough():
            self._is_due = True
            loop.call_soon(self._begin, loop)  # after all requests that have arrived by now
        return promise

    def _is_enough(self) -> bool:
        """Whether what waits is to run now."""
        if self._rounds == 0:
            return bool(self._waiting)
        return self._rounds < ROUNDS_MAX and len(self._waiting) >= self._enough > 0

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        if not self._is_enough():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headgate-calls", daemon=True)
            self._thread.start()
        together, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
        self._rounds += 1
        try:
            begun = self._run_here([call for call, _ in together])
        except Exception as error:
            failed: list[Result | Exception] = [error] * len(together)
            loop.call_soon(self._end, loop, together, failed)
        else:
            # One that the thread has to run leaves it no time for others.
            self._enough = 0 if begun is None else min(len(together), MANY)
            self._queue.put((loop, together, begun))

    def _run_here(self, calls: list[Call]) -> Begun | None:
        """Run them in the event loop, unless that might take long."""
        names = {call.name for call in calls}
        if self._calling is not None and names <= self._known:
            return self._calling.begin_at_once(calls)
        self._known |= names
        return None

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            loop, together, begun = given
            answers: list[Result | Exception]
            try:
                answers = self._answers([call for call, _ in together], begun)
            except Exception as error:
                answers = [error] * len(together)
            try:
                loop.call_soon_threadsafe(self._end, loop, together, answers)
            except RuntimeError:
                return  # the loop has ended, and with it all who wait

    def _answers(self, calls: list[Call], begun: Begun | None) -> list[Result | Exception]:
        if self._calling is None:
            raise InputError("nothing here takes calls")
        return self._calling.call_all(calls) if begun is None else self._calling.finish(begun)

    def _end(self, loop: Any, together: list[Asked], answers: list[Result | Exception]) -> None:
        self._rounds -= 1
        self._begin(loop)
        for (_, promise), answer in zip(together, answers, strict=True):
            if promise.done():
                continue  # the client went away; its call was run all the same
            if isinstance(answer, Exception):
                promise.set_exception(answer)
            else:
                promise.set_result(answer)

    def close(self) -> None:
        """Finish what is running, and end."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
