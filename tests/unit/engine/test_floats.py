"""Columns of 32 bits round, and have no value for what would be infinite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg
from headgate.testing import SerialOracle, results_difference

END = 2.0**128 - 2.0**103  # the first double that is nearer to infinity than to any float
LARGEST = 2.0**128 - 2.0**104
cells = hg.Table("cells", "id bigint, x float", key="id")


def put(
    event: hg.Event,
    cell: hg.Row = cells.at("id", create=True),
    out: hg.Output = hg.output("twice float"),
) -> None:
    cell.x = event.y
    out.twice = event.y + event.y


def take(event: hg.Event, cell: hg.Row = cells.at("id", create=True)) -> None:
    cell.x = event.x


STORED = [0.1, LARGEST / 2, math.inf, -math.inf, math.nan, END, -END, 1e300, -1e300, LARGEST]


@pytest.mark.parametrize("scheme", ["serial", "strata", "ready-operation-eager"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_write_that_does_not_fit_aborts(compiled: bool, scheme: str) -> None:
    transaction = hg.transaction(event="id bigint, y double", compiled=compiled)(put)
    events = [{"id": number, "y": value} for number, value in enumerate(STORED)]
    engine = hg.open(None, tables=[cells], transactions=[transaction])
    found = engine.run(transaction, events, order_by="id", scheme=scheme, threads=2)
    oracle = SerialOracle([cells])
    expected = oracle.run(transaction, events, order_by="id")
    assert results_difference(found, expected) is None
    reasons = found.column("reason").to_pylist()
    assert reasons == [None] * 5 + ["error: OverflowError: overflow"] * 5
    kept = engine.sql("select x from cells order by id").rows()
    assert kept[0] == (0.10000000149011612,) and kept[2] == (math.inf,)


FORMS: dict[str, Any] = {
    "dicts": lambda rows: rows,
    "doubles": lambda rows: pa.Table.from_pylist(rows),
    "pandas": lambda rows: pd.DataFrame(rows),
    "floats of NumPy": lambda rows: [{**row, "x": pd.Series([row["x"]])[0]} for row in rows],
}


@pytest.mark.parametrize("form", FORMS)
def test_an_event_that_does_not_fit_is_rejected(form: str) -> None:
    transaction = hg.transaction(event="id bigint, x float")(take)
    values = [0.1, math.inf, LARGEST, END, -1e300]
    rows = [{"id": number, "x": value} for number, value in enumerate(values)]
    with hg.open(None, tables=[cells], transactions=[transaction]) as engine:
        found = engine.run(transaction, FORMS[form](rows), order_by="id")
        assert found.sort_by("id").column("reason").to_pylist() == [
            *[None] * 3,
            *["out of range: x"] * 2,
        ]
        call = engine.call(transaction, id=9, x=10**39)
        assert call.reason == "out of range: x"


def test_rows_defaults_and_computed_columns_fit_or_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hg.DeclarationError, match="default 1e\\+300 is not a float"):
        hg.Table("t", "id bigint, x float DEFAULT 1e300", key="id")
    with hg.open(tmp_path / "store", tables=[cells]) as engine:
        with pytest.raises(hg.InputError, match="column 'x': the value in row 1 is out of range"):
            engine.load(cells, [{"id": 1, "x": 1.0}, {"id": 2, "x": 1e39}])
        engine.load(cells, [{"id": 1, "x": 1e38}])
    far = hg.Migration("far").add_column("cells", "y float", value="cast(x as double) * 1e3")
    with pytest.raises(hg.InputError, match=r"not a float in every row: .*out of range"):
        hg.migrate(tmp_path / "store", [far])
