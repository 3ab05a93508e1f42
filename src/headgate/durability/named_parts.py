"""Named parts: which files hold the rows of each shard, as the log of a sharded store names them.

They are rows of a table of the engine's own, logged with the epoch that made them: a part counts
exactly when its epoch is durable, and every past epoch knows its own. Invariant: a shard's rows at
an epoch are its image, if it has one, and all changes behind it, in order; its digest says which
rows these are, so that two copies of a shard with one digest hold the same.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import ALIVE, SLOT
from headgate.durability.format import checksum_of
from headgate.durability.log_record import changes_in, meta_of
from headgate.durability.part_file import (
    PartName,
    epoch_folder,
    part_epochs,
    part_files,
    remove_others,
)
from headgate.durability.scan import LogReader
from headgate.durability.snapshot import Snapshot
from headgate.io import Disk

TABLE = "__parts"
CHANGES = "changes"
IMAGE = "image"
NOTHING = 0  # the digest of a shard that has no rows yet

_SCHEMA = pa.schema(
    [
        (SLOT, pa.int64()),
        (ALIVE, pa.bool_()),
        ("shard", pa.int32()),
        ("epoch", pa.int64()),
        ("kind", pa.string()),
        ("file", pa.string()),
        ("mark", pa.uint64()),
        ("bytes", pa.int64()),
        ("digest", pa.uint64()),
        ("grown", pa.string()),
    ]
)
_GONE: Mapping[str, Any] = {
    "shard": 0, "epoch": 0, "kind": "", "file": "", "mark": 0, "bytes": 0, "digest": 0, "grown": "",
}  # fmt: skip


class NamedPart(NamedTuple):
    """One part of one shard."""

    shard: int
    epoch: int
    kind: str
    file: str
    mark: int
    bytes: int
    digest: int
    grown: str  # JSON: by table, how many rows more there are

    @property
    def name(self) -> PartName:
        return PartName(self.file, self.mark, self.bytes)


class Link(NamedTuple):
    """What one epoch did to a shard, and which rows it has then."""

    epoch: int
    parts: tuple[PartName, ...]
    digest: int


class PartHistory(NamedTuple):
    """How a shard came to its rows: an image, or nothing, and what changed since."""

    image: Link | None
    links: tuple[Link, ...]

    @property
    def digest(self) -> int:
        """Which rows the shard has now."""
        if self.links:
            return self.links[-1].digest
        return NOTHING if self.image is None else self.image.digest


class NewPart(NamedTuple):
    """A part that an epoch is to name: of these shards, which have grown so much by it."""

    name: PartName
    grown: Mapping[int, Mapping[str, int]]  # by shard, by table


class NewImage(NamedTuple):
    """All rows of a shard as they were before the epoch that names it."""

    name: PartName
    shard: int
    digest: int


class NamedParts:
    """The parts of one engine's store; changed under the engine's lock."""

    def __init__(self) -> None:
        self._rows: dict[int, NamedPart] = {}
        self._by_shard: dict[int, dict[int, NamedPart]] = defaultdict(dict)
        self.count = 0  # one more than the highest slot ever used

    def history(self, shard: int) -> PartHistory:
        """How a shard came to its rows."""
        parts = sorted(self._by_shard[shard].values(), key=lambda one: (one.epoch, one.file))
        whole = [one for one in parts if one.kind == IMAGE]
        names = tuple(one.name for one in whole)
        image = Link(whole[-1].epoch, names, whole[-1].digest) if whole else None
        links: dict[int, list[NamedPart]] = defaultdict(list)
        for one in parts:
            if one.kind == CHANGES:
                links[one.epoch].append(one)
        return PartHistory(
            image,
            tuple(
                Link(epoch, tuple(one.name for one in found), found[0].digest)
                for epoch, found in sorted(links.items())
            ),
        )

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        found: dict[str, int] = defaultdict(int)
        for one in list(self._rows.values()):  # a reader asks while the next epoch names its own
            for table, more in json.loads(one.grown).items():
                found[table] += more
        return dict(found)

    def names(self) -> list[PartName]:
        """All parts that count, each once."""
        return sorted({one.name for one in self._rows.values()})

    def files(self, epoch: int) -> frozenset[str]:
        """The files that are named of those written for an epoch."""
        begin = f"{epoch:020d}/"
        return frozenset(one.file for one in self._rows.values() if one.file.startswith(begin))

    def note(
        self, epoch: int, parts: Sequence[NewPart], images: Sequence[NewImage] = ()
    ) -> dict[str, pa.RecordBatch]:
        """Name the parts of an epoch, and return the changes as the log takes them."""
        changed: dict[int, NamedPart | None] = {}
        for image in images:
            self._note_image(epoch, image, changed)
        by_shard: dict[int, list[tuple[PartName, str]]] = defaultdict(list)
        for part in parts:
            for shard, grown in part.grown.items():
                by_shard[shard].append((part.name, _text(grown)))
        for shard, found in by_shard.items():
            found.sort(key=lambda one: one[0].file)
            digest = after(self.history(shard).digest, [name for name, _ in found])
            for name, grown_text in found:
                row = NamedPart(shard, epoch, CHANGES, *name, digest, grown_text)
                changed[self._put(row, changed)] = row
        return {TABLE: _changes(changed)} if changed else {}

    def _note_image(
        self, epoch: int, image: NewImage, changed: dict[int, NamedPart | None]
    ) -> None:
        """Let an image take the place of all that the shard had up to the epoch before."""
        grown: dict[str, int] = defaultdict(int)
        for slot, one in list(self._by_shard[image.shard].items()):
            for table, more in json.loads(one.grown).items():
                grown[table] += more
            self._remove(slot)
            changed[slot] = None
        name = image.name
        row = NamedPart(image.shard, epoch - 1, IMAGE, *name, image.digest, _text(grown))
        changed[self._put(row, changed)] = row

    def renewed(
        self, epoch: int, images: Mapping[int, Sequence[NewPart]]
    ) -> dict[str, pa.RecordBatch]:
        """Let an epoch's images, some files for each shard, take the place of all that there is.

        The shards may be others than before: how many there are changes with the epoch, too.
        """
        changed: dict[int, NamedPart | None] = dict.fromkeys(self._rows)
        for slot in list(self._rows):
            self._remove(slot)
        for shard, parts in images.items():
            digest = after(NOTHING, [part.name for part in parts])
            for part in parts:
                text = _text(part.grown[shard])
                row = NamedPart(shard, epoch, IMAGE, *part.name, digest, text)
                changed[self._put(row, changed)] = row
        return {TABLE: _changes(changed)} if changed else {}

    def _put(self, row: NamedPart, changed: Mapping[int, NamedPart | None]) -> int:
        """A slot for a part; one that this epoch gave free is left to the next."""
        slot = next((s for s in range(self.count) if s not in self._rows and s not in changed), -1)
        if slot < 0:
            slot, self.count = self.count, self.count + 1
            while slot in changed:
                slot, self.count = self.count, self.count + 1
        self._set(slot, row)
        return slot

    def _set(self, slot: int, row: NamedPart) -> None:
        self._rows[slot] = row
        self._by_shard[row.shard][slot] = row

    def _remove(self, slot: int) -> None:
        row = self._rows.pop(slot, None)
        if row is not None:
            del self._by_shard[row.shard][slot]

    def restore(self, image: pa.Table | pa.RecordBatch | None) -> None:
        """Take the rows that recovery found, of a snapshot or of an epoch of the log."""
        for row in [] if image is None else image.to_pylist():
            slot, alive = row.pop(SLOT), row.pop(ALIVE, True)
            self.count = max(self.count, slot + 1)
            self._remove(slot)
            if alive:
                self._set(slot, NamedPart(**row))

    def image(self) -> Iterator[pa.RecordBatch]:
        """All of them with their slots, for a snapshot."""
        yield _changes(dict(self._rows)).drop_columns([ALIVE])


def names_in(batch: pa.RecordBatch) -> set[PartName]:
    """The parts that rows of a snapshot, or changes of the log, name."""
    columns = [batch.column(name).to_pylist() for name in PartName._fields]
    return {PartName(*one) for one in zip(*columns, strict=True) if one[0]}


def after(digest: int, names: Sequence[PartName]) -> int:
    """Which rows a shard has when these parts of one epoch have changed it."""
    marks = [digest, *sorted(name.mark for name in names)]
    return int(checksum_of(b"".join(one.to_bytes(8, "little") for one in marks)))


def _text(grown: Mapping[str, int]) -> str:
    return json.dumps({table: more for table, more in grown.items() if more})


def _changes(rows: Mapping[int, NamedPart | None]) -> pa.RecordBatch:
    found = sorted(rows.items())
    columns: dict[str, list[Any]] = {
        SLOT: [slot for slot, _ in found],
        ALIVE: [row is not None for _, row in found],
    }
    for name, nothing in _GONE.items():
        columns[name] = [nothing if row is None else getattr(row, name) for _, row in found]
    arrays = [pa.array(columns[one.name], one.type) for one in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


# --- old parts ------------------------------------------------------------------------------------
# The parts of a sharded store that no epoch needs any more, found and removed.
#
# A part is in the folder of the epoch whose record names it. It counts from that epoch on, until
# an image of a later one takes its place. So among the files of past epochs there are two kinds
# to be removed: those that no record names, left by tasks that were late, and those that no epoch
# has which can still be read. Invariant: a part that a readable or a leased epoch names is never
# removed; a crash in between leaves files too many, and whoever sweeps next removes them.


def remove_superseded(disk: Disk, path: str, epoch: int) -> list[str]:
    """Remove all parts up to an epoch that it does not name; a whole snapshot is of that epoch.

    A part that is not named at an epoch is named at no later one, but those of later folders.
    """
    epochs = [one for one in part_epochs(disk, path) if one <= epoch]
    if not epochs:
        return []
    named = _named_at(disk, path, epoch)
    return _swept(disk, path, epochs, named)


def _named_at(disk: Disk, path: str, epoch: int) -> frozenset[str]:
    """The parts that the snapshot of an epoch names."""
    found = NamedParts()
    folder = os.path.join(path, layout.SNAPSHOT_FOLDER)
    with contextlib.closing(Snapshot.open(disk, folder, epoch)) as snapshot:
        for batch in snapshot.batches(TABLE):
            found.restore(batch)
    return frozenset(name.file for name in found.names())


def remove_unnamed(
    disk: Disk, path: str, log: LogReader, epochs: range, known: Iterable[str] = ()
) -> list[str]:
    """Remove the parts of these durable epochs that their own records do not name.

    Who calls has the store's lock. What is `known` to be named need not be looked for: only the
    records of epochs with other files are read.
    """
    named = frozenset(known)
    others = [
        epoch
        for epoch in part_epochs(disk, path)
        if epoch in epochs and not named.issuperset(part_files(disk, path, epoch))
    ]
    if not others:
        return []
    return _swept(disk, path, others, named | _named_by(log, frozenset(others)))


def _named_by(log: LogReader, epochs: frozenset[int]) -> frozenset[str]:
    """The files that the records of these epochs name."""
    found: set[str] = set()
    for frame in log.frames(log.locate(min(epochs)), max(epochs)):
        if frame.header.epoch in epochs:
            with frame.decoding():
                for _, batch in changes_in(frame.payload, meta_of(frame.payload), TABLE):
                    found.update(name.file for name in names_in(batch))
    return frozenset(found)


def _swept(disk: Disk, path: str, epochs: Iterable[int], named: frozenset[str]) -> list[str]:
    """Remove what is not named of these epochs, and their folders where nothing is left."""
    folder, removed, gone = os.path.join(path, layout.PARTS_FOLDER), list[str](), 0
    for epoch in epochs:
        removed += remove_others(disk, path, epoch, named)
        if not part_files(disk, path, epoch):
            # A task that is late may have put a file there since: then the folder stays.
            with contextlib.suppress(OSError):
                disk.remove_folder(os.path.join(folder, epoch_folder(epoch)))
                gone += 1
    if gone:
        disk.sync_folder(folder)
    return removed
