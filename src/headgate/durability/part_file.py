"""Part files: what tasks of a sharded store hand over, each a file that is written once and whole.

A part holds named Arrow tables. It counts for nothing until a record of the log names it, by its
file and its mark: the checksum of its header, which holds the checksum of all its bytes. Invariant:
who reads a part gets the very bytes that were named, or an error that says which file is not so.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from headgate.durability import format as layout
from headgate.durability.lineage import Lineage
from headgate.errors import DamageError
from headgate.io import Disk, make_folders, replace_file

_LENGTH = struct.Struct("<Q")
_SIZE_MAX = 10**15 - 1  # of a table, as far as its digits go


class PartName(NamedTuple):
    """A part as a record of the log, or another task, knows it."""

    file: str  # below the folder of parts
    mark: int
    bytes: int


class PartContent(NamedTuple):
    """What is in a part: its tables by name, and what is said of them."""

    tables: dict[str, pa.Table]
    said: dict[str, Any]


def epoch_folder(epoch: int) -> str:
    """Where the parts of an epoch are, below the folder of parts."""
    return f"{epoch:020d}"


def make_epoch_folder(disk: Disk, path: str, epoch: int) -> str:
    """Have the folder for the parts of an epoch, durably; returns its path."""
    folder = os.path.join(path, layout.PARTS_FOLDER, epoch_folder(epoch))
    make_folders(disk, folder)
    return folder


def begin_epoch_folder(disk: Disk, path: str, epoch: int) -> str:
    """The same, but it is durable only when the folder above it is synced: for who writes to it
    alone, and syncs once for all."""
    folder = os.path.join(path, layout.PARTS_FOLDER, epoch_folder(epoch))
    disk.make_folder(folder)
    return folder


def make_work_folder(disk: Disk, path: str) -> None:
    """Have the folder for the files of work under way."""
    make_folders(disk, os.path.join(path, layout.PARTS_FOLDER, layout.WORK_FOLDER))


def write_part(
    disk: Disk,
    path: str,
    lineage: Lineage,
    epoch: int,
    name: str,
    tables: Mapping[str, pa.Table],
    said: Mapping[str, Any],
    *,
    is_kept: bool = True,
) -> PartName:
    """Write a part of an epoch: durable when it returns, or else, if it is not to be kept, among
    the files of work under way.

    It has its name from the first: one that is not whole counts for as little as one that is, until
    the log names it with its mark.
    """
    body = _encode(tables, said)
    size = sum(map(len, body))
    header = _header(body, lineage, epoch, size)
    file = os.path.join(epoch_folder(epoch) if is_kept else layout.WORK_FOLDER, name)
    target = os.path.join(path, layout.PARTS_FOLDER, file)
    opened = disk.open(target, "create")
    try:
        opened.write(0, header, *body)
        if is_kept:
            opened.sync()
    finally:
        opened.close()
    if is_kept:
        disk.sync_folder(os.path.dirname(target))
    return PartName(file, _mark_of(header), len(header) + size)


def write_part_as_made(
    disk: Disk,
    path: str,
    lineage: Lineage,
    epoch: int,
    name: str,
    names: Collection[str],
    tables: Iterable[tuple[str, pa.Table]],
    said: Mapping[str, Any],
) -> PartName:
    """The same of tables that are made one after another, which have some of these names: the disk
    is at work on the first ones while the others are made."""
    room = len(_index([(one, _SIZE_MAX) for one in names], said))
    place = first = layout.padded(_LENGTH.size + room)
    bodies: list[bytes | memoryview] = []
    index: list[tuple[str, int]] = []
    file = os.path.join(epoch_folder(epoch), name)
    target = os.path.join(path, layout.PARTS_FOLDER, file)
    opened = disk.open(target, "create")
    try:
        for one, table in tables:
            size, pieces = _encoded(table)
            opened.write(layout.RECORD_BYTES + place, *pieces)
            opened.will_sync(layout.RECORD_BYTES + place, size)
            bodies += pieces
            index.append((one, size))
            place += size
        text = _index(index, said).ljust(room)  # JSON may end with spaces
        begin = (_LENGTH.pack(room) + text).ljust(first, b"\0")
        header = _header([begin, *bodies], lineage, epoch, place)
        opened.write(0, header, begin)
        opened.sync()
    finally:
        opened.close()
    disk.sync_folder(os.path.dirname(target))
    return PartName(file, _mark_of(header), layout.RECORD_BYTES + place)


def _header(body: Iterable[bytes | memoryview], lineage: Lineage, epoch: int, size: int) -> bytes:
    digest = xxhash.xxh3_64()
    for piece in body:
        digest.update(piece)
    fields = (epoch, lineage.store, lineage.id, size, digest.intdigest(), 0)
    return layout.seal(layout.PART_HEADER_RECORD, layout.PART_MAGIC, *fields)


def _mark_of(header: bytes) -> int:
    return int.from_bytes(header[layout.COVERED_BYTES :], "little")


def read_part(disk: Disk, path: str, lineage: Lineage, name: PartName) -> PartContent:
    """What the part of this name holds; DamageError when it is not there or not the one named."""
    file = os.path.join(path, layout.PARTS_FOLDER, name.file)
    body = _checked(disk, file, lineage, name)[layout.RECORD_BYTES :]
    try:
        return _decode(body)
    except (ValueError, KeyError, struct.error, pa.ArrowException) as error:
        what = f"the part cannot be read: {error}"
        raise layout.damage(file, layout.RECORD_BYTES, what) from error


def copy_part(disk: Disk, path: str, to: str, lineage: Lineage, name: PartName) -> None:
    """Have the same part in the folder of another store, durably; DamageError as `read_part`."""
    content = _checked(disk, os.path.join(path, layout.PARTS_FOLDER, name.file), lineage, name)
    target = os.path.join(to, layout.PARTS_FOLDER, name.file)
    make_folders(disk, os.path.dirname(target))
    replace_file(disk, target, content)


def _read(disk: Disk, file: str) -> memoryview:
    """The whole content of a file that may be large, in memory that is taken once, and given back
    at once: Arrow's own would be kept for later."""
    opened = disk.open(file, "read")
    try:
        content = np.empty(opened.size(), np.uint8).data
        return content[: opened.read_into(0, content)]
    finally:
        opened.close()


def _checked(disk: Disk, file: str, lineage: Lineage, name: PartName) -> memoryview:
    """The bytes of a part, which are those that were named.

    Its mark tells it from every other one. The history of the store that it was written in may be
    an older one: a copy of a store has the parts as they were.
    """
    try:
        content = _read(disk, file)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise layout.damage(file, 0, "the log names this part, and it is not there") from None
    header, body = bytes(content[: layout.RECORD_BYTES]), content[layout.RECORD_BYTES :]
    try:
        fields = layout.unseal(layout.PART_HEADER_RECORD, layout.PART_MAGIC, header, file)
    except DamageError as error:
        short = len(header) < layout.RECORD_BYTES
        what = (
            f"the part ends at byte {len(header)}, in" if short else "the checksum is not that of"
        )
        raise layout.damage(file, 0, f"{what} its header") from error
    if int.from_bytes(header[layout.COVERED_BYTES :], "little") != name.mark:
        raise layout.damage(file, 0, "it is another part than the one that the log names")
    if fields[1] != lineage.store:
        raise layout.damage(file, 0, "the part belongs to another store")
    if len(body) != fields[3] or layout.checksum_of(body) != fields[4]:
        raise layout.damage(file, layout.RECORD_BYTES, "the part does not match its checksum")
    return content


def part_files(disk: Disk, path: str, epoch: int) -> list[str]:
    """The files that are there of an epoch, named or not, as a record would name them."""
    folder = epoch_folder(epoch)
    names = _names(disk, os.path.join(path, layout.PARTS_FOLDER, folder))
    return [os.path.join(folder, name) for name in names]


def remove_others(
    disk: Disk, path: str, epoch: int, named: frozenset[str], run: str | None = None
) -> list[str]:
    """Remove the parts of an epoch that are not named, for good; returns which.

    With a run only those of that run: who is not sure to be the only writer must not touch others.
    """
    above = os.path.join(path, layout.PARTS_FOLDER)
    files = [file for file in part_files(disk, path, epoch) if file not in named]
    others = [os.path.join(above, file) for file in files if _is_of(file, run)]
    for file in others:
        _remove(disk, file)
    if others:
        disk.sync_folder(os.path.join(above, epoch_folder(epoch)))
    return others


def remove_work(disk: Disk, path: str, run: str | None = None) -> None:
    """Remove the files of work under way, of one run or of all; if they come back they go again."""
    folder = os.path.join(path, layout.PARTS_FOLDER, layout.WORK_FOLDER)
    for name in _names(disk, folder):
        if _is_of(name, run):
            _remove(disk, os.path.join(folder, name))


def _is_of(name: str, run: str | None) -> bool:
    return run is None or f"-{run}-" in name


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(disk: Disk, file: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # a task that is late has just renamed it
        disk.remove(file)


def part_epochs(disk: Disk, path: str) -> list[int]:
    """The epochs that have a folder of parts, ascending."""
    names = _names(disk, os.path.join(path, layout.PARTS_FOLDER))
    return sorted(int(name) for name in names if len(name) == 20 and name.isdecimal())


class _Pieces:
    """What Arrow writes, where it stands in memory: many rows are not copied to be put together."""

    closed = False

    def __init__(self) -> None:
        self.found: list[memoryview] = []

    def write(self, piece: bytes | pa.Buffer) -> int:
        self.found.append(memoryview(piece))
        return len(piece)

    def flush(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """There is nothing to close."""


def _encode(tables: Mapping[str, pa.Table], said: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The bytes of a part, in pieces."""
    bodies: list[bytes | memoryview] = []
    index: list[tuple[str, int]] = []
    for name, table in tables.items():
        size, pieces = _encoded(table)
        bodies += pieces
        index.append((name, size))
    text = _index(index, said)
    first = layout.padded(_LENGTH.size + len(text))
    begin = (_LENGTH.pack(len(text)) + text).ljust(first, b"\0")
    return [begin, *bodies]


def _encoded(table: pa.Table) -> tuple[int, list[bytes | memoryview]]:
    """How many bytes a table takes, and they."""
    pieces = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(pieces, "w"), table.schema) as writer:
        writer.write_table(table)
    length = sum(map(len, pieces.found))
    size = layout.padded(length)
    return size, [*pieces.found, bytes(size - length)]


def _index(tables: Sequence[tuple[str, int]], said: Mapping[str, Any]) -> bytes:
    return json.dumps({"tables": tables, "said": dict(said)}).encode()


def _decode(body: memoryview) -> PartContent:
    length = _LENGTH.unpack_from(body)[0]
    index = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    place, tables = layout.padded(_LENGTH.size + length), {}
    for name, size in index["tables"]:
        with pa.ipc.open_stream(pa.py_buffer(body[place : place + size])) as reader:
            tables[name] = reader.read_all()
        place += size
    return PartContent(tables, index["said"])
