"""A program of a user who sets nothing: reads a table and says which Python the workers are.

usage: read_program.py MASTER STORE (headgate | session)   the word says what comes first
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable

from pyspark.sql import SparkSession

FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
# Executors begin with the classes that `./run test` has kept, as the driver does.
EXECUTOR_JVM = os.environ.get("SPARK_SUBMIT_OPTS", FAST_JVM)


def start_session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.executor.memory", "512m")
    builder = builder.config("spark.driver.extraJavaOptions", FAST_JVM)
    builder = builder.config("spark.executor.extraJavaOptions", EXECUTOR_JVM)
    return builder.config("spark.driver.host", "127.0.0.1").getOrCreate()


def executables(_rows: Iterable[int]) -> Iterable[str]:
    yield sys.executable


def main(master: str, store: str, first: str) -> None:
    if first == "session":
        spark = start_session(master)
    import headgate as hg

    if first == "headgate":
        spark = start_session(master)
    hg.register(spark)
    frame = spark.read.format("headgate").option("table", "things").option("partitions", 4)
    ids = sorted(row.id for row in frame.load(store).collect())
    used = spark.sparkContext.parallelize(range(2), 2).mapPartitions(executables).collect()
    print(json.dumps({"ids": ids, "executables": sorted(set(used))}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
