"""Cluster studies: `headgate simulate --nodes`, an epoch on more nodes than there are.

What an epoch is made of comes from drawn transfers, or from a user's engine and events; what each
part costs was measured with two executors. The user's engine is only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.cli.output import make_console, make_grid
from headgate.cli.studies import (
    Request,
    check_out,
    choose_transaction,
    copy_engine,
    read_events,
    write_page,
)
from headgate.engine.engine import Engine
from headgate.errors import InputError
from headgate.lab.cluster_model import (
    DESIGNS,
    LOCAL,
    ClusterCosts,
    Curve,
    EpochLoad,
    curves,
    load_by,
    loads_of,
)
from headgate.lab.designing import Choice, Design, Judge, Trace, Weights, read_trace
from headgate.lab.simulation import draw_curves, page
from headgate.shards.placement import beyond_shards
from headgate.transactions import Transaction
from headgate.web.target import open_program

KEYS = 1_000_000
SHARDS_OF_A_NODE = 4
NODES_MAX = 256  # so many times 4 shards a store can have


@dataclass(frozen=True)
class ClusterRequest:
    """Which clusters to simulate, and with which epochs."""

    nodes: tuple[int, ...]
    cross: tuple[float, ...]
    skew: tuple[float, ...]
    cost_us: tuple[float, ...]  # of one operation
    node_cores: int
    events: int

    @classmethod
    def parsed(
        cls, nodes: str, cross: str, skew: str, cost_us: str, node_cores: int, events: int
    ) -> ClusterRequest:
        """From the words of the command."""
        counts = _counts(nodes)
        shares = _numbers("--cross", cross, 1.0)
        return cls(counts, shares, _numbers("--skew", skew, 4.0),
                   _numbers("--cost-us", cost_us, 1e6), node_cores, events)  # fmt: skip


def _counts(text: str) -> tuple[int, ...]:
    """Numbers of nodes; "..." between two of them goes on as those before it did.

    >>> _counts("1,2,4,...,32")
    (1, 2, 4, 8, 16, 32)
    """
    found: list[int] = []
    words = [one.strip() for one in text.split(",")]
    try:
        for place, word in enumerate(words):
            if word != "...":
                found.append(int(word))
                continue
            last, factor = int(words[place + 1]), found[-1] // found[-2]
            while factor > 1 and found[-1] * factor < last:
                found.append(found[-1] * factor)
    except (ValueError, IndexError, ZeroDivisionError):
        found = []
    if not found or sorted({*found}) != found or not 1 <= found[0] <= found[-1] <= NODES_MAX:
        raise InputError(
            f"--nodes is ascending numbers up to {NODES_MAX}, such as 1,2,4,...,64; not {text!r}"
        )
    return tuple(found)


def _numbers(option: str, text: str, most: float) -> tuple[float, ...]:
    try:
        found = tuple(float(one) for one in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= one <= most for one in found):
        raise InputError(f"{option} is numbers from 0 to {most:g} with commas; not {text!r}")
    return found


@dataclass(frozen=True)
class Case:
    """One kind of epoch, and every design over the numbers of nodes."""

    told: str
    curves: Mapping[str, Curve]


def run_cluster_simulation(
    wanted: ClusterRequest, request: Request | None, out: Path, keys: int = KEYS
) -> None:
    """Simulate, show a table for each kind of epoch, and write the page with the curves."""
    check_out(out)
    costs = ClusterCosts()
    console = make_console()
    with console.status("laying out epochs over nodes"):
        if request is None:
            cases = list(drawn_cases(wanted, costs, keys))
        else:
            cases = [_case_of(wanted, request, costs)]
    facts = [
        f"epochs of {next(iter(cases[0].curves.values())).epochs[0].events:,} events on nodes of "
        f"{wanted.node_cores} core(s), {SHARDS_OF_A_NODE} shards a node; "
        "costs of a study with two executors",
        *(f"{name}: {told}" for name, told in DESIGNS.items()),
    ]
    for line in facts:
        console.print(line, soft_wrap=True)
    for case in cases:
        console.print(_grid(case))
    body = "".join(f"<h2>{case.told}</h2>{_drawn(case)}" for case in cases)
    write_page(out, page("Simulated: nodes of a cluster", facts, body))
    console.print(f"The curves are in {out}")


def drawn_cases(wanted: ClusterRequest, costs: ClusterCosts, keys: int) -> Iterable[Case]:
    """Transfers by each share over shards, each skew and each cost."""
    for cross in wanted.cross:
        for skew in wanted.skew:
            loads = loads_of(wanted.nodes, wanted.events, keys, cross, skew, SHARDS_OF_A_NODE)
            for cost_us in wanted.cost_us:
                found = curves(loads, 2 * cost_us, costs, wanted.node_cores)
                yield Case(
                    f"{cross:.1%} of the events over shards, Zipf {skew:g}, {cost_us:g} µs an "
                    f"operation; {_travelling(loads)}",
                    found,
                )


def _travelling(loads: Mapping[int, EpochLoad]) -> str:
    last = list(loads.values())[-1]
    return f"{last.travelling / last.events:.1%} travel"


def _case_of(wanted: ClusterRequest, request: Request, costs: ClusterCosts) -> Case:
    """The events of a user's engine, as its tables are declared."""
    events = read_events(request.events).slice(0, wanted.events)
    with open_program(request.app) as engine:
        chosen = choose_transaction(engine, events, request)
        options: dict[str, Any] = {"order_by": list(request.order_by) or None}
        options["route_by"] = request.route_by
        trace = _epoch_trace(engine, chosen, events, **options)
        if request.cost_ns is None:
            each_us = _event_us(engine, chosen, events, **options)
        else:
            each_us = request.cost_ns / 1e3 * len(trace.touched.rows) / len(trace.order)
    loads = trace_loads(trace, wanted.nodes)
    told = f"{request.app}: {each_us:,.2f} µs an event; {_travelling(loads)}"
    return Case(told, curves(loads, each_us, costs, wanted.node_cores))


def _epoch_trace(engine: Engine, chosen: Any, events: pa.Table, **options: Any) -> Trace:
    """All these events as one epoch."""
    for transaction in _chosen(chosen):
        why = beyond_shards(transaction, engine.tables)
        if why is not None:
            raise InputError(
                f"{why} may lead to rows of any shard: such batches run in the driver, on any "
                "number of nodes"
            )
    return read_trace(
        engine.tables, engine.transactions, chosen, events, max(1, events.num_rows), {}, **options
    )


def _chosen(chosen: Any) -> Iterable[Transaction]:
    return chosen.values() if isinstance(chosen, dict) else [chosen]


def trace_loads(trace: Trace, nodes: Sequence[int]) -> dict[int, EpochLoad]:
    """Where the events of one epoch run, with tables in shards as they are declared."""
    judge = Judge(trace, 1, Weights())
    choices = {name: Choice.of(table) for name, table in trace.tables.items()}
    found = {}
    for count in nodes:
        placed = judge.placed(Design(choices, SHARDS_OF_A_NODE * count))
        touched = replace(trace.touched, shards=placed)
        found[count] = load_by(touched, trace.events, SHARDS_OF_A_NODE * count)
    return found


def _event_us(engine: Engine, chosen: Any, events: pa.Table, **options: Any) -> float:
    """What the transaction of an event takes, in a copy."""
    with copy_engine(engine) as copy:
        copy.run(chosen, events.slice(0, 1), scheme="serial", **options)  # loads the code
        before = _executed(copy)
        copy.run(chosen, events, scheme="serial", **options)
        each_us: float = 1e6 * (_executed(copy) - before) / max(1, events.num_rows)
        return each_us


def _executed(engine: Engine) -> float:
    return float(sum(one.steps["execute"].seconds for one in engine.metrics().streams.values()))


def _grid(case: Case) -> Any:
    one = next(iter(case.curves.values()))
    counts = [epoch.nodes for epoch in one.epochs]
    sides = {"thousand events/s": "left", **{str(count): "right" for count in counts},
             "latency ms": "right", "": "left"}  # fmt: skip
    grid = make_grid(case.told, sides)
    for name, curve in case.curves.items():
        rates = [f"{epoch.rate / 1e3:,.0f}" for epoch in curve.epochs]
        first, last = (curve.epochs[place].latency_ms for place in (0, -1))
        grid.add_row(name, *rates, f"{first:,.0f} to {last:,.0f}", curve.why)
    return grid


def _drawn(case: Case) -> str:
    """The throughput of each design, to that of the driver alone."""
    alone = case.curves[LOCAL].epochs[0].rate
    counts = [epoch.nodes for epoch in case.curves[LOCAL].epochs]
    lines = {name: [epoch.rate / alone for epoch in curve.epochs]
             for name, curve in case.curves.items()}  # fmt: skip
    told = "".join(f"<li>{name}: {curve.why}</li>" for name, curve in case.curves.items())
    return f"{draw_curves(counts, lines, 'nodes')}<ul>{told}</ul>"
