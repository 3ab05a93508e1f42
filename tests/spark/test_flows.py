"""A dataflow on Spark: fed by a query, followed by others, and killed on its way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from apps import case_study, leaderboard

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("flow_program.py")


def copied(spark: Any, store: Path, stream: str, to: Path) -> list[Any]:
    """All rows of a stream, by a query with a checkpoint that has ended."""
    frame = spark.readStream.format("headgate").option("stream", stream).load(str(store))
    checkpoint = str(to.with_name(f"{to.name}-checkpoint"))
    query = (
        frame.writeStream.format("parquet")
        .trigger(availableNow=True)
        .option("checkpointLocation", checkpoint)
        .start(str(to))
    )
    query.awaitTermination()
    return sorted(tuple(row) for row in spark.read.parquet(str(to)).collect())


def test_the_leaderboard_is_right_and_its_streams_can_be_followed(
    spark: Any, tmp_path: Path
) -> None:
    hg.register(spark)
    assert leaderboard.on_spark(spark, tmp_path, 900)
    store = tmp_path / "show"
    left = copied(spark, store, "left_the_show", tmp_path / "left")
    with leaderboard.open_show(str(store)) as engine:
        rounds = engine.sql("select loser from rounds where loser is not null order by id").rows()
        query = "select * from results where transaction = 'left_the_show' order by epoch"
        recorded = engine.sql(query).dicts()
    assert [(row["contestant"],) for row in recorded] == rounds
    assert len(left) == len(rounds) > 0
    ran = copied(spark, store, "validate", tmp_path / "validate")
    assert len(ran) == 90
    again = leaderboard.on_spark(spark, tmp_path, 900)  # the query has nothing more to send
    assert again


@pytest.mark.parametrize(
    ("recovery", "moments"), [("strong", (9, 40, 0)), ("weak", (20, 0))], ids=["strong", "weak"]
)
def test_the_winner_is_the_same_when_the_process_is_killed(
    recovery: str, moments: tuple[int, ...], tmp_path: Path
) -> None:
    given = leaderboard.make_votes(900)
    case_study.write_files(tmp_path / "events", given, late=0.0)
    for moment in moments:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "HEADGATE_DIE_AT": str(moment)}
        environment["HEADGATE_RECOVERY"] = recovery
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(tmp_path)], env=environment, capture_output=True,
            text=True, timeout=400, start_new_session=True, check=False,
        )  # fmt: skip
        expected = -signal.SIGKILL if moment else 0
        assert done.returncode == expected, done.stderr[-2000:]
    with hg.open(
        tmp_path / "show", tables=leaderboard.TABLES, dataflows=leaderboard.show, recovery=recovery
    ) as engine:
        assert leaderboard.found(engine) == leaderboard.expected(given)
