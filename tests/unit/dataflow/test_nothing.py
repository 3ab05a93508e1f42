"""Nothing that comes in at a source leaves no trace: no epoch, and no origin."""

from __future__ import annotations

import headgate as hg

counts = hg.Table("counts", "id bigint, n bigint DEFAULT 0", key="id")
source = hg.Stream("source", "id bigint")


@hg.transaction(event=source)
def count(event: hg.Event, one: hg.Row = counts.at("id", create=True)) -> None:
    one.n += 1


def test_an_empty_micro_batch_is_no_epoch_and_the_next_one_runs() -> None:
    flow = hg.Dataflow("counting", [count])
    with hg.open(None, tables=[counts], dataflows=flow) as engine:
        handle = engine.stream(source)
        assert engine._flows.push(source, [], ("query", 1)).num_rows == 0
        assert engine.epoch == 0
        assert engine._flows.push(source, [{"id": 7}], ("query", 2)).num_rows == 2
        assert engine._flows.push(source, [{"id": 7}], ("query", 2)).num_rows == 0
        assert (engine.epoch, engine.get(counts, 7)["n"]) == (1, 1)
        assert handle.metrics()["count"].batches == 1
