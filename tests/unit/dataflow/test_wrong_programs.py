"""A program that is wrong behind a node that wrote: nothing is seen that is in no record."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import headgate as hg

counts = hg.Table("counts", "k bigint, n bigint DEFAULT 0", key="k")
others = hg.Table("others", "k bigint", key="k")
moves = hg.Table("moves", "k bigint, ts timestamp", key="k", history="5 minutes")
first, second = hg.Stream("first", "k bigint"), hg.Stream("second", "k bigint")


@hg.transaction(event=first, output=second)
def count(event: hg.Event, row: hg.Row = counts.at("k", create=True)) -> None:
    row.n += 1


def flow(declared: list[hg.Table]) -> hg.Dataflow:
    @hg.procedure(second, writes=declared)
    def follow(batch: Any, tx: Any) -> None:
        if 2 in batch.column("k").to_pylist():
            tx.insert(others, [{"k": 1}])

    return hg.Dataflow("flow", [count, follow])


def opened(path: Path, declared: list[hg.Table]) -> hg.Engine:
    return hg.open(
        str(path), tables=[counts, others], dataflows=flow(declared), recovery="weak",
        changed_code="accept",
    )  # fmt: skip


def test_a_weak_epoch_that_cannot_end_stops_the_engine_and_is_not_there_when_it_is_opened(
    tmp_path: Path,
) -> None:
    engine = opened(tmp_path / "store", [])
    engine.push(first, [{"k": 1}])
    with pytest.raises(hg.DeclarationError, match="does not declare"):
        engine.push(first, [{"k": 2}])
    with pytest.raises(hg.HeadgateError, match="stopped"):
        engine.push(first, [{"k": 1}])
    engine.close()
    with opened(tmp_path / "store", [others]) as again:
        assert again.sql("from counts order by k").rows() == [(1, 1)]
        again.push(first, [{"k": 2}])
        assert again.sql("from counts order by k").rows() == [(1, 1), (2, 1)]
        assert again.sql("from others").rows() == [(1,)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select id from counts", r"'counts' is a table: declare it, reads=\[counts\]"),
        ("select k from nowhere", "nowhere does not exist"),
        ("select nothing from batch", "nothing"),
        ("selec k from batch", "syntax error"),
        ("select k from moves_history", "'moves_history' has the versions of 'moves'"),
        ("select k from batch where k = ?", "Values were not provided"),
        ("select k from batch; select 2", "write one query, not 2"),
        ("update others set k = 1", "only SELECT reads a store"),
        ("pragma threads=1", "is refused"),
        ("select * from 'x.parquet'", "Cannot access file"),
        ("  ", "this is empty"),
        ("-- only words", "write one query, not 0"),
    ],
)
def test_sql_that_is_wrong_loses_no_batch(tmp_path: Path, query: str, told: str) -> None:
    """An abort is for good, and nothing is wrong with the rows: they wait for a better program."""

    def opened_with(asked: str) -> hg.Engine:
        @hg.procedure(first, writes=others)
        def note(batch: Any, tx: Any) -> None:
            tx.insert(others, tx.sql(asked))

        said: Any = {"tables": [counts, others, moves], "dataflows": hg.Dataflow("noting", [note])}
        return hg.open(str(tmp_path / "store"), **said)

    with (
        opened_with(query) as engine,
        pytest.raises(hg.DeclarationError, match=f"(?s)procedure 'note'.*{told}.*are taken"),
    ):
        engine.push(first, [{"k": 3}])
    with opened_with("select k from batch") as engine:
        assert engine.sql("from others").rows() == [(3,)]


def test_what_the_rows_make_of_right_sql_aborts_their_batch(tmp_path: Path) -> None:
    @hg.procedure(first, writes=others)
    def note(batch: Any, tx: Any) -> None:
        tx.sql("select case when k = 3 then error('three') end from batch")
        tx.sql("select k from batch where k = ?", [batch.column("k")[0].as_py()])

    with hg.open(None, tables=[others], dataflows=hg.Dataflow("noting", [note])) as engine:
        engine.push(first, [{"k": 3}])
        engine.push(first, [{"k": 4}])
        said = "select outcome from results where transaction = 'note' order by batch"
        assert [row[0] for row in engine.sql(said).rows()] == ["aborted", "committed"]


FACTOR = 1
SEEN: list[int] = []


def times(value: int) -> int:
    return value * FACTOR


def noting(how: str, factor: int) -> hg.Dataflow:
    """A procedure whose constant comes in one of several ways."""
    shown = f"select k * {factor} as k from batch"
    settings = types.SimpleNamespace(factor=factor)

    def note(batch: Any, tx: Any, by: int = factor) -> None:
        SEEN.append(factor)  # what changes by itself is no constant
        values = {
            "closure": factor, "module": FACTOR, "helper": times(1), "default": by,
            "text": None, "object": settings.factor,
        }  # fmt: skip
        asked = shown if how == "text" else f"select k * {values[how]} as k from batch"
        tx.upsert(others, tx.sql(asked))

    return hg.Dataflow("noting", [hg.procedure(first, writes=others)(note)])


@pytest.mark.parametrize("how", ["closure", "module", "helper", "default", "text"])
def test_weak_recovery_refuses_a_procedure_whose_constants_have_changed(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "store")

    def opened_with(factor: int, **options: Any) -> hg.Engine:
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        flows = noting(how, factor)
        return hg.open(path, tables=[others], dataflows=flows, recovery="weak", **options)

    with opened_with(1) as engine:
        engine.push(first, [{"k": 7}])
    with opened_with(1) as engine:
        assert engine.sql("from others").rows() == [(7,)]
    with pytest.raises(hg.StoreError, match="a constant that its code goes by"):
        opened_with(10)
    with opened_with(1) as engine:
        assert engine.sql("from others").rows() == [(7,)]
        engine.snapshot()
    with opened_with(10) as engine:  # nothing is to be run again
        assert engine.sql("from others").rows() == [(7,)]
