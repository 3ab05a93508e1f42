"""A small run of the benchmark of the schemes: what it writes, and that a wrong scheme fails it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench import race, schemes
from bench.bars import STEPS, Bar, all_bars, plan_ns, standings
from bench.figures import figures, latency_ms, split
from bench.plan_cost import make_operations, make_units, measure_planning
from bench.report import render
from bench.stopwatch import COUNTED, PARTS, SHARES, Stopwatch
from bench.workloads import Phase, dynamic_ledger
from headgate.kernels import ticks
from headgate.parallel import scheme as schemes_of_engine
from headgate.parallel.crew import Crew
from headgate.parallel.precedence import PD, TD, chain_tasks, link, unit_tasks
from headgate.parallel.scheme import make_scheme
from headgate.parallel.units import UnitCrew
from headgate.parallel.whole_transactions import TransactionBatch

SMALL = replace(
    race.QUICK, rounds_min=2, rounds_max=2, seconds=0.0, phase_batches=2, plan_repeats=1,
    final_rounds=1,
)  # fmt: skip
NAMES = ("auto", "serial", "strata", "ready-operation-eager")
IN_PLACE = ("auto", "serial", "strata")  # whose kernels are soon compiled
COLUMNS = {
    "section", "application", "cost_us", "parameter", "value", "phase", "scheme", "threads",
    "batch", "is_warm", "is_counted", "events", "seconds", "order_s", "resolve_s", "plan_s",
    "execute_s", "results_s", "rest_s", "useful_s", "sync_s", "lock_s", "construct_s", "explore_s",
    "abort_s", "decision", "why", "is_equal", "graph",
}  # fmt: skip
PLANNED = [
    {"operations": size, "step": step, "ns": ns}
    for size, ns in ((100, 8.0), (1_000, 12.0))
    for step in ("link operations", "strata of operations", "chains and their strata",
                 "graph of whole transactions")
]  # fmt: skip


def small(point: race.Point, names: tuple[str, ...] = NAMES) -> race.Point:
    """The same point over few events and keys."""
    changes = {"keys": 200, "batch_events": 128}
    phases = tuple(
        Phase(p.name, p.changes, p.workload.vary(**changes, events=128 * p.workload.batch_count))
        for p in point.phases
    )
    return replace(point, phases=phases, schemes=names)


def measure(*points: race.Point, names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    rows, _ = schemes.measure_points([small(p, names) for p in points], lambda words: None)
    return rows


def cheap(point: race.Point) -> race.Point:
    """The same point with no added cost, so that no other kernels are needed."""
    phases = tuple(replace(p, workload=p.workload.vary(cost_us=0.0)) for p in point.phases)
    return replace(point, phases=phases)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    sweep = next(sweep for sweep in schemes.SWEEPS if sweep.name == "skew")
    found = measure(
        schemes.application_point("ledger", 0.0, SMALL),
        cheap(schemes.contention_point("ledger", "skewed", SMALL)),
    )
    found += measure(
        schemes.sweep_point(sweep, 0.0, 0.0, SMALL),
        schemes.sweep_point(sweep, 0.8, 0.0, SMALL),
        schemes.threads_point(0.0, SMALL),
        schemes.dynamic_point(0.0, SMALL),
        names=IN_PLACE,
    )
    return found + measure(schemes.throughput_point("ledger", SMALL), names=("auto", "serial"))


# --- what a run writes ------------------------------------------------------------------------


def test_a_run_writes_every_measurement_and_a_report(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    measured, report = schemes.write(tmp_path / "out", rows, PLANNED, schemes.machine_facts())
    table = pq.read_table(measured)
    assert set(table.schema.names) == COLUMNS
    assert table.num_rows == len(rows)
    assert set(table["scheme"].to_pylist()) == set(NAMES)
    assert min(table["seconds"].to_pylist()) > 0
    assert {str(table.schema.field(f"{part}_s").type) for part in COUNTED} == {"double"}
    assert pq.read_table(tmp_path / "out" / "planning.parquet").to_pylist() == PLANNED
    text = report.read_text(encoding="utf-8")
    for words in (
        "The bars", "The four applications", "What threads spend their time on", "Contention",
        "Events per second", "Sweeps", "The dynamic workload", "Planning", "phase aborts",
    ):  # fmt: skip
        assert words in text
    assert text.count("<svg") >= 9


def test_the_report_loads_nothing_and_its_drawings_are_whole(rows: list[dict[str, Any]]) -> None:
    text = render(rows, PLANNED, {}, dict.fromkeys(NAMES, ""), race.INCORRECT)
    for word in ("http:", "https:", "<script", "<link", "@import", "url("):
        assert word not in text
    for piece in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + piece.partition("</svg>")[0] + "</svg>")
    assert "nan" not in text


def test_a_report_can_be_made_of_one_section(rows: list[dict[str, Any]]) -> None:
    words = dict.fromkeys(NAMES, "")
    for mine in split(rows, "section").values():
        assert "How it was measured" in render(mine, [], {}, words, race.INCORRECT)


def test_all_contestants_run_the_same_batches(rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if row["section"] == "threads"]
    batches = split(mine, "scheme", "threads")
    others = {(name, count) for name in ("auto", "strata") for count in (1, 2, 4)}
    assert set(batches) == {("serial", 1)} | others
    assert {len(found) for found in batches.values()} == {race.WARM_ROUNDS + 2 + 1}


def test_graphs_are_measured_where_operations_race(rows: list[dict[str, Any]]) -> None:
    for section, is_explained in (("contention", True), ("threads", False)):
        graphs = {row["graph"] for row in rows if row["section"] == section}
        assert ['"temporal"' in graph for graph in graphs] == [is_explained]


def test_the_model_says_what_it_chose_in_each_batch(rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if row["section"] == "dynamic" and row["scheme"] == "auto"]
    assert [row["phase"] for row in mine if row["batch"] == 0 and row["threads"] == 2] == [
        phase.name for phase in dynamic_ledger()
    ]
    for row in mine:
        assert row["why"]
        for name in row["decision"].split(" + "):
            make_scheme(name, 2)


# --- what the time is spent on ----------------------------------------------------------------


def test_the_parts_of_a_batch_make_up_its_time(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        parts = [row[f"{part}_s"] for part in PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(row["seconds"], rel=1e-6)
    planned = {row["scheme"] for row in rows if row["plan_s"] > 0}
    assert planned - {"auto"} == set(NAMES) - {"serial", "auto"}  # the model may need no plan
    for part in ("order", "resolve", "execute", "results"):
        assert all(row[f"{part}_s"] > 0 for row in rows)


def test_everything_that_is_timed_exists_and_is_put_back() -> None:
    before = TransactionBatch.crew
    with Stopwatch() as watch:
        assert watch.missing == []
        assert TransactionBatch.crew is not before
    assert TransactionBatch.crew is before


def test_threads_count_in_rounds_of_their_own_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, counting = UnitCrew.work, []

    def work(crew: UnitCrew) -> bool:
        counting.append(bool(crew.times[0, ticks.IS_ON]))
        return honest(crew)

    monkeypatch.setattr(UnitCrew, "work", work)
    names = ("serial", "ready-operation-eager")
    found = measure(cheap(schemes.contention_point("ledger", "uniform", SMALL)), names=names)
    by_units = [row for row in found if row["scheme"] != "serial"]
    assert counting == [row["is_counted"] for row in by_units]
    rounds = race.WARM_ROUNDS + SMALL.rounds_max
    assert counting == [False] * rounds + [True] + [False] * SMALL.final_rounds
    (one,) = [one for one in figures(found) if one.scheme != "serial"]
    assert one.batches == SMALL.rounds_max + SMALL.final_rounds


def test_shares_of_the_thread_time_add_up(rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if row["section"] == "applications"]
    for one in figures(mine):
        assert set(one.shares) == set(SHARES)
        assert sum(one.shares.values()) == pytest.approx(1.0)
        assert 0 < one.shares["useful"] <= 1
        if one.scheme != "auto":  # the model may need no plan
            assert (one.shares["construct"] > 0) == (one.scheme != "serial")


def row(scheme: str, threads: int = 2, **changes: Any) -> dict[str, Any]:
    """A made-up measurement: half a second of execution, all else as it comes."""
    found = {
        "section": "contention", "application": "ledger", "cost_us": 10.0, "parameter": "",
        "value": 0.0, "phase": "skewed", "scheme": scheme, "threads": threads, "batch": 0,
        "is_warm": False, "is_counted": False, "events": 1000, "seconds": 1.0, "decision": "",
        "why": "", "is_equal": True, "graph": "",
    }  # fmt: skip
    found |= {f"{part}_s": 0.0 for part in PARTS} | {f"{part}_s": None for part in COUNTED}
    return found | {"execute_s": 0.5} | changes


def test_counts_of_the_threads_are_preferred_to_what_is_seen_from_outside() -> None:
    counts = dict(zip((f"{part}_s" for part in COUNTED), (5, 1, 1, 1, 1, 1), strict=True))
    made = [
        row("serial", 1),
        row("serial", 1, is_counted=True),
        row("strata"),
        row("strata", is_counted=True, execute_s=0.4, plan_s=0.2),
        row("lwm"),
        row("lwm", is_counted=True, **counts),
    ]
    serial, strata, lwm = figures(made)
    assert serial.shares["useful"] == 1.0 and serial.is_told_apart
    assert strata.shares["useful"] == pytest.approx(0.5)
    assert strata.shares["construct"] == pytest.approx(0.2)
    assert strata.shares["uncounted"] == pytest.approx(0.3)
    assert not strata.is_told_apart
    assert lwm.shares == {"useful": 0.5, "uncounted": 0.0, **dict.fromkeys(COUNTED[1:], 0.1)}
    assert lwm.is_told_apart


def test_latency_is_the_wait_for_the_batch_and_the_batch() -> None:
    middle, high = latency_ms([0.1, 0.1, 0.1])
    assert middle == pytest.approx(150.0)
    assert 198.0 < high < 200.0
    # The events of the second batch came within the 0.1 s of the first one.
    assert 390.0 < latency_ms([0.1, 0.3])[1] < 400.0


# --- the bars ---------------------------------------------------------------------------------


def race_of(**seconds: float) -> list[dict[str, Any]]:
    named = {name.replace("_", "-"): found for name, found in seconds.items()}
    return [row(name, 1 if name == "serial" else 2, seconds=s) for name, s in named.items()]


def verdicts(bars: list[Bar]) -> dict[str, str]:
    return {f"{bar.group}: {bar.words}": bar.verdict for bar in bars}


def test_the_model_is_compared_again_with_those_that_were_fastest() -> None:
    made = race_of(serial=1.0, auto=0.9, ready=0.5, nolock=0.1, pat=0.6, lal=0.8, lwm=0.7)
    entered = race.contestants(list(dict.fromkeys(one["scheme"] for one in made)), (2,))
    found = [one.scheme for one in race.finalists(made, entered)]
    assert found == ["serial", "auto", "ready", "pat", "lwm"]


def test_a_ratio_is_of_the_rounds_that_both_ran() -> None:
    slow = [{**one, "batch": 7} for one in race_of(serial=4.0, auto=2.0)]
    made = [*race_of(serial=1.0, auto=0.5, ready=0.4), *slow]
    ratios = {one.scheme: one.ratio for one in figures(made)}
    assert ratios == {"serial": 1.0, "auto": 2.0, "ready": 2.5}


def test_planning_counts_at_its_better_moment() -> None:
    one = [{"step": "a", "ns": 2.0}, {"step": "b", "ns": 3.0}]
    other = [{"step": "a", "ns": 1.0}, {"step": "b", "ns": 4.0}]
    assert schemes.lower(one, other) == [other[0], one[1]]


def test_bars_with_costed_operations_are_judged_on_two_threads() -> None:
    skewed = race_of(serial=1.0, ready=0.5, auto=0.52)
    uniform = [{**one, "phase": "uniform"} for one in race_of(serial=1.0, ready=0.5, auto=0.57)]
    words = "10 µs per operation, two threads: model / "
    assert verdicts(all_bars([*skewed, *uniform], [], race.INCORRECT)) == {
        f"{words}best fixed scheme: ledger, skewed keys": "met",
        f"{words}serial: ledger, uniform keys": "not met",
    }
    slower = race_of(serial=1.0, ready=0.5, auto=0.53, nolock=0.1)
    (bar,) = all_bars(slower, [], race.INCORRECT)
    assert bar.found == pytest.approx(0.5 / 0.53) and not bar.is_met


def test_bars_with_cheap_operations_are_judged_on_one_thread() -> None:
    made = [{**one, "section": "applications", "cost_us": 0.0, "phase": ""} for one in (
        row("serial", 1), row("auto", 1, seconds=1.04), row("auto", 2, seconds=9.0),
        row("lal", 1, seconds=1.1), row("lal", 2, seconds=0.1),
    )]  # fmt: skip
    (bar,) = all_bars(made, [], race.INCORRECT)
    assert bar.is_met and bar.found == pytest.approx(1 / 1.04)


def test_public_figures_are_compared_with_the_model_at_its_best() -> None:
    made = [{**one, "section": "throughput", "cost_us": 0.0, "events": 4_000_000} for one in (
        row("serial", 1), row("auto", 1), row("auto", 2, seconds=2.0),
    )]  # fmt: skip
    bars = all_bars(made, [], race.INCORRECT)
    assert [(bar.found, bar.limit, bar.verdict) for bar in bars] == [
        (pytest.approx(4_000), 4_100, "not met"),
        (pytest.approx(4_000), 3_700, "met"),
    ]


def test_planning_is_judged_by_its_cost_and_by_its_growth() -> None:
    assert plan_ns(PLANNED, STEPS["links and strata of operations"]) == {100: 16.0, 1_000: 24.0}
    bars = all_bars([], PLANNED, race.INCORRECT)
    assert [(bar.found, bar.is_met) for bar in bars if "ns" in bar.group] == [
        (24.0, True), (16.0, True), (16.0, True), (8.0, True),
    ]  # fmt: skip
    assert {(bar.found, bar.is_met) for bar in bars if "linear" in bar.group} == {(1.5, True)}
    dearer = [{**one, "ns": one["ns"] * one["operations"] / 50} for one in PLANNED]
    bars = all_bars([], dearer, race.INCORRECT)
    assert [bar.is_met for bar in bars if "ns" in bar.group] == [False, False, False, True]
    assert not any(bar.is_met for bar in bars if "linear" in bar.group)


def test_the_order_of_the_schemes_under_contention_is_told() -> None:
    theirs = race_of(serial=1.0, tstream=0.5, strata=0.6, pat=0.7, lal=0.8, lwm=0.9)
    (standing,) = standings(theirs)
    assert standing.is_papers
    assert "tstream ×2 2.00, pat ×2 1.43, lal ×2 1.25, lwm ×2 1.11" in standing.words
    swapped = race_of(serial=1.0, tstream=0.5, strata=0.6, pat=0.8, lal=0.7, lwm=0.9)
    (standing,) = standings(swapped)
    assert not standing.is_papers and "not the papers' order" in standing.words


def test_bars_are_told_in_lines() -> None:
    made = race_of(serial=1.0, ready=0.5, auto=0.52, pat=0.6, lal=0.7, lwm=0.9)
    lines = list(schemes.tell_bars(all_bars(made, PLANNED, race.INCORRECT), made))
    assert any(line.startswith("  met ") and "0.96" in line for line in lines)
    assert "order of the schemes under contention" in lines


# --- planning ---------------------------------------------------------------------------------


def test_the_batches_that_are_planned_look_like_the_ledger() -> None:
    operations = make_operations(600, keys=8)
    assert len(operations.rows) == 600 and operations.units == 200
    for first, last in zip(operations.starts[:-1], operations.starts[1:], strict=True):
        rows = operations.rows[first:last]
        assert len(set(rows.tolist())) == len(rows) in (2, 4)
    units = make_units(operations)
    graph = link(units)
    assert {int(kind) for kind in np.unique(graph.kinds)} == {TD, PD}
    assert unit_tasks(graph).count == 600
    assert chain_tasks(link(make_units(make_operations(600)))).count > 1


def test_planning_is_measured_step_by_step() -> None:
    found = measure_planning(1, (60, 120))
    assert [row["operations"] for row in found] == [60] * 4 + [120] * 4
    assert all(row["ns"] > 0 for row in found)
    for steps in STEPS.values():
        assert set(plan_ns(found, steps)) == {60, 120}


# --- a wrong scheme fails the benchmark -------------------------------------------------------


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The canary: schemes with threads leave their last transaction out."""
    honest = Crew.collect

    def collect(crew: Any, is_isolated: bool = True) -> None:
        honest(crew, is_isolated)
        crew.run.outcome[-1] ^= 1

    monkeypatch.setattr(Crew, "collect", collect)
    yield


def test_wrong_results_fail_the_benchmark(forgetful: None) -> None:
    with pytest.raises(race.Mismatch, match="strata on 1 thread: outcome of row 127"):
        measure(schemes.application_point("ledger", 0.0, SMALL), names=IN_PLACE)


def test_wrong_rows_fail_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = UnitCrew.install

    def install(crew: Any) -> None:
        honest(crew)
        # No result shows a quantity.
        crew.run.program.tables["assets"].words[0, -1] += 1

    monkeypatch.setattr(UnitCrew, "install", install)
    with pytest.raises(race.Mismatch, match="table assets by ready-operation-eager"):
        measure(schemes.application_point("ledger", 0.0, SMALL))


def test_a_scheme_that_is_incorrect_on_purpose_is_only_marked(
    forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "INCORRECT", frozenset({"strata"}))
    found = measure(schemes.application_point("ledger", 0.0, SMALL), names=IN_PLACE)
    assert {row["is_equal"] for row in found if row["scheme"] == "strata"} == {False}
    assert all(row["is_equal"] for row in found if row["scheme"] == "serial")


# --- what is measured -------------------------------------------------------------------------


def test_quick_and_full_runs_cover_all_that_is_asked() -> None:
    for effort in (race.QUICK, race.FULL):
        points = schemes.plan_points(effort)
        sections = {point.section for point in points}
        assert sections == {
            "applications", "throughput", "contention", "skew", "aborts", "length", "cost",
            "batch size", "reads", "threads", "dynamic",
        }  # fmt: skip
        names = ("ledger", "grep_sum", "bidding", "tolls")
        shown = {(p.workload.name, p.cost_us) for p in points if p.section == "applications"}
        assert shown == {(name, cost) for name in names for cost in (0.0, 10.0)}
        public = [p.workload for p in points if p.section == "throughput"]
        assert {workload.name for workload in public} == set(names)
        assert {workload.parameters.keys for workload in public} == {100_000}
        for point in points:
            assert {"auto", "serial"} <= set(point.schemes)
            assert len(set(point.schemes)) == len(point.schemes)


def test_every_scheme_that_races_exists_and_every_kind_of_them_races() -> None:
    for name in (
        *schemes.EVERY,
        *schemes.RIVALS,
        *schemes.SWEPT,
        *schemes.CHEAPLY,
        *schemes.CHOICES,
    ):
        assert make_scheme(name, 2).name == name.partition("-")[0]
        assert schemes.scheme_words(name)
    # `virtual` is of computed keys alone: it races in bench/access.py.
    racing = set(schemes_of_engine.SCHEME_NAMES) - {"virtual"}
    assert {name.partition("-")[0] for name in schemes.EVERY} == racing
    assert {make_scheme(name, 2).pool for name in schemes.EVERY if "tstream" in name} == set(
        schemes_of_engine.POOLS
    )
    assert len(schemes.TRIPLES) == 12
    assert set(schemes.RIVALS) <= set(schemes.EVERY)


def test_each_program_is_compiled_once_for_all_schemes_that_run_it() -> None:
    needed = schemes.kernels_needed(schemes.plan_points(race.QUICK))
    assert set(needed) == {(name, costed) for name in schemes.APPLICATION_NAMES
                           for costed in (False, True)}  # fmt: skip
    assert set(needed["ledger", True]) == {*schemes.RIVALS, *schemes.CHOICES}
    assert set(needed["ledger", False]) == set(schemes.CHEAPLY)
    few = schemes.throughput_point("tolls", race.QUICK)
    more = schemes.application_point("tolls", 0.0, race.QUICK)
    for points in ([few, more], [more, few]):
        assert set(schemes.kernels_needed(points)["tolls", False]) == set(more.schemes)
