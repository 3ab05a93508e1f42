"""Once: calls with a key: each is run one time, however often and wherever it is sent again.

Invariant: a key is either running, remembered with its result, or unknown; it is remembered before
it stops running, so that no moment is left in which it could be run again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from headgate.engine.calls.remembered import Calls, check_same, checked_key
from headgate.engine.results import Result


class Running:
    """A call that runs now; a promise is made only when someone else asks for its result."""

    __slots__ = ("digest", "promise")

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.promise: Future[Result] | None = None


class Once:
    """The keyed calls of one engine: those that run now, before those that it remembers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}

    def claim(self, key: str | None, digest: str) -> Future[Result] | None:
        """The promise of the result when the call is known; None when the caller is to run it.

        Who is to run it must call `keep` or `fail` in the end.
        """
        key = checked_key(key)
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                check_same(key, running.digest, digest)
                running.promise = running.promise or Future()
                return running.promise
            known = self._calls.find(key, digest)
            if known is None:
                self._running[key] = Running(digest)
                return None
        promise: Future[Result] = Future()
        promise.set_result(known)
        return promise

    def keep(self, key: str, result: Result) -> None:
        """The call was run and its epoch is durable."""
        promise = self._end(key)
        if promise is not None:
            promise.set_result(result)

    def fail(self, key: str, error: BaseException) -> None:
        """The call was not run, or no one can say whether it was."""
        promise = self._end(key)
        if promise is not None:
            promise.set_exception(error)

    def _end(self, key: str) -> Future[Result] | None:
        with self._lock:
            return self._running.pop(key).promise
