"""Studies: `headgate simulate`, a batch on more cores than there are, and `headgate calibrate`.

The user's engine is only read: what must run to be measured runs in a copy of its rows in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from headgate.cli.output import make_console, make_grid
from headgate.engine.engine import Engine, open_engine
from headgate.errors import InputError
from headgate.io import reason_of
from headgate.lab.measuring import measure_thresholds
from headgate.lab.simulation import (
    CORES,
    PlannedBatch,
    draw_page,
    plan_batch,
    speedups,
    with_units,
)
from headgate.parallel.decision import (
    Thresholds,
    calibration_path,
    check_place,
    load_thresholds,
    save_thresholds,
)
from headgate.parallel.precedence import Units
from headgate.state.compiled import cache_folder
from headgate.transactions import Transaction
from headgate.web.target import open_program

SHOWN_CORES = (1, 2, 4, 8, 16, 32, 64)
UNITS = "ready-operation-eager"  # what an abort undoes, and runs again, is least
READERS = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
    ".arrow": "",  # read by Arrow itself, as a file or a stream
    ".feather": "",
}


@dataclass(frozen=True)
class Request:
    """What to simulate: the engine, its events, and how they are run."""

    app: str
    events: Path
    transaction: str | None
    route_by: str | None
    routes: Sequence[str]  # each as "value=transaction"
    order_by: Sequence[str]
    batch_events: int
    cost_ns: float | None  # of one operation; None: as measured


@dataclass(frozen=True)
class Simulated:
    """What came out: for each strategy its speed-up by cores."""

    batch: PlannedBatch
    operation_ns: float
    costs: Thresholds
    cores: tuple[int, ...]
    speedups: Mapping[str, Sequence[float]]

    def facts(self) -> list[str]:
        """In words what was replayed, and with which costs."""
        figures, costs = self.batch, self.costs
        return [
            f"{figures.operations.units:,} transactions, {len(figures.operations.rows):,} "
            f"operations of {self.operation_ns:,.0f} ns, {figures.aborts:,} aborts",
            f"{figures.graph.strata:,} strata of transactions, {figures.unit_tasks.strata:,} of "
            f"operations; one after another {figures.serial_ns / 1e6:,.2f} ms",
            f"costs: plan {costs.plan_ns_per_operation:.0f} and "
            f"{costs.unit_plan_ns_per_operation:.0f} ns an operation, version "
            f"{costs.version_ns_per_operation:.0f} ns, signal {costs.signal_ns:.0f} ns, barrier "
            f"{costs.barrier_ns / 1e3:.1f} µs, thread {costs.start_ns / 1e3:.0f} µs, abort "
            f"{costs.abort_ns / 1e3:.1f} µs; by shares {costs.share_ns_per_operation:.0f} ns an "
            f"operation, {costs.share_start_ns / 1e3:.0f} µs to start, {costs.thread_ns / 1e3:.0f} "
            "µs for each further thread",
        ]


def check_out(out: Path) -> None:
    """Refuse a page that could not be written, before anything is computed for it."""
    if out.is_dir() or not out.parent.is_dir():
        why = "is a folder" if out.is_dir() else f"would be in {out.parent}, which is no folder"
        raise InputError(f"--out {out} {why}: name a file in a folder that is there")


def write_page(out: Path, text: str) -> None:
    """Write the page that `--out` names."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {reason_of(error)}") from error


def run_simulation(request: Request, cores_max: int, out: Path) -> None:
    """Simulate, show the table, and write the page with the curves."""
    check_out(out)
    events = read_events(request.events).slice(0, request.batch_events)
    if not events.num_rows:
        raise InputError(f"{request.events} has no events")
    status = make_console().status("a copy runs the events, then they are replayed on more cores")
    with status, open_program(request.app) as engine:
        found = simulate_events(engine, events, request, cores_max)
    title = f"Simulated: {request.app}"
    write_page(out, draw_page(title, found.facts(), found.cores, found.speedups))
    show(found)
    make_console().print(f"The curves are in {out}")


def simulate_events(
    engine: Engine, events: pa.Table, request: Request, cores_max: int
) -> Simulated:
    """Plan one batch in a copy of the engine, measure it, and replay it."""
    chosen = choose_transaction(engine, events, request)
    options: dict[str, Any] = {"order_by": list(request.order_by) or None}
    options["route_by"] = request.route_by
    costs = load_thresholds(cache_folder())
    with copy_engine(engine) as copy:
        graph = copy.explain(chosen, events, **options).graph
        if not graph.units.operations:
            raise InputError("these events touch no row: there is nothing to simulate")
        measured = copy.run(chosen, events, scheme="serial", **options)
        aborts = sum(one == "aborted" for one in measured.column("outcome").to_pylist())
        cost_ns = request.cost_ns or measured_cost_ns(copy, graph.units)
    batch = plan_batch(graph, cost_ns, aborts)
    if request.cost_ns is None:
        with copy_engine(engine) as copy:
            batch = with_units(batch, measured_units_ns(copy, chosen, events, **options), costs)
    cores = (*(count for count in CORES if count < cores_max), cores_max)
    return Simulated(batch, cost_ns, costs, cores, speedups(batch, costs, cores))


def copy_engine(engine: Engine) -> Engine:
    """The same tables and transactions in memory, with the rows as they are now."""
    copy = open_engine(None, engine.tables.values(), engine.transactions.values())
    for name in engine.tables:
        quoted = name.replace('"', '""')
        copy.load(name, engine.sql(f'select * from "{quoted}"').arrow())
    return copy


def measured_cost_ns(engine: Engine, units: Units) -> float:
    """What one operation took in the batch that this engine has run, and in no other."""
    schedulers = [executor.scheduler for executor in engine._executors.values()]
    known = [scheduler.cost_ns for scheduler in schedulers if scheduler.cost_ns]
    if not known:
        raise InputError("so few events say little of what an operation costs: give --cost-ns")
    return known[0] * units.transactions / units.operations


def measured_units_ns(engine: Engine, chosen: Any, events: pa.Table, **options: Any) -> float:
    """What all units of a batch take on one thread, which an engine runs for it."""
    few = events.slice(0, 1)  # loads the kernels, and makes the program whose threads shall count
    engine.run(chosen, few, scheme=UNITS, threads=1, **options)
    schedulers = [executor.scheduler for executor in engine._executors.values()]
    for scheduler in schedulers:
        scheduler.is_timed = True
    engine.run(chosen, events, scheme=UNITS, threads=1, **options)
    counted = [scheduler.breakdown for scheduler in schedulers if scheduler.breakdown]
    return sum(found["useful"] for found in counted) * 1e9


# --- what the user named ------------------------------------------------------------------------


def read_events(path: Path) -> pa.Table:
    """The events of a Parquet, Arrow, CSV or JSON file."""
    if not path.exists():
        raise InputError(f"there is no file {path}")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: events come in {', '.join(READERS)} files")
    if not reader:
        return _read_arrow(path)
    connection = duckdb.connect()
    try:
        connection.execute("set timezone = 'UTC'")
        found = connection.sql(f"select * from {reader}(?)", params=[str(path)]).to_arrow_table()
    except duckdb.Error as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    finally:
        connection.close()
    return found


def _read_arrow(path: Path) -> pa.Table:
    for opened in (pa.ipc.open_file, pa.ipc.open_stream):
        with contextlib.suppress(pa.ArrowInvalid):
            return opened(path.read_bytes()).read_all()
    raise InputError(f"{path} cannot be read: it is no Arrow file and no Arrow stream")


def choose_transaction(
    engine: Engine, events: pa.Table, request: Request
) -> Transaction | dict[Any, Transaction]:
    """The transaction, or those that a column tells apart: by their names, if nothing is said."""
    if request.route_by is None:
        if request.transaction is None and len(engine.transactions) != 1:
            names = ", ".join(engine.transactions)
            raise InputError(
                f"which transaction? Give --transaction or --route-by; there are: {names}"
            )
        return _named(engine, request.transaction or next(iter(engine.transactions)))
    if request.route_by not in events.column_names:
        raise InputError(f"the events have no column {request.route_by!r} to route by")
    is_whole = pa.types.is_integer(events.schema.field(request.route_by).type)
    pairs = [_route(one) for one in request.routes] or [(one, one) for one in engine.transactions]
    return {int(value) if is_whole else value: _named(engine, name) for value, name in pairs}


def _route(text: str) -> tuple[str, str]:
    value, sign, name = text.partition("=")
    if not sign:
        raise InputError(f"--route is value=transaction, not {text!r}")
    return value, name


def _named(engine: Engine, name: str) -> Transaction:
    if name not in engine.transactions:
        known = ", ".join(engine.transactions)
        raise InputError(f"no transaction {name!r} in this engine; there are: {known}")
    found: Transaction = engine.transactions[name]
    return found


# --- what is shown ------------------------------------------------------------------------------


def show(found: Simulated) -> None:
    """The speed-ups as a table, the best of the most cores first."""
    console = make_console()
    for fact in found.facts():
        console.print(fact)
    places = [place for place, count in enumerate(found.cores)
              if count in SHOWN_CORES or place == len(found.cores) - 1]  # fmt: skip
    sides = {"strategy": "left", **{str(found.cores[place]): "right" for place in places}}
    grid = make_grid("Speed-up by cores", sides)
    for name, line in sorted(found.speedups.items(), key=lambda item: -item[1][-1]):
        grid.add_row(name, *(f"{line[place]:.2f}" for place in places))
    console.print(grid)


# --- `headgate calibrate` -------------------------------------------------------------------------
# How it is measured is in lab/measuring.py; who uses it, in parallel/decision.py.


def run_calibration(seconds: float) -> None:
    """Measure, keep the costs, and show them beside those that held before."""
    path = calibration_path(cache_folder())
    check_place(path)
    before = load_thresholds(cache_folder())
    console = make_console()
    with console.status("measuring planning, threads, barriers, signals, versions and aborts"):
        measured, was_busy = measure_thresholds(before, seconds)
    save_thresholds(measured, path)
    sides = {"cost": "left", "before": "right", "now": "right"}
    grid = make_grid("Costs in nanoseconds", sides)
    for field in fields(Thresholds):
        old, new = getattr(before, field.name), getattr(measured, field.name)
        grid.add_row(field.name, f"{old:,.6g}", f"{new:,.6g}")
    console.print(grid)
    console.print(f"Kept in {path}; engines of new processes use it")
    if was_busy:
        console.print(
            "Other programs held the cores, so the costs of threads stay as they were: "
            "try again when the machine is idle"
        )
