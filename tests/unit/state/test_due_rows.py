"""Rows by the moment at which they expire: always those that a look at every row finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.state import due_rows as module
from headgate.state.due_rows import due_rows
from headgate.state.index import merge_freed
from headgate.state.rows import TableRows
from headgate.state.strings import StringPool

leases = hg.Table("leases", "id bigint, until timestamp NULL", key="id", expires="until + 1 second")
SECOND = 1_000_000
MOMENTS = st.lists(st.tuples(st.integers(0, 11), st.none() | st.integers(0, 9)), max_size=6)


def opened(until: list[int | None]) -> TableRows:
    rows = TableRows(leases, StringPool())
    times = pa.array([None if one is None else one * SECOND for one in until])
    times = times.cast(pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows.load(pa.table({"id": np.arange(len(until)), "until": times}), 1)
    return rows


def changed(rows: TableRows, changes: Any) -> list[int]:
    """Set what some rows say, or let them be gone where that is nothing; returns their slots."""
    field = rows.layout.field("until")
    for slot, until in changes:
        rows.words[slot, 0] = (2 << 8) | (until is not None)
        rows.words[slot, field.null_word] &= ~field.null_mask
        rows.words[slot, field.offset // 8] = 0 if until is None else until * SECOND
    return sorted({slot for slot, _ in changes})


@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.tuples(MOMENTS, st.integers(0, 11)), max_size=8), spare=st.booleans())
def test_what_is_due_is_what_a_look_at_every_row_finds(batches: Any, spare: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SPARE_ENTRIES", 4096 if spare else -20)  # then it is made anew
        patch.setattr(module, "RUNS_MAX", 2)
        rows = opened([n % 5 if n % 4 else None for n in range(12)])
        assert leases.expires is not None
        for changes, time in batches:
            rows.note_changed(np.array(changed(rows, changes), np.int64))
            words, field = rows.words[: rows.count], rows.layout.field("until")
            says = (words[:, 0] & 1 != 0) & (words[:, field.null_word] & field.null_mask == 0)
            moments = words[:, field.offset // 8] + SECOND
            expected = np.flatnonzero(says & (moments <= time * SECOND))
            kept = due_rows(rows, leases.expires)
            assert kept.is_any(time * SECOND) == (len(expected) > 0)
            found_moments, found = kept.due(time * SECOND)
            assert sorted(set(found.tolist())) == expected.tolist()
            assert found_moments.tolist() == sorted(moments[found].tolist())


@given(free=st.sets(st.integers(0, 40)), more=st.sets(st.integers(41, 80) | st.integers(0, 40)))
def test_freed_slots_are_merged_into_those_that_are_free(free: set[int], more: set[int]) -> None:
    more -= free
    slots = np.array([*sorted(free, reverse=True), *[0] * len(more)], np.int64)
    merge_freed(slots, len(free), np.array(sorted(more), np.int64))
    assert slots.tolist() == sorted(free | more, reverse=True)
