"""`updates=True`: the rows in the results are those the oracle has after each transaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property import making
from tests.property.family import FAMILY
from tests.property.harness import Harness

# Rows named twice, arrays of rows, deleted rows, texts, floats that are not equal to themselves.
MEMBERS = ("move", "switch", "take_seat", "share_out", "offer", "clear_out")


@pytest.mark.parametrize("name", MEMBERS)
@making.examples(25)
@given(data=st.data())
def test_both_forms_show_the_rows_of_the_oracle(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    harness = Harness([name], rows)
    for events in data.draw(making.batches(making.events(member)), "batches"):
        harness.run(name, events, updates=True)
    harness.compare_tables()
