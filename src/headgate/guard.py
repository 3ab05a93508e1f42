"""The guard: an engine goes on, or it is stopped and says why; it never carries on over doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.errors import StoreError, describe
from headgate.journal import Journal

CLOSED = "it was closed"


def _nobody(*_: object) -> None:
    """Nobody reads yet."""


class Guard:
    """Whether one engine may go on; its first failure is the one that is told."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.reason: str | None = None
        self.publish: Callable[[int], None] = _nobody  # an epoch is durable: show it
        self.hide: Callable[[], None] = _nobody  # the engine is stopped: show nothing
        journal.when_stopped(self.stop)

    def check(self) -> None:
        """Refuse to go on when the engine is stopped."""
        if self.reason is not None:
            raise StoreError(f"the engine is stopped: {self.reason}; open it again")

    def stop(self, reason: str) -> None:
        """From now on nothing runs and nothing is read; the first reason is the one that stays."""
        if self.reason is None:
            self.reason = reason
        self.hide()

    @contextmanager
    def running(self) -> Iterator[None]:
        self.check()
        yield

    @contextmanager
    def all_or_stopped(self) -> Iterator[None]:
        """From the first changed row to the log record: a failure in between stops the engine."""
        try:
            yield
        except BaseException as error:
            self.stop(f"a batch failed before its commit ({describe(error)})")
            raise

    def wait(self, epoch: int) -> None:
        """Return when the epoch is durable; the engine stops when it cannot become so."""
        try:
            self._journal.wait(epoch)
        except BaseException as error:
            self.stop(f"epoch {epoch} did not become durable ({describe(error)})")
            raise
        self.publish(epoch)
