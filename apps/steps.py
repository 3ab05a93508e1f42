"""Steps: one chain of work that starts itself in three ways, and one window kept in two.

    ./run python apps/steps.py              in memory, without Spark
    ./run python apps/steps.py FOLDER       on Spark: reads FOLDER/events, keeps FOLDER/steps

The small tests of S-Store. Rows go through a chain of steps, each of which inserts them into a
table of its own. `triggers`: the insert of a step starts the next one, inside one transaction.
`nodes`: each step is a transaction, which the commit of the one before starts. `nest`: these nodes
as one transaction. In memory a client does it too, for whom nothing starts anything: it hands each
step what the one before gave back. Beside them is a window of rows that slides, the engine's own
and one that a procedure keeps in tables. All ways end with the rows of plain Python; the rates say
what each way costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

import headgate as hg
from apps import case_study

STEPS, BATCH, WINDOW = 4, 10, 100
COLUMNS = "n bigint, v bigint"
NEXT = "select n, v + 1 as v from"
SUMMED = "select (max(n) + 1) // 10 as slide, sum(v)::bigint as total from"


@dataclass(frozen=True)
class Way:
    """One way to do the work: what its dataflow consists of, and the tables that it fills."""

    name: str
    tables: list[hg.Table]
    nodes: list[Any]
    nest: bool = False
    triggers: Iterable[Any] = ()

    def flow(self) -> hg.Dataflow:
        return joined(self.name, [self])


def joined(name: str, ways: list[Way]) -> hg.Dataflow:
    """Several ways over the rows of one source."""
    nests = [way.nodes for way in ways if way.nest]
    triggers = [one for way in ways for one in way.triggers]
    return hg.Dataflow(name, [n for way in ways for n in way.nodes], nest=nests, triggers=triggers)


def source(name: str) -> hg.Stream:
    return hg.Stream(name, COLUMNS, order_by="n", batch=f"{BATCH} rows")


# --- a chain of steps ---------------------------------------------------------------------------


def tables_of(way: str) -> list[hg.Table]:
    return [hg.Table(f"{way}_{n}", COLUMNS, key="n") for n in range(STEPS)]


def step(taken: hg.Stream, given: hg.Stream | None, table: hg.Table) -> hg.Procedure:
    """A node that inserts its rows and, where somebody takes them, hands them on."""

    def insert(batch: pa.Table, tx: hg.Tx) -> Any:
        made = tx.sql(f"{NEXT} batch")
        tx.insert(table, made)
        return made if given is not None else None

    return hg.procedure(taken, output=given, writes=table, name=f"into_{table.name}")(insert)


def trigger(table: hg.Table, into: hg.Table) -> Any:
    """What an insert into one table starts in the same transaction."""

    def insert(rows: pa.Table, tx: hg.Tx) -> None:
        tx.insert(into, f"{NEXT} inserted")

    return hg.on_insert(table, writes=into, name=f"into_{into.name}")(insert)


def triggers(taken: hg.Stream) -> Way:
    tables = tables_of("triggers")
    started = [trigger(*pair) for pair in pairwise(tables)]
    return Way("triggers", tables, [step(taken, None, tables[0])], triggers=started)


def nodes(taken: hg.Stream, name: str = "nodes") -> Way:
    tables = tables_of(name)
    between = [hg.Stream(f"{name}_rows_{n}", COLUMNS) for n in range(1, STEPS)]
    ends = zip([taken, *between], [*between, None], tables, strict=True)
    return Way(name, tables, [step(*one) for one in ends], nest=name == "nest")


def nest(taken: hg.Stream) -> Way:
    return nodes(taken, "nest")


# --- a window that slides -----------------------------------------------------------------------


def window(taken: hg.Stream) -> Way:
    """The engine's own."""
    sums = hg.Table("window_sums", "slide bigint, total bigint", key="slide")

    @hg.procedure(taken.window(f"{WINDOW} rows", f"{BATCH} rows"), writes=sums, name="window")
    def slide(batch: pa.Table, tx: hg.Tx) -> None:
        tx.insert(sums, tx.sql(f"{SUMMED} batch"))

    return Way("window", [sums], [slide])


def by_hand(taken: hg.Stream) -> Way:
    """Rows in a table; those that the window has left are deleted."""
    sums = hg.Table("by_hand_sums", "slide bigint, total bigint", key="slide")
    kept = hg.Table("kept", COLUMNS, key="n")

    @hg.procedure(taken, writes=[kept, sums], name="by_hand")
    def keep(batch: pa.Table, tx: hg.Tx) -> None:
        tx.insert(kept, batch)
        tx.delete(kept, f"select n from kept where n <= (select max(n) from batch) - {WINDOW}")
        tx.insert(sums, f"select * from ({SUMMED} kept having count(*) = {WINDOW})")

    return Way("by_hand", [sums, kept], [keep])


# --- what must come out -------------------------------------------------------------------------

WAYS: list[Callable[[hg.Stream], Way]] = [triggers, nodes, nest, window, by_hand]


def rows_of(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"n": numbers, "v": [n * n % 97 for n in numbers]})


def expected(table: str, count: int) -> list[tuple[int, int]] | None:
    """The rows of a table by plain Python; None of one that only helps."""
    values = [n * n % 97 for n in range(count)]
    if table.endswith("_sums"):
        ends = range(WINDOW, count + 1, BATCH)
        return [(end // BATCH, sum(values[end - WINDOW : end])) for end in ends]
    if table == "kept":
        return None
    later = int(table.rsplit("_", 1)[1]) + 1
    return [(n, value + later) for n, value in enumerate(values)]


def is_right(engine: hg.Engine, tables: list[hg.Table], count: int) -> bool:
    """Whether the tables have the rows of plain Python."""
    wrong = []
    for table in tables:
        wanted = expected(table.name, count)
        if wanted is not None and engine.sql(f"from {table.name} order by 1").rows() != wanted:
            wrong.append(table.name)
    print(f"NOT as plain Python has it: {', '.join(wrong)}" if wrong else "as plain Python has it")
    return not wrong


# --- the ways to run it -------------------------------------------------------------------------


def measure(way: Way, taken: hg.Stream, count: int) -> bool:
    """A way by itself, a batch for each push, as the window must be kept up to date."""
    with hg.open(None, tables=way.tables, dataflows=way.flow()) as engine:
        began = perf_counter()
        for first in range(0, count, BATCH):
            engine.push(taken, rows_of(first, BATCH))
        rate = count / BATCH / (perf_counter() - began)
        print(f"{way.name:9} {rate:7,.0f} batches/s, ", end="")
        return is_right(engine, way.tables, count)


def by_client(count: int) -> bool:
    """Steps of which none starts another: the client waits for each, and begins the next."""
    tables, sources = tables_of("client"), [source(f"client_rows_{n}") for n in range(STEPS)]
    steps = [step(*one) for one in zip(sources, [None] * STEPS, tables, strict=True)]
    with hg.open(
        None, tables=tables, dataflows=joined("client", [Way("client", tables, steps)])
    ) as engine:
        began = perf_counter()
        for first in range(0, count, BATCH):
            for number, taken in enumerate(sources):
                where = f"where n >= {first}"
                given = engine.sql(f"from client_{number - 1} {where}") if number else None
                engine.push(taken, given.arrow() if given else rows_of(first, BATCH))
        print(f"client    {count / BATCH / (perf_counter() - began):7,.0f} batches/s, ", end="")
        return is_right(engine, tables, count)


def in_memory(count: int = 2000) -> bool:
    right = [measure(way(taken), taken, count) for way in WAYS for taken in [source("rows_in")]]
    return all([*right, by_client(count)])


def on_spark(spark: Any, folder: Path, count: int = 2000) -> bool:
    """All ways together, behind one query."""
    taken = source("rows_in")
    ways = [way(taken) for way in WAYS]
    tables = [table for way in ways for table in way.tables]
    if not (folder / "events").exists():
        case_study.write_parts(folder / "events", rows_of(0, count).to_pylist())
    with hg.open(str(folder / "steps"), tables=tables, dataflows=joined("steps", ways)) as engine:
        case_study.feed(spark, folder, COLUMNS, [], engine.sink(taken))
        return is_right(engine, tables, count)


if __name__ == "__main__":
    case_study.main(in_memory, on_spark)
