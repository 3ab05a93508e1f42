"""What the package may do with files and clocks: protocols, so that a simulated disk can stand in.

Invariant: a call returns only when the whole of it was done, or raises OSError; a short write or
a short read below the end of the file never reaches the caller.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from headgate.errors import HeadgateError, InputError, describe, shown

OpenMode = Literal["read", "write", "create", "new"]

# One system call takes no more pieces than this (IOV_MAX on Linux).
PIECES_MAX = 1024


class File(Protocol):
    """One open file; safe to read and write from several threads at given offsets."""

    path: str

    def size(self) -> int:
        """The bytes in the file now."""
        ...

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the target from the offset on; fewer bytes only where the file ends."""
        ...

    def will_read(self, offset: int, size: int) -> None:
        """Say what is read soon, so that the disk may begin; changes nothing else."""
        ...

    def write(self, offset: int, *pieces: memoryview | bytes) -> None:
        """Write the pieces one after another from the offset on, all of them."""
        ...

    def will_sync(self, offset: int, size: int) -> None:
        """Say what is synced soon, so that the disk may begin; changes nothing else."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend the file to the size."""
        ...

    def sync(self) -> None:
        """Return when the file's bytes and size would survive a loss of power."""
        ...

    def close(self) -> None: ...


class Clock(Protocol):
    """A source of time that a test can hold still."""

    def time_us(self) -> int:
        """Microseconds since 1970-01-01 UTC; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds that only ever grow, for durations."""
        ...

    def busy(self) -> float:
        """Seconds that this thread has had a processor: what work costs on a busy machine, too."""
        ...


def reason_of(error: BaseException) -> str:
    """What failed, in words that say what to do where that is known."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error}): free some space"
    return str(error) if isinstance(error, HeadgateError) else describe(error)


class Aside(Protocol):
    """Somebody who does work that no one waits for, one piece after another."""

    def begin(self, work: Callable[[], None]) -> None:
        """Have it done; what it raises is lost."""
        ...

    def close(self) -> None:
        """Return when what was begun is done; no more may be."""
        ...


class Lock(Protocol):
    """An exclusive lock that also ends with the process that holds it."""

    def is_held(self) -> bool:
        """Whether its name still leads to what is locked: else another may hold one of that name.

        One system call, so that a writer can ask before each commit.
        """
        ...

    def release(self) -> None: ...


class Disk(Protocol):
    """Files, folders and locks by path; raises OSError like the functions of `os`."""

    def open(self, path: str, mode: OpenMode) -> File:
        """Open to read, to read and write, or newly created (or emptied) to read and write.

        As "create", but FileExistsError when the name is there: "new".
        """
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """The names in the folder, sorted."""
        ...

    def make_folder(self, path: str) -> None:
        """Create one folder; nothing happens when it is there."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in one step, replacing what has that name."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; OSError when it is not."""
        ...

    def sync_folder(self, path: str) -> None:
        """Return when the names created, renamed and removed in the folder would survive."""
        ...

    def aside(self) -> Aside:
        """Somebody to have files written beside whoever asks for it."""
        ...

    def token(self) -> int:
        """A number of 64 bits that no one else has, never 0: the identity of what is made here."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock or raise LockedError, which names the process that holds it."""
        ...


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # of one letter it is a drive of Windows


def local_folder(path: str | os.PathLike[str]) -> str:
    """The absolute path of a folder on this machine; InputError for an address of any scheme.

    `~` is the user's home, as in a shell.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"the path of a store is a text or a Path, not {shown(path)}")
    found = os.fspath(path)
    scheme = _SCHEME.match(found)
    if scheme:
        word = scheme.group()
        is_address = found.startswith("/", len(word))
        plain = "" if is_address else f"; a folder that is called so is ./{found}"
        plain = "; leave the scheme out" if word == "file:" else plain
        raise InputError(
            f"a store is a folder of this machine, not an address: {word} cannot be opened "
            f"({found}){plain}"
        )
    if not found or "\0" in found:
        raise InputError(f"{found!r} is not the path of a folder")
    expanded = os.path.expanduser(found)
    if expanded.startswith("~"):
        raise InputError(
            f"{found}: nobody here has the home {found.split(os.sep)[0]}; a folder that is called "
            f"so is ./{found}"
        )
    return os.path.abspath(expanded)


def write_fully(
    pwritev: Callable[[list[memoryview], int], int],
    offset: int,
    pieces: Sequence[memoryview | bytes],
) -> None:
    """Write all pieces through a call that may write less than it was asked to.

    A disk that fills up in the middle first answers with a short write; only the next call
    names the error, so the rest is asked for again until it is written or refused.
    """
    left = [piece for piece in (memoryview(p).cast("B") for p in pieces) if piece.nbytes]
    while left:
        written = pwritev(left[:PIECES_MAX], offset)
        if written <= 0:
            raise OSError(errno.EIO, "the disk accepted no bytes and gave no reason")
        offset += written
        left = _after(left, written)


def _after(pieces: list[memoryview], written: int) -> list[memoryview]:
    """The pieces that remain when so many bytes of them are written."""
    for number, piece in enumerate(pieces):
        if written < piece.nbytes:
            return [piece[written:], *pieces[number + 1 :]]
        written -= piece.nbytes
    return []


def read_fully(preadv: Callable[[memoryview, int], int], offset: int, target: memoryview) -> int:
    """Fill the target through a call that may read less than asked; stop where the file ends."""
    target = target.cast("B")
    done = 0
    while done < target.nbytes:
        count = preadv(target[done:], offset + done)
        if count == 0:
            break
        done += count
    return done


def read_file(disk: Disk, path: str) -> bytes:
    """The whole content of a small file."""
    file = disk.open(path, "read")
    try:
        content = bytearray(file.size())
        count = file.read_into(0, memoryview(content))
        return bytes(content[:count])
    finally:
        file.close()


def replace_file(disk: Disk, path: str, *content: bytes | memoryview) -> None:
    """Replace a file in one durable step: a crash leaves the old content or the new one.

    The order is the point: the bytes are synced before the name points at them, and the folder
    is synced before anyone is told.
    """
    fresh = path + ".new"
    file = disk.open(fresh, "create")
    try:
        file.write(0, *content)
        file.sync()
    finally:
        file.close()
    disk.rename(fresh, path)
    disk.sync_folder(os.path.dirname(path))


def make_folders(disk: Disk, path: str) -> None:
    """Create a folder and the missing ones above it, each durably."""
    if disk.exists(path):
        return
    above = os.path.dirname(path)
    make_folders(disk, above)
    disk.make_folder(path)
    disk.sync_folder(above)
