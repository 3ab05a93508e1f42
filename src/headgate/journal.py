"""The journal: the engine's hand on its store: what is written when, and by which thread.

Epochs reach the log in order, whoever writes them. Without a store everything is at once as durable
as it will ever be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.durability import Commit, Receiver, Recovered, Retention, Store
from headgate.io import Clock, Disk

SNAPSHOT_LOG_BYTES = 256 << 20  # recovery replays at most about this much log


class Journal:
    """A store with one thread that writes the log behind the engine and one for snapshots."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self._threads: ThreadPoolExecutor | None = None
        self._snapshots: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._snapshot: Future[int] | None = None

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
            return cls(None)
        return cls(Store.open(path, disk, clock, durability=durability, retain=retain))

    @property
    def shares_syncs(self) -> bool:
        """Whether single calls are to wait for one another, to share a sync."""
        return self.store is not None and self.store.durability == "group"

    @property
    def manifest(self) -> Mapping[str, Any]:
        return {} if self.store is None else self.store.manifest

    def declare(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest when it differs from the one there is."""
        if self.store is not None and self.store.manifest != manifest:
            self.store.write_manifest(manifest)

    def recover(self, receiver: Receiver | None = None) -> Recovered | None:
        return None if self.store is None else self.store.recover(receiver)

    def append(self, commit: Commit, *, later: bool) -> None:
        """Write a log record here, or in the writing thread when `later`."""
        if self.store is None:
            return
        if later:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="headgate-log")
            self._writing = self._threads.submit(self.store.commit, commit)
        else:
            self.settle()
            self.store.append(commit)

    @property
    def writing(self) -> Future[None] | None:
        """The last record given to the writing thread."""
        return self._writing

    def settle(self) -> None:
        """Wait until the writing thread is done with what it was given."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def wait(self, epoch: int) -> None:
        """Return when the epoch is durable."""
        if self.store is None:
            return
        writing = self._writing
        if writing is not None:
            writing.result()
        self.store.wait(epoch)

    def results(self, epoch: int) -> pa.RecordBatch | None:
        """The results recorded with an epoch, None when it has none."""
        if self.store is None:
            return None
        return next((batch for _, batch in self.store.results(epoch, epoch)), None)

    def snapshot_when_due(self, epoch: int, images: Callable[[], Any] | None) -> None:
        """Begin a snapshot when the log since the last one has grown long.

        It is made in the background from the log itself; where the log holds inputs only the engine
        has the rows, and hands over their images.
        """
        if self.store is None or self.store.log_bytes_since_snapshot() < SNAPSHOT_LOG_BYTES:
            return
        if images is not None:
            self.settle()
            self.store.snapshot(epoch, images())
            return
        if self._snapshot is not None:
            if not self._snapshot.done():
                return
            self._snapshot.result()
        if self._snapshots is None:
            self._snapshots = ThreadPoolExecutor(1, thread_name_prefix="headgate-snapshot")
        self._snapshot = self._snapshots.submit(self.store.snapshot)

    def close(self) -> None:
        """Make everything durable and release the store."""
        for threads in (self._threads, self._snapshots):
            if threads is not None:
                threads.shutdown(wait=True)
        if self.store is not None:
            self.store.close()
