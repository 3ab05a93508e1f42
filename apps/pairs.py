"""Pairs: two streams, a window over each, a join of the windows, a selection; StreamAPAS's query.

    ./run python apps/pairs.py              in memory, without Spark
    ./run python apps/pairs.py FOLDER       on Spark: reads FOLDER/events, keeps FOLDER/pairs

Two generators give numbers from 0 to 100. Each has a window of 500 rows that slides by ten; a row
that comes makes a pair with each row of the other window whose number is larger (or smaller, as the
side has it), and of the pairs those below 50 are kept, batch by batch. The operators of the query
are nodes, which workers share by the policy Chain-flush. A window is kept by the join that it feeds
(as the paper groups them); both slide in the batches of one number, whichever of the two came
first. On Spark each generator is a query of its own. At
the end the pairs of every batch are compared with plain Python over two lists.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

import headgate as hg
from apps import case_study

WINDOW, SLIDE, BELOW, TOP = 500, 10, 50, 100
COLUMNS = "n bigint, value int"
PAIR = "first_n bigint, second_n bigint, first_value int, second_value int"

first = hg.Stream("first", COLUMNS, order_by="n", batch=f"{SLIDE} rows")
second = hg.Stream("second", COLUMNS, order_by="n", batch=f"{SLIDE} rows")
# What flows between operators is for nobody else to follow.
pairs = hg.Stream("pairs", PAIR, recorded=False)
low = hg.Stream("low_pairs", PAIR, recorded=False)
found = hg.Table("found", "batch bigint, pairs bigint, total bigint", key="batch")


sliding = {"size": f"{WINDOW} rows", "slide": f"{SLIDE} rows"}


@hg.procedure(first.window(**sliding), second.window(**sliding), output=pairs)
def join(ours: pa.Table, theirs: pa.Table, tx: hg.Tx) -> pa.Table:
    """Each row that has just come with all of the other window: old pairs were given before."""
    return tx.sql(
        f"""with old as (select max(n) - {SLIDE} as n from first)
        select a.n as first_n, b.n as second_n, a.value as first_value, b.value as second_value
        from first a join second b on a.value < b.value
        where a.n > (select n from old) or b.n > (select n from old)"""
    )


@hg.procedure(pairs, output=low)
def select(batch: pa.Table, tx: hg.Tx) -> pa.Table:
    return tx.sql(f"select * from batch where first_value < {BELOW}")


@hg.procedure(low, writes=found)
def keep(batch: pa.Table, tx: hg.Tx) -> None:
    tx.upsert(
        found,
        f"""select max(greatest(first_n, second_n)) // {SLIDE} as batch, count(*) as pairs,
        sum(first_n * 7 + second_n)::bigint as total from batch having count(*) > 0""",
    )


query = hg.Dataflow("pairing", [join, select, keep], workers=hg.Workers(2, policy="chain-flush"))


def make_numbers(count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(TOP + 1) for _ in range(count)]


def expected(ours: list[int], theirs: list[int]) -> dict[int, tuple[int, int]]:
    """Of each batch how many pairs are new, and what their numbers add up to, by two loops."""
    wanted = {}
    for end in range(WINDOW, min(len(ours), len(theirs)) + 1, SLIDE):
        begin, new = end - WINDOW, end - SLIDE
        count = total = 0
        for n in range(begin, end):
            if ours[n] >= BELOW:
                continue
            for m in range(begin if n >= new else new, end):
                if ours[n] < theirs[m]:
                    count, total = count + 1, total + n * 7 + m
        if count:
            wanted[(end - 1) // SLIDE] = (count, total)
    return wanted


def compare(engine: hg.Engine, ours: list[int], theirs: list[int]) -> bool:
    """Print how many pairs there were; whether they are those of plain Python."""
    rows = engine.sql("from found order by batch").rows()
    got, wanted = {batch: (count, total) for batch, count, total in rows}, expected(ours, theirs)
    print(f"{len(ours) + len(theirs):,} rows, {sum(count for count, _ in got.values()):,} pairs "
          f"below {BELOW} in {len(got):,} windows")  # fmt: skip
    for name, node in engine.stream(first).metrics().items():
        print(f"{name:13} {node.batches:5,} batches {node.rows:10,} rows in")
    print("as plain Python has it" if got == wanted else "NOT as plain Python has it")
    return got == wanted


def open_query(path: str | None) -> hg.Engine:
    return hg.open(path, tables=[found], dataflows=query)


def rows_of(values: list[int]) -> pa.Table:
    return pa.table({"n": range(len(values)), "value": pa.array(values, pa.int32())})


def in_memory(count: int = 1000) -> bool:
    ours, theirs = make_numbers(count, 1), make_numbers(count, 2)
    with open_query(None) as engine:
        for begin in range(0, count, 100):
            engine.stream(first).send(rows_of(ours).slice(begin, 100))
            engine.stream(second).send(rows_of(theirs).slice(begin, 100))
        engine.stream(first).settle()
        return compare(engine, ours, theirs)


def on_spark(spark: Any, folder: Path, count: int = 1000) -> bool:
    ours, theirs = make_numbers(count, 1), make_numbers(count, 2)
    for name, values in (("first", ours), ("second", theirs)):
        if not (folder / "events" / name).exists():
            case_study.write_parts(folder / "events" / name, rows_of(values).to_pylist())
    with open_query(str(folder / "pairs")) as engine:
        queries = [start(spark, folder, taken, engine.sink(taken)) for taken in (first, second)]
        for one in queries:
            one.awaitTermination()
        engine.stream(first).settle()
        return compare(engine, ours, theirs)


def start(spark: Any, folder: Path, taken: hg.Stream, sink: Any) -> Any:
    """A query of its own for each of the generators."""
    arriving = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    return (
        arriving.json(str(folder / "events" / taken.name))
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoints" / taken.name))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
