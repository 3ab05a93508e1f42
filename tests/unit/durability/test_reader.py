"""The reader: any table at any epoch, in parts or whole, and what every commit held."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.durability import Commit, Store, StoreReader
from headgate.errors import InputError
from headgate.io import RealDisk
from headgate.io.files import OpenMode
from headgate.io.real import RealFile
from tests.unit.durability.conftest import Place

TABLES = {"tables": {"t": {}, "never": {}}}


def batch(rows: dict[int, tuple[int, str] | None]) -> pa.RecordBatch:
    values = [row if row is not None else (0, "gone") for row in rows.values()]
    return pa.record_batch(
        {
            "__slot": pa.array(rows, pa.int64()),
            "__alive": [row is not None for row in rows.values()],
            "id": pa.array([value[0] for value in values], pa.int64()),
            "name": pa.array([value[1] for value in values], pa.string()),
        }
    )


def filled(place: Place) -> Store:
    """Epochs 1 to 12, each changing a few of 20 rows, with snapshots at 4 and 8."""
    store = place.store(segment_bytes=900)
    store.write_manifest(TABLES)
    for epoch in range(1, 13):
        changes = {"t": batch(changed_at(epoch))}
        results = pa.record_batch({"position": [0, 1]})
        store.commit(Commit(epoch, 100 * epoch, ("q", epoch), changes, results))
        if epoch in (4, 8):
            rows = rows_at(epoch)
            image = batch(dict(rows)).drop_columns(["__alive"])
            pieces = [image.slice(first, 4) for first in range(0, len(rows), 4)]
            store.snapshot(epoch, {"t": pieces})
    return store


def changed_at(epoch: int) -> dict[int, tuple[int, str] | None]:
    rows: dict[int, tuple[int, str] | None] = {
        slot: (slot, f"{slot} at {epoch}") for slot in range(epoch % 5, 20, 3)
    }
    rows[epoch] = None
    return rows


def rows_at(epoch: int) -> dict[int, tuple[int, str]]:
    rows: dict[int, tuple[int, str]] = {}
    for number in range(1, epoch + 1):
        for slot, row in changed_at(number).items():
            rows.pop(slot, None)
            if row is not None:
                rows[slot] = row
    return dict(sorted(rows.items()))


def pairs(table: pa.Table) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in table.to_pylist()]


def test_every_epoch_can_be_read_with_and_without_snapshots(place: Place) -> None:
    filled(place)
    reader = place.reader()
    assert (reader.first_epoch(), reader.last_epoch()) == (0, 12)
    for epoch in range(1, 13):
        table = reader.table("t", epoch)
        assert table.column_names == ["id", "name"]
        assert pairs(table) == list(rows_at(epoch).values()), epoch
    assert pairs(reader.table("t")) == list(rows_at(12).values())


def test_epoch_0_and_a_table_that_was_never_written_are_empty(place: Place) -> None:
    filled(place)
    assert place.reader().table("t", 0).num_rows == 0
    assert place.reader().table("never").num_rows == 0
    assert place.reader().slots("never", 5) == 0


def test_parts_by_slot_make_up_the_whole(place: Place) -> None:
    filled(place)
    reader = place.reader()
    for epoch in (3, 4, 9, 12):
        slots = reader.slots("t", epoch)
        assert slots == 20
        parts = [reader.table("t", epoch, (first, first + 7)) for first in range(0, slots, 7)]
        assert pairs(pa.concat_tables(parts)) == list(rows_at(epoch).values())
        assert all(part.column_names == ["id", "name"] for part in parts)
    assert reader.table("t", 8, (50, 60)).column_names == ["id", "name"]


def test_only_the_columns_asked_for_are_returned_in_their_order(place: Place) -> None:
    filled(place)
    table = place.reader().table("t", 9, columns=["name"])
    assert table.column_names == ["name"]
    assert table.column(0).to_pylist() == [row[1] for row in rows_at(9).values()]
    assert place.reader().table("t", columns=["name", "id"]).column_names == ["name", "id"]


def test_an_unknown_table_or_epoch_is_refused_with_what_there_is(place: Place) -> None:
    filled(place)
    with pytest.raises(InputError, match=r"no table 'x'.*'never', 't'"):
        place.reader().table("x")
    for epoch in (13, -1):
        with pytest.raises(InputError, match="it has epochs 0 to 12"):
            place.reader().table("t", epoch)
    with pytest.raises(InputError, match="it has epochs 0 to 12"):
        place.reader().slots("t", 13)


def test_commits_tell_what_each_epoch_held_and_where_it_is(place: Place) -> None:
    filled(place).close()
    infos = list(place.reader().commits())
    assert [info.epoch for info in infos] == list(range(1, 13))
    assert infos[4].origin == ("q", 5)
    assert infos[4].time_us == 500
    assert infos[4].rows == {"t": len(changed_at(5))}
    assert infos[4].result_rows == 2
    assert len({info.file for info in infos}) > 2
    ends = {info.file: info.offset + info.bytes for info in infos}
    for path, end in ends.items():
        assert place.disk.open(path, "read").size() == end


def test_a_reader_of_an_empty_store_sees_epoch_0(place: Place) -> None:
    place.store().write_manifest(TABLES)
    reader = place.reader()
    assert reader.last_epoch() == 0
    assert list(reader.commits()) == []
    assert reader.table("t").num_rows == 0


def test_a_reader_goes_on_when_the_snapshot_it_chose_was_just_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(place)
    listing = place.disk.list(f"{place.path}/snapshots")
    place.disk.remove(f"{place.path}/snapshots/{listing[-1]}")
    real_list = place.disk.list
    monkeypatch.setattr(
        place.disk,
        "list",
        lambda folder: listing if folder.endswith("snapshots") else real_list(folder),
    )
    assert pairs(place.reader().table("t", 12)) == list(rows_at(12).values())


class SlowDisk(RealDisk):
    """Opening a file takes so long that whoever comes in the meantime comes in the midst of it."""

    def open(self, path: str, mode: OpenMode) -> RealFile:
        time.sleep(0.02)
        return super().open(path, mode)


def test_threads_that_share_a_reader_find_the_same_places(tmp_path: Path) -> None:
    """Places in the log are remembered; two threads that look for the first must not mix them."""
    store = Store.open(tmp_path / "s")
    store.recover()
    store.write_manifest(TABLES)
    for epoch in range(1, 13):
        results = pa.record_batch({"position": [epoch]})
        changes = {"t": batch(changed_at(epoch))}
        store.commit(Commit(epoch, epoch, ("q", epoch), changes, results))
    store.close()
    reader = StoreReader.open(tmp_path / "s", SlowDisk())

    def seen(first: int) -> list[int]:
        return [found.column("position")[0].as_py() for _, found in reader.results(first, 12)]

    starts = [1, 5, 1, 9, 12, 3, 7, 1]
    with ThreadPoolExecutor(len(starts)) as pool:
        assert list(pool.map(seen, starts)) == [list(range(first, 13)) for first in starts]
