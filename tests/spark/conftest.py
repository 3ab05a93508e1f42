"""One small local Spark for all tests here, and stores that are written without an engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.spark.session import choose_worker_interpreter, register

# Half the time of a short test goes into the JVM's second compiler; the first one alone will do.
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": FAST_JVM,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Few rows: compiling a plan takes longer than interpreting it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Not UTC, so that a lost time zone shows.
    "spark.sql.session.timeZone": "Asia/Tokyo",
}
SOURCES = str(Path(headgate.__path__[0]).parent)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    choose_worker_interpreter()
    _let_workers_import_headgate()
    builder = SparkSession.builder.master("local[2]").appName("headgate tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def program_environment() -> dict[str, str]:
    """The environment for a program in a process of its own, which must choose its own Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    kept.pop("SPARK_ENV_LOADED", None)
    return {**kept, "PYTHONPATH": _with_sources(kept.get("PYTHONPATH"))}


def _let_workers_import_headgate() -> None:
    # pytest puts src on its own path only; a worker is another process.
    os.environ["PYTHONPATH"] = _with_sources(os.environ.get("PYTHONPATH"))


def _with_sources(path: str | None) -> str:
    return SOURCES if not path else os.pathsep.join([SOURCES, path])
