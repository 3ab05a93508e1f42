"""Durable: a store that is closed or killed in the middle goes on as if it had never stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.engine import journal
from headgate.engine import memory as memory_module
from headgate.testing import (
    SerialOracle,
    SimulatedClock,
    SimulatedDisk,
    difference,
    results_difference,
)
from tests.property import making
from tests.property.family import FAMILY, Member, book, routes
from tests.property.test_streams import routed_events

STOPS = st.lists(st.sampled_from(("close", "kill", "go on")), min_size=5, max_size=5)
SNAPSHOT_AFTER_BYTES = st.sampled_from((0, 2_000, 1 << 30))
POOL_SLACK = st.sampled_from((0, 1 << 18))
RECOVERY = st.sampled_from(("strong", "weak"))
PATH = "/store"


class Life:
    """An engine on a simulated disk that may stop and start again between batches."""

    def __init__(self, tables: Any, transactions: Any, recovery: str = "strong") -> None:
        declared = {"tables": list(tables), "transactions": list(transactions)}
        self.declared: Any = {**declared, "recovery": recovery}
        self.disk = SimulatedDisk()
        self.engine = self.open()

    def open(self) -> hg.Engine:
        return hg.open(PATH, disk=self.disk, clock=SimulatedClock(), **self.declared)

    def stop(self, how: str) -> None:
        """Close the engine, or leave it as a killed process does, and open its store again."""
        if how == "go on":
            return
        if how == "close":
            self.engine.close()
        else:
            with self.disk._guard:  # a snapshot may be under way in another thread
                self.disk = self.disk.after_kill()
        self.engine = self.open()


def lowered(patch: pytest.MonkeyPatch, snapshot_bytes: int, slack: int) -> None:
    """Make snapshots and compactions of the string pool happen after a few batches."""
    patch.setattr(journal, "SNAPSHOT_LOG_BYTES", snapshot_bytes)
    patch.setattr(memory_module, "POOL_SLACK", slack)


@pytest.mark.parametrize(
    "name",
    [
        *("transfer", "deposit", "take_seat", "add_all", "switch", "charge", "extend", "hop"),
        "read_gauge",
    ],
)
@making.examples(12)
@given(data=st.data())
def test_a_store_that_stops_in_the_middle_is_as_one_that_does_not(
    name: str, data: st.DataObject
) -> None:
    member: Member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    batches = data.draw(making.batches(making.events(member), 5), "batches")
    stops = data.draw(STOPS, "stops")
    with pytest.MonkeyPatch.context() as patch:
        lowered(patch, data.draw(SNAPSHOT_AFTER_BYTES), data.draw(POOL_SLACK))
        life = Life(member.tables, [member.compiled], data.draw(RECOVERY))
        oracle = SerialOracle(member.tables)
        for table in member.tables:
            assert life.engine.load(table, rows[table.name]) == oracle.load(table, rows[table.name])
        for events, stop in zip(batches, stops, strict=False):
            life.stop(stop)
            order_by = data.draw(making.order_of(member))
            found = life.engine.run(member.compiled, events, order_by=order_by)
            expected = oracle.run(member.compiled, events, order_by=order_by)
            assert results_difference(found, expected) is None
        life.stop("close")
        assert difference(life.engine, oracle) is None
        for table in member.tables:
            assert life.engine.load(table, rows[table.name]) == oracle.load(table, rows[table.name])


@making.examples(30)
@given(
    rows=making.rows(book),
    batches=making.batches(routed_events(), 5),
    stops=STOPS,
    late=st.sampled_from(("reject", "append")),
    recovery=RECOVERY,
    limits=st.tuples(SNAPSHOT_AFTER_BYTES, POOL_SLACK),
)
def test_held_events_and_the_watermark_survive_a_stop(
    rows: Any, batches: Any, stops: Any, late: str, recovery: str, limits: tuple[int, int]
) -> None:
    found = routes({"put": True, "move": True, "drop": True, "chase": True})
    options = {"route_by": "kind", "order_by": "ts", "watermark": "3 seconds", "late": late}
    options["carry"] = "tag, other"
    with pytest.MonkeyPatch.context() as patch:
        lowered(patch, *limits)
        life, oracle = Life([book], found.values(), recovery), SerialOracle([book])
        for target in (life.engine, oracle):
            target.load(book, rows)
        for events, stop in zip(batches, stops, strict=False):
            life.stop(stop)
            expected = oracle.run(found, events, **options)
            assert results_difference(life.engine.run(found, events, **options), expected) is None
        life.stop("kill")
        life.engine.run(found, [], **options)  # it may never have had an event
        expected = oracle.flush(found, **options)
        assert results_difference(life.engine.flush(found, **options), expected) is None
        life.stop("close")
        assert difference(life.engine, oracle) is None


@making.examples(10)
@given(events=making.batch(making.events(FAMILY["take_seat"]), 30), size=st.integers(1, 7))
def test_a_pipelined_run_is_durable_when_it_returns(events: Any, size: int) -> None:
    member = FAMILY["take_seat"]
    life, oracle = Life(member.tables, [member.compiled]), SerialOracle(member.tables)
    found = life.engine.run(member.compiled, events, batch_size=size)
    expected = oracle.run(member.compiled, events, batch_size=size)
    assert results_difference(found, expected) is None
    life.stop("kill")
    assert difference(life.engine, oracle) is None
