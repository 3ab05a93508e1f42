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
            replay.fold()
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
    held = [one.nbytes for strand in replay._strands for one in strand._batches]
    assert sum(held) < 30_000
    assert replay.image()["text"].to_pylist() == ["199"] * 50


def test_a_column_that_came_later_is_null_before() -> None:
    replay = Replay()
    replay.insert(pa.record_batch({"__slot": [0, 1], "a": [1, 2]}))
    replay.apply(pa.record_batch({"__slot": [1], "__alive": [True], "a": [3], "b": [4.5]}))
    assert replay.image().to_pydict() == {"__slot": [0, 1], "a": [1, 3], "b": [None, 4.5]}


NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sets(st.sampled_from(NAMES), min_size=1)),
        st.tuples(st.just("update"), st.sets(st.sampled_from(NAMES), min_size=1)),
        st.tuples(st.just("remove"), st.just(frozenset())),
    ),
    max_size=10,
)  # fmt: skip


@given(
    steps=STEPS, data=st.data(), slot_range=SLOT_RANGE, fold=st.booleans(), partial=st.booleans(),
    columns=st.none() | st.lists(st.sampled_from(NAMES), unique=True),
)  # fmt: skip
def test_new_values_of_some_columns_leave_the_others_as_they_were(
    steps: list[tuple[str, Any]],
    data: st.DataObject,
    slot_range: tuple[int, int] | None,
    fold: bool,
    partial: bool,
    columns: list[str] | None,
) -> None:
    """Over a snapshot; where `partial`, the changes are gathered first and put over it then."""
    model = {slot: {"a": slot, "b": -slot} for slot in range(0, 2000, 250)}
    image = pa.record_batch({"__slot": list(model), "a": list(model), "b": [-s for s in model]})
    whole = Replay(slot_range, columns)
    whole.insert(image)
    changes = Replay(partial=True) if partial else whole
    for number, (step, names) in enumerate(steps):
        slots = data.draw(st.sets(st.integers(0, 3000) if step == "put" else
                                  st.sampled_from(sorted(model) or [0]), max_size=4))  # fmt: skip
        slots = slots if step == "put" else slots & set(model)
        given_columns = {"__slot": pa.array(sorted(slots), pa.int64())}
        if step != "update":
            given_columns["__alive"] = pa.array([step == "put"] * len(slots), pa.bool_())
        new = {name: 10_000 * number + len(name) for name in sorted(names)}
        given_columns |= {name: pa.array([new[name]] * len(slots), pa.int64()) for name in new}
        changes.apply(pa.record_batch(given_columns))
        for slot in slots:
            if step == "remove":
                del model[slot]
            else:
                model[slot] = {**(model[slot] if step == "update" else {}), **new}
        if fold:
            changes.fold()
    if partial:
        put_over(whole, changes, slot_range)
    low, high = slot_range or (0, 10_000)
    found = {row["__slot"]: row for row in whole.image().to_pylist()}
    assert sorted(found) == sorted(slot for slot in model if low <= slot < high)
    for slot, row in found.items():
        for name in NAMES if columns is None else columns:
            assert row.get(name) == model[slot].get(name), (slot, name)


def put_over(whole: Replay, changes: Replay, slot_range: tuple[int, int] | None) -> None:
    gone, table = changes.gone(), changes.image()
    dead = {"__slot": pa.array(gone), "__alive": pa.array([False] * len(gone), pa.bool_())}
    for batch_ in [pa.record_batch(dead), *table.to_batches()]:
        (whole.apply if "__alive" in batch_.schema.names else whole.insert)(batch_)
    for update in changes.updates():
        for batch_ in update.to_batches():
            whole.apply(batch_)


@pytest.mark.parametrize("partial", [True, False])
def test_new_values_of_a_row_that_is_not_there_are_refused(partial: bool) -> None:
    replay = Replay(partial=partial)
    replay.apply(pa.record_batch({"__slot": [3], "__alive": [False]}))
    with pytest.raises(ValueError, match="a row that is not there"):
        replay.apply(pa.record_batch({"__slot": [3], "a": [1]}))
    if not partial:
        with pytest.raises(ValueError, match="a row that is not there"):
            replay.apply(pa.record_batch({"__slot": [4], "a": [1]}))


def test_a_slot_below_zero_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="slot -1"):
        Replay().insert(pa.record_batch({"__slot": [-1], "a": [1]}))
