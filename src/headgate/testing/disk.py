"""A simulated disk and clock: files in memory that know what a loss of power would leave.

Invariant: only what was synced is sure to survive `after_crash`; whether the rest survives, and how
much of it, is up to the chosen survival. So a program that forgets a sync is found out.

>>> disk = SimulatedDisk()
>>> file = disk.open("/note", "create")
>>> file.write(0, b"hello")
>>> disk.after_crash(Survival.KEEP).content("/note")
b'hello'
>>> disk.after_crash(Survival.DROP).exists("/note")
False
"""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator

from headgate.errors import LockedError
from headgate.io import OpenMode, read_fully, write_fully
from headgate.testing.survival import (
    FileContent,
    FolderContent,
    PendingWrite,
    Survival,
    paths_below,
    put,
    resize,
    survivor,
    with_all,
)


class SimulatedCrash(BaseException):
    """The simulated machine lost its power here; no `except Exception` may carry on."""


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimulatedDisk, path: str, content: FileContent) -> None:
        self.path = path
        self._disk = disk
        self._content = content

    def size(self) -> int:
        return len(self._content.seen)

    def read_into(self, offset: int, target: memoryview) -> int:
        self._disk.count_read(self.path)
        return read_fully(self._preadv, offset, target)

    def _preadv(self, target: memoryview, offset: int) -> int:
        piece = self._content.seen[offset : offset + len(target)]
        target[: len(piece)] = piece
        return len(piece)

    def will_sync(self, offset: int, size: int) -> None:
        """Of no use here: nothing is written before its sync but by accident."""

    def will_read(self, offset: int, size: int) -> None:
        """Memory needs no time to prepare."""

    def write(self, offset: int, *pieces: memoryview | bytes) -> None:
        write_fully(self._pwritev, offset, pieces)

    def _pwritev(self, pieces: list[memoryview], offset: int) -> int:
        data = b"".join(pieces)
        return self._disk.write(self.path, self._content, offset, data)

    def truncate(self, size: int) -> None:
        with self._disk.call("truncate", self.path) as number:
            resize(self._content.seen, size)
            self._content.pending.append(PendingWrite(size, None, number))

    def sync(self) -> None:
        self._disk.sync(self.path, self._content)

    def close(self) -> None:
        """Nothing is lost by closing and nothing made durable."""


class SimulatedLock:
    """A lock of a simulated disk."""

    def __init__(self, is_held: Callable[[], bool], release: Callable[[], None]) -> None:
        self.is_held = is_held
        self.release = release


class SimulatedAside:
    """Does at once what it is given, so that the same life makes the same calls."""

    def begin(self, work: Callable[[], None]) -> None:
        work()

    def close(self) -> None:
        """Nothing is under way."""


class _NumberedCall:
    """One numbered call: counts it, and crashes after it when its turn has come."""

    def __init__(self, disk: SimulatedDisk, number: int) -> None:
        self._disk = disk
        self._number = number

    def __enter__(self) -> int:
        return self._number

    def __exit__(self, *reason: object) -> None:
        if self._number == self._disk.crash_at:
            self._disk.crashed = True
            raise SimulatedCrash(f"the power went at call {self._number}")


class SimulatedDisk:
    """A disk in memory that can crash, fail, fill up and damage bytes on cue.

    Every call that changes something has a number, from 1. `crash_at` loses the power during that
    call. `fail_at` makes that call fail with the error number `fail_with`, or, for 0, makes a
    write short. A failed sync loses the unsynced bytes though programs still see them, as
    Linux does. `capacity_bytes` is the size at which the disk is full.
    """

    def __init__(
        self,
        crash_at: int | None = None,
        fail_at: int | None = None,
        fail_with: int = errno.EIO,
        capacity_bytes: int | None = None,
    ) -> None:
        self.crash_at = crash_at
        self.fail_at = fail_at
        self.fail_with = fail_with
        self.fail_read_at: int | None = None
        self.capacity_bytes = capacity_bytes
        self.calls: int = 0
        self.reads: int = 0
        self.name: str = ""  # another name makes other tokens
        self.tokens: int = 0
        self.crashed: bool = False
        self.trace: list[tuple[str, str]] = []
        self._root = FolderContent()
        # Folders are never removed, so a path that led to one always does.
        self._folders: dict[str, FolderContent] = {}
        self._locks: list[
            FileContent | FolderContent
        ] = []  # what is locked, whatever its name is now
        self._guard = threading.RLock()

    # The protocol of headgate.io.Disk

    def open(self, path: str, mode: OpenMode) -> SimulatedFile:
        """Open a file; creating it makes a name that is durable when the folder is synced."""
        self._check_power()
        folder, name = self._folder_of(path)
        node = folder.seen.get(name)
        if isinstance(node, FolderContent):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if mode == "new" and node is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if mode in ("create", "new"):
            return SimulatedFile(self, path, self._create(path, folder, name, node))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return SimulatedFile(self, path, node)

    def _create(
        self, path: str, folder: FolderContent, name: str, node: FileContent | None
    ) -> FileContent:
        with self.call("create", path) as number:
            if node is None:
                node = FileContent()
                folder.change({name: node})
            else:
                node.seen.clear()
                node.pending.append(PendingWrite(0, None, number))
        return node

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        self._check_power()
        try:
            return self._node(path) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    def list(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        self._check_power()
        return sorted(self._folder(folder).seen)

    def make_folder(self, path: str) -> None:
        """Make a folder; one that is there stays."""
        folder, name = self._folder_of(path)
        if name in folder.seen:
            return
        with self.call("make folder", path):
            folder.change({name: FolderContent()})

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in its folder, in the place of what had it."""
        folder, old_name = self._folder_of(old)
        target, new_name = self._folder_of(new)
        if target is not folder:
            raise OSError(errno.EXDEV, "a simulated disk renames within one folder only", new)
        node = folder.seen.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        with self.call("rename", new):
            folder.change({old_name: None, new_name: node})

    def remove(self, path: str) -> None:
        """Remove a file."""
        folder, name = self._folder_of(path)
        if name not in folder.seen:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with self.call("remove", path):
            folder.change({name: None})

    def remove_folder(self, path: str) -> None:
        """Remove a folder that has no names."""
        if self._folder(path).seen:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        folder, name = self._folder_of(path)
        with self.call("remove folder", path):
            folder.change({name: None})
            self._folders.pop(path, None)  # one of this name that is made later is another one

    def sync_folder(self, path: str) -> None:
        """From now on the names in this folder survive a loss of power."""
        folder = self._folder(path)
        with self._guard:
            number = self._turn("sync folder", path)
            self._crash_if(number)
            folder.durable = dict(folder.seen)
            folder.pending.clear()

    def aside(self) -> SimulatedAside:
        """Nobody works beside anyone here."""
        return SimulatedAside()

    def token(self) -> int:
        """The same for the same story of the same disk, so that a crash can be played again."""
        self.tokens += 1
        digest = hashlib.blake2b(f"{self.name} {self.tokens}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") | 1

    def lock(self, path: str) -> SimulatedLock:
        """Hold a lock file, or raise LockedError when somebody does."""
        self._check_power()
        if not self.exists(path):
            self.open(path, "create")
        node = self._file_at(path)
        if any(node is locked for locked in self._locks):
            raise LockedError(f"another engine writes to this store (lock {path}): close it first")
        self._locks.append(node)
        return SimulatedLock(lambda: self._is_locked(path, node), lambda: self._unlock(node))

    def _is_locked(self, path: str, node: FileContent) -> bool:
        self._check_power()
        return self.exists(path) and self._node(path) is node

    def _unlock(self, node: FileContent) -> None:
        self._locks = [locked for locked in self._locks if locked is not node]

    # What files call

    def call(self, what: str, path: str) -> _NumberedCall:
        """Count a call that changes something; fails or crashes when its turn has come."""
        with self._guard:
            return _NumberedCall(self, self._turn(what, path))

    def write(self, path: str, content: FileContent, offset: int, data: bytes) -> int:
        """Write some of the data, as much as there is room for, and say how much."""
        with self._guard:
            self._check_power()
            short = self.calls + 1 == self.fail_at and self.fail_with == 0 and len(data) > 1
            number = self._turn("write", path)
            data = data[: self._room(content, offset, len(data))]
            if short:
                data = data[: len(data) // 2]
            put(content.seen, offset, data)
            content.pending.append(PendingWrite(offset, data, number))
            self._crash_if(number)
            return len(data)

    def sync(self, path: str, content: FileContent) -> None:
        """Make a file's bytes and size durable, or lose them when this call is to fail."""
        with self._guard:
            lost = self.calls + 1 == self.fail_at
            try:
                number = self._turn("sync", path)
            except OSError:
                if lost:
                    content.pending.clear()
                raise
            self._crash_if(number)
            content.durable[:] = with_all(content.durable, content.pending)
            content.pending.clear()

    def count_read(self, path: str) -> None:
        """Count a read; it fails when its turn has come."""
        self._check_power()
        with self._guard:
            self.reads += 1
            if self.reads == self.fail_read_at:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _turn(self, what: str, path: str) -> int:
        self._check_power()
        self.calls += 1
        self.trace.append((what, path))
        if self.calls == self.fail_at and self.fail_with:
            raise OSError(self.fail_with, os.strerror(self.fail_with), path)
        return self.calls

    def _check_power(self) -> None:
        if self.crashed:
            raise SimulatedCrash("the power is gone")

    def _crash_if(self, number: int) -> None:
        if number == self.crash_at:
            self.crashed = True
            raise SimulatedCrash(f"the power went at call {number}")

    def _room(self, content: FileContent, offset: int, length: int) -> int:
        """How much of a write fits; no room at all is an error."""
        if self.capacity_bytes is None:
            return length
        used = sum(len(other.seen) for other in self._contents(self._root))
        overwritten = max(0, min(len(content.seen) - offset, length))
        fits = min(length, overwritten + max(0, self.capacity_bytes - used))
        if fits == 0 and length:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return fits

    # What tests do to the disk

    def after_crash(self, survival: Survival, seed: int = 0) -> SimulatedDisk:
        """The disk that the machine finds when the power is back."""
        chance = random.Random(seed)
        disk = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        disk.name, disk.tokens = self.name, self.tokens
        with self._guard:
            last = max((w.number for c in self._contents(self._root) for w in c.pending), default=0)
            disk._root = survivor(self._root, survival, chance, last)
        return disk

    def after_kill(self) -> SimulatedDisk:
        """The disk as another process finds it when this one was killed but the machine lives."""
        disk = SimulatedDisk(capacity_bytes=self.capacity_bytes)
        disk.name, disk.tokens = self.name, self.tokens
        with self._guard:
            disk._root = copy.deepcopy(self._root)
        return disk

    def fingerprint(self) -> bytes:
        """A digest of every name and byte: two disks with the same one are the same to programs."""
        digest = hashlib.blake2b(digest_size=16)
        for path in self.paths():
            content = self._file_at(path).seen
            digest.update(f"{path}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.digest()

    def paths(self) -> tuple[str, ...]:
        """The paths of all files."""
        with self._guard:
            return tuple(sorted(paths_below("", self._root)))

    def content(self, path: str) -> bytes:
        """The bytes of a file as programs see them."""
        with self._guard:
            return bytes(self._file_at(path).seen)

    def replace(self, path: str, content: bytes) -> None:
        """Damage: put other bytes in place of a file's, durably."""
        node = self._file_at(path)
        node.seen[:] = content
        node.durable[:] = content
        node.pending.clear()

    def _file_at(self, path: str) -> FileContent:
        node = self._node(path)
        if not isinstance(node, FileContent):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _node(self, path: str) -> FileContent | FolderContent | None:
        if path in ("/", ""):
            return self._root
        folder, name = self._folder_of(path)
        return folder.seen.get(name)

    def _folder_of(self, path: str) -> tuple[FolderContent, str]:
        above, _, name = path.rpartition("/")
        return self._folder(above or "/"), name

    def _folder(self, path: str) -> FolderContent:
        known = self._folders.get(path)
        if known is not None:
            return known
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(node, FolderContent):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        self._folders[path] = node
        return node

    def _contents(self, folder: FolderContent) -> Iterator[FileContent]:
        for node in folder.seen.values():
            if isinstance(node, FolderContent):
                yield from self._contents(node)
            else:
                yield node


class SimulatedClock:
    """A clock that moves by one step whenever it is asked, or when it is told to."""

    def __init__(self, start_us: int = 1_700_000_000_000_000, step_us: int = 1) -> None:
        self._now_us = start_us
        self._step_us = step_us

    def time_us(self) -> int:
        """Microseconds since 1970-01-01 UTC, one step after the last time."""
        self._now_us += self._step_us
        return self._now_us

    def monotonic(self) -> float:
        """Seconds that only ever grow."""
        return self.time_us() / 1e6

    def busy(self) -> float:
        """Seconds of work: here all time is."""
        return self.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_us += int(seconds * 1e6)
