"""The sink: runs each micro-batch of a streaming query as one batch of transactions.

A batch is named by the query's id and the batch's number. Both live in the query's checkpoint, so
after a crash the same batch comes back under the same name and is recognised, never run twice.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pyarrow as pa

from headgate.engine.origins import Applied
from headgate.engine.stream import EngineStream
from headgate.errors import HeadgateError, InputError, StoreError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from headgate.dataflow.handles import FlowStream

LOG = logging.getLogger("headgate.sink")
# The name under which Spark gives the thread of a micro-batch its query's id. This is the id in
# the checkpoint's metadata, which a restart keeps, not the id of the run.
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"  # of one start of the query: Spark names its jobs by it
_ENDING_SECONDS = 10.0  # so long the end of the process waits for micro-batches that run


class MicroBatches:
    """The micro-batches that run, in threads that Spark has made and Python does not wait for.

    One that comes back from Arrow's code when the interpreter is gone takes the process with it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._is_over = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """One of them runs inside; none begins any more when the process ends."""
        with self._changed:
            if self._is_over:
                raise StoreError("the process ends: the micro-batch comes again at the next start")
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Let those that run come to their end, and no other begin."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: not self._count, _ENDING_SECONDS)


micro_batches = MicroBatches()
atexit.register(micro_batches.end)


class Sink:
    """What `engine.sink(...)` gives to `foreachBatch`; a call returns the batch's results.

    >>> query = events.writeStream.foreachBatch(engine.sink(transfer))      # doctest: +SKIP
    """

    def __init__(self, stream: EngineStream | FlowStream) -> None:
        self._stream = stream
        self._feed = stream.feed()
        self.error: BaseException | None = None  # why the last micro-batch failed, if it did

    def __call__(self, frame: DataFrame, batch_id: int) -> pa.Table:
        self.error = None
        try:
            origin = (query_id(frame), int(batch_id))
            run = frame.sparkSession.sparkContext.getLocalProperty(RUN_ID)
            with micro_batches.running():
                return self._feed.apply(fetch(frame, self._stream.columns), origin, run)
        except HeadgateError as error:
            self.error = error
            LOG.error("micro-batch %s failed: %s: %s", batch_id, type(error).__name__, error)
            # Spark puts the traceback into its own message: the way through the engine would only
            # hide what is wrong.
            raise error.with_traceback(None) from None

    def check(self, frame: Any) -> Self:
        """Refuse a frame that the sink could not run, at once and before a query is started.

        Takes a Spark frame, streaming or not, of which only the schema is read; or what
        `engine.run` takes. Returns the sink: `foreachBatch(sink.check(events))`.
        """
        self._stream.check(frame)
        return self

    @property
    def progress(self) -> Applied | None:
        """What became of the last micro-batch: epoch and outcomes; and what is held back now."""
        return self._feed.progress()

    def flush(self, query: StreamingQuery | str | None = None) -> pa.Table:
        """Run the events that the watermark still holds back, as if time had passed.

        Exactly once: it is an epoch of its own. The watermark moves to the youngest of them, and
        what is older and comes later is late. After a run with `trigger(availableNow=True)` call
        it, with the query, when `awaitTermination` has returned: before its first micro-batch since
        the start, a sink without a name must be told which query, by the query or its id.
        """
        chosen = query if query is None or isinstance(query, str) else str(query.id)
        return self._feed.flush(chosen)

    def __repr__(self) -> str:
        return f"<sink of {self._stream.told}>"

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a sink cannot leave the process of its engine; Spark Connect runs foreachBatch on "
            "the server, so open the engine and start the query in a classic Spark session"
        )


def query_id(frame: DataFrame) -> str:
    """The id of the streaming query that calls us; it is the same after a restart."""
    found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    if not found:
        raise InputError(
            "the sink was called outside of a streaming query; hand it to foreachBatch and call "
            "it on foreachBatch's own thread (with PYSPARK_PIN_THREAD unset or true), "
            "or use engine.run for a frame that is not a stream"
        )
    return found


def frame_schema(frame: DataFrame, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema in which `fetch` would bring the needed columns; nothing runs."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import TimestampNTZType, TimestampType

    fields = []
    for name, found in zip(columns, _find_columns(frame, columns), strict=True):
        kind = frame.schema[found].dataType
        if isinstance(kind, TimestampNTZType):
            kind = TimestampType()
        try:
            fields.append((name, to_arrow_type(kind, timezone="UTC")))
        except PySparkTypeError:
            raise InputError(
                f"events: column {found!r} is {kind.simpleString()}, which cannot come as Arrow; "
                "cast it before writeStream"
            ) from None
    return pa.schema(fields)


def fetch(frame: DataFrame, columns: Sequence[str]) -> pa.Table:
    """The needed columns of a micro-batch as Arrow; every timestamp is an instant in UTC."""
    from pyspark.sql.types import TimestampNTZType

    names = _find_columns(frame, columns)
    selected = []
    for name, found in zip(columns, names, strict=True):
        column = frame[_quoted(found)]
        if isinstance(frame.schema[found].dataType, TimestampNTZType):
            # A wall-clock time becomes an instant in the session's time zone, as Spark casts it.
            column = column.cast("timestamp")
        selected.append(column.alias(name))
    return frame.select(*selected).toArrow()


def _find_columns(frame: DataFrame, columns: Sequence[str]) -> list[str]:
    # Spark finds columns whatever their case unless told otherwise; so do we.
    cased = str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    fold = str if cased else str.lower
    known = {fold(name): name for name in frame.columns}
    missing = [name for name in columns if fold(name) not in known]
    if missing:
        raise InputError(
            f"the micro-batch has no column {', '.join(map(repr, missing))}; "
            f"its columns are: {', '.join(frame.columns)}; select or rename before writeStream"
        )
    counts = Counter(fold(name) for name in frame.columns)
    twice = [name for name in columns if counts[fold(name)] > 1]
    if twice:
        raise InputError(
            f"the micro-batch has the column {', '.join(map(repr, twice))} more than once; "
            "drop or rename the others before writeStream"
        )
    return [known[fold(name)] for name in columns]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
