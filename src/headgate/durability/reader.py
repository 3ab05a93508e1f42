"""Reading a store from any process, while its writer runs or not.

Invariant: nothing beyond the published epoch is ever read, so what is seen is durable and whole;
and while something is read, a lease keeps the writer from removing it. After a loss of power the
published epoch may lag until a writer opens the store again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.durability import format as layout
from headgate.durability.commit import SLOT, Commit, CommitInfo
from headgate.durability.decoding import accessing, decoding, missing
from headgate.durability.format import Position
from headgate.durability.head import damaged_slots, read_head
from headgate.durability.lineage import check_lineage, is_left_alone, no_manifest
from headgate.durability.log_record import changes_in, commit_of, meta_of, results_of
from headgate.durability.manifest import read_lineage, read_manifest, version_at
from headgate.durability.named_parts import TABLE as PARTS
from headgate.durability.named_parts import NamedParts
from headgate.durability.replay import Replay
from headgate.durability.retention import Hold, hold, hold_for, read_floor
from headgate.durability.scan import FoundFrame, LogReader
from headgate.durability.snapshot import Snapshot, newest_snapshot, snapshot_epochs
from headgate.errors import DamageError, InputError, StoreError
from headgate.io import Clock, Disk, RealClock, RealDisk, give_way, local_folder

_HEAD_LOOKS = 100  # at a slot of the head that is not whole


class StoreReader:
    """A store's folder, open for reading; takes no lock, only leases while it reads.

    >>> StoreReader.open("no-such-folder")
    Traceback (most recent call last):
    headgate.errors.InputError: there is no store at ...
    """

    def __init__(
        self, path: str, disk: Disk, manifest: dict[str, Any], held_from: int | None = None
    ) -> None:
        self.path = path
        self._held_from = held_from
        self.manifest = manifest
        self._disk = disk
        self._log = LogReader(disk, os.path.join(path, layout.LOG_FOLDER))
        self._snapshots = os.path.join(path, layout.SNAPSHOT_FOLDER)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        disk: Disk | None = None,
        *,
        held_from: int | None = None,
    ) -> StoreReader:
        """Open a store that exists; InputError when there is none.

        `held_from` is the `first_epoch` of a hold that someone, perhaps another process, keeps for
        this reader: from there on everything can be read, also when the floor rises meanwhile.
        """
        disk = disk if disk is not None else RealDisk()
        folder = local_folder(path)
        file = os.path.join(folder, layout.MANIFEST_NAME)
        try:
            with accessing(file):
                manifest = read_manifest(disk, file)
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_left_alone(disk, folder):
                raise no_manifest(folder) from error
            raise InputError(f"there is no store at {folder}: check the path") from error
        with accessing(folder):
            check_lineage(disk, folder, read_lineage(disk, file))
        return cls(folder, disk, manifest, held_from)

    @property
    def disk(self) -> Disk:
        """Where the store's files are."""
        return self._disk

    def last_epoch(self) -> int:
        """The newest published epoch, read anew at every call; 0 before the first commit."""
        return self.published().epoch

    def require(self, snapshot: Snapshot) -> None:
        """DamageError unless the snapshot is one of this log."""
        self._log.require(snapshot.position, self.published(), snapshot.path)

    def published(self) -> Position:
        """The place behind the newest published epoch, read anew at every call."""
        path = os.path.join(self.path, layout.HEAD_NAME)
        with accessing(path):
            damaged = damaged_slots(self._disk, path)
            for _ in range(_HEAD_LOOKS if damaged else 0):  # a writer may be at it just now
                give_way()
                damaged = damaged_slots(self._disk, path)
                if not damaged:
                    break
            newest = read_head(self._disk, path)
        if damaged and newest is not None:
            what = "a slot of the head is not whole (opening the store to write rebuilds it)"
            raise layout.damage(path, damaged[0], what)
        if newest is None:
            what = "neither slot of the head is whole (opening the store to write rebuilds it)"
            raise layout.damage(path, 0, what)
        return newest[1]

    def declared(self, epoch: int | None = None) -> Mapping[str, Any]:
        """The declarations at an epoch, the newest by default, read anew at every call.

        The head is read first: a manifest that is read after it has the declarations of every
        epoch that the head has published, and none that hold from such an epoch on by mistake.
        """
        last = self.last_epoch()
        self.manifest = read_manifest(self._disk, os.path.join(self.path, layout.MANIFEST_NAME))
        return version_at(self.manifest, last if epoch is None else min(epoch, last))

    def first_epoch(self) -> int:
        """The oldest epoch whose tables can be read; 0 is the empty store."""
        floor = read_floor(self._disk, self.path)
        return floor if self._held_from is None else min(floor, self._held_from)

    def hold(self) -> Hold:
        """Keep everything that can be read now, until the hold is released.

        A process that dies releases its holds. Every reading method holds by itself what it
        reads; this is for one that spans several of them.
        """
        return hold(self._disk, self.path, self._held_from)

    def hold_for(self, seconds: float, clock: Clock | None = None) -> int:
        """Keep everything that can be read now for a time, for other processes too.

        Returns the epoch to open them with, as `held_from`; they can hold it again, each for its
        own time, as long as this one lasts.
        """
        clock = clock if clock is not None else RealClock()
        return hold_for(self._disk, self.path, clock, seconds, self._held_from)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Hold]:
        """Hold what is read; where this process may take no lease, say so when it was removed."""
        with accessing(self.path), self.hold() as held:
            try:
                yield held
            except (DamageError, FileNotFoundError) as error:
                if read_floor(self._disk, self.path) != held.first_epoch:
                    raise InputError(
                        f"epochs of {self.path} were trimmed while they were read: a lease had "
                        "ended, or this process may not take one in the store's folder; read again"
                    ) from error
                self._check_synced(error)
                if isinstance(error, FileNotFoundError):
                    raise missing(error, self.path) from error
                raise

    def _check_synced(self, error: Exception) -> None:
        """Tell epochs that a loss of power took, as durability "none" allows, from damage."""
        newest = read_head(self._disk, os.path.join(self.path, layout.HEAD_NAME))
        if newest is not None and newest.synced < newest.position.epoch:
            raise StoreError(
                f"epochs of {self.path} after {newest.synced} were published with durability "
                f'"none" and cannot be read ({error}); if the power was lost, opening the store '
                "to write brings it back to its last whole epoch"
            ) from error

    def slots(self, table: str, epoch: int | None = None) -> int:
        """One more than the highest slot that the table ever used up to the epoch."""
        with self._reading():
            epoch = self._checked(table, epoch)
            if epoch == 0:
                return 0
            if epoch == self.first_epoch():
                # The floor is a snapshot's epoch, and its own frame may be gone.
                with self._snapshot(epoch) as snapshot:
                    self.require(snapshot)
                    return snapshot.slots().get(table, 0)
            frame = next(self._log.frames(self._log.locate(epoch), epoch, self.published()))
            with frame.decoding():
                return int(meta_of(frame.payload)["slots"].get(table, 0))

    def table(
        self,
        table: str,
        epoch: int | None = None,
        slot_range: tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
        with_slots: bool = False,
    ) -> pa.Table:
        """The table's rows at an epoch, the newest by default, in the order of their slots.

        `slot_range` (first, one behind the last) restricts it to a part. A table that had not been
        written at the epoch has no columns here; its declaration is in the manifest. Table and
        columns go by the names that they have in the files.
        """
        with self._reading():
            epoch = self._checked(table, epoch)
            replay = Replay(slot_range, columns)
            start = self._insert_snapshot(replay, table, epoch, slot_range)
            for frame in self._log.frames(start, epoch, self.published()):
                with frame.decoding():
                    self._apply(replay, table, frame)
            with decoding(os.path.join(self.path, layout.LOG_FOLDER), 0):
                image = replay.image()
            return image if with_slots else image.drop_columns([SLOT])

    def parts(self, epoch: int) -> NamedParts:
        """The parts that the log of a sharded store names at an epoch."""
        found = NamedParts()
        rows = self.table(PARTS, epoch, with_slots=True)
        found.restore(rows if rows.num_columns > 1 else None)
        return found

    def _apply(self, replay: Replay, table: str, frame: FoundFrame) -> None:
        meta = meta_of(frame.payload)
        if "input" in meta:
            raise InputError(
                f"epoch {frame.header.epoch} of {self.path} was logged as input (weak "
                "recovery): what it did to the tables cannot be read from the files before "
                "the next snapshot; ask the engine that writes it for its newest epoch, or "
                "open the store with recovery='strong' to have every later epoch readable"
            )
        for _, batch in changes_in(frame.payload, meta, table):
            replay.reserve(meta["slots"][table])
            replay.apply(batch)

    def _checked(self, table: str, epoch: int | None) -> int:
        """The epoch to read; InputError when the store has no such table or epoch."""
        tables = stored_names(self.declared(epoch))
        if table not in tables and not table.startswith("__"):  # those are an engine's own
            raise InputError(f"no table {table!r} in {self.path}: it has {sorted(tables)}")
        last = self.last_epoch()
        first = self.first_epoch()
        if epoch is not None and not first <= epoch <= last:
            trimmed = "; older ones were trimmed" if 0 <= epoch < first else ""
            raise InputError(
                f"no epoch {epoch} in {self.path}: it has epochs {first} to {last}{trimmed}"
            )
        return last if epoch is None else epoch

    def _snapshot(self, epoch: int) -> contextlib.closing[Snapshot]:
        return contextlib.closing(Snapshot.open(self._disk, self._snapshots, epoch))

    def _insert_snapshot(
        self, replay: Replay, table: str, epoch: int, slot_range: tuple[int, int] | None
    ) -> Position:
        """Begin with the newest whole snapshot up to the epoch, and say where the log goes on."""
        epochs = snapshot_epochs(self._disk, self._snapshots)
        for candidate in reversed([number for number in epochs if number <= epoch]):
            try:
                with self._snapshot(candidate) as snapshot:
                    batches = list(snapshot.batches(table, slot_range))
            except (DamageError, FileNotFoundError):
                # A damaged snapshot costs time, not data; one just removed has a newer heir, but
                # maybe one beyond the epoch.
                continue
            self.require(snapshot)
            replay.reserve(snapshot.slots().get(table, 0))
            for batch in batches:
                replay.insert(batch)
            return snapshot.position
        if self.first_epoch() > 0:
            what = f"no whole snapshot is left from which epoch {epoch} could be read"
            raise layout.damage(self._snapshots, 0, what)
        return layout.BEGINNING

    def results(
        self, first_epoch: int, last_epoch: int, held: Hold | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The recorded results of a range of published epochs, both ends included.

        What a hold keeps can be read until it is released, also when it is trimmed meanwhile.
        """
        published = self.published()
        held_from = self._held_from if held is None else held.first_epoch
        found = read_results(
            self._disk, self.path, self._log, first_epoch, last_epoch, published, held_from
        )
        return self._results(found)

    def _results(
        self, found: Iterator[tuple[int, pa.RecordBatch]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        with self._reading():
            yield from found

    def commits(self) -> Iterator[CommitInfo]:
        """What every published epoch holds, from the oldest on."""
        with self._reading():
            first, last = self.first_epoch() + 1, self.last_epoch()
            if first > last:
                return
            for frame in self._log.frames(self._log.locate(first), last, self.published()):
                yield _info(frame)

    def inputs(self) -> Iterator[Commit]:
        """The epochs behind the newest snapshot that were logged as input: to be run again."""
        with self._reading():
            newest = max(snapshot_epochs(self._disk, self._snapshots), default=0)
            first, last = max(newest, self.first_epoch()) + 1, self.last_epoch()
            if first > last:
                return
            for frame in self._log.frames(self._log.locate(first), last, self.published()):
                with frame.decoding():
                    is_input = "input" in meta_of(frame.payload)
                    found = commit_of(frame.header, frame.payload) if is_input else None
                if found is not None:
                    yield found


def stored_names(declared: Mapping[str, Any]) -> dict[str, str]:
    """The tables of a version by the names that they have in the files."""
    tables = declared.get("tables", {})
    return {one.get("stored", {}).get("name", name): name for name, one in tables.items()}


def _info(frame: FoundFrame) -> CommitInfo:
    with frame.decoding():
        meta = meta_of(frame.payload)
    origin = meta["source"]
    return CommitInfo(
        epoch=frame.header.epoch,
        time_us=frame.header.time_us,
        origin=None if origin is None else (origin[0], origin[1]),
        rows=meta["rows"],
        result_rows=meta["results"] or 0,
        bytes=layout.RECORD_BYTES + frame.header.payload_length,
        file=frame.file,
        offset=frame.offset,
    )


# --- recorded results -----------------------------------------------------------------------------
# Invariant: results come in the order of their epochs, each at most once, and none is read while
# the file it is in may be removed.


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
