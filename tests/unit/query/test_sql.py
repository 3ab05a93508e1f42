"""SQL: read-only queries over one epoch; nothing is written, no file or variable is reachable."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.query.sql import Answer, run_sql

TABLES = {
    "accounts": pa.table({"id": [1, 2], "balance": [10.0, 5.5]}),
    "orders": pa.table({"id": [1, 1], "item": ["a", "b"]}),
}


def test_tables_can_be_joined_and_answers_come_in_every_form() -> None:
    query = "select item, balance from orders join accounts using (id) order by item desc"
    answer = run_sql(query, TABLES)
    assert answer.rows() == answer.fetchall() == [("b", 10.0), ("a", 10.0)]
    assert answer.dicts()[0] == {"item": "b", "balance": 10.0}
    assert answer.arrow().column_names == ["item", "balance"]
    assert list(answer.pandas()["item"]) == list(answer.df()["item"]) == ["b", "a"]
    assert repr(answer) == "<answer of 2 rows: item, balance>"


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("select count(*) from accounts where balance > ?", [6]),
        ("select count(*) from accounts where balance > $least", {"least": 6}),
    ],
)
def test_parameters_are_given_apart_from_the_query(query: str, parameters: Any) -> None:
    assert run_sql(query, TABLES, parameters).rows() == [(1,)]


@pytest.mark.parametrize("query", ["with a as (select 1 as n) select n from a", "explain select 1"])
def test_every_kind_of_read_is_allowed(query: str) -> None:
    assert isinstance(run_sql(query, TABLES), Answer)


REFUSED = {
    "insert into accounts values (3, 1.0)": "only SELECT reads a store",
    "delete from accounts": "only SELECT reads a store",
    "update accounts set balance = 0": "only SELECT reads a store",
    "create table t as select 1": "only SELECT reads a store",
    "drop table accounts": "only SELECT reads a store",
    "copy accounts to 'out.csv'": "only SELECT reads a store",
    "attach 'other.db'": "only SELECT reads a store",
    "set threads = 1": "only SELECT reads a store",
    "install httpfs": "only SELECT reads a store",
    "select 1; select 2": "write one query, not 2",
    "": "a query is a text such as 'select * from accounts'; this is empty",
    "selekt 1": "the query cannot run",
    "select * from acounts": 'Did you mean "accounts"?',
    "select * from elsewhere": "The tables are: accounts, orders",
    "select nothing from accounts": "the query cannot run",
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_does_not_read_the_tables_is_refused(query: str) -> None:
    with pytest.raises(hg.InputError) as refused:
        run_sql(query, TABLES)
    assert REFUSED[query] in str(refused.value)


@pytest.mark.parametrize(
    "query",
    [
        "select * from '{file}'",
        "select * from read_csv('{file}')",
        "select * from read_text('{file}')",
        "select * from glob('{file}')",
    ],
)
def test_files_are_out_of_reach(query: str, tmp_path: Any) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    with pytest.raises(hg.InputError):
        run_sql(query.format(file=file), TABLES)


def test_python_variables_are_out_of_reach() -> None:
    private = pa.table({"secret": [1]})
    with pytest.raises(hg.InputError, match="private"):
        run_sql("select * from private", TABLES)
    assert private.num_rows == 1


def test_a_query_leaves_the_tables_as_they_are() -> None:
    before = TABLES["accounts"].to_pylist()
    run_sql("select balance + 1 from accounts", TABLES)
    assert TABLES["accounts"].to_pylist() == before


BEYOND_PYTHON = [
    ("select timestamp '290000-01-01' as t", "out of range"),
    ("select date '290000-01-01' as t", "out of range"),
    ("select date '0044-03-15 (BC)' as t", "-0043-03-15"),
    ("select timestamptz 'infinity' as t", ""),
    ("select [timestamp '290000-01-01'] as t", ""),
    ("select {'a': date '290000-01-01'} as t", ""),
    ("select 1 as a, timestamp '290000-01-01' as t from range(3)", ""),
]


@pytest.mark.parametrize(("query", "text"), BEYOND_PYTHON)
def test_times_that_python_has_not_are_told_by_their_column(query: str, text: str) -> None:
    with hg.open(None) as engine:
        answer = engine.sql(query)
        for form in (answer.rows, answer.dicts, lambda: list(answer)):
            with pytest.raises(hg.InputError, match=r"column 't'.*arrow\(\).*varchar") as raised:
                form()
            assert text in str(raised.value)
        assert answer.arrow().num_rows == len(answer)
        assert text in answer._repr_html_()
        assert repr(answer).startswith("<answer of")


def test_a_parameter_of_no_year_that_there_is_in_utc_is_told_when_it_is_read() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=14))
    with hg.open(None) as engine:
        answer = engine.sql("select ? as t", [datetime.datetime(1, 1, 1, tzinfo=zone)])
        with pytest.raises(hg.InputError, match=r"column 't'.*0000-12-31 10:00:00"):
            answer.rows()
        assert engine.sql("select cast(? as varchar)", [1]).rows() == [("1",)]


@pytest.mark.parametrize(
    "query", ["select date '290000-01-01' as t", "select time '24:00:00' as t"]
)
def test_a_frame_that_pandas_cannot_make_is_told(query: str) -> None:
    with hg.open(None) as engine, pytest.raises(hg.InputError, match=r"pandas.*arrow\(\)"):
        engine.sql(query).pandas()
