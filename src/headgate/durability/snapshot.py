"""Snapshots: all tables at one epoch, so that recovery need not read the whole log.

Invariant: a file with a snapshot's name is whole and was synced before it got the name; so are the
files in which it refers to blocks. Blocks are verified one by one when they are read.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headgate.durability import format as layout
from headgate.durability.commit import SLOT, Inlet, Mark, RowPlace
from headgate.durability.decoding import batch_of, check_counts, checked_image, decoding, json_of
from headgate.durability.format import Position
from headgate.durability.lineage import UNKNOWN, Lineage
from headgate.durability.log_record import EncodeBuffer, batches_of, inlet_meta, pieces_of
from headgate.durability.scan import read_buffer
from headgate.errors import DamageError
from headgate.io import Disk, File

# The disk is asked to take what was written so far every so often: one sync of everything at the
# end would hold up the log's own syncs for as long.
_SYNC_BYTES = 4 << 20

# A table of fewer blocks is read by one thread.
READ_BLOCKS_MIN = 8
READ_THREADS_MAX = 4
READ_AHEAD_BLOCKS = 24

# [offset, length, rows, lowest slot, highest slot, checksum], and when it is in the file of another
# snapshot [..., epoch of that one, seed]: then it is a reference.
Block = list[int]
_OWN_FIELDS = 6


class _SnapshotWriter:
    """Writes blocks behind one another and remembers where they are."""

    def __init__(self, file: File, mark: Mark, lineage: Lineage) -> None:
        self._file = file
        self._memory = EncodeBuffer()
        position = mark.position
        place = (position.segment, position.offset, position.checksum or 0)
        fields = (mark.epoch, mark.time_us, *place, lineage.id)
        record = layout.seal(layout.SNAPSHOT_HEADER, layout.SNAPSHOT_MAGIC, *fields)
        self._seed = int.from_bytes(record[layout.COVERED_BYTES :], "little")
        file.write(0, record)
        self._offset = len(record)
        self._synced = 0

    def blocks(self, items: Iterable[pa.RecordBatch | Block]) -> list[Block]:
        """Write batches, take references as they are, and return what the footer says of them."""
        found: list[Block] = []
        for item in items:
            if isinstance(item, list):
                found.append(item)
            else:
                found.extend(self._block(piece) for piece in pieces_of(item))
        return found

    def _block(self, batch: pa.RecordBatch) -> Block:
        content = self._memory.encode(batch)
        low, high = _slot_bounds(batch)
        checksum = layout.checksum_of(content, self._seed)
        block = [self._offset, len(content), batch.num_rows, low, high, checksum]
        self._write(content)
        return block

    def _write(self, content: memoryview | bytes) -> None:
        self._file.write(self._offset, content)
        self._offset += len(content)
        if self._offset - self._synced > _SYNC_BYTES:
            self._file.sync()
            self._synced = self._offset

    def finish(self, footer: Mapping[str, Any]) -> None:
        """Write the footer and the trailer and sync the file."""
        content = json.dumps(footer, separators=(",", ":")).encode()
        content = content.ljust(layout.padded(len(content)))
        fields = (self._offset, len(content), layout.checksum_of(content, self._seed))
        record = layout.seal(layout.SNAPSHOT_TRAILER, layout.TRAILER_MAGIC, *fields)
        self._write(content + record)
        self._file.sync()


def _slot_bounds(batch: pa.RecordBatch) -> tuple[int, int]:
    if SLOT not in batch.schema.names or batch.num_rows == 0:
        return 0, -1
    bounds = pc.min_max(batch.column(SLOT))
    return bounds["min"].as_py(), bounds["max"].as_py()


def write_snapshot(
    disk: Disk,
    folder: str,
    mark: Mark,
    images: Mapping[str, Iterable[pa.RecordBatch | Block]],
    recorded: Mapping[str, Iterable[pa.RecordBatch | Block]],
    lineage: Lineage = UNKNOWN,
) -> None:
    """Write the tables and the mark of one durable epoch as a new snapshot, durably.

    An item is a batch to write or a reference to a block of an older snapshot.
    """
    path = os.path.join(folder, layout.snapshot_name(mark.epoch))
    unfinished = path + layout.UNFINISHED_SUFFIX
    file = disk.open(unfinished, "create")
    try:
        _write_content(_SnapshotWriter(file, mark, lineage), mark, images, recorded)
    finally:
        file.close()
    disk.rename(unfinished, path)
    disk.sync_folder(folder)


def _write_content(
    writer: _SnapshotWriter,
    mark: Mark,
    images: Mapping[str, Iterable[pa.RecordBatch | Block]],
    recorded: Mapping[str, Iterable[pa.RecordBatch | Block]],
) -> None:
    tables = {
        name: {"slots": mark.slots.get(name, 0), "blocks": writer.blocks(items)}
        for name, items in images.items()
    }
    footer = {
        "tables": tables,
        "sources": dict(mark.origins),
        "recorded": {query: writer.blocks(items) for query, items in recorded.items()},
        "inlets": {name: _write_inlet(writer, inlet) for name, inlet in mark.inlets.items()},
    }
    writer.finish(footer)


def _write_inlet(writer: _SnapshotWriter, inlet: Inlet) -> dict[str, Any]:
    held = None if inlet.held is None else writer.blocks(batches_of(inlet.held))
    return {**inlet_meta(inlet), "held": held}


def snapshot_epochs(disk: Disk, folder: str) -> list[int]:
    """The epochs of the snapshots in a folder, ascending."""
    try:
        names = disk.list(folder)
    except FileNotFoundError:
        return []  # a writer makes the folder anew; without one a log must be whole
    return layout.numbers_of(names, layout.SNAPSHOT_SUFFIX)


def newest_snapshot(disk: Disk, folder: str) -> Snapshot | None:
    """The newest snapshot with a whole footer, open, or None."""
    for epoch in reversed(snapshot_epochs(disk, folder)):
        try:
            return Snapshot.open(disk, folder, epoch)
        except (DamageError, FileNotFoundError):
            continue
    return None


class Snapshot:
    """One snapshot open for reading."""

    def __init__(self, disk: Disk, file: File, epoch: int) -> None:
        self._disk = disk
        self._file = file
        self._others: dict[int, File] = {}
        self._opening = threading.Lock()
        self.epoch = epoch
        fields = self._record(layout.SNAPSHOT_HEADER, layout.SNAPSHOT_MAGIC, 0)
        found, self.time_us, segment, offset, checksum, _, self._seed = fields
        if found != epoch:
            raise layout.damage(file.path, 0, f"the snapshot is of epoch {found}")
        self.position = Position(epoch, segment, offset, checksum)
        self._footer = self._read_footer()

    @classmethod
    def open(cls, disk: Disk, folder: str, epoch: int, given_up: bool = False) -> Snapshot:
        """Open the snapshot of an epoch, or what is left of it; DamageError when not whole."""
        name = layout.blocks_name(epoch) if given_up else layout.snapshot_name(epoch)
        file = disk.open(os.path.join(folder, name), "read")
        try:
            return cls(disk, file, epoch)
        except BaseException:
            file.close()
            raise

    @property
    def path(self) -> str:
        return self._file.path

    def close(self) -> None:
        for file in (self._file, *self._others.values()):
            file.close()

    def _record(self, form: Any, magic: bytes, offset: int) -> tuple[int, ...]:
        record = read_buffer(self._file, offset, layout.RECORD_BYTES).to_pybytes()
        try:
            return layout.unseal(form, magic, record, self._file.path)
        except DamageError as error:
            raise layout.damage(self._file.path, offset, "a record is damaged") from error

    def _read_footer(self) -> dict[str, Any]:
        end = self._file.size() - layout.RECORD_BYTES
        trailer = self._record(layout.SNAPSHOT_TRAILER, layout.TRAILER_MAGIC, max(end, 0))
        offset, length, checksum, _ = trailer
        if offset + length != end:
            raise layout.damage(self._file.path, end, "the footer does not end at the trailer")
        content = self._read(offset, length, checksum)
        with decoding(self._file.path, offset):
            return _checked_footer(json_of(content.to_pybytes()))

    def _read(self, offset: int, length: int, checksum: int) -> pa.Buffer:
        return _read_checked(self._file, offset, length, checksum, self._seed)

    def tables(self) -> list[str]:
        """The names of the tables in the snapshot."""
        return list(self._footer["tables"])

    def slots(self) -> dict[str, int]:
        """Per table, one more than the highest slot ever used."""
        return {name: table["slots"] for name, table in self._footer["tables"].items()}

    def batches(
        self, table: str, slot_range: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The table's batches that have slots of the range; at least one, for its schema."""
        entry = self._footer["tables"].get(table)
        blocks = entry["blocks"] if entry else []
        wanted = [block for block in blocks if slot_range is None or _touches(block, slot_range)]
        for block in wanted or blocks[:1]:
            yield self._image(table, block)

    def _image(
        self, table: str, block: Block, memory: EncodeBuffer | None = None
    ) -> pa.RecordBatch:
        """Rows of a table, whose slots are within the bounds that the footer gives."""
        batch = self.batch(block, memory)
        with decoding(self._file.path, block[0]):
            return checked_image(table, batch, self._footer["tables"][table]["slots"])

    def read_into(self, table: str, place: RowPlace) -> None:
        """Hand all of a table's rows to a place, of a long table by several threads."""
        blocks = self._footer["tables"][table]["blocks"]
        ahead = _Ahead(self, blocks)
        threads = min(READ_THREADS_MAX, os.cpu_count() or 1)
        if len(blocks) < READ_BLOCKS_MIN or threads == 1:
            self._hand_over(table, ahead, place)
            return
        with ThreadPoolExecutor(threads, thread_name_prefix="headgate-read") as pool:
            shared = (table, ahead, place)
            for done in [pool.submit(self._hand_over, *shared) for _ in range(threads)]:
                done.result()

    def _hand_over(self, table: str, ahead: _Ahead, place: RowPlace) -> None:
        memory = EncodeBuffer()
        while (block := ahead.next()) is not None:
            batch = self._image(table, block, memory)
            with decoding(self._file.path, block[0]):
                place.insert(batch, self.epoch)

    def blocks(self, table: str) -> list[Block]:
        """The blocks of a table as references, for a newer snapshot."""
        entry = self._footer["tables"].get(table)
        return [self._reference(block) for block in entry["blocks"]] if entry else []

    def _reference(self, block: Block) -> Block:
        return block if len(block) > _OWN_FIELDS else [*block, self.epoch, self._seed]

    def references(self) -> dict[int, int]:
        """The other files that hold blocks of this snapshot: their epochs, and how many bytes."""
        found: dict[int, int] = {}
        for block in self._all_blocks():
            if len(block) > _OWN_FIELDS:
                found[block[6]] = found.get(block[6], 0) + block[1]
        return found

    def _all_blocks(self) -> Iterator[Block]:
        for table in self._footer["tables"].values():
            yield from table["blocks"]
        yield from self._other_blocks()

    def _other_blocks(self) -> Iterator[Block]:
        for recorded in self._footer.get("recorded", {}).values():
            yield from recorded
        for inlet in self._footer["inlets"].values():
            yield from inlet["held"] or []

    def holder_bytes(self, epoch: int) -> int:
        """The size of a file that holds blocks of this snapshot."""
        return (self._file if epoch == self.epoch else self._holder(epoch)).size()

    def file_of(self, block: Block) -> tuple[File, int]:
        """The file that holds a block, and the seed of its checksum."""
        if len(block) > _OWN_FIELDS and block[6] != self.epoch:
            return self._holder(block[6]), block[7]
        return self._file, self._seed

    def batch(self, block: Block, memory: EncodeBuffer | None = None) -> pa.RecordBatch:
        """The rows of a block, here or where it refers to; they view the memory, if it is given."""
        file, seed = self.file_of(block)
        content = _read_checked(file, block[0], block[1], block[5], seed, memory)
        with decoding(file.path, block[0]):
            batch = batch_of(content)
            if batch.num_rows != block[2]:
                raise ValueError(f"{batch.num_rows} rows in place of {block[2]}")
            return batch

    def _holder(self, epoch: int) -> File:
        """The file of another snapshot, which may have been given up but for its blocks."""
        with self._opening:
            if epoch not in self._others:
                folder = os.path.dirname(self._file.path)
                try:
                    self._others[epoch] = open_holder(self._disk, folder, epoch)
                except FileNotFoundError as error:
                    what = f"it refers to blocks of epoch {epoch}, whose file is missing"
                    raise layout.damage(self._file.path, 0, what) from error
            return self._others[epoch]

    def recorded(self, query: str) -> list[Block] | None:
        """The results of an origin's last epoch as references; None when it has none here."""
        blocks = self._footer.get("recorded", {}).get(query)
        return None if blocks is None else [self._reference(block) for block in blocks]

    def recorded_at(self, epoch: int) -> list[pa.RecordBatch] | None:
        """The results of an epoch that was the last of some origin; None when it is not here."""
        for query, (_, last) in self._footer["sources"].items():
            blocks = self.recorded(query) if last == epoch else None
            if blocks is not None:
                return [self.batch(block) for block in blocks]
        return None

    def mark(self) -> Mark:
        """What the store remembered at the snapshot's epoch."""
        origins = {query: (entry[0], entry[1]) for query, entry in self._footer["sources"].items()}
        inlets = {name: self._inlet(entry) for name, entry in self._footer["inlets"].items()}
        return Mark(self.position, self.time_us, origins, inlets, self.slots())

    def _inlet(self, entry: Mapping[str, Any]) -> Inlet:
        held = None
        if entry["held"] is not None:
            held = pa.Table.from_batches([self.batch(block) for block in entry["held"]])
        return Inlet(entry["watermark_us"], held, entry["arrivals"])

    def verify_own(self) -> None:
        """Read every block of this file; what it refers to in others is their own affair."""
        for table in self.tables():
            for block in self._footer["tables"][table]["blocks"]:
                if len(block) == _OWN_FIELDS:
                    self._image(table, block)
        for block in self._all_blocks():
            if len(block) == _OWN_FIELDS:
                self.batch(block)

    def verify(self) -> None:
        """Read every block; DamageError at the first that does not match."""
        for table in self.tables():
            for block in self._footer["tables"][table]["blocks"]:
                self._image(table, block)
        for block in self._other_blocks():
            self.batch(block)
        self.mark()


class _Ahead:
    """Blocks for several threads, one after another; the disk hears of them before they do.

    Threads that read by turns look like no sequence to the system, which would then read nothing
    ahead of them by itself.
    """

    def __init__(self, snapshot: Snapshot, blocks: list[Block]) -> None:
        self._snapshot = snapshot
        self._blocks = blocks
        self._guard = threading.Lock()
        self._next = 0
        self._told = 0

    def next(self) -> Block | None:
        with self._guard:
            place = self._next
            if place == len(self._blocks):
                return None
            self._next += 1
            while self._told < min(place + READ_AHEAD_BLOCKS, len(self._blocks)):
                block = self._blocks[self._told]
                self._snapshot.file_of(block)[0].will_read(block[0], block[1])
                self._told += 1
            return self._blocks[place]


def _checked_footer(footer: dict[str, Any]) -> dict[str, Any]:
    """The footer; ValueError unless all of it is of the form it must have."""
    check_counts({name: table["slots"] for name, table in footer["tables"].items()})
    lists = [table["blocks"] for table in footer["tables"].values()]
    lists += footer.get("recorded", {}).values()
    lists += [inlet["held"] or [] for inlet in footer["inlets"].values()]
    for block in (block for blocks in lists for block in blocks):
        whole = isinstance(block, list) and all(type(one) is int for one in block)
        if not whole or len(block) not in (_OWN_FIELDS, _OWN_FIELDS + 2) or min(block[:3]) < 0:
            raise ValueError(f"a block {block!r}")
    for origin in footer["sources"].values():
        if [type(one) for one in origin] != [int, int]:
            raise ValueError(f"a source {origin!r}")
    for inlet in footer["inlets"].values():
        if not isinstance(inlet["watermark_us"], int | None) or type(inlet["arrivals"]) is not int:
            raise ValueError(f"an inlet {inlet!r}")
    return footer


def open_holder(disk: Disk, folder: str, epoch: int) -> File:
    """Open a file of blocks, whether it is still a snapshot or was given up by now.

    The names are tried in the order in which the file has them, so none is missed in between.
    """
    try:
        return disk.open(os.path.join(folder, layout.snapshot_name(epoch)), "read")
    except FileNotFoundError:
        return disk.open(os.path.join(folder, layout.blocks_name(epoch)), "read")


def _read_checked(
    file: File,
    offset: int,
    length: int,
    checksum: int,
    seed: int,
    memory: EncodeBuffer | None = None,
) -> pa.Buffer:
    if offset + length > file.size():
        raise layout.damage(file.path, offset, f"{length} bytes are beyond the end of the file")
    if memory is None:
        content = read_buffer(file, offset, length)
    else:
        memory.reserve(min(length, file.size()))
        content = memory.buffer.slice(0, file.read_into(offset, memory.view[:length]))
    if content.size != length or layout.checksum_of(content, seed) != checksum:
        raise layout.damage(file.path, offset, f"{length} bytes do not match their checksum")
    return content


def _touches(block: Block, slot_range: tuple[int, int]) -> bool:
    low, high = block[3], block[4]
    return low < slot_range[1] and high >= slot_range[0]
