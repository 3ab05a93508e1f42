"""The cluster: shares of a batch as tasks of Spark, with its scheduling, its retries, its workers.

A task is a small value; events and rows go by files of the store, which every executor must see.
Spark runs a task again when its executor is lost, perhaps beside the first one: each attempt writes
under a name of its own, and the driver takes the one that Spark reports. What a worker keeps for
the next batch is a copy (shards/warm.py); its shards come back to its executor where that is so
(cluster.py). One task runs all shares of one slot: starting a task costs as much as many events.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.durability import StoreReader
from headgate.engine.loading import check_rows, read_rows, refuse_columns
from headgate.errors import HeadgateError, InputError, StoreError, describe
from headgate.io import Disk
from headgate.query.sql import Parameters
from headgate.shards.epoch_run import place_rows
from headgate.shards.placement import check_count, shards_of
from headgate.shards.sharding import Sharding
from headgate.shards.share import (
    BatchShare,
    ShardCode,
    ShareReport,
    ShareWorker,
    here,
)
from headgate.shards.warm_files import WarmFiles, is_private

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from headgate.spark.asking import Questions
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark import SparkContext


# --- homes ----------------------------------------------------------------------------------------
# Which executor has a shard, so that its next task runs there, and evenly over all.
#
# A location is a hint: Spark runs a task elsewhere when its executor is gone, and the shard is
# read from the store there. Invariant: every share is in one task, and no task has many more
# events than its part of all, whatever the homes are.


EVEN = 1.25  # of its part of all events a task may have, before its shards go to others
_LOOKS, _LOOK_SECONDS = 10, 0.02  # Spark's own books are written a moment behind


class TaskReport(NamedTuple):
    """What a task hands back: its reports, and where it ran."""

    reports: list[ShareReport]
    folders: str  # of its executor
    stage: int
    task: int


@dataclass
class Group:
    """The shares of one task."""

    location: str | None = None
    shares: list[BatchShare] = field(default_factory=list)
    load: int = 0

    def add(self, share: BatchShare, location: str | None) -> None:
        self.shares.append(share)
        self.load += _weight(share)
        self.location = self.location or location


class ShardHomes:
    """Where shards are, as far as the driver knows."""

    def __init__(self) -> None:
        self._homes: dict[int, str] = {}  # shard -> the folders of its executor
        # Those folders -> a location, as Spark names it; None: it has no name for it.
        self._locations: dict[str, str | None] = {}

    def packed(self, shares: Sequence[BatchShare], slots: int) -> list[Group]:
        """The shares as at most so many tasks, each where its shards are, if that is even."""
        groups = [Group() for _ in range(min(slots, len(shares)))]
        limit = EVEN * sum(map(_weight, shares)) / max(1, len(groups))
        for share in sorted(shares, key=_weight, reverse=True):
            location = self._location(share)
            best = min(groups, key=lambda one: _distance(one, share, location, limit))
            best.add(share, location)
        return [group for group in groups if group.shares]

    def _location(self, share: BatchShare) -> str | None:
        home = None if share.shard is None else self._homes.get(share.shard)
        return None if home is None else self._locations.get(home)

    def note(
        self, context: SparkContext, groups: Sequence[Group], found: Sequence[TaskReport]
    ) -> None:
        """Remember where the shares of a job ran."""
        for group, ran in zip(groups, found, strict=True):
            self._homes.update(
                (one.shard, ran.folders) for one in group.shares if one.shard is not None
            )
            if ran.folders and ran.folders not in self._locations:
                self._locations[ran.folders] = location_of(context, ran.stage, ran.task)


def _weight(share: BatchShare) -> int:
    """About how much a share has to do: the bytes that it is given, and something for itself."""
    return 1024 + (0 if share.given is None else share.given.bytes)


def _distance(
    group: Group, share: BatchShare, location: str | None, limit: float
) -> tuple[bool, int, int]:
    """How little a group suits a share: too full, elsewhere, full."""
    is_full = bool(group.shares) and group.load + _weight(share) > limit
    near = location is not None and group.location == location
    return is_full, 0 if near else 1 if group.location is None else 2, group.load


def location_of(context: SparkContext, stage: int, task: int) -> str | None:
    """The executor that ran a task, as a preferred location names it; None when Spark has
    forgotten, or runs all in the driver's process."""
    store: Any = context._jsc.sc().statusStore()
    for _ in range(_LOOKS):
        tasks = store.taskList(stage, 0, 100_000)
        for place in range(tasks.size()):
            one = tasks.apply(place)
            if one.taskId() == task and one.executorId() != "driver":
                return f"executor_{one.host()}_{one.executorId()}"
            if one.taskId() == task:
                return None
        time.sleep(_LOOK_SECONDS)
    return None


def placed_records(context: SparkContext, given: Sequence[tuple[bytes, str | None]]) -> Any:
    """Records of the JVM, each a partition of its own with the location that it prefers."""
    jvm: Any = context._jvm
    convert = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    records = jvm.java.util.ArrayList()
    for record, location in given:
        places = jvm.java.util.ArrayList()
        if location is not None:
            places.add(location)
        records.add(jvm.scala.Tuple2(bytearray(record), convert(places).toSeq()))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    return context._jsc.sc().makeRDD(convert(records).toSeq(), tag).toJavaRDD()


SHARD = "__shard"
REPORT = "report"
# What a worker of Spark keeps from one task to the next: by the bytes of the code, who runs it.
_WORKERS: dict[bytes, ShareWorker] = {}


def sharded(
    spark: Any,
    shards: Any,
    path: Any,
    recovery: str,
    disk: Disk | None,
) -> Sharding:
    """An engine's rows in shards, which tasks of this session run; refused what is not there."""
    if spark is None or shards is None:
        raise InputError(
            "spark= and shards= go together: hg.open(path, ..., spark=spark, shards=16)"
        )
    count = check_count(shards)
    if not hasattr(spark, "sparkContext") or not hasattr(spark, "createDataFrame"):
        raise InputError(
            f"spark= is a classic SparkSession, which has a sparkContext; not a "
            f"{type(spark).__module__}.{type(spark).__name__}"
        )
    elsewhere = Sharding(SparkTasks(spark), count)
    if path is None:
        raise InputError(
            "a store of shards is a folder that executors see: give its path, not None"
        )
    refused = {
        "recovery='weak'": recovery != "strong",
        "disk=": disk is not None,
    }
    for name, is_said in refused.items():
        if is_said:
            elsewhere.refuse(name)
    return elsewhere


class SparkTasks:
    """Runs shares as tasks of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._code: Broadcast[bytes] | None = None
        self._homes = ShardHomes()
        self._questions: Questions | None = None

    def begin(self, code: ShardCode) -> int:
        from pyspark import cloudpickle

        pickler: Any = cloudpickle
        with _told("begin"):
            self._code = self._spark.sparkContext.broadcast(pickler.dumps(code))
            return self._slots()

    def _slots(self) -> int:
        return max(1, int(self._spark.sparkContext.defaultParallelism))

    def run(self, shares: Sequence[BatchShare]) -> list[ShareReport]:
        is_reading = all(one.words is None and one.shard is not None for one in shares)
        with _told(_what(shares), is_reading=is_reading):
            by_number = {one.number: one for one in self._run(shares)}
        return [by_number[share.number] for share in shares]

    def _run(self, shares: Sequence[BatchShare]) -> list[ShareReport]:
        code, context = self._code, self._spark.sparkContext
        groups = self._homes.packed(shares, self._slots())
        if not groups:
            return []

        def work(given: bytes) -> bytes:
            return run_in_worker(code, given)

        from pyspark import RDD
        from pyspark.serializers import NoOpSerializer

        given = [(pickle.dumps(group.shares), group.location) for group in groups]
        tasks: Any = RDD(placed_records(context, given), context, NoOpSerializer())
        found = [pickle.loads(one) for one in tasks.map(work).collect()]
        self._homes.note(context, groups, found)
        return [one for ran in found for one in ran.reports]

    def is_frame(self, given: Any) -> bool:
        return hasattr(given, "sparkSession") and hasattr(given, "mapInArrow")

    def place(self, frame: DataFrame, share: BatchShare, table: str) -> list[ShareReport]:
        with _told(f"load {table!r}"):
            return self._place(frame, share, table)

    def ask(self, store: StoreReader, query: str, parameters: Parameters, epoch: int) -> pa.Table:
        with _told("answer the query", is_reading=True):
            if self._questions is None:
                from headgate.spark.asking import Questions

                self._questions = Questions(self._spark)
            return self._questions.ask(store, query, parameters, epoch)

    def _place(self, frame: DataFrame, share: BatchShare, table: str) -> list[ShareReport]:
        code: Any = self._code
        given = pickle.dumps(share)

        def numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return number_rows(code, table, batches)

        def written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return place_in_worker(code, given, table, batches)

        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import IntegerType, StructField, StructType

        # Seen here, it is told as for any other frame, and before a task runs.
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        refuse_columns(worker_of(code.value).code.tables[table], columns)
        schema = StructType([*frame.schema.fields, StructField(SHARD, IntegerType(), False)])
        shards = _parts(code, table)
        placed = frame.mapInArrow(numbered, schema).repartitionById(shards, SHARD)
        rows = placed.mapInArrow(written, f"{REPORT} binary").collect()
        return [one for row in rows for one in pickle.loads(bytes(row[REPORT]))]


def _parts(code: Any, table: str) -> int:
    """Over how many partitions the rows of a table are spread."""
    worker = worker_of(code.value)
    return 1 if table in worker.placement.replicated else worker.placement.count


def _what(shares: Sequence[BatchShare]) -> str:
    """What shares are for, in words."""
    if any(share.words is not None for share in shares):
        return "run a batch"
    return "begin" if all(share.shard is None for share in shares) else "read a row"


class _told:
    """For `with`: what Spark says of a failed job, in a sentence of ours."""

    def __init__(self, what: str, *, is_reading: bool = False) -> None:
        self._what, self._is_reading = what, is_reading

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from pyspark import SparkContext
        from pyspark.errors import PySparkException

        advice = "open the store again when the cluster is well"
        if isinstance(error, (OSError, EOFError)):  # of the sockets between Python and Spark
            why = f"Spark's own process does not answer ({describe(error)})"
            advice = "begin a new session, and open the store again with it"
        elif isinstance(error, AttributeError) and SparkContext._active_spark_context is None:
            why, advice = "its session was stopped", "begin a new one, and open the store with it"
        elif isinstance(error, PySparkException) or type(error).__module__ == "py4j.protocol":
            why = _cause(str(error)) or type(error).__name__
            if why.startswith(("ModuleNotFoundError", "ImportError")):
                advice = "have the module on every executor as it is here, and open the store again"
        else:
            return
        so = "" if self._is_reading else "nothing of it is committed: "
        raise StoreError(f"Spark could not {self._what}: {why}; {so}{advice}") from error


def _cause(said: str) -> str:
    """The cause in what Spark says: the error of a worker's traceback, or else the first line, but
    for the call that led to it."""
    lines = [_NAME_OF_ERROR.sub("", line) for line in said.strip().splitlines()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    begins = [place for place, line in enumerate(lines) if _TRACEBACK in line]
    for line in lines[begins[-1] + 1 :] if begins else ():
        if line.strip() and not line[0].isspace():
            return line.strip()
    return lines[0] if lines else ""


_TRACEBACK = "Traceback (most recent call last)"
_NAME_OF_ERROR = re.compile(r"^: (?:[a-z]\w*\.)+[A-Z]\w*: ")  # as Java's stands behind a call


# --- in a worker ----------------------------------------------------------------------------------


def worker_of(code: bytes) -> ShareWorker:
    """Who runs this code in this process, made once."""
    found = _WORKERS.get(code)
    if found is None:
        _WORKERS.clear()  # another program, or a newer version of it: its shards are not ours
        found = _WORKERS[code] = ShareWorker(pickle.loads(code), files=_warm_files())
        gc.freeze()  # what was imported stays; a collection need not look at it for every task
    return found


def _warm_files() -> WarmFiles | None:
    """The files of this executor's machine, as far as that is known."""
    folders = local_folders()
    return WarmFiles(warm_folder(folders[0]), ",".join(folders), beside=True) if folders else None


# Folders that Spark makes for a program, or for a part of it, and removes with it.
_OF_A_PROGRAM = ("blockmgr-", "executor-", "spark-")


def warm_folder(local: str) -> str:
    """Where files of shards outlive a program: beside the folders that Spark makes for one.

    Only on the same disk, which is the one that was meant for such files; else they go with it.
    """
    inside, above = os.path.join(local, "headgate"), local.rstrip("/")
    for begin in _OF_A_PROGRAM:
        if os.path.basename(above).startswith(begin):
            above = os.path.dirname(above)
    folder = os.path.join(above, f"headgate-{os.getuid()}")
    try:
        if above == local.rstrip("/") or os.stat(above).st_dev != os.stat(local).st_dev:
            return inside
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return inside
    return folder if is_private(os.path.join(folder, "any")) else inside


def run_in_worker(code: Any, given: bytes) -> bytes:
    """Run the shares of a task, one after another; what comes back is small."""
    worker, shares, told = worker_of(code.value), pickle.loads(given), attempt()
    reports = [worker.run(share, told) for share in shares]
    worker.rest()
    return pickle.dumps(TaskReport(reports, *whereabouts()))


def local_folders() -> list[str]:
    """Where the executor of this worker may keep files; none in the driver."""
    from pyspark import TaskContext

    said = os.environ.get("SPARK_LOCAL_DIRS", "")
    return [one for one in said.split(",") if one] if TaskContext.get() is not None else []


def whereabouts() -> tuple[str, int, int]:
    """Which executor this is, known by its folders, and which task, as the driver's Spark knows
    it: a worker of Python is not told the executor's number."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return "", -1, -1
    return ",".join(local_folders()), context.stageId(), context.taskAttemptId()


def attempt() -> str:
    """The number of this attempt, which no other task of the session has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "local" if context is None else str(context.taskAttemptId())


def number_rows(
    code: Any, table: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same rows with the number of their shard."""
    worker = worker_of(code.value)
    declared = worker.code.tables[table]
    for batch in batches:
        rows = read_rows(declared, pa.Table.from_batches([batch]))
        # A row of all shards goes to one task.
        shards = shards_of(worker.placement, declared, rows).clip(min=0)
        yield batch.append_column(SHARD, pa.array(shards, pa.int32()))


def place_in_worker(
    code: Any, share: bytes, table: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition as the parts of their shards; what comes back is a report."""
    worker = worker_of(code.value)
    found, declared = list(batches), worker.code.tables[table]
    if not found:
        return
    told: BatchShare = pickle.loads(share)
    try:
        rows = read_rows(declared, pa.Table.from_batches(found).drop_columns([SHARD]))
        check_rows(declared, rows)
        reports = place_rows(worker, told, declared, rows, attempt())
    except HeadgateError as error:
        reports = [ShareReport(0, error=error.with_traceback(None), place=here())]
    yield pa.record_batch({REPORT: pa.array([pickle.dumps(reports)], pa.binary())})
