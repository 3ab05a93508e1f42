"""The demo's claims can fail: each is shown a ledger in which it does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.cli import proof
from headgate.cli.proof import DemoTally, RecognisedBatch
from headgate.query.sql import run_sql

MONEY = pa.decimal128(12, 2)


def whole() -> dict[str, pa.Table]:
    """One account and one asset; a deposit of 5.00 and 2 pieces, and an aborted transfer."""
    return {
        "events": pa.table(
            {
                "event": [0, 1],
                "amount": pa.array([Decimal("5.00"), Decimal("9.00")], MONEY),
                "quantity": [2, 0],
            }
        ),
        "results": pa.table(
            {
                "event": [0, 1],
                "transaction": ["deposit", "transfer"],
                "outcome": ["committed", "aborted"],
                "reason": [None, "insufficient funds"],
            }
        ),
        "accounts": pa.table({"id": [0], "balance": pa.array([Decimal("1005.00")], MONEY)}),
        "assets": pa.table({"id": [0], "quantity": [42]}),
    }


def tally() -> DemoTally:
    counted = DemoTally(whole()["events"], Decimal("1000.00"))
    counted.totals.add(Decimal("1005.00"))
    counted.seen.append(Decimal("1000.00"))
    counted.replays.append(RecognisedBatch(0, 2, 1))
    return counted


def broken(tables: Mapping[str, pa.Table], counted: DemoTally) -> list[str]:
    def ask(query: str) -> list[tuple[Any, ...]]:
        return run_sql(query, tables).rows()

    return [claim.what for claim in proof.claims(ask, counted, rows=1) if not claim.holds]


def test_all_claims_hold_of_a_whole_ledger() -> None:
    assert broken(whole(), tally()) == []


@pytest.mark.parametrize(
    ("table", "change", "claim"),
    [
        ("accounts", {"balance": [Decimal("1010.00")]}, "accounts: the total is conserved"),
        ("assets", {"quantity": [41]}, "assets: the total is conserved"),
        ("results", {"event": [0, 0]}, "each event ran exactly once"),
    ],
)
def test_a_changed_ledger_is_noticed(table: str, change: dict[str, list[Any]], claim: str) -> None:
    tables = whole()
    for name, values in change.items():
        place = tables[table].schema.get_field_index(name)
        column = pa.array(values, tables[table].schema.field(name).type)
        tables[table] = tables[table].set_column(place, name, column)
    assert claim in broken(tables, tally())


def test_a_lost_result_is_noticed() -> None:
    tables = whole()
    tables["results"] = tables["results"].slice(0, 1)
    assert broken(tables, tally()) == ["each event ran exactly once"]


def test_a_query_that_saw_half_an_epoch_is_noticed() -> None:
    counted = tally()
    counted.seen.append(Decimal("1002.50"))
    assert broken(whole(), counted) == ["queries see whole epochs"]


def test_a_replay_that_was_not_recognised_is_noticed() -> None:
    counted = tally()
    counted.replays.clear()
    assert broken(whole(), counted) == ["nothing is applied twice"]


class Engine:
    """Just an epoch and a sink, for the tally."""

    def __init__(self) -> None:
        self.epoch = 1

    def apply(self, results: pa.Table, batch_id: int) -> pa.Table:
        self.epoch += batch_id == 0
        return results


def test_the_tally_counts_a_batch_once_and_notes_its_replay() -> None:
    engine = Engine()
    counted = DemoTally(whole()["events"], Decimal("1000.00"))
    results = whole()["results"].append_column("epoch", pa.array([2, 2]))
    counted.run(engine.apply, engine, results, 0)
    counted.run(engine.apply, engine, results, 1)  # the epoch stays: recognised
    assert counted.outcomes == {"committed": 1, "aborted": 1}
    assert counted.replays == [RecognisedBatch(1, 2, 2)]
    assert counted.totals == {Decimal("1000.00"), Decimal("1005.00")}
