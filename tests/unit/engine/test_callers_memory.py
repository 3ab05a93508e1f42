"""What a caller does with its own memory afterwards changes nothing that was handed in or out."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg

boxes = hg.Table("boxes", "id bigint, n bigint DEFAULT 0", key="id")


@hg.transaction(event="step bigint, id bigint, tag bigint")
def note(event: Any, box: Any = boxes.at("id", create=True), out: Any = hg.output("n bigint")):
    box.n += event.step
    out.n = box.n


@hg.transaction(event="ids array<bigint>")
def spread(event: Any, found: Any = boxes.each("ids", create=True)) -> None:
    for box in found:
        box.n += 1


@pytest.mark.parametrize("carry", [None, "tag"])
@pytest.mark.parametrize("is_frame", [False, True])
@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"updates": True}])
def test_results_do_not_change_with_the_memory_of_the_events(
    carry: str | None, is_frame: bool, options: dict[str, Any]
) -> None:
    memory = {name: np.array([1, 2, 3]) for name in ("step", "id", "tag")}
    frame = pd.DataFrame(memory)
    with hg.open(None, tables=[boxes], transactions=[note]) as engine:
        given = frame if is_frame else pa.table(memory)
        found = engine.run(note, given, order_by="step", carry=carry, **options)
        before = found.to_pylist()
        for name, values in memory.items():
            values[:] = -7
            frame.loc[:, name] = -7
        assert found.to_pylist() == before
        assert engine.sql("select step from results order by step").rows() == [(1,), (2,), (3,)]


@pytest.mark.parametrize("make", [list, np.array])
def test_a_call_is_submitted_as_it_was(make: Any) -> None:
    with hg.open(None, tables=[boxes], transactions=[spread]) as engine:
        ids = make([1, 2])
        with engine._lock:  # no one runs it before it is changed
            promise = engine.submit(spread, ids=ids)
            ids[0] = 9
        promise.result(10)
        assert engine.sql("select id from boxes order by id").rows() == [(1,), (2,)]


@pytest.mark.parametrize("events", [[{}], [{}, {}], pd.DataFrame(index=[0, 1])])
def test_events_without_a_column_are_refused(events: Any) -> None:
    with hg.open(None, tables=[boxes], transactions=[note]) as engine:
        with pytest.raises(hg.InputError, match="no column"):
            engine.run(note, events, order_by="step")
        assert engine.run(note, [], order_by="step").num_rows == 0


def test_results_are_read_while_old_epochs_are_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retain = hg.Retention(epochs=3)
    with hg.open(tmp_path / "s", tables=[boxes], transactions=[note], retain=retain) as engine:
        from headgate.durability.reader import StoreReader

        for number in range(20):
            engine.call(note, step=number, id=1, tag=0)
        results, trimmed = StoreReader.results, threading.Event()

        def slow(store: Any, *given: Any) -> Any:
            if not trimmed.is_set():  # the writer goes on between the question and the reading
                trimmed.set()
                for number in range(20, 40):
                    engine.call(note, step=number, id=1, tag=0)
                engine.snapshot()
            return results(store, *given)

        monkeypatch.setattr(StoreReader, "results", slow)
        assert engine.sql("select count(*) > 0 from results").rows() == [(True,)]
