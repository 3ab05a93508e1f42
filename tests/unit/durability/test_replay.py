"""Replay by slots: the same image as a dictionary that is updated row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.durability import replay as replay_module
from headgate.durability.replay import Replay
from headgate.errors import InvariantError

ROWS = st.dictionaries(st.integers(0, 3000), st.none() | st.text(max_size=3), max_size=12)
SLOT_RANGE = st.none() | st.tuples(st.integers(0, 3000), st.integers(0, 3000))


def batch(rows: dict[int, str | None], is_image: bool) -> pa.RecordBatch:
    columns: dict[str, Any] = {"__slot": pa.array(rows, pa.int64())}
    if not is_image:
        columns["__alive"] = pa.array([row is not None for row in rows.values()], pa.bool_())
    columns["text"] = pa.array([row or "" for row in rows.values()], pa.string())
    return pa.record_batch(columns)


@given(image=ROWS, frames=st.lists(ROWS, max_size=8), slot_range=SLOT_RANGE, fold=st.booleans())
def test_replay_equals_a_dictionary_updated_row_by_row(
    image: dict[int, str | None],
    frames: list[dict[int, str | None]],
    slot_range: tuple[int, int] | None,
    fold: bool,
) -> None:
    image = {slot: row for slot, row in image.items() if row is not None}
    replay = Replay(slot_range)
    replay.insert(batch(image, is_image=True))
    model = dict(image)
    for frame in frames:
        replay.apply(batch(frame, is_image=False))
        model.update(frame)
        if fold:
            replay._fold()
    low, high = slot_range or (0, 10_000)
    expected = {
        slot: row for slot, row in sorted(model.items()) if row is not None and low <= slot < high
    }
    found = replay.image()
    assert found["__slot"].to_pylist() == list(expected)
    assert found["text"].to_pylist() == list(expected.values())


def test_old_versions_are_dropped_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay_module, "_FOLD_BYTES_MIN", 10_000)
    replay = Replay()
    for number in range(200):
        replay.apply(batch({slot: f"{number}" for slot in range(50)}, is_image=False))
    assert sum(held.nbytes for held in replay._batches) < 30_000
    assert replay.image()["text"].to_pylist() == ["199"] * 50


def test_a_column_that_came_later_is_null_before() -> None:
    replay = Replay()
    replay.insert(pa.record_batch({"__slot": [0, 1], "a": [1, 2]}))
    replay.apply(pa.record_batch({"__slot": [1], "__alive": [True], "a": [3], "b": [4.5]}))
    assert replay.image().to_pydict() == {"__slot": [0, 1], "a": [1, 3], "b": [None, 4.5]}


def test_a_slot_below_zero_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="slot -1"):
        Replay().insert(pa.record_batch({"__slot": [-1], "a": [1]}))
