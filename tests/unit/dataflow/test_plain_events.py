"""Plain events: compiled transactions as nodes go the straight path, and do what others do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.engine import straight_path
from headgate.testing import FlowOracle, SimulatedClock, SimulatedDisk

COLUMNS = "k bigint, v bigint, word string"
totals = hg.Table("totals", "k bigint, total bigint DEFAULT 0", key="k", check="total < 90")
moves = hg.Stream("moves", COLUMNS, order_by="k", batch="3 rows")
added = hg.Stream("added", "k bigint, word string, total bigint")
ended = hg.Stream("ended", "word string, k bigint")


def add(
    event: Any,
    total: Any = totals.at("k", create=True),
    out: Any = hg.output("total bigint"),
) -> Any:
    if event.v == 4:
        return hg.abort("a four")
    if event.v == 7:
        hg.delete(total)
        return None
    total.total += event.v
    out.total = total.total
    return None


def twice(event: Any, total: Any = totals.at("k")) -> Any:
    total.total += total.total


def flow(compiled: bool, nested: bool) -> hg.Dataflow:
    first: Any = hg.transaction(event=moves, output=added, compiled=compiled)(add)
    second: Any = hg.transaction(event=added, output=ended, compiled=compiled)(twice)
    return hg.Dataflow("adding", [first, second], nest=[[first, second]] if nested else [])


ROWS = [
    {"k": k, "v": v, "word": word}
    for k, v, word in [
        (1, 2, "a"), (2, 4, "b"), (1, 3, "a"), (3, 40, "c"), (3, 7, "d"), (2, 1, "é"), (5, 60, ""),
        (1, 4, "b"), (2, 9, "g"), (1, 1, "x"), (4, 4, "b"), (4, 4, "y"),
    ]
]  # fmt: skip


def life(one: hg.Dataflow, recovery: Any, pushes: list[Any]) -> list[Any]:
    """What tables and results hold at the end, the store having been opened anew in the middle."""
    disk, found = SimulatedDisk(), []
    said: Any = {"tables": [totals], "dataflows": [one], "recovery": recovery}
    for rows in pushes:
        with hg.open("/adding", **said, disk=disk, clock=SimulatedClock()) as engine:
            engine.push(moves, rows)
            found.append(engine.sql("select * from totals order by 1").rows())
            names = "epoch, position, transaction, outcome, reason, batch, k, word, total"
            found.append(engine.sql(f"select {names} from results order by 1, 2").rows())
    return found


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("nested", [False, True])
def test_compiled_nodes_do_what_plain_functions_do(recovery: str, nested: bool) -> None:
    pushes: list[Any] = [ROWS[:5], pa.Table.from_pylist(ROWS[5:9]), ROWS[9:]]
    expected = life(flow(False, nested), recovery, pushes)
    assert life(flow(True, nested), recovery, pushes) == expected
    oracle = FlowOracle([totals], flow(False, nested))
    for rows in (ROWS[:5], ROWS[5:9], ROWS[9:]):
        oracle.push(moves, sorted(rows, key=lambda row: row["k"]))
    assert expected[-2] == sorted(tuple(row.values()) for row in oracle.serial.table("totals"))


def test_plain_events_take_the_straight_path(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    run: Any = straight_path.StraightPath.run

    def watched(self: Any, plain: Any, epoch: int, *more: Any, **said: Any) -> Any:
        seen.append(plain.given.count)
        return run(self, plain, epoch, *more, **said)

    monkeypatch.setattr(straight_path.StraightPath, "run", watched)
    with hg.open(None, tables=[totals], dataflows=[flow(True, False)]) as engine:
        engine.push(moves, ROWS[:3])
    assert seen == [3, 2]  # one was aborted by the first node
