"""Weak recovery: inputs come back in order with the state before them, beside logged changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.durability import Commit, Inlet, Recovered, Store, require_fingerprint, restore
from headgate.errors import DeclarationError, InputError, InvariantError
from headgate.testing.disk import SimulatedClock
from tests.unit.durability.conftest import Place

TABLES = {"tables": {"t": {}}}


def deposit(epoch: int, slot: int, amount: int, fingerprint: str = "v1") -> Commit:
    """An input: add the amount to the row of the slot."""
    schema = pa.schema([("slot", pa.int64()), ("amount", pa.int64())], {"transaction": "deposit"})
    events = pa.RecordBatch.from_pylist([{"slot": slot, "amount": amount}], schema=schema)
    inlets = {"in": Inlet(epoch, pa.table({"event": [epoch]}), epoch)}
    return Commit(
        epoch,
        epoch * 1000,
        ("q", epoch),
        results=pa.record_batch({"position": [epoch]}),
        inlets=inlets,
        input=events,
        fingerprint=fingerprint,
        slots={"t": 3},
    )


def changed(epoch: int, rows: dict[int, int]) -> Commit:
    batch = {
        "__slot": pa.array(rows, pa.int64()),
        "__alive": [True] * len(rows),
        "value": pa.array(rows.values(), pa.int64()),
    }
    return Commit(epoch, epoch * 1000, None, {"t": pa.record_batch(batch)})


def opened(place: Place) -> Store:
    return Store.open(place.path, place.disk, SimulatedClock(), segment_bytes=600)


def replayed(recovered: Recovered) -> dict[int, int]:
    """The engine's part: start with the images and do what is pending, in order."""
    image = recovered.images.get("t")
    columns = ([], []) if image is None else (image["__slot"], image["value"])
    rows = dict(zip(*(map(int, map(_number, column)) for column in columns), strict=True))
    for commit in recovered.pending:
        if commit.input is not None:
            for event in commit.input.to_pylist():
                rows[event["slot"]] = rows.get(event["slot"], 0) + event["amount"]
        else:
            for row in commit.changes["t"].to_pylist():
                rows[row["__slot"]] = row["value"]
    return rows


def _number(value: pa.Scalar) -> int:
    return int(value.as_py())


def test_inputs_come_back_with_all_they_came_with(place: Place) -> None:
    store = place.store()
    store.commit(changed(1, {0: 10, 1: 20}))
    store.commit(deposit(2, 0, 5))
    store.close()
    recovered = opened(place).recover()
    assert (recovered.epoch, recovered.image_epoch, recovered.time_us) == (2, 1, 1000)
    assert (dict(recovered.origins), dict(recovered.inlets)) == ({}, {})
    assert recovered.slots == {"t": 2}
    (pending,) = recovered.pending
    original = deposit(2, 0, 5)
    assert pending.input.equals(original.input)
    assert pending.input.schema.metadata == {b"transaction": b"deposit"}
    assert pending.results.equals(original.results)
    assert (pending.origin, pending.fingerprint, pending.slots) == (("q", 2), "v1", {"t": 3})
    assert pending.inlets["in"].held.equals(original.inlets["in"].held)


def test_inputs_and_changes_are_mixed_frame_by_frame(place: Place) -> None:
    store = place.store(segment_bytes=600)
    store.commit(changed(1, {0: 10, 1: 20}))
    store.commit(deposit(2, 0, 5))
    store.commit(changed(3, {1: 100}))
    store.commit(deposit(4, 1, 1))
    store.commit(deposit(5, 2, 7))
    store.close()
    recovered = opened(place).recover()
    assert recovered.image_epoch == 1
    assert replayed(recovered) == {0: 15, 1: 101, 2: 7}


def test_a_store_with_inputs_goes_on_and_a_snapshot_ends_the_replay(place: Place) -> None:
    store = place.store()
    store.commit(changed(1, {0: 10}))
    store.commit(deposit(2, 0, 5))
    store.close()
    store = opened(place)
    assert replayed(store.recover()) == {0: 15}
    with pytest.raises(InvariantError, match="needs images"):
        store.snapshot()
    store.commit(deposit(3, 0, 1))
    store.snapshot(3, {"t": [pa.record_batch({"__slot": [0], "value": [16]})]})
    store.commit(deposit(4, 0, 1))
    store.close()
    recovered = opened(place).recover()
    assert (recovered.image_epoch, recovered.epoch) == (3, 4)
    assert recovered.origins == {"q": (3, 3)}
    assert recovered.slots == {"t": 3}
    assert replayed(recovered) == {0: 17}


def test_a_store_of_inputs_only_begins_with_nothing(place: Place) -> None:
    store = place.store()
    store.commit(deposit(1, 0, 5))
    store.commit(deposit(2, 0, 5))
    store.close()
    recovered = opened(place).recover()
    assert (recovered.image_epoch, recovered.images) == (0, {})
    assert replayed(recovered) == {0: 10}


def test_results_of_inputs_can_be_read_but_their_tables_cannot(place: Place) -> None:
    store = place.store()
    store.write_manifest(TABLES)
    store.commit(changed(1, {0: 10}))
    store.commit(deposit(2, 0, 5))
    reader = place.reader()
    assert reader.table("t", 1)["value"].to_pylist() == [10]
    assert [epoch for epoch, _ in reader.results(1, 2)] == [2]
    with pytest.raises(InputError, match=r"epoch 2 of .* was logged as input"):
        reader.table("t", 2)
    store.snapshot(2, {"t": [pa.record_batch({"__slot": [0], "value": [15]})]})
    assert reader.table("t", 2)["value"].to_pylist() == [15]


def test_inputs_are_restored_as_inputs(place: Place) -> None:
    store = place.store()
    store.write_manifest(TABLES)
    store.commit(changed(1, {0: 10}))
    for epoch in range(2, 6):
        store.commit(deposit(epoch, 0, 1))
    restore(place.path, 3, f"{place.path}-copy", place.disk, SimulatedClock())
    copy = Store.open(f"{place.path}-copy", place.disk, SimulatedClock())
    assert replayed(copy.recover()) == {0: 12}


def test_other_code_is_refused_unless_it_is_accepted(place: Place) -> None:
    store = place.store()
    store.commit(deposit(1, 0, 5, "v1"))
    store.commit(deposit(2, 0, 5, "v2"))
    store.close()
    recovered = opened(place).recover()
    with pytest.raises(DeclarationError, match="epochs 1 to 1 were logged as input"):
        require_fingerprint(recovered, "v2")
    require_fingerprint(recovered, "v2", accept=True)
    require_fingerprint(Recovered(0, 0, {}, {}, {}, {}), "v3")


def test_an_epoch_is_either_input_or_changes(place: Place) -> None:
    store = place.store()
    both = Commit(1, 1, None, changed(1, {0: 1}).changes, input=pa.record_batch({"x": [1]}))
    with pytest.raises(InvariantError, match="both input and changed rows"):
        store.append(both)
    store.commit(changed(1, {0: 1}))
