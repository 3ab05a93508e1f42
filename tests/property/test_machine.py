"""A machine that loads, runs, calls, flushes, queries, stops and starts, beside the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from tests.property import making
from tests.property.family import FAMILY, book, routes, wallets
from tests.property.test_durable import Life
from tests.property.test_streams import routed_events

ROUTES = routes({"put": True, "move": False, "drop": True, "chase": True})
DEPOSIT = FAMILY["deposit"].compiled
SINGLE = {**ROUTES, "deposit": DEPOSIT}
STREAM = {"route_by": "kind", "order_by": "ts", "watermark": "4 seconds"}

MODES = st.sampled_from(("once", "once", "missing", "skip"))


class EngineMachine(RuleBasedStateMachine):
    """A durable engine; after every step its tables are those of the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life([book, wallets], SINGLE.values())
        self.oracle = SerialOracle([book, wallets])

    def same(self, what: str, *arguments: Any, **options: Any) -> None:
        expected = getattr(self.oracle, what)(*arguments, **options)
        found = getattr(self.life.engine, what)(*arguments, **options)
        assert results_difference(found, expected) is None

    def load(self, table: hg.Table, rows: Any, mode: str) -> None:
        """Both take the rows, or both refuse: a table of which events made rows, not loaded."""
        try:
            expected = self.oracle.load(table, rows, mode)
        except ValueError:
            with pytest.raises(hg.InputError, match="never loaded"):
                self.life.engine.load(table.name, rows, mode=mode)
        else:
            assert self.life.engine.load(table, rows, mode=mode) == expected

    @rule(rows=making.rows(book), mode=MODES)
    def load_book(self, rows: Any, mode: str) -> None:
        self.load(book, rows, mode)

    @rule(rows=making.rows(wallets), mode=MODES)
    def load_wallets(self, rows: Any, mode: str) -> None:
        self.load(wallets, rows, mode)

    @rule(
        events=making.batch(routed_events()), order_by=st.sampled_from((None, "ts", ["id", "ts"]))
    )
    def run_routed(self, events: Any, order_by: Any) -> None:
        self.same("run", ROUTES, events, route_by="kind", order_by=order_by)

    @rule(events=making.batch(routed_events()), late=st.sampled_from(("reject", "append")))
    def run_with_watermark(self, events: Any, late: str) -> None:
        self.same("run", ROUTES, events, late=late, **STREAM)

    @rule(events=making.batch(making.events(FAMILY["deposit"])), size=st.integers(1, 5))
    def run_deposits(self, events: Any, size: int) -> None:
        self.same("run", DEPOSIT, events, order_by="ts", batch_size=size)

    @rule(data=st.data(), name=st.sampled_from(sorted(SINGLE)))
    def call(self, data: st.DataObject, name: str) -> None:
        event = data.draw(making.events(FAMILY[name]))
        expected = self.oracle.call(SINGLE[name], **event)
        found = dict(self.life.engine.call(SINGLE[name], **event))
        assert results_difference([found], [expected]) is None

    @rule()
    def flush(self) -> None:
        try:
            self.same("flush", ROUTES, **STREAM)
        except hg.InputError as error:  # as long as no event ever came that way
            assert "there is no stream" in str(error)
            assert not self.oracle.flush(ROUTES, **STREAM)

    @rule(how=st.sampled_from(("close", "kill")))
    def stop_and_start(self, how: str) -> None:
        self.life.stop(how)

    @precondition(lambda self: self.oracle.rows["book"])
    @rule(least=st.integers(-5, 20))
    def query(self, least: int) -> None:
        query = "select count(*), sum(n), max(note) from book where n >= ?"
        rows = [row for row in self.oracle.table(book) if row["n"] >= least]
        totals = (sum(row["n"] for row in rows), max(row["note"] for row in rows)) if rows else None
        expected = (len(rows), *(totals or (None, None)))
        assert self.life.engine.sql(query, [least]).rows() == [expected]

    @invariant()
    def tables_are_the_same(self) -> None:
        assert difference(self.life.engine, self.oracle) is None

    def teardown(self) -> None:
        self.life.engine.close()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(making.examples(30), stateful_step_count=15)
