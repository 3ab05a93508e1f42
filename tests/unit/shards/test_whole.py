"""Batches in the driver over the rows of all shards: where that is faster, or nothing else can."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import headgate as hg
from headgate.shards import sharding, share
from headgate.shards.planning import Costs, least_seconds, plan_faster
from headgate.shards.share import BatchShare, ShareReport
from headgate.testing.disk import SimulatedDisk
from tests.property.workers import Workers, open_sharded
from tests.unit.shards.bank import (
    FIRST,
    ROUTES,
    TABLES,
    accounts,
    batch,
    follow,
    in_one_process,
    in_shards,
    loaded,
    rows_of,
)


class Told(Workers):
    """A cluster whose jobs take their time to start, and whose events take as long as is told."""

    def __init__(self, event_seconds: float) -> None:
        super().__init__()
        self._event_seconds = event_seconds

    def run(self, shares: Sequence[BatchShare]) -> list[ShareReport]:
        time.sleep(0.05)
        reports = super().run(shares)
        return [replace(one, seconds=one.events * self._event_seconds) for one in reports]


def test_batches_in_the_driver_and_on_executors_follow_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 10_000)  # images are written by both
    monkeypatch.setattr(share, "size_of", lambda rows: 0)
    one, engine, draw = in_one_process(), in_shards(Workers(1, 2, 0.5)), random.Random(4)
    ran = set()
    for turn in range(12):
        chosen: Any = (follow,) if draw.random() < 0.5 else (ROUTES,)
        events = batch(draw, 30)
        options = {} if chosen[0] is follow else {"route_by": "what"}
        found = engine.run(*chosen, events, **options)
        assert found == one.run(*chosen, events, **options)
        assert rows_of(engine) == rows_of(one) and engine.counts() == one.counts(), turn
        ran.add(chosen[0] is follow)
    assert ran == {True, False}
    said = "by a key that is computed, which may lead to rows of any shard"
    assert any(said in one.why for one in engine.decisions())
    assert any("components have rows on several" in one.why for one in engine.decisions())
    engine.close()


def test_cheap_batches_go_to_the_driver_once_a_job_was_measured() -> None:
    one, draw = in_one_process(), random.Random(4)
    engine = loaded(open_sharded(TABLES, ROUTES.values(), 3, Told(0), None, None, 1 << 20))
    for turn in range(4):
        events = batch(draw, 5)
        assert engine.run(ROUTES, events, route_by="what") == one.run(
            ROUTES, events, route_by="what"
        )
        assert rows_of(engine) == rows_of(one)
        said = engine.decisions()[-1]
        assert ("they take the driver" in said.why) == (turn > 1)
    engine.close()


def test_dear_batches_and_rows_beyond_the_driver_stay_on_executors() -> None:
    engine = loaded(open_sharded(TABLES, ROUTES.values(), 3, Told(1), None, None, 1 << 20))
    for seed in range(3):
        engine.run(ROUTES["close"], [{"src": 2 * seed + number} for number in range(2)])
        assert engine.decisions()[-1].scheme == "executors"
    engine.close()
    engine = loaded(open_sharded(TABLES, ROUTES.values(), 3, Told(0), None, None, 100))
    for seed in range(3):
        engine.run(ROUTES["close"], [{"src": seed}])
        assert engine.decisions()[-1].scheme == "executors"
    engine.close()


def test_batches_in_the_driver_write_one_image_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "IMAGE_BYTES_MIN", 1)
    monkeypatch.setattr(share, "size_of", lambda rows: 0)
    written: list[str] = []

    def noting(write: Any) -> Any:
        return lambda *given, **more: (written.append(given[4]), write(*given, **more))[1]

    for name in ("write_part", "write_part_as_made"):
        monkeypatch.setattr(share, name, noting(getattr(share, name)))
    one, draw = in_one_process(), random.Random(4)
    engine = loaded(open_sharded(TABLES, ROUTES.values(), 3, Told(0), None, None, 1 << 20))
    images = []
    for turn in range(8):
        del written[:]
        events = batch(draw, 30)
        found = engine.run(ROUTES, events, route_by="what")
        assert found == one.run(ROUTES, events, route_by="what")
        if turn > 1:
            images.append([name.split(".")[1] for name in written if ".image" in name])
            assert sum(name.startswith("whole") for name in written) == 1 + len(images[-1])
    assert all(len(one) <= 1 for one in images)
    assert {name for one in images for name in one} >= {f"image-{part}" for part in range(3)}
    assert rows_of(engine) == rows_of(one)
    engine.close()


def test_no_plan_is_made_of_batches_that_executors_cannot_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, draw = in_one_process(), random.Random(4)
    engine = loaded(open_sharded(TABLES, ROUTES.values(), 3, Told(0), None, None, 1 << 20))
    for turn in range(4):
        if turn == 2:  # two jobs were measured
            monkeypatch.setattr(sharding, "homes_alone", None)
        events = batch(draw, 5)
        expected = one.run(ROUTES, events, route_by="what")
        assert engine.run(ROUTES, events, route_by="what") == expected
    engine.close()


def test_missing_rows_are_loaded_and_constraints_hold_for_them() -> None:
    pets = hg.Table(
        "pets", "id bigint, name string, owner bigint", key="id", unique="name",
        references={"owner": accounts},
    )  # fmt: skip
    tables, disk = [*TABLES, pets], SimulatedDisk()
    one = loaded(hg.open(None, tables=tables))
    with loaded(open_sharded(tables, [], 3, Workers(), disk)) as engine:
        for each in (one, engine):
            assert each.load(pets, [{"id": 1, "name": "a", "owner": 3}]) == 1
            rows = [{"id": 1, "name": "z", "owner": 3}, {"id": 2, "name": "b", "owner": 4}]
            assert each.load(pets, rows, mode="missing") == 1
            assert each.load(accounts, FIRST["accounts"], mode="missing") == 0
            for row, words in (
                ({"id": 3, "name": "a", "owner": 3}, "unique"),
                ({"id": 3, "name": "c", "owner": 999}, "owner"),
            ):
                with pytest.raises(hg.InputError, match=words):
                    each.load(pets, [row], mode="missing")
        query = "select * from pets order by id"
        assert engine.sql(query).arrow() == one.sql(query).arrow()
        assert engine.counts() == one.counts()


def test_a_slow_first_batch_in_the_driver_is_not_its_last() -> None:
    before = Costs(event=1e-6, job=0.1, jobs=2, tasks=2)
    once = before.noted(here=1e-7, whole=5.0)  # it loaded code
    twice = once.noted(here=1e-7, whole=5.0)  # it does take so long
    again = once.noted(here=1e-7, whole=0.01)
    assert all(_in_driver(costs) for costs in (before, once, again)) and not _in_driver(twice)


def _in_driver(costs: Costs) -> bool:
    return plan_faster(1000, least_seconds(1000, costs), costs) is not None
