"""Dataflows over a store of shards on Spark: fed by queries, followed and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import headgate as hg
from apps import case_study, leaderboard
from headgate.cli.commands import app
from headgate.dataflow import stepping
from headgate.durability import verify
from headgate.shards import flow_rows, sharding
from tests.property.harness import decoded, same_bytes
from tests.spark.test_flows import PROGRAM, ROOT, copied

SHARDS = 2
VOTES = 300


def opened(path: Path, spark: Any = None, flow: Any = leaderboard.show) -> hg.Engine:
    where: Any = {} if spark is None else {"spark": spark, "shards": SHARDS}
    engine = hg.open(path, tables=leaderboard.TABLES, dataflows=flow, **where)
    names = [{"id": n, "name": f"contestant {n}"} for n in range(1, leaderboard.CONTESTANTS + 1)]
    engine.load(leaderboard.contestants, names, mode="skip")
    return engine


def everything(engine: hg.Engine) -> dict[str, Any]:
    found = {
        one.name: engine.sql(f"select * from {one.name} order by {', '.join(one.key)}").arrow()
        for one in leaderboard.TABLES
    }
    results = engine.sql("select * from results order by epoch, position").arrow()
    return {**found, "results": decoded(results)}


ALONE = hg.Dataflow("show", [node.step for node in leaderboard.show.nodes])


@pytest.mark.parametrize("flow", [leaderboard.show, ALONE], ids=["nest", "alone"])
def test_a_flow_over_shards_leaves_the_bytes_of_one_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: hg.Dataflow
) -> None:
    monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 0.0)  # which share an epoch is not for time
    may_leave: Any = flow_rows.FlowRows._may_leave
    monkeypatch.setattr(  # what may runs on executors, as if it were dear
        flow_rows.FlowRows,
        "leaves",
        lambda self, one, rows, each: rows > 0 and may_leave(self, one),
    )
    monkeypatch.setattr(sharding, "DRIVER_BYTES_MAX", 0)
    given, pushed = leaderboard.make_votes(VOTES), 0
    for until in (100, 250, VOTES):  # the store is opened again in between
        engines = opened(tmp_path / "one", None, flow), opened(tmp_path / "shards", spark, flow)
        one, other = engines
        with one, other:
            expected = one.push(leaderboard.votes, given[pushed:until])
            found = other.push(leaderboard.votes, given[pushed:until])
            assert same_bytes(decoded(found), decoded(expected))
            assert one.epoch == other.epoch and one.counts() == other.counts()
            wanted = everything(one)
            for name, table in everything(other).items():
                assert same_bytes(table, wanted[name]), name
            is_there = any(one.scheme == "executors" for one in other.decisions())
            assert is_there == (flow is ALONE)
            nodes = {name: (node.batches, node.rows, node.aborts)
                     for name, node in other.metrics().nodes.items()}  # fmt: skip
            assert nodes == {name: (node.batches, node.rows, node.aborts)
                             for name, node in one.metrics().nodes.items()}  # fmt: skip
        pushed = until
    assert verify(tmp_path / "shards").is_whole


@pytest.mark.timeout(600)
def test_a_driver_that_dies_in_the_middle_of_a_flow_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, program_environment: dict[str, str]
) -> None:
    given = leaderboard.make_votes(VOTES)
    case_study.write_files(tmp_path / "events", given, late=0.0)
    environment = {
        **program_environment,
        "PYTHONPATH": os.pathsep.join([str(ROOT), program_environment["PYTHONPATH"]]),
        "HEADGATE_DIE_AT": "12", "HEADGATE_DIE_BEFORE": "1",  # its part is there, and not named
        "HEADGATE_RECOVERY": "strong", "HEADGATE_SHARDS": str(SHARDS),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], env=environment, capture_output=True,
        text=True, timeout=400, start_new_session=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    store = tmp_path / "show"
    assert any((store / "parts" / f"{12:020d}").iterdir())
    with opened(store, spark) as engine:
        assert engine.epoch == 11
        case_study.feed(spark, tmp_path, leaderboard.COLUMNS, [], engine.sink(leaderboard.votes))
        assert leaderboard.found(engine) == leaderboard.expected(given)
        recorded = engine.sql("select * from results where transaction = 'valid'").arrow()
        named = {name.file for name in engine._memory.parts.names()}
    there = {file.relative_to(store / "parts").as_posix() for file in store.glob("parts/*/*")}
    assert there == named
    assert verify(store).is_whole
    for command, word in (("tables", "ballots"), ("log", "validate")):
        told = CliRunner().invoke(app, [command, str(store)])
        assert told.exit_code == 0 and word in told.output, told.output
    assert len(copied(spark, store, "valid", tmp_path / "valid")) == recorded.num_rows > 0
    tallies = spark.read.format("headgate").option("table", "tallies").load(str(store))
    assert tallies.rdd.getNumPartitions() == SHARDS
