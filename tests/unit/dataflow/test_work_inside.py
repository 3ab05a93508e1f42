"""A function that an engine runs cannot hand that engine work: it would come in amid its batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg

asked, closing = hg.Stream("asked_for", "k bigint"), hg.Stream("closing", "k bigint")
kept = hg.Table("kept", "k bigint, n bigint DEFAULT 0", key="k")
ends = hg.Table("ends", "k bigint", key="k")
Inside = Callable[[hg.Engine], Any]


@hg.transaction(event="k bigint", compiled=False)
def poke(event: Any, row: Any = kept.at("k", create=True)) -> None:
    row.n += 1


WORK: dict[str, Inside] = {
    "push": lambda engine: engine.push(asked, [{"k": 2}]),
    "flush": lambda engine: engine.flush(asked),
    "send": lambda engine: engine.stream(asked).send([{"k": 2}]),
    "call": lambda engine: engine.call(poke, k=1),
    "submit": lambda engine: engine.submit(poke, k=1).result(),
    "call_once": lambda engine: engine.call_once("key", poke, k=1),
    "run": lambda engine: engine.run(poke, [{"k": 1}]),
    "load": lambda engine: engine.load(kept, [{"k": 1}]),
}


class Nested:
    """An engine whose functions hand it work once."""

    def __init__(self, work: Inside, place: str, workers: hg.Workers | None = None) -> None:
        self.refused: list[str] = []

        def do(where: str) -> None:
            if where == place and not self.refused:
                self.refused.append("nothing")
                try:
                    work(self.engine)
                except hg.InputError as error:
                    self.refused[:] = [str(error)]

        @hg.procedure(asked, writes=kept)
        def first(batch: pa.Table, tx: hg.Tx) -> None:
            do("read ahead")
            tx.upsert(kept, [{"k": 7, "n": 5}])
            do("procedure")

        @hg.procedure(closing, writes=ends)
        def last(batch: pa.Table, tx: hg.Tx) -> None:
            tx.upsert(ends, batch)

        @hg.on_insert(ends, writes=kept)
        def trigger(rows: pa.Table, tx: hg.Tx) -> None:
            do("trigger")

        flow = hg.Dataflow("f", [first, last], triggers=[trigger], workers=workers)
        self.engine = hg.open(None, tables=[kept, ends], transactions=[poke], dataflows=flow)

    def run(self, place: str) -> None:
        self.engine.push(closing if place == "trigger" else asked, [{"k": 7}])


@pytest.mark.parametrize("place", ["procedure", "trigger"])
@pytest.mark.parametrize("work", WORK)
def test_work_from_inside_is_refused(work: str, place: str) -> None:
    nested = Nested(WORK[work], place)
    with nested.engine as engine:
        nested.run(place)
        assert "a procedure has `tx` as its one way to tables" in nested.refused[0]
        assert engine.sql("select k from kept where k <> 7").rows() == []
        assert engine.call(poke, k=8).committed  # outside it goes on as ever
        engine.push(asked, [{"k": 9}])


@pytest.mark.parametrize("work", ["push", "call", "load"])
def test_work_from_inside_is_refused_ahead_of_its_turn(work: str) -> None:
    nested = Nested(WORK[work], "read ahead", hg.Workers(2))
    with nested.engine:
        nested.run("procedure")
    assert "a procedure has `tx` as its one way to tables" in nested.refused[0]
