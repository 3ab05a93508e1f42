"""With weak recovery, too, the nodes of a batch run in the order of one thread."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import SimulatedDisk

asked, passed = hg.Stream("asked_for", "k bigint"), hg.Stream("passed_on", "k bigint")


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_who_is_ready_late_runs_before_who_comes_behind(recovery: Any) -> None:
    ran: list[str] = []

    @hg.procedure(asked)
    def first(batch: pa.Table, tx: hg.Tx) -> None:
        ran.append("first")

    @hg.procedure(asked, output=passed)
    def second(batch: pa.Table, tx: hg.Tx) -> Any:
        ran.append("second")
        return batch

    @hg.procedure(passed)
    def third(batch: pa.Table, tx: hg.Tx) -> None:
        ran.append("third")

    @hg.procedure(asked)
    def last(batch: pa.Table, tx: hg.Tx) -> None:
        ran.append("last")

    flow = hg.Dataflow("f", [first, second, third, last])
    with hg.open("/order", dataflows=flow, recovery=recovery, disk=SimulatedDisk()) as engine:
        engine.push(asked, [{"k": 1}])
    assert ran == ["first", "second", "third", "last"]
