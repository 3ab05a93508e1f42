"""Retention: which epochs a store keeps, the floor and leases, and files that none needs any more.

Invariant: a file is removed only when no snapshot that counts, no leased epoch and no epoch from
the floor on needs it. The floor is always the epoch of a whole snapshot, so that what is above it
can be read without what is below. A crash in between leaves files too many, never too few.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from dataclasses import dataclass
from typing import Any

from headgate.durability import format as layout
from headgate.durability.commit import Mark
from headgate.durability.lineage import UNKNOWN, Lineage
from headgate.durability.named_parts import remove_superseded
from headgate.durability.snapshot import Snapshot, snapshot_epochs
from headgate.errors import DamageError, InputError, LockedError, shown
from headgate.io import Clock, Disk, Lock, read_file, replace_file

# Without a policy every epoch is kept in the log; so many snapshots shorten the way to the newest.
SNAPSHOTS_KEPT = 2

# So many epochs, when their log is short, make a snapshot due; with a policy that keeps fewer, so
# many as it keeps, but never less than the least. A snapshot costs by the rows of the tables, so
# that of large ones comes after so many epochs more.
SNAPSHOT_EPOCHS = 2048
SNAPSHOT_EPOCHS_MIN = 32
SNAPSHOT_SLOTS_PER_EPOCH = 256

LOG = logging.getLogger("headgate.store")


@dataclass(frozen=True)
class Retention:
    """How much of the past stays readable: whatever one of the three keeps is kept.

    The newest `snapshots`, the last `epochs`, and the epochs of the last `age_us`; each together
    with what lies between it and the snapshot before it, from which it is rebuilt.

    With `epochs=n` an engine takes a snapshot every n epochs, but at least 32 and at least one per
    256 rows apart, and trims after each. So the last n can always be read, and of those before
    them what two such distances hold and what came while the newest snapshot was written: with
    `epochs=10` and few rows, about 64 in all.

    >>> Retention(epochs=1000)
    Retention(snapshots=2, epochs=1000, age_us=None)
    """

    snapshots: int = SNAPSHOTS_KEPT
    epochs: int | None = None
    age_us: int | None = None

    def __post_init__(self) -> None:
        counts: dict[str, Any] = {"snapshots": self.snapshots, "epochs": self.epochs}
        for name, value in {**counts, "age_us": self.age_us}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InputError(f"retention with {name}={shown(value)}: it is a whole number")
        if self.snapshots < 1:
            raise InputError(f"retention of {self.snapshots} snapshots: at least 1 is needed")
        for name, value in (("epochs", self.epochs), ("age_us", self.age_us)):
            if value is not None and value < 0:
                raise InputError(f"retention with {name}={value}: it cannot be below 0")


@dataclass(frozen=True)
class Kept:
    """What retention needs to know of one whole snapshot."""

    epoch: int
    time_us: int
    segment: int
    references: frozenset[int]


@dataclass(frozen=True)
class Trimmed:
    """What one trimming did: the oldest readable epoch now, and the files it removed."""

    first_epoch: int
    removed: tuple[str, ...]


def is_due(policy: Retention | None, mark: Mark, snapshot_epoch: int) -> bool:
    """Whether enough epochs came since the last snapshot, however short their log is."""
    kept = None if policy is None else policy.epochs
    wanted = SNAPSHOT_EPOCHS if kept is None else min(kept, SNAPSHOT_EPOCHS)
    least = max(SNAPSHOT_EPOCHS_MIN, sum(mark.slots.values()) // SNAPSHOT_SLOTS_PER_EPOCH)
    return mark.epoch - snapshot_epoch >= max(wanted, least)


def floor_of(policy: Retention, kept: list[Kept], last_epoch: int, now_us: int) -> int:
    """The epoch of the snapshot to which the policy lets the floor rise; 0 when it may not."""
    if len(kept) < policy.snapshots:
        return 0
    limit = kept[-policy.snapshots].epoch
    if policy.epochs is not None:
        limit = min(limit, last_epoch - policy.epochs)
    if policy.age_us is not None:
        # A snapshot's time is its epoch's: the state of every later moment is rebuilt from it on.
        old = [each.epoch for each in kept if each.time_us <= now_us - policy.age_us]
        limit = min(limit, max(old, default=0))
    return max((each.epoch for each in kept if each.epoch <= limit), default=0)


class Trimmer:
    """Removes the files of one store; its writer sees to it that one thread at a time trims."""

    def __init__(self, disk: Disk, path: str, lineage: Lineage = UNKNOWN) -> None:
        self._lineage = lineage
        self._disk = disk
        self._path = path
        self._log = os.path.join(path, layout.LOG_FOLDER)
        self._snapshots = os.path.join(path, layout.SNAPSHOT_FOLDER)
        self._removed: list[str] = []

    def trim(self, policy: Retention, last_epoch: int, now_us: int) -> Trimmed:
        """Raise the floor as far as the policy lets it and remove what no one needs any more."""
        kept = self._listing()
        floor = read_floor(self._disk, self._path)
        wanted = floor_of(policy, kept, last_epoch, now_us)
        if wanted > floor:
            write_floor(self._disk, self._path, wanted, self._lineage)
            floor = wanted
            LOG.info("%s: trimmed; the oldest epoch is now %d", self._path, floor)
        needed = self._needed(kept, floor, now_us)
        if needed is not None:
            self._retire(needed.epoch)
            self._remove_segments(needed.segment)
            self._removed += remove_superseded(self._disk, self._path, needed.epoch)
        return Trimmed(floor, tuple(self._removed))

    def thin(self, now_us: int, count: int = SNAPSHOTS_KEPT) -> None:
        """Give up snapshots, but no epoch: of a whole log all but the newest are for speed only.

        While anyone reads from the beginning, nothing is given up: the next snapshot makes up for
        it. Who holds a later epoch follows the log, and who holds for a time can begin with it.
        Where the log was trimmed once, everything from the floor's own snapshot on stays.
        """
        kept = self._listing()
        floor = read_floor(self._disk, self._path)
        if floor:
            needed = self._needed(kept, floor, now_us)
            if needed is not None:
                self._retire(needed.epoch)
                self._removed += remove_superseded(self._disk, self._path, needed.epoch)
        elif len(kept) > count and 0 not in self._at_work(now_us):
            self._retire(kept[-count].epoch)

    def _at_work(self, now_us: int) -> list[int]:
        return leased_epochs(self._disk, self._path, now_us, at_work=True)

    def _needed(self, kept: list[Kept], floor: int, now_us: int) -> Kept | None:
        """The oldest snapshot that the floor or a reader needs; None when everything must stay."""
        limit = min([floor, *leased_epochs(self._disk, self._path, now_us)])
        return max(
            (each for each in kept if 0 < each.epoch <= limit),
            key=lambda each: each.epoch,
            default=None,
        )

    def _listing(self) -> list[Kept]:
        """The snapshots whose footer is whole, ascending; the others are of no use to anyone."""
        found = []
        for epoch in snapshot_epochs(self._disk, self._snapshots):
            with contextlib.suppress(DamageError):
                found.append(_kept(self._disk, self._snapshots, epoch))
        return found

    def _retire(self, first_epoch: int) -> None:
        """Give up the snapshots before the epoch, but for the blocks that later ones refer to."""
        later = [each for each in self._listing() if each.epoch >= first_epoch]
        referred = frozenset[int]().union(*(each.references for each in later))
        for epoch in snapshot_epochs(self._disk, self._snapshots):
            if epoch < first_epoch:
                self._give_up(epoch, epoch in referred)
        names = self._disk.list(self._snapshots)
        for epoch in layout.numbers_of(names, layout.BLOCKS_SUFFIX):
            if epoch not in referred:
                self._remove(os.path.join(self._snapshots, layout.blocks_name(epoch)))
        self._disk.sync_folder(self._snapshots)

    def _give_up(self, epoch: int, has_blocks: bool) -> None:
        file = os.path.join(self._snapshots, layout.snapshot_name(epoch))
        if has_blocks:
            self._disk.rename(file, os.path.join(self._snapshots, layout.blocks_name(epoch)))
        else:
            self._remove(file)

    def _remove_segments(self, first_segment: int) -> None:
        """Remove the segments before this one, oldest first: what is left never has a gap."""
        names = self._disk.list(self._log)
        for segment in layout.numbers_of(names, layout.SEGMENT_SUFFIX):
            if segment < first_segment:
                self._remove(os.path.join(self._log, layout.segment_name(segment)))
        self._disk.sync_folder(self._log)

    def _remove(self, file: str) -> None:
        self._disk.remove(file)
        self._removed.append(file)


def _kept(disk: Disk, folder: str, epoch: int) -> Kept:
    snapshot = Snapshot.open(disk, folder, epoch)
    try:
        references = frozenset(snapshot.references())
        return Kept(epoch, snapshot.time_us, snapshot.position.segment, references)
    finally:
        snapshot.close()


def rebuilt_floor(disk: Disk, path: str) -> int:
    """The floor of a store whose own record of it is damaged: where the log is complete from.

    Segments go oldest first, so the ones that are left have no gap; a snapshot counts when the
    segment it points into is still there.
    """
    names = disk.list(os.path.join(path, layout.LOG_FOLDER))
    segments = layout.numbers_of(names, layout.SEGMENT_SUFFIX)
    if segments[:1] == [1]:
        return 0
    kept = Trimmer(disk, path)._listing()
    usable = [each.epoch for each in kept if not segments or each.segment >= segments[0]]
    return min(usable, default=0)


# --- the floor, and the leases that keep it from rising -------------------------------------------
# Invariant: the floor is durable before the first file below it is removed. A reader first takes
# its lease and then looks at the floor, the writer first raises the floor and then looks at the
# leases; so either the reader learns that it came too late, or the writer leaves what the reader
# needs.


_UNTIL = "until"  # in the place of the process number: the lease ends by the clock


def read_floor(disk: Disk, path: str) -> int:
    """The oldest epoch that can be read in the store; 0 when nothing was ever trimmed."""
    file = os.path.join(path, layout.FLOOR_NAME)
    try:
        record = read_file(disk, file)
    except FileNotFoundError:
        return 0
    try:
        if len(record) != layout.RECORD_BYTES:
            raise DamageError(f"{file}: {len(record)} bytes")
        return layout.unseal(layout.FLOOR_RECORD, layout.FLOOR_MAGIC, record, file)[0]
    except DamageError as error:
        what = "the floor is damaged (opening the store to write rebuilds it)"
        raise layout.damage(file, 0, what) from error


def write_floor(disk: Disk, path: str, epoch: int, lineage: Lineage = UNKNOWN) -> None:
    """Raise the floor, durably; only after that may files below it be removed."""
    record = layout.seal(layout.FLOOR_RECORD, layout.FLOOR_MAGIC, epoch, lineage.store, lineage.id)
    replace_file(disk, os.path.join(path, layout.FLOOR_NAME), record)


class Lease:
    """A reader's word to the writer that it needs an epoch; it ends with the process at last."""

    def __init__(self, disk: Disk, file: str, lock: Lock) -> None:
        self._disk = disk
        self._file = file
        self._lock = lock

    def release(self) -> None:
        """Need the epoch no longer; releasing twice is fine."""
        with contextlib.suppress(OSError):
            self._disk.remove(self._file)
        self._lock.release()


def take_lease(disk: Disk, path: str, epoch: int) -> Lease | None:
    """Register the need of an epoch; None where this process may not write to the folder.

    Without a lease a read is still right or a named error: only its files may go under its hands.
    """
    folder = os.path.join(path, layout.LEASE_FOLDER)
    while True:
        name = f"{epoch:020d}.{os.getpid()}.{secrets.token_hex(4)}{layout.LEASE_SUFFIX}"
        file = os.path.join(folder, name)
        try:
            lock = disk.lock(file)
        except LockedError:
            continue  # the writer tested, between our making and our locking it, if we are dead
        except OSError:
            return None
        if disk.exists(file):
            return Lease(disk, file, lock)
        lock.release()  # the writer took it for one of the dead and removed it


class Hold:
    """Everything from `first_epoch` on stays readable for whoever holds this, until `release`."""

    def __init__(self, first_epoch: int, lease: Lease | None) -> None:
        self.first_epoch = first_epoch
        self._lease = lease

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def hold(disk: Disk, path: str, held_from: int | None = None) -> Hold:
    """Keep all that can be read now from being removed.

    The lease is on the floor itself, not on the epoch that is wanted: which snapshot a reader will
    begin with is not known before, and the writer may give that one up for a newer one. Where
    someone else holds `held_from` already, that is held on.
    """
    if held_from is not None:
        return Hold(held_from, take_lease(disk, path, held_from))
    while True:
        floor = read_floor(disk, path)
        held = Hold(floor, take_lease(disk, path, floor))
        try:
            if read_floor(disk, path) == floor:
                return held
        except BaseException:
            held.release()
            raise
        held.release()  # the floor rose meanwhile, perhaps before the writer could see the lease


def hold_for(
    disk: Disk, path: str, clock: Clock, seconds: float, held_from: int | None = None
) -> int:
    """As `hold`, but for a time, and also beyond the end of this process; returns the epoch held.

    For work that is planned in one process and done in others: whoever takes it over while it is
    held can go on holding it.
    """
    with hold(disk, path, held_from) as held:
        until_us = clock.time_us() + int(seconds * 1e6)
        token = secrets.token_hex(4)
        name = f"{held.first_epoch:020d}.{_UNTIL}.{until_us}.{token}{layout.LEASE_SUFFIX}"
        # Who may not write to the folder holds nothing, as with every lease.
        with contextlib.suppress(OSError):
            disk.open(os.path.join(path, layout.LEASE_FOLDER, name), "create").close()
        return held.first_epoch


def leased_epochs(disk: Disk, path: str, now_us: int, at_work: bool = False) -> list[int]:
    """The epochs that readers need; what others left behind is cleared away.

    `at_work` leaves out the leases for a time: of those, no one may be reading at this moment.
    """
    folder = os.path.join(path, layout.LEASE_FOLDER)
    found = []
    for name in disk.list(folder):
        number, _, rest = name.partition(".")
        if not name.endswith(layout.LEASE_SUFFIX) or not number.isdecimal():
            continue
        file = os.path.join(folder, name)
        kind, _, until = rest.partition(".")
        if kind == _UNTIL:
            is_needed = _lasts(disk, file, until.partition(".")[0], now_us) and not at_work
        else:
            is_needed = _is_locked(disk, file)
        if is_needed:
            found.append(int(number))
    return found


def _lasts(disk: Disk, file: str, until_us: str, now_us: int) -> bool:
    """Whether a lease for a time still counts; one that does not is removed."""
    if not until_us.isdecimal() or int(until_us) > now_us:
        return True
    with contextlib.suppress(FileNotFoundError, PermissionError):
        disk.remove(file)
    return False


def _is_locked(disk: Disk, file: str) -> bool:
    """Whether the process that took a lease lives; the lease of a dead one is removed."""
    try:
        lock = disk.lock(file)
    except (LockedError, PermissionError):
        # The lease of another user cannot be tested; that its holder lives is the safe guess.
        return True
    try:
        with contextlib.suppress(FileNotFoundError):
            disk.remove(file)
    finally:
        lock.release()
    return False
