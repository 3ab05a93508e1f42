"""Whole batches: plain ones that run in the process that commits, over the rows of all shards.

They go the engine's straight path, as in a store without shards; what differs is what the log has
of them: not the changed rows, but the name of the part that they are in. Invariant: the part is
durable before the record that names it is complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.durability.part_file import begin_epoch_folder
from headgate.isolation.levels import Executor
from headgate.parallel.decision import Decision
from headgate.shards.share import BatchShare, ShareReport, Task
from headgate.shards.warm import ShardRows
from headgate.state.spaces import Slots

if TYPE_CHECKING:
    from headgate.shards.sharding import Sharding


class WholeBatch:
    """One batch, from before its first event to what the log is to name of it."""

    def __init__(
        self,
        sharding: Sharding,
        share: BatchShare,
        rows: ShardRows,
        executor: Executor,
        decision: Decision,
    ) -> None:
        self._sharding, self._share, self._rows = sharding, share, rows
        self.executor, self.decision = executor, decision
        self._task = Task(sharding.worker, share, rows, "driver", sharding.source)
        self._report = ShareReport(share.number)
        self._before = self._began = 0.0
        self._folder = ""

    def begin(self) -> None:
        """The events run next: what has to be written of the rows as they are now is."""
        began, sharding, share = time.perf_counter(), self._sharding, self._share
        sharding.worker.take_whole(share)  # one that fails half-way is not found there any more
        self._folder = begin_epoch_folder(sharding.source.disk, share.path, share.epoch)
        self._report = ShareReport(share.number, images=self._task.whole_images())
        self._began = time.perf_counter()
        self._before = self._began - began

    def end(self, changed: Mapping[str, Slots], events: int) -> Mapping[str, pa.RecordBatch]:
        """All events have run, and these rows are others than before; what the log is to name."""
        ran, sharding, share = time.perf_counter(), self._sharding, self._share
        part, grown = self._task.keep(changed)
        sharding.source.disk.sync_folder(os.path.dirname(self._folder))
        report = ShareReport(share.number, part, grown=grown, images=self._report.images)
        named = sharding.name_parts(share.epoch, [report])
        sharding.worker.keep_whole(share, self._rows)
        beside = self._before + time.perf_counter() - ran
        sharding.note_here((ran - self._began) / events, beside)
        return named
