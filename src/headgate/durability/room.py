"""Room: zeros that stand behind the frames of a segment before the next frame comes.

A file that grows makes every sync write more than its bytes: where they are, and how many. Over
bytes that are there already a sync has nothing to write but them. So the zeros are written and
synced ahead, while the disk has nothing else to do: behind a sync that leaves nothing to sync, by
somebody whom no commit waits for. There is never more room than a segment has frames, nor more than
two commits like the last ones take, so that a small store stays small. Where commits are long, room
is made for each of them; if it is not there when the next one is synced, the disk has better things
to do, and for a while nobody asks for it.

Invariant: zeros never come over a byte of a frame: both go beyond what the file has only under one
guard. Room that cannot be made costs time and nothing else; but a sync of it that failed may have
lost bytes of frames too, so that the next sync of the file fails with it.
"""

from __future__ import annotations

import errno
import threading

from headgate.io import Aside, Disk, File

ROOM_BYTES = 1 << 16  # the least worth making, and of frames the least that are worth it
ROOM_BYTES_MAX = 4 << 20
_SKIPS_MAX = 64  # so many commits nobody asks, where room has come too late again and again
_PIECE_BYTES = 1 << 18  # who writes a frame beyond the room waits for one of them at most
_BLOCK_BYTES = 1 << 12
_NEVER = 1 << 62  # the least of a file for which no more room is asked
_ZEROS = bytes(_PIECE_BYTES)


class RoomyFile:
    """The file of a segment, with room behind its frames; as a file it is that file."""

    def __init__(self, disk: Disk, file: File, aside: Aside, least: int = ROOM_BYTES) -> None:
        self.path: str = file.path
        self._disk, self._file, self._aside = disk, file, aside
        self._least = least
        self._zeros: File | None = None  # the same, opened again
        self._used = self._used_before = self._ready = file.size()
        # A thread that has one may come back to it: the collector may close a store in any thread.
        self._guard = threading.RLock()
        self._making = threading.RLock()
        self._is_asked = False  # room is being made, or about to be
        self._is_late = False  # and a sync has begun meanwhile
        self._skips = self._skips_before = 0
        self._is_closed = False
        self._failure: OSError | None = None

    # --- as a file ----------------------------------------------------------------------------

    def size(self) -> int:
        return self._file.size()

    def read_into(self, offset: int, target: memoryview) -> int:
        return self._file.read_into(offset, target)

    def will_read(self, offset: int, size: int) -> None:
        self._file.will_read(offset, size)

    def will_sync(self, offset: int, size: int) -> None:
        self._file.will_sync(offset, size)

    def write(self, offset: int, *pieces: memoryview | bytes) -> None:
        end = offset
        for piece in pieces:
            end += len(piece) if isinstance(piece, bytes) else piece.nbytes
        if end > self._ready:
            with self._guard:  # zeros that are being written there are before these bytes
                self._ready = max(self._ready, end)
        self._used = max(self._used, end)
        self._file.write(offset, *pieces)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._is_late |= self._is_asked
        self._file.sync()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close it as it is, room and all."""
        with self._guard:
            self._is_closed = True
        with self._making:
            for file in (self._zeros, self._file):
                if file is not None:
                    file.close()

    # --- the room -----------------------------------------------------------------------------

    def make_room(self, limit: int) -> None:
        """Have room made for what comes next, if it is getting scarce; the disk is idle now."""
        used, last = self._used, self._used - self._used_before
        want = min(max(self._least, 2 * last), ROOM_BYTES_MAX, used)
        self._used_before = used
        end = min(-(-(used + want) // _BLOCK_BYTES) * _BLOCK_BYTES, limit)
        is_scarce = used >= self._least and 2 * (self._ready - used) <= want
        if not is_scarce or end <= self._ready or self._is_asked:
            return
        if self._skips and 2 * last > self._least:
            self._skips -= 1
            return
        self._is_asked = True
        try:
            self._aside.begin(lambda: self._make(end))
        except RuntimeError:  # no thread is to be had, as at the end of the process
            self._least = _NEVER

    def give_back(self) -> None:
        """Take away the room that is left: no more frames come."""
        with self._guard:
            self._is_closed = True
        with self._making:
            if self._ready > self._used:
                self._file.truncate(self._used)
                self._ready = self._used

    def _make(self, end: int) -> None:
        try:
            with self._making:
                if self._zeros is None and not self._is_closed:
                    # Opened again: of each opening the system tells a failure once, so that this
                    # sync takes none away from the one that a commit waits for.
                    self._zeros = self._disk.open(self.path, "write")
                while self._zeros is not None and self._write_zeros(self._zeros, end):
                    pass
                if self._zeros is not None and not self._is_closed:
                    self._zeros.sync()
        except OSError as error:
            self._failure = self._failure or error
        finally:
            more = min(2 * self._skips_before + 1, _SKIPS_MAX)
            self._skips = self._skips_before = more if self._is_late else 0
            self._is_asked = self._is_late = False

    def _write_zeros(self, file: File, end: int) -> bool:
        """Write some more of them; False when there are enough."""
        with self._guard:
            begin = self._ready
            stop = min(end, begin + _PIECE_BYTES)
            if stop <= begin or self._is_closed:
                return False
            try:
                file.write(begin, memoryview(_ZEROS)[: stop - begin])
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._least = _NEVER
                file.truncate(begin)  # what little there is is for frames
                return False
            self._ready = stop
            return True
