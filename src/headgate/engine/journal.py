"""The journal, the engine's hand on its store; and the guard, by which it goes on or is stopped.

Epochs reach the log in one order, whoever writes them: each waits until the one before it is there.
Who waits for an epoch to be durable waits for its record first, which may still be handed from
thread to thread. A run of many batches is a few epochs ahead of the disk, never more: the writing
thread writes what waits and syncs it together. A failure reaches all of them, and the guard, at
once. Without a store everything is at once as durable as it will ever be.

An engine never carries on over doubt, and it belongs to the process that opened it. In a child that
was forked from that process it is stopped from the first moment, before any lock is asked for: a
lock that another thread held at the fork would never be free there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.durability import (
    Batch,
    Commit,
    OpenFrame,
    Receiver,
    Recovered,
    Retention,
    Store,
    check_durability,
)
from headgate.engine.metrics import Meter, Stopwatch
from headgate.errors import InputError, InvariantError, StoreError, describe, forked
from headgate.io import Clock, Disk, RealClock

STORE_LOG = logging.getLogger("headgate.store")
ENGINE_LOG = logging.getLogger("headgate.engine")
CLOSED = "it was closed"
FRAMES_AHEAD_MAX = 8  # epochs that a run may be ahead of the disk
FRAMES_TOGETHER = 4  # so many are synced together, though more may wait
GIVE_WAY_SECONDS = 50e-6  # enough for a thread that waits for a lock to wake up
SNAPSHOT_LOG_BYTES = 256 << 20  # recovery replays at most about this much log


class Journal:
    """A store with one thread that writes the log behind the engine and one for snapshots."""

    def __init__(self, store: Store | None, clock: Clock | None = None) -> None:
        self.store = store
        self._now = (clock or RealClock()).monotonic
        self.log: Stopwatch = Stopwatch()
        self.sync: Stopwatch = Stopwatch()
        self.snapshots: Stopwatch = Stopwatch()
        self.log_bytes: int = 0  # written since it was opened
        self._writers: ThreadPoolExecutor | None = None
        self._snapshots: ThreadPoolExecutor | None = None
        self._snapshot: Future[int] | None = None
        # Guarded by _changed:
        self._changed = threading.Condition()
        self._appended = 0  # the last epoch whose record is in the log
        self._failure: BaseException | None = None  # of a record: no later one follows it
        self._waiting = 0  # records that were handed to the writing thread
        self._written = 0  # records that it has written and not synced
        self._tell: Callable[[str], None] = _nobody
        self._publish: Callable[[int], None] = _nobody

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        disk: Disk | None,
        clock: Clock,
        durability: Any,
        retain: Retention | None,
    ) -> Journal:
        if path is None:
            check_durability(durability)
            return cls(None)
        return cls(Store.open(path, disk, clock, durability=durability, retain=retain), clock)

    @property
    def disk(self) -> Disk:
        """Where the store's files are."""
        if self.store is None:
            raise InvariantError("an engine in memory has no disk")
        return self.store.disk

    @property
    def manifest(self) -> Mapping[str, Any]:
        return {} if self.store is None else self.store.manifest

    def declare(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest when it differs from the one there is."""
        if self.store is not None and self.store.manifest != manifest:
            self.store.write_manifest(manifest)

    def recover(self, receiver: Receiver | None = None) -> Recovered | None:
        if self.store is None:
            return None
        recovered = self.store.recover(receiver)
        self._appended = recovered.epoch
        return recovered

    def when_stopped(self, tell: Callable[[str], None]) -> None:
        """Whom to tell, in whatever thread it happens, that the store goes on no more."""
        self._tell = tell
        if self.store is not None:
            self.store.on_stop = tell

    def when_durable(self, publish: Callable[[int], None]) -> None:
        """Whom to tell, in the writing thread, what became durable while no one waited for it."""
        self._publish = publish

    def begin(self, epoch: int, *, later: bool) -> OpenRecord | None:
        """Begin the record of the next epoch, whose results are handed over as they are made.

        With `later` the writing thread writes them, beside the batch that still runs.
        """
        if self.store is None:
            return None
        self._await_appended(self.store, epoch - 1)
        return OpenRecord(self.store, self._writing() if later else None)

    def append(
        self,
        commit: Commit,
        *,
        later: bool,
        meter: Meter | None = None,
        begun: OpenRecord | None = None,
    ) -> None:
        """Write a log record here, or in the writing thread when `later`; the meter counts it.

        The engine's lock sees to it that epochs come here in order.
        """
        if self.store is None:
            return
        if not later:
            self._write(self.store, commit, meter, begun)
            return
        with self._changed:
            self._waiting += 1
        self._writing().submit(self._write_behind, self.store, commit, meter, begun)

    def _writing(self) -> ThreadPoolExecutor:
        """The thread that writes behind the engine."""
        if self._writers is None:
            self._writers = ThreadPoolExecutor(1, thread_name_prefix="headgate-log")
        return self._writers

    def await_room(self) -> None:
        """Return when another record may be handed to the writing thread, or none will be."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting + self._written < FRAMES_AHEAD_MAX or self._failure
            )

    def _write(
        self, store: Store, commit: Commit, meter: Meter | None, begun: OpenRecord | None
    ) -> None:
        """Append the record behind the one before it; what fails, fails for all who wait."""
        self._await_appended(store, commit.epoch - 1)
        began, before = self._now(), store.log_bytes()
        try:
            store.append(commit, None if begun is None else begun.frame())
        except BaseException as error:
            self._fail(error)
            raise
        self._note_log(self._now() - began, store.log_bytes() - before, meter)
        with self._changed:
            self._appended = commit.epoch
            self._changed.notify_all()

    def _note_log(self, seconds: float, size: int, meter: Meter | None) -> None:
        self.log.note(seconds)
        self.log_bytes += size
        if meter is not None:
            meter.steps["log"].note(seconds)
            meter.log_bytes += size

    def _write_behind(
        self, store: Store, commit: Commit, meter: Meter | None, begun: OpenRecord | None
    ) -> None:
        """As `_write`, and sync, unless another waits: no one may be there yet to ask for it."""
        try:
            self._write(store, commit, meter, begun)
            with self._changed:
                self._waiting -= 1
                self._written += 1
                others = self._waiting if self._written < FRAMES_TOGETHER else 0
            if not others:
                store.wait(commit.epoch)
                self._publish(commit.epoch)
                with self._changed:
                    self._written = 0
                    self._changed.notify_all()
        except BaseException as error:  # told to whoever waits; this thread has no caller
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            is_first = self._failure is None
            self._failure = self._failure or error
            self._changed.notify_all()
        if is_first:
            self._tell(f"the log could not be written ({describe(error)})")

    def _await_appended(self, store: Store, epoch: int) -> None:
        """Return when the epoch's record is in the log; an error when it never will be."""
        if self._appended >= epoch:  # which only grows: mostly there is nothing to wait for
            return
        with self._changed:
            self._changed.wait_for(lambda: self._appended >= epoch or self._failure is not None)
            if self._appended >= epoch:
                return
            failure = self._failure
        if failure is not None and not isinstance(failure, Exception):
            raise failure  # the power is gone, or Ctrl-C came: not an error of the store
        store.check_running()
        raise StoreError(f"epoch {epoch} was not written: {failure}") from failure

    def wait(self, epoch: int) -> None:
        """Return when the epoch is durable."""
        if self.store is not None:
            self._await_appended(self.store, epoch)
            began = self._now()
            self.store.wait(epoch)
            self.sync.note(self._now() - began)

    def results(self, epoch: int) -> pa.RecordBatch | None:
        """The results recorded with an epoch, None when it has none."""
        if self.store is None:
            return None
        return next((batch for _, batch in self.store.results(epoch, epoch)), None)

    def snapshot_when_due(self, epoch: int, images: Callable[[], Any] | None) -> None:
        """Begin a snapshot when the log since the last one has grown long, or has many epochs.

        It is made in the background from the log itself; where the log holds inputs only the engine
        has the rows, and hands over their images.
        """
        if self.store is None:
            return
        is_long = self.store.log_bytes_since_snapshot() >= SNAPSHOT_LOG_BYTES
        if not is_long and not self.store.has_many_epochs():
            return
        if images is not None:
            self._await_appended(self.store, epoch)
            self._make_snapshot(self.store, epoch, images())
            return
        if self._snapshot is not None:
            if not self._snapshot.done():
                return
            self._snapshot.result()
        if self._snapshots is None:
            self._snapshots = ThreadPoolExecutor(1, thread_name_prefix="headgate-snapshot")
        with contextlib.suppress(RuntimeError):  # at the end of the process no work is begun
            self._snapshot = self._snapshots.submit(self._make_snapshot, self.store)

    def snapshot(self, epoch: int, images: Callable[[], Any]) -> None:
        """Write a snapshot of the epoch now."""
        if self.store is not None:
            self._await_appended(self.store, epoch)
            given = images() if self.store.needs_images() else None
            self._make_snapshot(self.store, epoch, given)

    def _make_snapshot(self, store: Store, *given: Any) -> int:
        began = self._now()
        epoch = store.snapshot(*given)
        seconds = self._now() - began
        self.snapshots.note(seconds)
        STORE_LOG.info("%s: snapshot of epoch %d written in %.3f s", store.path, epoch, seconds)
        return epoch

    def close(self) -> None:
        """Make everything durable and release the store."""
        for threads in (self._writers, self._snapshots):
            if threads is not None:
                threads.shutdown(wait=True)
        if self.store is not None:
            self.store.close()


class OpenRecord:
    """A record of the log that is written while its batch runs, here or in the writing thread."""

    def __init__(self, store: Store, writing: ThreadPoolExecutor | None) -> None:
        self._store, self._frame = store, store.open_frame()
        self._writing = writing
        self._handed: list[Future[None]] = []

    @property
    def is_beside(self) -> bool:
        """Whether another thread writes."""
        return self._writing is not None

    def add_results(self, batch: Batch) -> None:
        """Hand over the results that come next; the batch must not change any more."""
        if self._writing is None:
            self._store.add_results(self._frame, batch)
        else:
            add = self._store.add_results
            self._handed.append(self._writing.submit(add, self._frame, batch))

    def frame(self) -> OpenFrame:
        """What was begun, with all results in it."""
        for one in self._handed:
            one.result()
        return self._frame


def _nobody(*_: object) -> None:
    """Nobody reads yet."""


class EngineLock:
    """The lock under which an engine changes; refused in a process that the engine is not of."""

    def __init__(self, guard: Guard) -> None:
        self._check = guard.check_process
        self._lock = threading.RLock()
        self._waiting = 0  # about how many threads want it

    def acquire(self, blocking: bool = True) -> bool:
        self._check()
        return self._lock.acquire(blocking)

    @property
    def is_wanted(self) -> bool:
        """Whether a thread waits for it."""
        return self._waiting > 0

    def give_way(self) -> None:
        """Let a thread have it that waits for it; who just released it would be faster."""
        if self._waiting:
            threading.Event().wait(GIVE_WAY_SECONDS)

    def release(self) -> None:
        self._lock.release()

    def is_mine(self) -> bool:
        """Whether this very thread holds it."""
        lock: Any = self._lock
        return bool(lock._is_owned())

    def __enter__(self) -> None:
        self._check()
        if not self._lock.acquire(blocking=False):
            self._waiting += 1
            try:
                self._lock.acquire()
            finally:
                self._waiting -= 1

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


class _Inside:
    """What `Guard.inside` gives; a generator costs as much as a short function of a user."""

    def __init__(self, threads: set[int]) -> None:
        self._threads, self._mine = threads, threading.get_ident()

    def __enter__(self) -> None:
        self._is_first = self._mine not in self._threads
        self._threads.add(self._mine)

    def __exit__(self, *error: object) -> None:
        if self._is_first:
            self._threads.discard(self._mine)


class Guard:
    """Whether one engine may go on; its first failure is the one that is told."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._process = os.getpid()
        self.reason: str | None = None
        self._inside: set[int] = set()  # threads that are in a function of the user
        self.publish: Callable[[int], None] = _nobody  # an epoch is durable: show it
        self.hide: Callable[[], None] = _nobody  # the engine is stopped: show nothing
        self.leave: Callable[[], None] = _nobody  # this is a child: what was read is not ours
        self._stopping = _Stopping(self)
        journal.when_stopped(self.stop)
        journal.when_durable(self._show)
        _guards.add(self)

    def check(self) -> None:
        """Refuse to go on when the engine is stopped, or belongs to another process."""
        self.check_process()
        if self.reason is not None:
            raise stopped(self.reason)

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
                ENGINE_LOG.error("the engine is stopped: %s", _advised(reason))
        self.hide()

    def _show(self, epoch: int) -> None:
        self.publish(epoch)

    def check_entry(self) -> None:
        """As `check`, for who would change something; refused in a function that the engine runs.

        The lock would let its thread in, in the middle of a batch.
        """
        self.check()
        if self._inside and threading.get_ident() in self._inside:
            raise InputError(
                "a function that the engine runs cannot hand the same engine work, which would "
                "come in the middle of its batch: a procedure has `tx` as its one way to tables, a "
                "transaction its rows; give the rows to a stream, or call when it has ended"
            )

    def running(self) -> AbstractContextManager[None]:
        """For `with`, where the engine must go on for what follows."""
        self.check_entry()
        return _NOTHING

    def inside(self) -> AbstractContextManager[None]:
        """A user's function runs in this thread, perhaps one that another started."""
        return _Inside(self._inside)

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


def stopped(reason: str) -> StoreError:
    """What is told to whoever asks an engine that does not go on."""
    return StoreError(f"the engine is stopped: {_advised(reason)}")


def _advised(reason: str) -> str:
    """Why, and what to do: what is damaged says so itself, and to open it again would not help."""
    return reason if "restore the store" in reason else f"{reason}; open it again"


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _leave_all() -> None:
    for guard in list(_guards):
        guard.after_fork()


os.register_at_fork(after_in_child=_leave_all)
