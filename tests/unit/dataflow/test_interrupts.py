"""Ctrl-C and SIGTERM wait for the execution that runs in the main thread, unless sent twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import SimulatedDisk

counted = hg.Table("counted", "k bigint, n bigint", key="k")
keys = hg.Stream("keys", "k bigint", batch="1 row")
given = hg.Stream("given", "k bigint")


def press(times: int = 1, number: int = signal.SIGINT) -> None:
    for _ in range(times):
        os.kill(os.getpid(), number)


def counting(disturb: Callable[[int], None]) -> hg.Engine:
    @hg.procedure(keys, output=given, writes=counted)
    def count(batch: pa.Table, tx: hg.Tx) -> pa.Table:
        k = batch.column("k")[0].as_py()
        disturb(k)
        known = tx.sql("select n from counted join batch using (k)").to_pylist()
        tx.upsert(counted, [{"k": k, "n": known[0]["n"] + 1 if known else 1}])
        return batch

    flow = hg.Dataflow("counting", [count])
    return hg.open("/counting", tables=counted, dataflows=flow, disk=SimulatedDisk())


def rows_of(engine: hg.Engine) -> list[Any]:
    return engine.sql("select k, n from counted order by k").rows()


def outcomes_of(engine: hg.Engine) -> set[Any]:
    query = "select distinct outcome, reason from results where transaction = 'count'"
    return set(engine.sql(query).rows())


def test_an_interrupt_waits_for_what_runs_and_the_rows_are_taken() -> None:
    with counting(lambda k: press() if k == 2 else None) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.push(keys, [{"k": 1}, {"k": 2}, {"k": 3}])
        assert {(1, 1), (2, 1)} <= set(rows_of(engine))
        engine.push(keys, [{"k": 4}])  # nothing was stopped, and what was left goes first
        assert rows_of(engine) == [(1, 1), (2, 1), (3, 1), (4, 1)]
        assert outcomes_of(engine) == {("committed", None)}


def test_a_signal_that_ends_the_process_waits_too() -> None:
    def end(number: int, frame: Any) -> None:
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with counting(lambda k: press(1, signal.SIGTERM)) as engine:
            with pytest.raises(SystemExit):
                engine.push(keys, [{"k": 1}])
            assert rows_of(engine) == [(1, 1)]
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_who_presses_twice_does_not_wait_and_nothing_is_aborted() -> None:
    """What a procedure calls may take the interrupt for an error of its own, as DuckDB does."""
    is_first, handler = [True], signal.getsignal(signal.SIGINT)

    def disturb(k: int) -> None:
        if k == 2 and is_first[0]:
            is_first[0] = False
            try:
                press(2)
                raise AssertionError("the second one waited")
            except KeyboardInterrupt as error:
                raise RuntimeError("Query interrupted") from error

    with counting(disturb) as engine:
        engine.push(keys, [{"k": 1}])
        with pytest.raises(KeyboardInterrupt):
            engine.push(keys, [{"k": 2}])
        assert rows_of(engine) == [(1, 1)]
        engine.push(keys, [{"k": 3}])
        assert outcomes_of(engine) == {("committed", None)}
        handed_in = {(2, 1)} & set(rows_of(engine))  # as the error says, it may have been taken
        assert set(rows_of(engine)) == {(1, 1), (3, 1), *handed_in}
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_between_batches_is_as_ever() -> None:
    with counting(lambda k: None) as engine:
        with pytest.raises(KeyboardInterrupt):
            press()
        engine.push(keys, [{"k": 1}])
        assert rows_of(engine) == [(1, 1)]
