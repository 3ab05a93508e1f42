"""Readers: how Spark plans and reads a selection, as one frame or as a stream of epochs.

The driver plans with epoch numbers only; every row is read on an executor, from the store's files.
A stream's offset is the last epoch it has read, so each epoch is in exactly one micro-batch.
What is planned is held, so that the store does not trim it before it is read: of a frame for a time
that every task prolongs, of a stream for as long as the query runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark_source
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from headgate.durability.floor import Hold
from headgate.durability.reader import StoreReader
from headgate.errors import InputError
from headgate.spark.filters import is_supported, select_rows
from headgate.spark.selection import Held, NumberRange, ResultsSelection, Selection

EPOCH = "epoch"  # the one key of an offset


@dataclass(frozen=True)
class Share(spark_source.InputPartition):
    """One task's part of a selection, and what was held for a query that has more of them."""

    value: NumberRange
    held: Held | None = None


class FrameReader(spark_source.DataSourceReader):
    """Reads a selection once, as an ordinary frame; Spark filters the rows itself."""

    def __init__(self, selection: Selection, schema: pa.Schema, partitions: int | None) -> None:
        self._selection = selection
        self._schema = schema
        self._partitions = partitions
        self._conditions: list[spark_source.Filter] = []

    def partitions(self) -> list[spark_source.InputPartition]:
        self._selection.hold_on()
        return [Share(share) for share in self._selection.ranges(self._partitions)]

    def read(self, partition: spark_source.InputPartition) -> Iterator[pa.RecordBatch]:
        # This task holds by itself what it reads; those that come after it need some more time.
        self._selection.hold_on()
        for batch in self._selection.read(partition.value, self._schema):
            yield select_rows(batch, self._conditions)


class FilteringReader(FrameReader):
    """A reader that takes filters over from Spark, asked for with the option pushFilters.

    It is not the default because Spark 4.3 keeps one plan, filters included, for each loaded
    frame: with push-down, `df.where(a)` and later `df.where(b)` on one `df` can both get the rows
    of the filter that was planned last. It is right only for a frame that is used with one filter.
    """

    def pushFilters(self, filters: list[spark_source.Filter]) -> list[spark_source.Filter]:
        self._conditions = [each for each in filters if is_supported(each, self._schema)]
        return [each for each in filters if not is_supported(each, self._schema)]


class StreamReader(spark_source.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads results epoch by epoch, exactly once into the checkpoint of the query."""

    def __init__(
        self,
        selection: ResultsSelection,
        schema: pa.Schema,
        partitions: int | None,
        epochs_max: int | None,
    ) -> None:
        self._selection = selection
        self._schema = schema
        self._partitions = partitions
        self._epochs_max = epochs_max
        self._target: int | None = None
        self._store: StoreReader | None = None
        self._hold: Hold | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {EPOCH: self._selection.epochs.first - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        # Spark passes only its own kinds of limit on; files is the one nearest to epochs.
        return ReadAllAvailable() if self._epochs_max is None else ReadMaxFiles(self._epochs_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._last_epoch()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = int(start[EPOCH])
        last = self._last_epoch() if self._target is None else self._target
        self._require_same_store(done)
        self._hold_from(done)
        if isinstance(limit, ReadMaxFiles):
            last = min(last, done + limit.max_files)
        return {EPOCH: max(last, done)}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {EPOCH: self._last_epoch()}

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[spark_source.InputPartition]:
        epochs = NumberRange(int(start[EPOCH]) + 1, int(end[EPOCH]) + 1)
        if epochs.first >= epochs.end:
            return []
        self._require_same_store(epochs.end - 1)
        held = self._hold_from(epochs.first - 1)
        self._require_kept(epochs.first, held)
        batch = replace(self._selection, epochs=epochs)
        return [Share(share, held) for share in batch.ranges(self._partitions)]

    def _hold_from(self, epoch: int) -> Held:
        """Have the store keep what the query has not read yet, for as long as the query runs.

        This process, in which Spark plans the query, lives that long. A new lease is taken while
        the old one still holds.
        """
        before, path = self._hold, self._selection.path
        if before is not None and before.first_epoch == epoch:
            return Held(epoch)
        held = before or self._selection.held
        is_held = held is not None and held.first_epoch <= epoch
        self._hold = StoreReader.open(path, held_from=epoch if is_held else None).hold()
        if before is not None:
            before.release()
        return Held(self._hold.first_epoch)

    def stop(self) -> None:
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def read(self, partition: spark_source.InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark knows a share by its base class only.
        selection = replace(self._selection, held=getattr(partition, "held", None))
        return selection.read(partition.value, self._schema)

    def _opened(self) -> StoreReader:
        # Opened once on the driver, never before the reader is sent to executors.
        if self._store is None:
            self._store = StoreReader.open(self._selection.path)
        return self._store

    def _last_epoch(self) -> int:
        return self._opened().last_epoch()

    def _require_same_store(self, epoch: int) -> None:
        last = self._last_epoch()
        if epoch > last and epoch >= self._selection.epochs.first:
            raise InputError(
                f"{self._selection.path}: the query's checkpoint has read up to epoch {epoch}, but "
                f"the store ends at epoch {last}; after a loss of power open the store to write "
                "once, otherwise it is another store and the query needs a new checkpoint"
            )

    def _require_kept(self, epoch: int, held: Held) -> None:
        oldest = held.first_epoch + 1
        if epoch < oldest:
            raise InputError(
                f"{self._selection.path}: the results of epochs {epoch} to {oldest - 1} are no "
                f"longer in the store; start a new checkpoint from epoch {oldest}"
            )
