"""Batches: cutting a sorted input into batches or single calls changes nothing but the epochs."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.testing import SerialOracle, difference, results_difference
from headgate.testing.scalars import place
from tests.property import making
from tests.property.family import FAMILY, Member
from tests.property.harness import decoded, same_bytes, sorted_table

ORDERED = [name for name, member in FAMILY.items() if member.order_by]
NUMBERING = ["epoch", "position"]


def opened(member: Member, rows: Any) -> hg.Engine:
    engine = hg.open(None, tables=member.tables, transactions=[member.compiled])
    for table in member.tables:
        engine.load(table, rows[table.name])
    return engine


def sorted_events(member: Member, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = member.order_by
    return sorted(events, key=lambda event: tuple(place(event[name]) for name in names))


@pytest.mark.parametrize("name", ORDERED)
@making.examples(10)
@given(data=st.data())
def test_one_batch_several_batches_and_single_calls_agree(name: str, data: st.DataObject) -> None:
    member = FAMILY[name]
    rows = data.draw(making.filled_tables(*member.tables), "rows")
    events = data.draw(making.batch(making.sound_events(member), 16), "events")
    events = sorted_events(member, events)
    whole, cut, called = (opened(member, rows) for _ in range(3))
    order = list(member.order_by)
    size = data.draw(st.integers(1, 5), "size")
    expected = decoded(whole.run(member.compiled, events, order_by=order).drop(NUMBERING))
    found = cut.run(member.compiled, events, order_by=order, batch_size=size)
    assert same_bytes(decoded(found.drop(NUMBERING)), expected)
    engines = [cut]
    if not any(table.expires for table in member.tables):  # a call has no time: nothing expires
        single = [dict(called.call(member.compiled, **event)) for event in events]
        without_order = [repr(row) for row in expected.drop(order).to_pylist()]
        assert [repr(_without_numbers(row)) for row in single] == without_order
        engines.append(called)
    for table in member.tables:
        for engine in engines:
            assert same_bytes(sorted_table(engine, table), sorted_table(whole, table))


def _without_numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in NUMBERING}


@making.examples(15)
@given(
    events=making.batch(making.sound_events(FAMILY["deposit"]), 30),
    size=st.integers(1, 40),
    pieces=st.lists(st.integers(0, 30), max_size=4),
)
def test_chunks_of_the_input_are_no_batches(events: Any, size: int, pieces: list[int]) -> None:
    """An Arrow table in many chunks is one batch; `batch_size` alone cuts."""
    member = FAMILY["deposit"]
    one, other = (opened(member, {"wallets": []}) for _ in range(2))
    table = pa.Table.from_pylist(events, schema=member.compiled.event.arrow)
    bounds = sorted({0, *(min(piece, len(events)) for piece in pieces), len(events)})
    chunks = [table.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
    chunked = pa.concat_tables([*chunks, table.slice(0, 0)])
    options = {"order_by": "ts", "batch_size": size}
    expected = one.run(member.compiled, events, **options)
    assert same_bytes(decoded(other.run(member.compiled, chunked, **options)), decoded(expected))


@making.examples(25)
@given(
    rows=making.rows(FAMILY["count_up"].tables[0]),
    events=making.batch(making.events(FAMILY["count_up"])),
    wide=st.lists(st.sampled_from((2**31, -(2**31) - 1, 2**62)), max_size=3),
)
def test_integers_that_do_not_fit_their_column_are_rejected(
    rows: Any, events: Any, wide: list[int]
) -> None:
    """As they arrive in Arrow, where an int64 column may stand for an int."""
    member = FAMILY["count_up"]
    events = [*events, *({"id": 0, "by": 1, "times": 1, "few": number} for number in wide)]
    columns = {n: pa.array([e[n] for e in events], pa.int64()) for n in member.compiled.event.names}
    for compiled in (True, False):
        form = member.form(compiled)
        engine = hg.open(None, tables=member.tables, transactions=[form])
        oracle = SerialOracle(member.tables)
        for target in (engine, oracle):
            target.load(member.tables[0], rows)
        expected = oracle.run(form, events, order_by="few")
        found = engine.run(form, pa.table(columns), order_by="few")
        assert results_difference(found, expected) is None
        assert difference(engine, oracle) is None
