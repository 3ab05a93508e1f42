"""Homes: shards go back to the executor that has them, unless it would have too much to do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.errors import PySparkException

import headgate as hg
from headgate.durability.lineage import UNKNOWN
from headgate.durability.part_file import PartName
from headgate.shards.share import BatchShare, ShardCode, StreamWords
from headgate.spark.cluster import ShardHomes, SparkTasks, _told, warm_folder
from tests.unit.shards.bank import accounts


def share(shard: int | None, size: int = 100_000) -> BatchShare:
    given = PartName("given", 0, size)
    number = 99 if shard is None else shard
    return BatchShare("/data", UNKNOWN, 1, "run", number, "mark", shard, given=given)


def homes_of(places: dict[int, str]) -> ShardHomes:
    homes = ShardHomes()
    homes._homes = dict(places)
    homes._locations = {place: f"executor_{place}" for place in places.values()}
    return homes


def test_shares_are_as_many_tasks_as_run_at_once_and_even() -> None:
    groups = ShardHomes().packed([share(shard) for shard in range(8)], 3)
    assert sorted(len(group.shares) for group in groups) == [2, 3, 3]
    assert {group.location for group in groups} == {None}
    assert not ShardHomes().packed([], 2)
    assert len(ShardHomes().packed([share(None)], 4)) == 1


def test_a_shard_goes_where_it_is() -> None:
    homes = homes_of({shard: "ab"[shard % 2] for shard in range(8)})
    groups = homes.packed([share(shard) for shard in range(8)], 2)
    found = {group.location: sorted(one.shard or 0 for one in group.shares) for group in groups}
    assert found == {"executor_a": [0, 2, 4, 6], "executor_b": [1, 3, 5, 7]}


def test_an_executor_that_has_all_shards_hands_some_over() -> None:
    homes = homes_of(dict.fromkeys(range(8), "a"))
    groups = homes.packed([share(shard) for shard in range(8)], 2)
    assert max(len(group.shares) for group in groups) <= 5
    assert sum(len(group.shares) for group in groups) == 8


def test_a_share_larger_than_all_others_has_a_task_of_its_own() -> None:
    shares = [share(0, 10_000_000), *(share(shard) for shard in range(1, 6))]
    groups = ShardHomes().packed(shares, 2)
    assert sorted(len(group.shares) for group in groups) == [1, 5]


# --- what is said of a cluster that fails ---------------------------------------------------------

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "pyspark/worker.py", line 1, in main
    process()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "headgate/spark/cluster.py", line 1, in worker_of
    found = pickle.loads(code)
            ^^^^^^^^^^^^^^^^^^
{cause}

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.Exception
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            WORKER.format(cause="ModuleNotFoundError: No module named 'ours'"),
            "Spark could not run a batch: ModuleNotFoundError: No module named 'ours'; nothing of "
            "it is committed: have the module on every executor as it is here, and open the store",
        ),
        (
            WORKER.format(cause="ValueError: one\ntwo"),
            "Spark could not run a batch: ValueError: one; nothing of it is committed: open the "
            "store again when the cluster is well",
        ),
        ("Job aborted\nat once", "Spark could not run a batch: Job aborted; nothing of it"),
        (
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collect.\n"
            ": org.apache.spark.SparkException: Job aborted: Task 3 failed 8 times (crashed)\n\tat",
            "Spark could not run a batch: Job aborted: Task 3 failed 8 times (crashed); nothing of",
        ),
    ],
)
def test_what_a_worker_failed_of_is_in_the_error(said: str, words: str) -> None:
    with pytest.raises(hg.StoreError, match=re.escape(words)), _told("run a batch"):
        raise PySparkException(said)


class Ended:
    """A session whose own process has ended."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda tasks: tasks.begin(ShardCode({}, {}, 2)), "begin"),
        (lambda tasks: tasks.run([share(None)]), "begin"),
        (lambda tasks: tasks.run([share(1)]), "read a row"),
        (lambda tasks: tasks.run([replace(share(1), words=StreamWords((), (), None, False))]),
         "run a batch"),
        (lambda tasks: tasks.place(Ended(), share(None), "accounts"), "load 'accounts'"),
    ],
)  # fmt: skip
def test_a_session_that_has_ended_is_told_as_such(
    use: Callable[[SparkTasks], Any], what: str
) -> None:
    ended: Any = Ended()
    words = f"could not {what}: Spark's own process does not answer (ConnectionRefusedError: "
    with pytest.raises(hg.StoreError, match=re.escape(words)) as told:
        use(SparkTasks(ended))
    assert "begin a new session, and open the store again" in str(told.value)
    assert ("nothing of it is committed" in str(told.value)) == (what != "read a row")


def test_the_rows_of_a_frame_whose_session_has_ended_are_told_as_such() -> None:
    words = "load 'accounts': the Spark of this frame does not answer"
    with pytest.raises(hg.StoreError, match=words), hg.open(None, tables=[accounts]) as engine:
        engine.load(accounts, EndedFrame(), mode="missing")


class EndedFrame:
    """A frame of such a session."""

    def toArrow(self) -> NoReturn:
        raise ConnectionRefusedError(111, "Connection refused")


def test_files_of_shards_outlive_a_program_on_the_disk_that_was_meant_for_them(
    tmp_path: Path,
) -> None:
    mine = f"headgate-{os.getuid()}"
    for below in ("blockmgr-1", "spark-1/executor-2/blockmgr-3", "spark-1/blockmgr-4"):
        local = tmp_path / below
        local.mkdir(parents=True)
        assert warm_folder(str(local)) == str(tmp_path / mine)
    assert (tmp_path / mine).stat().st_mode & 0o777 == 0o700
    alone = tmp_path / "container"  # made for one program, by somebody who is not Spark
    alone.mkdir()
    assert warm_folder(str(alone)) == str(alone / "headgate")
    (tmp_path / mine).chmod(0o777)  # others could put files there
    local = tmp_path / "blockmgr-1"
    assert warm_folder(str(local)) == str(local / "headgate")
