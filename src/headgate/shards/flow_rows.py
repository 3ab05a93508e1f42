"""Rows of dataflows: those of the tables that its nodes name, in the driver, beside their shards.

A procedure sees whole tables as they are at its turn, so its rows come to it: the driver keeps a
copy of the tables that dataflows name, and of those that constraints bind to them, and brings it to
the epoch before by the parts that were named since. Executions change it in place, and what an
epoch changed is a part, which the one record of the log names with results, streams and windows.
Invariant: a copy that holds more than the engine's epoch holds what the epoch under way did, and
nothing else; what the log never named is undone, or the engine is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from headgate.durability.part_file import make_epoch_folder
from headgate.errors import DeclarationError
from headgate.isolation.levels import Executor
from headgate.shards.epoch_run import checked
from headgate.shards.share import (
    IMAGE_BYTES_MIN,
    WHOLE,
    WHOLE_IMAGE_SHARE,
    BatchShare,
    ShareReport,
    ShareTask,
    StreamWords,
    bytes_behind,
)
from headgate.shards.warm import ShardRows, bring
from headgate.state.row_history import ENDING
from headgate.state.rows import TableRows
from headgate.state.spaces import Slots
from headgate.state.table import Table
from headgate.transactions import Transaction

if TYPE_CHECKING:
    from headgate.shards.sharding import Sharding

FLOW_BYTES_MAX = 1 << 30  # of rows that the driver has for its dataflows
_NO_EVENTS = StreamWords((), (), None, False)


class FlowRows:
    """The rows that the dataflows of an engine with shards run over."""

    is_by_key = True

    def __init__(
        self, sharding: Sharding, names: Iterable[str], transactions: Sequence[Transaction]
    ) -> None:
        self._sharding, self._names, self._transactions = sharding, [*names], transactions
        self._epoch: int | None = None  # that the copy was brought to
        self._asked: dict[int, int] = {}  # by part of rows: what an image is asked for behind

    @cached_property
    def _tables(self) -> dict[str, Table]:
        """The tables by their names, with those that constraints bind to them, and versions."""
        known, left, found = self._sharding.tables, [*self._names], dict[str, Table]()
        while left:
            name = left.pop()
            if name not in found:
                table = found[name] = known[name]
                left += [one.parent for one in table.references]
                left += [] if table.history is None else [name + ENDING]
                for other in known.values():
                    left += [other.name for one in other.references if one.parent == name]
        return {name: table for name, table in known.items() if name in found}

    @cached_property
    def _rows(self) -> ShardRows:
        return ShardRows(self._tables, self._transactions)

    @property
    def tables(self) -> Mapping[str, TableRows]:
        if self._epoch != self._sharding.epoch:
            self._bring()
        return self._rows.tables

    def executor(self, transactions: Sequence[Transaction], updates: bool = False) -> Executor:
        return self._rows.executor(transactions, updates=updates)

    def _share(self, epoch: int) -> BatchShare:
        return self._sharding.share(epoch, 0, WHOLE)

    def _bring(self) -> None:
        """Let the rows be those of the engine's epoch."""
        self._check_size()
        epoch, self._epoch = self._sharding.epoch, None
        bring(self._rows, self._sharding.source, self._share(epoch).histories)
        self._epoch = epoch

    def _check_size(self) -> None:
        size = self._sharding.bytes_of(self._tables.values())
        if size > FLOW_BYTES_MAX:
            names = ", ".join(self._names)
            raise DeclarationError(
                f"the tables of the dataflows ({names}) take about {size >> 20:,} MiB in the "
                f"driver, where {FLOW_BYTES_MAX >> 20:,} MiB of them may be: have the nodes name "
                "smaller tables, or have the store in one process, by headgate reshard STORE "
                "--shards 0"
            )

    # --- what an epoch did --------------------------------------------------------------------

    def hand_over(self, epoch: int, changed: Mapping[str, Slots]) -> dict[str, pa.RecordBatch]:
        sharding, source = self._sharding, self._sharding.source
        make_epoch_folder(source.disk, source.path, epoch)
        share = self._share(epoch)
        part, grown = ShareTask(sharding.worker, share, self._rows, "flow", source).hand_over(
            changed
        )
        expiring = [name for name in changed if self._tables[name].expires is not None]
        sharding.note_flow(expiring)
        report = ShareReport(0, part, grown=grown)
        return sharding.name(epoch, [report, *self._images(share)])

    def _images(self, share: BatchShare) -> list[ShareReport]:
        """Ask shards for an image of all their rows where much was committed since the last one:
        batches that run on executors have them made as they go, and there may be none.

        Who says that its rows are more is asked again when it is twice as much.
        """
        count, asked = self._sharding.worker.placement.count, list[int]()
        for part, history in share.histories.items():
            behind = bytes_behind(history, count)
            if behind >= self._asked.setdefault(part, WHOLE_IMAGE_SHARE * IMAGE_BYTES_MIN):
                self._asked[part] = 2 * behind
                asked.append(part if part < count else 0)  # the first one has those of all
        shares = [
            self._sharding.share(share.epoch, 1 + number, shard, words=_NO_EVENTS)
            for number, shard in enumerate(sorted({*asked}))
        ]
        reports = checked(self._sharding.tasks.run(shares)) if shares else []
        for report in reports:
            for part in report.images:
                del self._asked[part]
        return reports
