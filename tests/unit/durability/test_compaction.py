"""Snapshots out of the log: the same rows as replay gives, and unchanged blocks are not written."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.durability import Commit, Inlet, Retention, Store, StoreReader, compaction
from headgate.durability.snapshot import Snapshot, snapshot_epochs
from headgate.errors import DamageError, InvariantError
from headgate.testing.disk import SimulatedClock, SimulatedDisk
from tests.unit.durability.conftest import Place

TABLES = {"tables": {"t": {}, "u": {}}}
PATH = "/bank"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BLOCK_ROWS", 4)
    monkeypatch.setattr(compaction, "_RUN_ROWS", 9)


def changes(rows: dict[int, int | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "__slot": pa.array(rows, pa.int64()),
            "__alive": pa.array([value is not None for value in rows.values()], pa.bool_()),
            "value": pa.array([value or 0 for value in rows.values()], pa.int64()),
        }
    )


def commit(epoch: int, rows: dict[int, int | None], table: str = "t", **more: Any) -> Commit:
    return Commit(epoch=epoch, time_us=epoch, changes={table: changes(rows)}, **more)


def blocks_of(place: Place, epoch: int, table: str = "t") -> list[list[int]]:
    snapshot = Snapshot.open(place.disk, f"{place.path}/snapshots", epoch)
    try:
        return snapshot.blocks(table)
    finally:
        snapshot.close()


def rows_in(place: Place, epoch: int, table: str = "t") -> dict[int, int]:
    """The rows of a snapshot alone, with no log."""
    snapshot = Snapshot.open(place.disk, f"{place.path}/snapshots", epoch)
    try:
        tables = [pa.Table.from_batches([batch]) for batch in snapshot.batches(table)]
    finally:
        snapshot.close()
    whole = pa.concat_tables(tables, promote_options="default")
    return dict(zip(whole["__slot"].to_pylist(), whole["value"].to_pylist(), strict=True))


def test_blocks_that_did_not_change_are_referred_to(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {slot: slot for slot in range(40)}))
    assert store.snapshot() == 1
    assert [block[2] for block in blocks_of(place, 1)] == [4] * 10
    store.commit(commit(2, {9: 90, 10: None}))
    store.snapshot()
    blocks = blocks_of(place, 2)
    assert [block[6] for block in blocks] == [1, 1, 2, *[1] * 7]
    assert rows_in(place, 2) == {s: 90 if s == 9 else s for s in range(40) if s != 10}
    size = place.disk.open(f"{place.path}/snapshots/{2:020d}.snapshot", "read").size()
    first = place.disk.open(f"{place.path}/snapshots/{1:020d}.snapshot", "read").size()
    assert size < first / 2


def test_new_slots_go_behind_the_last_block(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {slot: slot for slot in range(6)}))
    store.snapshot()
    store.commit(commit(2, {slot: slot for slot in range(6, 17)}))
    store.snapshot()
    assert [block[6] for block in blocks_of(place, 2)] == [1, 2, 2, 2, 2]
    assert rows_in(place, 2) == {slot: slot for slot in range(17)}


def test_a_table_whose_rows_are_all_gone_keeps_its_columns_and_can_be_filled_again(
    place: Place,
) -> None:
    store = place.store()
    store.commit(commit(1, {slot: 1 for slot in range(9)}))
    store.snapshot()
    store.commit(commit(2, {slot: None for slot in range(9)}))
    store.snapshot()
    assert rows_in(place, 2) == {}
    assert len(blocks_of(place, 2)) == 1
    store.commit(commit(3, {30: 3}))
    store.snapshot()
    assert rows_in(place, 3) == {30: 3}


def test_a_new_table_and_a_new_column_come_along(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {slot: 1 for slot in range(9)}))
    store.snapshot()
    wide = changes({8: 5}).append_column("extra", pa.array(["x"]))
    store.commit(Commit(2, 2, changes={"t": wide, "u": changes({0: 7})}))
    store.snapshot()
    store.close()
    recovered = place.store().outcome.recovered  # type: ignore[union-attr]
    assert recovered.images["t"]["extra"].to_pylist() == [None] * 8 + ["x"]
    assert recovered.images["u"]["value"].to_pylist() == [7]


def test_a_file_with_few_blocks_left_is_copied_and_goes(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {slot: 1 for slot in range(40)}))
    store.snapshot()
    for epoch in range(2, 8):
        store.commit(commit(epoch, {slot: epoch for slot in range(4, 40)}))
        store.snapshot()
    assert {block[6] for block in blocks_of(place, 7)} == {7}
    names = place.disk.list(f"{place.path}/snapshots")
    assert f"{1:020d}.blocks" not in names and f"{1:020d}.snapshot" not in names


def test_blocks_outlive_the_snapshot_they_were_written_for(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {slot: 1 for slot in range(40)}))
    store.snapshot()
    for epoch in range(2, 6):
        store.commit(commit(epoch, {0: epoch}))
        store.snapshot()
    names = place.disk.list(f"{place.path}/snapshots")
    assert names == [f"{1:020d}.blocks", f"{4:020d}.snapshot", f"{5:020d}.snapshot"]
    store.close()
    assert rows_in(place, 5) == {0: 5, **{slot: 1 for slot in range(1, 40)}}
    place.disk.remove(f"{place.path}/snapshots/{1:020d}.blocks")
    with pytest.raises(DamageError, match="refers to blocks of epoch 1, whose file is missing"):
        rows_in(place, 5)
    assert place.store().outcome.recovered.epoch == 5  # type: ignore[union-attr]


def test_a_snapshot_of_the_same_epoch_is_not_written_twice(place: Place) -> None:
    store = place.store()
    assert store.snapshot() == 0
    assert place.disk.list(f"{place.path}/snapshots") == []
    store.commit(commit(1, {0: 1}))
    store.snapshot()
    file = place.disk.open(f"{place.path}/snapshots/{1:020d}.snapshot", "read")
    before = file.size()
    store.snapshot(1, {"t": []})
    assert place.disk.open(file.path, "read").size() == before


def test_inlets_sources_and_slots_are_those_of_the_epoch(place: Place) -> None:
    store = place.store()
    held = pa.table({"event": [1, 2]})
    inlets = {"a": Inlet(5, held, 2)}
    store.commit(commit(1, {3: 1}, origin=("q", 1), inlets=inlets))
    store.commit(commit(2, {3: None}, origin=("r", 4)))
    store.snapshot()
    store.close()
    outcome = place.store().outcome
    assert outcome is not None and outcome.replayed_bytes == 0
    recovered = outcome.recovered
    assert recovered.slots == {"t": 4}
    assert recovered.origins == {"q": (1, 1), "r": (4, 2)}
    assert recovered.inlets["a"].held.equals(held)


def test_an_epoch_logged_as_input_needs_images(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {0: 1}))
    store.commit(Commit(2, 2, input=pa.record_batch({"event": [1]}), slots={"t": 2}))
    with pytest.raises(InvariantError, match="epoch 2, logged as input, needs images"):
        store.snapshot()
    image = pa.record_batch({"__slot": [0, 1], "value": [1, 2]})
    store.snapshot(2, {"t": [image]})
    store.commit(commit(3, {0: 3}))
    store.snapshot()
    assert rows_in(place, 3) == {0: 3, 1: 2}


ROWS = st.dictionaries(st.integers(0, 30), st.none() | st.integers(0, 99), max_size=8)
STEPS = st.lists(st.tuples(ROWS, ROWS, st.sampled_from(["no", "log", "images"])), max_size=10)


@given(steps=STEPS, keep=st.sampled_from([None, 1, 2]))
@settings(max_examples=60)
def test_snapshots_of_any_history_agree_with_a_dictionary(
    steps: list[tuple[Any, Any, str]], keep: int | None
) -> None:
    disk = SimulatedDisk()
    retain = None if keep is None else Retention(snapshots=keep)
    store = Store.open(PATH, disk, SimulatedClock(), segment_bytes=500, retain=retain)
    store.recover()
    store.write_manifest(TABLES)
    model: dict[str, dict[int, int]] = {"t": {}, "u": {}}
    for epoch, (first, second, how) in enumerate(steps, 1):
        store.commit(Commit(epoch, epoch, changes={"t": changes(first), "u": changes(second)}))
        for table, rows in (("t", first), ("u", second)):
            for slot, value in rows.items():
                model[table].pop(slot, None)
                if value is not None:
                    model[table][slot] = value
        if how == "log":
            store.snapshot()
        elif how == "images":
            store.snapshot(epoch, {table: images(rows) for table, rows in model.items()})
    store.close()
    compare(disk, len(steps), model)


def images(rows: dict[int, int]) -> list[pa.RecordBatch]:
    slots = sorted(rows)
    batch = pa.record_batch(
        {
            "__slot": pa.array(slots, pa.int64()),
            "value": pa.array([rows[slot] for slot in slots], pa.int64()),
        }
    )
    return [batch.slice(first, 3) for first in range(0, max(len(slots), 1), 3)]


def compare(disk: SimulatedDisk, last: int, model: dict[str, dict[int, int]]) -> None:
    """The newest snapshot is whole, the reader and recovery see the model."""
    for epoch in snapshot_epochs(disk, os.path.join(PATH, "snapshots")):
        snapshot = Snapshot.open(disk, os.path.join(PATH, "snapshots"), epoch)
        snapshot.verify()
        snapshot.close()
    reader = StoreReader.open(PATH, disk)
    store = Store.open(PATH, disk, SimulatedClock())
    recovered = store.recover()
    assert recovered.epoch == last
    for table, rows in model.items():
        expected = [rows[slot] for slot in sorted(rows)]
        if last:
            assert reader.table(table)["value"].to_pylist() == expected
            assert recovered.images[table]["value"].to_pylist() == expected
            assert recovered.images[table]["__slot"].to_pylist() == sorted(rows)
