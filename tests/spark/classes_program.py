"""What tests ask of Spark, once: so that Java can keep the classes that it takes.

usage: classes_program.py FOLDER

`./run test` runs it with `-XX:ArchiveClassesAtExit` before the first test. A Spark that begins with
that archive takes a third of the processor time to start: its classes are loaded and verified.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class Numbers(DataSource):
    """A source in Python, as the one of a store is."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n bigint"

    def reader(self, schema: Any) -> DataSourceReader:
        return NumbersReader()


class NumbersReader(DataSourceReader):
    def read(self, partition: Any) -> Any:
        yield from ((n,) for n in range(10))


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").appName("classes")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(100).selectExpr("id", "id % 7 as k", "cast(id as timestamp) as ts")
    for kind in ("parquet", "json"):
        for _ in range(2):
            rows.write.mode("append").format(kind).save(str(folder / kind))
        stream(spark.readStream.schema(rows.schema).format(kind).load(str(folder / kind)), folder)
    spark.dataSource.register(Numbers)
    numbers = spark.read.format("numbers").load()
    assert rows.join(numbers, rows.k == numbers.n).groupBy("k").count().toArrow().num_rows == 7
    assert numbers.mapInArrow(lambda batches: batches, "n bigint").count() == 10
    assert spark.createDataFrame([(1, "a")], "n bigint, s string").collect()[0].s == "a"
    spark.stop()


def stream(events: DataFrame, folder: Path) -> None:
    """A query that goes to its end over a checkpoint."""
    counts: list[int] = []
    name = f"checkpoint {len(list(folder.iterdir()))}"
    query = (
        events.writeStream.foreachBatch(lambda batch, _: counts.append(batch.toArrow().num_rows))
        .option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(counts) == 200


if __name__ == "__main__":
    main(Path(sys.argv[1]))
