"""Copies of a store: a backup beside its running writer, or a new store from an older epoch.

Invariant: a copy holds only bytes that were verified while they were read, and it becomes a store
(by its manifest, written last) only when all of it is durable. The frames keep their content and
get their place in the copy's own log, so that it begins where its oldest snapshot ends.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from headgate.durability import format as layout
from headgate.durability.commit import mark_at
from headgate.durability.decoding import finding
from headgate.durability.format import Position
from headgate.durability.head import Head
from headgate.durability.log import SEGMENT_BYTES, LogWriter
from headgate.durability.log_record import changes_in, meta_of
from headgate.durability.manifest import cut_at, read_lineage, write_manifest
from headgate.durability.named_parts import TABLE as PARTS
from headgate.durability.named_parts import names_in
from headgate.durability.part_file import PartName, copy_part
from headgate.durability.reader import StoreReader
from headgate.durability.retention import write_floor
from headgate.durability.scan import LogReader
from headgate.durability.snapshot import Snapshot, snapshot_epochs, write_snapshot
from headgate.errors import DamageError, HeadgateError, InputError, StoreError
from headgate.io import Clock, Disk, RealClock, RealDisk, local_folder, make_folders

# What a copy is made of; the manifest goes first, so that what is left is never taken for a store.
_NAMES = (
    layout.MANIFEST_NAME,
    layout.HEAD_NAME,
    layout.FLOOR_NAME,
    layout.LOG_FOLDER,
    layout.SNAPSHOT_FOLDER,
    layout.LEASE_FOLDER,
    layout.PARTS_FOLDER,
)


@dataclass(frozen=True)
class Copied:
    """What a copy holds: the epochs that can be read in it, and how many bytes its log has."""

    path: str
    first_epoch: int
    last_epoch: int
    log_bytes: int


def backup(
    path: str | os.PathLike[str],
    to: str | os.PathLike[str],
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Copied:
    """Copy a store with all the epochs it keeps, as of now; its writer may go on meanwhile."""
    reader = StoreReader.open(path, disk)
    with finding(reader.path), reader.hold() as held:
        last = reader.last_epoch()
        copy = _Copying(reader, local_folder(to), disk or RealDisk(), clock or RealClock())
        base = copy.whole_snapshot(held.first_epoch, held.first_epoch)
        if base is None and held.first_epoch:
            raise copy.no_snapshot(held.first_epoch)
        return copy.write(base, last, shortcut=True)


def restore(
    path: str | os.PathLike[str],
    epoch: int,
    to: str | os.PathLike[str],
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Copied:
    """Make a new store that ends with an epoch of this one, from the nearest snapshot before it.

    Only what that needs is read: damage elsewhere in the store does not matter.
    """
    reader = StoreReader.open(path, disk)
    with finding(reader.path), reader.hold() as held:
        first, last = held.first_epoch, reader.last_epoch()
        if not first <= epoch <= last:
            raise InputError(f"no epoch {epoch} in {reader.path}: it has epochs {first} to {last}")
        copy = _Copying(reader, local_folder(to), disk or RealDisk(), clock or RealClock())
        base = copy.whole_snapshot(first, epoch)
        if base is None and first:
            raise copy.no_snapshot(epoch)
        return copy.write(base, epoch, shortcut=False)


class _Copying:
    """One copy in the making."""

    def __init__(self, reader: StoreReader, to: str, disk: Disk, clock: Clock) -> None:
        self._reader = reader
        self._to = to
        self._disk = disk
        self._clock = clock
        self._from_snapshots = os.path.join(reader.path, layout.SNAPSHOT_FOLDER)
        self._to_snapshots = os.path.join(to, layout.SNAPSHOT_FOLDER)
        manifest = os.path.join(reader.path, layout.MANIFEST_NAME)
        # From here on the copy has a history of its own.
        self._before = read_lineage(disk, manifest)
        self._lineage = self._before.branched(disk)
        self._parts: set[PartName] = set()  # of a store with shards: what its epochs name

    def whole_snapshot(self, first: int, last: int) -> Snapshot | None:
        """The newest snapshot of a range of epochs all of whose bytes are right, open."""
        epochs = snapshot_epochs(self._disk, self._from_snapshots)
        for epoch in reversed([each for each in epochs if first <= each <= last]):
            try:
                snapshot = Snapshot.open(self._disk, self._from_snapshots, epoch)
            except (DamageError, FileNotFoundError):
                continue
            try:
                snapshot.verify()
            except DamageError:
                snapshot.close()
                continue
            self._reader.require(snapshot)
            return snapshot
        return None

    def no_snapshot(self, epoch: int) -> DamageError:
        what = f"no whole snapshot is left from which epoch {epoch} could be copied"
        return layout.damage(self._from_snapshots, 0, what)

    def write(self, base: Snapshot | None, last: int, shortcut: bool) -> Copied:
        """Write the whole copy; `shortcut` adds the newest snapshot, so that it opens fast."""
        newest = self.whole_snapshot(0, last) if shortcut else None
        is_new = self._refuse_full()
        try:
            self._make_folders()
            position, log_bytes = self._copy_epochs(base, last, newest)
            if base is not None:
                write_floor(self._disk, self._to, base.epoch, self._lineage)
            self._publish(position)
            manifest = os.path.join(self._to, layout.MANIFEST_NAME)
            self._reader.declared()  # what holds now, and not when the copy was begun
            declared = cut_at(self._reader.manifest, position.epoch)
            write_manifest(self._disk, manifest, declared, self._lineage)
        except (OSError, HeadgateError, KeyboardInterrupt) as error:
            self._undo(is_new)
            if not isinstance(error, OSError):
                raise
            raise StoreError(f"cannot copy {self._reader.path} to {self._to}: {error}") from error
        finally:
            for snapshot in (base, newest):
                if snapshot is not None:
                    snapshot.close()
        first = base.epoch if base is not None else 0
        return Copied(self._to, first, position.epoch, log_bytes)

    def _refuse_full(self) -> bool:
        """Refuse a folder that holds anything or is in the store; whether it is not there yet."""
        own, target = os.path.realpath(self._reader.path), os.path.realpath(self._to)
        if target != own and os.path.commonpath([own, target]) == own:
            raise InputError(
                f"{self._to} is inside of the store {self._reader.path}: name a folder outside of "
                "it for the copy"
            )
        is_there = self._disk.exists(self._to)
        if is_there and self._disk.list(self._to):
            raise InputError(f"{self._to} is not empty: name a new folder for the copy")
        return not is_there

    def _undo(self, is_new: bool) -> None:
        """Leave nothing of a copy that failed, so that the next one finds the folder empty."""
        with contextlib.suppress(OSError):  # what failed already is told
            for name in _NAMES:
                _remove(self._disk, os.path.join(self._to, name))
            if is_new:
                self._disk.remove_folder(self._to)

    def _make_folders(self) -> None:
        make_folders(self._disk, self._to)
        for name in (layout.LOG_FOLDER, layout.SNAPSHOT_FOLDER, layout.LEASE_FOLDER):
            make_folders(self._disk, os.path.join(self._to, name))

    def _copy_epochs(
        self, base: Snapshot | None, last: int, newest: Snapshot | None
    ) -> tuple[Position, int]:
        """The first snapshot, the frames after it, and the newest snapshot where it belongs."""
        start, beginning = layout.BEGINNING, layout.BEGINNING
        if base is not None:
            start = base.position
            beginning = Position(base.epoch, base.epoch + 1, 0, start.checksum)
            self._copy_snapshot(base, beginning)
            for batch in base.batches(PARTS):
                self._parts |= names_in(batch)
        log = LogWriter(
            self._disk,
            os.path.join(self._to, layout.LOG_FOLDER),
            self._clock,
            beginning,
            SEGMENT_BYTES,
            self._lineage,
        )
        try:
            log_bytes = 0
            reader = LogReader(self._disk, os.path.join(self._reader.path, layout.LOG_FOLDER))
            for frame in reader.frames(start, last, self._reader.published()):
                log.copy(frame)
                with frame.decoding():
                    meta = meta_of(frame.payload)
                    for _, batch in changes_in(frame.payload, meta, PARTS):
                        self._parts |= names_in(batch)
                log_bytes += layout.RECORD_BYTES + frame.header.payload_length
                if newest is not None and newest.epoch == frame.header.epoch:
                    log.file().sync()
                    self._copy_snapshot(newest, log.position)
            if log_bytes:
                log.file().sync()
            for name in sorted(self._parts):
                copy_part(self._disk, self._reader.path, self._to, self._before, name)
            return log.position, log_bytes
        finally:
            log.close()

    def _copy_snapshot(self, snapshot: Snapshot, position: Position) -> None:
        images = {table: snapshot.batches(table) for table in snapshot.tables()}
        mark = snapshot.mark()
        recorded = {}
        for query in mark.origins:
            blocks = snapshot.recorded(query)
            if blocks is not None:
                recorded[query] = [snapshot.batch(block) for block in blocks]
        at = mark_at(mark, position)
        write_snapshot(self._disk, self._to_snapshots, at, images, recorded, self._lineage)

    def _publish(self, position: Position) -> None:
        head = os.path.join(self._to, layout.HEAD_NAME)
        Head.begin(self._disk, head, position, self._lineage).close()


def _remove(disk: Disk, path: str) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    try:
        names = disk.list(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        disk.remove(path)
        return
    for name in names:
        _remove(disk, os.path.join(path, name))
    disk.remove_folder(path)
