"""A small run of the benchmark of the schemes: what it writes, and that a wrong scheme fails it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from bench import schemes
from bench.report import render
from bench.workloads import Phase, dynamic_ledger
from headgate.execution import scheme as schemes_of_engine
from headgate.execution.scheme import SCHEME_NAMES

SMALL = replace(schemes.QUICK, rounds_min=2, rounds_max=2, seconds=0.0, phase_batches=2)
NAMES = ["auto", "serial", "strata"]
COLUMNS = {
    "section", "application", "cost_us", "parameter", "value", "phase", "scheme", "threads",
    "batch", "is_warm", "events", "seconds", "order_s", "resolve_s", "plan_s", "execute_s",
    "results_s", "rest_s", "decision", "why", "is_equal", "graph",
}  # fmt: skip


def small(point: schemes.Point) -> schemes.Point:
    """The same point over few events and keys."""
    changes = {"keys": 200, "batch_events": 128}
    phases = tuple(
        Phase(p.name, p.changes, p.workload.vary(**changes, events=128 * p.workload.batch_count))
        for p in point.phases
    )
    return replace(point, phases=phases)


def measure(*points: schemes.Point) -> list[dict[str, Any]]:
    rows, _ = schemes.measure_points([small(p) for p in points], NAMES, lambda words: None)
    return rows


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    sweep = next(sweep for sweep in schemes.SWEEPS if sweep.name == "skew")
    return measure(
        schemes.application_point("ledger", 0.0, SMALL),
        schemes.sweep_point(sweep, 0.0, 0.0, SMALL),
        schemes.sweep_point(sweep, 0.8, 0.0, SMALL),
        schemes.threads_point(0.0, SMALL),
        schemes.dynamic_point(0.0, SMALL),
    )


def test_a_run_writes_every_measurement_and_a_report(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    measured, report = schemes.write(tmp_path / "out", rows, schemes.machine_facts(), NAMES)
    table = pq.read_table(measured)
    assert set(table.schema.names) == COLUMNS
    assert table.num_rows == len(rows)
    assert set(table["scheme"].to_pylist()) == set(NAMES)
    assert min(table["seconds"].to_pylist()) > 0
    text = report.read_text(encoding="utf-8")
    for words in ("The four applications", "Sweeps", "The dynamic workload", "The bars"):
        assert words in text
    assert text.count("<svg") >= 6


def test_the_report_loads_nothing_and_its_drawings_are_whole(rows: list[dict[str, Any]]) -> None:
    text = render(rows, {}, dict.fromkeys(NAMES, ""), schemes.INCORRECT)
    for word in ("http:", "https:", "<script", "<link", "@import", "url("):
        assert word not in text
    for piece in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + piece.partition("</svg>")[0] + "</svg>")
    assert "nan" not in text


def test_all_contestants_run_the_same_batches(rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if row["section"] == "threads"]
    batches = schemes.split(mine, "scheme", "threads")
    assert set(batches) == {("serial", 1)} | {
        (name, count) for name in ("auto", "strata") for count in (1, 2, 4)
    }
    assert {len(found) for found in batches.values()} == {schemes.WARM_ROUNDS + 2}


def test_the_parts_of_a_batch_make_up_its_time(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        parts = [row[f"{part}_s"] for part in schemes.PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(row["seconds"], rel=1e-6)
    planned = {row["scheme"] for row in rows if row["plan_s"] > 0}
    assert planned == {"auto", "strata"}
    for part in ("order", "resolve", "execute", "results"):
        assert all(row[f"{part}_s"] > 0 for row in rows)


def test_everything_that_is_timed_exists_and_is_put_back() -> None:
    before = schemes_of_engine._Crew._arguments
    with schemes.Stopwatch() as watch:
        assert watch.missing == []
        assert schemes_of_engine._Crew._arguments is not before
    assert schemes_of_engine._Crew._arguments is before


def test_the_model_says_what_it_chose_in_each_batch(rows: list[dict[str, Any]]) -> None:
    mine = [row for row in rows if row["section"] == "dynamic" and row["scheme"] == "auto"]
    assert [row["phase"] for row in mine if row["batch"] == 0 and row["threads"] == 2] == [
        phase.name for phase in dynamic_ledger()
    ]
    assert all(row["decision"] in SCHEME_NAMES and row["why"] for row in mine)
    assert all(not row["decision"] for row in rows if row["scheme"] != "auto")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The canary: schemes with threads leave their last transaction out."""
    honest = schemes_of_engine._Crew.collect

    def collect(crew: Any) -> None:
        honest(crew)
        crew.run.outcome[-1] ^= 1

    monkeypatch.setattr(schemes_of_engine._Crew, "collect", collect)
    yield


def test_wrong_results_fail_the_benchmark(forgetful: None) -> None:
    with pytest.raises(schemes.Mismatch, match="strata on 1 thread: outcome of row 127"):
        measure(schemes.application_point("ledger", 0.0, SMALL))


def test_wrong_rows_fail_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = schemes_of_engine._Crew.collect

    def collect(crew: Any) -> None:
        honest(crew)
        # No result shows a quantity.
        crew.run.program.tables["assets"].words[0, -1] += 1

    monkeypatch.setattr(schemes_of_engine._Crew, "collect", collect)
    with pytest.raises(schemes.Mismatch, match="table assets by strata"):
        measure(schemes.application_point("ledger", 0.0, SMALL))


def test_a_scheme_that_is_incorrect_on_purpose_is_only_marked(
    forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemes, "INCORRECT", frozenset({"strata"}))
    found = measure(schemes.application_point("ledger", 0.0, SMALL))
    assert {row["is_equal"] for row in found if row["scheme"] == "strata"} == {False}
    assert all(row["is_equal"] for row in found if row["scheme"] == "serial")


def test_quick_and_full_runs_cover_all_that_is_asked() -> None:
    for effort in (schemes.QUICK, schemes.FULL):
        points = schemes.plan_points(effort)
        sections = {point.section for point in points}
        assert sections == {
            "applications", "skew", "aborts", "length", "cost", "batch size", "reads", "threads",
            "dynamic",
        }  # fmt: skip
        shown = {(p.workload.name, p.cost_us) for p in points if p.section == "applications"}
        names = ("ledger", "grep_sum", "bidding", "tolls")
        assert shown == {(name, cost) for name in names for cost in (0.0, 10.0)}
