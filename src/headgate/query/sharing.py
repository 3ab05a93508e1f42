"""Sharing: tables in memory that another process maps and cannot change.

A table is shared batch by batch. Batches that were shared before, as part of an older version of
the table, are not copied again. A segment is memory with some batches of one table; it is given
back when no version that is kept has a batch in it.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

VERSIONS_KEPT = 2  # of each table: the newest, and the one that a slow query still reads
EMPTY_KEPT_MAX = 1000
_OPTIONS = pa.ipc.IpcWriteOptions(unify_dictionaries=True)

Key = tuple[int, ...]
Spot = tuple[int, int]  # a segment's number, and the number of a batch in it


class Segment:
    """Batches of one table as an Arrow file in memory; `fd` may be handed to any process."""

    def __init__(self, number: int, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
        self.number = number
        self.batch_count = len(batches)
        self.fd = _make_memory()
        self._end = weakref.finalize(self, os.close, self.fd)
        with (
            os.fdopen(os.dup(self.fd), "wb") as file,
            pa.ipc.new_file(pa.PythonFile(file, "w"), schema, options=_OPTIONS) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        self.size_bytes = os.fstat(self.fd).st_size
        _seal(self.fd)


def _make_memory() -> int:
    """A file that has no name and ends with the last process that holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headgate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _seal(fd: int) -> None:
    if hasattr(fcntl, "F_ADD_SEALS"):
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


@dataclass
class Version:
    """One state of a table, and where its batches are."""

    table: pa.Table | None  # held, so that its buffers keep their addresses
    keys: list[Key]
    spots: list[tuple[Segment, int]]
    segments: list[Segment]
    user_count: int = 0


@dataclass(frozen=True)
class Shared:
    """Tables that another process can map now: their batches, and the segments these are in."""

    tables: Mapping[str, tuple[int, list[Spot]]]  # a segment with the schema, and all batches
    segments: Mapping[int, Segment]


class Shelf:
    """All that is shared by one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._kept: dict[str, list[Version]] = {}  # the one used last is first
        self._empty: dict[pa.Schema, Segment] = {}
        self._living: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()

    @contextmanager
    def share(self, tables: Mapping[str, pa.Table]) -> Iterator[Shared]:
        """These tables, shared at least until the end of the block."""
        with self._lock:
            found = {name: self._version(name, table) for name, table in tables.items()}
            for version in found.values():
                version.user_count += 1
        try:
            yield _shared(found)
        finally:
            with self._lock:
                for name, version in found.items():
                    version.user_count -= 1
                    self._let_go(name)

    def is_alive(self, number: int) -> bool:
        """Whether a segment is still part of what is shared."""
        return number in self._living

    @property
    def size_bytes(self) -> int:
        """The memory of all segments."""
        return sum(segment.size_bytes for segment in list(self._living.values()))

    def _version(self, name: str, table: pa.Table) -> Version:
        if not table.num_rows:
            return Version(None, [], [], [self._empty_segment(table.schema)])
        versions = self._kept.setdefault(name, [])
        for place, version in enumerate(versions):
            if version.table is table:
                versions.insert(0, versions.pop(place))
                return version
        made = self._make(table, versions)
        versions.insert(0, made)
        return made

    def _empty_segment(self, schema: pa.Schema) -> Segment:
        if len(self._empty) > EMPTY_KEPT_MAX:
            self._empty.clear()
        if schema not in self._empty:
            self._empty[schema] = self._segment(schema, [])
        return self._empty[schema]

    def _make(self, table: pa.Table, older: Iterable[Version]) -> Version:
        """A new version, with the batches that an older one has where they are."""
        batches = [batch for batch in table.to_batches() if batch.num_rows]
        keys = [_key(batch) for batch in batches]
        known = {
            key: spot
            for version in older
            if version.table is not None and version.table.schema == table.schema
            for key, spot in zip(version.keys, version.spots, strict=True)
        }
        spots = {key: known[key] for key in keys if key in known}
        _drop_sparse(spots)
        fresh = [place for place, key in enumerate(keys) if key not in spots]
        if fresh:
            segment = self._segment(table.schema, [batches[place] for place in fresh])
            spots.update({keys[place]: (segment, number) for number, place in enumerate(fresh)})
        found = [spots[key] for key in keys]
        segments = {segment.number: segment for segment, _ in found}
        return Version(table, keys, found, list(segments.values()))

    def _segment(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> Segment:
        segment = Segment(next(self._numbers), schema, batches)
        self._living[segment.number] = segment
        return segment

    def _let_go(self, name: str) -> None:
        kept = self._kept.get(name, [])
        kept[VERSIONS_KEPT:] = [one for one in kept[VERSIONS_KEPT:] if one.user_count]


def _shared(found: Mapping[str, Version]) -> Shared:
    tables = {
        name: (
            version.segments[0].number,
            [(segment.number, batch) for segment, batch in version.spots],
        )
        for name, version in found.items()
    }
    segments = {one.number: one for version in found.values() for one in version.segments}
    return Shared(tables, segments)


def _key(batch: pa.RecordBatch) -> Key:
    """What tells a batch from all others that are held: where its bytes are."""
    found = [batch.num_rows]
    for column in batch.columns:
        found.append(column.offset)
        found += [0 if buffer is None else buffer.address for buffer in column.buffers()]
    return tuple(found)


def _drop_sparse(spots: dict[Key, tuple[Segment, int]]) -> None:
    """Forget batches in segments that are mostly of the past: copied anew, these can end."""
    used: dict[int, int] = {}
    for segment, _ in spots.values():
        used[segment.number] = used.get(segment.number, 0) + 1
    for key, (segment, _) in list(spots.items()):
        if used[segment.number] * 2 < segment.batch_count:
            del spots[key]


class Mapped:
    """What another process shares, mapped into this one."""

    def __init__(self) -> None:
        self._files: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def add(self, number: int, fd: int) -> None:
        """Map a segment; the descriptor is closed."""
        try:
            memory = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._files[number] = pa.ipc.open_file(pa.py_buffer(memory))
        self._sizes[number] = len(memory)

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._files.pop(number, None)
            self._sizes.pop(number, None)

    def table(self, first: int, spots: Iterable[Sequence[int]]) -> pa.Table:
        """A table of these batches, none of them copied."""
        batches = [self._files[number].get_batch(batch) for number, batch in spots]
        return pa.Table.from_batches(batches, schema=self._files[first].schema)
