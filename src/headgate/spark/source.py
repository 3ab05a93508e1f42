"""The data source "headgate": a store's tables and results as Spark frames and streams.

A frame shows one epoch, fixed when it is loaded: the newest then, or the one asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark_source
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headgate.durability.reader import StoreReader
from headgate.durability.retention import Hold
from headgate.errors import InputError
from headgate.spark.selection import (
    Held,
    NumberRange,
    ResultsSelection,
    Selection,
    TableSelection,
    arrow_schema,
    is_supported,
    local_path,
    require_columns,
    results_schema,
    select_rows,
    spark_schema,
    table_schema,
)
from headgate.state.durations import parse_duration

TABLE_OPTIONS = ("epoch",)
STREAM_OPTIONS = ("startingEpoch", "endingEpoch", "maxEpochsPerTrigger")
OPTIONS = (
    "path", "table", "stream", "partitions", "pushFilters", "hold", *TABLE_OPTIONS, *STREAM_OPTIONS
)  # fmt: skip
HOLD_SECONDS = 600.0


class HeadgateSource(DataSource):
    """The format "headgate" of spark.read and spark.readStream.

    Options: `table` with `epoch` (time travel), or `stream` (a transaction's name, "*" for all)
    with `startingEpoch` (a number, "earliest" or "latest"), `endingEpoch` (frames only) and
    `maxEpochsPerTrigger` (streams only); `partitions`; `pushFilters` (see FilteringReader);
    `hold`, how long the store keeps what a frame reads after it was loaded, planned, or read by a
    task, even where its retention would let it go ("10 minutes" by default).
    """

    _pinned_epoch: int | None = None
    _held: Held | None = None

    @classmethod
    def name(cls) -> str:
        return "headgate"

    def schema(self) -> StructType:
        self._check_options()
        store = self._open()
        # Spark pickles the source after this call, so that all plans of one frame see one epoch.
        seconds = self._hold_seconds()
        self._offered(store)  # what is wrong is said before anything is held
        self._held = Held(store.hold_for(seconds), seconds)
        self._pinned_epoch = self._epoch(store)
        return self._offered(store)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_options()
        store = self._open()
        require_columns(schema, self._offered(store), self._what())
        kind = FilteringReader if self._flag("pushFilters") else FrameReader
        return kind(self._selection(store), arrow_schema(schema), self._number("partitions", 1))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_options()
        if self.options.get("stream") is None:
            raise InputError('readStream reads results: give .option("stream", transaction name)')
        if self.options.get("endingEpoch") is not None:
            raise InputError("endingEpoch is for spark.read; a stream has no end")
        store = self._open()
        require_columns(schema, self._offered(store), self._what())
        return StreamReader(
            self._results(store),
            arrow_schema(schema),
            self._number("partitions", 1),
            self._number("maxEpochsPerTrigger", 1),
        )

    def _hold_seconds(self) -> float:
        text = self.options.get("hold")
        if text is None:
            return HOLD_SECONDS
        return parse_duration(text, "the option hold") / 1e6

    def _open(self) -> StoreReader:
        return StoreReader.open(local_path(self.options.get("path")))

    def _what(self) -> str:
        table, stream = self.options.get("table"), self.options.get("stream")
        return f"stream {stream!r}" if table is None else f"table {table!r}"

    def _check_options(self) -> None:
        known = {name.lower() for name in OPTIONS}
        unknown = sorted(name for name in self.options if name.lower() not in known)
        if unknown:
            names = ", ".join(OPTIONS)
            raise InputError(f"unknown option {unknown[0]!r}; the options are: {names}")
        given = [name for name in ("table", "stream") if self.options.get(name) is not None]
        if len(given) != 1:
            raise InputError(
                'say what to read with .option("table", name) or .option("stream", name); '
                f"given: {' and '.join(given) or 'neither'}"
            )
        misplaced = STREAM_OPTIONS if given == ["table"] else TABLE_OPTIONS
        for name in misplaced:
            if self.options.get(name) is not None:
                raise InputError(f"the option {name} has no meaning when reading a {given[0]}")

    def _offered(self, store: StoreReader) -> StructType:
        table = self.options.get("table")
        if table is not None:
            return spark_schema(table_schema(store, table, self._epoch_of(store)))
        return spark_schema(results_schema(store, self.options["stream"]))

    def _selection(self, store: StoreReader) -> Selection:
        table = self.options.get("table")
        if table is None:
            return self._results(store)
        epoch = self._epoch_of(store)
        return TableSelection(local_path(self.options.get("path")), table, epoch, self._held)

    def _results(self, store: StoreReader) -> ResultsSelection:
        last = self._epoch_of(store)
        starting = str(self.options.get("startingEpoch", "earliest")).lower()
        if starting == "earliest":
            first = (store.first_epoch() if self._held is None else self._held.first_epoch) + 1
        elif starting == "latest":
            first = last + 1
        else:
            first = self._number("startingEpoch", 1) or 1
        path = local_path(self.options.get("path"))
        epochs = NumberRange(first, last + 1)
        return ResultsSelection(path, self.options["stream"], epochs, self._held)

    def _epoch_of(self, store: StoreReader) -> int:
        """The epoch that this load was pinned to, or is about to be."""
        return self._epoch(store) if self._pinned_epoch is None else self._pinned_epoch

    def _epoch(self, store: StoreReader) -> int:
        """The epoch of a table, or the last epoch of results, that this load is about."""
        last = store.last_epoch()
        name = "epoch" if self.options.get("stream") is None else "endingEpoch"
        asked = self._number(name, 0)
        if asked is None:
            return last
        if asked > last:
            raise InputError(f"{name} {asked} does not exist yet; the last epoch is {last}")
        return asked

    def _number(self, name: str, least: int) -> int | None:
        text = self.options.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < least:
            raise InputError(f"the option {name} is a number of at least {least}, not {text!r}")
        return int(text)

    def _flag(self, name: str) -> bool:
        text = str(self.options.get(name, "false")).strip().lower()
        if text not in ("true", "false"):
            raise InputError(f"the option {name} is true or false, not {text!r}")
        return text == "true"


# --- how Spark plans and reads a selection --------------------------------------------------------
# The driver plans with epoch numbers only; every row is read on an executor, from the store's
# files. A stream's offset is the last epoch it has read, so each epoch is in exactly one micro-
# batch. What is planned is held, so that the store does not trim it before it is read: of a frame
# for a time that every task prolongs, of a stream for as long as the query runs.


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
