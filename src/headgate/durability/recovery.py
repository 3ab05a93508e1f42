"""Recovery: the state of a store from its newest whole snapshot and the log behind it.

Invariant: the recovered epoch is never below one that was acknowledged, and never half of one. What
is recovered is durable before anyone hears of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from headgate.durability import format as layout
from headgate.durability.commit import Commit, Inlet, Mark, Receiver, Recovered, moved
from headgate.durability.format import Position
from headgate.durability.head import Published
from headgate.durability.log_record import changes_in, commit_of, inlets_of, meta_of
from headgate.durability.scan import FoundFrame, LogReader, read_buffer
from headgate.durability.short_changes import ImagePlace, ShortChanges
from headgate.durability.snapshot import Snapshot, snapshot_epochs
from headgate.durability.tail import Tail, Torn
from headgate.errors import DamageError, DeclarationError
from headgate.io import Disk

_COPY_BYTES = 4 << 20


class Rebuilt:
    """A store's state while frames are applied to it."""

    def __init__(
        self, start: Position = layout.BEGINNING, receiver: Receiver | None = None
    ) -> None:
        self.position = start
        self._receiver = receiver
        if receiver is not None:
            receiver.begin()
        self.time_us = 0
        self.origins: dict[str, tuple[int, int]] = {}
        self.inlets: dict[str, Inlet] = {}
        self.slots: dict[str, int] = {}
        self._gatherings: dict[str, ShortChanges] = {}
        self.pending: list[Commit] = []
        self._before_input: Mark | None = None
        self.bytes = self.epochs = 0

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, receiver: Receiver | None) -> Rebuilt:
        """Begin with a snapshot; DamageError when any of its bytes is wrong."""
        mark = snapshot.mark()
        state = cls(mark.position, receiver)
        state.time_us = mark.time_us
        state.origins.update(mark.origins)
        state.inlets.update(mark.inlets)
        state.slots.update(mark.slots)
        for table in snapshot.tables():
            place = state._gathering(table).place
            if isinstance(place, ImagePlace):
                for batch in snapshot.batches(table):
                    place.insert(batch, snapshot.epoch)
            else:
                snapshot.read_into(table, place)
        return state

    def apply(self, frame: FoundFrame) -> None:
        """Go one epoch on."""
        with frame.decoding():
            self._apply(frame)

    def _apply(self, frame: FoundFrame) -> None:
        meta = meta_of(frame.payload)
        if "input" in meta and self._before_input is None:
            self._before_input = self.mark()
        self.slots.update(meta["slots"])
        if self._before_input is None:
            for table, batch in changes_in(frame.payload, meta):
                self._gathering(table).add(frame, batch)
        else:
            # What follows an input is for the engine: only it can say what the input did.
            self.pending.append(commit_of(frame.header, frame.payload))
        if meta["source"] is not None:
            query, batch = meta["source"]
            self.origins[query] = (batch, frame.header.epoch)
        self.inlets = moved(self.inlets, inlets_of(frame.payload, meta))
        self.time_us = frame.header.time_us
        self.position = frame.end
        self.bytes += layout.RECORD_BYTES + frame.header.payload_length
        self.epochs += 1

    def _gathering(self, table: str) -> ShortChanges:
        found = self._gatherings.get(table)
        if found is None:
            given = None if self._receiver is None else self._receiver.place(table)
            place = ImagePlace() if given is None else given
            found = self._gatherings[table] = ShortChanges(place)
            place.reserve(self.slots.get(table, 0))
        return found

    def apply_all(self, frames: Iterable[FoundFrame]) -> None:
        """Go on over frames; afterwards the rows of all are in their places."""
        for frame in frames:
            self.apply(frame)
        for gathering in self._gatherings.values():
            gathering.flush()

    def recovered(self) -> Recovered:
        """The state as the engine gets it."""
        images = {
            table: gathering.place.image()
            for table, gathering in self._gatherings.items()
            if isinstance(gathering.place, ImagePlace)
        }
        mark = self._before_input or self.mark()
        return Recovered(
            epoch=self.position.epoch,
            time_us=mark.time_us,
            images={table: image for table, image in images.items() if image.num_columns > 1},
            origins=mark.origins,
            inlets=mark.inlets,
            slots=mark.slots,
            pending=tuple(self.pending),
        )

    def mark(self) -> Mark:
        """The state without its rows."""
        state = (dict(self.origins), dict(self.inlets), dict(self.slots))
        return Mark(self.position, self.time_us, *state)


@dataclass(frozen=True)
class Outcome:
    """What recovery found: the state, what it replayed or cut, the snapshots it refused.

    `lost_epochs` counts what was published with durability "none" and did not survive.
    """

    recovered: Recovered
    mark: Mark
    replayed_bytes: int
    replayed_epochs: int
    torn: Torn | None
    damaged_snapshots: tuple[str, ...]
    lost_epochs: int


def require_fingerprint(recovered: Recovered, fingerprint: str, accept: bool = False) -> None:
    """Refuse to run inputs again by other code than first ran them, unless told to accept that."""
    other = [
        commit.epoch
        for commit in recovered.pending
        if commit.input is not None and commit.fingerprint not in (None, fingerprint)
    ]
    if other and not accept:
        raise DeclarationError(
            f"epochs {other[0]} to {other[-1]} were logged as input and the code has changed since "
            "then: open the store once with the code that ran them and take a snapshot, or accept "
            "that the new code runs them again, perhaps with other results"
        )


def recover_store(
    disk: Disk,
    path: str,
    published: Published | None,
    floor: int,
    receiver: Receiver | None = None,
) -> Outcome:
    """Rebuild the state of a store and leave its log whole, synced and ready to go on.

    The rows go to the receiver's places; those of other tables are images of what is returned.
    """
    folder = os.path.join(path, layout.LOG_FOLDER)
    snapshots = os.path.join(path, layout.SNAPSHOT_FOLDER)
    at = None if published is None else published.position
    _check_snapshots(disk, snapshots, LogReader(disk, folder), at)
    state, damaged = _newest_snapshot(disk, snapshots, receiver)
    durable = state.position
    _check_reachable(disk, folder, durable, floor, damaged)
    if published is not None and published.synced > durable.epoch:
        state.apply_all(LogReader(disk, folder).frames(durable, published.synced))
        _check_published(folder, state.position, published.position)
        durable = state.position
    tail = Tail(disk, folder, durable)
    state.apply_all(tail.frames())
    state.position = tail.position
    _settle(disk, folder, durable, tail)
    shown = state.position.epoch if published is None else published.position.epoch
    lost = max(0, shown - state.position.epoch)
    recovered, mark = state.recovered(), state.mark()
    replayed = (state.bytes, state.epochs)
    return Outcome(recovered, mark, *replayed, tail.torn, tuple(damaged), lost)


def _check_snapshots(disk: Disk, folder: str, log: LogReader, published: Position | None) -> None:
    """DamageError when one of the snapshots is not of this log."""
    for epoch in snapshot_epochs(disk, folder):
        try:
            snapshot = Snapshot.open(disk, folder, epoch)
        except DamageError:
            continue  # not whole, so that no one begins with it
        with contextlib.closing(snapshot):
            log.require(snapshot.position, published, snapshot.path)


def _newest_snapshot(
    disk: Disk, folder: str, receiver: Receiver | None
) -> tuple[Rebuilt, list[str]]:
    """The state at the newest whole snapshot, or at the log's beginning."""
    damaged: list[str] = []
    for epoch in reversed(snapshot_epochs(disk, folder)):
        try:
            snapshot = Snapshot.open(disk, folder, epoch)
            try:
                return Rebuilt.from_snapshot(snapshot, receiver), damaged
            finally:
                snapshot.close()
        except DamageError as error:
            damaged.append(str(error))
    return Rebuilt(receiver=receiver), damaged


def _check_reachable(
    disk: Disk, folder: str, start: Position, floor: int, damaged: list[str]
) -> None:
    """Of a trimmed store at least one snapshot must be whole: the log alone does not go back."""
    if start.epoch < floor:
        segments = LogReader(disk, folder).segments()
        path = os.path.join(folder, layout.segment_name(segments[0] if segments else floor + 1))
        found = "; ".join(damaged) or "there is none"
        what = f"the log before epoch {floor} was trimmed and no whole snapshot is left ({found})"
        raise layout.damage(path, 0, what)


def _check_published(folder: str, found: Position, published: Position) -> None:
    """The frame that was published must be the one in the log."""
    here = found.segment == published.segment and found.epoch == published.epoch
    if here and found != published:
        path = os.path.join(folder, layout.segment_name(found.segment))
        what = f"epoch {found.epoch} is not the frame that was published"
        raise layout.damage(path, found.offset, what)


def _settle(disk: Disk, folder: str, durable: Position, tail: Tail) -> None:
    """Cut what is torn, or room, and make durable what was found beyond the last known sync."""
    for behind in (tail.torn, tail.room):
        if behind is not None:
            _cut(disk, behind)
    if tail.position.offset and tail.position != durable:
        _write_again(disk, folder, durable, tail.position)
    disk.sync_folder(folder)


def _cut(disk: Disk, torn: Torn) -> None:
    if torn.offset == 0:
        disk.remove(torn.file)
        return
    file = disk.open(torn.file, "write")
    try:
        file.truncate(torn.offset)
        file.sync()
    finally:
        file.close()


def _write_again(disk: Disk, folder: str, durable: Position, end: Position) -> None:
    """Write the frames after the last known sync once more, over themselves, and sync them.

    Syncing alone would not do: after a failed sync the system may hold pages that it calls clean
    though they never reached the disk, and a second sync would then promise what is not there.
    """
    file = disk.open(os.path.join(folder, layout.segment_name(end.segment)), "write")
    try:
        offset = durable.offset if durable.segment == end.segment else 0
        while offset < end.offset:
            piece = read_buffer(file, offset, min(_COPY_BYTES, end.offset - offset))
            file.write(offset, memoryview(piece))
            offset += piece.size
        file.sync()
    finally:
        file.close()
