"""The store: the one writer of a store's folder, from opening it to the acknowledged epoch.

Invariant: `wait` returns only when the epoch is synced and published; with durability "none", when
it is written and published. After the first failure of the disk nothing is written any more: what
is in doubt is decided by recovery, never by a retry.

Durability, what an acknowledged epoch survives:
    sync    a loss of power; each sync takes all that was appended until it began
    group   a loss of power; a sync waits a bounded time for other threads that are about to commit
    none    the end of the process, but not a loss of power: then the newest epochs may be gone,
            always a whole number of them and only the last ones
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import (
    Batch,
    Commit,
    Durability,
    Mark,
    Receiver,
    Recovered,
    check_durability,
    check_images,
    mark_at,
    next_mark,
)
from headgate.durability.compaction import write_next
from headgate.durability.folder import check_folder, prepare_folder, sound_floor
from headgate.durability.head import Head, read_head
from headgate.durability.lineage import UNKNOWN, Lineage
from headgate.durability.log import SEGMENT_BYTES, LogWriter
from headgate.durability.log_record import OpenFrame
from headgate.durability.manifest import write_manifest
from headgate.durability.named_parts import remove_unnamed
from headgate.durability.reader import read_results
from headgate.durability.recovery import Outcome, recover_store
from headgate.durability.retention import Retention, Trimmed, Trimmer, is_due
from headgate.durability.scan import LogReader
from headgate.durability.snapshot import snapshot_epochs
from headgate.errors import InputError, InvariantError, StoreError, forked
from headgate.io import Clock, Disk, Lock, RealClock, RealDisk, local_folder, make_folders
from headgate.io import reason_of as _reason

GROUP_DELAY_US = 2000


class Store:
    """A store's folder, open for writing.

    >>> import tempfile, pyarrow as pa
    >>> store = Store.open(tempfile.mkdtemp() + "/bank")
    >>> store.recover().epoch
    0
    >>> rows = pa.record_batch({"__slot": [0], "__alive": [True], "id": [7]})
    >>> store.commit(Commit(epoch=1, time_us=0, changes={"accounts": rows}))
    >>> store.close()
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        clock: Clock,
        lock: Lock,
        segment_bytes: int,
        durability: Durability,
        group_delay_us: int,
        retain: Retention | None,
    ) -> None:
        self.path = path
        self.durability = durability
        self.retain = retain
        self._group_delay_us = group_delay_us
        self._disk = disk
        self._clock = clock
        self._lock = lock
        self._process = os.getpid()
        self._segment_bytes = segment_bytes
        self.manifest: dict[str, Any] = {}
        self.lineage: Lineage = UNKNOWN
        self.outcome: Outcome | None = None
        self.on_stop: Callable[[str], None] = _nobody  # told the reason, by the thread that failed
        self._log: LogWriter | None = None
        self._head: Head | None = None
        self._reader = LogReader(disk, self._inside(layout.LOG_FOLDER))
        # Taken in this order: one snapshot or trimming at a time, one append, one publication.
        self._tidying = threading.RLock()
        self._appending = threading.RLock()
        self._publishing = threading.Lock()
        state = threading.RLock()
        self._changed = threading.Condition(state)
        self._gathered = threading.Condition(state)
        # Guarded by _changed:
        self._appended: Mark | None = None
        self._synced_epoch = 0
        self._syncing = False
        self._stopped: str | None = None
        self._arrived = 0  # how many came to wait since the last sync took what it syncs
        self._group = 1  # how many that were the time before
        # Guarded by _publishing:
        self._published_at: layout.Position = layout.BEGINNING
        # Guarded by _appending:
        self._bytes = 0
        self._snapshot_bytes = self._snapshot_epoch = 0
        self._input_epoch = 0

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        disk: Disk | None = None,
        clock: Clock | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        durability: Durability = "sync",
        group_delay_us: int = GROUP_DELAY_US,
        retain: Retention | None = None,
    ) -> Store:
        """Create or open a store and take its lock; `recover` comes next.

        `retain` lets every snapshot trim what the policy does not keep; None keeps all epochs.
        """
        check_durability(durability, group_delay_us)
        disk = disk if disk is not None else RealDisk()
        clock = clock if clock is not None else RealClock()
        folder = local_folder(path)
        lock: Lock | None = None
        try:
            check_folder(disk, folder)
            make_folders(disk, folder)
            lock = disk.lock(os.path.join(folder, layout.LOCK_NAME))
            options = (segment_bytes, durability, group_delay_us, retain)
            store = cls(folder, disk, clock, lock, *options)
            store.manifest, store.lineage = prepare_folder(disk, folder)
            return store
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot open the store {folder}: {error}") from error
            raise

    @property
    def disk(self) -> Disk:
        """Where the store's files are, for those who read beside it."""
        return self._disk

    def _inside(self, name: str) -> str:
        return os.path.join(self.path, name)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the declarations in one durable step."""
        with self._appending, self._doing("write the manifest"):
            self._prove_own()
            write_manifest(self._disk, self._inside(layout.MANIFEST_NAME), manifest)
            self.manifest = dict(manifest)

    def recover(self, receiver: Receiver | None = None) -> Recovered:
        """Bring back the last durable epoch; once, before anything is appended.

        With a receiver, rows go to its places and not into images.
        """
        with self._appending:
            if self._log is not None:
                raise InvariantError(f"the store {self.path} was already recovered")
            with self._doing("recover"):
                outcome = self._recover(receiver)
            self.outcome = outcome
            return outcome.recovered

    def _recover(self, receiver: Receiver | None) -> Outcome:
        head_path = self._inside(layout.HEAD_NAME)
        newest = read_head(self._disk, head_path)
        floor = sound_floor(self._disk, self.path, self.lineage)
        outcome = recover_store(self._disk, self.path, newest, floor, receiver)
        position = outcome.mark.position
        self._prove_own()
        if not self.lineage.id:  # a store of format 1 becomes one of this
            self.lineage = Lineage.new(self._disk, carried=position.epoch)
            manifest = self._inside(layout.MANIFEST_NAME)
            write_manifest(self._disk, manifest, self.manifest, self.lineage)
        self._head = Head.begin(self._disk, head_path, position, self.lineage)
        log, size = self._inside(layout.LOG_FOLDER), self._segment_bytes
        self._log = LogWriter(self._disk, log, self._clock, position, size, self.lineage)
        self._appended = outcome.mark
        self._synced_epoch = position.epoch
        self._published_at = position
        self._bytes = outcome.replayed_bytes
        self._snapshot_epoch = position.epoch - outcome.replayed_epochs
        if outcome.recovered.pending:
            self._input_epoch = position.epoch
        return outcome

    def open_frame(self) -> OpenFrame:
        """Begin the next frame, so that results can be written while their batch still runs."""
        with self._appending, self._doing("begin an epoch"):
            return self._begin(self._opened()[0])

    def _begin(self, log: LogWriter) -> OpenFrame:
        self._prove_own()
        if log.is_full():
            self._begin_segment(log)
        return log.open_frame()

    def _begin_segment(self, log: LogWriter) -> None:
        """Begin a segment once everything before it is synced and its publication is, too."""
        self._sync(log.position.epoch)
        self._published().sync()
        log.begin_segment()

    def add_results(self, frame: OpenFrame, batch: Batch) -> None:
        """Write results of the batch that runs, not yet durable."""
        with self._doing("write results"):
            frame.add_results(batch)

    def append(self, commit: Commit, frame: OpenFrame | None = None) -> int:
        """Write a commit to the log, not yet durable, and return the ticket to wait for."""
        with self._appending:
            log, last = self._opened()
            mark = next_mark(last, commit)
            with self._doing(f"append epoch {commit.epoch}"):
                if frame is None:
                    frame = self._begin(log)
                else:
                    self._prove_own()
                position = log.append(frame, commit, self._synced_epoch, mark.slots)
            self._bytes += position.offset - frame.place.offset
            if commit.input is not None:
                self._input_epoch = commit.epoch
            with self._changed:
                self._appended = mark_at(mark, position)
            return commit.epoch

    def wait(self, ticket: int) -> None:
        """Return when the epoch is as durable as the store promises, and published.

        The first thread that comes syncs for all that was appended until then; those that come
        meanwhile wait for it, and one of them syncs next.
        """
        if self.durability == "none":
            self._show(ticket)
        else:
            self._sync(ticket, self._group_delay_us if self.durability == "group" else 0)

    def _show(self, ticket: int) -> None:
        """Publish what is written, at least up to the epoch, though it is not synced."""
        with self._publishing:
            if self._published_at.epoch >= ticket:
                return
            self.check_running()
            appended = self._checked_appended(ticket)
            with self._doing(f"publish epoch {appended.epoch}"):
                self._prove_own()
                self._published().publish(appended.position, self._synced_epoch)
                self._published_at = appended.position

    def _sync(self, ticket: int, delay_us: int = 0) -> None:
        """Return when the epoch is synced and published."""
        with self._changed:
            target = self._lead(ticket, delay_us)
        if target is None:
            return
        log = self._log
        try:
            with self._doing(f"sync epoch {target.epoch}"):
                if log is not None and target.position.offset:
                    log.file().sync()
                # Only now, behind the sync: who takes the store from here on finds the epoch.
                self._prove_own()
                self._publish_synced(target)
        finally:
            with self._changed:
                self._syncing = False
                self._changed.notify_all()
        if log is not None and self._appended is target:  # the disk has nothing to do for now
            log.make_room()

    def _publish_synced(self, target: Mark) -> None:
        with self._publishing:
            if self._published_at.epoch < target.epoch:
                self._published_at = target.position
            self._published().publish(self._published_at, target.epoch)
        with self._changed:
            self._synced_epoch = target.epoch

    def _lead(self, ticket: int, delay_us: int) -> Mark | None:
        """Become the thread that syncs and return what it will make durable, or None when done."""
        arrived = False
        while True:
            if self._synced_epoch >= ticket:
                return None
            self.check_running()
            self._checked_appended(ticket)
            if not arrived:
                arrived = True
                self._arrived += 1
                self._gathered.notify_all()
            if not self._syncing:
                self._syncing = True
                return self._gather(ticket, delay_us)
            self._changed.wait()

    def _gather(self, ticket: int, delay_us: int) -> Mark:
        """Wait a little, but only for as many as came the last time, and take what is appended."""
        if delay_us:
            self._gathered.wait_for(self._is_gathered, delay_us / 1e6)
        self._group, self._arrived = max(self._arrived, 1), 0
        return self._checked_appended(ticket)

    def _is_gathered(self) -> bool:
        return self._arrived >= self._group or self._stopped is not None

    def _checked_appended(self, ticket: int) -> Mark:
        if self._appended is None or self._appended.epoch < ticket:
            raise InvariantError(f"epoch {ticket} was never appended")
        return self._appended

    def commit(self, commit: Commit) -> None:
        """Append a commit and return when it is durable."""
        self.wait(self.append(commit))

    def results(self, first_epoch: int, last_epoch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The recorded results of a range of published epochs, both ends included."""
        self.check_running()
        at = self._published_at
        return read_results(self._disk, self.path, self._reader, first_epoch, last_epoch, at)

    def log_bytes(self) -> int:
        """How much log was replayed when the store was opened and written since."""
        return self._bytes

    def log_bytes_since_snapshot(self) -> int:
        """The bytes that recovery would have to replay if the store were opened again now."""
        return self._bytes - self._snapshot_bytes

    def has_many_epochs(self) -> bool:
        """Whether a snapshot is due by the epochs since the last one, however short they are."""
        mark = self._appended
        return mark is not None and is_due(self.retain, mark, self._snapshot_epoch)

    def snapshot(
        self,
        epoch: int | None = None,
        images: Mapping[str, Iterable[pa.RecordBatch]] | None = None,
    ) -> int:
        """Write all tables at the last appended epoch as a snapshot, and return that epoch.

        Without images it is made of the last snapshot and the log, from any thread, while commits
        go on, and only what changed is written. Where epochs were logged as input, the engine has
        to give the images of its epoch: "__slot" and columns, live rows only, slot-ascending;
        they must stay those of the epoch while they are written.
        """
        with self._tidying:
            with self._appending:
                log, mark = self._opened()
                if self.retain is not None and self.retain.epochs is not None:
                    log.finish_segment()
                at_bytes, input_epoch = self._bytes, self._input_epoch
            if images is not None:
                check_images(mark, mark.epoch if epoch is None else epoch, images)
            elif self.needs_images():
                raise InvariantError(
                    f"a snapshot after epoch {input_epoch}, logged as input, needs images"
                )
            self._sync(mark.epoch)
            with self._doing(f"write the snapshot of epoch {mark.epoch}"):
                write_next(self._disk, self.path, self._reader, mark, images, self.lineage)
                self._published().sync()
                self._prove_own()
                self._tidy()
            with self._appending:
                self._snapshot_bytes = max(self._snapshot_bytes, at_bytes)
                self._snapshot_epoch = mark.epoch
            return mark.epoch

    def needs_images(self) -> bool:
        """Whether only the engine can make the next snapshot: epochs were logged as input."""
        with self._appending:
            written = snapshot_epochs(self._disk, self._inside(layout.SNAPSHOT_FOLDER))
            return self._input_epoch > max(written, default=0)

    def _tidy(self) -> None:
        """After a snapshot: give up what the policy does not keep."""
        if self.retain is None:
            Trimmer(self._disk, self.path, self.lineage).thin(self._clock.time_us())
        else:
            self.trim()
        self.sweep_parts()

    def sweep_parts(self, known: Iterable[str] = ()) -> None:
        """Remove parts of epochs since the last snapshot that no record names."""
        since = range(self._snapshot_epoch + 1, self._synced_epoch + 1)
        remove_unnamed(self._disk, self.path, self._reader, since, known)

    def trim(self, retain: Retention | None = None) -> Trimmed:
        """Remove what a policy, the store's own by default, does not keep and no reader needs."""
        policy = retain if retain is not None else self.retain
        if policy is None:
            raise InputError("trim needs a retention: the store was opened to keep everything")
        with self._tidying, self._doing("trim"):
            self._opened()
            self._prove_own()
            last, now_us = self._synced_epoch, self._clock.time_us()
            return Trimmer(self._disk, self.path, self.lineage).trim(policy, last, now_us)

    def close(self) -> None:
        """Make everything appended durable and release the lock; also after a failure."""
        if os.getpid() != self._process:
            return  # it is the parent's
        with self._tidying, self._appending:
            try:
                if self._stopped is None and self._appended is not None:
                    self._sync(self._appended.epoch)
                    with self._doing("close"):
                        self._published().sync()
                        self._prove_own()
                        self._opened()[0].give_room_back()
            finally:
                self._release()

    def _release(self) -> None:
        with self._changed:
            if self._stopped is None:
                self._stopped = "it was closed"
            self._changed.notify_all()
            while self._syncing:
                self._changed.wait()
        for close in (one.close for one in (self._log, self._head) if one is not None):
            with contextlib.suppress(OSError):
                close()
        self._lock.release()

    def _opened(self) -> tuple[LogWriter, Mark]:
        self.check_running()
        if self._log is None or self._appended is None:
            raise InvariantError(f"the store {self.path} is used before it was recovered")
        return self._log, self._appended

    def _published(self) -> Head:
        if self._head is None:
            raise InvariantError(f"the store {self.path} is used before it was recovered")
        return self._head

    def _prove_own(self) -> None:
        """Refuse to go on when another may have taken the store: one look at the lock's name.

        What was synced before a look that finds the lock in its place is found by whoever takes
        the store after it, so an epoch is acknowledged only behind such a look.
        """
        if not self._lock.is_held():
            raise StoreError(
                f"the lock {self._inside(layout.LOCK_NAME)} was removed or replaced: the store may "
                "have another writer by now, and this one must not go on; never remove the lock "
                "of a store that is open"
            )

    def check_running(self) -> None:
        """StoreError when the store is stopped, with the reason, or belongs to another process."""
        if os.getpid() != self._process:
            raise StoreError(forked(self._process))
        if self._stopped is not None:
            raise StoreError(
                f"the store {self.path} is stopped: {self._stopped}; reopen the store to recover"
            )

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Stop the store when this fails, whatever the reason: the state on disk is in doubt."""
        self.check_running()
        try:
            yield
        except BaseException as error:
            self._stop(what, error)

    def _stop(self, what: str, error: BaseException) -> NoReturn:
        reason = f"could not {what}: {_reason(error)}"
        with self._changed:
            self._stopped = self._stopped or reason
            self._changed.notify_all()
            self._gathered.notify_all()
        self.on_stop(reason)
        if isinstance(error, OSError):
            text = f"the store {self.path} {reason}; reopen the store to recover"
            raise StoreError(text) from error
        raise error


def _nobody(_: str) -> None:
    """Nobody is to be told."""
