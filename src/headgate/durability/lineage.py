"""Lineage: which store, and which history of it, every file of a folder belongs to.

Invariant: all files of a store name the store and the lineage that its manifest names, so files of
two stores, or of two histories of one, are never read together. A copy goes on by itself from where
it was made: it is the same store of another lineage. Within a lineage the chain of checksums proves
the rest.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from headgate.durability import format as layout
from headgate.errors import DamageError
from headgate.io import Disk


@dataclass(frozen=True)
class Lineage:
    """A store and one history of it; up to epoch `carried` its files may be of format 1.

    Files of format 1 name neither: both numbers are 0 there.
    """

    store: int = 0
    id: int = 0
    carried: int | None = None

    @classmethod
    def new(cls, disk: Disk, carried: int | None = None) -> Lineage:
        return cls(disk.token(), disk.token(), carried)

    def branched(self, disk: Disk) -> Lineage:
        """The lineage of a copy; all its files are written anew."""
        return Lineage(self.store or disk.token(), disk.token(), None)


UNKNOWN = Lineage()


def check_lineage(disk: Disk, path: str, lineage: Lineage) -> None:
    """DamageError unless every file in the store's folder is of this lineage.

    Files that are not whole are judged by those who read them.
    """
    for file, first_epoch, store, found in _identities(disk, path):
        if found == lineage.id and store in (None, lineage.store):
            continue
        is_old = found == 0 and not store
        if is_old and lineage.carried is not None and first_epoch <= lineage.carried + 1:
            continue
        raise layout.damage(file, 0, _mixed(store, found, lineage))


def _mixed(store: int | None, found: int, lineage: Lineage) -> str:
    if found == 0:
        return "it is of format 1 and does not belong to this store: was it copied here?"
    if store is not None and store != lineage.store:
        return (
            f"it belongs to the store {store:016x}, and the manifest is of {lineage.store:016x}: "
            "files of two stores were mixed; take out those that were copied here"
        )
    return (
        f"it belongs to the lineage {found:016x}, and the manifest to {lineage.id:016x}: files of "
        "two histories (a store and a copy of it) were mixed; put a copy into a folder of its own"
    )


# The file, the first epoch it is about, the store in it (None where it is not told), the lineage.
_Identity = tuple[str, int, int | None, int]


def _identities(disk: Disk, path: str) -> Iterator[_Identity]:
    forms = (
        (layout.LOG_FOLDER, layout.SEGMENT_SUFFIX, layout.SEGMENT_HEADER, layout.SEGMENT_MAGIC),
        (layout.SNAPSHOT_FOLDER, layout.SNAPSHOT_SUFFIX, layout.SNAPSHOT_HEADER,
         layout.SNAPSHOT_MAGIC),
        (layout.SNAPSHOT_FOLDER, layout.BLOCKS_SUFFIX, layout.SNAPSHOT_HEADER,
         layout.SNAPSHOT_MAGIC),
    )  # fmt: skip
    for name, suffix, form, magic in forms:
        folder = os.path.join(path, name)
        for number in layout.numbers_of(_names(disk, folder), suffix):
            file = os.path.join(folder, f"{number:020d}{suffix}")
            fields = _fields(disk, file, 0, form, magic)
            if fields is not None and form is layout.SEGMENT_HEADER:
                yield file, number, fields[3], fields[4]
            elif fields is not None:
                yield file, number, None, fields[5]
    floor = os.path.join(path, layout.FLOOR_NAME)
    fields = _fields(disk, floor, 0, layout.FLOOR_RECORD, layout.FLOOR_MAGIC)
    if fields is not None:
        yield floor, 0, fields[1], fields[2]
    yield from _head_identity(disk, os.path.join(path, layout.HEAD_NAME))


def _head_identity(disk: Disk, file: str) -> Iterator[_Identity]:
    form, magic = layout.IDENTITY_RECORD, layout.IDENTITY_MAGIC
    fields = _fields(disk, file, layout.IDENTITY_OFFSET, form, magic)
    if fields is not None:
        yield file, 0, fields[0], fields[1]
        return
    content = _content(disk, file, layout.IDENTITY_OFFSET)
    if content is not None and not any(content):
        yield file, 0, 0, 0  # a head of format 1


def _names(disk: Disk, folder: str) -> list[str]:
    try:
        return disk.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _content(disk: Disk, file: str, offset: int) -> bytes | None:
    """One record of a file; None when the file is not there, or was just removed."""
    try:
        opened = disk.open(file, "read")
    except (FileNotFoundError, IsADirectoryError):
        return None
    try:
        record = bytearray(layout.RECORD_BYTES)
        count = opened.read_into(offset, memoryview(record))
        return bytes(record[:count])
    finally:
        opened.close()


def _fields(
    disk: Disk, file: str, offset: int, form: struct.Struct, magic: bytes
) -> tuple[int, ...] | None:
    content = _content(disk, file, offset)
    if content is None:
        return None
    try:
        return layout.unseal(form, magic, content, file)
    except DamageError:
        return None


def is_left_alone(disk: Disk, path: str) -> bool:
    """Whether a folder without a manifest holds the log or the snapshots of a store."""
    log = _names(disk, os.path.join(path, layout.LOG_FOLDER))
    snapshots = _names(disk, os.path.join(path, layout.SNAPSHOT_FOLDER))
    kept = [name for name in [*log, *snapshots] if not name.endswith(layout.UNFINISHED_SUFFIX)]
    return bool(kept)


def no_manifest(path: str) -> DamageError:
    """The error for a log without a manifest, which is never a new store."""
    file = os.path.join(path, layout.MANIFEST_NAME)
    what = "the manifest is missing beside a log: it was removed, or a copy was not finished"
    return layout.damage(file, 0, what)
