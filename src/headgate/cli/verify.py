"""The examination of a store: every byte that recovery and readers rely on, checked, none changed.

It may run beside a writer: it takes no lock, only a reader's lease. What it finds damaged it steps
over, so that it can say which epochs are lost and which can still be read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.floor import hold, read_floor
from headgate.durability.format import Position
from headgate.durability.head import read_head
from headgate.durability.manifest import read_manifest
from headgate.durability.scan import Frame, LogReader, Tail, Torn, read_buffer
from headgate.durability.snapshot import Snapshot, snapshot_epochs
from headgate.errors import DamageError
from headgate.io import Disk, File, RealDisk

_CHUNK_BYTES = 8 << 20


@dataclass
class Report:
    """What the examination found."""

    path: str
    tables: int = 0
    published: int | None = None
    segments: int = 0
    floor: int = 0  # the oldest epoch that is meant to be readable
    first_epoch: int = 1  # the first one that is meant to be in the log
    epochs: list[int] = field(default_factory=list)  # whose frames are whole, ascending
    log_bytes: int = 0
    unpublished: list[int] = field(default_factory=list)
    torn: Torn | None = None
    snapshots: list[int] = field(default_factory=list)  # the whole ones
    damages: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.damages

    @property
    def last_epoch(self) -> int:
        """The newest epoch that anyone was told of, as far as it can be known."""
        known = self.epochs[-1] if self.epochs else 0
        return known if self.published is None else self.published

    @property
    def lost(self) -> list[int]:
        """The epochs that were published and cannot be read from the log any more."""
        return sorted(set(range(self.first_epoch, self.last_epoch + 1)) - set(self.epochs))

    @property
    def readable(self) -> list[int]:
        """The epochs whose tables can be read: a snapshot, or the epoch before and its frame."""
        whole, snapshots = set(self.epochs), set(self.snapshots)
        found: list[int] = []
        for epoch in range(self.floor, self.last_epoch + 1):
            follows = epoch in whole and found[-1:] == [epoch - 1]
            if epoch == 0 or epoch in snapshots or follows:
                found.append(epoch)
        return found


def examine(path: str | os.PathLike[str], disk: Disk | None = None) -> Report:
    """Check the manifest, the head, every frame of the log and every snapshot of a store."""
    examination = _Examination(os.path.abspath(path), disk if disk is not None else RealDisk())
    return examination.run()


class _Examination:
    """One walk through a store; `position` is behind the last frame that was found whole."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.report = Report(path)
        self._disk = disk
        self._folder = os.path.join(path, layout.LOG_FOLDER)
        self._log = LogReader(disk, self._folder)
        self._ends: dict[int, Position] = {0: layout.BEGINNING}
        self._position = layout.BEGINNING

    def run(self) -> Report:
        self._check_manifest()
        try:
            held: contextlib.AbstractContextManager[Any] = hold(self._disk, self.report.path)
        except DamageError as error:
            self._note_damage(error)
            held = contextlib.nullcontext()
        with held:
            self._check_log()
            self._check_snapshots()
        return self.report

    def _inside(self, name: str) -> str:
        return os.path.join(self.report.path, name)

    def _note_damage(self, error: DamageError) -> None:
        place = str(error).partition("; `headgate verify`")[0]
        self.report.damages.append(place.removeprefix("damaged bytes in "))

    def _check_manifest(self) -> None:
        try:
            manifest = read_manifest(self._disk, self._inside(layout.MANIFEST_NAME))
            self.report.tables = len(manifest.get("tables", {}))
        except DamageError as error:
            self._note_damage(error)

    def _head(self) -> Position | None:
        newest = read_head(self._disk, self._inside(layout.HEAD_NAME))
        return None if newest is None else newest[1]

    # --- the log ------------------------------------------------------------------------------

    def _check_log(self) -> None:
        self._find_beginning()
        published = self._head()
        if published is None:
            what = "neither slot of the head is whole (opening the store to write rebuilds it)"
            self._note_damage(layout.damage(self._inside(layout.HEAD_NAME), 0, what))
            self._check_tail()
        elif self._check_published(published):
            self._check_tail()

    def _find_beginning(self) -> None:
        """Go to the first segment; those before the floor may be gone, no others."""
        segments = self._log.segments()
        self.report.segments = len(segments)
        first = segments[0] if segments else 1
        try:
            self.report.floor = read_floor(self._disk, self.report.path)
        except DamageError:  # noted already; what is not there was then meant to go
            self.report.floor = first - 1
        self.report.first_epoch = min(first, self.report.floor + 1)
        if first > 1:
            self._position = Position(first - 1, first, 0, None)
        if first > self.report.floor + 1:
            path = os.path.join(self._folder, layout.segment_name(self.report.floor + 1))
            what = f"the segments before epoch {first} are missing"
            self._note_damage(layout.damage(path, 0, what))

    def _check_published(self, published: Position) -> bool:
        """Walk to the published epoch; False when nothing whole is left before it."""
        self.report.published = published.epoch
        while self._position.epoch < published.epoch:
            try:
                for frame in self._log.frames(self._position, published.epoch):
                    self._note(frame)
            except DamageError as error:
                self._note_damage(error)
                if not self._step_over(published.epoch):
                    return False
        place = self._position
        if place.segment == published.segment and place != published and published.epoch:
            what = f"epoch {published.epoch} is not the frame that was published"
            path = os.path.join(self._folder, layout.segment_name(place.segment))
            self._note_damage(layout.damage(path, place.offset, what))
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
                if moved is not None and moved.epoch > self._position.epoch:
                    self._check_published(moved)  # it was being written when we came by
                    continue
                self._note_damage(error)
                if not self._step_over(None):
                    break
        self.report.torn = tail.torn
        last = self.report.published
        if last is not None:
            self.report.unpublished = [epoch for epoch in self.report.epochs if epoch > last]

    def _note(self, frame: Frame) -> None:
        self.report.epochs.append(frame.header.epoch)
        self.report.log_bytes += layout.RECORD_BYTES + frame.header.payload_length
        self._ends[frame.header.epoch] = frame.end
        self._position = frame.end

    def _step_over(self, last_epoch: int | None) -> bool:
        """Go to the next whole frame behind damaged bytes; False when there is none."""
        here = self._position
        end = sys.maxsize if last_epoch is None else last_epoch
        for segment in self._log.segments():
            if segment < here.segment:
                continue
            start = here.offset if segment == here.segment else 0
            for found in _whole_frames(self._disk, self._folder, segment, start):
                if here.epoch <= found.epoch < end:
                    self._position = found
                    return True
        return False

    # --- the snapshots ------------------------------------------------------------------------

    def _check_snapshots(self) -> None:
        folder = self._inside(layout.SNAPSHOT_FOLDER)
        for epoch in snapshot_epochs(self._disk, folder):
            try:
                self._check_snapshot(folder, epoch)
                self.report.snapshots.append(epoch)
            except DamageError as error:
                self._note_damage(error)
            except FileNotFoundError:
                continue  # a writer has just put a newer one in its place

    def _check_snapshot(self, folder: str, epoch: int) -> None:
        snapshot = Snapshot.open(self._disk, folder, epoch)
        try:
            snapshot.verify()
        finally:
            snapshot.close()
        if self._ends.get(epoch, snapshot.position) != snapshot.position:
            path = os.path.join(folder, layout.snapshot_name(epoch))
            what = f"the log has another frame of epoch {epoch} than the snapshot"
            raise layout.damage(path, 0, what)


def _whole_frames(disk: Disk, folder: str, segment: int, start: int) -> Iterator[Position]:
    """The places in a segment, from an offset on, before which a frame that is whole begins."""
    file = disk.open(os.path.join(folder, layout.segment_name(segment)), "read")
    try:
        for offset in _frame_marks(file, layout.padded(start)):
            found = _whole_frame(file, segment, offset)
            if found is not None:
                yield found
    finally:
        file.close()


def _frame_marks(file: File, start: int) -> Iterator[int]:
    """The offsets where a frame's first four bytes stand in its alignment."""
    magic = np.frombuffer(layout.FRAME_MAGIC, np.uint32)[0]
    for first in range(start, file.size(), _CHUNK_BYTES):
        chunk = read_buffer(file, first, _CHUNK_BYTES)
        words = np.frombuffer(chunk, np.uint32, chunk.size // 4)[:: layout.ALIGNMENT_BYTES // 4]
        for place in np.flatnonzero(words == magic):
            yield first + int(place) * layout.ALIGNMENT_BYTES


def _whole_frame(file: File, segment: int, offset: int) -> Position | None:
    record = read_buffer(file, offset, layout.RECORD_BYTES)
    header = layout.parse_frame_header(record)
    if header is None:
        return None
    payload: pa.Buffer = read_buffer(file, offset + layout.RECORD_BYTES, header.payload_length)
    covered = record.slice(0, layout.COVERED_BYTES)
    is_whole = payload.size == header.payload_length and (
        layout.frame_checksum(payload, covered, header.previous) == header.checksum
    )
    return Position(header.epoch - 1, segment, offset, header.previous) if is_whole else None
