"""Warm files: a worker that comes anew maps what the one before it had, or reads the store."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import headgate as hg
from headgate.io.mapped import map_arrays, write_arrays
from headgate.shards import warm
from tests.property.seeding import plant
from tests.property.workers import Workers
from tests.unit.shards.bank import ROUTES, batch, differs, in_one_process, in_shards, rows_of
from tests.unit.shards.test_shards import SEEDS


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written anew every few epochs, as with much larger batches."""
    monkeypatch.setattr(warm, "BEHIND_BYTES_MIN", 3_000)
    monkeypatch.setattr(warm, "size_of", lambda rows: 0)


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


def test_whatever_happens_to_tasks_rows_and_results_are_those_of_one_process(
    tmp_path: Path,
) -> None:
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
