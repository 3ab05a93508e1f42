"""The program that the kill test of dataflows kills: the leaderboard over files, on Spark.

usage: flow_program.py FOLDER

With HEADGATE_DIE_AT=N it kills its own process right after the Nth record of the log since its
start; that hook is here and not in the product. HEADGATE_SHARDS says in how many shards the rows
are, if in any; with HEADGATE_DIE_BEFORE it dies right before that record, when its parts are there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headgate as hg
from apps import case_study, leaderboard
from headgate.dataflow import stepping
from headgate.durability.store import Store

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    # Few rows: compiling a plan takes longer than interpreting it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def die_at(records: int, *, before: bool) -> None:
    append: Any = Store.append
    written = 0

    def dying(*given: Any, **named: Any) -> Any:
        nonlocal written
        written += 1
        if before and written == records:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = append(*given, **named)
        if written == records:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Store.append = dying  # type: ignore[method-assign]


def main(folder: Path) -> None:
    stepping.TOGETHER_SECONDS = 0.0  # an epoch each: a process may die between any two executions
    moment = int(os.environ["HEADGATE_DIE_AT"])
    if moment:
        die_at(moment, before="HEADGATE_DIE_BEFORE" in os.environ)
    recovery = os.environ["HEADGATE_RECOVERY"]
    builder = SparkSession.builder.master("local[1]").appName("show")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    shards = int(os.environ.get("HEADGATE_SHARDS", "0"))
    where: Any = {"spark": spark, "shards": shards} if shards else {"recovery": recovery}
    with hg.open(
        folder / "show", tables=leaderboard.TABLES, dataflows=leaderboard.show, **where
    ) as engine:
        names = range(1, leaderboard.CONTESTANTS + 1)
        rows = [{"id": n, "name": f"contestant {n}"} for n in names]
        engine.load(leaderboard.contestants, rows, mode="skip")
        sink = engine.sink(leaderboard.votes)
        case_study.feed(spark, folder, leaderboard.COLUMNS, [], sink)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
