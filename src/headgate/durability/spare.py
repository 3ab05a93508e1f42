"""The spare: the next segment's file, filled with zeros before it is needed.

Invariant: a spare is whole and synced when it is taken. Bytes that overwrite what is on the disk
already need no new place and no entry in the file system's journal, so that a sync takes half the
time; the filling itself is done beside the commits. Without a spare the log only gets slower.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from headgate.io import Disk

Background = Callable[[Callable[[], None]], None]

_CHUNK_BYTES = 1 << 20
# Short syncs, so that a commit's own sync never waits long behind one.
_SYNC_BYTES = 4 << 20
# Filling stops after the chunk it is at; a thread that cannot run any more is not waited for.
_STOP_SECONDS = 10


def in_thread(work: Callable[[], None]) -> None:
    """Do the work beside the caller; it ends with the process at the latest."""
    threading.Thread(target=work, name="headgate-spare", daemon=True).start()


class Spare:
    """One file of zeros: being filled, ready, or not there."""

    def __init__(self, disk: Disk, path: str, size_bytes: int, background: Background) -> None:
        self.path = path
        self._disk = disk
        self._size_bytes = size_bytes
        self._background = background
        self._started = False
        self._ready = False
        self._cancelled = False
        self._idle = threading.Event()
        self._idle.set()

    def prepare(self) -> None:
        """Begin to fill a spare unless there is one, or making one has failed before."""
        if not self._started:
            self._started = True
            self._idle.clear()
            try:
                self._background(self._fill)
            except RuntimeError:
                # No thread can be started while the interpreter shuts down.
                self._idle.set()

    def is_ready(self) -> bool:
        return self._ready

    def take(self) -> bool:
        """Whether there is a spare; the caller gives its file another name."""
        taken, self._ready = self._ready, False
        self._started = self._started and not taken
        return taken

    def discard(self) -> None:
        """Stop filling and remove the file."""
        self._cancelled = True
        self._idle.wait(_STOP_SECONDS)
        if self._ready:
            self._ready = False
            self._disk.remove(self.path)

    def _fill(self) -> None:
        try:
            self._write_zeros()
        except OSError:
            # A full disk has no room for a spare; give back what it took. The log goes on without.
            with contextlib.suppress(OSError):
                self._disk.remove(self.path)
        else:
            self._ready = True
        finally:
            self._idle.set()

    def _write_zeros(self) -> None:
        file = self._disk.open(self.path, "create")
        try:
            zeros = bytes(min(_CHUNK_BYTES, self._size_bytes))
            for offset in range(0, self._size_bytes, len(zeros)):
                if self._cancelled:
                    break
                file.write(offset, zeros[: self._size_bytes - offset])
                if (offset + len(zeros)) % _SYNC_BYTES == 0:
                    file.sync()
            file.sync()
        finally:
            file.close()
