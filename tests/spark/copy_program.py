"""A program that copies a results stream into Parquet files, made to be killed."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import headgate as hg
from headgate.spark.session import SETTINGS


def main(store: str, folder: str) -> None:
    builder = SparkSession.builder.master("local[2]").appName("copy")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    hg.register(spark)
    print("ready", flush=True)
    query = (
        spark.readStream.format("headgate")
        .option("stream", "deposit")
        .option("maxEpochsPerTrigger", 4)
        .load(store)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/copy")
    )
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
