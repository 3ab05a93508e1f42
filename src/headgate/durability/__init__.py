"""The log, its snapshots and recovery: an epoch that was acknowledged is never lost or halved."""

from __future__ import annotations

from headgate.durability.commit import (
    ALIVE,
    SLOT,
    Batch,
    Commit,
    CommitInfo,
    Durability,
    Inlet,
    Receiver,
    Recovered,
    check_durability,
)
from headgate.durability.copying import Copied, backup, restore
from headgate.durability.examination import Report, verify
from headgate.durability.log_record import OpenFrame
from headgate.durability.reader import StoreReader
from headgate.durability.recovery import require_fingerprint
from headgate.durability.retention import Hold, Retention, Trimmed
from headgate.durability.store import Store

__all__ = [
    "ALIVE",
    "SLOT",
    "Batch",
    "Commit",
    "CommitInfo",
    "Copied",
    "Durability",
    "Hold",
    "Inlet",
    "OpenFrame",
    "Receiver",
    "Recovered",
    "Report",
    "Retention",
    "Store",
    "StoreReader",
    "Trimmed",
    "backup",
    "check_durability",
    "require_fingerprint",
    "restore",
    "verify",
]
