"""A long plain batch is worked in sections, whose rows other threads look up ahead, and whose
results they write while the next ones run. All is as of a batch in one piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.durability import verify
from headgate.engine import batch as batches
from headgate.engine import straight_path
from headgate.errors import StoreError
from headgate.parallel.sections import LookAhead
from headgate.testing import SerialOracle, SimulatedDisk, difference, results_difference
from tests.property.test_straight import (
    CELLS,
    FIRST,
    FORMS,
    KEYS,
    MIXED,
    boxes,
    cells,
    mixed_events,
    opened,
    plain,
    table_of,
    tables,
)

SECTION = 16


@pytest.fixture(autouse=True)
def sections(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Short sections, whose look-ups ahead are there from the first; where their slots were."""
    places: list[int | None] = []
    is_ready, run = LookAhead.is_ready, straight_path.StraightRun.run

    def ready(self: Any) -> bool:
        is_ready(self)
        self._compiled.result()
        return is_ready(self)

    def noted(self: Any, begin: int, end: int, interpret: Any, place: int | None = None) -> Any:
        places.append(place)
        return run(self, begin, end, interpret, place)

    monkeypatch.setattr(straight_path, "SECTION_EVENTS", SECTION)
    monkeypatch.setattr(LookAhead, "is_ready", ready)
    monkeypatch.setattr(straight_path.StraightRun, "run", noted)
    return places


@pytest.mark.parametrize("name", FORMS)
def test_sections_on_two_threads_give_what_a_whole_batch_gives(
    name: str, sections: list[int | None]
) -> None:
    form = FORMS[name]

    @settings(max_examples=60)
    @given(batch=st.lists(tables(), min_size=1, max_size=3))
    def check(batch: list[pa.Table]) -> None:
        with opened(None, form) as two, opened(None, form) as one:
            for events in batch:
                found = two.run(form, events, order_by="ts", threads=2)
                assert found.equals(one.run(form, events, order_by="ts", threads=1))
            for table in FIRST:
                assert (two._memory.rows[table].words == one._memory.rows[table].words).all()

    check()
    assert len({place for place in sections if place is not None}) > 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_the_log_of_sections_is_that_of_a_whole_batch(
    name: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, count, random = FORMS[name], 11 * SECTION + 5, np.random.default_rng(3)
    columns = {
        "ts": np.arange(count) // 3, "src": random.integers(0, KEYS + 1, count),
        "dst": random.integers(0, KEYS, count), "small": random.integers(0, KEYS, count),
        "n": random.integers(0, 9, count), "x": random.random(count),
        "at": np.arange(count), "on": np.zeros(count, np.int32),
    }  # fmt: skip
    events, oracle = table_of(columns), SerialOracle([boxes, plain], [form])
    for table, rows in FIRST.items():
        oracle.load({"boxes": boxes, "plain": plain}[table], rows)
    with opened(tmp_path / "a", form) as engine, opened(tmp_path / "b", form) as other:
        for part in (events, events.slice(0, SECTION), events.slice(3)):
            found = engine.run(form, part, order_by="ts", threads=threads)
            assert (
                results_difference(found, oracle.run(form, part.to_pylist(), order_by="ts")) is None
            )
            with monkeypatch.context() as patch:
                patch.setattr(batches, "straight_of", lambda terms, executor: None)
                assert found.equals(other.run(form, part, order_by="ts"))
        query = "select * from results order by epoch, position"
        logged = engine.sql(query).arrow()
        assert logged.equals(other.sql(query).arrow())
        assert difference(engine, oracle) is None
    assert verify(tmp_path / "a").is_whole
    with hg.open(tmp_path / "a", tables=[boxes, plain], transactions=[form]) as again:
        assert difference(again, oracle) is None
        assert again.sql(query).arrow().equals(logged)


def test_routes_lists_texts_and_new_rows_in_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight_path, "SECTION_EVENTS", 3)
    given_ = {"tables": [boxes, cells], "transactions": list(MIXED.values())}
    options = {"route_by": "kind", "order_by": "ts"}

    @settings(max_examples=60)
    @given(batch=st.lists(mixed_events(), min_size=1, max_size=3))
    def check(batch: list[pa.Table]) -> None:
        oracle = SerialOracle([boxes, cells], list(MIXED.values()))
        with hg.open("/data/s", disk=SimulatedDisk(), **given_) as engine:
            for target in (engine, oracle):
                target.load(boxes, FIRST["boxes"])
                target.load(cells, CELLS)
            for events in batch:
                found = engine.run(MIXED, events, threads=2, **options)
                wanted = oracle.run(MIXED, events.to_pylist(), **options)
                assert results_difference(found, wanted) is None
            assert difference(engine, oracle) is None

    check()


def test_a_disk_that_fills_up_while_a_batch_runs_stops_the_engine() -> None:
    form, disk = FORMS["drop"], SimulatedDisk()
    events = table_of({name: [0] * (4 * SECTION) for name in
                       ("ts", "src", "dst", "small", "n", "x", "at", "on")})  # fmt: skip
    engine = hg.open("/data/s", tables=[boxes, plain], transactions=[form], disk=disk)
    engine.load("boxes", FIRST["boxes"])
    before = engine.epoch
    disk.capacity_bytes = 600 + sum(len(disk.content(path)) for path in disk.paths())
    with pytest.raises(StoreError, match="disk is full"):
        engine.run(form, events, order_by="ts", threads=2)
    with pytest.raises(StoreError, match="disk is full"):
        engine.call(form, **events.slice(0, 1).to_pylist()[0])
    engine.close()
    disk.capacity_bytes = None
    with hg.open("/data/s", tables=[boxes, plain], transactions=[form], disk=disk) as again:
        assert again.epoch == before
        assert set(again.run(form, events, order_by="ts")["outcome"].to_pylist()) == {"committed"}
