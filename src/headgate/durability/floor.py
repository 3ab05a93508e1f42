"""The floor, the oldest epoch that can be read, and the leases that keep it from rising.

Invariant: the floor is durable before the first file below it is removed. A reader first takes its
lease and then looks at the floor, the writer first raises the floor and then looks at the leases;
so either the reader learns that it came too late, or the writer leaves what the reader needs.
"""

from __future__ import annotations

import contextlib
import os
import secrets

from headgate.durability import format as layout
from headgate.durability.lineage import UNKNOWN, Lineage
from headgate.errors import DamageError, LockedError
from headgate.io import Clock, Disk, Lock, read_file, replace_file

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
