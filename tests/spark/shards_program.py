"""The program that the kill test of shards kills: a bank in shards, a batch an epoch.

Before each batch of the bank runs one of wards, in a store beside it, whose rows expire.

usage: shards_program.py FOLDER MASTER     goes on where it was, and says each epoch on stdout

HEADGATE_DIE_AT="before append 4" kills the driver at that record of the bank, or "after append 4"
right behind it; HEADGATE_KILL_AT="3 5" kills an executor of a cluster while the batches of these
epochs run. HEADGATE_LAST_EPOCH is where it ends. Batches run on executors, though the driver would
be faster. All these hooks are here and not in the product.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headgate as hg
from headgate.durability.store import Store
from headgate.shards import sharding
from tests.unit.shards import wards
from tests.unit.shards.bank import ROUTES, TABLES, batch, loaded

LAST_EPOCH = int(os.environ.get("HEADGATE_LAST_EPOCH", "6"))
SHARDS = 3
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": FAST_JVM,
    # Executors begin with the classes that `./run test` has kept, as the driver does.
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", FAST_JVM),
}


def events_of(epoch: int) -> list[dict[str, Any]]:
    return batch(random.Random(epoch), 30)


def run_wards(engine: hg.Engine) -> None:
    """The next batch of the wards, some seconds later than the one before."""
    epoch = engine.epoch + 1
    engine.run(wards.ROUTES, wards.events(epoch, 25, begin=4 * epoch), **wards.TIMED)


def die_at(words: str) -> None:
    """Kill this process at a record of the log."""
    when, _, number = words.split()
    append = Store.append

    @functools.wraps(append)
    def dying(self: Store, commit: Any, *more: Any) -> Any:
        if not self.path.endswith("bank"):
            return append(self, commit, *more)
        if when == "before" and commit.epoch == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        found = append(self, commit, *more)
        if commit.epoch == int(number):
            self.wait(commit.epoch)
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Store.append = dying  # type: ignore[method-assign]


def executors(application: str) -> list[int]:
    """The processes of this application's executors."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "CoarseGrainedExecutorBackend" in words and application in words:
                found.append(int(folder.name))
    return found


def kill_one(application: str) -> None:
    """Kill an executor a moment after now."""

    def strike() -> None:
        time.sleep(random.uniform(0.0, 0.2))
        pids = executors(application)
        if not pids:
            return  # the last one has not come back yet
        os.kill(random.choice(pids), signal.SIGKILL)
        print("killed an executor of", len(pids), flush=True)

    threading.Thread(target=strike, daemon=True).start()


def main(folder: str, master: str) -> None:
    builder = SparkSession.builder.master(master).appName("shards")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if os.environ.get("HEADGATE_DIE_AT"):
        die_at(os.environ["HEADGATE_DIE_AT"])
    sharding.DRIVER_BYTES_MAX = 0
    path = os.path.join(folder, "bank")
    transactions = list(ROUTES.values())
    engine = hg.open(path, tables=TABLES, transactions=transactions, spark=spark, shards=SHARDS)
    loaded(engine)
    given: Any = {"transactions": wards.FORMS, "spark": spark, "shards": SHARDS}
    beside = hg.open(os.path.join(folder, "wards"), tables=wards.TABLES, **given)
    while engine.epoch < LAST_EPOCH:
        if str(engine.epoch + 1) in os.environ.get("HEADGATE_KILL_AT", "").split():
            kill_one(spark.sparkContext.applicationId)
        if beside.epoch < engine.epoch - 1:
            run_wards(beside)
        engine.run(ROUTES, events_of(engine.epoch + 1), route_by="what")
        print("epoch", engine.epoch, flush=True)
    beside.close()
    engine.close()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
