"""Dataflows in stores of shards: what the oracle does, and byte for byte what one process does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.dataflow import recording, stepping, writes
from headgate.shards import flow_rows, share
from tests.property.flow_world import TABLES, World, inserting, outside, removing, upserting
from tests.property.harness import decoded, same_bytes
from tests.property.test_flow_canaries import CHAIN, END, FIRST, LIFE, MIDDLE, SOURCE
from tests.property.test_flows import actions, crews, flows, rows
from tests.property.workers import Workers, open_sharded

# Engines of lives that end in a crash are lost, and say so when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class ShardedWorld(World):
    """The same engine with its rows in shards, whose tasks fail and run twice."""

    def __init__(self, flow: hg.Dataflow, shards: int = 2, seed: int = 0) -> None:
        self.shards, self.seed = shards, seed
        super().__init__(flow, "strong")

    def open(self) -> hg.Engine:
        self.seed += 1
        return open_sharded(
            TABLES, [outside], self.shards, Workers(self.seed, 2, 0.3), self.disk,
            dataflows=[self.flow],
        )  # fmt: skip


def live(flow: hg.Dataflow, acts: list[tuple[str, Any]], shards: int = 2, seed: int = 0) -> None:
    world = ShardedWorld(flow, shards, seed)
    try:
        for action, said in acts:
            world.do(action, said)
        world.check()
        counted = {name: len(world.oracle.serial.table(name)) for name in ("totals", "marks")}
        assert {name: world.engine.counts()[name] for name in counted} == counted
    finally:
        world.disk.crash_at = None
        world.engine.close()


def leaving(self: Any, transaction: Any, rows: int, seconds_each: float | None) -> bool:
    """Whatever may runs where its rows are, as if it were dear."""
    return rows > 0 and bool(self._may_leave(transaction))


@settings(max_examples=15)
@given(
    flows(st.none() | crews),
    actions,
    st.sampled_from([0.0, 0.003]),
    st.sampled_from([2, 5]),
    st.sampled_from([100, 10_000_000]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_a_flow_in_shards_does_what_the_oracle_does(
    flow: hg.Dataflow,
    acts: list[tuple[str, Any]],
    together: float,
    shards: int,
    image_bytes: int,
    leaves: bool,
    seed: int,
) -> None:
    note(flow.show())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stepping, "TOGETHER_SECONDS", together)
        if leaves:
            patched.setattr(flow_rows.FlowRows, "leaves", leaving)
        for module in (share, flow_rows):  # images are asked for early, and never
            patched.setattr(module, "IMAGE_BYTES_MIN", image_bytes)
        live(flow, acts, shards, seed)


def everything(engine: hg.Engine) -> dict[str, pa.Table]:
    """All rows and all results of an engine, in one order."""
    found = {
        table.name: engine.sql(
            f"select * from {table.name} order by {', '.join(table.key)}"
        ).arrow()
        for table in TABLES
    }
    results = engine.sql("select * from results order by epoch, position").arrow()
    return {**found, "results": decoded(results)}


quiet_actions = st.lists(
    st.one_of(
        st.tuples(st.just("push"), rows),
        st.tuples(st.just("call"), st.tuples(st.integers(0, 3), st.integers(0, 40))),
        st.tuples(st.sampled_from(["flush", "kill", "close", "snapshot"]), st.none()),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=15)
@given(flows(), quiet_actions, st.sampled_from([0.0, 1e9]), st.booleans(), st.integers(0, 1000))
def test_epochs_results_and_rows_are_those_of_one_process(
    flow: hg.Dataflow, acts: list[tuple[str, Any]], together: float, leaves: bool, seed: int
) -> None:
    """Who runs where its rows are has an epoch to itself, so there each execution has one."""
    note(flow.show())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stepping, "TOGETHER_SECONDS", 0.0 if leaves else together)
        if leaves:
            patched.setattr(flow_rows.FlowRows, "leaves", leaving)
        patched.setattr(recording, "_LONG_ROWS", 2)
        one, other = World(flow, "strong"), ShardedWorld(flow, 3, seed)
        try:
            for action, said in acts:
                for world in (one, other):
                    world.do(action, said)
                assert one.engine.epoch == other.engine.epoch
            expected, found = everything(one.engine), everything(other.engine)
            for name, table in expected.items():
                assert same_bytes(found[name], table), name
            assert one.engine.counts() == other.engine.counts()
        finally:
            for world in (one, other):
                world.engine.close()


# --- canaries: seeded bugs that the tests above must find -----------------------------------------

ASKING = hg.Dataflow("flow", [FIRST])
SWEEP: Any = hg.procedure(SOURCE, output=MIDDLE, writes=TABLES, name="removing_1")(removing)
FILL: Any = hg.procedure(MIDDLE, output=END, writes=TABLES, name="inserting_2")(inserting)
REFILLED = hg.Dataflow("flow", [SWEEP, FILL])
NESTED: Any = hg.procedure(MIDDLE, output=END, writes=TABLES, name="upserting_2")(upserting)
ABORTING = hg.Dataflow("flow", [FIRST, NESTED], nest=[[FIRST, NESTED]])
SOME: list[tuple[str, Any]] = [
    ("push", [{"k": k, "v": v} for k, v in ((7, 17), (8, 3), (9, 3))]),
    ("push", [{"k": k, "v": 3} for k in (7, 8, 9)]),
    ("push", [{"k": k, "v": v} for k, v in ((1, 1), (2, 2), (3, 10))]),
    ("call", (1, 5)),
    ("push", [{"k": k, "v": v} for k, v in ((2, 4), (1, 7), (3, 1))]),
    ("push", [{"k": k, "v": v} for k, v in ((3, 13), (2, 16), (1, 19))]),
    ("kill", None),
    # What is gone by one node is there again by the next, in another slot.
    ("push", [{"k": k, "v": 1} for k in range(6)]),
    ("push", [{"k": k, "v": 1} for k in reversed(range(6))]),
]
tables_of: Any = flow_rows.FlowRows.tables


def brought_once(self: Any) -> Any:
    """The copy of the driver stays what it was when it was first brought."""
    return tables_of.fget(self) if self._epoch is None else self._rows.tables


CANARIES: list[tuple[str, hg.Dataflow, Any, str, Any]] = [
    ("a stale copy is used", ASKING, flow_rows.FlowRows, "tables", property(brought_once)),
    ("a slot is two rows'", REFILLED, writes.TableWrites, "_hold", lambda self, slots: None),
    ("an abort stays in the copy", ABORTING, writes.TableWrites, "undo", lambda self: None),
]


@pytest.mark.parametrize("flow", [ASKING, REFILLED, CHAIN, ABORTING])
def test_the_life_of_the_canaries_is_right_without_them(flow: hg.Dataflow) -> None:
    live(flow, [*LIFE, *SOME])


@pytest.mark.parametrize("canary", CANARIES, ids=lambda one: one[0])
def test_a_seeded_bug_is_found(
    canary: tuple[str, hg.Dataflow, Any, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, flow, *bug = canary
    monkeypatch.setattr(*bug)
    with pytest.raises((AssertionError, hg.HeadgateError, KeyError)):
        live(flow, [*LIFE, *SOME])
