"""Compaction: the next snapshot out of the last one and the log behind it, beside the stream.

Invariant: what is written is the state at exactly one durable epoch, and it needs nothing from the
writer but that epoch's mark: commits go on meanwhile. Blocks whose slots no frame changed are
referred to, not copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import SLOT, Mark
from headgate.durability.decoding import decoding
from headgate.durability.lineage import Lineage
from headgate.durability.log_record import changes_in, meta_of, results_of
from headgate.durability.replay import Replay
from headgate.durability.scan import FoundFrame, LogReader
from headgate.durability.short_changes import ImagePlace, ShortChanges
from headgate.durability.snapshot import Block, Snapshot, newest_snapshot, write_snapshot
from headgate.errors import InvariantError
from headgate.io import Disk

Int64s = npt.NDArray[np.int64]

BLOCK_ROWS = 1 << 16
# So many rows of neighbouring changed blocks are in memory together.
_RUN_ROWS = 1 << 19
# A file of which less than this share is still referred to is copied, so that it can go.
_WORN_SHARE = 0.25


def write_next(
    disk: Disk,
    path: str,
    log: LogReader,
    mark: Mark,
    images: Mapping[str, Iterable[pa.RecordBatch]] | None,
    lineage: Lineage,
) -> None:
    """Write the snapshot of a mark's epoch, unless there is nothing to add to the last one.

    Without images it is made of the last snapshot and the log.
    """
    folder = os.path.join(path, layout.SNAPSHOT_FOLDER)
    base = newest_snapshot(disk, folder)
    try:
        if mark.epoch in (0, base.epoch if base is not None else 0):
            return  # the file may even be referred to already
        recorded = recorded_results(log, base, mark)
        tables: Mapping[str, Iterable[Any]] = (
            images_from_log(log, base, mark) if images is None else images
        )
        write_snapshot(disk, folder, mark, tables, recorded, lineage)
    finally:
        if base is not None:
            base.close()


class TableChanges:
    """All that the frames after a snapshot did to one table."""

    def __init__(self, replay: Replay) -> None:
        self.gone = replay.gone()
        self.touched = replay.touched()
        self.image = replay.image()  # of the rows that came whole
        self.updates = list(replay.updates())  # and of others what is new

    def between(self, low: int, high: int | None) -> Iterator[pa.Table]:
        """The changed rows of a range of slots: first the whole ones, then what others have new."""
        for table in (self.image, *self.updates):
            first, last = _range(table.column(SLOT).to_numpy(), low, high)
            yield table.slice(first, last - first)

    def touched_between(self, low: int, high: int | None) -> Int64s:
        first, last = _range(self.touched, low, high)
        return self.touched[first:last]


def _range(slots: Int64s, low: int, high: int | None) -> tuple[int, int]:
    first = int(np.searchsorted(slots, low))
    return first, len(slots) if high is None else int(np.searchsorted(slots, high))


def images_from_log(
    log: LogReader, base: Snapshot | None, mark: Mark
) -> dict[str, Iterator[pa.RecordBatch | Block]]:
    """The images of all tables at the mark's epoch: batches, and blocks of the base as they are."""
    start = layout.BEGINNING if base is None else base.position
    found: _Gatherings = {}
    for frame in log.frames(start, mark.epoch):
        _collect(frame, found, mark, base)
    for _, gathering in found.values():
        gathering.flush()
    names = [*mark.slots, *(base.tables() if base is not None else [])]
    worn = worn_files(base)
    with decoding(log.folder, 0):
        changes = {name: TableChanges(place.replay) for name, (place, _) in found.items()}
    return {name: _items(base, name, changes.get(name), worn) for name in dict.fromkeys(names)}


_Gatherings = dict[str, tuple[ImagePlace, ShortChanges]]  # by table


def _collect(frame: FoundFrame, found: _Gatherings, mark: Mark, base: Snapshot | None) -> None:
    with frame.decoding():
        _collect_parts(frame, found, mark, [] if base is None else base.tables())


def _collect_parts(frame: FoundFrame, found: _Gatherings, mark: Mark, known: Sequence[str]) -> None:
    meta = meta_of(frame.payload)
    if "input" in meta:
        raise InvariantError(
            f"epoch {frame.header.epoch} was logged as input: only the engine has the images"
        )
    for table, batch in changes_in(frame.payload, meta):
        if table not in found:
            place = ImagePlace(partial=table in known)
            place.reserve(mark.slots.get(table, 0))
            found[table] = place, ShortChanges(place)
        found[table][1].add(frame, batch)


def worn_files(base: Snapshot | None) -> set[int]:
    """The epochs of the files whose blocks are too few to keep the file for."""
    if base is None:
        return set()
    return {
        epoch
        for epoch, used in base.references().items()
        if used < base.holder_bytes(epoch) * _WORN_SHARE
    }


def _items(
    base: Snapshot | None, table: str, changes: TableChanges | None, worn: set[int]
) -> Iterator[pa.RecordBatch | Block]:
    blocks = base.blocks(table) if base is not None else []
    if base is None or not blocks:
        if changes is not None and changes.image.num_columns > 1:
            yield from _batches(changes.image)
        return
    if changes is None:
        changes = TableChanges(Replay())
    yield from _merged(base, blocks, changes, worn)


def _merged(
    base: Snapshot, blocks: list[Block], changes: TableChanges, worn: set[int]
) -> Iterator[pa.RecordBatch | Block]:
    """Go through the blocks: refer to the clean ones, write the runs of changed ones anew.

    Each block rules the slots from its lowest up to the next one's lowest; so every slot, also a
    new one, belongs to exactly one block.
    """
    starts = [0, *(block[3] for block in blocks[1:])]
    ends: list[int | None] = [*starts[1:], None]
    changed = [
        block[6] in worn or block[2] == 0 or len(changes.touched_between(start, end)) > 0
        for block, start, end in zip(blocks, starts, ends, strict=True)
    ]
    if not _ascending(blocks):
        yield from _rewritten(base, blocks, changes, 0, None)
        return
    place, wrote = 0, False
    while place < len(blocks):
        if not changed[place]:
            yield blocks[place]
            place, wrote = place + 1, True
            continue
        run = _run_length(blocks, changed, place)
        last = place + run == len(blocks)
        for batch in _rewritten(
            base, blocks[place : place + run], changes, starts[place], ends[place + run - 1]
        ):
            # A table whose rows are all gone keeps one empty block, for its columns.
            if batch.num_rows or (last and not wrote):
                yield batch
                wrote = True
        place += run


def _ascending(blocks: list[Block]) -> bool:
    return all(one[4] < two[3] for one, two in pairwise(blocks))


def _run_length(blocks: list[Block], changed: list[bool], place: int) -> int:
    """How many changed blocks from the place on are written together."""
    rows, count = 0, 0
    while place + count < len(blocks) and changed[place + count] and rows < _RUN_ROWS:
        rows += blocks[place + count][2]
        count += 1
    return count


def _rewritten(
    base: Snapshot, blocks: list[Block], changes: TableChanges, low: int, high: int | None
) -> Iterator[pa.RecordBatch]:
    """The rows of neighbouring blocks with the changes to their slots, in new batches."""
    replay = Replay((low, layout.SLOTS_MAX if high is None else high))
    for block in blocks:
        replay.insert(base.batch(block))
    replay.reserve(1 + int(changes.touched_between(low, high).max(initial=low)))
    first, last = _range(changes.gone, low, high)
    with decoding(base.path, blocks[0][0]):
        replay.remove(changes.gone[first:last] - low)
        whole, *updates = changes.between(low, high)
        for batch in whole.to_batches():
            replay.insert(batch)
        for batch in (batch for table in updates for batch in table.to_batches()):
            replay.apply(batch)
        image = replay.image()
    yield from _batches(image)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in batches of a block's size; one of no rows when there are none."""
    for first in range(0, max(table.num_rows, 1), BLOCK_ROWS):
        piece = table.slice(first, BLOCK_ROWS).combine_chunks()
        yield from piece.to_batches() or [
            pa.RecordBatch.from_pylist([], schema=table.schema),
        ]


def recorded_results(
    log: LogReader, base: Snapshot | None, mark: Mark
) -> dict[str, Iterable[pa.RecordBatch | Block]]:
    """The results of each origin's last epoch, so that they outlive the log before the snapshot."""
    oldest = min(log.segments(), default=mark.epoch + 1)
    found: dict[str, Iterable[pa.RecordBatch | Block]] = {}
    known = {} if base is None else base.mark().origins
    worn = worn_files(base)
    for query, (batch, epoch) in mark.origins.items():
        blocks = base.recorded(query) if base is not None else None
        if base is not None and blocks is not None and known.get(query) == (batch, epoch):
            found[query] = [base.batch(b) if b[6] in worn else b for b in blocks]
        elif epoch >= oldest:
            found[query] = _from_log(log, epoch)
    return found


def _from_log(log: LogReader, epoch: int) -> list[pa.RecordBatch | Block]:
    frame = next(log.frames(log.locate(epoch), epoch))
    with frame.decoding():
        results = results_of(frame.payload)
    return [] if results is None else [results]
