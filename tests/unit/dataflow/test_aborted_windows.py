"""A window moves on whatever its procedure makes of it: one that aborts is behind it, too."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import FlowOracle, SimulatedDisk
from tests.unit.dataflow.shows import NOON

timed = hg.Stream("timed", "ts timestamp, n bigint", order_by="ts")
passed = hg.Stream("passed", "ts timestamp, n bigint", order_by="ts")
plain = hg.Stream("plain", "n bigint")
sums = hg.Table("sums", "n bigint", key="n", check="n < 100")


def row(second: int, n: int) -> dict[str, Any]:
    return {"ts": NOON + datetime.timedelta(seconds=second), "n": n}


class Sums:
    """Procedures that remember what they were called with, and whose sums may be too large."""

    def __init__(self) -> None:
        self.called: list[list[int]] = []

    def add(self, batch: pa.Table, tx: hg.Tx) -> None:
        self.called.append(batch.column("n").to_pylist())
        tx.upsert(sums, [{"n": sum(self.called[-1])}])


def by_time(seen: Sums, **said: Any) -> Any:
    return hg.procedure(timed.window("10 seconds"), writes=sums, name="add", **said)(seen.add)


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["open", "killed"])
def test_a_window_of_time_that_aborts_is_behind(recovery: Any, is_killed: bool) -> None:
    seen, disk = Sums(), SimulatedDisk()
    said: Any = {"tables": sums, "dataflows": hg.Dataflow("f", [by_time(seen)])}
    engine = hg.open("/windows", recovery=recovery, disk=disk, **said)
    for second, n in [(1, 5), (11, 200), (21, 7), (31, 8), (3600, 9)]:
        engine.push(timed, [row(second, n)])
        if is_killed:
            disk = disk.after_kill()
            engine = hg.open("/windows", recovery=recovery, disk=disk, **said)
    outcomes = engine.sql("select outcome from results where transaction = 'add' order by batch")
    assert [one for (one,) in outcomes.rows()] == [
        "committed", "committed", "aborted", "committed", "committed",
    ]  # fmt: skip
    assert engine.sql("select n from sums order by 1").rows() == [(5,), (7,), (8,)]
    if not is_killed:
        assert seen.called == [[5], [200], [7], [8]]
    engine.close()


def test_a_retry_sees_the_same_window_again() -> None:
    seen = Sums()
    flow = hg.Dataflow("f", [by_time(seen, retries=2)])
    with hg.open(None, tables=sums, dataflows=flow) as engine:
        for second, n in [(1, 200), (11, 6), (21, 7)]:
            engine.push(timed, [row(second, n)])
    assert seen.called == [[200]] * 3 + [[6]]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_window_of_rows_that_aborts_is_behind_as_the_oracle_has_it(recovery: Any) -> None:
    seen, disk = Sums(), SimulatedDisk()
    add: Any = hg.procedure(plain.window("3 rows", "1 row"), writes=sums, name="add")(seen.add)
    flow = hg.Dataflow("f", [add])
    oracle = FlowOracle([sums], flow)
    said: Any = {"tables": sums, "dataflows": flow, "recovery": recovery}
    engine = hg.open("/windows", disk=disk, **said)
    for numbers in [[1, 2], [90], [9], [8], [7], [6, 5]]:
        seen.called.clear()
        engine.push(plain, [{"n": n} for n in numbers])
        mine = list(seen.called)
        seen.called.clear()
        oracle.push(plain, [{"n": n} for n in numbers])
        assert mine == seen.called
        disk = disk.after_kill()
        engine = hg.open("/windows", disk=disk, **said)
    found = engine.sql("select n from sums order by 1").rows()
    assert found == sorted((one["n"],) for one in oracle.serial.table("sums"))
    assert found == [(18,), (21,), (24,), (93,)]
    engine.close()


def nested(seen: Sums, bad: list[int]) -> hg.Dataflow:
    @hg.procedure(timed, output=passed)
    def give(batch: pa.Table, tx: hg.Tx) -> Any:
        if batch.column("n").to_pylist() == bad:
            return hg.abort("bad")
        return batch

    over: Any = hg.procedure(passed.window("10 seconds"), writes=sums, name="add")(seen.add)
    return hg.Dataflow("f", [give, over], nest=[[give, over]])


def test_rows_that_a_nest_did_not_give_are_in_no_window_and_its_time_goes_on() -> None:
    seen = Sums()
    with hg.open(None, tables=sums, dataflows=nested(seen, [])) as engine:
        for second, n in [(1, 5), (11, 200), (21, 7), (22, 8), (31, 9)]:
            engine.push(timed, [row(second, n)])
    assert seen.called == [[5], [200], [8]]  # 7 was given in the nest that aborted


def test_what_was_never_given_is_in_no_window() -> None:
    seen = Sums()
    flow = nested(seen, [7])
    apart = hg.Dataflow("f", [node.step for node in flow.nodes])
    for one in (flow, apart):
        seen.called.clear()
        with hg.open(None, tables=sums, dataflows=one) as engine:
            for second, n in [(1, 5), (2, 7), (3, 8), (11, 9)]:
                engine.push(timed, [row(second, n)])
        assert seen.called == [[5, 8]]


def test_rows_of_a_batch_are_counted_once_however_often_it_is_tried() -> None:
    seen = Sums()
    with hg.open(None, tables=sums, dataflows=hg.Dataflow("f", [by_time(seen, retries=2)])) as one:
        for second, n in [(1, 200), (11, 6), (21, 7)]:
            one.push(timed, [row(second, n)])
        counted = one.stream(timed).metrics()["add"]
    assert (counted.batches, counted.rows, counted.retries) == (3, 3, 2)


ones = hg.Stream("ones", "n bigint", batch="1 row")
told = hg.Stream("told", "n bigint")
HOW = {"one push": [range(1, 10)], "each": [[n] for n in range(1, 10)]}


def called_with(nodes: list[Any], pushes: Any, nest: list[str], recovery: Any) -> None:
    disk = SimulatedDisk()
    flow = hg.Dataflow("f", nodes, nest=[nest])
    with hg.open("/windows", tables=sums, dataflows=flow, recovery=recovery, disk=disk) as engine:
        for numbers in pushes:
            engine.push(ones, [{"n": n} for n in numbers])


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("aborting", ["giver", "window"])
def test_rows_of_a_nest_that_aborts_leave_those_staged_before_it(
    how: str, recovery: Any, aborting: str
) -> None:
    """They were never given; how the batches share epochs makes no difference."""
    seen: list[list[int]] = []

    @hg.procedure(ones, output=told, writes=sums)
    def give(batch: pa.Table, tx: hg.Tx) -> pa.Table:
        return batch

    @hg.procedure(told.window("3 rows"))
    def look(batch: pa.Table, tx: hg.Tx) -> Any:
        seen.append(batch.column("n").to_pylist())
        return hg.abort("no") if aborting == "window" and seen[-1] == [1, 2, 3] else None

    @hg.procedure(told, writes=sums)
    def judge(batch: pa.Table, tx: hg.Tx) -> Any:
        is_third = batch.column("n").to_pylist() == [3]
        return hg.abort("no") if aborting == "giver" and is_third else None

    called_with([give, judge, look], HOW[how], ["give", "judge", "look"], recovery)
    first = [[1, 2, 3]] if aborting == "window" else []
    assert seen == [*first, [1, 2, 4], [5, 6, 7]]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_nest_that_is_not_run_has_its_batch_in_windows_over_other_streams(
    how: str, recovery: Any
) -> None:
    seen: list[list[int]] = []

    @hg.procedure(ones, output=told)
    def first(batch: pa.Table, tx: hg.Tx) -> Any:
        return hg.abort("no") if batch.column("n").to_pylist() == [2] else batch

    @hg.procedure(told)
    def beside(batch: pa.Table, tx: hg.Tx) -> None:
        pass

    @hg.procedure(ones.window("3 rows"))
    def look(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append(batch.column("n").to_pylist())

    called_with([first, beside, look], HOW[how], ["beside", "look"], recovery)
    assert seen == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("is_apart", [True, False], ids=["each", "one push"])
def test_rows_of_time_that_were_never_given_drop_none_of_those_that_come(is_apart: bool) -> None:
    """The window that they made whole is behind; what comes later is in the next one."""
    seen: list[list[int]] = []
    clocked = hg.Stream("clocked", "ts timestamp, n bigint", order_by="ts", batch="1 row")

    @hg.procedure(clocked, output=passed)
    def give(batch: pa.Table, tx: hg.Tx) -> pa.Table:
        return batch

    @hg.procedure(passed.window("10 seconds"))
    def look(batch: pa.Table, tx: hg.Tx) -> None:
        seen.append(batch.column("n").to_pylist())

    @hg.procedure(passed)
    def judge(batch: pa.Table, tx: hg.Tx) -> Any:
        return hg.abort("no") if batch.column("n").to_pylist()[0] >= 200 else None

    flow = hg.Dataflow("f", [give, look, judge], nest=[["give", "look", "judge"]])
    came = [(1, 5), (11, 200), (12, 300), (13, 8), (21, 9), (31, 1)]
    rows = [row(second, n) for second, n in came]
    with hg.open(None, tables=sums, dataflows=flow) as engine:
        for part in [[one] for one in rows] if is_apart else [rows]:
            engine.push(clocked, part)
    assert seen == [[5], [8], [9]]
