"""The log, its snapshots and recovery: an epoch that was acknowledged is never lost or halved."""

from __future__ import annotations

from headgate.durability.commit import ALIVE, SLOT, Commit, CommitInfo, Inlet, Recovered
from headgate.durability.reader import StoreReader
from headgate.durability.retention import Retention, Trimmed
from headgate.durability.store import Durability, Store

__all__ = [
    "ALIVE",
    "SLOT",
    "Commit",
    "CommitInfo",
    "Durability",
    "Inlet",
    "Recovered",
    "Retention",
    "Store",
    "StoreReader",
    "Trimmed",
]
