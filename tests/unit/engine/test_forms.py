"""Forms of input: whatever a user hands to `run` and `load`, the results are the same."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg

wallets = hg.Table(
    "wallets",
    """id bigint, owner string, due decimal(9,2), ok boolean, day date, ts timestamp, small int,
       x float, y double""",
    key="id",
)


@hg.transaction(
    event="""ts timestamp, id bigint, owner string, due decimal(9,2), ok boolean, day date,
             small int, x float, y double, more array<bigint>""",
    compiled=False,
)
def put(
    event, row=wallets.at("id", create=True), out=hg.output("total bigint, owner_again string")
):
    row.owner = event.owner
    row.due += event.due
    row.ok = event.ok
    row.day = event.day
    row.ts = event.ts
    row.small = event.small
    row.x = event.x
    row.y = event.y
    for item in event.more:
        out.total = out.total + item
    out.owner_again = row.owner


def make_event(number: int) -> dict[str, Any]:
    return {
        "ts": datetime.datetime(2024, 1, 1, 0, 0, 9 - number, tzinfo=datetime.UTC),
        "id": number % 3,
        "owner": ("ada", "bob", "")[number % 3],
        "due": decimal.Decimal(number).scaleb(-1),
        "ok": number % 2 == 0,
        "day": datetime.date(2024, 1, 1 + number),
        "small": -number,
        "x": number / 4,
        "y": number / 3,
        "more": list(range(number)),
    }


EVENTS = [make_event(number) for number in range(8)]
ROWS = [{name: event[name] for name in wallets.schema.names} for event in EVENTS[:3]]


class ArrowStream:
    """Any object that can hand over an Arrow stream, as Polars and DuckDB frames do."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


def inferred(table: pa.Table) -> pa.Table:
    """The types a user gets who does not think about them."""
    decimals = {"due": pa.decimal128(6, 1)}
    wide = {"small": pa.int64(), "x": pa.float64(), "owner": pa.large_string()}
    kinds = {**wide, **decimals, "ts": pa.timestamp("ns"), "day": pa.date64()}
    columns = [
        column.cast(kinds.get(name, column.type), safe=False)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.table(columns, names=table.column_names)


def categorical(table: pa.Table) -> pa.Table:
    place = table.column_names.index("owner")
    return table.set_column(place, "owner", table.column("owner").dictionary_encode())


FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "a table": lambda table: table,
    "a record batch": lambda table: table.combine_chunks().to_batches()[0],
    "record batches": lambda table: table.to_batches(max_chunksize=3),
    "a reader": lambda table: table.to_reader(max_chunksize=2),
    "tables": lambda table: [table.slice(0, 2), table.slice(2)],
    "an arrow stream": ArrowStream,
    "a list of dicts": lambda table: table.to_pylist(),
    "a generator of dicts": lambda table: (row for row in table.to_pylist()),
    "a tuple of dicts": lambda table: tuple(table.to_pylist()),
    "a pandas frame": lambda table: table.to_pandas(),
    "a pandas frame with objects": lambda table: pd.DataFrame(table.to_pylist()),
    "inferred types": inferred,
    "dictionary texts": categorical,
    "columns in another order": lambda table: table.select(table.column_names[::-1]),
    "a slice": lambda table: pa.concat_tables([table, table]).combine_chunks().slice(len(table)),
    "chunks": lambda table: pa.concat_tables(
        [table.slice(0, 1), table.slice(1, 0), table.slice(1)]
    ),
    "dicts with columns in any order": lambda table: [
        dict(sorted(row.items(), reverse=place % 2 == 0))
        for place, row in enumerate(table.to_pylist())
    ],
}


def opened() -> hg.Engine:
    return hg.open(None, tables=[wallets], transactions=[put])


@pytest.mark.parametrize("form", FORMS)
def test_run_takes_every_form_of_events(form: str) -> None:
    table = pa.Table.from_pylist(EVENTS, schema=put.event.arrow)
    one, other = opened(), opened()
    expected = one.run(put, table, order_by="ts")
    found = other.run(put, FORMS[form](table), order_by="ts")
    assert found.to_pylist() == expected.to_pylist()
    assert found.schema == expected.schema
    query = "select * from wallets order by id"
    assert other.sql(query).rows() == one.sql(query).rows()


@pytest.mark.parametrize("form", FORMS)
def test_load_takes_every_form_of_rows(form: str) -> None:
    table = pa.Table.from_pylist(ROWS, schema=wallets.schema.arrow)
    engine = opened()
    assert engine.load(wallets, FORMS[form](table)) == 3
    assert engine.sql("select * from wallets order by id").dicts() == table.to_pylist()


def test_columns_that_no_transaction_needs_are_left_alone() -> None:
    table = pa.Table.from_pylist(EVENTS, schema=put.event.arrow)
    more = table.append_column("extra", pa.array([b"bytes"] * len(table)))
    assert opened().run(put, more).num_rows == len(EVENTS)


def test_a_loaded_row_takes_the_defaults_of_columns_it_lacks() -> None:
    table = hg.Table("t", "id int, n int DEFAULT 7, s string DEFAULT 'x', d date", key="id")
    with hg.open(None, tables=[table]) as engine:
        day = datetime.date(2024, 2, 3)
        assert engine.load(table, [{"id": 1, "d": day}, {"id": 2, "d": day}]) == 2
        assert engine.sql("select n, s from t").rows() == [(7, "x")] * 2


@pytest.mark.parametrize("nothing", [[], pa.table({}), put.event.arrow.empty_table()])
def test_no_events_give_no_results_and_no_epoch(nothing: Any) -> None:
    engine = opened()
    some = engine.run(put, EVENTS, order_by="ts")
    found = engine.run(put, nothing, order_by="ts")
    assert found.num_rows == 0 and found.schema == some.schema
    assert engine.epoch == 1


def test_a_batch_size_cuts_the_events_into_epochs() -> None:
    found = opened().run(put, EVENTS, batch_size=3)
    assert found.column("epoch").to_pylist() == [1, 1, 1, 2, 2, 2, 3, 3]
    assert found.column("position").to_pylist() == [0, 1, 2, 0, 1, 2, 0, 1]
