"""The manifest: a store's declarations as JSON, replaced whole, proved by a checksum.

Invariant: a folder with a manifest is a store; it is the last file that making a store creates.

Declarations change with epochs. At the top stand the newest ones, which hold from the epoch `since`
on; `past` has those before them, oldest first. New ones are written before the epoch that brings
them is logged. Until that epoch is there they mean nothing, and opening the store to write cuts
them off: so whoever reads an epoch's number first, and the manifest then, finds what holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from headgate.durability import format as layout
from headgate.durability.decoding import json_of
from headgate.durability.lineage import Lineage
from headgate.errors import DamageError, FormatError
from headgate.io import Disk, read_file, replace_file


def read_manifest(disk: Disk, path: str) -> dict[str, Any]:
    """The declarations in the file; FileNotFoundError when there is none."""
    return _read(disk, path)[0]


def read_lineage(disk: Disk, path: str) -> Lineage:
    """Which store, and which history of it, the manifest is of; UNKNOWN parts in format 1."""
    return _read(disk, path)[1]


def _read(disk: Disk, path: str) -> tuple[dict[str, Any], Lineage]:
    content = read_file(disk, path)
    try:
        whole = json_of(content)
        version, stored, manifest = whole["headgate"], whole["checksum"], whole["manifest"]
        if isinstance(version, int) and version > layout.VERSION:
            raise FormatError(
                f"{path}: the store was written by format {version}, and this Headgate reads "
                f"format {layout.VERSION}: upgrade Headgate"
            )
        # A store of format 1 has no identity yet: all its files are of that format.
        lineage = Lineage(carried=sys.maxsize)
        if version != 1:
            carried = whole["carried"]
            lineage = Lineage(int(whole["store"], 16), int(whole["lineage"], 16), carried)
            if not isinstance(carried, int | None) or _identity(lineage) != [
                whole["store"], whole["lineage"], carried
            ]:  # fmt: skip
                raise ValueError("its identity is not in the form it was written")
        checksum = _checksum(version, manifest, lineage)
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise layout.damage(path, 0, "the manifest is not readable") from error
    if stored != checksum or not isinstance(manifest, dict):
        raise _mismatch(path)
    return manifest, lineage


def write_manifest(
    disk: Disk, path: str, manifest: Mapping[str, Any], lineage: Lineage | None = None
) -> None:
    """Replace the declarations in one durable step; the lineage stays, unless one is given."""
    if lineage is None:
        lineage = read_lineage(disk, path)
    whole = {
        "headgate": layout.VERSION,
        "checksum": _checksum(layout.VERSION, manifest, lineage),
        "store": f"{lineage.store:016x}",
        "lineage": f"{lineage.id:016x}",
        "carried": lineage.carried,
        "manifest": manifest,
    }
    replace_file(disk, path, json.dumps(whole, indent=2).encode() + b"\n")


def version_at(manifest: Mapping[str, Any], epoch: int) -> Mapping[str, Any]:
    """The declarations that hold at an epoch."""
    newest_first: list[Mapping[str, Any]] = [manifest, *reversed(manifest.get("past", ()))]
    return next((one for one in newest_first if one.get("since", 0) <= epoch), newest_first[-1])


def cut_at(manifest: Mapping[str, Any], epoch: int) -> dict[str, Any]:
    """The manifest as it was at an epoch: what holds from a later one on is gone."""
    version = dict(version_at(manifest, epoch))
    past = [one for one in manifest.get("past", ()) if one.get("since", 0) <= epoch]
    past = [one for one in past if one.get("since", 0) < version.get("since", 0)]
    return {**version, "past": past} if past else version


def _identity(lineage: Lineage) -> list[Any]:
    return [f"{lineage.store:016x}", f"{lineage.id:016x}", lineage.carried]


def _checksum(version: Any, manifest: Any, lineage: Lineage) -> str:
    covered = [version, manifest] if version == 1 else [version, *_identity(lineage), manifest]
    compact = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    return f"{layout.checksum_of(compact.encode()):016x}"


def _mismatch(path: str) -> DamageError:
    return layout.damage(path, 0, "the manifest does not match its checksum")
