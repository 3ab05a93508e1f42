"""The Spark session: it learns the data source "headgate"; and a quiet one on this machine.

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
import logging
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if TYPE_CHECKING:
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


# --- a quiet Spark on this machine ----------------------------------------------------------------
# One process, no console noise, its log in a file.
#
# What Spark and Java print goes to the log file for as long as they live; the terminal is the
# demo's.


JAVA_VERSION_MIN = 17
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # A short program ends before Java's second compiler has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
NO_JAVA = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer and {{found}}; install one "
    "(Debian, Ubuntu: apt-get install default-jre-headless; Fedora: dnf install "
    "java-21-openjdk-headless; macOS: brew install openjdk@21) or set JAVA_HOME to its folder"
)


def start_session(name: str, log: Path) -> SparkSession:
    """A session on two local threads that knows the format "headgate"; InputError without Java."""
    require_java()
    # The stop of a running micro-batch is no fault that a user of the demo should read about.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), _noise_goes_to(log):
        warnings.simplefilter("ignore")
        session = _start(name, log)
        session.sparkContext.setLogLevel("ERROR")
        register(session)
    return session


def _start(name: str, log: Path) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName(name)
    for setting, value in SETTINGS.items():
        builder = builder.config(setting, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise InputError(f"Spark does not start: {error}; its log is {log}") from error


@contextmanager
def _noise_goes_to(log: Path) -> Iterator[None]:
    """Let a program that starts in here, Java above all, write its standard error to a file."""
    saved = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def require_java() -> None:
    """InputError, saying what to install, unless the Java that Spark would start is new enough."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME ({home}) has none" if home else "none is on PATH"
        raise InputError(NO_JAVA.format(found=where))
    version = _java_version(java)
    if version is not None and version < JAVA_VERSION_MIN:
        raise InputError(NO_JAVA.format(found=f"{java} is Java {version}"))


def _java_version(java: str) -> int | None:
    """The first number of its version; None when it does not say, and Spark may find out."""
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if found is None:
        return None
    # Java 8 called itself 1.8.
    return int(found[2] or 0) if found[1] == "1" else int(found[1])
