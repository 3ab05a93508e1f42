"""A program that is wrong behind a node that wrote: nothing is seen that is in no record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate as hg

counts = hg.Table("counts", "k bigint, n bigint DEFAULT 0", key="k")
others = hg.Table("others", "k bigint", key="k")
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
    ],
)
def test_sql_that_is_wrong_loses_no_batch(tmp_path: Path, query: str, told: str) -> None:
    """An abort is for good, and nothing is wrong with the rows: they wait for a better program."""

    def opened_with(asked: str) -> hg.Engine:
        @hg.procedure(first, writes=others)
        def note(batch: Any, tx: Any) -> None:
            tx.insert(others, tx.sql(asked))

        said: Any = {"tables": [counts, others], "dataflows": hg.Dataflow("noting", [note])}
        return hg.open(str(tmp_path / "store"), **said)

    with (
        opened_with(query) as engine,
        pytest.raises(hg.DeclarationError, match=f"(?s)procedure 'note'.*{told}.*are taken"),
    ):
        engine.push(first, [{"k": 3}])
    with opened_with("select k from batch") as engine:
        assert engine.sql("from others").rows() == [(3,)]
