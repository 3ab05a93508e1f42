"""Reading the log: frames in order, each proved by its checksum and its place in the chain.

Invariant: what is handed out was verified byte by byte; what cannot be verified is an error that
names file and offset. What stands at the very end of the log is judged in tail.py.
"""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.decoding import decoding
from headgate.durability.format import FrameHeader, Position
from headgate.errors import DamageError
from headgate.io import Disk, File

_WINDOW_BYTES = 1 << 20
_HOP_WINDOW_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """One verified frame and where it was found."""

    header: FrameHeader
    payload: pa.Buffer
    file: str
    offset: int
    end: Position

    def decoding(self) -> AbstractContextManager[None]:
        """While its content is being read: what cannot be is damage at its place."""
        return decoding(self.file, self.offset)


class BadBytes(Exception):
    """Bytes that are not what should be at this place; the caller judges what that means."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.file, self.offset, self.reason = file, offset, reason

    def damage(self) -> DamageError:
        return layout.damage(self.file, self.offset, self.reason)


class ScanWindow:
    """A file seen through one buffer that moves forward, so that short frames share a read."""

    def __init__(self, file: File, window_bytes: int) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._start = 0
        self._buffer = pa.py_buffer(b"")

    def read(self, offset: int, size: int) -> pa.Buffer:
        """So many bytes from the offset on; fewer where the file ends."""
        place = offset - self._start
        if place < 0 or place + size > self._buffer.size:
            self._buffer = read_buffer(self._file, offset, max(size, self._window_bytes))
            self._start, place = offset, 0
        return self._buffer.slice(place, min(size, self._buffer.size - place))


def read_buffer(file: File, offset: int, size: int) -> pa.Buffer:
    """Bytes of a file in memory aligned for Arrow; fewer where the file ends."""
    size = max(0, min(size, file.size() - offset))
    if size == 0:
        return pa.py_buffer(b"")
    memory = pa.allocate_buffer(size)
    count = file.read_into(offset, memoryview(memory).cast("B"))
    return memory.slice(0, count)


class Cursor:
    """A place in the log that moves from frame to frame and from segment to segment."""

    def __init__(
        self, disk: Disk, folder: str, position: Position, window_bytes: int = _WINDOW_BYTES
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._window_bytes = window_bytes
        self._file: File | None = None
        self._next: int | None = None  # the segment after this one, when there is one
        self._size = 0  # of the file, when it was looked at last
        self.position = position

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def path(self, segment: int | None = None) -> str:
        """The file of a segment, of the one the cursor is in by default."""
        number = self.position.segment if segment is None else segment
        return os.path.join(self._folder, layout.segment_name(number))

    def next(self) -> FoundFrame | None:
        """The frame here, verified, and step behind it; None at the end of the log."""
        header = self._header() if self.enter() else None
        if header is None:
            return None
        offset = self.position.offset
        record = self._window.read(offset, layout.RECORD_BYTES + header.payload_length)
        payload = record.slice(layout.RECORD_BYTES)
        if payload.size < header.payload_length:
            raise self.bad("the file ends inside a frame")
        covered = record.slice(0, layout.COVERED_BYTES)
        if layout.frame_checksum(payload, covered, header.previous) != header.checksum:
            raise self.bad("the frame does not match its checksum")
        self._step(header)
        return FoundFrame(header, payload, self._opened().path, offset, self.position)

    def skip(self) -> bool:
        """Step behind the frame here by its header alone; False at the end of the log."""
        header = self._header() if self.enter() else None
        if header is None:
            return False
        end = self.position.offset + layout.RECORD_BYTES + header.payload_length
        if end > self._opened().size():
            raise self.bad("the file ends inside a frame")
        self._step(header)
        return True

    def follows(self) -> bool:
        """Whether a frame that follows the one before this place begins here."""
        try:
            return self.enter() and self._header() is not None
        except BadBytes:
            return False

    def enter(self) -> bool:
        """Be at the beginning of a frame, or of room for one; False when the file ends here."""
        if self._file is None and not self._open():
            return False
        if self.position.offset == 0:
            self._segment_header()
        following = self.position.epoch + 1
        if following != self._next:  # a segment ends where the next one begins, whatever follows
            if self.position.offset < self._size:
                return True
            self._size = self._opened().size()  # it may have grown
            if self.position.offset != self._size:
                return self._before_end(self._size)
            if following == self.position.segment or not self._disk.exists(self.path(following)):
                return False
        self.close()
        self.position = replace(self.position, segment=following, offset=0)
        return self.enter()

    def _before_end(self, size: int) -> bool:
        if self.position.offset > size:
            raise self.bad(f"the file ends at {size}, before this place")
        return True

    def _open(self) -> bool:
        try:
            self._file = self._disk.open(self.path(), "read")
        except FileNotFoundError:
            return False
        self._window, self._size = ScanWindow(self._file, self._window_bytes), 0
        segments = layout.numbers_of(self._disk.list(self._folder), layout.SEGMENT_SUFFIX)
        place = bisect_right(segments, self.position.segment)
        self._next = segments[place] if place < len(segments) else None
        return True

    def _opened(self) -> File:
        if self._file is None:
            raise self.bad("the segment is missing")
        return self._file

    def _segment_header(self) -> None:
        record = self._window.read(0, layout.RECORD_BYTES).to_pybytes()
        where = f"{self.path()} at offset 0"
        try:
            fields = layout.unseal(layout.SEGMENT_HEADER, layout.SEGMENT_MAGIC, record, where)
        except DamageError as error:
            raise self.bad("the segment's header does not match its checksum") from error
        first_epoch, previous, _, _, _, checksum = fields
        if first_epoch != self.position.segment:
            raise self.bad(f"the segment's header says that it begins with epoch {first_epoch}")
        if self.position.checksum not in (None, previous):
            raise self.bad("the segment does not follow the frame before it")
        self.position = replace(self.position, offset=layout.RECORD_BYTES, checksum=checksum)

    def _header(self) -> FrameHeader | None:
        """The header of the frame here, in its place in the chain; None where room begins."""
        record = self._window.read(self.position.offset, layout.RECORD_BYTES)
        header = layout.parse_frame_header(record)
        if header is None:
            if any(memoryview(record)):
                raise self.bad("no frame begins here")
            return self._header_beyond()
        if header.epoch != self.position.epoch + 1:
            raise self.bad(f"epoch {header.epoch} in place of {self.position.epoch + 1}")
        if self.position.checksum not in (None, header.previous):
            raise self.bad("the frame does not follow the one before it")
        return header

    def _header_beyond(self) -> FrameHeader | None:
        """Behind the frames of a segment that had room when it was opened: that of the next one."""
        following = self.position.epoch + 1
        if following == self.position.segment or not self._disk.exists(self.path(following)):
            return None
        self.close()
        self.position = replace(self.position, segment=following, offset=0)
        return self._header() if self.enter() else None

    def _step(self, header: FrameHeader) -> None:
        end = self.position.offset + layout.RECORD_BYTES + header.payload_length
        self.position = Position(header.epoch, self.position.segment, end, header.checksum)

    def bad(self, reason: str) -> BadBytes:
        return BadBytes(self.path(), self.position.offset, reason)


class LogReader:
    """The segments of one log folder, for reading from any process and by any thread."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self.folder = self._folder = folder
        self._hopping = threading.Lock()
        self._places: dict[int, tuple[array[int], array[int]]] = {}

    def segments(self) -> list[int]:
        """The first epochs of the segments, ascending."""
        try:
            names = self._disk.list(self._folder)
        except FileNotFoundError as error:
            raise layout.damage(self._folder, 0, "the folder of the log is missing") from error
        return layout.numbers_of(names, layout.SEGMENT_SUFFIX)

    def frames(
        self, start: Position, last_epoch: int, published: Position | None = None
    ) -> Iterator[FoundFrame]:
        """The frames after the start up to an epoch that is known to be durable.

        The frame that was published last must be the one that was published.
        """
        cursor = Cursor(self._disk, self._folder, start)
        try:
            while cursor.position.epoch < last_epoch:
                frame = cursor.next()
                if frame is None:
                    raise _ends_early(cursor, last_epoch)
                if published is not None and published.epoch == frame.header.epoch:
                    _check_published(frame, published)
                yield frame
        except BadBytes as bad:
            raise bad.damage() from bad
        finally:
            cursor.close()

    def locate(self, epoch: int) -> Position:
        """The place before the frame of a durable epoch, found by hopping over headers."""
        segments = self.segments()
        number = bisect_right(segments, epoch) - 1
        if number < 0:
            path = os.path.join(self._folder, layout.segment_name(epoch))
            raise layout.damage(path, 0, f"no segment holds epoch {epoch}")
        segment = segments[number]
        place = epoch - segment
        with self._hopping:
            offsets, checksums = self._places.setdefault(segment, (array("Q"), array("Q")))
            if place >= len(offsets):
                self._hop(segment, epoch, offsets, checksums)
            return Position(epoch - 1, segment, offsets[place], checksums[place])

    def require(self, place: Position, published: Position | None, file: str) -> None:
        """DamageError unless the log went through this place, at which the file's snapshot is.

        Of a store and a copy that a plain `cp` made, both of one lineage, only this tells which one
        a snapshot is of. Where the log is damaged or trimmed around the place, nothing is said.
        """
        at = None if published is None else (published.epoch, published.segment)
        if published is not None and at == (place.epoch, place.segment):
            found = published.checksum
        elif self._goes_on(place):
            return
        else:
            try:
                found = self._behind(place).checksum
            except DamageError:
                return
        if found != place.checksum:
            what = (
                f"the log has another frame of epoch {place.epoch} than the snapshot: files of two "
                "histories (a store and a copy of it) were mixed; take out those copied here"
            )
            raise layout.damage(file, 0, what)

    def _goes_on(self, place: Position) -> bool:
        cursor = Cursor(self._disk, self._folder, place, _HOP_WINDOW_BYTES)
        try:
            return cursor.follows()
        finally:
            cursor.close()

    def _behind(self, place: Position) -> Position:
        """Where the frame of that epoch ends, or the segment after it begins."""
        cursor = Cursor(self._disk, self._folder, self.locate(place.epoch), _HOP_WINDOW_BYTES)
        try:
            if not cursor.skip():
                raise _ends_early(cursor, place.epoch)
            if is_empty(place):
                cursor.enter()
            return cursor.position
        except BadBytes as bad:
            raise bad.damage() from bad
        finally:
            cursor.close()

    def _hop(self, segment: int, epoch: int, offsets: array[int], checksums: array[int]) -> None:
        """Extend a segment's known places up to the epoch."""
        known = len(offsets)
        start = Position(segment - 1, segment, 0, None)
        if known:
            start = Position(segment + known - 2, segment, offsets[-1], checksums[-1])
        cursor = Cursor(self._disk, self._folder, start, _HOP_WINDOW_BYTES)
        try:
            while segment + len(offsets) <= epoch:
                if known and not cursor.skip():
                    raise _ends_early(cursor, epoch)
                if not known and not cursor.enter():
                    raise _ends_early(cursor, epoch)
                known = 1
                offsets.append(cursor.position.offset)
                checksums.append(cursor.position.checksum or 0)
        except BadBytes as bad:
            raise bad.damage() from bad
        finally:
            cursor.close()


def is_empty(position: Position) -> bool:
    """Whether the place is behind a segment's header, and before its first frame."""
    return position.offset > 0 and position.segment == position.epoch + 1


def _check_published(frame: FoundFrame, published: Position) -> None:
    """At the beginning of a segment the place has the checksum of that, not of the frame."""
    if frame.end.segment == published.segment and frame.end != published:
        what = f"epoch {frame.header.epoch} is not the frame that was published"
        raise layout.damage(frame.file, frame.offset, what)


def _ends_early(cursor: Cursor, epoch: int) -> BadBytes:
    reason = f"the log ends at epoch {cursor.position.epoch}, but epoch {epoch} was published"
    return BadBytes(cursor.path(), cursor.position.offset, reason)
