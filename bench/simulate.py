"""The benchmark of the simulation: what it says of one and two cores, beside what they do.

Every strategy runs the same batches of the papers' applications in turn, on one thread and on two;
what it takes at its best is compared with its replay, at costs that were measured just before. More
cores can then be believed as far as these two can. One thread is timed by the processor's clock; of
two threads only those runs count in which both had a core nearly all the time, and where there was
none, because the machine has other work, nothing is said.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

import headgate as hg
from bench.workloads import COST_US, Workload, make_workload
from headgate.cli.studies import measured_units_ns
from headgate.lab.measuring import Spent, measure_thresholds, spend
from headgate.lab.simulation import (
    CORES,
    STRATEGIES,
    PlannedBatch,
    draw_page,
    plan_batch,
    simulate,
    speedups,
    with_units,
)
from headgate.parallel.decision import Thresholds

OUT = Path("bench-out")
APPLICATION_NAMES = ("ledger", "grep_sum", "bidding", "tolls")
CURVE_EVENTS = 10_240  # in the batch of the curves, as the papers have it
THREADS = (1, 2)
UNDISTURBED_SHARE = 0.85
SHOWN_CORES = (8, 64)


@dataclass(frozen=True)
class Row:
    """One strategy on some threads: predicted and measured speed-up over the serial scheme."""

    application: str
    strategy: str
    threads: int
    predicted: float
    measured: float | None  # None: no run was undisturbed

    @property
    def error(self) -> float | None:
        return None if self.measured is None else self.predicted / self.measured - 1


def measure_application(
    workload: Workload,
    rounds: int,
    costs: Thresholds,
    strategies: tuple[str, ...] = STRATEGIES,
) -> tuple[PlannedBatch, dict[tuple[str, int], float | None]]:
    """The planned batch, and the speed-up of each strategy by threads, where it could be seen."""
    runs = [("serial", 1)]
    runs += [(name, count) for name in strategies if name != "serial" for count in THREADS]
    spent: dict[tuple[str, int], list[Spent]] = defaultdict(list)
    with workload.open() as engine:
        for number in range(rounds + 1):  # the first loads the kernels
            events = workload.batch(number)
            for run in runs:
                one = _run(engine, workload, events, *run)
                if number:
                    spent[run].append(one)
        graph = engine.explain(workload.target, events, **workload.options).graph
        results = engine.run(workload.target, events, scheme="serial", **workload.options)
    aborts = sum(one == "aborted" for one in results.column("outcome").to_pylist())
    serial_ns = _quickest_ns(spent["serial", 1], 1) or 0.0
    batch = plan_batch(graph, serial_ns / graph.units.operations, aborts)
    batch = with_units(batch, _units_ns(workload, rounds), costs)
    quickest = {run: _quickest_ns(spent[run], run[1]) for run in runs}
    return batch, {run: ns and serial_ns / ns for run, ns in quickest.items()}


def _units_ns(workload: Workload, rounds: int) -> float:
    """What the units of a batch take on one thread, at their best."""
    with workload.open() as engine:
        return min(
            measured_units_ns(engine, workload.target, workload.batch(number), **workload.options)
            for number in range(min(rounds, 5))
        )


def _quickest_ns(spent: list[Spent], threads: int) -> float | None:
    if threads == 1:
        return float(min(one.processor_ns for one in spent))
    # They work or wait awake, but for the plan and the start: else they did not have their cores.
    seen = [s.wall_ns for s in spent if s.processor_ns > UNDISTURBED_SHARE * threads * s.wall_ns]
    return float(min(seen)) if seen else None


def _run(engine: hg.Engine, workload: Workload, events: object, name: str, threads: int) -> Spent:
    return spend(
        lambda: engine.run(
            workload.target, events, scheme=name, threads=threads, **workload.options
        )
    )


def compare(
    application: str,
    batch: PlannedBatch,
    measured: Mapping[tuple[str, int], float | None],
    costs: Thresholds,
) -> list[Row]:
    return [
        Row(application, name, count, batch.serial_ns / simulate(batch, name, count, costs), speed)
        for (name, count), speed in measured.items()
        if name != "serial"
    ]


def main(quick: bool, out: str | Path = OUT) -> None:
    console, folder = Console(), Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    rounds, events = (5, 1024) if quick else (15, 2048)
    with console.status("measuring what planning, threads and aborts cost here"):
        costs, _ = measure_thresholds(Thresholds())
    console.print(f"{costs}\nload of the machine {os.getloadavg()[0]:.1f}", highlight=False)
    rows: list[Row] = []
    for name in APPLICATION_NAMES:
        workload = make_workload(
            name, cost_us=COST_US, batch_events=events, events=events * (rounds + 1)
        )
        with console.status(f"{name}: every strategy on one thread and on two"):
            batch, measured = measure_application(workload, rounds, costs)
        found = compare(name, batch, measured, costs)
        rows += found
        whole = _usual_batch(workload, batch)
        curves = speedups(whole, costs)
        _write_page(folder / f"simulate-{name}.html", name, whole, curves)
        console.print(_table(name, found, curves))
    _show_errors(console, rows)
    console.print(f"The curves are in {folder}/simulate-*.html")


def _usual_batch(workload: Workload, measured: PlannedBatch) -> PlannedBatch:
    """A batch as long as the papers', with the costs of the measured one; it need not run."""
    longer = workload.vary(batch_events=CURVE_EVENTS, events=CURVE_EVENTS)
    with longer.open() as engine:
        graph = engine.explain(longer.target, longer.batch(0), **longer.options).graph
    operation_ns = measured.serial_ns / len(measured.operations.rows)
    aborts = measured.aborts * CURVE_EVENTS // max(1, measured.operations.units)
    batch = plan_batch(graph, operation_ns, aborts)
    return replace(batch, unit_factor=measured.unit_factor)


def _write_page(path: Path, name: str, batch: PlannedBatch, curves: dict[str, list[float]]) -> None:
    facts = [
        f"{batch.operations.units:,} transactions, {len(batch.operations.rows):,} operations with "
        f"{COST_US:g} µs added to each",
        f"{batch.graph.strata:,} strata of transactions, {batch.unit_tasks.strata:,} of operations",
    ]
    path.write_text(draw_page(f"Simulated: {name}", facts, CORES, curves), encoding="utf-8")


def _table(name: str, found: list[Row], curves: dict[str, list[float]]) -> Table:
    heads = [f"{n} {what}" for n in THREADS for what in ("said", "seen", "error")]
    table = Table("strategy", *heads, *(f"{count} said" for count in SHOWN_CORES), title=name)
    table.columns[0].no_wrap = True
    for strategy in dict.fromkeys(row.strategy for row in found):
        cells = []
        for row in found:
            if row.strategy == strategy:
                cells += [f"{row.predicted:.2f}", *_seen(row)]
        cells += [f"{curves[strategy][CORES.index(count)]:.1f}" for count in SHOWN_CORES]
        table.add_row(strategy, *cells)
    return table


def _seen(row: Row) -> tuple[str, str]:
    if row.measured is None or row.error is None:
        return "", ""
    return f"{row.measured:.2f}", f"{row.error:+.0%}"


def _show_errors(console: Console, rows: list[Row]) -> None:
    for count in THREADS:
        mine = [row.error for row in rows if row.threads == count]
        errors = sorted(abs(error) for error in mine if error is not None)
        strategies, applications = (
            len({getattr(row, part) for row in rows}) for part in ("strategy", "application")
        )
        words = f"{count} thread{'s' * (count > 1)}: {strategies} strategies on {applications} "
        words += f"applications, {len(errors)} of {len(mine)} runs could be seen"
        if errors:
            words += f"; the median error is {median(errors):.1%}, "
            words += f"nine in ten are below {errors[len(errors) * 9 // 10]:.1%}"
        console.print(words)
