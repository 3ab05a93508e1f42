"""Batches that wait for another input: they are counted, and nobody is told that they run."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import SimulatedDisk

left, right = hg.Stream("left_rows", "k bigint"), hg.Stream("right_rows", "k bigint")


@hg.procedure(left, right)
def join(one: pa.Table, other: pa.Table, tx: hg.Tx) -> None: ...


@hg.procedure(left)
def alone(rows: pa.Table, tx: hg.Tx) -> None: ...


def test_batches_of_one_input_wait_for_the_other() -> None:
    disk = SimulatedDisk()
    with hg.open("/join", dataflows=hg.Dataflow("f", [join]), disk=disk) as engine:
        for k in range(3):
            engine.push(left, [{"k": k}])
        assert engine.stream(left).metrics()["join"].waiting == 3
        engine.push(right, [{"k": 1}])
        assert engine.stream(left).metrics()["join"].waiting == 2
    changed = hg.Dataflow("f", [join, alone])
    with pytest.raises(hg.DeclarationError, match=r"finishes what can run; hand in what the rest"):
        hg.open("/join", dataflows=changed, disk=disk)
    with hg.open("/join", dataflows=hg.Dataflow("f", [join]), disk=disk) as engine:
        for k in range(2):
            engine.push(right, [{"k": k}])
    hg.open("/join", dataflows=changed, disk=disk).close()
