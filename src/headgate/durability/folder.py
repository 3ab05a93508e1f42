"""The folder of a store: made when there is none, refused when it is something else, and settled.

Invariant: when `prepare_folder` returns, the store has all its folders and files, no file that was
never finished, and no declarations of an epoch that never came to be.
"""

from __future__ import annotations

import os
from typing import Any

from headgate.durability import format as layout
from headgate.durability.commit import Nowhere
from headgate.durability.head import Head, read_head
from headgate.durability.lineage import (
    UNKNOWN,
    Lineage,
    check_lineage,
    is_left_alone,
    no_manifest,
)
from headgate.durability.manifest import cut_at, read_lineage, read_manifest, write_manifest
from headgate.durability.recovery import recover_store
from headgate.durability.retention import read_floor, rebuilt_floor, write_floor
from headgate.errors import DamageError, InputError
from headgate.io import Disk, make_folders


def check_folder(disk: Disk, folder: str) -> None:
    """Refuse to make a store in a folder that holds something else."""
    if not disk.exists(folder):
        return
    try:
        names = set(disk.list(folder))
    except NotADirectoryError as error:
        raise InputError(f"{folder} is a file, and a store is a folder") from error
    known = {
        layout.LOCK_NAME,
        layout.HEAD_NAME,
        layout.LOG_FOLDER,
        layout.SNAPSHOT_FOLDER,
        layout.LEASE_FOLDER,
        layout.HEAD_NAME + layout.UNFINISHED_SUFFIX,
        layout.MANIFEST_NAME + layout.UNFINISHED_SUFFIX,
    }
    if layout.MANIFEST_NAME not in names and names - known:
        other = ", ".join(sorted(names - known)[:3])
        raise InputError(
            f"{folder} is not a store and not empty (it holds {other}): name a new folder"
        )


def prepare_folder(disk: Disk, path: str) -> tuple[dict[str, Any], Lineage]:
    """Make what is missing of a new store, and clear away what was never finished.

    Returns the declarations and the lineage of the store.
    """
    name = os.path.join(path, layout.MANIFEST_NAME)
    manifest: dict[str, Any] = {}
    lineage = UNKNOWN
    # A manifest of a newer format is refused before anything is touched.
    is_new = not disk.exists(name)
    if not is_new:
        manifest, lineage = read_manifest(disk, name), read_lineage(disk, name)
        check_lineage(disk, path, lineage)
    elif is_left_alone(disk, path):
        raise no_manifest(path)
    names = (layout.LOG_FOLDER, layout.SNAPSHOT_FOLDER, layout.LEASE_FOLDER)
    folders = [os.path.join(path, name) for name in names]
    for folder in folders:
        make_folders(disk, folder)
    for folder in [path, *folders]:
        _remove_unfinished(disk, folder)
    if is_new:
        lineage = Lineage.new(disk)
        Head.begin(disk, os.path.join(path, layout.HEAD_NAME), layout.BEGINNING, lineage).close()
        write_manifest(disk, name, {}, lineage)
    manifest = _settled(disk, path, manifest, lineage)
    # A process that was killed may have left names that no one has synced yet.
    for folder in [path, *folders]:
        disk.sync_folder(folder)
    return manifest, lineage


def _settled(disk: Disk, path: str, manifest: dict[str, Any], lineage: Lineage) -> dict[str, Any]:
    """Cut off declarations whose epoch never came to be, before another can take its number."""
    since = manifest.get("since", 0)
    newest = read_head(disk, os.path.join(path, layout.HEAD_NAME))
    if since == 0 or (newest is not None and newest.synced >= since):
        return manifest
    found = recover_store(disk, path, newest, sound_floor(disk, path, lineage), Nowhere())
    if found.mark.epoch >= since:
        return manifest
    manifest = cut_at(manifest, found.mark.epoch)
    write_manifest(disk, os.path.join(path, layout.MANIFEST_NAME), manifest)
    return manifest


def _remove_unfinished(disk: Disk, folder: str) -> None:
    for name in disk.list(folder):
        if name.endswith(layout.UNFINISHED_SUFFIX):
            disk.remove(os.path.join(folder, name))


def sound_floor(disk: Disk, path: str, lineage: Lineage) -> int:
    """The floor; rebuilt when its record is damaged, for the files themselves tell it."""
    try:
        return read_floor(disk, path)
    except DamageError:
        floor = rebuilt_floor(disk, path)
        write_floor(disk, path, floor, lineage)
        return floor
