"""The benchmark of dataflows: what a node costs, weak beside strong, windows beside by hand.

Ten nodes in a row with strong and with weak recovery; a window of the engine's beside one that a
procedure keeps in a table, and aggregates of windows beside SQL over them (kept_windows.py); one
node beside the plain stream of the same transaction, run and as sinks of Spark; two workers beside
one, and beside what two bare threads gain; and the leaderboard with one vote for each batch beside
PostgreSQL (leaderboards.py). All that is compared takes turns in one process, and figures are
ratios of medians.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

import headgate as hg
from bench import kept_windows, leaderboards
from bench.ranges import Times, in_turn
from headgate.spark.session import start_session

PUSHES, PLAIN_ROWS, WINDOW_ROWS, CHAIN_NODES = 50, 10_240, 1000, 10
WARM_BATCHES = 3
ROWS = "k bigint, v bigint"
totals = hg.Table("totals", "k bigint, total bigint DEFAULT 0", key="k")
kept = hg.Table("kept", "n bigint, k bigint, v bigint", key="n")


def rows_of(count: int, number: int = 0) -> pa.Table:
    return pa.table({"k": [n % 100 for n in range(count)], "v": [number] * count})


# --- what a node costs ----------------------------------------------------------------------------


def adding(taken: Any, name: str, **said: Any) -> Any:
    """A transaction that adds each event to a row."""

    def add(event, total=totals.at("k", create=True)):
        total.total += event.v

    return hg.transaction(event=taken, name=name, **said)(add)


def asking(taken: hg.Stream, name: str) -> Any:
    """A procedure with one question and one write."""

    def ask(batch: pa.Table, tx: hg.Tx) -> None:
        tx.upsert(
            totals,
            "select b.k, coalesce(max(t.total), 0)::bigint + sum(b.v)::bigint as total "
            "from batch b left join totals t on b.k = t.k group by b.k",
        )

    return hg.procedure(taken, writes=totals, name=name)(ask)


def pusher(engine: hg.Engine, source: hg.Stream, rows: int, pushes: int) -> Callable[[int], None]:
    def push(number: int) -> None:
        given = rows_of(rows, number)
        for _ in range(pushes):
            engine.push(source, given)

    return push


def measure_nodes(rounds: int, pushes: int = PUSHES, chain: int = CHAIN_NODES) -> Times:
    """Seconds of so many pushes of one row, in memory: of one node and of several in a row."""
    ways: dict[str, Callable[[int], None]] = {}
    streams = [hg.Stream(f"s{n}", ROWS) for n in range(chain + 1)]
    nodes = [adding(streams[n], f"add_{n}", output=streams[n + 1]) for n in range(chain)]
    source = hg.Stream("asked", ROWS)
    flows = {
        "one transaction": (hg.Dataflow("f", nodes[:1]), streams[0]),
        "transactions": (hg.Dataflow("f", nodes), streams[0]),
        "nested": (hg.Dataflow("f", nodes, nest=[nodes]), streams[0]),
        "one procedure": (hg.Dataflow("f", [asking(source, "ask")]), source),
    }
    engines = []
    for name, (flow, first) in flows.items():
        engines.append(hg.open(None, tables=[totals], dataflows=flow))
        ways[name] = pusher(engines[-1], first, 1, pushes)
    try:
        return in_turn(ways, rounds)
    finally:
        for engine in engines:
            engine.close()


@contextmanager
def one_node(path: Path | None) -> Iterator[dict[str, tuple[hg.Engine, Any]]]:
    """Engines with one transaction: as a flow of one node, as one whose stream is not recorded, and
    as the plain stream of its events; with what rows are handed to."""
    with ExitStack() as opened:
        found = {}
        for name in ("flow", "unrecorded", "plain"):
            source = hg.Stream("source", ROWS, recorded=name != "unrecorded")
            add = adding(source, "add")
            said: dict[str, Any] = {"transactions": [add]}
            if name != "plain":
                said = {"dataflows": hg.Dataflow("f", [add])}
            where = None if path is None else str(path / name)
            engine = opened.enter_context(hg.open(where, tables=[totals], **said))
            found[name] = engine, add if name == "plain" else source
        yield found


def measure_plain(rounds: int, rows: int = PLAIN_ROWS, *, in_store: bool = False) -> Times:
    """One node beside the plain stream of the same transaction: a batch of many rows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        one_node(Path(folder) if in_store else None) as engines,
    ):
        given, ways = rows_of(rows, 1), dict[str, Callable[[int], None]]()
        for name, (engine, taken) in engines.items():
            hand_in: Any = engine.run if name == "plain" else engine.push
            ways[name] = lambda _, hand_in=hand_in, taken=taken: hand_in(taken, given)
        return in_turn(ways, rounds)


def measure_sinks(rounds: int, rows: int = PLAIN_ROWS) -> Times:
    """The same as sinks of Spark: each takes each micro-batch, in turn."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        spark = start_session("bench", Path(folder, "spark.log"))
        opened.callback(spark.stop)
        for number in range(rounds + WARM_BATCHES):
            written = Path(folder, "events", f"{number:04}.parquet")
            written.parent.mkdir(exist_ok=True)
            pq.write_table(rows_of(rows, number), written)
        with one_node(Path(folder)) as engines:
            sinks = [(name, engine.sink(taken)) for name, (engine, taken) in engines.items()]

            def take(frame: Any, number: int) -> None:
                first = number % len(sinks)
                for name, sink in sinks[first:] + sinks[:first]:
                    began = perf_counter()
                    sink(frame, number)
                    if number >= WARM_BATCHES:
                        times.setdefault(name, []).append(perf_counter() - began)

            query = (
                spark.readStream.schema(ROWS).option("maxFilesPerTrigger", 1)
                .parquet(str(Path(folder, "events"))).writeStream.foreachBatch(take)
                .option("checkpointLocation", str(Path(folder, "checkpoint")))
                .trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()
    return {name: median(taken) for name, taken in times.items()}


# --- recovery -------------------------------------------------------------------------------------


def synced_each(engine: hg.Engine) -> hg.Engine:
    """Have each execution of a dataflow be an epoch that is synced before the next one runs."""
    flows: Any = engine._running_flows()
    step = flows.stepping.step

    def synced(arrival: Any = None, unit: Any = None, behind: Any = None) -> Any:
        stepped = step(arrival, unit)
        flows._guard.wait(stepped.epoch)
        return stepped

    flows.stepping.step = synced
    return engine


def measure_recovery(rounds: int, pushes: int = PUSHES, chain: int = CHAIN_NODES) -> Times:
    """Ten nodes in a row in a store: weak recovery, strong, and strong without group commit."""
    streams = [hg.Stream(f"s{n}", ROWS) for n in range(chain + 1)]
    nodes = [adding(streams[n], f"add_{n}", output=streams[n + 1]) for n in range(chain)]
    flow = hg.Dataflow("f", nodes)
    folder = tempfile.mkdtemp()
    engines = {
        name: hg.open(f"{folder}/{name}", tables=[totals], dataflows=flow, recovery=recovery)
        for name, recovery in (("strong", "strong"), ("each synced", "strong"), ("weak", "weak"))
    }
    synced_each(engines["each synced"])
    try:
        ways = {name: pusher(one, streams[0], 1, pushes) for name, one in engines.items()}
        return in_turn(ways, rounds)
    finally:
        for one in engines.values():
            one.close()
        shutil.rmtree(folder)


# --- windows --------------------------------------------------------------------------------------


def measure_windows(rounds: int, pushes: int = PUSHES, size: int = WINDOW_ROWS) -> Times:
    """A window of the engine beside one that a procedure keeps in a table; pushes of ten rows."""
    native, by_hand = hg.Stream("native", ROWS), hg.Stream("by_hand", ROWS)

    @hg.procedure(native.window(f"{size} rows", slide="10 rows"), writes=totals)
    def slide(batch: pa.Table, tx: hg.Tx) -> None:
        tx.upsert(totals, tx.sql("select -1::bigint as k, sum(v)::bigint as total from batch"))

    counted = {"n": 0}

    @hg.procedure(by_hand, writes=[kept, totals])
    def keep(batch: pa.Table, tx: hg.Tx) -> None:
        first = counted["n"]
        counted["n"] += batch.num_rows
        numbers = pa.array(range(first, counted["n"]), pa.int64())
        tx.insert(kept, batch.add_column(0, "n", numbers))
        tx.delete(kept, f"select n from kept where n < {counted['n'] - size}")
        tx.upsert(totals, tx.sql("select -2::bigint as k, sum(v)::bigint as total from kept"))

    flows = [hg.Dataflow("native_flow", [slide]), hg.Dataflow("by_hand_flow", [keep])]
    with hg.open(None, tables=[totals, kept], dataflows=flows) as engine:
        for source in (native, by_hand):
            engine.push(source, rows_of(size))
        ways = {"native": pusher(engine, native, 10, pushes),
                "by hand": pusher(engine, by_hand, 10, pushes)}  # fmt: skip
        return in_turn(ways, rounds)


# --- workers --------------------------------------------------------------------------------------

asked_first = hg.Table("asked_first", "k bigint, total bigint", key="k")
asked_next = hg.Table("asked_next", "k bigint, total bigint", key="k")


def counting(taken: hg.Stream, output: hg.Stream | None, table: hg.Table, name: str) -> Any:
    """A procedure whose time is in one question that needs no table."""

    def count(batch: pa.Table, tx: hg.Tx) -> Any:
        tx.upsert(table, tx.sql(QUESTION))
        return batch if output is not None else None

    return hg.procedure(taken, output=output, writes=table, name=name)(count)


QUESTION = (
    "select b.k % 100 as k, sum(a.v + b.v)::bigint as total from batch a, batch b "
    "where a.k < b.k group by 1"
)


def bare(given: pa.Table, threads: int, asked: int) -> Callable[[int], None]:
    """The questions of a run and nothing else, on so many threads: what the machine allows."""
    connections = [duckdb.connect(config={"threads": 1}) for _ in range(threads)]
    for one in connections:
        one.register("batch", given)
        one.execute(f"prepare kept as {QUESTION}")

    def ask(connection: Any) -> None:
        for _ in range(asked // threads):
            connection.execute("execute kept").fetchnumpy()

    def run(_: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(ask, connections))

    return run


def measure_workers(rounds: int, batches: int = 12, rows: int = 2000) -> Times:
    """A pipeline of two balanced nodes: one worker, and two; and its questions on bare threads."""
    first, between = hg.Stream("first", ROWS), hg.Stream("between", ROWS)
    nodes = [counting(first, between, asked_first, "count_first"),
             counting(between, None, asked_next, "count_next")]  # fmt: skip
    given = pa.table({"k": range(rows), "v": range(rows)})
    engines = {
        f"{count} workers": hg.open(
            None, tables=[asked_first, asked_next],
            dataflows=hg.Dataflow("f", nodes, workers=hg.Workers(count, "pinned")),
        )
        for count in (1, 2)
    }  # fmt: skip

    def run(engine: hg.Engine) -> None:
        stream = engine.stream(first)
        for _ in range(batches):
            stream.send(given)
        stream.settle()

    try:
        ways = {name: lambda _, one=one: run(one) for name, one in engines.items()}
        for count in (1, 2):
            ways[f"{count} bare"] = bare(given, count, 2 * batches)
        return in_turn(ways, rounds)
    finally:
        for one in engines.values():
            one.close()


def main(quick: bool = False) -> None:
    """Run all of it and print the figures."""
    screen, rounds = Console(highlight=False), 3 if quick else 9
    nodes = measure_nodes(rounds)
    one = {name: seconds / PUSHES * 1e6 for name, seconds in nodes.items()}
    more = (one["transactions"] - one["one transaction"]) / (CHAIN_NODES - 1)
    nested = (one["nested"] - one["one transaction"]) / (CHAIN_NODES - 1)
    screen.print(f"a push of one row to one transaction    {one['one transaction']:8.0f} µs")
    screen.print(f"each further transaction, an epoch each {more:8.0f} µs")
    screen.print(f"each further transaction in a nest      {nested:8.0f} µs")
    screen.print(f"a push to a procedure, SQL and a write  {one['one procedure']:8.0f} µs")
    kept_by, windows, pipe = (
        measure(rounds) for measure in (measure_recovery, measure_windows, measure_workers)
    )
    plain = {
        "plain sinks": measure_sinks(3 * rounds),
        "plain runs, in a store": measure_plain(10 * rounds, in_store=True),
        "plain runs, in memory": measure_plain(10 * rounds),
    }
    beside = {
        f"a flow of one node{told} beside {what}": times[name] / times["plain"]
        for what, times in plain.items()
        for name, told in (("flow", ""), ("unrecorded", ", its stream unrecorded,"))
    }
    beside |= {
        "strong without group commit beside weak": kept_by["each synced"] / kept_by["weak"],
        "strong with it beside weak, 10 nodes": kept_by["strong"] / kept_by["weak"],
        "a window by hand beside the engine's": windows["by hand"] / windows["native"],
        "one worker beside two, balanced nodes": pipe["1 workers"] / pipe["2 workers"],
        "their questions, one bare thread beside two": pipe["1 bare"] / pipe["2 bare"],
    }
    for what, ratio in beside.items():
        screen.print(f"{what:72} {ratio:8.2f} x")
    kept_windows.main(quick)
    leaderboards.main(quick)
