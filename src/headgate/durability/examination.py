"""The examination of a store: every byte that recovery and readers rely on, checked, none changed.

It takes no lock and may run beside a writer. What it finds damaged it steps over, so that it can
say which epochs are lost and which can still be read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import ALIVE, SLOT
from headgate.durability.decoding import finding
from headgate.durability.format import Position
from headgate.durability.head import Published, read_head
from headgate.durability.lineage import check_lineage, is_left_alone, no_manifest
from headgate.durability.log_record import changes_in, commit_of, meta_of
from headgate.durability.manifest import read_lineage, read_manifest, version_at
from headgate.durability.named_parts import TABLE as PARTS
from headgate.durability.part_file import PartName, read_part
from headgate.durability.retention import hold
from headgate.durability.scan import FoundFrame, LogReader
from headgate.durability.snapshot import Snapshot
from headgate.durability.tail import Tail, Torn, whole_frames
from headgate.errors import DamageError, InputError
from headgate.io import Disk, RealDisk, local_folder, read_file

_KNOWN_NAMES = {
    layout.MANIFEST_NAME,
    layout.HEAD_NAME,
    layout.FLOOR_NAME,
    layout.LOCK_NAME,
    layout.LOG_FOLDER,
    layout.SNAPSHOT_FOLDER,
    layout.LEASE_FOLDER,
    layout.PARTS_FOLDER,
}

# A slot of the table of parts, and the part that it names from then on, if any.
_NamedSlot = tuple[int, PartName | None]


@dataclass
class Report:
    """What the examination found; `damages` name file and offset, `notes` are no cause for worry.

    `first_epoch` and `epochs` are about the log; `readable` and `recoverable` about the tables.
    """

    path: str
    tables: int = 0
    floor: int = 0
    published: int | None = None
    segments: int = 0
    first_epoch: int = 1
    epochs: list[int] = field(default_factory=list)  # whose frames are whole, ascending
    inputs: list[int] = field(default_factory=list)  # those of them that were logged as input
    log_bytes: int = 0
    unpublished: list[int] = field(default_factory=list)
    torn: Torn | None = None
    snapshots: list[int] = field(default_factory=list)  # the whole ones
    snapshot_bytes: int = 0
    parts: int = 0  # of a store with shards: the whole ones of those that epochs name
    partless: list[int] = field(default_factory=list)  # epochs that name one that is damaged
    damages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_mixed: bool = False  # it has files of another store, or of another history of this one

    @property
    def is_whole(self) -> bool:
        return not self.damages

    @property
    def last_epoch(self) -> int:
        """The newest epoch that anyone was told of, as far as it can be known."""
        known = max([*self.epochs[-1:], *self.snapshots[-1:]], default=0)
        return known if self.published is None else self.published

    @property
    def lost(self) -> list[int]:
        """The epochs that were published and cannot be read from the log any more."""
        wanted = range(max(self.first_epoch, self.floor + 1), self.last_epoch + 1)
        return sorted(set(wanted) - set(self.epochs))

    @property
    def readable(self) -> list[int]:
        """The epochs whose tables can be read: a snapshot, or the epoch before and its frame, and
        with shards every part that the epoch names."""
        steps, snapshots = set(self.epochs) - set(self.inputs), set(self.snapshots)
        found = [0] if self.first_epoch == 1 and self.floor == 0 else []
        for epoch in range(max(self.floor, 1), self.last_epoch + 1):
            follows = found[-1:] == [epoch - 1] and epoch in steps
            if epoch in snapshots or follows:
                found.append(epoch)
        partless = set(self.partless)
        return [epoch for epoch in found if epoch not in partless]

    @property
    def recoverable(self) -> int | None:
        """The newest epoch to which `restore` can bring a new store; None when there is none."""
        whole, snapshots, partless = set(self.epochs), set(self.snapshots), set(self.partless)
        reached = 0 if self.first_epoch == 1 and self.floor == 0 else None
        best = reached
        for epoch in range(max(self.floor, 1), self.last_epoch + 1):
            follows = reached == epoch - 1 and epoch in whole
            is_reached = (epoch in snapshots or follows) and epoch not in partless
            reached = epoch if is_reached else None
            best = best if reached is None else reached
        return best


def verify(path: str | os.PathLike[str], disk: Disk | None = None) -> Report:
    """Check the manifest, the head, the floor, every frame of the log and every snapshot."""
    disk = disk if disk is not None else RealDisk()
    folder = local_folder(path)
    if not disk.exists(os.path.join(folder, layout.MANIFEST_NAME)):
        if is_left_alone(disk, folder):
            raise no_manifest(folder)
        raise InputError(f"there is no store at {folder}: check the path")
    with finding(folder):
        return _Examination(folder, disk).run()


class _Examination:
    """One walk through a store; `position` is behind the last frame that was found whole."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.report = Report(path)
        self._disk = disk
        self._folder = os.path.join(path, layout.LOG_FOLDER)
        self._log = LogReader(disk, self._folder)
        self._ends: dict[int, Position] = {0: layout.BEGINNING}
        self._position = layout.BEGINNING
        self._knows_floor = True
        self._manifest: dict[str, Any] = {}
        self._part_changes: dict[int, Sequence[_NamedSlot]] = {}  # by epoch

    def run(self) -> Report:
        try:
            held = hold(self._disk, self.report.path)
        except DamageError as error:
            self._note_damage(error)
            self._knows_floor = False
            self._check_files()
            return self.report
        with held:
            self.report.floor = held.first_epoch
            self._check_files()
        return self.report

    def _check_files(self) -> None:
        self._check_manifest()
        self._check_head()
        self._check_log()
        self._check_snapshots()
        self._check_parts()
        self._check_declarations()
        self._check_kinds()
        unknown = sorted(set(self._disk.list(self.report.path)) - _KNOWN_NAMES)
        for name in unknown:
            self.report.notes.append(f"{self._inside(name)}: not a file of the store")

    def _check_kinds(self) -> None:
        """The lock is a file and the leases are in a folder, where they are there at all."""
        names = set(self._disk.list(self.report.path))
        for name, is_folder in ((layout.LOCK_NAME, False), (layout.LEASE_FOLDER, True)):
            if name in names and self._is_folder(self._inside(name)) != is_folder:
                what = "it is a file, not a folder" if is_folder else "it is a folder, not a file"
                self._note_damage(layout.damage(self._inside(name), 0, what))

    def _is_folder(self, path: str) -> bool:
        try:
            self._disk.list(path)
        except (NotADirectoryError, FileNotFoundError):
            return False
        return True

    def _inside(self, name: str) -> str:
        return os.path.join(self.report.path, name)

    def _note_damage(self, error: DamageError) -> None:
        place = str(error).partition("; `headgate verify`")[0]
        self.report.damages.append(place.removeprefix("damaged bytes in "))

    def _check_manifest(self) -> None:
        try:
            self._manifest = read_manifest(self._disk, self._inside(layout.MANIFEST_NAME))
        except DamageError as error:
            self._note_damage(error)
            return
        try:
            path = self._inside(layout.MANIFEST_NAME)
            check_lineage(self._disk, self.report.path, read_lineage(self._disk, path))
        except DamageError as error:
            self._note_damage(error)
            self.report.is_mixed = True

    def _check_parts(self) -> None:
        """Of a store with shards: every part that an epoch names which could be read with it."""
        needed = self._needed_parts()
        if not needed:
            return
        lineage = read_lineage(self._disk, self._inside(layout.MANIFEST_NAME))
        partless: set[int] = set()
        for name, epochs in sorted(needed.items()):
            try:
                read_part(self._disk, self.report.path, lineage, name)
                self.report.parts += 1
            except DamageError as error:
                self._note_damage(error)
                partless.update(epochs)
        self.report.partless = sorted(partless)

    def _needed_parts(self) -> dict[PartName, range]:
        """The parts that epochs name, each with those that do: what is gone does not return."""
        slots: dict[int, PartName] = {}
        begins: dict[PartName, int] = {}
        ends: dict[PartName, int] = {}
        before = -1
        for epoch in self.report.readable:
            changes = self._part_changes.get(epoch, ())
            if epoch - 1 != before:  # what the epochs before it did is not known
                ends.update(dict.fromkeys(slots.values(), before))
                slots, changes = {}, self._parts_at(epoch)
            for slot, name in changes:
                if slot in slots:
                    ends[slots.pop(slot)] = epoch - 1
                if name is not None:
                    slots[slot] = name
                    begins.setdefault(name, epoch)
            before = epoch
        ends.update(dict.fromkeys(slots.values(), before))
        return {name: range(begin, ends[name] + 1) for name, begin in begins.items()}

    def _parts_at(self, epoch: int) -> Sequence[_NamedSlot]:
        """What the snapshot of an epoch says of parts."""
        folder = self._inside(layout.SNAPSHOT_FOLDER)
        with contextlib.closing(Snapshot.open(self._disk, folder, epoch)) as snapshot:
            if PARTS not in snapshot.tables():
                return ()
            return [one for batch in snapshot.batches(PARTS) for one in _slots_in(batch)]

    def _check_declarations(self) -> None:
        """Count the tables; declarations whose epoch never came to be are no damage."""
        last, since = self.report.last_epoch, self._manifest.get("since", 0)
        self.report.tables = len(version_at(self._manifest, last).get("tables", {}))
        if since > last:
            self.report.notes.append(
                f"{self._inside(layout.MANIFEST_NAME)}: declarations from epoch {since} on, which "
                "never came to be: a migration, or a change of shards, was interrupted; opening "
                "the store to write ends it"
            )

    def _head(self) -> Published | None:
        return read_head(self._disk, self._inside(layout.HEAD_NAME))

    def _check_head(self) -> None:
        """The slots are judged where they are used; here the bytes that belong to none."""
        path = self._inside(layout.HEAD_NAME)
        try:
            content = read_file(self._disk, path)
        except FileNotFoundError:
            return
        slots = layout.HEAD_SLOT_OFFSETS
        place = layout.IDENTITY_OFFSET
        between = content[slots[0] + layout.RECORD_BYTES : place]
        between += content[place + layout.RECORD_BYTES : slots[1]]
        identity = content[place : place + layout.RECORD_BYTES]
        try:
            if any(identity):
                layout.unseal(layout.IDENTITY_RECORD, layout.IDENTITY_MAGIC, identity, path)
        except DamageError:
            self._note_damage(layout.damage(path, place, "its identity is damaged"))
        if any(between) or len(content) != layout.HEAD_BYTES:
            self._note_damage(layout.damage(path, layout.RECORD_BYTES, "bytes outside its slots"))
        for offset in slots:
            record = content[offset : offset + layout.RECORD_BYTES]
            try:
                if any(record):
                    layout.unseal(layout.HEAD_SLOT, layout.HEAD_MAGIC, record, path)
            except DamageError:
                what = "this slot is not whole (opening the store to write rebuilds it)"
                self._note_damage(layout.damage(path, offset, what))

    # --- the log ------------------------------------------------------------------------------

    def _check_log(self) -> None:
        segments = self._log.segments()
        self.report.segments = len(segments)
        first = segments[0] if segments else self.report.floor + 1
        if not self._knows_floor:  # what is not there was then meant to go
            self.report.floor = first - 1
        self.report.first_epoch = min(first, self.report.floor + 1)
        if first > 1:
            self._position = Position(first - 1, first, 0, None)
        if first > self.report.floor + 1:  # only what lies below the floor may be gone
            path = os.path.join(self._folder, layout.segment_name(self.report.floor + 1))
            what = f"the segments before epoch {first} are missing"
            self._note_damage(layout.damage(path, 0, what))
        published = self._head()
        if published is None:
            what = "neither slot of the head is whole (opening the store to write rebuilds it)"
            self._note_damage(layout.damage(self._inside(layout.HEAD_NAME), 0, what))
            self._check_tail()
        elif self._check_published(published):
            self._check_tail()

    def _check_published(self, published: Published) -> bool:
        """Walk to the last synced epoch; False when nothing whole is left before it."""
        place, synced = published.position, published.synced
        self.report.published = place.epoch
        while self._position.epoch < synced:
            try:
                for frame in self._log.frames(self._position, synced):
                    self._note(frame)
            except DamageError as error:
                self._note_damage(error)
                if not self._step_over(synced):
                    return False
        here = self._position
        is_there = here.segment == place.segment and here.epoch == place.epoch
        if is_there and here != place and here.checksum is not None:
            what = f"epoch {place.epoch} is not the frame that was published"
            path = os.path.join(self._folder, layout.segment_name(here.segment))
            self._note_damage(layout.damage(path, here.offset, what))
        return True

    def _check_tail(self) -> None:
        """Walk on to the end of the log, which may move while a writer is at work."""
        while True:
            tail = Tail(self._disk, self._folder, self._position)
            try:
                for frame in tail.frames():
                    self._note(frame)
                break
            except DamageError as error:
                moved = self._head()
                if moved is not None and moved.synced > self._position.epoch:
                    self._check_published(moved)  # it was being written when we came by
                    continue
                self._note_damage(error)
                if not self._step_over(None):
                    break
        self.report.torn = tail.torn
        last = self.report.published
        if last is not None:
            self.report.unpublished = [epoch for epoch in self.report.epochs if epoch > last]
            self._note_unsynced(last)

    def _note_unsynced(self, last: int) -> None:
        found = self._position.epoch
        if found < last:
            self.report.notes.append(
                f'epochs {found + 1} to {last} were published with durability "none" and are not '
                "in the log: a loss of power took them, or a writer is just at work"
            )

    def _note(self, frame: FoundFrame) -> None:
        epoch = frame.header.epoch
        self._ends[epoch] = frame.end
        self._position = frame.end
        try:
            with frame.decoding():
                commit = commit_of(frame.header, frame.payload)
        except DamageError as error:
            self._note_damage(error)
            return
        self.report.epochs.append(epoch)
        if commit.input is not None:
            self.report.inputs.append(epoch)
        if PARTS in commit.changes:
            found = changes_in(frame.payload, meta_of(frame.payload), PARTS)
            self._part_changes[epoch] = [one for _, batch in found for one in _slots_in(batch)]
        self.report.log_bytes += layout.RECORD_BYTES + frame.header.payload_length

    def _step_over(self, last_epoch: int | None) -> bool:
        """Go to the next whole frame behind damaged bytes; False when there is none."""
        here = self._position
        end = sys.maxsize if last_epoch is None else last_epoch
        segments = self._log.segments()
        for segment, following in itertools.pairwise([*segments, sys.maxsize]):
            if segment < here.segment:
                continue
            start = here.offset if segment == here.segment else 0
            path = os.path.join(self._folder, layout.segment_name(segment))
            for offset, header in whole_frames(self._disk, path, start):
                # Behind the place where the next segment begins nothing counts.
                if here.epoch < header.epoch <= end and header.epoch < following:
                    place = (header.epoch - 1, segment, offset, header.previous)
                    self._position = Position(*place)
                    return True
        return False

    # --- the snapshots ------------------------------------------------------------------------

    def _check_snapshots(self) -> None:
        folder = self._inside(layout.SNAPSHOT_FOLDER)
        for epoch, given_up in _snapshot_files(self._disk, folder):
            try:
                self._check_snapshot(folder, epoch, given_up)
            except DamageError as error:
                self._note_damage(error)
            except FileNotFoundError:
                continue  # a writer has just put a newer one in its place

    def _check_snapshot(self, folder: str, epoch: int, given_up: bool) -> None:
        snapshot = Snapshot.open(self._disk, folder, epoch, given_up)
        try:
            self.report.snapshot_bytes += snapshot.holder_bytes(epoch)
            if given_up:
                snapshot.verify_own()
                return
            snapshot.verify()
        finally:
            snapshot.close()
        if epoch > max(self.report.last_epoch, *self._ends, *self.report.unpublished):
            self._check_reached(snapshot)
        end = self._ends.get(epoch)
        if end is not None and end != snapshot.position:
            self.report.is_mixed = True
            self._log.require(snapshot.position, end, snapshot.path)
            what = f"it says that epoch {epoch} ends elsewhere than it does in the log"
            raise layout.damage(snapshot.path, 0, what)
        self.report.snapshots.append(epoch)

    def _check_reached(self, snapshot: Snapshot) -> None:
        """A snapshot beyond the log as it was read is a running writer's, or of a later log."""
        head = read_head(self._disk, self._inside(layout.HEAD_NAME))
        if head is not None and head.position.epoch < snapshot.epoch:
            what = "the log ends before it: older files were put back, or segments are missing"
            raise layout.damage(snapshot.path, 0, what)


def _slots_in(batch: pa.RecordBatch) -> Iterator[_NamedSlot]:
    """What changes of the table of parts, or a piece of its image, say of slots."""
    for row in batch.to_pylist():
        name = PartName(*(row[each] for each in PartName._fields))
        yield row[SLOT], name if row.get(ALIVE, True) else None


def _snapshot_files(disk: Disk, folder: str) -> Iterator[tuple[int, bool]]:
    """The files of snapshots and of blocks: their epochs, and whether they were given up."""
    names = disk.list(folder)
    yield from ((epoch, False) for epoch in layout.numbers_of(names, layout.SNAPSHOT_SUFFIX))
    yield from ((epoch, True) for epoch in layout.numbers_of(names, layout.BLOCKS_SUFFIX))
