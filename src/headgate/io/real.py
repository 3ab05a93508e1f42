"""The machine's own files and clock: every system call that touches a file is here.

Nothing else in the package asks what time it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from headgate.errors import LockedError
from headgate.io.files import OpenMode, read_fully, write_fully

_FLAGS = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "new": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


# To free a large file at once can hold up everyone's syncs for as long as that takes.
_SHRINK_BYTES = 8 << 20
_SHRINK_PAUSE_S = 0.001


def _shrink(descriptor: int, size: int) -> None:
    """Free a removed file bit by bit, unless it has another name."""
    while size > 0 and os.fstat(descriptor).st_nlink == 0:
        size = max(0, size - _SHRINK_BYTES)
        os.ftruncate(descriptor, size)
        time.sleep(_SHRINK_PAUSE_S)


def _sync_file_range() -> Any:
    """Linux's call that begins to write pages and waits for nothing; None elsewhere."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


# What it returns is of no interest: whatever fails here fails again when it is synced.
_begin_writing = _sync_file_range()
_SYNC_FILE_RANGE_WRITE = 2


def _sync_data(descriptor: int) -> None:
    """Bytes and size to the disk itself; only times may stay behind."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


class RealFile:
    """An open file of the operating system. Python itself repeats calls cut short by a signal."""

    def __init__(self, path: str, mode: OpenMode) -> None:
        self.path = path
        # What is no file, as a pipe, must not keep who opens it waiting.
        self._descriptor = os.open(path, _FLAGS[mode] | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        kind = os.fstat(self._descriptor).st_mode
        if not stat.S_ISREG(kind):
            os.close(self._descriptor)
            if stat.S_ISDIR(kind):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            raise OSError(errno.EINVAL, "it is no file", path)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_into(self, offset: int, target: memoryview) -> int:
        return read_fully(self._preadv, offset, target)

    def _preadv(self, target: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [target], offset)

    def will_read(self, offset: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def will_sync(self, offset: int, size: int) -> None:
        if _begin_writing is not None:
            _begin_writing(self._descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)

    def write(self, offset: int, *pieces: memoryview | bytes) -> None:
        write_fully(self._pwritev, offset, pieces)

    def _pwritev(self, pieces: list[memoryview], offset: int) -> int:
        return os.pwritev(self._descriptor, pieces, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        _sync_data(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealLock:
    """A lock of the operating system on an open file: it ends when the process does."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._process = os.getpid()
        found = os.fstat(descriptor)
        self._identity = (found.st_dev, found.st_ino)
        _locks.add(self)

    def is_held(self) -> bool:
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        return self._descriptor >= 0 and (found.st_dev, found.st_ino) == self._identity

    def release(self) -> None:
        if self._descriptor < 0:
            return
        if os.getpid() == self._process:
            # To close alone would not do: a child that was just forked has the file open, too.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
        self._descriptor = -1


# The locks of this process. A child that was forked has the same open files: it gives its own away
# at once, or the lock would last for as long as the longest-lived child.
_locks: weakref.WeakSet[RealLock] = weakref.WeakSet()


def _leave_locks_to_parent() -> None:
    for lock in list(_locks):
        lock.release()


os.register_at_fork(after_in_child=_leave_locks_to_parent)


class ThreadAside:
    """A thread that works beside the others, begun with the first piece of work.

    It ends with whoever has it: it holds nothing of theirs while there is no work.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work_through, args=(self._work,), name="headgate-aside", daemon=True
            )
            self._thread.start()
        self._work.put(work)

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            if self._thread is not threading.current_thread():  # the collector may come there
                self._thread.join()
            self._thread = None

    def __del__(self) -> None:
        self._work.put(None)


def _work_through(waiting: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := waiting.get()) is not None:
        with contextlib.suppress(Exception):
            work()
        del work


class RealDisk:
    """The disk of this machine."""

    def open(self, path: str, mode: OpenMode) -> RealFile:
        return RealFile(path, mode)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def make_folder(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        size = os.stat(path).st_size
        if size <= _SHRINK_BYTES:
            os.remove(path)
            return
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:  # a name may be removed by who may not write to the file
            os.remove(path)
            return
        try:
            os.remove(path)
            # Not before the name is gone for good: under its name a file stays whole.
            self.sync_folder(os.path.dirname(path) or ".")
            _shrink(descriptor, size)
        finally:
            os.close(descriptor)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def sync_folder(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def aside(self) -> ThreadAside:
        return ThreadAside()

    def token(self) -> int:
        return secrets.randbits(64) | 1

    def lock(self, path: str) -> RealLock:
        while True:
            lock = self._lock(path)
            if lock.is_held():
                return lock
            lock.release()  # the name was given to another file before the lock was taken

    def _lock(self, path: str) -> RealLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise LockedError(_locked(path, holder)) from error
        except BaseException:
            os.close(descriptor)
            raise
        # The name is a courtesy to whoever finds the lock taken: a full disk must not stop it.
        with contextlib.suppress(OSError):
            _name_holder(descriptor)
        return RealLock(path, descriptor)


def _name_holder(descriptor: int) -> None:
    """Leave this process's number for whoever finds the lock taken."""
    name = f"{os.getpid()}\n".encode().rjust(12)
    write_fully(lambda pieces, offset: os.pwritev(descriptor, pieces, offset), 0, [name])


def _locked(path: str, holder: str) -> str:
    if holder == str(os.getpid()):
        return f"this process (pid {holder}) already has {path} open: close that engine first"
    who = f"process {holder}" if holder else "another process"
    return f"{who} writes to this store (lock {path}): stop it, or wait until it has ended"


class RealClock:
    """The machine's own clock."""

    def time_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def busy(self) -> float:
        return time.thread_time()


give_way = functools.partial(time.sleep, 0)  # lets another thread that waits for it run
