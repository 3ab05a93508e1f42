"""The ledger of the demo: its events, its conservation, and its twin in apps/ that people copy."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headgate as hg
from apps import ledger as app
from headgate.cli import ledger as demo

COUNT, ROWS = 4000, 50


def run(module: Any, events: pa.Table) -> tuple[pa.Table, list[Any]]:
    tables = [module.accounts, module.assets]
    with hg.open(None, tables=tables, transactions=[module.transfer, module.deposit]) as engine:
        accounts, assets = demo.first_rows(ROWS)
        engine.load("accounts", accounts)
        engine.load("assets", assets)
        routes = {"transfer": module.transfer, "deposit": module.deposit}
        results = engine.run(routes, events, route_by="kind", order_by=["ts", "event"])
        sums = "select (select sum(balance) from accounts), (select sum(quantity) from assets)"
        return results, engine.sql(sums).rows()


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return demo.make_events(COUNT, ROWS)


@pytest.fixture(scope="module")
def ran(events: pa.Table) -> tuple[pa.Table, list[Any]]:
    return run(demo, events)


def test_the_program_to_copy_gives_the_results_of_the_demo(
    events: pa.Table, ran: tuple[pa.Table, list[Any]]
) -> None:
    results, sums = run(app, events)
    assert results.to_pylist() == ran[0].to_pylist()
    assert sums == ran[1]
    assert app.COLUMNS == demo.EVENT_COLUMNS


def test_money_and_goods_only_enter_by_deposits(
    events: pa.Table, ran: tuple[pa.Table, list[Any]]
) -> None:
    results, sums = ran
    rows = [row for row in results.to_pylist() if row["transaction"] == "deposit"]
    numbers = pa.array([row["event"] for row in rows if row["outcome"] == "committed"])
    amounts = pc.sum(events.column("amount").take(numbers)).as_py()
    quantities = pc.sum(events.column("quantity").take(numbers)).as_py()
    first = (demo.FIRST_BALANCE * ROWS, demo.FIRST_QUANTITY * ROWS)
    assert sums == [(first[0] + amounts, first[1] + quantities)]


def test_every_way_to_end_occurs(ran: tuple[pa.Table, list[Any]]) -> None:
    reasons = set(ran[0].column("reason").to_pylist())
    assert reasons >= {
        None,
        "insufficient funds",
        "missing key: accounts",
        "check failed: assets: quantity >= 0",
    }


def test_the_events_are_the_same_for_the_same_seed_and_exact(events: pa.Table) -> None:
    assert demo.make_events(COUNT, ROWS).equals(events)
    assert not demo.make_events(COUNT, ROWS, seed=8).equals(events)
    amounts = events.column("amount").to_pylist()
    assert all(Decimal("0.01") <= amount < Decimal("800") for amount in amounts)


def test_files_hold_all_events_out_of_order_inside_each(events: pa.Table, tmp_path: Path) -> None:
    demo.write_files(events, tmp_path / "events", files=7)
    parts = [pq.read_table(path) for path in sorted((tmp_path / "events").iterdir())]
    assert len(parts) == 7
    numbers = [part.column("event").to_pylist() for part in parts]
    assert all(found != sorted(found) for found in numbers)
    assert [number for found in numbers for number in sorted(found)] == list(range(COUNT))
