"""The store: the one writer of a store's folder, from opening it to the acknowledged epoch.

Invariant: `wait` returns only when the epoch is synced and published. After the first failure of
the disk nothing is written any more: what is in doubt is decided by recovery, never by a retry.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import ALIVE, SLOT, Commit, Mark, Recovered
from headgate.durability.frame import results_of
from headgate.durability.head import Head, create_head, read_head
from headgate.durability.log import SEGMENT_BYTES, LogWriter
from headgate.durability.manifest import read_manifest, write_manifest
from headgate.durability.recovery import Outcome, recover_store
from headgate.durability.scan import LogReader
from headgate.durability.snapshot import snapshot_epochs, write_snapshot
from headgate.errors import HeadgateError, InputError, InvariantError, StoreError
from headgate.io import Clock, Disk, Lock, RealClock, RealDisk, make_folders

SNAPSHOTS_KEPT = 2


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
    ) -> None:
        self.path = path
        self._disk = disk
        self._clock = clock
        self._lock = lock
        self._segment_bytes = segment_bytes
        self.manifest: dict[str, Any] = {}
        self.outcome: Outcome | None = None
        self._log: LogWriter | None = None
        self._head: Head | None = None
        self._reader = LogReader(disk, self._inside(layout.LOG_FOLDER))
        self._appending = threading.RLock()
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._appended: Mark | None = None
        self._durable_epoch = 0
        self._syncing = False
        self._stopped: str | None = None
        # Guarded by _appending:
        self._bytes = 0
        self._snapshot_bytes = 0

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        disk: Disk | None = None,
        clock: Clock | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Store:
        """Create or open a store and take its lock; `recover` comes next."""
        disk = disk if disk is not None else RealDisk()
        clock = clock if clock is not None else RealClock()
        folder = os.path.abspath(path)
        lock: Lock | None = None
        try:
            _check_folder(disk, folder)
            make_folders(disk, folder)
            lock = disk.lock(os.path.join(folder, layout.LOCK_NAME))
            store = cls(folder, disk, clock, lock, segment_bytes)
            store._prepare()
            return store
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot open the store {folder}: {error}") from error
            raise

    def _inside(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _prepare(self) -> None:
        """Make what is missing of a new store, and clear away what was never finished."""
        manifest = self._inside(layout.MANIFEST_NAME)
        # A manifest of a newer format is refused before anything is touched.
        is_new = not self._disk.exists(manifest)
        if not is_new:
            self.manifest = read_manifest(self._disk, manifest)
        folders = [self._inside(layout.LOG_FOLDER), self._inside(layout.SNAPSHOT_FOLDER)]
        for folder in folders:
            make_folders(self._disk, folder)
        for folder in [self.path, *folders]:
            self._remove_unfinished(folder)
        if is_new:
            create_head(self._disk, self._inside(layout.HEAD_NAME))
            write_manifest(self._disk, manifest, {})
        # A process that was killed may have left names that no one has synced yet.
        for folder in [self.path, *folders]:
            self._disk.sync_folder(folder)

    def _remove_unfinished(self, folder: str) -> None:
        for name in self._disk.list(folder):
            if name.endswith(layout.UNFINISHED_SUFFIX):
                self._disk.remove(os.path.join(folder, name))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the declarations in one durable step."""
        with self._appending, self._doing("write the manifest"):
            write_manifest(self._disk, self._inside(layout.MANIFEST_NAME), manifest)
            self.manifest = dict(manifest)

    def recover(self) -> Recovered:
        """Bring back the last durable epoch; once, before anything is appended."""
        with self._appending:
            if self._log is not None:
                raise InvariantError(f"the store {self.path} was already recovered")
            with self._doing("recover"):
                outcome = self._recover()
            self.outcome = outcome
            return outcome.recovered

    def _recover(self) -> Outcome:
        head_path = self._inside(layout.HEAD_NAME)
        newest = read_head(self._disk, head_path)
        outcome = recover_store(self._disk, self.path, newest[1] if newest else None)
        self._head = Head.open(self._disk, head_path)
        if newest is None or newest[1] != outcome.mark.position:
            self._head.publish(outcome.mark.position)
            self._head.sync()
            self._disk.sync_folder(self.path)
        self._log = LogWriter(
            self._disk,
            self._inside(layout.LOG_FOLDER),
            self._clock,
            outcome.mark.position,
            self._segment_bytes,
        )
        self._appended = outcome.mark
        self._durable_epoch = outcome.mark.epoch
        self._bytes = outcome.replayed_bytes
        return outcome

    def append(self, commit: Commit) -> int:
        """Write a commit to the log, not yet durable, and return the ticket to wait for."""
        with self._appending:
            log, last = self._opened()
            mark = _next_mark(last, commit)
            with self._doing(f"append epoch {commit.epoch}"):
                if log.is_full():
                    self._begin_segment(log)
                start = log.position.offset
                position = log.append(commit, self._durable_epoch, mark.slots)
            self._bytes += position.offset - start
            with self._changed:
                self._appended = _at(mark, position)
            return commit.epoch

    def _begin_segment(self, log: LogWriter) -> None:
        """Begin a segment once everything before it is synced and its publication is, too."""
        self.wait(log.position.epoch)
        self._published().sync()
        log.begin_segment()

    def wait(self, ticket: int) -> None:
        """Return when the epoch is durable and published.

        The first thread that comes syncs for all that was appended until then; those that come
        meanwhile wait for it, and one of them syncs next.
        """
        with self._changed:
            target = self._lead(ticket)
        if target is None:
            return
        log, head = self._log, self._published()
        try:
            with self._doing(f"sync epoch {target.epoch}"):
                if log is not None:
                    log.file().sync()
                head.publish(target.position)
                with self._changed:
                    self._durable_epoch = target.epoch
        finally:
            with self._changed:
                self._syncing = False
                self._changed.notify_all()

    def _lead(self, ticket: int) -> Mark | None:
        """Become the thread that syncs and return what it will make durable, or None when done."""
        while True:
            if self._durable_epoch >= ticket:
                return None
            self._check_running()
            if self._appended is None or self._appended.epoch < ticket:
                raise InvariantError(f"epoch {ticket} was never appended")
            if not self._syncing:
                self._syncing = True
                return self._appended
            self._changed.wait()

    def commit(self, commit: Commit) -> None:
        """Append a commit and return when it is durable."""
        self.wait(self.append(commit))

    def results(self, first_epoch: int, last_epoch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The recorded results of a range of durable epochs, both ends included."""
        self._check_running()
        return read_results(self._reader, first_epoch, last_epoch, self._durable_epoch)

    def log_bytes_since_snapshot(self) -> int:
        """The bytes that recovery would have to replay if the store were opened again now."""
        return self._bytes - self._snapshot_bytes

    def snapshot(self, epoch: int, images: Mapping[str, Iterable[pa.RecordBatch]]) -> None:
        """Write all tables at the last appended epoch: "__slot" and columns, live rows only.

        Only the beginning needs the writer's attention: commits may go on in other threads
        meanwhile, as long as the images stay those of the epoch.
        """
        with self._appending:
            _, mark = self._opened()
            at_bytes = self._bytes
        _check_images(mark, epoch, images)
        self.wait(epoch)
        with self._doing(f"write the snapshot of epoch {epoch}"):
            folder = self._inside(layout.SNAPSHOT_FOLDER)
            write_snapshot(self._disk, folder, mark, images)
            self._published().sync()
            for old in snapshot_epochs(self._disk, folder)[:-SNAPSHOTS_KEPT]:
                self._disk.remove(os.path.join(folder, layout.snapshot_name(old)))
        with self._appending:
            self._snapshot_bytes = max(self._snapshot_bytes, at_bytes)

    def close(self) -> None:
        """Make everything appended durable and release the lock; also after a failure."""
        with self._appending:
            if self._stopped is None and self._appended is not None:
                try:
                    self.wait(self._appended.epoch)
                    with self._doing("close"):
                        self._published().sync()
                finally:
                    self._release()
            else:
                self._release()

    def _release(self) -> None:
        with self._changed:
            if self._stopped is None:
                self._stopped = "it was closed"
            self._changed.notify_all()
            while self._syncing:
                self._changed.wait()
        for thing in (self._log, self._head):
            if thing is not None:
                with contextlib.suppress(OSError):
                    thing.close()
        self._lock.release()

    def _opened(self) -> tuple[LogWriter, Mark]:
        self._check_running()
        if self._log is None or self._appended is None:
            raise InvariantError(f"the store {self.path} is used before it was recovered")
        return self._log, self._appended

    def _published(self) -> Head:
        if self._head is None:
            raise InvariantError(f"the store {self.path} is used before it was recovered")
        return self._head

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise StoreError(
                f"the store {self.path} is stopped: {self._stopped}; reopen the store to recover"
            )

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Stop the store when this fails, whatever the reason: the state on disk is in doubt."""
        self._check_running()
        try:
            yield
        except BaseException as error:
            self._stop(what, error)

    def _stop(self, what: str, error: BaseException) -> NoReturn:
        with self._changed:
            if self._stopped is None:
                self._stopped = f"could not {what}: {_reason(error)}"
            self._changed.notify_all()
        if isinstance(error, OSError):
            raise StoreError(
                f"could not {what} of the store {self.path}: {_reason(error)}; reopen the store to "
                "recover"
            ) from error
        raise error


def read_results(
    log: LogReader, first_epoch: int, last_epoch: int, durable_epoch: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The recorded results of a range of epochs; epochs that have none are left out."""
    if first_epoch > last_epoch:
        return iter(())
    segments = log.segments()
    oldest = segments[0] if segments else 1
    if first_epoch < oldest or last_epoch > durable_epoch:
        raise InputError(
            f"results of epochs {first_epoch} to {last_epoch} were asked for, and the store has "
            f"epochs {oldest} to {durable_epoch}"
        )
    return _results(log, first_epoch, last_epoch)


def _results(
    log: LogReader, first_epoch: int, last_epoch: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for frame in log.frames(log.locate(first_epoch), last_epoch):
        batch = results_of(frame.payload)
        if batch is not None:
            yield frame.header.epoch, batch


def _check_folder(disk: Disk, folder: str) -> None:
    """Refuse to make a store in a folder that holds something else."""
    if not disk.exists(folder):
        return
    try:
        names = set(disk.list(folder))
    except NotADirectoryError as error:
        raise InputError(f"{folder} is a file, and a store is a folder") from error
    known = {
        layout.LOCK_NAME,
        layout.HEAD_NAME,
        layout.LOG_FOLDER,
        layout.SNAPSHOT_FOLDER,
        layout.MANIFEST_NAME + layout.UNFINISHED_SUFFIX,
    }
    if layout.MANIFEST_NAME not in names and names - known:
        other = ", ".join(sorted(names - known)[:3])
        raise InputError(
            f"{folder} is not a store and not empty (it holds {other}): name a new folder"
        )


def _next_mark(last: Mark, commit: Commit) -> Mark:
    """What the store remembers after the commit; InputError when the commit does not fit."""
    if commit.epoch != last.epoch + 1:
        raise InvariantError(f"epoch {commit.epoch} cannot follow epoch {last.epoch}")
    sources, inlets, slots = last.sources, last.inlets, dict(last.slots)
    if commit.source is not None:
        query, batch = commit.source
        sources = {**sources, query: (batch, commit.epoch)}
    if commit.inlets:
        inlets = {**inlets, **commit.inlets}
    for table, changes in commit.changes.items():
        slots[table] = max(slots.get(table, 0), _slot_bound(table, changes))
    return Mark(last.position, commit.time_us, sources, inlets, slots)


def _at(mark: Mark, position: layout.Position) -> Mark:
    return Mark(position, mark.time_us, mark.sources, mark.inlets, mark.slots)


def _slot_bound(table: str, changes: pa.RecordBatch) -> int:
    """One more than the highest slot of a batch of changes."""
    begin = [(field.name, field.type) for field in list(changes.schema)[:2]]
    if begin != [(SLOT, pa.int64()), (ALIVE, pa.bool_())]:
        raise InvariantError(
            f"changes of table {table} begin with {begin} in place of {SLOT} int64, {ALIVE} bool"
        )
    if changes.num_rows == 0:
        return 0
    # Seen as unsigned, a negative slot is the highest: one pass checks and finds the bound.
    highest = int(changes.column(0).to_numpy().view(np.uint64).max())
    if highest >= 1 << 63:
        raise InvariantError(f"changes of table {table} have slot {highest - (1 << 64)}")
    return highest + 1


def _check_images(mark: Mark, epoch: int, images: Mapping[str, Any]) -> None:
    if epoch != mark.epoch:
        raise InvariantError(f"a snapshot of epoch {epoch} after epoch {mark.epoch} was appended")
    missing = sorted(set(mark.slots) - set(images))
    if missing:
        raise InvariantError(f"the snapshot of epoch {epoch} lacks the tables {missing}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error}): free some space"
    if isinstance(error, HeadgateError):
        return str(error)
    return f"{type(error).__name__}: {error}"
