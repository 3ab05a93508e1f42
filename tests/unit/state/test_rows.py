"""Rows: loading, growing, and slots that are used again after their rows are gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.state.rows import ROWS_MIN, TableRows
from headgate.state.strings import StringPool

EVERYTHING = hg.Table(
    "everything",
    """name string, id int, flag boolean, small int, big bigint, x float, y double,
       day date, ts timestamp, due decimal(9,2), note string""",
    key="id, name",
)


def made(count: int) -> pa.Table:
    numbers = range(count)
    columns = {
        "name": [f"row {n}" for n in numbers],
        "id": [n % 7 - 3 for n in numbers],
        "flag": [n % 2 == 0 for n in numbers],
        "small": [-n for n in numbers],
        "big": [n << 40 for n in numbers],
        "x": [n / 4 for n in numbers],
        "y": [-n / 3 for n in numbers],
        "day": [n - 5 for n in numbers],
        "ts": [n * 1_000_001 for n in numbers],
        "due": [f"{n}.25" for n in numbers],
        "note": ["" if n % 3 else "ä" for n in numbers],
    }
    schema = EVERYTHING.schema.arrow
    arrays = [_column(columns[field.name], field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array(values).cast(kind)
    return pa.array(values, kind)


def test_loaded_rows_come_back_as_they_were() -> None:
    rows = TableRows(EVERYTHING, StringPool())
    table = made(2 * ROWS_MIN + 5)  # more than the first array of rows holds
    assert rows.load(table, 1) == range(table.num_rows)
    assert pa.Table.from_batches([rows.arrow(slice(0, rows.count))]).equals(table)
    picked = np.array([5, 0, 2000, 5])
    assert pa.Table.from_batches([rows.arrow(picked)]).equals(table.take(picked))


def test_a_row_is_found_by_its_key_in_the_order_of_the_key() -> None:
    rows = TableRows(EVERYTHING, StringPool())
    rows.load(made(100), 1)
    ids = np.array([57 % 7 - 3, 0, 57 % 7 - 3], np.int64)
    names = rows.pool.intern(pa.array(["row 57", "row 57", "nobody"]))
    found = rows.find(rows.key_words([ids, names]), np.zeros(3, np.uint8))
    assert list(found) == [57, -1, -1]


def test_two_rows_with_one_key_are_refused_and_nothing_is_left_of_them() -> None:
    rows = TableRows(EVERYTHING, StringPool())
    table = pa.concat_tables([made(3), made(2)]).combine_chunks()
    with pytest.raises(hg.InputError, match="two of the rows have the key id=-3, name='row 0'"):
        rows.load(table, 1)
    assert len(rows) == 0
    assert rows.load(made(3), 1) == range(3)


@pytest.mark.parametrize("column", ["id", "note", "due"])
def test_a_null_in_a_load_is_refused_with_column_and_row(column: str) -> None:
    rows = TableRows(EVERYTHING, StringPool())
    table = made(3)
    place = table.column_names.index(column)
    values = pa.array([*table.column(column).to_pylist()[:2], None], table.schema.field(place).type)
    with pytest.raises(hg.InputError, match=f"column '{column}': the value in row 2 is null"):
        rows.load(table.set_column(place, column, values), 1)
    assert len(rows) == 0 and rows.load(made(3), 1) == range(3)


def test_slots_of_deleted_rows_are_used_again() -> None:
    pool = StringPool()
    table = hg.Table("t", "id bigint, n bigint", key="id")
    rows = TableRows(table, pool)
    nothing = np.zeros(8, np.uint8)
    for batch in range(50):
        keys = rows.key_words([np.arange(8, dtype=np.int64) + 8 * batch])
        slots = rows.find_or_take(keys, nothing)
        rows.words[slots, 0] |= 1  # created
        rows.release(np.empty(0, np.int64))
        rows.words[slots, 0] &= ~np.int64(1)  # deleted
        rows.release(slots)
        assert rows.count <= 8 and len(rows) == 0
        assert list(rows.find(keys, nothing)) == [-1] * 8


def test_a_slot_taken_for_a_row_that_is_never_created_goes_back() -> None:
    rows = TableRows(hg.Table("t", "id bigint", key="id"), StringPool())
    keys = rows.key_words([np.array([4, 5, 4], np.int64)])
    slots = rows.find_or_take(keys, np.zeros(3, np.uint8))
    assert list(slots) == [0, 1, 0]
    rows.words[1, 0] |= 1  # only the row of key 5 is created
    rows.release(np.empty(0, np.int64))
    assert len(rows) == 1
    assert list(rows.find(keys, np.zeros(3, np.uint8))) == [-1, 1, -1]


def test_the_index_grows_while_a_batch_holds_slots_it_has_not_created() -> None:
    rows = TableRows(hg.Table("t", "id bigint", key="id"), StringPool())
    first = rows.key_words([np.arange(1000, dtype=np.int64)])
    second = rows.key_words([np.arange(500, 5000, dtype=np.int64)])
    one = rows.find_or_take(first, np.zeros(1000, np.uint8))
    other = rows.find_or_take(second, np.zeros(4500, np.uint8))
    assert list(other[:500]) == list(one[500:])
    assert len(np.unique(np.concatenate([one, other]))) == 5000


def test_recovered_rows_stand_in_their_slots_and_the_gaps_are_free() -> None:
    rows = TableRows(EVERYTHING, StringPool())
    table = made(4)
    rows.restore(np.array([1, 4, 5, 9]), table, 7)
    rows.note_used(12)
    assert (rows.count, len(rows)) == (12, 4)
    assert pa.Table.from_batches([rows.arrow(np.array([1, 4, 5, 9]))]).equals(table)
    keys = rows.key_words([np.array([100, 101]), np.zeros(2, np.int64)])
    assert list(rows.find_or_take(keys, np.zeros(2, np.uint8))) == [0, 2]
