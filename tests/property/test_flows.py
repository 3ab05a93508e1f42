"""Dataflows: random graphs, batches, aborts, calls, crashes; judged by an oracle of one thread.

The engine is on a simulated disk. A crash loses the power at some call of it, in the middle of a
push; the push is sent again, as Spark does, and nothing must be lost or done twice. The order of
all executions is held to the definition of a correct schedule.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.dataflow import recording, stepping
from headgate.dataflow.policies import POLICIES
from headgate.testing import Survival
from tests.property.flow_world import (
    PROCEDURES,
    ROWS,
    TABLES,
    joining,
    keeping,
    keeping_both,
    live,
    summing,
    totals,
    transaction,
    upserting,
)
from tests.property.joining import KEPT, joined


def over_window(draw: Any, taken: hg.Stream, size: str, slide: str, said: Any) -> Any:
    """A procedure over a window, its aggregates, or both."""
    function, window = draw(st.sampled_from([summing, keeping, keeping_both])), (size, slide)
    if function is summing:
        return hg.procedure(taken.window(*window), **said)(summing)
    kept = taken.window(*window, aggregate=KEPT, by=draw(st.sampled_from(["k", None])))
    return hg.procedure(kept, retries=draw(st.sampled_from([0, 1])), **said)(function)


@st.composite
def flows(draw: Any, workers: Any = st.none()) -> hg.Dataflow:
    """A graph of a few nodes: each takes a stream that there is, or two of them, and gives one."""
    batch = draw(st.sampled_from([None, "1 row", "3 rows"]))
    is_recorded = st.sampled_from([True, True, False])
    streams = [hg.Stream("s0", ROWS, batch=batch, recorded=draw(is_recorded))]
    nodes: list[Any] = []
    for number in range(1, draw(st.integers(2, 4)) + 1):
        taken = draw(st.sampled_from(streams))
        gives = hg.Stream(f"s{number}", ROWS, recorded=draw(is_recorded))
        kind = draw(st.sampled_from([*PROCEDURES, "add", "add", "joining", "beside"]))
        others = [one for one in streams if one is not taken]
        said: Any = {"output": gives, "writes": TABLES, "name": f"{kind}_{number}"}
        if kind == "add":
            nodes.append(transaction(number, taken, gives, compiled=draw(st.booleans())))
        elif kind == "joining" and others:
            nodes.append(hg.procedure(taken, draw(st.sampled_from(others)), **said)(joining))
        elif kind == "beside" and others:
            more = draw(st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True))
            nodes.append(draw(joined([taken, *more], totals, said)))
        elif kind == "summing":
            size = draw(st.integers(2, 5))
            slide = draw(st.integers(1, size))
            nodes.append(over_window(draw, taken, f"{size} rows", f"{slide} rows", said))
        else:
            function = PROCEDURES.get(kind, upserting)
            if draw(st.booleans()):
                said |= {"partition_by": "k", "partitions": draw(st.integers(2, 3)),
                         "align": draw(st.sampled_from([None, 1, 2]))}  # fmt: skip
            nodes.append(hg.procedure(taken, **said)(function))
        streams.append(gives)
    nest = draw(st.integers(0, len(nodes)))
    first = draw(st.integers(0, len(nodes) - 1))
    names = [node.name for node in nodes[first : first + nest]]
    said = {"workers": draw(workers)}
    try:
        return hg.Dataflow("flow", nodes, nest=[names] if len(names) > 1 else [], **said)
    except hg.DeclarationError:  # what would be nested does not stand together
        return hg.Dataflow("flow", nodes, **said)


@st.composite
def nests_of_windows(draw: Any) -> hg.Dataflow:
    """A chain whose last nodes are one nest with a window in it, over one row at a time."""
    streams, nodes = [hg.Stream("s0", ROWS, batch="1 row")], list[Any]()
    last, window = draw(st.integers(2, 3)), 2
    for number in range(1, last + 1):
        gives = hg.Stream(f"s{number}", ROWS)
        is_inner = number != window or draw(st.booleans())
        taken = streams[-1] if is_inner else streams[0]
        kind = draw(st.sampled_from(["upserting", "inserting", "asking", "add"]))
        if number == window:
            said: Any = {"output": gives, "writes": TABLES, "name": f"summing_{number}"}
            others = [one for one in streams if one is not taken]
            if others and draw(st.booleans()):
                nodes.append(draw(joined([taken, others[0]], totals, said, 3)))
            else:
                nodes.append(over_window(draw, taken, "3 rows", "3 rows", said))
        elif kind == "add":
            nodes.append(transaction(number, taken, gives, compiled=draw(st.booleans())))
        else:
            said = {"output": gives, "writes": TABLES, "name": f"{kind}_{number}"}
            nodes.append(hg.procedure(taken, **said)(PROCEDURES[kind]))
        streams.append(gives)
    nest = [node.name for node in nodes[draw(st.sampled_from([0, 0, 1])) :]]
    return hg.Dataflow("flow", nodes, nest=[nest] if len(nest) > 1 else [])


rows = st.lists(
    st.fixed_dictionaries({"k": st.integers(0, 3), "v": st.integers(0, 40)}), min_size=1, max_size=5
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("push"), rows),
        st.tuples(st.just("crash"), st.tuples(rows, st.integers(1, 14), st.sampled_from(Survival))),
        st.tuples(st.just("call"), st.tuples(st.integers(0, 3), st.integers(0, 40))),
        st.tuples(st.sampled_from(["flush", "kill", "close", "snapshot"]), st.none()),
    ),
    min_size=2,
    max_size=9,
)


def _joined(parts: list[list[Any]]) -> list[Any]:
    return [one for part in parts for one in part]


@settings(max_examples=30)
@given(
    nests_of_windows(),
    st.sampled_from(["strong", "weak"]),
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.lists(rows, min_size=3, max_size=4).map(_joined)),
            st.tuples(st.sampled_from(["kill", "close"]), st.none()),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_windows_in_nests_do_what_the_oracle_does(
    flow: hg.Dataflow, recovery: str, acts: list[tuple[str, Any]]
) -> None:
    """Several batches share an epoch, and one of them aborts, or is not run."""
    note(flow.show())
    live(flow, recovery, acts)


@settings(max_examples=25)
@given(flows(), st.sampled_from(["strong", "weak"]), actions, st.sampled_from([0.0, 0.003]))
def test_a_flow_does_what_the_oracle_does(
    flow: hg.Dataflow, recovery: str, acts: list[tuple[str, Any]], together: float
) -> None:
    note(flow.show())
    with pytest.MonkeyPatch.context() as patched:  # executions that share epochs, and do not
        patched.setattr(stepping, "TOGETHER_SECONDS", together)
        patched.setattr(recording, "_LONG_ROWS", 2)  # short parts in the log, and long ones
        live(flow, recovery, acts)


crews = st.builds(
    hg.Workers,
    st.integers(2, 3),
    architecture=st.sampled_from(["pool", "pinned"]),
    policy=st.sampled_from(POLICIES),
    buffer=st.integers(1, 3),
    compose=st.booleans(),
) | st.builds(hg.Workers, policy=st.sampled_from(POLICIES), buffer=st.integers(1, 3))


@settings(max_examples=40)
@given(flows(crews), actions)
def test_workers_do_what_the_oracle_does(flow: hg.Dataflow, acts: list[tuple[str, Any]]) -> None:
    note(f"{flow.show()} {flow.workers}")
    live(flow, "strong", acts)
