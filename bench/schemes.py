"""The benchmark of the schemes: all of them side by side, in one run, over the papers' workloads.

All schemes run each batch in turn, each on an engine of its own, so that a noisy machine is noisy
for all; what counts is the ratio to the serial scheme. A figure is only reported for a scheme whose
results and rows were found equal to the serial ones; `nolock` is the exception, and marked.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from bench.bars import Bar, all_bars, show, standings
from bench.plan_cost import measure_planning
from bench.race import (
    FULL,
    INCORRECT,
    MODEL,
    QUICK,
    SERIAL,
    WARM_ROUNDS,
    Effort,
    Mismatch,
    Point,
    Race,
    Row,
)
from bench.stopwatch import COUNTED, Stopwatch
from bench.workloads import APPLICATIONS, CONTENTION, COST_US, Phase, dynamic_ledger, make_workload
from headgate.parallel.scheme import ABORTS, EXPLORATIONS, SCHEME_NAMES

OUT = Path("bench-out")
APPLICATION_NAMES = ("ledger", "grep_sum", "bidding", "tolls")
STRETCH = 5  # batches in a row where we compare with public figures
PUBLIC_KEYS = 100_000  # rows of each table where we compare with public figures

CHEAPLY = (MODEL, SERIAL, "shares", "ready")
RIVALS = (MODEL, SERIAL, "shares", "ready", "strata-chain-lazy", "ready-operation-eager", "tstream",
          "lal", "lwm", "pat", "nolock")  # fmt: skip
SWEPT = (MODEL, SERIAL, "shares", "strata", "depth", "ready", "strata-chain-lazy",
         "ready-operation-eager", "tstream", "lal", "lwm", "pat", "nolock")  # fmt: skip
QUICKLY_SWEPT = (MODEL, SERIAL, "ready", "strata-chain-lazy", "tstream", "lal", "pat")
TRIPLES = tuple(
    f"{exploration}-{granularity}-{abort}"
    for exploration in EXPLORATIONS
    for granularity in ("operation", "chain")
    for abort in ABORTS
)
EVERY = (MODEL, SERIAL, "shares", *EXPLORATIONS, *TRIPLES, "tstream", "tstream-nothing",
         "tstream-socket", "tstream-static", "lal", "lwm", "pat", "nolock")  # fmt: skip

# What the model may choose where operations are costed, one for each kernel: compiled beforehand.
CHOICES = (*EXPLORATIONS, *(f"{exploration}-operation-lazy" for exploration in EXPLORATIONS))


# --- points: what is measured -----------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """One characteristic that changes from point to point while all others stay."""

    name: str
    application: str
    parameter: str
    values: tuple[float, ...]
    quick_values: tuple[float, ...]
    changes: Callable[[float], dict[str, Any]]


SWEEPS = (
    Sweep("skew", "ledger", "Zipf skew", (0, 0.2, 0.4, 0.6, 0.8, 1.0), (0, 0.8),
          lambda value: {"theta": value}),
    Sweep("aborts", "ledger", "share of aborts", (0, 0.1, 0.3, 0.6, 0.9), (0, 0.6),
          lambda value: {"abort_ratio": value}),
    Sweep("length", "grep_sum", "keys in a list", (1, 2, 4, 8, 16), (1, 4),
          lambda value: {"length": int(value)}),
    Sweep("cost", "ledger", "µs per operation", (0, 1, 3, 10, 30, 100), (1, 30),
          lambda value: {"cost_us": float(value)}),
    Sweep("batch size", "ledger", "events in a batch", (64, 256, 1024, 4096, 16384),
          (64, 1024), lambda value: {"batch_events": int(value)}),
    Sweep("reads", "grep_sum", "share of reading transactions", (0, 0.25, 0.5, 0.75, 1.0),
          (0, 1.0), lambda value: {"mix": (value, 1 - value)}),
)  # fmt: skip


def plan_points(effort: Effort) -> list[Point]:
    """Everything the benchmark measures, in the order of the report."""
    costs = (0.0, COST_US)
    points = [application_point(name, cost, effort) for name in APPLICATION_NAMES for cost in costs]
    points += [throughput_point(name, effort) for name in APPLICATION_NAMES]
    for kind in CONTENTION:
        names = APPLICATION_NAMES[:2] if effort.is_quick and kind == "few" else APPLICATION_NAMES
        points += [contention_point(name, kind, effort) for name in names]
    sweep_costs = (COST_US,) if effort.is_quick else costs
    for sweep in SWEEPS:
        values = sweep.quick_values if effort.is_quick else sweep.values
        for cost in (COST_US,) if sweep.name == "cost" else sweep_costs:
            points += [sweep_point(sweep, value, cost, effort) for value in values]
    points += [threads_point(cost, effort) for cost in sweep_costs]
    points += [dynamic_point(cost, effort) for cost in costs]
    return points


def entrants(cost_us: float, effort: Effort) -> tuple[str, ...]:
    """Who races: all there are; in a quick run a choice, and of cheap operations a small one.

    Compiling takes longest when nothing is in the cache, and where operations are cheap no scheme
    for several threads can win: a quick run does with one of them there.
    """
    if not effort.is_quick:
        return EVERY
    return RIVALS if cost_us > 0 else CHEAPLY


def application_point(name: str, cost_us: float, effort: Effort) -> Point:
    usual = APPLICATIONS[name].defaults.batch_events
    if cost_us > 0 or effort.is_quick:
        usual = min(usual, effort.application_events if cost_us > 0 else 10_240)
    phase = _steady(name, effort, cost_us=cost_us, batch_events=usual)
    threads = (2,) if effort.is_quick and cost_us > 0 else (1, 2)
    return Point("applications", (phase,), threads, entrants(cost_us, effort), effort=effort)


def throughput_point(name: str, effort: Effort) -> Point:
    """What compares with public figures: no added cost, 100,000 keys, batches as they are usual.

    Batches come one after another, as in a stream: what the last one left in the caches is there.
    """
    usual = APPLICATIONS[name].defaults.batch_events
    phase = _steady(name, effort, cost_us=0.0, keys=PUBLIC_KEYS, batch_events=usual)
    schemes = (MODEL, SERIAL)
    return Point("throughput", (phase,), (1, 2), schemes, effort=effort, stretch=STRETCH)


def contention_point(name: str, kind: str, effort: Effort) -> Point:
    """Uniform keys are for the model beside serial alone, with batches as they are usual."""
    changes = CONTENTION[kind]
    events = effort.costed_events
    if kind == "uniform":
        events = effort.uniform_events
    phase = _steady(name, effort, kind, cost_us=COST_US, batch_events=events, **changes)
    schemes = entrants(COST_US, effort)
    if kind == "uniform":
        schemes = (MODEL, SERIAL, "ready", "nolock")
    is_judged = effort.final_rounds > 0
    return Point("contention", (phase,), (2,), schemes, effort=effort, has_final=is_judged)


def sweep_point(sweep: Sweep, value: float, cost_us: float, effort: Effort) -> Point:
    changes = {"cost_us": cost_us, **sweep.changes(value)}
    events = effort.costed_events if changes["cost_us"] > 0 or sweep.name == "cost" else 10_240
    phase = _steady(sweep.application, effort, **{"batch_events": events, **changes})
    schemes = QUICKLY_SWEPT if effort.is_quick else SWEPT
    return Point(sweep.name, (phase,), (2,), schemes, sweep.parameter, float(value), effort)


def threads_point(cost_us: float, effort: Effort) -> Point:
    events = effort.costed_events if cost_us > 0 else 10_240
    phase = _steady("ledger", effort, cost_us=cost_us, batch_events=events)
    schemes = (MODEL, SERIAL, "ready", "lal", "pat") if effort.is_quick else SWEPT
    return Point("threads", (phase,), (1, 2, 4), schemes, "threads", effort=effort)


def dynamic_point(cost_us: float, effort: Effort) -> Point:
    events = effort.costed_events if cost_us > 0 else 10_240
    phases = dynamic_ledger(effort.phase_batches, cost_us=cost_us, batch_events=events)
    threads = (2,) if effort.is_quick and cost_us > 0 else (1, 2)
    return Point("dynamic", phases, threads, entrants(cost_us, effort), effort=effort)


def _steady(name: str, effort: Effort, phase: str = "", **changes: Any) -> Phase:
    """A workload that stays as it is, with as many batches as may be needed."""
    batches = WARM_ROUNDS + effort.rounds_max + effort.final_rounds + effort.counted_rounds
    workload = make_workload(name, **changes)
    return Phase(phase, "", workload.vary(events=batches * workload.parameters.batch_events))


# --- the whole run ----------------------------------------------------------------------------


def measure_points(
    points: Sequence[Point], tell: Callable[[str], Any] = print
) -> tuple[list[Row], list[str]]:
    """The rows of all points, and the functions that could not be timed."""
    rows: list[Row] = []
    with Stopwatch() as watch:
        for point in points:
            tell(point.title)
            with Race(point, watch) as race:
                rows += race.run()
        return rows, watch.missing


def measure_apart(effort: Effort) -> tuple[list[Row], list[Row]]:
    """What compares with public figures, and what planning costs: for a process of its own.

    Beside a hundred engines memory is slower than a user's would be.
    """
    points = [throughput_point(name, effort) for name in APPLICATION_NAMES]
    rows, _ = measure_points(points, lambda words: None)
    return rows, measure_planning(effort.plan_repeats)


def apart(function: Callable[..., Any], *given: Any) -> Any:
    """Call it in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def lower(one: Sequence[Row], other: Sequence[Row]) -> list[Row]:
    """What planning cost at the better of two moments: this machine has slow ones."""
    pairs = zip(one, other, strict=True)
    return [first if first["ns"] <= second["ns"] else second for first, second in pairs]


def kernels_needed(points: Sequence[Point]) -> dict[tuple[str, bool], tuple[str, ...]]:
    """By application and form of its transactions: the schemes that run them."""
    needed: dict[tuple[str, bool], tuple[str, ...]] = {}
    for point in points:
        program = (point.workload.name, point.cost_us > 0)
        more = CHOICES if point.cost_us > 0 else ()
        needed[program] = tuple(dict.fromkeys((*needed.get(program, ()), *point.schemes, *more)))
    return needed


def compile_kernels(name: str, is_costed: bool, schemes: Sequence[str]) -> str:
    """Compile one program's kernels into the cache, or find them there; says what it did."""
    cost = {"cost_us": 1.0, "steps_per_us": 1.0} if is_costed else {"cost_us": 0.0}
    small = make_workload(name, keys=100, events=64, batch_events=64, **cost)
    with small.open() as engine:
        for scheme in schemes:
            engine.run(small.target, small.batch(0), scheme=scheme, threads=2, **small.options)
    return f"{name}, {'costed' if is_costed else 'cheap'}"


def compile_all(points: Sequence[Point]) -> Iterator[str]:
    """Compile what the points need, a process for each core; the dearest programs come first."""
    needed = kernels_needed(points)
    dearest = sorted(needed.items(), key=lambda item: (-len(item[1]), item[0][0] != "bidding"))
    fresh = multiprocessing.get_context("spawn")
    workers = max(1, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, mp_context=fresh) as pool:
        jobs = [pool.submit(compile_kernels, *program, names) for program, names in dearest]
        for job in as_completed(jobs):
            yield job.result()


def machine_facts() -> dict[str, str]:
    """What the figures depend on, besides the code."""
    packages = {name: importlib.import_module(name) for name in ("numba", "numpy", "pyarrow")}
    versions = ", ".join(f"{name} {found.__version__}" for name, found in packages.items())
    return {
        "when": time.strftime("%Y-%m-%d %H:%M %Z"),
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "load before": f"{os.getloadavg()[0]:.1f} processes (1 minute)",
        "system": f"{platform.system()} {platform.machine()}",
        "versions": f"Headgate {hg.__version__}, Python {platform.python_version()}, {versions}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else "unknown"


def scheme_words(name: str) -> str:
    """What a scheme is, by the words of its name."""
    first, *more = name.split("-")
    said = SCHEME_NAMES.get(first, "")
    meanings = {
        "operation": "one operation at once", "chain": "a row's chain at once",
        "eager": "aborts are settled at once", "lazy": "aborts are settled at the end",
        "nothing": "each thread its own chains", "socket": "a pool for each socket",
        "static": "chains are shared out beforehand",
    }  # fmt: skip
    return "; ".join([said, *(meanings.get(word, word) for word in more)])


def write(
    folder: Path, rows: Sequence[Row], planned: Sequence[Row], facts: Mapping[str, str]
) -> tuple[Path, Path]:
    """The measurements as Parquet and the report over them as HTML."""
    from bench.report import render

    folder.mkdir(parents=True, exist_ok=True)
    measured, report = folder / "schemes.parquet", folder / "schemes.html"
    described = {"facts": json.dumps(dict(facts))}
    pq.write_table(_as_table(rows).replace_schema_metadata(described), measured)
    plan = pa.Table.from_pylist(list(planned)).replace_schema_metadata(described)
    pq.write_table(plan, folder / "planning.parquet")
    words = {name: scheme_words(name) for name in dict.fromkeys(row["scheme"] for row in rows)}
    report.write_text(render(rows, planned, facts, words, INCORRECT), encoding="utf-8")
    return measured, report


def _as_table(rows: Sequence[Row]) -> pa.Table:
    """As Arrow; what no batch counted is still a column of numbers."""
    table = pa.Table.from_pylist(list(rows))
    for name in (f"{part}_s" for part in COUNTED):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(pa.float64()))
    return table


def tell_bars(bars: Sequence[Bar], rows: Sequence[Row]) -> Iterator[str]:
    """The bars as lines of text, and the order of the schemes under contention."""
    group = ""
    for bar in bars:
        if bar.group != group:
            group = bar.group
            yield group
        remark = f" ({bar.remark})" if bar.remark else ""
        yield f"  {bar.verdict:8} {show(bar.found):>8}  {bar.limit_words}: {bar.words}{remark}"
    found = standings(rows)
    if found:
        yield "order of the schemes under contention"
        yield from (f"  {standing.words}" for standing in found)


def main(quick: bool, out: str | Path | None = None) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    began, facts, effort = time.perf_counter(), machine_facts(), QUICK if quick else FULL
    points = plan_points(effort)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns) as progress:
        task = progress.add_task("kernels", total=len(kernels_needed(points)))
        for words in compile_all(points):
            progress.update(task, description=f"kernels: {words}", advance=1)
        compiled_s = time.perf_counter() - began
        together = [point for point in points if point.section != "throughput"]
        race = progress.add_task("throughput and planning", total=len(together) + 2)
        try:
            alone, planned = apart(measure_apart, effort)
            progress.update(race, advance=1)
            rows, missing = measure_points(
                together, lambda words: progress.update(race, description=words, advance=1)
            )
        except Mismatch as wrong:
            raise SystemExit(f"not equal to the serial scheme: {wrong}") from wrong
        progress.update(race, description="planning", advance=1)
        planned = lower(planned, apart(measure_planning, effort.plan_repeats))
        rows = [*alone, *rows]
    took_s = time.perf_counter() - began
    facts |= {"command": f"./run bench schemes{' --quick' * quick}"}
    facts |= {"took": f"{took_s:.0f} s, {compiled_s:.0f} s of them to compile or load kernels"}
    if missing:
        facts |= {"not timed apart": ", ".join(missing)}
    measured, report = write(Path(out or OUT), rows, planned, facts)
    console = Console(highlight=False)
    for line in tell_bars(all_bars(rows, planned, INCORRECT), rows):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{len(rows)} measurements in {took_s:.0f} s: {report} and {measured}")
