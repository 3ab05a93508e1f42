"""A soak: drivers and executors of a cluster that die again and again, at random moments."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.durability import verify
from tests.spark.shards_program import SHARDS, events_of
from tests.spark.test_shards_kill import run
from tests.unit.shards.bank import ROUTES, TABLES, in_one_process, rows_of

CLUSTER = "local-cluster[2,1,1024]"
ROUNDS, DRIVERS, EXECUTORS = 15, 2, 4  # of a round: so many die, at least


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_nothing_is_lost_or_doubled_however_often_processes_die(
    spark: SparkSession,
    tmp_path: Path,
    program_environment: dict[str, str],
    long_run: bool,
    number: int,
) -> None:
    said = os.environ.get("HEADGATE_SOAK", "0")  # so many rounds, also without --long
    if not long_run and number >= int(said):
        pytest.skip("all rounds take most of an hour: --long runs them")
    soak(spark, tmp_path, program_environment, random.Random(number))


def soak(
    spark: SparkSession, folder: Path, environment: dict[str, str], draw: random.Random
) -> None:
    """Lives of drivers, each over some epochs, until enough of both have died."""
    epoch, deaths, kills = len(TABLES), 0, 0
    while deaths < DRIVERS or kills < EXECUTORS:
        last = epoch + draw.randint(2, 4)
        struck = [str(one) for one in range(epoch + 1, last + 1) if draw.random() < 0.9]
        when = draw.choice(("before", "after"))
        said = run(
            folder, CLUSTER, environment, HEADGATE_DIE_AT=f"{when} append {last}",
            HEADGATE_KILL_AT=" ".join(struck), HEADGATE_LAST_EPOCH=str(last + 1),
        )  # fmt: skip
        assert [f"epoch {one}" for one in range(epoch + 1, last)] == [
            line for line in said if line.startswith("epoch")
        ]
        kills += sum("killed an executor" in line for line in said)
        deaths, epoch = deaths + 1, last - (when == "before")
        print(f"{deaths} drivers and {kills} executors died, epoch {epoch}", flush=True)
    check(spark, folder / "bank", epoch)


def check(spark: SparkSession, path: Path, epoch: int) -> None:
    """All epochs are there once, and no file but those that are named."""
    one = in_one_process()
    while one.epoch < epoch:
        one.run(ROUTES, events_of(one.epoch + 1), route_by="what")
    transactions = list(ROUTES.values())
    with hg.open(
        path, tables=TABLES, transactions=transactions, spark=spark, shards=SHARDS
    ) as engine:
        assert engine.epoch == epoch
        assert rows_of(engine) == rows_of(one) and engine.counts() == one.counts()
        named = {name.file for name in engine._memory.parts.names()}
    there = {file.relative_to(path / "parts").as_posix() for file in (path / "parts").rglob("*.*")}
    assert there == named
    assert verify(path).is_whole
