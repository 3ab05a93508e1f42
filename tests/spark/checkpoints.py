"""What Spark leaves of a query: checkpoints that it refuses, and files that count.

It refuses those of a query that died while it wrote its first offsets.
Spark leaves a file half written there, and from then on refuses the folder, which is not empty and
has no batch (`STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY`). No batch of it has run. So who operates
the query removes the checkpoint and starts again, as docs/spark.md says, and so do the tests.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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


def delivered(folder: Path) -> pa.Table:
    """What a query wrote into Parquet files; Spark's sink lists the files that count in its log."""
    files: list[str] = []
    for log in sorted((folder / "_spark_metadata").glob("[0-9]*")):
        if not log.name.endswith(".crc"):
            files += [line for line in log.read_text().splitlines() if line.startswith("{")]
    names = {line.split('"path":"')[1].split('"')[0].rsplit("/", 1)[1] for line in files}
    return pa.concat_tables([pq.read_table(folder / name) for name in sorted(names)])
