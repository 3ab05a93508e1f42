"""Designs: `headgate design`, how to declare the tables of a store for shards, from a trace.

A trace is a sample of events, in files or as the results that a store has recorded: of each event
it needs the columns that name rows, and no others. Nothing is changed anywhere; what must run to be
measured runs in a copy of the rows in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.cli.output import make_console, make_grid
from headgate.cli.studies import READERS, check_out, read_events, write_page
from headgate.dataflow.nodes import Dataflow
from headgate.durability import StoreReader
from headgate.durability.format import MANIFEST_NAME
from headgate.engine.declaring.declarations import read_table as declared_table
from headgate.engine.engine import Engine, open_engine
from headgate.errors import DeclarationError, InputError, not_among
from headgate.lab.design_drawing import draw_flows, draw_proposal
from headgate.lab.designing import (
    BEST,
    PROPOSED,
    Proposal,
    Trace,
    Weights,
    propose,
    read_trace,
)
from headgate.lab.flow_design import (
    DesignedFlows,
    FlowVerdict,
    count_flows,
    events_alone,
    propose_flows,
)
from headgate.lab.simulation import page
from headgate.query.store_tables import read_results, read_table, shard_count, tables_of
from headgate.shards.placement import beyond_shards, refuse_unfit
from headgate.state.table import Table
from headgate.transactions import Transaction
from headgate.web.target import load_named, open_program

ROUTE = "__transaction"  # the column that is made where each file is of one transaction
MEASURED_EVENTS = 10_240  # of a transaction, to see what it costs
COPIED_ROWS_MAX = 5_000_000


@dataclass(frozen=True)
class DesignRequest:
    """What to design, from what, and for how many nodes."""

    target: str
    program: str | None
    trace: Sequence[str]  # each as a path, or as "transaction=path"; none: recorded results
    nodes: int
    order_by: Sequence[str]
    batch_events: int
    events_max: int
    weights: Weights


@dataclass(frozen=True)
class Found:
    """What was found out about a store or an engine before anything was designed."""

    tables: Mapping[str, Table]
    transactions: Mapping[str, Transaction]
    flows: tuple[Dataflow, ...]
    shards: int | None
    sizes: Mapping[str, int]
    rows: Callable[[str], pa.Table]  # of a table
    results: Callable[[], pa.Table] | None  # that were recorded


def run_design(request: DesignRequest, out: Path) -> None:
    """Design, show it, and write the page with the drawing."""
    if not 1 <= request.nodes <= 256:
        raise InputError(f"--nodes is a number from 1 to 256, not {request.nodes}")
    check_out(out)
    with make_console().status("reading the trace, placing its rows, and judging designs"):
        declared = declared_by(request)
        found = design(declared, request)
    console = make_console()
    for line in found.lines:
        console.print(line, soft_wrap=True)
    for grid in found.grids():
        console.print(grid)
    body = "" if found.proposal is None else draw_proposal(found.proposal)
    if found.flows is not None:
        body += draw_flows(found.flows)
    write_page(out, page(f"Designed: {request.target}", found.lines, body))
    console.print(f"The drawing is in {out}")


@dataclass(frozen=True)
class Designed:
    """What came out: for tables, for dataflows, and what is to be known of both."""

    lines: tuple[str, ...]
    proposal: Proposal | None
    flows: DesignedFlows | None

    def grids(self) -> Iterable[Any]:
        if self.proposal is not None:
            yield _tables_grid(self.proposal)
            yield _verdicts_grid(self.proposal)
        if self.flows is not None:
            yield _flows_grid(self.flows.verdicts)


def design(declared: Found, request: DesignRequest) -> Designed:
    """The designs for the events of a trace."""
    given = gathered(declared, request)
    lines = list(_unfit(declared))
    sources = {name: rows for name, rows in given.items() if name not in declared.transactions}
    flows = None
    if sources:
        flows, alone = _design_flows(declared, sources, request)
        given |= alone
    mine = {name: one for name, one in declared.transactions.items() if name in given}
    beyond = {
        name: why for name, one in mine.items() if (why := beyond_shards(one, declared.tables))
    }
    for name, why in beyond.items():
        lines.append(
            f"{why} may lead to rows of any shard: its {given[name].num_rows:,} events run in the "
            "driver in every design, and so do all batches that they share with others"
        )
    placed = {name: one for name, one in mine.items() if name not in beyond}
    proposal = None
    if placed:
        trace = _traced(declared, placed, given, request)
        proposal = propose(trace, request.nodes, request.weights, declared.shards)
        lines += _told(proposal)
    if flows is not None:
        workers = flows.verdicts[PROPOSED].workers
        pins = ", ".join(f'"{unit.split(" + ")[0]}": {one}' for unit, one in workers.items())
        lines.append(f"the dataflow: workers=hg.Workers({request.nodes}, pins={{{pins}}})")
    return Designed(tuple(lines), proposal, flows)


def _unfit(declared: Found) -> Iterable[str]:
    """Why the store cannot have shards yet, whatever the design."""
    if declared.flows:
        yield (
            "of an engine with shards procedures and nests run in the driver, over its copy of the "
            "tables that they name: their nodes go to its workers; transactions in no nest may run "
            "where their rows are, and are designed for as others are"
        )
    try:
        refuse_unfit(declared.tables)
    except DeclarationError as error:
        yield f"as it is declared it would be refused: {error}"


def _traced(
    declared: Found,
    placed: Mapping[str, Transaction],
    given: Mapping[str, pa.Table],
    request: DesignRequest,
) -> Trace:
    tables = {access.table.name for one in placed.values() for access in one.signature.accesses}
    mine = {name: table for name, table in declared.tables.items() if name in tables}
    sizes = {name: size for name, size in declared.sizes.items() if name in tables}
    route: Any = next(iter(placed.values())) if len(placed) == 1 else dict(placed)
    events = interleaved({name: given[name] for name in placed}, request.events_max)
    options: dict[str, Any] = {"order_by": list(request.order_by) or None}
    options["route_by"] = ROUTE if len(placed) > 1 else None
    trace = read_trace(mine, placed, route, events, request.batch_events, sizes, **options)
    if len(placed) == 1 or sum(declared.sizes.values()) > COPIED_ROWS_MAX:
        return trace
    costs = measured_costs(declared, placed, given)
    return replace(trace, costs=np.array([costs[name] for name in trace.names])[trace.route])


def measured_costs(
    declared: Found, placed: Mapping[str, Transaction], given: Mapping[str, pa.Table]
) -> dict[str, float]:
    """What an event of each transaction costs in a copy of the rows, in seconds."""
    with _copied(declared, placed) as copy:
        return {name: _cost(copy, name, given[name]) for name in placed}


def _copied(declared: Found, placed: Mapping[str, Transaction], **more: Any) -> Engine:
    copy = open_engine(None, declared.tables.values(), placed.values(), **more)
    for name in sorted(declared.tables, key=lambda one: len(declared.tables[one].references)):
        copy.load(name, declared.rows(name))
    return copy


def _cost(copy: Engine, name: str, events: pa.Table) -> float:
    copy.run(name, events.slice(0, 1), scheme="serial")  # loads the code
    before = copy.metrics().streams[name].steps["execute"].seconds
    some = events.slice(0, MEASURED_EVENTS)
    copy.run(name, some, scheme="serial")
    after = copy.metrics().streams[name].steps["execute"].seconds
    each: float = max(1e-9, after - before) / max(1, some.num_rows)
    return each


def _design_flows(
    declared: Found, sources: Mapping[str, pa.Table], request: DesignRequest
) -> tuple[DesignedFlows, dict[str, pa.Table]]:
    """Who runs which nodes, and the events of transactions that stand in no nest."""
    with _copied(declared, declared.transactions, dataflows=declared.flows) as copy:
        graph = copy._running_flows().graph
        counted = count_flows(copy, graph, sources)
    proposed = propose_flows(graph, counted, request.nodes, request.weights)
    return proposed, events_alone(graph, counted)


def parse_weights(text: str) -> Weights:
    """Three numbers with commas between them.

    >>> parse_weights("2,1,3")
    Weights(state=2.0, processing=1.0, load=3.0)
    """
    try:
        state, processing, load = (float(one) for one in text.split(","))
    except ValueError:
        state = -1.0
    if not (state >= 0 and processing >= 0 and load >= 0):
        raise InputError(f"--weights is three numbers from 0 on, such as 2,1,3; not {text!r}")
    return Weights(state, processing, load)


# --- what is declared -----------------------------------------------------------------------------


def declared_by(request: DesignRequest) -> Found:
    """What the target declares: a store's folder with a program beside it, or an engine."""
    path = Path(request.target)
    if (path / MANIFEST_NAME).exists():
        if request.program is None:
            raise InputError(
                f"{path} says what its tables are, but not which events name which rows: give the "
                "program that has its transactions, as in --program bank.py"
            )
        return _declared_in_store(path, load_named(f"{request.program}:__dict__", "program"))
    with open_program(request.target) as engine:
        return _declared_by_engine(engine)


def _declared_in_store(path: Path, names: Mapping[str, Any]) -> Found:
    reader = StoreReader.open(path)
    epoch = reader.last_epoch()
    tables = {name: declared_table(name, one) for name, one in tables_of(reader, epoch).items()}
    transactions = _transactions(names.values(), tables)
    flows = tuple({one.name: one for one in names.values() if isinstance(one, Dataflow)}.values())
    sizes = {
        name: read_table(reader, name, epoch, columns=table.key).num_rows
        for name, table in tables.items()
    }
    return Found(
        tables, transactions, flows, shard_count(reader.declared(epoch)), sizes,
        lambda name: read_table(reader, name, epoch), lambda: read_results(reader, epoch),
    )  # fmt: skip


def _transactions(values: Iterable[Any], tables: Mapping[str, Table]) -> dict[str, Transaction]:
    """Those of a program that are over these tables only."""
    found = {}
    for one in values:
        if isinstance(one, Transaction):
            named = {access.table.name for access in one.signature.accesses}
            if named <= set(tables):
                found[one.name] = one
    return found


def _declared_by_engine(engine: Engine) -> Found:
    """All that is needed of an engine, which is closed then."""
    sizes = engine.counts()
    is_small = sum(sizes.values()) <= COPIED_ROWS_MAX
    kept = {name: engine.scan(name).arrow() for name in engine.tables} if is_small else {}
    flows = () if engine._flows is None else tuple(engine._running_flows().declared.flows.values())
    reader = None if engine.path is None else StoreReader.open(engine.path)
    return Found(
        dict(engine.tables), dict(engine.transactions), flows,
        None if reader is None else shard_count(reader.declared()), sizes, kept.__getitem__,
        None if reader is None else (lambda: read_results(reader, reader.last_epoch())),
    )  # fmt: skip


# --- the trace ------------------------------------------------------------------------------------


def gathered(declared: Found, request: DesignRequest) -> dict[str, pa.Table]:
    """The events of each transaction, and the rows of each source of a dataflow, by their names."""
    taken = {one.name for flow in declared.flows for one in flow.graph.sources.values()}
    nodes = {node.name for flow in declared.flows for node in flow.nodes}
    known = [name for name in declared.transactions if name not in nodes] + sorted(taken)
    found: dict[str, list[pa.Table]] = {}
    for text in request.trace:
        for name, events in _named_events(text, known):
            found.setdefault(name, []).append(events)
    if not request.trace:
        found = {name: [one] for name, one in _recorded(declared, known).items()}
    tables = {name: pa.concat_tables(parts, promote_options="permissive")
              for name, parts in found.items()}  # fmt: skip
    if not any(rows.num_rows for rows in tables.values()):
        raise InputError("the trace has no events: give files that have some")
    return {name: _with_all_columns(declared, name, rows) for name, rows in tables.items()}


def _named_events(text: str, known: Sequence[str]) -> Iterable[tuple[str, pa.Table]]:
    name, sign, rest = text.partition("=")
    if sign and name in known:
        yield name, events_at(Path(rest))
        return
    path = Path(text)
    if sign and not path.exists():
        known_names = not_among(name, known, "transactions and sources")
        raise InputError(f"--trace {text}: of no transaction {name!r}; {known_names}")
    inside = {one.stem: one for one in path.iterdir()} if path.is_dir() else {}
    named = [(one, place) for one, place in sorted(inside.items()) if one in known]
    if named:
        yield from ((one, events_at(place)) for one, place in named)
    elif path.stem in known:
        yield path.stem, events_at(path)
    elif len(known) == 1:
        yield known[0], events_at(path)
    else:
        raise InputError(
            f"--trace {text}: of which transaction are these? Say --trace NAME={text}, or give a "
            f"folder with a file or folder for each of: {', '.join(known) or 'none is known'}"
        )


def events_at(path: Path) -> pa.Table:
    """The events of a file, or of all files of a folder, as Spark writes it."""
    if not path.is_dir():
        return read_events(path)
    files = [one for one in sorted(path.iterdir())
             if one.suffix.lower() in READERS and one.name[0] not in "._"]  # fmt: skip
    if not files:
        raise InputError(f"{path} has no files of events: they are {', '.join(READERS)}")
    return pa.concat_tables([read_events(one) for one in files], promote_options="permissive")


def _recorded(declared: Found, known: Sequence[str]) -> dict[str, pa.Table]:
    """The recorded results as a trace, where they carry the keys of their events."""
    if declared.results is None:
        raise InputError("an engine in memory records no results: give --trace EVENTS")
    results = declared.results()
    names = results.column("transaction").to_pylist()
    found, lacking = {}, []
    for name in known:
        mine = results.filter(pa.array([one == name for one in names], pa.bool_()))
        if not mine.num_rows:
            continue
        keys = _key_names(declared, name)
        missing = [one for one in keys if one not in mine.column_names or mine[one].null_count]
        if missing:
            lacking.append(f"{name!r} hold no {', '.join(missing)}")
        found[name] = mine
    if lacking or not found:
        what = f"the results of {lacking[0]}" if lacking else "no results are recorded"
        raise InputError(
            f"{what}: give --trace EVENTS, or run the stream with carry= of the columns that name "
            "rows, and its results are a trace"
        )
    return found


def _key_names(declared: Found, name: str) -> list[str]:
    if name not in declared.transactions:
        return []
    signature = declared.transactions[name].signature
    return list(dict.fromkeys(one for access in signature.accesses for one in access.columns))


def _with_all_columns(declared: Found, name: str, rows: pa.Table) -> pa.Table:
    """The rows of a trace; an event's columns that it lacks, and that name no row, are zeros."""
    if name not in declared.transactions:
        return rows
    keys = _key_names(declared, name)
    for column in declared.transactions[name].event:
        if column.name not in rows.column_names and column.name not in keys:
            zeros = _zeros(column.type.arrow, rows.num_rows)
            rows = rows.append_column(column.name, zeros)
    return rows


def _zeros(kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_list(kind):
        return pa.array([[]] * count, kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([""] * count, kind)
    bits = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array(np.zeros(count, np.int64)).cast(bits).cast(kind)


def interleaved(given: Mapping[str, pa.Table], events_max: int) -> pa.Table:
    """The events of several transactions as one stream, evenly mixed, with the name of each."""
    if len(given) == 1:
        return next(iter(given.values())).slice(0, events_max)
    share = min(1.0, events_max / max(1, sum(one.num_rows for one in given.values())))
    parts, places = [], []
    for name, rows in given.items():
        some = rows.slice(0, max(1, int(share * rows.num_rows)))
        names = pa.array([name] * some.num_rows, pa.string())
        parts.append(some.append_column(ROUTE, names))
        places.append((np.arange(some.num_rows) + 0.5) / max(1, some.num_rows))
    joined = pa.concat_tables(parts, promote_options="permissive")
    return joined.take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


# --- what is shown --------------------------------------------------------------------------------


def _told(proposal: Proposal) -> Iterable[str]:
    """What the figures mean, in words."""
    trace, verdicts = proposal.trace, proposal.verdicts
    yield (
        f"{len(trace.order):,} events of {', '.join(trace.names)} in "
        f"{_batches(int(trace.batches.max()) + 1)}, over {len(trace.touched.shards):,} rows"
        + (f"; {trace.aside:,} would be rejected" if trace.aside else "")
    )
    best, mine = verdicts[BEST], verdicts[PROPOSED]
    yield (
        f"open it with shards={proposal.design.shards} for {proposal.nodes} nodes: "
        f"{mine.cross:.1%} of the events have rows on several shards, and {mine.travelling:.1%} "
        "travel, with those that hang together with one in their batch"
    )
    if mine.cross > 2 * best.cross + 0.01:
        yield (
            f"METIS finds {best.cross:.1%}: rows that are used together could be together, but no "
            "column of their keys says so. A column for their group, in the keys and in the "
            "events, would. (METIS is judged by the very events that it saw.)"
        )
    if mine.fullest > 1.5:
        yield (
            f"the fullest node has {mine.fullest:.2f} times its part of the load: some rows, or "
            "values of the columns to shard by, have more events than a node should have"
        )


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


def _tables_grid(proposal: Proposal) -> Any:
    sides = {"table": "left", "declare": "left", "now": "left", "rows": "right",
             "looks": "right", "to write": "right"}  # fmt: skip
    grid = make_grid("Tables", sides)
    trace = proposal.trace
    looks = trace.looks()
    for name, table in trace.tables.items():
        now = replace(proposal.design.choices[name], shard_by=table.shard_by,
                      replicate=table.replicate)  # fmt: skip
        rows = max(trace.sizes.get(name, 0), trace.touched.keys[name].count)
        seen, written = looks[name]
        grid.add_row(
            name, proposal.design.choices[name].told(table), now.told(table), f"{rows:,}",
            f"{seen:,}", f"{written / max(1, seen):.0%}",
        )  # fmt: skip
    return grid


def _verdicts_grid(proposal: Proposal) -> Any:
    sides = {"design": "left", "shards": "right", "cross-shard": "right", "travelling": "right",
             "fullest node": "right", "state": "right", "load": "right",
             "cost": "right"}  # fmt: skip
    grid = make_grid(f"Designs on {proposal.nodes} nodes", sides)
    for name, one in proposal.verdicts.items():
        grid.add_row(
            name, str(one.shards), f"{one.cross:.1%}", f"{one.travelling:.1%}",
            f"{one.fullest:.2f}", f"{one.state_cost:.3f}", f"{one.load_cost:.3f}",
            f"{one.cost:.3f}",
        )  # fmt: skip
    return grid


def _flows_grid(flows: Mapping[str, FlowVerdict]) -> Any:
    units = list(next(iter(flows.values())).workers)
    sides = {"dataflow": "left", **dict.fromkeys(units, "right"), "state": "right",
             "queues": "right", "load": "right", "cost": "right"}  # fmt: skip
    grid = make_grid("Nodes to workers", sides)
    for name, one in flows.items():
        grid.add_row(
            name, *(str(one.workers[unit]) for unit in units), f"{one.state_cost:.3f}",
            f"{one.processing_cost:.3f}", f"{one.load_cost:.3f}", f"{one.cost:.3f}",
        )  # fmt: skip
    return grid
