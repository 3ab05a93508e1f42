"""The store: what is committed comes back, in order, once, to its writer and to its readers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.durability import Commit, Inlet, Store
from headgate.durability import log_record as log_record_module
from headgate.durability.scan import LogReader
from headgate.errors import DamageError, InputError, InvariantError, LockedError, StoreError
from headgate.io import RealDisk
from tests.unit.durability.conftest import Place


def changes(rows: dict[int, Any], name: str = "value") -> pa.RecordBatch:
    """Changed rows by slot; None means that the row is gone."""
    values = list(rows.values())
    return pa.record_batch(
        {
            "__slot": pa.array(rows, pa.int64()),
            "__alive": pa.array([value is not None for value in values], pa.bool_()),
            name: pa.array([-1 if value is None else value for value in values], pa.int64()),
        }
    )


def commit(epoch: int, rows: dict[int, Any], **more: Any) -> Commit:
    return Commit(epoch=epoch, time_us=epoch, changes={"t": changes(rows)}, **more)


def reopened(place: Place) -> Any:
    store = place.store()
    assert store.outcome is not None
    store.close()
    return store.outcome.recovered


def rows_of(recovered: Any, table: str = "t") -> dict[int, Any]:
    image = recovered.images[table]
    return dict(zip(image["__slot"].to_pylist(), image["value"].to_pylist(), strict=True))


def test_a_new_store_is_at_epoch_0_and_empty(place: Place) -> None:
    recovered = reopened(place)
    assert (recovered.epoch, recovered.time_us) == (0, 0)
    assert not recovered.images and not recovered.origins and not recovered.inlets
    assert place.store().manifest == {}


def test_inserted_changed_and_removed_rows_come_back_by_slot(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {0: 10, 1: 11, 5: 15}))
    store.commit(commit(2, {1: None, 5: 16, 2: 12}))
    store.commit(commit(3, {1: 21, 0: None}))
    store.close()
    recovered = reopened(place)
    assert recovered.epoch == 3
    assert rows_of(recovered) == {1: 21, 2: 12, 5: 16}
    assert recovered.slots == {"t": 6}


def test_a_table_whose_rows_are_all_gone_keeps_its_columns(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {3: 1}))
    store.commit(commit(2, {3: None}))
    store.close()
    image = reopened(place).images["t"]
    assert image.num_rows == 0
    assert image.column_names == ["__slot", "value"]


def test_sources_and_inlets_come_back_as_the_last_epoch_left_them(place: Place) -> None:
    store = place.store()
    held = pa.table({"ts": [1, 2], "who": ["a", None]})
    store.commit(commit(1, {}, origin=("q", 7), inlets={"a": Inlet(5, held, 2)}))
    store.commit(commit(2, {}, origin=("r", 1), inlets={"b": Inlet(None, None, 0)}))
    store.commit(commit(3, {}, origin=("q", 8), inlets={"b": Inlet(9, held.slice(0, 0), 1)}))
    store.commit(commit(4, {}))
    store.close()
    recovered = reopened(place)
    assert recovered.origins == {"q": (8, 3), "r": (1, 2)}
    assert (recovered.inlets["a"].watermark_us, recovered.inlets["a"].arrivals) == (5, 2)
    assert recovered.inlets["a"].held.equals(held)
    assert recovered.inlets["b"].held.schema == held.schema
    assert recovered.inlets["b"].held.num_rows == 0


def test_results_are_returned_for_the_epochs_asked_for(place: Place) -> None:
    store = place.store(segment_bytes=500)
    outcome = pa.array(["committed", "aborted", None]).dictionary_encode()
    results = pa.record_batch({"position": [0, 1, 2], "outcome": outcome})
    for epoch in range(1, 9):
        store.commit(commit(epoch, {}, results=results.slice(0, epoch % 4) if epoch % 2 else None))
    assert [epoch for epoch, _ in store.results(1, 8)] == [1, 3, 5, 7]
    assert [epoch for epoch, _ in store.results(4, 6)] == [5]
    assert dict(place.reader().results(3, 3))[3].to_pydict() == results.to_pydict()
    assert list(store.results(5, 4)) == []
    with pytest.raises(InputError, match="epochs 1 to 8"):
        store.results(1, 9)
    with pytest.raises(InputError, match="epochs 1 to 8"):
        place.reader().results(0, 3)


def test_results_can_be_read_again_and_again_while_epochs_come(place: Place) -> None:
    store = place.store(segment_bytes=600)
    reader = place.reader()
    for epoch in range(1, 30):
        results = pa.record_batch({"position": [epoch]})
        store.commit(commit(epoch, {epoch: epoch}, results=results))
        assert [n for n, _ in reader.results(epoch, epoch)] == [epoch]
        assert dict(store.results(max(1, epoch - 3), epoch))[epoch].equals(results)
    assert dict(reader.results(2, 2))[2].to_pydict() == {"position": [2]}


def test_a_commit_longer_than_the_buffer_is_written_in_pieces(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_record_module, "PIECE_BYTES_MAX", 1 << 16)
    monkeypatch.setattr(log_record_module, "_FIRST_BUFFER_BYTES", 1 << 12)
    store = place.store()
    count = 15_000
    text = pa.array([f"row {number}" * (number % 7) for number in range(count)])
    batch = pa.record_batch(
        {
            "__slot": np.arange(count),
            "__alive": pa.array(np.ones(count, bool)),
            "text": text,
        }
    )
    held = pa.table({"text": text})
    results = pa.record_batch({"text": text.dictionary_encode()})
    inlets = {"a": Inlet(None, held, 0)}
    store.commit(Commit(1, 0, None, {"t": batch}, results, inlets))
    store.commit(commit(2, {}))
    store.close()
    recovered = reopened(place)
    assert recovered.images["t"]["text"].combine_chunks().equals(text)
    assert recovered.inlets["a"].held.equals(held)
    found = dict(place.reader().results(1, 2))[1].column(0)
    assert found.cast(pa.string()).equals(text)


def test_one_row_longer_than_the_buffer_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_record_module, "PIECE_BYTES_MAX", 1 << 12)
    store = place.store()
    long = pa.record_batch(
        {"__slot": [0, 1], "__alive": [True, True], "text": ["x" * 3_000_000, "y"]}
    )
    store.commit(Commit(1, 0, None, {"t": long}))
    store.close()
    assert reopened(place).images["t"]["text"].to_pylist() == ["x" * 3_000_000, "y"]


def test_all_column_types_come_back_with_their_nulls(place: Place) -> None:
    columns = {
        "b": pa.array([True, None]),
        "i": pa.array([1, None], pa.int32()),
        "f": pa.array([1.5, None], pa.float32()),
        "s": pa.array(["é", None]),
        "ts": pa.array([1, None], pa.timestamp("us", "UTC")),
        "d": pa.array([1, None], pa.date32()),
        "n": pa.array(["1.25", None]).cast(pa.decimal128(18, 2)),
    }
    batch = pa.record_batch({"__slot": [0, 1], "__alive": [True, True], **columns})
    store = place.store()
    store.commit(Commit(1, 0, None, {"t": batch}))
    store.snapshot(1, {"t": [batch.drop_columns(["__alive"])]})
    store.commit(Commit(2, 0, None, {"t": batch.slice(1)}))
    store.close()
    assert reopened(place).images["t"].equals(pa.table({"__slot": [0, 1], **columns}))


def test_recovery_goes_on_from_the_newest_snapshot(place: Place) -> None:
    store = place.store(segment_bytes=600)
    for epoch in range(1, 8):
        store.commit(commit(epoch, {epoch: epoch, 0: epoch}))
        if epoch in (2, 4, 6):
            slots = range(epoch + 1)
            image = {"__slot": list(slots), "value": [epoch, *range(1, epoch + 1)]}
            store.snapshot(epoch, {"t": [pa.record_batch(image)]})
    assert store.log_bytes_since_snapshot() > 0
    store.close()
    recovered = reopened(place)
    assert rows_of(recovered) == {0: 7, **{slot: slot for slot in range(1, 8)}}
    assert len(place.disk.list(f"{place.path}/snapshots")) == 2
    again = place.store()
    assert 0 < again.log_bytes_since_snapshot() < 2000


def test_log_bytes_since_snapshot_count_from_the_snapshot(place: Place) -> None:
    store = place.store()
    assert store.log_bytes_since_snapshot() == 0
    store.commit(commit(1, {0: 1}))
    grown = store.log_bytes_since_snapshot()
    assert grown > 0
    store.snapshot(1, {"t": [pa.record_batch({"__slot": [0], "value": [1]})]})
    assert store.log_bytes_since_snapshot() == 0
    store.commit(commit(2, {0: 2}))
    assert store.log_bytes_since_snapshot() == grown


def test_a_snapshot_must_be_of_the_last_epoch_and_of_all_tables(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {0: 1}))
    with pytest.raises(InvariantError, match="epoch 0"):
        store.snapshot(0, {})
    with pytest.raises(InvariantError, match="lacks the tables"):
        store.snapshot(1, {})
    store.commit(commit(2, {0: 2}))


def test_commits_go_on_while_a_snapshot_is_written(place: Place) -> None:
    store = place.store()
    store.commit(commit(1, {0: 1, 1: 1}))

    def image() -> Any:
        yield pa.record_batch({"__slot": [0], "value": [1]})
        store.commit(commit(2, {0: 2}, origin=("q", 1)))
        yield pa.record_batch({"__slot": [1], "value": [1]})

    store.snapshot(1, {"t": image()})
    store.close()
    recovered = reopened(place)
    assert (recovered.epoch, rows_of(recovered)) == (2, {0: 2, 1: 1})
    assert recovered.origins == {"q": (1, 2)}


def test_a_wrong_commit_is_refused_and_the_store_goes_on(place: Place) -> None:
    store = place.store()
    with pytest.raises(InvariantError, match="epoch 2 cannot follow epoch 0"):
        store.append(commit(2, {}))
    with pytest.raises(InvariantError, match="begin with"):
        store.append(Commit(1, 0, None, {"t": pa.record_batch({"value": [1]})}))
    with pytest.raises(InvariantError, match="slot -1"):
        store.append(commit(1, {-1: 1}))
    with pytest.raises(InvariantError, match="never appended"):
        store.wait(1)
    store.commit(commit(1, {0: 1}))
    assert place.reader().last_epoch() == 1


def test_an_unsynced_epoch_is_not_visible_until_it_is_waited_for(place: Place) -> None:
    store = place.store()
    reader = place.reader()
    store.append(commit(1, {0: 1}))
    store.append(commit(2, {0: 2}))
    assert reader.last_epoch() == 0
    store.wait(1)
    assert reader.last_epoch() == 2


def test_closing_makes_what_was_appended_durable(place: Place) -> None:
    store = place.store()
    store.append(commit(1, {0: 1}))
    store.close()
    store.close()
    assert reopened(place).epoch == 1
    with pytest.raises(StoreError, match="closed"):
        store.append(commit(2, {}))


def test_many_threads_share_syncs_and_each_epoch_is_acknowledged(place: Place) -> None:
    store = place.store(segment_bytes=5_000)
    order = threading.Lock()
    acknowledged: list[int] = []
    last = [0]

    def work() -> None:
        for _ in range(25):
            with order:
                last[0] += 1
                ticket = store.append(commit(last[0], {last[0] % 50: last[0]}))
            store.wait(ticket)
            assert place.reader().last_epoch() >= ticket
            acknowledged.append(ticket)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(acknowledged) == list(range(1, 201))
    store.close()
    recovered = reopened(place)
    assert recovered.epoch == 200
    assert rows_of(recovered) == {slot: 150 + slot if slot else 200 for slot in range(50)}


def test_the_manifest_is_replaced_whole(place: Place) -> None:
    store = place.store()
    store.write_manifest({"tables": {"t": {"columns": "id bigint"}}, "ä": [1, None]})
    assert place.reader().manifest == store.manifest
    store.close()
    assert place.store().manifest == {"tables": {"t": {"columns": "id bigint"}}, "ä": [1, None]}


def test_a_second_writer_is_refused_until_the_first_is_closed(place: Place) -> None:
    store = place.store()
    with pytest.raises(LockedError) as caught:
        place.store()
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), LockedError)
    store.close()
    place.store().close()


def test_a_folder_that_is_no_store_is_refused(place: Place) -> None:
    for folder in ("/deep", "/deep/down") if place.path.startswith("/deep") else ():
        place.disk.make_folder(folder)
    if not place.disk.exists(os.path.dirname(place.path)):
        place.disk.make_folder(os.path.dirname(place.path))
    place.disk.make_folder(place.path)
    place.disk.open(f"{place.path}/holiday.jpg", "create").close()
    with pytest.raises(InputError, match=r"not a store.*holiday\.jpg"):
        place.store()
    with pytest.raises(InputError, match="is a file"):
        Store.open(f"{place.path}/holiday.jpg", place.disk)
    with pytest.raises(InputError, match="there is no store"):
        place.reader()


def test_a_store_is_used_only_after_recovery(place: Place) -> None:
    store = Store.open(place.path, place.disk)
    with pytest.raises(InvariantError, match="before it was recovered"):
        store.append(commit(1, {}))
    store.recover()
    with pytest.raises(InvariantError, match="already recovered"):
        store.recover()


HOLD_THE_LOCK = """
import sys, time
from headgate.durability import Store
store = Store.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_the_lock_names_its_process_and_dies_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "bank")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {holder.pid} writes to this store"):
            Store.open(path, RealDisk())
    finally:
        holder.kill()
        holder.wait()
    Store.open(path, RealDisk()).close()


def test_a_place_is_of_its_log_also_at_the_beginning_of_a_segment(place: Place) -> None:
    """There it has the checksum of the segment's header, and nothing may follow it."""
    store = place.store()
    store.commit(commit(1, {0: 1}))
    assert store._log is not None
    ends = store._log.position
    store._log.begin_segment()
    begins = store._log.position
    store._log.close()
    log = LogReader(place.disk, f"{place.path}/log")
    for spot in (ends, begins):
        log.require(spot, None, "x")
        with pytest.raises(DamageError, match="another frame of epoch 1"):
            log.require(replace(spot, checksum=7), None, "x")
    log.require(replace(ends, epoch=9), None, "x")  # of what is not there nothing is said
