"""The benchmark of the schemes: all of them side by side, in one run, over the papers' workloads.

All schemes run each batch in turn, each on an engine of its own, so that a noisy machine is noisy
for all; what counts is the ratio to the serial scheme. A figure is only reported for a scheme whose
results and rows were found equal to the serial ones; `nolock` is the exception, and marked.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from bench.workloads import APPLICATIONS, Phase, Workload, dynamic_ledger, make_workload
from headgate.execution.scheme import SCHEME_NAMES

OUT = Path("bench-out")
MODEL, SERIAL = "auto", "serial"
INCORRECT = frozenset({"nolock"})  # on purpose: a bound for speed
APPLICATION_NAMES = ("ledger", "grep_sum", "bidding", "tolls")
COST_US = 10.0
WARM_ROUNDS = 2  # the first loads the kernels, by the second the model knows the cost

Row = dict[str, Any]


# --- the stopwatch ----------------------------------------------------------------------------

# What is timed, and as which part of a batch; time inside a nested call counts for that call alone.
WATCHED = (
    ("headgate.inlet:Arranger.arrange", "order"),
    ("headgate.execution.program:Program.resolve", "resolve"),
    ("headgate.execution.scheme:_Crew.decide", "plan"),
    ("headgate.execution.scheme:_Crew._arguments", "plan"),
    ("headgate.execution.program:Program.execute", "execute"),
    ("headgate.engine:build_results", "results"),
)
PARTS = ("order", "resolve", "plan", "execute", "results", "rest")


class Stopwatch:
    """Times the parts of a batch from outside, by standing in for the functions that do them."""

    def __init__(self) -> None:
        self.missing: list[str] = []  # what the engine no longer has: counted with what calls it
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._open = ["rest"]
        self._mark = 0.0
        self._undo = ExitStack()

    def __enter__(self) -> Stopwatch:
        for path, part in WATCHED:
            owner, name = _owner(path)
            found = getattr(owner, name, None)
            if found is None:
                self.missing.append(path)
                continue
            self._undo.callback(setattr, owner, name, found)
            setattr(owner, name, self._timed(found, part))
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            self._charge()
            self._open.append(part)
            try:
                return function(*arguments, **options)
            finally:
                self._charge()
                self._open.pop()

        return timed

    def _charge(self) -> None:
        now = time.perf_counter()
        self._spent[self._open[-1]] += now - self._mark
        self._mark = now

    def measure(self, action: Callable[[], Any]) -> tuple[Any, float, dict[str, float]]:
        """What the action gave, its seconds, and those of each part."""
        self._spent = dict.fromkeys(PARTS, 0.0)
        began = self._mark = time.perf_counter()
        result = action()
        self._charge()
        return result, self._mark - began, dict(self._spent)


def _owner(path: str) -> tuple[Any, str]:
    """The module or class that holds a function, and the function's name in it."""
    module, _, name = path.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for step in outer:
        owner = getattr(owner, step, None)
    return owner, last


# --- points: what is measured -----------------------------------------------------------------


@dataclass(frozen=True)
class Effort:
    """How much is measured: a point ends at its most rounds, or at its time after the least."""

    rounds_min: int
    rounds_max: int
    seconds: float
    phase_batches: int
    costed_events: int  # in a batch of costed operations, in the sweeps and phases
    application_events: int  # the same for the applications
    is_quick: bool


FULL = Effort(5, 40, 8.0, 16, 2_048, 10_240, is_quick=False)
QUICK = Effort(3, 12, 1.0, 4, 512, 1_024, is_quick=True)


@dataclass(frozen=True)
class Point:
    """One race of all schemes: phases that one set of engines runs one after another."""

    section: str
    phases: tuple[Phase, ...]
    threads: tuple[int, ...]
    parameter: str = ""
    value: float = 0.0
    effort: Effort = FULL

    @property
    def workload(self) -> Workload:
        return self.phases[0].workload

    @property
    def cost_us(self) -> float:
        return self.workload.parameters.cost_us

    @property
    def title(self) -> str:
        setting = f" {self.parameter} {self.value:g}" if self.parameter else ""
        return f"{self.section}: {self.workload.name}{setting}, {self.cost_us:g} µs"


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
    Sweep("skew", "ledger", "Zipf skew", (0, 0.2, 0.4, 0.6, 0.8, 1.0), (0, 0.6, 1.0),
          lambda value: {"theta": value}),
    Sweep("aborts", "ledger", "share of aborts", (0, 0.1, 0.3, 0.6, 0.9), (0, 0.3, 0.9),
          lambda value: {"abort_ratio": value}),
    Sweep("length", "grep_sum", "keys in a list", (1, 2, 4, 8, 16), (1, 4, 8),
          lambda value: {"length": int(value)}),
    Sweep("cost", "ledger", "µs per operation", (0, 1, 3, 10, 30, 100), (0, 1, 10),
          lambda value: {"cost_us": float(value)}),
    Sweep("batch size", "ledger", "events in a batch", (64, 256, 1024, 4096, 16384),
          (64, 256, 1024), lambda value: {"batch_events": int(value)}),
    Sweep("reads", "grep_sum", "share of reading transactions", (0, 0.25, 0.5, 0.75, 1.0),
          (0, 0.5, 1.0), lambda value: {"mix": (value, 1 - value)}),
)  # fmt: skip


def plan_points(effort: Effort) -> list[Point]:
    """Everything the benchmark measures, in the order of the report."""
    costs = (0.0, COST_US)
    sweep_costs = (COST_US,) if effort.is_quick else costs
    points = [application_point(name, cost, effort) for name in APPLICATION_NAMES for cost in costs]
    for sweep in SWEEPS:
        values = sweep.quick_values if effort.is_quick else sweep.values
        for cost in (COST_US,) if sweep.name == "cost" else sweep_costs:
            points += [sweep_point(sweep, value, cost, effort) for value in values]
    points += [threads_point(cost, effort) for cost in sweep_costs]
    points += [dynamic_point(cost, effort) for cost in costs]
    return points


def application_point(name: str, cost_us: float, effort: Effort) -> Point:
    usual = APPLICATIONS[name].defaults.batch_events
    if cost_us > 0 or effort.is_quick:
        usual = min(usual, effort.application_events if cost_us > 0 else 10_240)
    phase = _steady(name, effort, cost_us=cost_us, batch_events=usual)
    return Point("applications", (phase,), (1, 2), effort=effort)


def sweep_point(sweep: Sweep, value: float, cost_us: float, effort: Effort) -> Point:
    changes = {"cost_us": cost_us, **sweep.changes(value)}
    events = effort.costed_events if changes["cost_us"] > 0 or sweep.name == "cost" else 10_240
    phase = _steady(sweep.application, effort, **{"batch_events": events, **changes})
    return Point(sweep.name, (phase,), (2,), sweep.parameter, float(value), effort)


def threads_point(cost_us: float, effort: Effort) -> Point:
    events = effort.costed_events if cost_us > 0 else 10_240
    phase = _steady("ledger", effort, cost_us=cost_us, batch_events=events)
    return Point("threads", (phase,), (1, 2, 4), "threads", effort=effort)


def dynamic_point(cost_us: float, effort: Effort) -> Point:
    events = effort.costed_events if cost_us > 0 else 10_240
    phases = dynamic_ledger(effort.phase_batches, cost_us=cost_us, batch_events=events)
    return Point("dynamic", phases, (1, 2), effort=effort)


def _steady(name: str, effort: Effort, **changes: Any) -> Phase:
    """A workload that stays as it is, with as many batches as may be needed."""
    batches = WARM_ROUNDS + effort.rounds_max
    workload = make_workload(name, **changes)
    return Phase("", "", workload.vary(events=batches * workload.parameters.batch_events))


# --- the race ---------------------------------------------------------------------------------


class Mismatch(Exception):
    """A scheme gave other results than the serial one: a bug, and no figure is worth having."""


@dataclass(frozen=True)
class Contestant:
    scheme: str
    threads: int

    def __str__(self) -> str:
        return f"{self.scheme} on {self.threads} thread{'s' * (self.threads > 1)}"


REFERENCE = Contestant(SERIAL, 1)


def contestants(names: Sequence[str], threads: Sequence[int]) -> list[Contestant]:
    """The serial scheme first, then every other one with each number of threads."""
    others = [Contestant(name, count) for name in names if name != SERIAL for count in threads]
    return [REFERENCE, *others]


class Race:
    """The engines of one point; every batch goes through all of them in turn."""

    def __init__(self, point: Point, names: Sequence[str], watch: Stopwatch) -> None:
        self.point, self.watch = point, watch
        self.entered = contestants(names, point.threads)
        self._opened = ExitStack()
        self.engines: dict[Contestant, hg.Engine] = {}

    def __enter__(self) -> Race:
        for one in self.entered:
            self.engines[one] = self._opened.enter_context(self.point.workload.open())
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def run(self) -> list[Row]:
        """One row a batch and contestant, the warm ones too."""
        rows: list[Row] = []
        effort = self.point.effort
        is_dynamic = len(self.point.phases) > 1
        for number, phase in enumerate(self.point.phases):
            began = time.perf_counter()
            for batch in range(phase.workload.batch_count):
                is_over = time.perf_counter() - began > effort.seconds
                if not is_dynamic and is_over and batch >= WARM_ROUNDS + effort.rounds_min:
                    break
                is_warm = number == 0 and batch < WARM_ROUNDS
                rows += self._round(phase, batch, is_warm)
        self._check_rows()
        return rows

    def _round(self, phase: Phase, batch: int, is_warm: bool) -> list[Row]:
        """The batch through every engine; who begins changes from round to round."""
        events = phase.workload.batch(batch)
        graph = self._graph(phase.workload, events)
        shift = batch % len(self.entered)
        done = {one: self._turn(one, phase.workload, events)
                for one in (*self.entered[shift:], *self.entered[:shift])}  # fmt: skip
        expected = plain(done[REFERENCE][0])
        rows = []
        for one in self.entered:
            results, timing = done[one]
            found = self._difference(one, results, expected, phase, batch)
            rows.append(
                {
                    **self._setting(one, phase), "batch": batch, "is_warm": is_warm,
                    "events": events.num_rows, **timing, "is_equal": found is None, "graph": graph,
                }
            )  # fmt: skip
        return rows

    def _turn(self, one: Contestant, workload: Workload, events: pa.Table) -> tuple[pa.Table, Row]:
        engine = self.engines[one]
        before = engine.decisions()
        results, seconds, parts = self.watch.measure(
            lambda: engine.run(
                workload.target, events, scheme=one.scheme, threads=one.threads, **workload.options
            )
        )
        known = {id(decision) for decision in before}
        made = [decision for decision in engine.decisions() if id(decision) not in known]
        timing = {"seconds": seconds, **{f"{part}_s": spent for part, spent in parts.items()}}
        timing["decision"] = " + ".join(decision.scheme for decision in made)
        timing["why"] = "; ".join(decision.why for decision in made)
        return results, timing

    def _setting(self, one: Contestant, phase: Phase) -> Row:
        point = self.point
        value = float(one.threads) if point.section == "threads" else point.value
        return {
            "section": point.section, "application": phase.workload.name, "cost_us": point.cost_us,
            "parameter": point.parameter, "value": value, "phase": phase.name,
            "scheme": one.scheme, "threads": one.threads,
        }  # fmt: skip

    def _graph(self, workload: Workload, events: pa.Table) -> str:
        figures = self.engines[REFERENCE].explain(workload.target, events, **workload.options)
        return json.dumps(asdict(figures))

    def _difference(
        self, one: Contestant, results: pa.Table, expected: pa.Table, phase: Phase, batch: int
    ) -> str | None:
        found = difference(plain(results), expected)
        if found is not None and one.scheme not in INCORRECT:
            where = f"{self.point.title} {phase.name}".strip()
            raise Mismatch(f"{where}: batch {batch} by {one}: {found}")
        return found

    def _check_rows(self) -> None:
        """After the last batch all tables are the same, too."""
        for table in self.point.workload.tables:
            query = f'select * from "{table.name}"'
            expected = self.engines[REFERENCE].sql(query).arrow()
            for one in self.entered:
                if one.scheme in INCORRECT:
                    continue
                rows = self.engines[one].sql(query).arrow()
                if rows.equals(expected):
                    continue
                by_key = [(name, "ascending") for name in table.key]  # their places do not matter
                found = difference(rows.sort_by(by_key), expected.sort_by(by_key))
                if found is not None:
                    raise Mismatch(f"{self.point.title}: table {table.name} by {one}: {found}")


def plain(results: pa.Table) -> pa.Table:
    """The same with texts in place of dictionaries, which may be numbered differently."""
    columns = {}
    for field, column in zip(results.schema, results.columns, strict=True):
        is_coded = pa.types.is_dictionary(field.type)
        columns[field.name] = column.cast(field.type.value_type) if is_coded else column
    return pa.table(columns)


def difference(found: pa.Table, expected: pa.Table) -> str | None:
    """The first difference in words, or None."""
    if found.equals(expected):
        return None
    if found.schema != expected.schema or len(found) != len(expected):
        return f"{len(found)} rows of {found.schema.names}, serial has {len(expected)}"
    for name in expected.schema.names:
        pairs = zip(found[name].to_pylist(), expected[name].to_pylist(), strict=True)
        for place, (mine, serial) in enumerate(pairs):
            if mine != serial:
                return f"{name} of row {place} is {mine!r}, serial has {serial!r}"
    return "they differ"


# --- figures ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """What one scheme did with one number of threads at one point."""

    scheme: str
    threads: int
    value: float
    batches: int
    ratio: float  # of its throughput to that of the serial scheme in the same rounds
    thousand_per_s: float
    median_ms: float
    p99_ms: float
    parts_us: Mapping[str, float]  # per event, medians
    useful: float  # share of the execution's thread time that the serial scheme needs, too
    is_equal: bool

    @property
    def name(self) -> str:
        return self.scheme if self.scheme == SERIAL else f"{self.scheme} ×{self.threads}"


def figures(rows: Iterable[Row]) -> list[Figure]:
    """One figure a contestant of one race; warm batches do not count."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if not row["is_warm"]:
            found[row["scheme"], row["threads"]].append(row)
    serial = found.get((SERIAL, 1), [])
    return [_figure(mine, serial) for mine in found.values()] if serial else []


def _figure(mine: Sequence[Row], serial: Sequence[Row]) -> Figure:
    first = mine[0]
    seconds = [row["seconds"] for row in mine]
    each = {part: median(row[f"{part}_s"] / row["events"] for row in mine) * 1e6 for part in PARTS}
    execute_s = median(row["execute_s"] * _threads_used(row) for row in mine)
    return Figure(
        scheme=first["scheme"],
        threads=first["threads"],
        value=first["value"],
        batches=len(mine),
        ratio=median(row["seconds"] for row in serial) / median(seconds),
        thousand_per_s=median(row["events"] / row["seconds"] for row in mine) / 1e3,
        median_ms=median(seconds) * 1e3,
        p99_ms=float(np.percentile(seconds, 99)) * 1e3,
        parts_us=each,
        useful=min(1.0, median(row["execute_s"] for row in serial) / execute_s),
        is_equal=all(row["is_equal"] for row in mine),
    )


def _threads_used(row: Row) -> int:
    return 1 if row["decision"] == SERIAL else row["threads"]


def split(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by the values of some columns, in the order in which these first come."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns)].append(row)
    return found


def model_ratio(
    found: Sequence[Figure], incorrect: Iterable[str], threads: int
) -> tuple[float, Figure] | None:
    """The model's throughput over that of the best fixed scheme with these threads, and which."""
    able = [one for one in found if one.threads == threads or one.scheme == SERIAL]
    model = [one for one in able if one.scheme == MODEL]
    fixed = [one for one in able if one.scheme not in (MODEL, *incorrect)]
    if not model or not fixed:
        return None
    best = max(fixed, key=lambda one: one.ratio)
    return model[0].ratio / best.ratio, best


# --- the whole run ----------------------------------------------------------------------------


def measure_points(
    points: Sequence[Point], names: Sequence[str], tell: Callable[[str], Any] = print
) -> tuple[list[Row], list[str]]:
    """The rows of all points, and the functions that could not be timed."""
    rows: list[Row] = []
    with Stopwatch() as watch:
        for point in points:
            tell(point.title)
            with Race(point, names, watch) as race:
                rows += race.run()
        return rows, watch.missing


def compile_kernels(points: Sequence[Point], names: Sequence[str]) -> Iterator[str]:
    """Compile what the points need, or load it from the cache; says what comes next."""
    programs = {(point.workload.name, point.cost_us > 0): point for point in points}
    for (application, is_costed), point in programs.items():
        small = point.workload.vary(keys=100, events=64, batch_events=64)
        with small.open() as engine:
            for name in names:
                yield f"{application}, {'costed' if is_costed else 'cheap'}: {name}"
                engine.run(small.target, small.batch(0), scheme=name, threads=2, **small.options)


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


def write(
    folder: Path, rows: Sequence[Row], facts: Mapping[str, str], names: Sequence[str]
) -> tuple[Path, Path]:
    """The measurements as Parquet and the report over them as HTML."""
    from bench.report import render

    folder.mkdir(parents=True, exist_ok=True)
    measured, report = folder / "schemes.parquet", folder / "schemes.html"
    table = pa.Table.from_pylist(list(rows))
    table = table.replace_schema_metadata({"facts": json.dumps(dict(facts))})
    pq.write_table(table, measured)
    words = {name: SCHEME_NAMES.get(name, "") for name in names}
    report.write_text(render(rows, facts, words, INCORRECT), encoding="utf-8")
    return measured, report


def main(quick: bool, out: str | Path | None = None) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    began = time.perf_counter()
    facts = machine_facts()
    points, names = plan_points(QUICK if quick else FULL), list(SCHEME_NAMES)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Elapsed())
    with Progress(*columns) as progress:
        kernels = len({(point.workload.name, point.cost_us > 0) for point in points}) * len(names)
        task = progress.add_task("kernels", total=kernels)
        for words in compile_kernels(points, names):
            progress.update(task, description=f"kernels: {words}", advance=1)
        compiled_s = time.perf_counter() - began
        race = progress.add_task("races", total=len(points))
        try:
            rows, missing = measure_points(
                points, names, lambda words: progress.update(race, description=words, advance=1)
            )
        except Mismatch as wrong:
            raise SystemExit(f"not equal to the serial scheme: {wrong}") from wrong
    took_s = time.perf_counter() - began
    facts |= {"command": f"./run bench schemes{' --quick' * quick}"}
    facts |= {"took": f"{took_s:.0f} s, {compiled_s:.0f} s of them to compile or load kernels"}
    if missing:
        facts |= {"not timed apart": ", ".join(missing)}
    measured, report = write(Path(out or OUT), rows, facts, names)
    Console().print(f"{len(rows)} measurements in {took_s:.0f} s: {report} and {measured}")
