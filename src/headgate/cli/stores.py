"""Stores as the commands see them: opened for reading only, beside a writer or without one."""

from __future__ import annotations

import os
from pathlib import Path

from headgate.durability import StoreReader
from headgate.durability.format import MANIFEST_NAME
from headgate.errors import InputError


def open_store(path: Path) -> StoreReader:
    """Open a store to read; InputError when there is none."""
    require_store(path)
    return StoreReader.open(path)


def require_store(path: Path) -> None:
    """InputError that says where there is a store, or how to make one, unless one is here."""
    if (path / MANIFEST_NAME).exists():
        return
    inside = sorted(found.parent for found in path.glob(f"*/{MANIFEST_NAME}"))
    if inside:
        advice = f"did you mean {inside[0]}?"
    elif path.exists():
        advice = "the folder holds no store; check the path"
    else:
        advice = "check the path, or make a store with hg.open(path, ...) or `headgate demo`"
    raise InputError(f"there is no store at {os.path.abspath(path)}: {advice}")
