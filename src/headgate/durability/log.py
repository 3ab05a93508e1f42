"""The writing side of the log: one segment file at a time, frames behind one another.

Invariant: a segment is begun only when every frame before it is synced, and its name is durable
before a frame goes into it; so only the last segment can have a torn tail, or room (room.py) behind
its frames: who begins the next one, or closes the log, gives that back.

Every writer begins a segment of its own, under a name that is new: what a writer still writes that
lost the store without knowing it goes into its own file, behind the place where the next segment
begins, and is read by no one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from headgate.durability import format as layout
from headgate.durability.commit import Commit
from headgate.durability.describing import Shapes
from headgate.durability.format import Position
from headgate.durability.lineage import UNKNOWN, Lineage
from headgate.durability.log_record import OpenFrame
from headgate.durability.room import ROOM_BYTES, RoomyFile
from headgate.durability.scan import FoundFrame
from headgate.errors import InvariantError
from headgate.io import Clock, Disk, OpenMode

SEGMENT_BYTES = 64 << 20


class LogWriter:
    """Appends frames at a position; the caller sees to it that one thread at a time does."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        clock: Clock,
        position: Position,
        segment_bytes: int = SEGMENT_BYTES,
        lineage: Lineage = UNKNOWN,
    ) -> None:
        self._lineage = lineage
        self._aside = disk.aside()
        self._room_bytes = min(ROOM_BYTES, segment_bytes // 8)
        self._disk = disk
        self._folder = folder
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._shapes = Shapes()
        self._file: RoomyFile | None = None
        self._is_done = False
        self.position = position
        if position.offset and position.segment == position.epoch + 1:
            # Without a frame, its name is the one that the next segment would have.
            self._file = self._open(self.path(position.segment), "write")

    def _open(self, path: str, mode: OpenMode) -> RoomyFile:
        file = self._disk.open(path, mode)
        return RoomyFile(self._disk, file, self._aside, self._room_bytes)

    def path(self, segment: int) -> str:
        """The file of the segment that begins with the epoch."""
        return os.path.join(self._folder, layout.segment_name(segment))

    def is_full(self) -> bool:
        """Whether the next frame belongs into a new segment."""
        full = self._is_done or self.position.offset >= self._segment_bytes
        return self._file is None or full

    def finish_segment(self) -> None:
        """Let the next frame begin a segment, so that this one can be trimmed by itself."""
        self._is_done = self.position.epoch >= self.position.segment

    def begin_segment(self) -> None:
        """Begin the next segment; every frame so far must be synced."""
        self.give_room_back()
        self._close_file()
        self._is_done = False
        first_epoch = self.position.epoch + 1
        path = self.path(first_epoch)
        identity = (self._lineage.store, self._lineage.id)
        fields = (first_epoch, self.position.checksum or 0, self._clock.time_us(), *identity)
        record = layout.seal(layout.SEGMENT_HEADER, layout.SEGMENT_MAGIC, *fields)
        self._file = self._open(path, "new")
        self._file.write(0, record)
        self._file.sync()
        self._disk.sync_folder(self._folder)
        checksum = int.from_bytes(record[layout.COVERED_BYTES :], "little")
        self.position = Position(first_epoch - 1, first_epoch, len(record), checksum)

    def open_frame(self) -> OpenFrame:
        """The next frame, begun."""
        return OpenFrame(self.file(), self.position, self._shapes)

    def append(
        self, frame: OpenFrame, commit: Commit, durable: int, slots: Mapping[str, int]
    ) -> Position:
        """Write a commit's frame, not yet synced, and return the place behind it."""
        if frame.place != self.position:
            raise InvariantError(f"epoch {commit.epoch} was begun at another place of the log")
        header = frame.finish(commit, durable, slots)
        end = self.position.offset + layout.RECORD_BYTES + header.payload_length
        self.position = Position(commit.epoch, self.position.segment, end, header.checksum)
        return self.position

    def copy(self, frame: FoundFrame) -> Position:
        """Write a frame of another log as the next one of this, with its place in this chain."""
        if self.is_full():
            if self._file is not None:
                self._file.sync()
            self.begin_segment()
        place, header = self.position, frame.header
        fields = (header.epoch, header.time_us, header.epoch - 1, header.payload_length)
        covered = layout.frame_header(*fields, place.checksum or 0)
        checksum = layout.frame_checksum(frame.payload, covered, place.checksum or 0)
        record = layout.sealed_frame_header(covered, checksum)
        self.file().write(place.offset, record, memoryview(frame.payload))
        end = place.offset + layout.RECORD_BYTES + header.payload_length
        self.position = Position(header.epoch, place.segment, end, checksum)
        return self.position

    def make_room(self) -> None:
        """Have room made for the next frames, in a moment in which nothing is to be synced."""
        if self._file is not None:
            self._file.make_room(self._segment_bytes)

    def give_room_back(self) -> None:
        """Leave nothing behind the last frame; only for who is sure to have the store."""
        if self._file is not None:
            self._file.give_back()

    def file(self) -> RoomyFile:
        """The open file of the last segment."""
        if self._file is None:
            raise InvariantError(f"no segment is open in {self._folder}")
        return self._file

    def close(self) -> None:
        self._close_file()
        self._aside.close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
