"""The head: the small file that tells every process which epoch is durable.

Invariant: the head is written after the sync of what it names, so it may lag behind the log but
never runs ahead of it; only with durability "none" does it name an epoch that is merely written,
and then it says which one is synced. It is not synced itself at every commit: after a loss of power
the writer that reopens the store finds the true end of the log and publishes it again.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.durability import format as layout
from headgate.durability.format import Position
from headgate.durability.lineage import UNKNOWN, Lineage
from headgate.errors import DamageError
from headgate.io import Disk, File, read_file, replace_file


class Published(NamedTuple):
    """One slot of the head: what readers see, and how much of it a loss of power would leave."""

    sequence: int
    position: Position
    synced: int


def read_head(disk: Disk, path: str) -> Published | None:
    """The newest valid slot; None when there is none."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return None
    slots = [_read_slot(content, offset, path) for offset in layout.HEAD_SLOT_OFFSETS]
    return max((slot for slot in slots if slot is not None), key=_sequence, default=None)


def damaged_slots(disk: Disk, path: str) -> list[int]:
    """The offsets of slots that were written and are not whole: one of them may be the newest."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return []
    offsets = layout.HEAD_SLOT_OFFSETS
    written = [place for place in offsets if any(content[place : place + layout.RECORD_BYTES])]
    return [place for place in written if _read_slot(content, place, path) is None]


def _sequence(slot: Published) -> int:
    return slot.sequence


def _read_slot(content: bytes, offset: int, path: str) -> Published | None:
    record = content[offset : offset + layout.RECORD_BYTES]
    where = f"{path} at offset {offset}"
    try:
        fields = layout.unseal(layout.HEAD_SLOT, layout.HEAD_MAGIC, record, where)
    except DamageError:
        return None
    sequence, epoch, segment, place, checksum, synced, _ = fields
    return Published(sequence, Position(epoch, segment, place, checksum), synced)


def _slot(sequence: int, position: Position, synced: int) -> bytes:
    place = (position.epoch, position.segment, position.offset, position.checksum or 0)
    return layout.seal(layout.HEAD_SLOT, layout.HEAD_MAGIC, sequence, *place, synced)


class Head:
    """The writer's side of the head: slots are written in turn, so that a torn one leaves one."""

    def __init__(self, file: File, sequence: int) -> None:
        self._file = file
        self._sequence = sequence

    @classmethod
    def begin(cls, disk: Disk, path: str, position: Position, lineage: Lineage = UNKNOWN) -> Head:
        """Put a new file that publishes a durable epoch in the place of the head, durably.

        A writer that lost the store without knowing it writes on to the old file, which no one
        reads any more.
        """
        newest = read_head(disk, path)
        sequence = 1 if newest is None else newest.sequence + 1
        content = bytearray(layout.HEAD_BYTES)
        place = layout.HEAD_SLOT_OFFSETS[sequence % 2]
        record = _slot(sequence, position, position.epoch)
        content[place : place + layout.RECORD_BYTES] = record
        identity = layout.seal(
            layout.IDENTITY_RECORD, layout.IDENTITY_MAGIC, lineage.store, lineage.id
        )
        if lineage.id:
            end = layout.IDENTITY_OFFSET + layout.RECORD_BYTES
            content[layout.IDENTITY_OFFSET : end] = identity
        replace_file(disk, path, bytes(content))
        return cls(disk.open(path, "write"), sequence)

    def publish(self, position: Position, synced: int | None = None) -> None:
        """Show readers an epoch; it is synced, unless `synced` names an older one that is."""
        self._sequence += 1
        record = _slot(self._sequence, position, position.epoch if synced is None else synced)
        self._file.write(layout.HEAD_SLOT_OFFSETS[self._sequence % 2], record)

    def sync(self) -> None:
        """Make the head itself survive a loss of power."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()
