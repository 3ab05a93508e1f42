"""Several nodes of one epoch may change one row: it is released, read and undone as it ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headgate as hg

table = hg.Table("t", "k bigint, n bigint DEFAULT 0", key="k")
COLUMNS = "k bigint, d boolean"
first, second, third = (hg.Stream(name, COLUMNS) for name in ("a", "b", "c"))


def making(is_procedure: bool, compiled: bool) -> Any:
    if is_procedure:

        @hg.procedure(first, output=second, writes=[table])
        def make(batch: Any, tx: Any) -> Any:
            tx.upsert(table, [{"k": 1, "n": 7}])
            return batch

    else:

        @hg.transaction(event=first, output=second, compiled=compiled)
        def make(event: hg.Event, row: hg.Row = table.at("k", create=True)) -> None:
            row.n = 7

    return make


def removing(compiled: bool) -> Any:
    @hg.transaction(event=second, output=third, compiled=compiled)
    def remove(event: hg.Event, row: hg.Row = table.at("k")) -> None:
        if event.d:
            hg.delete(row)
        else:
            row.n += 1

    return remove


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("is_procedure", [False, True])
def test_a_row_made_and_deleted_in_one_epoch_is_seen_when_it_is_made_again(
    tmp_path: Path, recovery: str, is_nested: bool, compiled: bool, is_procedure: bool
) -> None:
    make, remove = making(is_procedure, compiled), removing(compiled)
    flow = hg.Dataflow("flow", [make, remove], nest=[[make, remove]] if is_nested else [])
    for end in (False, True):
        path = str(tmp_path / f"{end}")
        with hg.open(path, tables=[table], dataflows=flow, recovery=recovery) as engine:
            engine.push(first, [{"k": 1, "d": True}])
            assert engine.sql("from t").rows() == []
            engine.push(first, [{"k": 1, "d": end}])
            wanted = [] if end else [(1, 8)]
            assert engine.sql("from t").rows() == wanted
            assert engine.get("t", 1) == (None if end else {"k": 1, "n": 8})
        with hg.open(path, tables=[table], dataflows=flow, recovery=recovery) as engine:
            assert engine.sql("from t").rows() == wanted


@pytest.mark.parametrize("recovery", ["strong", "weak"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("deletes", [False, True])
def test_a_nest_that_aborts_leaves_a_row_as_nodes_before_it_had_left_it(
    tmp_path: Path, recovery: str, compiled: bool, deletes: bool
) -> None:
    @hg.procedure(third)
    def refuse(batch: Any, tx: Any) -> Any:
        return hg.abort("no")

    make, remove = making(False, compiled), removing(compiled)
    flow = hg.Dataflow("flow", [make, remove, refuse], nest=[[remove, refuse]])
    path = str(tmp_path / "store")
    with hg.open(path, tables=[table], dataflows=flow, recovery=recovery) as engine:
        for _ in range(2):
            engine.push(first, [{"k": 1, "d": deletes}])
            assert engine.sql("from t").rows() == [(1, 7)]
    with hg.open(path, tables=[table], dataflows=flow, recovery=recovery) as engine:
        assert engine.sql("from t").rows() == [(1, 7)]
