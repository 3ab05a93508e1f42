"""Kill -9 of an executor in the middle of an epoch, of drivers before and after their record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.durability import verify
from tests.property.harness import same_bytes
from tests.spark.shards_program import LAST_EPOCH, SHARDS, events_of, run_wards
from tests.unit.shards import wards
from tests.unit.shards.bank import ROUTES, TABLES, in_one_process, rows_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("shards_program.py")


def run(folder: Path, master: str, environment: dict[str, str], **hooks: str) -> list[str]:
    """What the program said before it ended."""
    paths = f"{environment['PYTHONPATH']}:{ROOT}"
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), master],
        cwd=folder,  # a cluster leaves a folder of its executors' logs behind
        env={**environment, "PYTHONPATH": paths, **hooks},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == (-9 if "HEADGATE_DIE_AT" in hooks else 0), ended.stderr[-3000:]
    return ended.stdout.splitlines()


@pytest.mark.timeout(900)
def test_executors_and_drivers_that_die_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, program_environment: dict[str, str]
) -> None:
    cluster, local = "local-cluster[2,1,1024]", "local[2]"
    kills = {"HEADGATE_KILL_AT": "3", "HEADGATE_DIE_AT": "before append 4"}
    said = run(tmp_path, cluster, program_environment, **kills)
    assert "epoch 3" in said and "epoch 4" not in said
    assert "killed an executor of 2" in said
    said = run(tmp_path, local, program_environment, HEADGATE_DIE_AT="after append 5")
    assert said == ["epoch 4"]
    one = in_one_process()
    for epoch in range(one.epoch + 1, LAST_EPOCH + 1):
        one.run(ROUTES, events_of(epoch), route_by="what")
    path, transactions = tmp_path / "bank", list(ROUTES.values())
    with hg.open(
        path, tables=TABLES, transactions=transactions, spark=spark, shards=SHARDS
    ) as engine:
        assert engine.epoch == 5  # its record was written, though nobody was told
        engine.run(ROUTES, events_of(6), route_by="what")
        assert rows_of(engine) == rows_of(one)
        named = {name.file for name in engine._memory.parts.names()}
    there = {file.relative_to(path / "parts").as_posix() for file in (path / "parts").rglob("*.*")}
    assert there == named
    assert verify(path).is_whole
    expected = wards.opened(None, 0)
    given = {"transactions": wards.FORMS, "spark": spark, "shards": SHARDS}
    with hg.open(tmp_path / "wards", tables=wards.TABLES, **given) as engine:
        assert engine.epoch == 3  # beside the bank's epoch 5, whose loads it has not
        for _ in range(4):
            run_wards(expected)
        run_wards(engine)
        for name, rows in wards.rows_of(engine).items():
            assert same_bytes(rows, wards.rows_of(expected)[name]), name
        versions = spark.read.format("headgate").option("table", "beds_history")
        read = versions.load(str(tmp_path / "wards"))
        assert read.rdd.getNumPartitions() == SHARDS
        assert read.count() == expected.counts()["beds_history"] > 0
    assert verify(tmp_path / "wards").is_whole
