"""A batch cut into many sections gives the same bytes as in one piece, and logs the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.isolation.levels import Executor
from headgate.parallel import scheduler, sections
from tests.property.test_schemes import CONTENTION, accounts, deposit, make_events, move

SCHEMES = (
    "shares", "strata", "depth", "ready", "lal", "pat", "ready-operation-eager",
    "strata-chain-lazy",
    "depth-operation-lazy", "ready-chain-eager", "tstream", "lwm",
)  # fmt: skip
ROUTES = {"move": move, "deposit": deposit}
Outcome = tuple[pa.Table, pa.Table, list[dict[str, list[int]]]]


def outcome_of(
    keys: int, errors: float, path: Path | None = None, updates: bool = False, **options: Any
) -> Outcome:
    """Results, table, and the changed slots of each of two batches."""
    changed: list[dict[str, list[int]]] = []
    execute = Executor.execute

    def noting(self: Executor, *given: Any) -> Any:
        found = execute(self, *given)
        changed.append({name: slots.tolist() for name, slots in found.changed.items()})
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "execute", noting)
        with hg.open(path, tables=[accounts], transactions=[move, deposit]) as engine:
            ids, zeros = np.arange(keys), np.zeros(keys, np.int64)
            rows = pa.table({"id": ids, "balance": np.full(keys, 100.0), "n": zeros})
            engine.load(accounts, rows)
            results = [
                engine.run(ROUTES, make_events(seed, keys, 600, errors), route_by="kind",
                           order_by="ts", updates=updates, **options)
                for seed in range(2)
            ]  # fmt: skip
    with hg.open(path, tables=[accounts], transactions=[move, deposit]) as engine:
        table = engine.sql("select * from accounts order by id").arrow()
    return pa.concat_tables(results), table, changed


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "SECTION_OPERATIONS", 150)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, float], Outcome]:
    folder = tmp_path_factory.mktemp("serial")
    return {
        (name, errors): outcome_of(keys, errors, folder / f"{name} {errors}", scheme="serial")
        for name, keys in CONTENTION.items()
        for errors in (0.0, 0.01)
    }


def check(found: Outcome, expected: Outcome) -> None:
    assert found[0].equals(expected[0])
    assert found[1].equals(expected[1]), "what was logged is not what serial logs"
    for mine, theirs in zip(found[2], expected[2], strict=True):
        assert {name: sorted(slots) for name, slots in mine.items()} == {
            name: sorted(slots) for name, slots in theirs.items()
        }


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("contention", ["high", "low"])
@pytest.mark.parametrize("name", SCHEMES)
def test_sections_give_the_bytes_of_the_serial_scheme(
    name: str, contention: str, serial: Any, tmp_path: Path
) -> None:
    for errors in (0.0, 0.01):
        found = outcome_of(
            CONTENTION[contention], errors, tmp_path / str(errors), scheme=name, threads=2
        )
        check(found, serial[contention, errors])


@pytest.mark.usefixtures("cut_small")
def test_the_batch_is_really_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    run_in_turn = sections.run_in_turn

    def noting(run: Any, cut: Any, run_section: Any) -> None:
        seen.extend(len(section) for section in cut)
        run_in_turn(run, cut, run_section)

    monkeypatch.setattr(scheduler, "run_in_turn", noting)
    outcome_of(60, 0.0, scheme="ready", threads=2)
    assert len(seen) >= 20 and sum(seen) == 1200 and max(seen) - min(seen) <= 1


def test_a_transaction_of_many_rows_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "SECTION_OPERATIONS", 4)
    found = []
    for scheme in ("serial", "ready", "ready-operation-eager"):
        with hg.open(None, tables=[accounts], transactions=[move, deposit]) as engine:
            engine.load(accounts, [{"id": n, "balance": 100.0, "n": 0} for n in range(40)])
            events = (
                make_events(3, 40, 200, 0.0)
                .slice(0, 3)
                .set_column(7, "ids", pa.array([list(range(40))] * 3))
                .set_column(0, "kind", pa.array(["move"] * 3))
            )
            results = engine.run(  # by routes whose kernels there are already
                ROUTES, events, route_by="kind", order_by="ts", scheme=scheme, threads=2
            )
            found.append((results, engine.sql("select * from accounts order by id").arrow()))
    assert all(one[0].equals(found[0][0]) and one[1].equals(found[0][1]) for one in found)


@pytest.mark.usefixtures("cut_small")
def test_rows_in_between_are_those_of_the_serial_scheme() -> None:
    expected = outcome_of(60, 0.01, updates=True, scheme="serial")
    found = outcome_of(60, 0.01, updates=True, scheme="ready", threads=2)
    assert found[0].equals(expected[0])


@pytest.mark.usefixtures("cut_small")
def test_sections_that_forget_what_rows_were_are_caught(
    serial: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The canary: were all sections stamped alike, one that failed could not be put back."""
    make = sections._section
    monkeypatch.setattr(sections, "_section", lambda run, places, _: make(run, places, -1))
    found = outcome_of(5, 0.01, tmp_path / "store", scheme="ready", threads=1)
    assert not found[0].equals(serial["high", 0.01][0])


def test_a_batch_of_the_usual_size_is_one_section() -> None:
    assert sections.section_count(0) == 1
    assert sections.section_count(40_000) == 1
    assert sections.section_count(1_024_000) == 31
