"""The vault: files that are code, kept between processes: nobody else's, and whole, or not used.

Invariant: what `read` gives was written by `write` of a process of this user, to the last bit. A
file that was cut, overwritten or changed is as good as none, and the next `write` replaces it.
Whoever could write to such a file could run anything here: so files and folders of another owner,
or that others may write to, are left alone. A warning says once why a folder cannot be used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("headgate")
MAGIC = b"headgate vault 1\n"
_DIGEST_BYTES = 32
_ELSEWHERE = "set HEADGATE_CACHE to a folder of your own"
_warned: set[str] = set()


class Vault:
    """Files below one folder; every method does without when there is no folder to use."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> bytes | None:
        """What was written under this name, None when that is not there, or not as it was."""
        try:
            if not self._is_ours(self._root / name):
                return None
            content = _read(self._root / name)
        except OSError:
            return None
        head = len(MAGIC) + _DIGEST_BYTES
        if content is None or not content.startswith(MAGIC):
            return None
        payload = content[head:]
        return payload if content[len(MAGIC) : head] == _digest(name, payload) else None

    def write(self, name: str, payload: bytes) -> bool:
        """Keep something under a name; whether it is kept now."""
        path = self._root / name
        try:
            if not self._is_placed():
                return False
            self._make_folders(path)
            if not self._is_ours(path):
                return False
            _replace(path, MAGIC + _digest(name, payload) + payload)
        except IsADirectoryError:
            _warn(path, "is a folder", "remove it")
            return False
        except OSError as error:
            _warn(self._root, f"cannot be written ({error.strerror or error})", _ELSEWHERE)
            return False
        return True

    def _make_folders(self, path: Path) -> None:
        os.makedirs(self._root.parent, exist_ok=True)
        for folder in self._folders(path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)

    def _folders(self, path: Path) -> Iterator[Path]:
        """The folders from the root to a file."""
        yield self._root
        for folder in reversed(path.relative_to(self._root).parents[:-1]):
            yield self._root / folder

    def _is_ours(self, path: Path) -> bool:
        """Whether no one else can put files here; OSError when there is no such folder."""
        if not self._is_placed():
            return False
        for folder in self._folders(path):
            # The root itself may be a link: it is the user who chose it.
            found = os.stat(folder) if folder == self._root else os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode):
                _warn(folder, "is not a folder", _ELSEWHERE)
                return False
            if not _is_private(found, folder):
                return False
        return True

    def _is_placed(self) -> bool:
        """Whether the root is somewhere: else it is wherever the process happens to be."""
        if not self._root.is_absolute():
            _warn(self._root, "has no place, as there is no home folder", _ELSEWHERE)
        return self._root.is_absolute()


def _is_private(found: os.stat_result, path: Path) -> bool:
    if found.st_uid != os.geteuid():
        _warn(path, "belongs to another user", _ELSEWHERE)
        return False
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _warn(path, "can be written by others", f"run chmod go-w {path}")
        return False
    return True


def _warn(path: Path, why: str, what: str) -> None:
    if not _warned:
        _warned.add(str(path))
        log.warning(
            "the compile cache is not used, and code is compiled again: %s %s; %s", path, why, what
        )


def _read(path: Path) -> bytes | None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or not _is_private(found, path):
            return None
        return opened.read()


def _replace(path: Path, content: bytes) -> None:
    """Put the whole file there at once; another process that does the same does no harm."""
    fresh = f"{path}.{uuid.uuid4().hex}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def _digest(name: str, payload: bytes) -> bytes:
    """Of the content and its name: a file that was put in another's place is not that."""
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()
