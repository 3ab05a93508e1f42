"""Owners: the engines of this process that are open, at most one of them for each store.

Invariant: none is kept alive by being known here or by a thread of its own; one that is dropped
releases its store, and at the end of the process all that are left are closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headgate.durability import Retention
from headgate.errors import InputError, LockedError, shown
from headgate.io import Disk, RealDisk, local_folder

TAKEN_OVER = "its store was taken over by another engine of this process (takeover=True)"


class Owner(Protocol):
    """An engine as far as its store goes."""

    def owns(self, path: str, disk: Disk | None) -> bool: ...

    def close(self) -> None: ...

    def give_up(self, reason: str) -> None: ...


T = TypeVar("T")
_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def note(owner: Owner) -> None:
    """From now on this engine is known; dropping or closing it makes it forgotten."""
    _owners.add(owner)


def open_owned(
    open_store: Callable[[], T],
    path: str | Path | None,
    disk: Disk | None,
    judge: Callable[[Any], None] | None = None,
) -> T:
    """Open a store, out of the hands of an engine of this process that is gone or may be stopped.

    An engine that no one holds any more may still have the lock, until Python collects it. One
    that is in use is stopped only where `judge` is given and lets the newcomer have its store.
    """
    try:
        return open_store()
    except LockedError:
        if path is None or not _release(local_folder(path), disk, judge):
            raise
    try:
        return open_store()
    except LockedError as error:  # an engine of this process is in use
        advice = "" if judge is not None else ", or open with takeover=True"
        raise LockedError(f"{error}{advice}") from None


def _release(path: str, disk: Disk | None, judge: Callable[[Any], None] | None) -> bool:
    """Whether an engine of this process may have given the store free."""
    found = [owner for owner in list(_owners) if owner.owns(path, disk)]
    if judge is not None:
        for owner in found:
            judge(owner)
        for owner in found:
            owner.give_up(TAKEN_OVER)
    is_ours = bool(found)
    found.clear()
    owner = None
    if is_ours and judge is None:
        gc.collect()
    return is_ours


def check_place(path: Any, retain: Any) -> None:
    """Refuse what cannot be the place of a store, before anything is made there."""
    if path is not None and (not isinstance(path, str | os.PathLike) or not str(path)):
        raise InputError(
            "hg.open takes first the path of the store's folder, or None to keep everything in "
            f"memory; not {'an empty text' if path == '' else type(path).__name__}"
        )
    if retain is not None and not isinstance(retain, Retention):
        raise InputError(f"retain is hg.Retention(...), such as epochs=1000; not {shown(retain)}")


def same_disk(one: Disk, other: Disk | None) -> bool:
    """Whether two disks have the same files under the same names."""
    if other is None or isinstance(other, RealDisk):
        return isinstance(one, RealDisk)
    return one is other


@atexit.register
def _close_all() -> None:
    """At the end of the process: what is open is closed, and what cannot be is left to recovery."""
    for owner in list(_owners):
        with contextlib.suppress(Exception):
            owner.close()
