"""Progress: what an engine did with each micro-batch, beside Spark's own progress of the query.

Spark shows what `df.observe` counts before `foreachBatch`, and nothing that is counted inside.
So a listener of the session's queries puts the two together, batch by batch.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from headgate.engine.metrics import StreamMetrics
from headgate.engine.origins import Applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.engine.engine import Engine

KEPT = 100
LOG = logging.getLogger("headgate.progress")


@dataclass(frozen=True, repr=False)
class Progress:
    """One micro-batch: Spark's progress as a dict, what the engine did with it, its stream."""

    query: str
    batch: int
    spark: dict[str, Any]
    applied: tuple[Applied, ...]  # one for each sink that the batch went to
    streams: tuple[StreamMetrics, ...]

    def __repr__(self) -> str:
        told = "; ".join(map(repr, self.applied)) or "nothing came in"
        return f"<batch {self.batch} of query {self.query}: {told}>"


class Listener:
    """What `hg.listen` returns: the newest progress in `recent`, newest last; `stop` ends it."""

    def __init__(
        self, spark: SparkSession, engine: Engine, tell: Callable[[Progress], None] | None
    ) -> None:
        self.recent: deque[Progress] = deque(maxlen=KEPT)
        self._spark = spark
        self._engine = engine
        self._tell = tell
        self._ears = _Ears(self._hear)
        spark.streams.addListener(self._ears)

    def _hear(self, progress: Any) -> None:
        query, batch = str(progress.id), int(progress.batchId)
        applied = self._engine.applied(query, batch)
        if not applied:
            return  # a query of someone else, or nothing new came
        metrics = self._engine.metrics().streams
        names = dict.fromkeys(one.stream for one in applied)
        streams = tuple(metrics[name] for name in names if name in metrics)
        found = Progress(query, batch, json.loads(progress.json), applied, streams)
        self.recent.append(found)
        LOG.info("%r", found)
        if self._tell is not None:
            self._tell(found)

    def stop(self) -> None:
        """Listen no more."""
        self._spark.streams.removeListener(self._ears)


class _Ears(StreamingQueryListener):
    """What Spark calls."""

    def __init__(self, hear: Callable[[Any], None]) -> None:
        self._hear = hear

    def onQueryStarted(self, event: Any) -> None:
        """Nothing has happened yet."""

    def onQueryProgress(self, event: Any) -> None:
        self._hear(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new came."""

    def onQueryTerminated(self, event: Any) -> None:
        if event.exception is not None:
            LOG.error("query %s ended with an error", event.id)


def listen(
    spark: SparkSession, engine: Engine, tell: Callable[[Progress], None] | None = None
) -> Listener:
    """Set what an engine does beside the progress of the session's queries.

    Each micro-batch that came to a sink of the engine is logged under `headgate.progress`, kept in
    `recent` of the listener, and handed to `tell`.

    >>> listener = hg.listen(spark, engine)                                 # doctest: +SKIP
    >>> listener.recent[-1].applied[0].outcomes["late"]                     # doctest: +SKIP
    0
    """
    return Listener(spark, engine, tell)
