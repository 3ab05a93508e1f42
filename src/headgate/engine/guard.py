"""The guard: an engine goes on, or it is stopped and says why; it never carries on over doubt.

An engine belongs to the process that opened it. In a child that was forked from that process it is
stopped from the first moment, before any lock is asked for: a lock that another thread held at the
fork would never be free there.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from headgate.engine.journal import Journal
from headgate.errors import StoreError, describe, forked

LOG = logging.getLogger("headgate.engine.engine")
CLOSED = "it was closed"


def _nobody(*_: object) -> None:
    """Nobody reads yet."""


class EngineLock:
    """The lock under which an engine changes; refused in a process that the engine is not of."""

    def __init__(self, guard: Guard) -> None:
        self._check = guard.check_process
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        self._check()
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._check()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


_NOTHING = nullcontext()


class _Stopping:
    """What `Guard.all_or_stopped` gives; for a batch of few events a generator is dear."""

    def __init__(self, guard: Guard) -> None:
        self._guard = weakref.ref(guard)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        guard = self._guard()
        if error is not None and guard is not None:
            guard.stop(f"a batch failed before its commit ({describe(error)})")


class Guard:
    """Whether one engine may go on; its first failure is the one that is told."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._process = os.getpid()
        self.reason: str | None = None
        self.publish: Callable[[int], None] = _nobody  # an epoch is durable: show it
        self.hide: Callable[[], None] = _nobody  # the engine is stopped: show nothing
        self.leave: Callable[[], None] = _nobody  # this is a child: what was read is not ours
        self._stopping = _Stopping(self)
        journal.when_stopped(self.stop)
        _guards.add(self)

    def check(self) -> None:
        """Refuse to go on when the engine is stopped, or belongs to another process."""
        self.check_process()
        if self.reason is not None:
            raise StoreError(f"the engine is stopped: {self.reason}; open it again")

    @property
    def is_of_parent(self) -> bool:
        """Whether this is a child of the process that opened the engine."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(f"the engine is stopped: {forked(self._process)}")

    def after_fork(self) -> None:
        """In a child: stopped, without asking for any lock."""
        self.reason = forked(self._process)
        self.leave()

    def stop(self, reason: str, *, is_wanted: bool = False) -> None:
        """From now on nothing runs and nothing is read; the first reason is the one that stays."""
        if self.reason is None:
            self.reason = reason
            if not is_wanted:
                LOG.error("the engine is stopped: %s; open it again", reason)
        self.hide()

    def running(self) -> AbstractContextManager[None]:
        """For `with`, where the engine must go on for what follows."""
        self.check()
        return _NOTHING

    def all_or_stopped(self) -> AbstractContextManager[None]:
        """From the first changed row to the log record: a failure in between stops the engine."""
        return self._stopping

    def wait(self, epoch: int) -> None:
        """Return when the epoch is durable; the engine stops when it cannot become so."""
        try:
            self._journal.wait(epoch)
        except BaseException as error:
            self.stop(f"epoch {epoch} did not become durable ({describe(error)})")
            raise
        self.publish(epoch)


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _leave_all() -> None:
    for guard in list(_guards):
        guard.after_fork()


os.register_at_fork(after_in_child=_leave_all)
