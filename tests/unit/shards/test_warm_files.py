"""Warm files: a worker that comes anew maps what the one before it had, or reads the store."""

from __future__ import annotations

import gc
import inspect
import os
import random
import shutil
import textwrap
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.io.mapped import map_arrays, write_arrays
from headgate.shards import warm, warm_files
from headgate.shards.warm import HeldShards, ShardRows, size_of
from headgate.shards.warm_files import WarmFiles
from headgate.testing.disk import SimulatedDisk
from tests.property.seeding import plant
from tests.property.workers import Workers, open_sharded
from tests.unit.shards.bank import (
    FIRST,
    ROUTES,
    TABLES,
    accounts,
    batch,
    differs,
    in_one_process,
    in_shards,
    loaded,
    rows_of,
)
from tests.unit.shards.test_shards import SEEDS


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written anew every few epochs, and mapped then, as with much larger batches."""
    monkeypatch.setattr(warm_files, "BEHIND_BYTES_MIN", 3_000)
    monkeypatch.setattr(warm_files, "MAP_BYTES_MIN", 0)
    for module in (warm, warm_files):
        monkeypatch.setattr(module, "size_of", lambda rows: 0)


def run(engine: hg.Engine, one: hg.Engine, draw: random.Random, batches: int) -> None:
    for _ in range(batches):
        events = batch(draw, 20)
        found = engine.run(ROUTES, events, route_by="what")
        assert found == one.run(ROUTES, events, route_by="what")
    assert rows_of(engine) == rows_of(one)


def test_a_worker_that_holds_nothing_maps_its_shard_and_brings_it_forward(tmp_path: Path) -> None:
    workers, one, draw = Workers(0, 1, folder=tmp_path), in_one_process(), random.Random(1)
    with in_shards(workers) as engine:
        run(engine, one, draw, 3)
        for _ in range(4):
            workers.workers[0].held.forget()
            del workers.hows[:]
            run(engine, one, draw, 1)
            assert set(workers.hows) <= {"mapped", "visiting"} and "mapped" in workers.hows
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".warm"]


def test_files_that_are_damaged_older_or_of_other_code_cost_reading_the_store(
    tmp_path: Path,
) -> None:
    workers, one, draw = Workers(0, 1, folder=tmp_path), in_one_process(), random.Random(1)
    with in_shards(workers) as engine:
        run(engine, one, draw, 3)
        for damage in (b"", b"headgate", None):
            for file in tmp_path.iterdir():
                content = file.read_bytes()
                file.write_bytes(content[:-4096] if damage is None else damage)
            workers.workers[0].held.forget()
            del workers.hows[:]
            run(engine, one, draw, 1)
            assert "rebuilt" in workers.hows and "mapped" not in workers.hows
        first, second = sorted(tmp_path.glob("*-[01].warm"))
        first.replace(second)  # the rows of another shard
        workers.workers[0].held.forget()
        del workers.hows[:]
        run(engine, one, draw, 1)
        assert "rebuilt" in workers.hows


@pytest.mark.parametrize("own_bytes_max", [0, 1 << 30])
def test_whatever_happens_to_tasks_rows_and_results_are_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_bytes_max: int
) -> None:
    monkeypatch.setattr(warm_files, "OWN_BYTES_MAX", own_bytes_max)
    for seed in SEEDS:
        workers = Workers(seed, 2, 0.6, tmp_path / str(seed))
        assert not differs(seed, workers)
        assert "mapped" in workers.hows


def test_rows_of_another_epoch_in_a_file_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary: a file that says of older rows that they are the newest."""
    old, new = "links = history.links[known.index(here) :]", "links = ()"
    plant(monkeypatch, warm, "_way", old, new)
    assert any(differs(seed, Workers(seed, 1, 0.6, tmp_path / str(seed))) for seed in SEEDS)


def with_bug_in_method(owner: type, name: str, old: str, new: str) -> Any:
    """A method with a piece of its text replaced."""
    text = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert old in text
    scope = dict(vars(inspect.getmodule(owner)))
    exec(text.replace(old, new), scope)
    return scope[name]


def test_a_file_of_an_attempt_that_nobody_committed_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary: a file that does not say what ran in its rows and may not have been committed."""
    old, new = "rows.tentative = None if ran is None else", "rows.tentative = None if True else"
    restore = with_bug_in_method(WarmFiles, "restore", old, new)
    monkeypatch.setattr(WarmFiles, "restore", restore)
    assert any(differs(seed, Workers(seed, 2, 0.6, tmp_path / str(seed))) for seed in SEEDS)


def test_of_an_earlier_program_s_file_every_byte_is_looked_at(tmp_path: Path) -> None:
    path, words = str(tmp_path / "x.warm"), np.arange(10_000)
    assert write_arrays(path, {}, {"words": words}, {"words": 12_000}, "first")
    whole = Path(path).read_bytes()
    for place in (len(whole) - 16, len(whole) - 8 * 12_000 + 4):  # its room, and its rows
        damaged = bytearray(whole)
        damaged[place // 4096 * 4096 + 3] ^= 1
        Path(path).write_bytes(damaged)
        assert map_arrays(path, "second") is None and map_arrays(path) is None
        assert map_arrays(path, "first") is not None  # it lives as long as the one that wrote it
    Path(path).write_bytes(whole)
    assert map_arrays(path, "second") is not None


def test_a_program_that_comes_later_maps_what_the_one_before_left(tmp_path: Path) -> None:
    disk, draw, one = SimulatedDisk(), random.Random(1), in_one_process()
    first = Workers(0, 1, folder=tmp_path)
    with loaded(open_sharded(TABLES, ROUTES.values(), 3, first, disk)) as engine:
        run(engine, one, draw, 3)
    second = Workers(0, 1, folder=tmp_path)
    with open_sharded(TABLES, ROUTES.values(), 3, second, disk) as engine:
        run(engine, one, draw, 1)
        assert set(second.hows) <= {"mapped", "visiting"} and "mapped" in second.hows


def test_files_that_others_may_write_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "warm"
    workers, one, draw = Workers(0, 1, folder=folder), in_one_process(), random.Random(1)
    with in_shards(workers) as engine:
        run(engine, one, draw, 3)
        folder.chmod(0o777)
        workers.workers[0].held.forget()
        del workers.hows[:]
        run(engine, one, draw, 1)
        assert "rebuilt" in workers.hows and "mapped" not in workers.hows


def rows_in_memory(behind: int) -> ShardRows:
    rows = ShardRows(dict.fromkeys(("accounts",), accounts), [])
    rows.put("accounts", pa.Table.from_pylist(FIRST["accounts"], accounts.schema.arrow), 1)
    rows.digests, rows.behind = {0: 7}, behind
    return rows


def test_files_are_written_beside_tasks_and_none_while_its_rows_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = warm_files.write_arrays

    def noted(path: str, *given: Any) -> Any:
        written.append(path)
        return write(path, *given)

    monkeypatch.setattr(warm_files, "write_arrays", noted)
    files, key = WarmFiles(str(tmp_path / "w"), "run", beside=True), (1, 2, "mark", 0)
    rows, store = rows_in_memory(1 << 20), str(tmp_path)
    files.keep(key, rows, store, now=True)
    assert not files.restore(key, rows_in_memory(0))  # the task is not over
    files.release(rows)  # another batch came first: what is owed is written after it
    files.begin()
    while files._writes:
        time.sleep(0.001)
    assert rows.behind and not written
    files.keep(key, rows, store, now=False)
    files.begin()
    while files._writes:  # a thread
        time.sleep(0.001)
    files.release(rows)
    assert not rows.behind and len(written) == 1
    assert files.restore(key, rows_in_memory(0))


def test_what_a_worker_lets_go_of_is_written_at_once_and_its_memory_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "size_of", size_of)
    files, store = WarmFiles(str(tmp_path / "w"), "run", beside=True), str(tmp_path)
    copies = [((1, 2, "mark", shard), rows_in_memory(1 << 20)) for shard in range(3)]
    held = HeldShards(bytes_max=size_of(copies[0][1]))
    gone = weakref.ref(copies[0][1])
    for key, rows in copies:
        let_go = held.keep(key, rows)
        files.keep(key, rows, store, now=True)
        files.finish(let_go)
    assert [files.restore(key, rows_in_memory(0)) for key, _ in copies] == [True, True, False]
    del copies, let_go, rows
    gc.collect()
    assert gone() is None


def test_a_copy_that_was_written_is_mapped_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    files, rows = WarmFiles(str(tmp_path / "w"), "run"), rows_in_memory(1 << 20)
    before, (table,) = rows.own_bytes(), rows.tables.values()
    files.keep((1, 2, "mark", 0), rows, str(tmp_path), now=True)
    (file,) = (tmp_path / "w").iterdir()
    content = file.read_bytes()
    assert not rows.own_bytes() and before >= table.layout.words * 8 * table.count
    more = [{"id": n, "owner": "new", "balance": n} for n in range(10, 30)]
    rows.put("accounts", pa.Table.from_pylist(more, accounts.schema.arrow), 2)
    rows.note_touched(1)
    assert rows.own_bytes() == 4096
    found = {row["id"]: row["owner"] for row in table.arrow(slice(0, table.count)).to_pylist()}
    assert found == {n: "new" if n >= 10 else "" for n in range(30)}
    assert file.read_bytes() == content
    table.reserve(10_000)  # moves all rows away
    assert rows.own_bytes() >= table.words.nbytes


def test_a_file_that_another_wrote_under_the_same_name_is_not_mapped_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mine, other = str(tmp_path / "x.warm"), np.arange(1000), np.arange(1000)[::-1].copy()
    assert write_arrays(path + "2", {}, {"words": other}, {})
    replace = os.replace

    def overtaken(old: str, new: str) -> None:
        replace(old, new)
        replace(path + "2", new)

    monkeypatch.setattr(os, "replace", overtaken)
    written, found = write_arrays(path, {}, {"words": mine}, {}), map_arrays(path)
    assert written is not None and np.array_equal(written.arrays["words"], mine)
    assert found is not None and np.array_equal(found.arrays["words"], other)


def test_copies_that_are_too_much_memory_are_written_before_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, store = WarmFiles(str(tmp_path / "w"), "run", beside=True), str(tmp_path)
    held = {(1, 2, "mark", shard): rows_in_memory(1 << 20) for shard in range(4)}
    each = next(iter(held.values())).own_bytes()
    monkeypatch.setattr(warm_files, "OWN_BYTES_MAX", 2 * each)
    for number, (key, rows) in enumerate(held.items(), 1):
        files.keep(key, rows, store, now=True)
        files.bound(dict(list(held.items())[:number]))
    assert sorted(rows.own_bytes() for rows in held.values()) == [0, 0, each, each]
    assert len(list((tmp_path / "w").iterdir())) == 2
    # What is in the file already is not written for the pages that a few changes took.
    rows.note_touched(1 << 20)
    rows.behind, was = 0, rows.own_bytes()
    monkeypatch.setattr(warm_files, "OWN_BYTES_MAX", 0)
    files.bound({key: rows})
    assert rows.own_bytes() == was


def test_files_go_when_their_store_does_or_the_same_shard_has_another(tmp_path: Path) -> None:
    folder, store = tmp_path / "w", tmp_path / "store"
    store.mkdir()

    def keep(shard: int, mark: str, lineage: int = 1) -> None:
        files = WarmFiles(str(folder), "run")
        files.keep((lineage, 2, mark, shard), rows_in_memory(1), str(store), now=True)

    keep(0, "old")
    keep(1, "old")
    keep(0, "new")
    names = [file.name.split("-", 2)[2] for file in sorted(folder.iterdir())]
    assert sorted(names) == ["new-0.warm", "old-1.warm"]
    left = folder / "x.warm.0123"  # of a process that was killed
    left.write_bytes(b"")
    store.rmdir()
    keep(0, "other", 9)
    assert sorted(file.name for file in folder.iterdir() if file != left) == [
        f"{9:016x}-{2:016x}-other-0.warm"
    ]
    os.utime(left, (0, 0))
    keep(0, "other", 9)
    assert not left.exists()


def test_a_full_disk_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000, 920, 80))
    files, rows = WarmFiles(str(tmp_path), "run"), rows_in_memory(1)
    files.keep((1, 2, "mark", 0), rows, str(tmp_path), now=True)
    assert not list(tmp_path.iterdir()) and rows.behind


def test_many_first_rows_are_as_if_they_had_come_one_by_one() -> None:
    given = pa.table({"id": np.arange(warm.AT_ONCE_MIN)[::-1], "owner": ["x"] * warm.AT_ONCE_MIN,
                      "balance": np.arange(warm.AT_ONCE_MIN) * 1.0})  # fmt: skip
    table = hg.Table("accounts", "id bigint, owner string, balance double", key="id")
    found = []
    for chunk in (len(given), 1000):
        rows = ShardRows({"accounts": table}, [])
        for first in range(0, len(given), chunk):
            rows.put("accounts", given.slice(first, chunk), 1)
        rows.remove("accounts", given.slice(5, 10).select(["id"]))
        rows.put("accounts", given.slice(7, 5), 2)
        found.append(rows.tables["accounts"])
    assert len(found[0]) == len(found[1]) == len(given) - 5
    assert np.array_equal(found[0].words[: found[0].count], found[1].words[: found[1].count])
    first, second = (
        each.find(each.key_words([np.arange(len(given))]), np.zeros(len(given), np.uint8))
        for each in found
    )
    assert np.array_equal(first, second)


def test_arrays_come_back_as_they_were_and_private(tmp_path: Path) -> None:
    path, words = str(tmp_path / "a" / "x.warm"), np.arange(10_000)
    assert map_arrays(path) is None
    assert write_arrays(path, {"said": 1}, {"words": words, "none": words[:0]}, {"words": 20_000})
    for _ in range(2):
        found = map_arrays(path)
        assert found is not None and found.said == {"said": 1}
        assert np.array_equal(found.arrays["words"][:10_000], words)
        assert not found.arrays["words"][10_000:].any() and not len(found.arrays["none"])
        found.arrays["words"][:] = -1  # seen by nobody else
    assert not write_arrays(str(tmp_path / "a" / "x.warm" / "y"), {}, {}, {})


def test_a_file_of_another_run_of_the_machine_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.warm")
    assert write_arrays(path, {}, {"words": np.arange(3)}, {})
    monkeypatch.setattr("headgate.io.mapped._boot", lambda: "another")
    assert map_arrays(path) is None
