"""The Spark session: it learns the data source "headgate" and runs workers on our interpreter.

A Spark worker unpickles this package, so it must be the interpreter that has it: the driver's own,
unless the user chose one with PYSPARK_PYTHON.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from headgate.errors import InputError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

WORKER_PYTHON = "PYSPARK_PYTHON"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has chosen the interpreters itself
SPARK_DEFAULT_PYTHON = "python3"  # what a SparkContext takes when PYSPARK_PYTHON is not set


def choose_worker_interpreter(environment: MutableMapping[str, str] | None = None) -> None:
    """Let sessions that start later run their workers on this interpreter.

    It runs when headgate is imported, imports no pyspark, and respects PYSPARK_PYTHON.
    """
    variables = os.environ if environment is None else environment
    if SUBMITTED not in variables and sys.executable:
        variables.setdefault(WORKER_PYTHON, sys.executable)


def register(spark: SparkSession) -> None:
    """Teach a session the format "headgate"; twice does no harm.

    >>> register(spark)                                                         # doctest: +SKIP
    >>> spark.read.format("headgate").option("table", "accounts").load("bank")  # doctest: +SKIP
    """
    from headgate.spark.source import HeadgateSource

    if not hasattr(spark, "dataSource"):
        raise InputError(f"hg.register takes a SparkSession, not a {type(spark).__name__}")
    _mend_running_context(spark.sparkContext)
    spark.dataSource.register(HeadgateSource)


def _mend_running_context(context: SparkContext) -> None:
    # A session that started before headgate was imported took Spark's default interpreter, which
    # may lack this package or pyarrow. What it registers from now on runs on the driver's.
    chosen = os.environ.get(WORKER_PYTHON, sys.executable)
    untouched = context.pythonExec == SPARK_DEFAULT_PYTHON and SUBMITTED not in os.environ
    if untouched and chosen:
        context.pythonExec = chosen
