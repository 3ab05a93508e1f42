"""Mapped files: arrays on a machine's own disk, which processes map and none of them changes.

A file is written whole under a name of its own and takes its place in one step; who mapped the one
before keeps that one. What is mapped is private: writing to it changes no file. Nothing is synced:
a file is of use while the machine runs that wrote it. A program that comes later looks at all of
its bytes first. Invariant: what `map_arrays` gives is what `write_arrays` of this run of the
machine was given, or nothing.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

_MAGIC = b"headgate mapped2"
_HEAD = struct.Struct("<16sQQQ")  # magic, bytes of the words, their checksum, bytes of the file
_BOOT_FILE = "/proc/sys/kernel/random/boot_id"


class MappedArrays(NamedTuple):
    """What a file holds: words about its arrays, and the arrays themselves, each int64."""

    said: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_arrays(
    path: str,
    said: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    room: Mapping[str, int],
    run: str = "",
) -> MappedArrays | None:
    """Write a file, and map it; None when it is not there: a disk that is full costs time later,
    nothing else.

    An array that is to have room behind it has that many words in all, and zeros in the rest. What
    is mapped is the very file that was written, whoever gives its name to another one meanwhile.
    """
    places, sums, end = {}, {}, mmap.PAGESIZE * 16
    for name, array in arrays.items():
        length = max(array.size, room.get(name, 0))
        places[name] = (end, length)
        sums[name] = (array.size, _checksum(array))
        end += -(-8 * length // mmap.PAGESIZE) * mmap.PAGESIZE
    words = {"boot": _boot(), "run": run, "places": places, "sums": sums, "said": dict(said)}
    text = json.dumps(words).encode()
    if _HEAD.size + len(text) > mmap.PAGESIZE * 16:
        return None
    head = _HEAD.pack(_MAGIC, len(text), xxhash.xxh3_64_intdigest(text), end) + text
    fresh = f"{path}.{secrets.token_hex(4)}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        memory = _write(fresh, head, arrays, places, end)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(fresh)
        return None
    return MappedArrays(dict(said), _in_place(memory, places))


def _write(
    path: str,
    head: bytes,
    arrays: Mapping[str, np.ndarray],
    places: Mapping[str, tuple[int, int]],
    end: int,
) -> mmap.mmap:
    with open(path, "x+b") as file:
        file.write(head)
        for name, array in arrays.items():
            file.seek(places[name][0])
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.truncate(end)  # the room is a hole, and takes no disk
        return mmap.mmap(file.fileno(), end, access=mmap.ACCESS_COPY)


def _in_place(memory: mmap.mmap, places: Mapping[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """The arrays that stand in these places, each from where on and of how many words."""
    return {
        name: np.frombuffer(memory, np.int64, count, begin)
        for name, (begin, count) in places.items()
    }


def _checksum(array: np.ndarray) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def map_arrays(path: str, run: str = "") -> MappedArrays | None:
    """The arrays of a file, as private memory; None when there is none, or one in doubt.

    One that this run wrote itself is known to be whole; of all others every byte is looked at.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEAD.size:
                return None
            memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    words = _words(memory, size)
    if words is None:
        return None
    arrays = _in_place(memory, words["places"])
    is_known = bool(run) and words["run"] == run
    sums = words["sums"].items()
    if not is_known and not all(_is_whole(arrays[name], *one) for name, one in sums):
        return None
    return MappedArrays(words["said"], arrays)


def _is_whole(array: np.ndarray, size: int, checksum: int) -> bool:
    """Whether an array is the one that was written, with nothing in its room."""
    return _checksum(array[:size]) == checksum and not array[size:].any()


def said_in(path: str) -> dict[str, Any] | None:
    """What a file says of its arrays, which are not looked at; None when it cannot be told."""
    try:
        with open(path, "rb") as file:
            head = file.read(mmap.PAGESIZE * 16)
    except OSError:
        return None
    words = _words(head)
    return None if words is None else dict(words["said"])


def _words(head: bytes | mmap.mmap, size: int | None = None) -> dict[str, Any] | None:
    """The words at the beginning of a file; None when they are not whole, or of another run of the
    machine."""
    if len(head) < _HEAD.size:
        return None
    magic, length, checksum, end = _HEAD.unpack_from(head)
    text = head[_HEAD.size : _HEAD.size + length] if magic == _MAGIC else b""
    if not text or xxhash.xxh3_64_intdigest(text) != checksum or size not in (None, end):
        return None
    words: dict[str, Any] = json.loads(text)
    return words if words["boot"] == _boot() else None


def _boot() -> str:
    """Which run of the machine this is: what was not synced does not outlive it."""
    with contextlib.suppress(OSError), open(_BOOT_FILE, encoding="ascii") as file:
        return file.read().strip()
    return ""
