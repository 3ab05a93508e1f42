"""The mirror: always the rows of the last epoch, and a table handed out never changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.query import mirror

table = hg.Table("t", "id bigint, n bigint, s string", key="id")


@hg.transaction(event="id bigint, n bigint", compiled=False)
def change(event: Any, row: Any = table.at("id", create=True)) -> None:
    if event.n < 0:
        hg.delete(row)
    else:
        row.n = event.n
        row.s = "even" if event.n % 2 == 0 else "odd"


@settings(max_examples=25)
@given(
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 5)), max_size=6), max_size=6
    ),
    chunk=st.integers(1, 4),
)
def test_small_chunks_show_the_same_rows_as_one_large(steps: Any, chunk: int) -> None:
    rows: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "CHUNK_SLOTS", chunk)
        engine = hg.open(None, tables=[table], transactions=[change])
        for step in steps:
            for key, n in step:
                engine.call(change, id=key, n=n)
                rows[key] = n
                if n < 0:
                    del rows[key]
            found = engine.sql("select id, n, s from t").rows()
            wanted = [(key, n, "even" if n % 2 == 0 else "odd") for key, n in rows.items()]
            assert sorted(found) == sorted(wanted)


def test_a_table_handed_out_stays_as_it_was() -> None:
    engine = hg.open(None, tables=[table], transactions=[change])
    engine.run(change, [{"id": number, "n": 1} for number in range(5)])
    before = engine.sql("select * from t order by id").arrow()
    copy = before.to_pylist()
    engine.run(change, [{"id": number, "n": number - 1} for number in range(5)])
    assert before.to_pylist() == copy
    assert engine.sql("select count(*) from t").rows() == [(4,)]
