"""Recorded results: what each epoch answered, read back from the log or from a snapshot.

Invariant: results come in the order of their epochs, each at most once, and none is read while the
file it is in may be removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.floor import Hold, hold
from headgate.durability.format import Position
from headgate.durability.frame import results_of
from headgate.durability.scan import LogReader
from headgate.durability.snapshot import newest_snapshot
from headgate.errors import InputError
from headgate.io import Disk


def read_results(
    disk: Disk,
    path: str,
    log: LogReader,
    first_epoch: int,
    last_epoch: int,
    published: Position,
    held_from: int | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The recorded results of a range of epochs; epochs that have none are left out.

    Of the epochs below the floor only the last one of each origin has kept its results, for the
    batch that may come again; it is found when it is asked for alone.
    """
    if first_epoch > last_epoch:
        return iter(())
    held = hold(disk, path, held_from)
    floor = held.first_epoch
    try:
        if first_epoch == last_epoch <= floor:
            found = _carried(disk, path, first_epoch)
            if found is not None:
                held.release()
                return iter([(first_epoch, pa.concat_batches(found))] if found else [])
        _check_range(first_epoch, last_epoch, floor + 1, published.epoch)
    except BaseException:
        held.release()
        raise
    return _results(held, log, first_epoch, last_epoch, published)


def _check_range(first_epoch: int, last_epoch: int, oldest: int, published: int) -> None:
    if first_epoch < oldest or last_epoch > published:
        trimmed = f"; those before {oldest} were trimmed" if 0 < first_epoch < oldest else ""
        raise InputError(
            f"results of epochs {first_epoch} to {last_epoch} were asked for, and the store has "
            f"epochs {oldest} to {published}{trimmed}"
        )


def _results(
    held: Hold, log: LogReader, first_epoch: int, last_epoch: int, published: Position
) -> Iterator[tuple[int, pa.RecordBatch]]:
    with held:
        for frame in log.frames(log.locate(first_epoch), last_epoch, published):
            with frame.decoding():
                batch = results_of(frame.payload)
            if batch is not None:
                yield frame.header.epoch, batch


def _carried(disk: Disk, path: str, epoch: int) -> list[pa.RecordBatch] | None:
    """The results of an epoch that the newest snapshot carries on."""
    snapshot = newest_snapshot(disk, os.path.join(path, layout.SNAPSHOT_FOLDER))
    if snapshot is None:
        return None
    try:
        return snapshot.recorded_at(epoch)
    finally:
        snapshot.close()
