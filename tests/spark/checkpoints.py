"""Checkpoints that Spark refuses: those of a query that died while it wrote its first offsets.

Spark leaves a file half written there, and from then on refuses the folder, which is not empty and
has no batch (`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`). No batch of it has run. So who operates
the query removes the checkpoint and starts again, as docs/spark.md says, and so do the tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path

REFUSED = "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"


def remove_refused(folder: Path) -> int:
    """Remove checkpoints of queries that never had a batch; returns how many there were."""
    count = 0
    for checkpoint in folder.glob("*checkpoint*"):
        names = [one.name for one in (checkpoint / "offsets").glob("*")]
        if not any(name.isdigit() for name in names):
            shutil.rmtree(checkpoint)
            count += 1
    return count
