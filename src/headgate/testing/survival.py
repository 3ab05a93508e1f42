"""Survival: files as programs see them, as they are on the platter, and after a loss of power.

Invariant: only what was synced is sure to survive; whether the rest survives, and how much of it,
is up to the chosen survival.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTOR_BYTES = 512


class Survival(enum.Enum):
    """What becomes of the writes and names that were not synced when the power went."""

    DROP = "nothing unsynced survives"
    KEEP = "everything survives"
    TEAR = "everything survives, but only the beginning of the last write"
    NAMES = "names survive, but no unsynced bytes"
    RANDOM = "any sectors of any unsynced writes survive, and some of the latest names do not"


@dataclass
class PendingWrite:
    """An unsynced write, or, without data, an unsynced change of the size to `offset`."""

    offset: int
    data: bytes | None
    number: int


@dataclass
class FileContent:
    """A file: what programs see, what is on the platter, and the writes in between."""

    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[PendingWrite] = field(default_factory=list)


@dataclass
class FolderContent:
    """A folder: names as programs see them, as they are durable, and the changes in between."""

    seen: dict[str, FileContent | FolderContent] = field(default_factory=dict)
    durable: dict[str, FileContent | FolderContent] = field(default_factory=dict)
    pending: list[dict[str, FileContent | FolderContent | None]] = field(default_factory=list)

    def change(self, names: dict[str, FileContent | FolderContent | None]) -> None:
        """Change names in one step, not yet durably; None removes one."""
        change_names(self.seen, names)
        self.pending.append(names)


def change_names(
    entries: dict[str, FileContent | FolderContent],
    names: dict[str, FileContent | FolderContent | None],
) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def put(data: bytearray, offset: int, piece: bytes) -> None:
    if offset > len(data):
        resize(data, offset)
    data[offset : offset + len(piece)] = piece


def with_all(durable: bytearray, pending: list[PendingWrite]) -> bytearray:
    result = bytearray(durable)
    for write in pending:
        _apply(result, write.offset, write.data)
    return result


def _apply(data: bytearray, offset: int, piece: bytes | None) -> None:
    if piece is None:
        resize(data, offset)
    else:
        put(data, offset, piece)


def survivor(
    folder: FolderContent, survival: Survival, chance: random.Random, last: int
) -> FolderContent:
    """The folder as it is after the crash."""
    entries = dict(folder.durable)
    for names in folder.pending[: _surviving_names(len(folder.pending), survival, chance)]:
        change_names(entries, names)
    after = FolderContent()
    for name in sorted(entries):
        node = entries[name]
        if isinstance(node, FolderContent):
            after.seen[name] = survivor(node, survival, chance, last)
        else:
            data = _surviving_bytes(node, survival, chance, last)
            after.seen[name] = FileContent(data, bytearray(data))
    after.durable = dict(after.seen)
    return after


def _surviving_names(count: int, survival: Survival, chance: random.Random) -> int:
    """How many of the changes of names survive; a journal keeps their order."""
    if survival is Survival.DROP:
        return 0
    return chance.randint(0, count) if survival is Survival.RANDOM else count


def _surviving_bytes(
    content: FileContent, survival: Survival, chance: random.Random, last: int
) -> bytearray:
    data = bytearray(content.durable)
    if survival in (Survival.DROP, Survival.NAMES):
        return data
    for write in content.pending:
        if survival is Survival.RANDOM:
            _apply_some(data, write, chance)
        elif survival is Survival.TEAR and write.number == last and write.data is not None:
            put(data, write.offset, write.data[: chance.randint(0, len(write.data))])
        else:
            _apply(data, write.offset, write.data)
    return data


def _apply_some(data: bytearray, write: PendingWrite, chance: random.Random) -> None:
    """Let any of a write's sectors survive, perhaps also the new size without the bytes."""
    if write.data is None:
        if chance.random() < 0.5:
            resize(data, write.offset)
        return
    likely = chance.choice((0.0, 0.5, 0.9, 1.0))
    end = write.offset + len(write.data)
    place = write.offset
    while place < end:
        sector_end = min(end, place - place % SECTOR_BYTES + SECTOR_BYTES)
        if chance.random() < likely:
            put(data, place, write.data[place - write.offset : sector_end - write.offset])
        place = sector_end
    if chance.random() < 0.3 and len(data) < end:
        resize(data, end)


def paths_below(prefix: str, folder: FolderContent) -> Iterator[str]:
    for name, node in folder.seen.items():
        if isinstance(node, FolderContent):
            yield from paths_below(f"{prefix}/{name}", node)
        else:
            yield f"{prefix}/{name}"
