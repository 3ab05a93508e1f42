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
from headgate.errors import DamageError, LockedError
from headgate.io import Disk, Lock, read_file, replace_file


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


def write_floor(disk: Disk, path: str, epoch: int) -> None:
    """Raise the floor, durably; only after that may files below it be removed."""
    record = layout.seal(layout.FLOOR_RECORD, layout.FLOOR_MAGIC, epoch)
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


def hold(disk: Disk, path: str) -> Hold:
    """Keep all that can be read now from being removed.

    The lease is on the floor itself, not on the epoch that is wanted: which snapshot a reader will
    begin with is not known before, and the writer may give that one up for a newer one.
    """
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


def leased_epochs(disk: Disk, path: str) -> list[int]:
    """The epochs that living readers need; what the dead left is cleared away."""
    folder = os.path.join(path, layout.LEASE_FOLDER)
    found = []
    for name in disk.list(folder):
        number = name.partition(".")[0]
        if not name.endswith(layout.LEASE_SUFFIX) or not number.isdecimal():
            continue
        file = os.path.join(folder, name)
        try:
            lock = disk.lock(file)
        except (LockedError, PermissionError):
            # The lease of another user cannot be tested; that its holder lives is the safe guess.
            found.append(int(number))
            continue
        try:
            with contextlib.suppress(FileNotFoundError):
                disk.remove(file)
        finally:
            lock.release()
    return found
