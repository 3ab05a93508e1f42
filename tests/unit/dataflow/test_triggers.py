"""Triggers: what rows that a procedure adds start, inside the same transaction."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import FlowOracle, SimulatedClock, SimulatedDisk

calls = hg.Stream("calls", "phone bigint, area int")
voters = hg.Table("voters", "phone bigint, area int, calls bigint DEFAULT 1", key="phone")
areas = hg.Table("areas", "area int, voters bigint DEFAULT 0", key="area", check="voters <= 3")
firsts = hg.Table("firsts", "area int, phones string", key="area")
TABLES = [voters, areas, firsts]


@hg.procedure(calls, writes=voters)
def enter(batch: pa.Table, tx: hg.Tx) -> Any:
    tx.upsert(
        voters,
        "select b.phone, b.area, coalesce(v.calls, 0) + 1 as calls "
        "from batch b left join voters v using (phone)",
    )


@hg.on_insert(voters, writes=areas)
def count(rows: pa.Table, tx: hg.Tx) -> Any:
    if -1 in rows.column("phone").to_pylist():
        return hg.abort("no such phone")
    tx.upsert(
        areas,
        "select i.area, coalesce(max(a.voters), 0) + count(*) as voters "
        "from inserted i left join areas a using (area) group by i.area",
    )
    return None


@hg.on_insert(areas, writes=firsts)
def first(rows: pa.Table, tx: hg.Tx) -> None:
    tx.insert(firsts, [{"area": row["area"], "phones": "some"} for row in rows.to_pylist()])


FLOW = hg.Dataflow("entering", [enter], triggers=[count, first])


def rows(*said: tuple[int, int]) -> list[dict[str, int]]:
    return [{"phone": phone, "area": area} for phone, area in said]


PUSHES = [
    rows((1, 7), (2, 7)),
    rows((1, 7), (3, 8)),  # one is there already: it starts nothing
    rows((4, 7), (5, 7)),  # a check of the trigger's write fails
    rows((-1, 9)),
    rows((6, 8)),
]


def contents(engine: hg.Engine) -> list[Any]:
    return [engine.sql(f"select * from {table.name} order by 1").rows() for table in TABLES]


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("workers", [None, hg.Workers(2)])
def test_rows_that_are_added_start_triggers_in_the_same_transaction(
    recovery: Any, workers: hg.Workers | None
) -> None:
    flow = hg.Dataflow("entering", [enter], triggers=[count, first], workers=workers)
    oracle, disk, reasons = FlowOracle(TABLES, flow), SimulatedDisk(), []
    said: Any = {"tables": TABLES, "dataflows": [flow], "recovery": recovery, "disk": disk}
    for given in PUSHES:
        with hg.open("/store", **said, clock=SimulatedClock()) as engine:
            reasons.append(engine.push(calls, given).to_pylist()[-1]["reason"])
            oracle.push(calls, given)
            expected = [sorted(tuple(row.values()) for row in oracle.serial.table(table.name))
                        for table in TABLES]  # fmt: skip
            assert contents(engine) == expected
    assert reasons == [None, None, "check failed: areas: voters <= 3", "no such phone", None]
    assert contents_after(said) == expected
    assert expected[1:] == [[(7, 2), (8, 2)], [(7, "some"), (8, "some")]]


def contents_after(said: Any) -> list[Any]:
    with hg.open("/store", **said, clock=SimulatedClock()) as engine:
        return contents(engine)


def test_an_exception_in_a_trigger_aborts_what_started_it() -> None:
    @hg.on_insert(voters)
    def fail(rows: pa.Table, tx: hg.Tx) -> None:
        raise ValueError("no")

    @hg.procedure(calls, writes=voters)
    def enter_anyway(batch: pa.Table, tx: hg.Tx) -> None:
        with contextlib.suppress(Exception):  # who catches it cannot commit either
            tx.insert(voters, batch)

    flow = hg.Dataflow("entering", [enter_anyway], triggers=[fail])
    with hg.open(None, tables=TABLES, dataflows=[flow]) as engine:
        told = engine.push(calls, rows((1, 1))).to_pylist()[-1]
        assert (told["outcome"], told["reason"]) == ("aborted", "error: ValueError: no")
        assert engine.sql("select * from voters").rows() == []


def test_a_trigger_is_drawn_with_its_dataflow() -> None:
    assert FLOW.show().split("\n")[1:] == [
        "  calls -> enter",
        "  on insert into voters: count",
        "  on insert into areas: first",
    ]


def test_triggers_that_make_no_sense_are_refused() -> None:
    @hg.on_insert(firsts, writes=voters)
    def again(rows: pa.Table, tx: hg.Tx) -> None: ...

    with pytest.raises(hg.DeclarationError, match="would start itself"):
        hg.Dataflow("entering", [enter], triggers=[count, first, again])

    @hg.transaction(event=calls, compiled=False)
    def create(event: Any, voter: Any = voters.at("phone", create=True)) -> None: ...

    with pytest.raises(hg.DeclarationError, match="those of transactions do not"):
        hg.Dataflow("entering", [create], triggers=[count])
    with pytest.raises(hg.DeclarationError, match="takes rows and tx"):
        hg.on_insert(voters)(lambda rows: None)
    with pytest.raises(hg.DeclarationError, match="takes a table"):
        hg.on_insert("voters")  # type: ignore[arg-type]
    with (
        pytest.raises(hg.DeclarationError, match="'firsts', which is not among"),
    ):
        hg.open(None, tables=[voters, areas], dataflows=[FLOW])
