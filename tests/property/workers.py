"""Workers: shares of a batch run in this process, with all that happens to tasks on a cluster.

A share may run on any worker, twice, or on one that dies before it reports; which of its attempts
counts is chosen, too. All of it is drawn from one seed, so that a failure comes again.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Sequence
from typing import Any

import headgate as hg
from headgate.dataflow.declared import declare
from headgate.engine.declaring.applying import migrated
from headgate.engine.engine import Engine
from headgate.engine.journal import Journal
from headgate.engine.opening import Newcomer
from headgate.io import Disk
from headgate.shards.sharding import Sharding
from headgate.shards.share import BatchShare, ShardCode, ShareReport, ShareWorker
from headgate.shards.warm_files import WarmFiles
from headgate.state.row_history import with_histories
from headgate.testing.disk import SimulatedClock, SimulatedDisk

PATH = "/data/bank"


class Workers:
    """Some processes that run shares, as far as anyone can tell."""

    def __init__(
        self, seed: int = 0, count: int = 2, trouble: float = 0.0, folder: Any = None
    ) -> None:
        self._files = None if folder is None else WarmFiles(str(folder))
        self._random = random.Random(seed)
        self._count, self._trouble = count, trouble
        self._attempts = 0
        self.workers: list[ShareWorker] = []
        self.disk: Disk | None = None
        self.hows: list[str] = []
        self.reports: list[ShareReport] = []

    def begin(self, code: ShardCode) -> int:
        # Transactions of a test are known by name only: they are handed over as they are.
        self.workers = [ShareWorker(code, self.disk, self._files) for _ in range(self._count)]
        return self._count

    def run(self, shares: Sequence[BatchShare]) -> list[ShareReport]:
        return [self._run(pickle.loads(pickle.dumps(share))) for share in shares]

    def _run(self, share: BatchShare) -> ShareReport:
        reports = [self._attempt(share)]
        while self._random.random() < self._trouble:
            kind = self._random.choice(("killed", "twice", "idle"))
            if kind == "twice":  # a duplicate, or a retry of one whose report was lost
                reports.append(self._attempt(share))
            elif kind == "killed":
                self._random.choice(self.workers).held.forget()
                reports.append(self._attempt(share))
            else:
                self._random.choice(self.workers).held.forget()
        found = self._random.choice(reports)
        self.hows.append(found.how)
        self.reports.append(found)
        return pickle.loads(pickle.dumps(found))

    def _attempt(self, share: BatchShare) -> ShareReport:
        self._attempts += 1
        return self._random.choice(self.workers).run(share, str(self._attempts))

    def is_frame(self, given: Any) -> bool:
        return False

    def place(self, frame: Any, share: BatchShare, table: str) -> list[ShareReport]:
        raise AssertionError("there are no frames here")


def open_sharded(
    tables: Iterable[hg.Table],
    transactions: Iterable[Any],
    shards: int,
    workers: Workers,
    disk: SimulatedDisk | None = None,
    retain: hg.Retention | None = None,
    driver_bytes_max: int = 0,
    migrations: Sequence[hg.Migration] = (),
    dataflows: Sequence[hg.Dataflow] = (),
) -> hg.Engine:
    """An engine with shards whose tasks run in this process, on a disk in memory."""
    disk = disk if disk is not None else SimulatedDisk()
    workers.disk, clock = disk, SimulatedClock()
    named, functions = with_histories(tables), {one.name: one for one in transactions}
    flows = declare(dataflows, named, functions) if dataflows else None
    program = Newcomer(
        named, functions if flows is None else dict(flows.transactions),
        migrations, False, False, disk, flows, Sharding(workers, shards, driver_bytes_max),
    )  # fmt: skip

    def journal_of() -> Journal:
        return Journal.open(PATH, disk, clock, "sync", retain)

    declared = list(program.tables.values())
    journal = migrated(journal_of(), journal_of, migrations, declared, clock)
    try:
        return Engine(journal, program, clock)
    except BaseException:
        journal.close()
        raise
