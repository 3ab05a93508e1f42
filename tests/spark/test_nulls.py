"""Nulls on Spark: a sink takes them from a frame, and the source gives them back."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import headgate as hg

DDL = "label string NULL, n int NULL, price decimal(9,2) NULL, seen timestamp NULL, ok boolean NULL"
parcels = hg.Table("parcels", f"id bigint, {DDL}", key="id")


@hg.transaction(event=f"id bigint, {DDL}", compiled=False)
def stow(event, row=parcels.at("id", create=True), out=hg.output("was int NULL, total int NULL")):
    out.was = row.n
    row.label = event.label
    row.price = event.price
    row.seen = event.seen
    row.ok = event.ok
    row.n = event.n
    if event.label is not None:
        out.total = event.n + 1


def test_nulls_go_through_a_sink_and_come_back_from_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        (1, None, None, None, None, None),
        (2, "a", 5, None, None, True),
        (3, "b", None, None, None, False),
    ]
    columns = DDL.replace(" NULL", "")
    schema, store = f"id bigint, {columns}", str(tmp_path / "store")
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "events"))
    with hg.open(store, tables=[parcels], transactions=[stow]) as engine:
        events = spark.readStream.schema(schema).parquet(str(tmp_path / "events"))
        writing = events.writeStream.foreachBatch(engine.sink(stow, order_by="id"))
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()
    reader = spark.read.format("headgate")
    table = reader.option("table", "parcels").load(store).orderBy("id")
    assert [tuple(row) for row in table.collect()] == rows[:2]
    assert table.filter("n is null").count() == 1
    results = spark.read.format("headgate").option("stream", "stow").load(store)
    found = results.orderBy("position").select("reason", "was", "total").collect()
    assert [tuple(row) for row in found] == [
        (None, None, None),
        (None, None, 6),
        ("error: TypeError: None where a value is needed", None, None),
    ]
