"""The benchmark of dataflows: what a node costs, weak beside strong, windows beside by hand.

Ten nodes in a row with strong and with weak recovery; a window of the engine's beside one that a
procedure keeps in a table; one node beside the plain stream of the same transaction; and the
leaderboard with one vote for each batch beside PostgreSQL (leaderboards.py). All that is compared
takes turns in one process, and figures are ratios of medians.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from rich.console import Console

import headgate as hg
from bench import leaderboards
from bench.ranges import Times, in_turn

PUSHES, PLAIN_ROWS, WINDOW_ROWS, CHAIN_NODES = 50, 10_240, 1000, 10
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


def measure_plain(rounds: int, rows: int = PLAIN_ROWS) -> Times:
    """One node beside the plain stream of the same transaction: a batch of many rows."""
    source = hg.Stream("source", ROWS)
    add = adding(source, "add")
    with (
        hg.open(None, tables=[totals], dataflows=hg.Dataflow("f", [add])) as flowing,
        hg.open(None, tables=[totals], transactions=[add]) as plain,
    ):
        given = rows_of(rows)
        ways = {
            "flow": lambda _: flowing.push(source, given),
            "plain": lambda _: plain.run(add, given),
        }
        return in_turn(ways, rounds)


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
        found = tx.sql(
            "select b.k % 100 as k, sum(a.v + b.v)::bigint as total from batch a, batch b "
            "where a.k < b.k group by 1"
        )
        tx.upsert(table, found)
        return batch if output is not None else None

    return hg.procedure(taken, output=output, writes=table, name=name)(count)


def measure_workers(rounds: int, batches: int = 12, rows: int = 1500) -> Times:
    """A pipeline of two balanced nodes: one worker, and two."""
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
    plain, kept_by, windows, pipe = (
        measure(rounds)
        for measure in (measure_plain, measure_recovery, measure_windows, measure_workers)
    )
    beside = {
        "a flow of one node beside a plain run": plain["flow"] / plain["plain"],
        "strong without group commit beside weak": kept_by["each synced"] / kept_by["weak"],
        "strong with it beside weak, 10 nodes": kept_by["strong"] / kept_by["weak"],
        "a window by hand beside the engine's": windows["by hand"] / windows["native"],
        "one worker beside two, balanced nodes": pipe["1 workers"] / pipe["2 workers"],
    }
    for what, ratio in beside.items():
        screen.print(f"{what:39} {ratio:8.2f} x")
    leaderboards.main(quick)
