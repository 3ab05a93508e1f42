"""Operating a sink: carried columns, the tail of a stream, columns refused before the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.test_sink import Feed, at, deposit, open_bank, transfer

WITH_ID = "event_id string, kind string, ts timestamp, src bigint, dst bigint, amount double"
ROUTES = {"t": transfer, "d": deposit}


def test_carried_columns_are_in_every_result_and_unrouted_events_in_a_stream_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path, WITH_ID)
    feed.add(("a", "t", at(1), 1, 2, 5.0), ("b", "t", at(2), 1, 2, 50.0))
    malformed = ("d", "d", at(4), 1, None, 5.0)
    feed.add(("c", "x", at(3), 1, 2, 5.0), malformed, (None, "d", at(5), 1, 2, 1.0))
    results: list[pa.Table] = []
    with open_bank(tmp_path / "bank") as engine:
        sink = engine.sink(ROUTES, route_by="kind", order_by="ts", carry="event_id, kind")
        feed.run(lambda frame, batch: results.append(sink(frame, batch)))
    seen = [(row["event_id"], row["outcome"]) for table in results for row in table.to_pylist()]
    assert seen == [
        ("a", "committed"), ("b", "aborted"),
        (None, "committed"), ("c", "rejected"), ("d", "rejected"),
    ]  # fmt: skip

    def stream(name: str) -> list[Any]:
        reading = spark.readStream.format("headgate").option("stream", name)
        path = str(tmp_path / f"copy-{name}")
        writing = reading.load(str(tmp_path / "bank")).writeStream.format("parquet")
        writing = writing.option("checkpointLocation", path + "-checkpoint")
        writing.trigger(availableNow=True).start(path).awaitTermination()
        rows = spark.read.parquet(path).orderBy("epoch", "position").collect()
        return [(row.event_id, row.kind, row.reason) for row in rows]

    assert stream("transfer") == [("a", "t", None), ("b", "t", "insufficient funds")]
    assert stream("deposit") == [(None, "d", None), ("d", "d", "null key: dst")]
    assert stream("unrouted") == [("c", "x", "unknown route: x")]
