"""The tail of the log: where it ends, and what stands behind it.

Invariant: only bytes that no one was ever told of are called torn, and only zeros up to the end of
the file are called room; whatever else is not as it should be is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.format import FrameHeader, Position
from headgate.durability.scan import BadBytes, Cursor, FoundFrame, is_empty, read_buffer
from headgate.io import Disk, File

_SEARCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Torn:
    """The place after which the log's last segment holds nothing valid, and why."""

    file: str
    offset: int
    reason: str


class Tail:
    """The frames beyond the last position known to be durable, up to where the log ends.

    After the frames are read, `position` is the log's end and `torn` says what lies behind it. A
    torn segment header leaves the end in the segment before. `room` is where zeros stand behind the
    last frame, which say nothing.
    """

    def __init__(self, disk: Disk, folder: str, start: Position) -> None:
        self._disk = disk
        self._folder = folder
        self.position = start
        self.torn: Torn | None = None
        self.room: Torn | None = None

    def frames(self) -> Iterator[FoundFrame]:
        """Read to the end; DamageError where a frame that was once durable is damaged."""
        cursor = Cursor(self._disk, self._folder, self.position)
        try:
            while (frame := cursor.next()) is not None or self._goes_on(cursor):
                if frame is not None:
                    self.position = cursor.position
                    yield frame
            if is_empty(cursor.position) and cursor.position != self.position:
                self.torn = Torn(cursor.path(), 0, "no frame was written to the segment")
            else:
                self.position = cursor.position
                self._look_behind(cursor)
        except BadBytes as bad:
            self._judge(bad, cursor.position)
        finally:
            cursor.close()

    def _goes_on(self, cursor: Cursor) -> bool:
        """Whether a writer has begun the next segment since the cursor was at the end of the log.

        Any other segment that the chain does not reach means that one is missing or cut.
        """
        names = self._disk.list(self._folder)
        beyond = [
            segment
            for segment in layout.numbers_of(names, layout.SEGMENT_SUFFIX)
            if segment > cursor.position.segment
        ]
        if cursor.position.epoch + 1 in beyond:
            return True
        missing = cursor.position.offset > 0 and not self._disk.exists(cursor.path())
        if beyond or missing:
            what = f"the log ends at epoch {cursor.position.epoch}, but segments are missing or cut"
            raise layout.damage(cursor.path(), cursor.position.offset, what)
        return False

    def _look_behind(self, cursor: Cursor) -> None:
        """Zeros up to the end of the file are room; with other bytes behind they are torn."""
        place = cursor.position
        if place.offset == 0 or not self._disk.exists(cursor.path()):
            return
        size = _size(self._disk, cursor.path())
        if place.offset < size:
            if not _is_room(self._disk, cursor.path(), place.offset):
                raise cursor.bad("no frame begins here")
            self.room = Torn(cursor.path(), place.offset, "room for frames")

    def _judge(self, bad: BadBytes, position: Position) -> None:
        """Tell a torn tail from damage.

        A segment is only begun when the one before it is synced, and a frame says which epochs
        were synced when it was written. Bytes that neither proves durable were never
        acknowledged: a crash may leave them in any state, even with whole frames behind them.
        """
        names = self._disk.list(self._folder)
        segments = layout.numbers_of(names, layout.SEGMENT_SUFFIX)
        if segments[-1] > position.segment or _size(self._disk, bad.file) < bad.offset:
            raise bad.damage() from bad
        witness = find_witness(self._disk, bad.file, bad.offset, position.epoch + 1)
        if witness is not None:
            reason = f"{bad.reason}, though the frame at {witness} calls this epoch durable"
            raise layout.damage(bad.file, bad.offset, reason) from bad
        if bad.offset:
            self.position = position
        self.torn = Torn(bad.file, bad.offset, bad.reason)


def _size(disk: Disk, path: str) -> int:
    file = disk.open(path, "read")
    try:
        return file.size()
    finally:
        file.close()


def _is_room(disk: Disk, path: str, offset: int) -> bool:
    """Whether all bytes of a file from the offset on are zeros."""
    file = disk.open(path, "read")
    try:
        while chunk := read_buffer(file, offset, _SEARCH_BYTES).to_pybytes():
            if chunk.count(0) != len(chunk):
                return False
            offset += len(chunk)
        return True
    finally:
        file.close()


def find_witness(disk: Disk, path: str, offset: int, epoch: int) -> int | None:
    """The offset of a whole frame behind the offset that calls the epoch durable, if any."""
    for place, header in whole_frames(disk, path, offset):
        if epoch <= header.durable < header.epoch:
            return place
    return None


def whole_frames(disk: Disk, path: str, offset: int) -> Iterator[tuple[int, FrameHeader]]:
    """The frames behind an offset of a file that match their checksum, whatever lies between."""
    file = disk.open(path, "read")
    try:
        start = layout.padded(offset)
        while start < file.size():
            chunk = read_buffer(file, start, _SEARCH_BYTES)
            for place in _magic_places(chunk):
                header = _whole_header(file, start + place)
                if header is not None:
                    yield start + place, header
            start += _SEARCH_BYTES
    finally:
        file.close()


def _magic_places(chunk: pa.Buffer) -> list[int]:
    """Where in an aligned chunk a frame may begin."""
    whole = chunk.size // layout.ALIGNMENT_BYTES * layout.ALIGNMENT_BYTES
    words = np.frombuffer(chunk, np.uint32, whole // 4)[:: layout.ALIGNMENT_BYTES // 4]
    magic = np.frombuffer(layout.FRAME_MAGIC, np.uint32)[0]
    places: list[int] = (np.flatnonzero(words == magic) * layout.ALIGNMENT_BYTES).tolist()
    return places


def _whole_header(file: File, offset: int) -> FrameHeader | None:
    """The header of the frame at an offset, if all of that frame is right."""
    record = read_buffer(file, offset, layout.RECORD_BYTES)
    header = layout.parse_frame_header(record)
    if header is None:
        return None
    payload = read_buffer(file, offset + layout.RECORD_BYTES, header.payload_length)
    covered = record.slice(0, layout.COVERED_BYTES)
    whole = payload.size == header.payload_length
    is_right = layout.frame_checksum(payload, covered, header.previous) == header.checksum
    return header if whole and is_right else None
