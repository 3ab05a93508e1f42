"""Promises: the future of a call that no one waits for, as light as a call is.

A future makes a condition, with a lock and a queue of its own, and takes it each time that it is
told or asked something; of a call that is most of what Python does. Most promises are kept before
anyone asks, so here a condition is made by the first who needs one.

Invariant: as long as there is no condition, no one waits, is to be called back or may cancel, and
the state changes under the one lock under which conditions are made. From then on it is a future.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from headgate.engine.results import Result

_PENDING, _RUNNING, _FINISHED = "PENDING", "RUNNING", "FINISHED"  # as a future calls its states
_MAKING = threading.Lock()


class Promise(Future[Result]):
    """The result of a call, once its epoch is durable."""

    def __init__(self) -> None:
        # All that a future has but its condition, which is why its own is not called.
        self._state: str = _PENDING
        self._result: Result | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._has_condition = False

    def __getattr__(self, name: str) -> threading.Condition:
        """The condition, for the first who asks for it."""
        if name != "_condition":
            raise AttributeError(name)
        with _MAKING:
            self._has_condition = True  # first: Ctrl-C may come before there is one
            if "_condition" not in self.__dict__:
                self._condition = threading.Condition()
        return self._condition

    def begin(self) -> bool:
        """Whether it is still wanted; from now on it cannot be cancelled."""
        with _MAKING:
            if not self._has_condition and self._state == _PENDING:
                self._state = _RUNNING
                return True
        return self.set_running_or_notify_cancel()

    def set_result(self, result: Result) -> None:
        with _MAKING:
            if not self._has_condition and self._state != _FINISHED:
                self._result, self._state = result, _FINISHED
                return
        super().set_result(result)

    def result(self, timeout: float | None = None) -> Result:
        if self._state == _FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    def done(self) -> bool:
        return self._state == _FINISHED or super().done()
