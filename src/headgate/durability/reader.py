"""Reading a store from any process, while its writer runs or not.

Invariant: nothing beyond the published epoch is ever read, so what is seen is durable and whole.
After a loss of power the published epoch may lag until a writer opens the store again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import SLOT, CommitInfo
from headgate.durability.format import Position
from headgate.durability.frame import meta_of, parts_of
from headgate.durability.head import read_head
from headgate.durability.manifest import read_manifest
from headgate.durability.replay import Replay
from headgate.durability.scan import Frame, LogReader
from headgate.durability.snapshot import Snapshot, snapshot_epochs
from headgate.durability.store import read_results
from headgate.errors import DamageError, InputError
from headgate.io import Disk, RealDisk


class StoreReader:
    """A store's folder, open for reading; takes no lock.

    >>> StoreReader.open("no-such-folder")
    Traceback (most recent call last):
    headgate.errors.InputError: there is no store at ...
    """

    def __init__(self, path: str, disk: Disk, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._disk = disk
        self._log = LogReader(disk, os.path.join(path, layout.LOG_FOLDER))
        self._snapshots = os.path.join(path, layout.SNAPSHOT_FOLDER)

    @classmethod
    def open(cls, path: str | os.PathLike[str], disk: Disk | None = None) -> StoreReader:
        """Open a store that exists; InputError when there is none."""
        disk = disk if disk is not None else RealDisk()
        folder = os.path.abspath(path)
        try:
            manifest = read_manifest(disk, os.path.join(folder, layout.MANIFEST_NAME))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(f"there is no store at {folder}: check the path") from error
        return cls(folder, disk, manifest)

    def last_epoch(self) -> int:
        """The newest published epoch, read anew at every call; 0 before the first commit."""
        return self._head().epoch

    def _head(self) -> Position:
        path = os.path.join(self.path, layout.HEAD_NAME)
        newest = read_head(self._disk, path)
        if newest is None:
            what = "neither slot of the head is whole (opening the store to write rebuilds it)"
            raise layout.damage(path, 0, what)
        return newest[1]

    def first_epoch(self) -> int:
        """The oldest epoch whose tables can be read; 0 is the empty store."""
        segments = self._log.segments()
        return segments[0] - 1 if segments else 0

    def slots(self, table: str, epoch: int | None = None) -> int:
        """One more than the highest slot that the table ever used up to the epoch."""
        epoch = self._checked(table, epoch)
        if epoch == 0:
            return 0
        frame = next(self._log.frames(self._log.locate(epoch), epoch))
        return int(meta_of(frame.payload)["slots"].get(table, 0))

    def table(
        self,
        table: str,
        epoch: int | None = None,
        slot_range: tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The table's rows at an epoch, the newest by default, in the order of their slots.

        `slot_range` (first, one behind the last) restricts it to a part. A table that had not been
        written at the epoch has no columns here; its declaration is in the manifest.
        """
        epoch = self._checked(table, epoch)
        replay = Replay(slot_range, columns)
        start = self._insert_snapshot(replay, table, epoch, slot_range)
        for frame in self._log.frames(start, epoch):
            for part in parts_of(frame.payload):
                if part.kind == layout.PART_CHANGES and part.name == table:
                    replay.reserve(meta_of(frame.payload)["slots"][table])
                    replay.apply(part.batch())
        return replay.image().drop_columns([SLOT])

    def _checked(self, table: str, epoch: int | None) -> int:
        """The epoch to read; InputError when the store has no such table or epoch."""
        tables = self.manifest.get("tables", {})
        if table not in tables:
            raise InputError(f"no table {table!r} in {self.path}: it has {sorted(tables)}")
        last = self.last_epoch()
        first = self.first_epoch()
        if epoch is not None and not first <= epoch <= last:
            raise InputError(f"no epoch {epoch} in {self.path}: it has epochs {first} to {last}")
        return last if epoch is None else epoch

    def _insert_snapshot(
        self, replay: Replay, table: str, epoch: int, slot_range: tuple[int, int] | None
    ) -> Position:
        """Begin with the newest whole snapshot up to the epoch, and say where the log goes on."""
        epochs = snapshot_epochs(self._disk, self._snapshots)
        for candidate in reversed([number for number in epochs if number <= epoch]):
            try:
                snapshot = Snapshot.open(self._disk, self._snapshots, candidate)
                try:
                    batches = list(snapshot.batches(table, slot_range))
                finally:
                    snapshot.close()
            except (DamageError, FileNotFoundError):
                # A damaged snapshot costs time, not data; one just removed has a newer heir, but
                # maybe one beyond the epoch.
                continue
            replay.reserve(snapshot.slots().get(table, 0))
            for batch in batches:
                replay.insert(batch)
            return snapshot.position
        return layout.BEGINNING

    def results(self, first_epoch: int, last_epoch: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The recorded results of a range of published epochs, both ends included."""
        return read_results(self._log, first_epoch, last_epoch, self.last_epoch())

    def commits(self) -> Iterator[CommitInfo]:
        """What every published epoch holds, from the oldest on."""
        last = self.last_epoch()
        segments = self._log.segments()
        if last == 0 or not segments:
            return
        for frame in self._log.frames(self._log.locate(segments[0]), last):
            yield _info(frame)


def _info(frame: Frame) -> CommitInfo:
    meta = meta_of(frame.payload)
    source = meta["source"]
    return CommitInfo(
        epoch=frame.header.epoch,
        time_us=frame.header.time_us,
        source=None if source is None else (source[0], source[1]),
        rows=meta["rows"],
        result_rows=meta["results"] or 0,
        bytes=layout.RECORD_BYTES + frame.header.payload_length,
        file=frame.file,
        offset=frame.offset,
    )
