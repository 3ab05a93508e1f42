"""What the log has of a batch: new values of rows that were there, new rows whole, slots of others.

Whoever reads it, from the files or from the engine, finds the rows as they were at every epoch.
"""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.durability import ALIVE, SLOT, StoreReader, backup, restore, verify
from headgate.durability.log_record import changes_in, meta_of
from headgate.durability.scan import LogReader
from headgate.engine import journal
from headgate.engine.memory import ChangedRows
from headgate.io import RealDisk
from headgate.state.rows import TableRows
from headgate.state.stored_names import Storage
from headgate.state.strings import StringPool
from headgate.testing.disk import SimulatedDisk

things = hg.Table(
    "things",
    "id bigint, kind string, name string, flag boolean, few int, many bigint, small float, "
    "large double, at timestamp, day date, price decimal(12,2)",
    key=["id", "kind"],
)
NUMBERS = ("few", "many", "small", "large")


@hg.transaction(event="id bigint, kind string, n int, gone boolean", compiled=False)
def change(event: Any, row: Any = things.at("id", "kind", create=True)) -> None:
    if event.gone:
        hg.delete(row)
    else:
        row.name = row.name + "x"
        row.flag = event.n % 2 == 0
        for name in NUMBERS:
            setattr(row, name, getattr(row, name) + event.n)


PROGRAM: dict[str, Any] = {"tables": [things], "transactions": [change]}
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 4), "kind": st.sampled_from(["", "é"]), "n": st.integers(-9, 9),
         "gone": st.booleans()}
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def rows_of(table: pa.Table) -> list[Any]:
    return sorted(table.to_pylist(), key=lambda row: (row["id"], row["kind"]))


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(EVENTS, min_size=1, max_size=8), snapshot=st.integers(0, 8))
def test_every_reader_finds_every_epoch_as_it_was(batches: Any, snapshot: int) -> None:
    disk = SimulatedDisk()
    seen = [[]]
    with hg.open("/store", **PROGRAM, disk=disk) as engine:
        for number, events in enumerate(batches):
            engine.run(change, events)
            seen.append(rows_of(engine.scan(things).arrow()))
            if number == snapshot:
                assert engine._journal.store is not None
                engine._journal.store.snapshot()
        for epoch, rows in enumerate(seen):
            assert rows_of(engine.scan(things, epoch=epoch).arrow()) == rows
    reader = StoreReader.open("/store", disk)
    for epoch, rows in enumerate(seen[1:], 1):
        assert rows_of(reader.table("things", epoch)) == rows
        some = reader.table("things", epoch, columns=["many"], slot_range=(1, 5))
        whole = reader.table("things", epoch, slot_range=(1, 5))
        assert some.column_names == ["many"] or not rows
        assert not rows or some.equals(whole.select(["many"]))
    assert verify("/store", disk).is_whole
    with hg.open("/store", **PROGRAM, disk=disk.after_kill()) as engine:
        assert rows_of(engine.scan(things).arrow()) == seen[-1]
        engine.run(change, batches[0])


def pieces_of(path: Path, epoch: int) -> list[pa.RecordBatch]:
    log = LogReader(RealDisk(), str(path / "log"))
    frame = next(log.frames(log.locate(epoch), epoch))
    return [batch for _, batch in changes_in(frame.payload, meta_of(frame.payload))]


def test_the_log_has_keys_of_new_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hg.open(path, **PROGRAM) as engine:
        rows = [{"id": n, "kind": "a", "n": 1, "gone": False} for n in range(3)]
        engine.run(change, rows)
        engine.run(change, [rows[1], {**rows[0], "id": 7}, {**rows[2], "gone": True}])
        engine.run(change, [{**rows[0], "id": 8}, {**rows[0], "gone": True}, rows[0]])
    names = things.schema.names
    others = [name for name in names if name not in ("id", "kind")]
    assert [one.schema.names for one in pieces_of(path, 1)] == [[SLOT, ALIVE, *names]]
    found = pieces_of(path, 2)
    assert [one.schema.names for one in found] == [
        [SLOT, ALIVE], [SLOT, ALIVE, *names], [SLOT, *others]
    ]  # fmt: skip
    assert [one.column(0).to_pylist() for one in found] == [[2], [3], [1]]
    # The row that went and came again was there before and is there still, with the same key.
    assert [one.schema.names for one in pieces_of(path, 3)] == [
        [SLOT, ALIVE, *names], [SLOT, *others]
    ]  # fmt: skip


def test_a_narrower_list_of_written_columns_is_kept_to() -> None:
    rows = TableRows(things, StringPool())
    one = {"kind": "k", "name": "n", "flag": True, "few": 1, "many": 2, "small": 0.5, "large": 1.5,
           "at": datetime(2024, 1, 1, tzinfo=UTC), "day": date(2024, 1, 1),
           "price": Decimal("-1.25")}  # fmt: skip
    given_rows = [{"id": number, **one} for number in range(3)]
    rows.load(pa.Table.from_pylist(given_rows, schema=things.schema.arrow), 1)
    rows.created = []  # as after the epoch of a load
    changes = ChangedRows(rows, Storage("things", {"many": "many`2"}))
    slots = np.array([2, 0])
    (piece,) = changes.gathered(slots, ("many", "flag"))
    assert piece.arrow().to_pydict() == {SLOT: [2, 0], "flag": [True, True], "many": [2, 2]}
    (filed,) = changes.filed([piece])
    assert filed.shape.schema.names == [SLOT, "flag", "many`2"]
    (whole,) = changes.gathered(slots, None)
    expected = rows.arrow(slots).drop_columns(["id", "kind"])
    assert whole.arrow().drop_columns([SLOT]).equals(expected)


def test_a_copy_and_an_older_epoch_have_the_rows_of_updates(tmp_path: Path) -> None:
    path = tmp_path / "store"
    rows = [{"id": n, "kind": "a", "n": 1, "gone": False} for n in range(5)]
    with hg.open(path, **PROGRAM) as engine:
        for _ in range(3):
            engine.run(change, rows)
        engine.run(change, [{**rows[1], "gone": True}])
    backup(path, tmp_path / "copy")
    restore(path, 3, tmp_path / "past")
    for name, count in (("copy", 4), ("past", 5)):
        with hg.open(tmp_path / name, **PROGRAM) as engine:
            found = engine.sql("select count(*), min(many), max(name) from things").rows()
            assert found == [(count, 3, "xxx")]


def test_a_reader_beside_the_stream_sees_new_values_and_keys() -> None:
    with hg.open(None, **PROGRAM) as engine:
        rows = [{"id": n, "kind": "a", "n": 1, "gone": False} for n in range(5)]
        engine.run(change, rows)
        assert len(engine.scan(things).rows()) == 5
        for number in range(2, 5):
            engine.run(change, [rows[number], {**rows[0], "id": 10 + number}])
            found = {row["id"]: row["many"] for row in engine.scan(things).arrow().to_pylist()}
            assert found[number] == 2 and found[10 + number] == 1
            assert engine.get(things, (number, "a"))["name"] == "xx"
        engine.run(change, [{**rows[2], "gone": True}])
        assert engine.get(things, (2, "a")) is None


# --- a run that is ahead of the disk --------------------------------------------------------------


def test_a_run_of_many_batches_syncs_several_epochs_at_once_and_is_never_far_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": n % 5, "kind": "a", "n": 1, "gone": False} for n in range(60)]
    with hg.open(tmp_path / "store", **PROGRAM) as engine:
        store = engine._journal.store
        assert store is not None
        wait, synced, ahead, gate = store.wait, [], [], threading.Semaphore(0)

        def slow_wait(epoch: int) -> None:
            gate.acquire(timeout=0.05)  # a slow disk
            wait(epoch)
            synced.append(epoch)

        process = engine._batches.process

        def noted(*given: Any, **options: Any) -> Any:
            ahead.append(engine._memory.epoch + 1 - store._synced_epoch)
            return process(*given, **options)

        monkeypatch.setattr(store, "wait", slow_wait)
        monkeypatch.setattr(engine._batches, "process", noted)
        results = engine.run(change, rows, batch_size=1)
        assert results.num_rows == 60 and engine.epoch == 60
    assert max(ahead) <= journal.FRAMES_AHEAD_MAX
    assert max(ahead) > 2 and len(synced) <= 60 // 2
    with hg.open(tmp_path / "store", **PROGRAM) as engine:
        assert engine.epoch == 60


def test_readers_see_epochs_of_a_run_while_it_goes_on(tmp_path: Path) -> None:
    rows = [{"id": n % 5, "kind": "a", "n": 1, "gone": False} for n in range(100)]
    with hg.open(tmp_path / "store", **PROGRAM) as engine:
        seen: list[int] = []
        process = engine._batches.process

        def noted(*given: Any, **options: Any) -> Any:
            seen.append(engine.epoch)
            return process(*given, **options)

        engine._batches.process = noted
        engine.run(change, rows, batch_size=1)
        assert seen[-1] >= 100 - 1 - journal.FRAMES_AHEAD_MAX


# --- compiled functions: only the columns that they may set ---------------------------------------

wide = hg.Table(
    "wide", "id bigint, a bigint DEFAULT 1, b double DEFAULT 2, c string DEFAULT 'x', "
    "d bigint DEFAULT 4", key="id",
)  # fmt: skip


def _add(row: Any, n: int) -> None:
    row.a += n


@hg.transaction(event="id bigint, n bigint")
def raise_one(event: Any, row: Any = wide.at("id")) -> None:
    _add(row, event.n)
    if event.n > 3:
        row.c = "y"


@hg.transaction(event="id bigint, n bigint")
def make(event: Any, row: Any = wide.at("id", create=True)) -> None:
    row.d += event.n


@hg.transaction(event="id bigint, n bigint")
def drop(event: Any, row: Any = wide.at("id")) -> None:
    if event.n > 2:
        hg.delete(row)


WIDE_FORMS = {"add": raise_one, "make": make, "drop": drop}
WIDE_EVENTS = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["add", "make", "drop"]), "id": st.integers(0, 3),
         "n": st.integers(0, 6)}
    ), min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("kinds", [("add",), ("add", "make"), ("add", "make", "drop")])
def test_rows_whose_columns_are_partly_written_come_back_whole(
    kinds: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    forms = {kind: WIDE_FORMS[kind] for kind in kinds}
    program: dict[str, Any] = {"tables": [wide], "transactions": list(forms.values())}

    @settings(max_examples=25)
    @given(batches=st.lists(WIDE_EVENTS, min_size=1, max_size=4))
    def check(batches: list[list[dict[str, Any]]]) -> None:
        path, states = tmp_path_factory.mktemp("wide") / "store", []
        with hg.open(path, **program) as engine:
            engine.load(wide, [{"id": 1}, {"id": 2, "c": "z"}])
            for batch in batches:
                mine = [event for event in batch if event["kind"] in forms]
                engine.run(forms, mine, route_by="kind") if mine else None
                states.append((engine.epoch, engine.sql("select * from wide order by id").rows()))
        with hg.open(path, **program) as engine:
            for epoch, rows in states:
                past = engine.sql("select * from wide order by id", epoch=epoch)
                assert past.rows() == rows
            assert engine.sql("select * from wide order by id").rows() == states[-1][1]

    check()


def test_only_the_columns_that_may_be_set_are_logged(tmp_path: Path) -> None:
    with hg.open(tmp_path / "store", tables=[wide], transactions=[raise_one]) as engine:
        engine.load(wide, [{"id": 1}, {"id": 2}])
        engine.run(raise_one, [{"id": 1, "n": 1}, {"id": 2, "n": 9}])
        (executor,) = engine._executors.values()
        assert executor.program.written == {"wide": ("a", "c")}
    with hg.open(tmp_path / "both", tables=[wide], transactions=[make, drop]) as engine:
        engine.run({"m": make, "d": drop}, [{"k": "m", "id": 1, "n": 1}], route_by="k")
        found = {len(one.program.signatures): one.program for one in engine._executors.values()}
        assert found[2].written == {}  # a row may go and come again
