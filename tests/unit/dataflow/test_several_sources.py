"""Batches of several sources: in the order in which they came, whoever runs them, where they meet.

Of two batches that share a table the one runs first that came in first, as with one thread, not the
one with the lower number. Who hands rows in is told when another thread closes the engine.
"""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headgate as hg

LEFT, RIGHT = hg.Stream("left", "v bigint"), hg.Stream("right", "v bigint")
INNER = hg.Stream("inner", "v bigint")
totals = hg.Table("totals", "k bigint, n bigint", key="k")
seen = hg.Table("seen", "v bigint, n bigint", key="v")
SOFAR = "coalesce((select n from totals where k = 1), 0)"

ALL_WORKERS = [
    hg.Workers(1, architecture="pinned", policy="round-robin"),
    hg.Workers(1, architecture="pool", policy="chain", buffer=1),
    hg.Workers(2, architecture="pinned", policy="fifo", buffer=1, compose=False),
    hg.Workers(2, architecture="pinned", policy="chain-flush"),
    hg.Workers(2, architecture="pool", policy="fifo"),
    hg.Workers(2, architecture="pool", policy="chain-flush", buffer=1, compose=False),
]


def name_of(workers: hg.Workers) -> str:
    return f"{workers} buffer={workers.buffer} compose={workers.compose}"


def adding(taken: hg.Stream) -> Any:
    @hg.procedure(taken, writes=totals)
    def add(batch, tx):
        tx.upsert(totals, f"select 1::bigint as k, {SOFAR} + sum(v)::bigint as n from batch")

    return add


def looking(taken: hg.Stream) -> Any:
    @hg.procedure(taken, reads=totals, writes=seen)
    def look(batch, tx):
        time.sleep(0.002)  # so that others would pass, if they may
        tx.insert(seen, f"select v, {SOFAR} as n from batch")

    return look


@hg.procedure(LEFT, output=INNER, writes=totals)
def count(batch, tx):
    tx.upsert(totals, f"select 1::bigint as k, {SOFAR} + sum(v)::bigint as n from batch")
    return batch


@hg.procedure(INNER, RIGHT, reads=totals, writes=seen)
def join(one, other, tx):
    rows = [{"v": other["v"][0].as_py(), "n": tx.sql(f"select {SOFAR} as n")["n"][0].as_py()}]
    tx.insert(seen, rows)


MEETING, JOINED = (adding(LEFT), looking(RIGHT)), (count, join)


def ran(nodes: tuple[Any, ...], order: str, workers: hg.Workers | None) -> list[Any]:
    """What was seen after batches came in, one by one, from the left and from the right."""
    flow = hg.Dataflow("f", list(nodes), workers=workers)
    with hg.open(None, tables=[totals, seen], dataflows=[flow]) as engine:
        for value, side in enumerate(order, start=1):
            engine.stream(LEFT if side == "l" else RIGHT).send([{"v": value}])
        engine.stream(LEFT).settle()
        return engine.sql("select v, n from seen order by v").rows()


@functools.cache
def by_one_thread(nodes: tuple[Any, ...], order: str) -> list[Any]:
    return ran(nodes, order, None)


@pytest.mark.parametrize("workers", ALL_WORKERS, ids=name_of)
def test_what_came_in_first_runs_first_where_two_sources_meet(workers: hg.Workers) -> None:
    for order in ("rrrl", "lllrlrrl"):
        assert ran(MEETING, order, workers) == by_one_thread(MEETING, order), order


@pytest.mark.parametrize("workers", ALL_WORKERS, ids=name_of)
def test_a_join_that_waits_for_one_source_does_not_stop_the_other(workers: hg.Workers) -> None:
    for order in ("lllllrrrrr", "rlllrr"):
        assert ran(JOINED, order, workers) == by_one_thread(JOINED, order), order


@pytest.mark.parametrize("sender", ["send", "push"])
def test_who_hands_rows_in_is_told_when_the_engine_is_closed(sender: str, tmp_path: Path) -> None:
    @hg.procedure(LEFT, output=INNER)
    def first(batch, tx):
        time.sleep(0.01)
        return batch

    @hg.procedure(INNER)
    def second(batch, tx):
        time.sleep(0.01)

    pool = hg.Workers(2, architecture="pool", buffer=1)
    for number, workers in enumerate([pool, hg.Workers(2, buffer=1, compose=False), pool]):
        flow = hg.Dataflow("f", [first, second], workers=workers)
        path = str(tmp_path / f"{number}")
        engine = hg.open(path, dataflows=[flow])
        taken: list[int] = []
        told: list[str] = []

        def hand_in(engine: hg.Engine = engine, taken: Any = taken, told: Any = told) -> None:
            hand = engine.stream(LEFT).send if sender == "send" else engine.stream(LEFT).push
            try:
                for value in range(500):
                    hand([{"v": value}])
                    taken.append(value)
            except hg.StoreError as error:
                told.append(str(error))

        thread = threading.Thread(target=hand_in, daemon=True)
        thread.start()
        time.sleep(0.05)
        engine.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "the engine is stopped: it was closed; open it again" in told[0]
        with hg.open(path, dataflows=[flow]) as again:
            text = "select distinct v from results where transaction = 'left' order by v"
            there = [v for (v,) in again.sql(text).rows()]
            assert there[: len(taken)] == taken
