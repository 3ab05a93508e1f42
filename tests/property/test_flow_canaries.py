"""Canaries of dataflows: seeded bugs that a life beside the oracle must find."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.dataflow import joined_windows, recording, running, stepping, under_way, writes
from headgate.dataflow.groups import Groups
from headgate.dataflow.kept_windows import KeptWindow
from headgate.dataflow.runs import BatchRun
from headgate.kernels import window_groups
from headgate.testing import Survival
from tests.property.flow_world import (
    ROWS,
    TABLES,
    asking,
    keeping,
    live,
    totals,
    transaction,
    upserting,
)
from tests.property.joining import KEPT, of_arity, weighing

SOURCE = hg.Stream("s0", ROWS, batch="3 rows")
MIDDLE, END = hg.Stream("s1", ROWS), hg.Stream("s2", ROWS)
FIRST: Any = hg.procedure(SOURCE, output=MIDDLE, writes=TABLES, name="asking_1")(asking)
SECOND: Any = transaction(2, MIDDLE, END)
THIRD: Any = hg.procedure(END, writes=TABLES, output=hg.Stream("s3", ROWS), name="upserting_3")(
    upserting
)
CHAIN = hg.Dataflow("flow", [FIRST, SECOND, THIRD], nest=[[SECOND, THIRD]])
LIFE: list[tuple[str, Any]] = [
    ("push", [{"k": k, "v": v} for k, v in ((1, 1), (2, 6), (3, 8), (1, 5), (2, 2), (1, 10))]),
    ("call", (1, 5)),
    ("crash", ([{"k": k, "v": 2} for k in range(3)], 4, Survival.KEEP)),
    ("push", [{"k": 3, "v": 29}, {"k": 1, "v": 17}, {"k": 2, "v": 7}, {"k": 2, "v": 22}]),
    ("flush", None),
]


def test_the_life_of_the_canaries_is_right_without_them() -> None:
    live(CHAIN, "strong", LIFE)


def newest(self: Any, unit: Any) -> Any:
    """The newest batch that is whole, in the place of the next."""
    return max(self.done(unit.nodes[0].name) + 1, self.closed(unit.needs[0].name))


between = BatchRun.between


def with_the_one_before(self: BatchRun, first: int, last: int) -> BatchRun | None:
    return between(self, first - 1 if first == last else first, last)


CANARIES: list[tuple[str, Any, str, Any]] = [
    ("a batch overtakes", under_way.UnderWay, "next_of", newest),
    ("an abort leaves its rows", writes.TableWrites, "undo", lambda self: None),
    ("a node runs again after recovery", under_way.UnderWay, "finish", lambda self, node, n: None),
    ("what aborted is not told", stepping.Stepping, "_give_up", lambda self, *said: None),
    ("a batch has rows of the one before it", BatchRun, "between", with_the_one_before),
    ("a stream is not recorded", recording.Recorder, "rows", lambda self, *said: None),
]


@pytest.mark.parametrize(("what", "owner", "name", "bug"), CANARIES, ids=[c[0] for c in CANARIES])
def test_a_seeded_bug_is_found(
    what: str, owner: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, bug)
    if name == "finish":  # which would run the first batch for ever
        turns = iter(range(20))
        run = running.Flows._run_next

        def bounded(self: Any) -> Any:
            return next(turns, None) is not None and run(self)

        monkeypatch.setattr(running.Flows, "_run_next", bounded)
        monkeypatch.setattr(stepping, "TOGETHER_SECONDS", 0.0)  # each a turn of its own
    with pytest.raises((AssertionError, hg.HeadgateError, KeyError)):
        live(CHAIN, "strong", LIFE)


WINDOW = hg.procedure(
    SOURCE.window("4 rows", "1 row", aggregate=KEPT, by="k"),
    output=MIDDLE, writes=TABLES, retries=1, name="keeping_1",
)(keeping)  # fmt: skip
KEPT_FLOW = hg.Dataflow("flow", [WINDOW])
move, fresh = Groups.move, KeptWindow._fresh


def moved_with_sums(self: Groups, leaving: int, inside: int) -> None:
    """What leaves is not taken away from the sums."""
    sums = self._arrays[window_groups.GROUP_SUMS].copy()
    move(self, leaving, inside)
    if leaving:
        self._arrays[window_groups.GROUP_SUMS][:] = sums


def fresh_though_aborted(self: KeptWindow, state: Any, *more: pa.Table) -> Any:
    """What an execution that aborted left is taken for what was there before it."""
    self._again = None
    state.kept = state.kept._replace(version=self._version)
    return fresh(self, state, *more)


KEPT_CANARIES: list[tuple[str, Any, str, Any]] = [
    ("an aggregate is not taken back", Groups, "move", moved_with_sums),
    ("an abort leaves its aggregates", KeptWindow, "_fresh", fresh_though_aborted),
]


@pytest.mark.parametrize("seeded", [None, *KEPT_CANARIES], ids=lambda one: one and one[0])
def test_a_seeded_bug_of_aggregates_is_found(seeded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(KEPT_FLOW, LIFE, seeded, monkeypatch)


def judged(
    flow: hg.Dataflow, life: list[tuple[str, Any]], seeded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow is right, but with a bug seeded."""
    if seeded is None:
        live(flow, "strong", life)
        return
    monkeypatch.setattr(*seeded[1:])
    with pytest.raises((AssertionError, hg.HeadgateError, IndexError)):
        live(flow, "strong", life)


SIDES = (
    SOURCE.window("4 rows", "1 row", aggregate=KEPT, by="k"),
    MIDDLE.window("3 rows", "2 rows"),
)
JOIN = hg.procedure(*SIDES, output=END, writes=totals, retries=1, name="beside_2")(
    of_arity(2, weighing(totals, ["s0_aggregates", "s1"]))
)
JOIN_FLOW = hg.Dataflow("flow", [FIRST, JOIN])
settle_rows, slide_content = joined_windows._ByRows.settle, joined_windows.KeptContent.slide


def settled_as_new(self: Any) -> None:
    """What was whole is not known any more when the batch is behind."""
    settle_rows(self)
    self._state.whole = self._state.drops


JOIN_CANARIES: list[tuple[str, Any, str, Any]] = [
    ("a content is forgotten", joined_windows._ByRows, "settle", settled_as_new),
    ("a slide leaves what went", joined_windows.KeptContent, "slide",
     lambda self, leaving, inside: slide_content(self, 0, inside + leaving)),
    ("an abort leaves its content", joined_windows._Bringing, "_turn", lambda self, kept: None),
    ("windows are not logged", under_way.Standing, "window_of",
     lambda self, key: (f"dataflow node {key}", SOURCE)),
]  # fmt: skip


@pytest.mark.parametrize("seeded", [None, *JOIN_CANARIES], ids=lambda one: one and one[0])
def test_a_seeded_bug_of_joined_windows_is_found(
    seeded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(JOIN_FLOW, [*LIFE, ("kill", None), LIFE[0]], seeded, monkeypatch)
