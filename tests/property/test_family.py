"""Every member of the family, compiled and interpreted, gives what the serial oracle gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property import making
from tests.property.family import FAMILY
from tests.property.harness import Harness


@pytest.mark.parametrize("name", FAMILY)
@making.examples(25)
@given(data=st.data())
def test_both_forms_give_what_the_oracle_gives(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    harness = Harness([name], rows)
    for events in data.draw(making.batches(making.events(member)), "batches"):
        harness.run(name, events, order_by=data.draw(making.order_of(member), "order"))
    harness.compare_tables()
