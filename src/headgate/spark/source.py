"""The data source "headgate": a store's tables and results as Spark frames and streams.

A frame shows one epoch, fixed when it is loaded: the newest then, or the one asked for.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headgate.durability.reader import StoreReader
from headgate.errors import InputError
from headgate.spark.columns import arrow_schema, require_columns, spark_schema
from headgate.spark.readers import FilteringReader, FrameReader, StreamReader
from headgate.spark.selection import (
    Held,
    NumberRange,
    ResultsSelection,
    Selection,
    TableSelection,
    local_path,
    results_schema,
    table_schema,
)

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
        from headgate.engine.terms import parse_duration  # loads Numba: only who asks pays

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
