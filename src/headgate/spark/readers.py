"""Readers: how Spark plans and reads a selection, as one frame or as a stream of epochs.

The driver plans with epoch numbers only; every row is read on an executor, from the store's files.
A stream's offset is the last epoch it has read, so each epoch is in exactly one micro-batch.
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

from headgate.durability.reader import StoreReader
from headgate.errors import InputError
from headgate.spark.filters import is_supported, select_rows
from headgate.spark.selection import Range, ResultsSelection, Selection

EPOCH = "epoch"  # the one key of an offset


@dataclass(frozen=True)
class Share(spark_source.InputPartition):
    """One task's part of a selection."""

    value: Range


class FrameReader(spark_source.DataSourceReader):
    """Reads a selection once, as an ordinary frame; Spark filters the rows itself."""

    def __init__(self, selection: Selection, schema: pa.Schema, partitions: int | None) -> None:
        self._selection = selection
        self._schema = schema
        self._partitions = partitions
        self._conditions: list[spark_source.Filter] = []

    def partitions(self) -> list[spark_source.InputPartition]:
        return [Share(share) for share in self._selection.ranges(self._partitions)]

    def read(self, partition: spark_source.InputPartition) -> Iterator[pa.RecordBatch]:
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
        if isinstance(limit, ReadMaxFiles):
            last = min(last, done + limit.max_files)
        return {EPOCH: max(last, done)}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {EPOCH: self._last_epoch()}

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[spark_source.InputPartition]:
        epochs = Range(int(start[EPOCH]) + 1, int(end[EPOCH]) + 1)
        if epochs.first >= epochs.end:
            return []
        self._require_same_store(epochs.end - 1)
        self._require_kept(epochs.first)
        batch = replace(self._selection, epochs=epochs)
        return [Share(share) for share in batch.ranges(self._partitions)]

    def read(self, partition: spark_source.InputPartition) -> Iterator[pa.RecordBatch]:
        return self._selection.read(partition.value, self._schema)

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

    def _require_kept(self, epoch: int) -> None:
        oldest = self._opened().first_epoch() + 1
        if epoch < oldest:
            raise InputError(
                f"{self._selection.path}: the results of epochs {epoch} to {oldest - 1} are no "
                f"longer in the store; start a new checkpoint from epoch {oldest}"
            )
