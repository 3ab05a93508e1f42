"""The mirror: always the rows of the last epoch, and a table handed out never changes."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.query import mirror
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool

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
    run=st.integers(1, 3),
)
def test_small_chunks_show_the_same_rows_as_one_large(steps: Any, chunk: int, run: int) -> None:
    rows: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "CHUNK_SLOTS", chunk)
        patch.setattr(mirror, "RUN_CHUNKS", run)
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


WIDTHS = hg.Table(
    "widths",
    "name string, id int, flag boolean, big bigint, x float, due decimal(9,2), day date",
    key="id, name",
)


def made_rows(count: int) -> pa.Table:
    rows = [
        {
            "name": f"row {number}",
            "id": number % 7 - 3,
            "flag": number % 3 == 0,
            "big": number << 40,
            "x": number / 4,
            "due": Decimal(-number),
            "day": number - 5,
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, WIDTHS.schema.arrow)


@pytest.mark.parametrize("cores", [1, 3])
def test_columns_of_every_width_are_those_of_the_live_rows(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are whole, that have gaps and that are empty, on one thread and on several."""
    monkeypatch.setattr(mirror.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", 700)
    monkeypatch.setattr(mirror, "RUN_CHUNKS", 2)
    monkeypatch.setattr(mirror, "THREAD_RUNS", 1)
    rows, given = TableRows(WIDTHS, StringPool()), made_rows(5000)
    rows.load(given, 1)
    made = mirror.Mirror(rows)
    assert made.table().equals(given)
    gone = np.array([0, 3, *range(1300, 2200), 4999])
    rows.remove(gone)
    made.note(gone)
    left = np.setdiff1d(np.arange(5000), gone)
    assert made.table().equals(given.take(left))
    assert made.table() is made.table()
    rows.remove(left)
    made.note(left)
    assert made.table().num_rows == 0


def test_only_chunks_that_changed_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", 10)
    rows = TableRows(WIDTHS, StringPool())
    rows.load(made_rows(55), 1)
    made = mirror.Mirror(rows)
    before = made.table().to_batches()
    rows.remove(np.array([31, 12]))
    made.note(np.array([31, 12]))
    after = made.table().to_batches()
    places = [one.column("big").buffers()[1].address for one in before]
    again = [one.column("big").buffers()[1].address for one in after]
    assert [place for place in range(6) if places[place] != again[place]] == [1, 3]


def test_an_error_of_a_helping_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """This thread waits until the other has failed, so that it is not cancelled before."""
    monkeypatch.setattr(mirror.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(mirror, "CHUNK_SLOTS", 10)
    monkeypatch.setattr(mirror, "RUN_CHUNKS", 1)
    monkeypatch.setattr(mirror, "THREAD_RUNS", 1)
    rows = TableRows(WIDTHS, StringPool())
    rows.load(made_rows(55), 1)
    made, honest, failed = mirror.Mirror(rows), mirror.Mirror._make, threading.Event()

    def make(one: mirror.Mirror, run: range) -> Any:
        if threading.current_thread() is threading.main_thread():
            failed.wait(60)
            return honest(one, run)
        failed.set()
        raise MemoryError

    monkeypatch.setattr(mirror.Mirror, "_make", make)
    with pytest.raises(MemoryError):
        made.table()
    monkeypatch.setattr(mirror.Mirror, "_make", honest)
    assert made.table().equals(made_rows(55))
