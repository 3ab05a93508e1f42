"""Kept questions: a query that is asked again sees the rows of now, whatever was kept of it."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

import headgate as hg
from headgate.query.kept_questions import STAND_IN_ROWS_MAX, KeptQuestions

COUNT = "select count(*) as n, sum(v) as s from t"


def rows(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def test_the_same_query_sees_other_rows() -> None:
    asked = KeptQuestions()
    for values in ((1, 2), (), (5,), (5, 6, 7)):
        found = asked.run(COUNT, {"t": rows(*values)}).to_pylist()[0]
        assert (found["n"], found["s"]) == (len(values), sum(values) if values else None)
    asked.close()


def test_a_table_that_grows_and_shrinks_is_read_whole_and_again() -> None:
    asked = KeptQuestions()
    for count in (3, STAND_IN_ROWS_MAX, STAND_IN_ROWS_MAX + 1, 9 * STAND_IN_ROWS_MAX, 2):
        assert asked.run(COUNT, {"t": rows(*range(count))}).to_pylist()[0]["n"] == count
    asked.close()


def test_tables_of_other_columns_under_one_name_are_read_anew() -> None:
    asked = KeptQuestions()
    assert asked.run("select * from t", {"t": rows(1)}).to_pylist() == [{"v": 1}]
    other = pa.table({"v": ["x"], "w": [1.5]})
    assert asked.run("select * from t", {"t": other}).to_pylist() == [{"v": "x", "w": 1.5}]
    asked.close()


def test_parameters_are_those_of_the_call() -> None:
    asked, query = KeptQuestions(), "select v from t where v > ?"
    for bound, expected in ((0, [1, 2]), (1, [2]), (9, [])):
        found = asked.run(query, {"t": rows(1, 2)}, [bound])
        assert found.column("v").to_pylist() == expected
    asked.close()


def test_after_an_error_the_next_question_is_answered() -> None:
    asked = KeptQuestions()
    with pytest.raises(hg.DeclarationError, match="cannot run"):
        asked.run("select nothing from t", {"t": rows(1)})
    with pytest.raises(hg.DeclarationError, match="only SELECT"):
        asked.run("create table x(a int)", {"t": rows(1)})
    assert asked.run(COUNT, {"t": rows(4)}).to_pylist() == [{"n": 1, "s": 4}]
    asked.close()


def test_many_questions_are_answered_though_few_are_kept() -> None:
    asked = KeptQuestions()
    for number in [*range(80), 0, 79]:
        found = asked.run(f"select v + {number} as w from t", {"t": rows(1)})
        assert found.to_pylist() == [{"w": 1 + number}]
    asked.close()


TYPES = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int32()),
        "l": pa.array([2**62 + 1, None, -(2**63)], pa.int64()),
        "u": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "b": pa.array([True, None, False]),
        "s": pa.array(["a", None, "\u00fc\x00x"]),
        "f": pa.array([1.5, None, float("nan")]),
        "f32": pa.array([1.5, None, 2], pa.float32()),
        "at": pa.array(
            [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), None,
             datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)],
            pa.timestamp("us", "UTC"),
        ),
    }
)  # fmt: skip
PREPARED = [
    "from t",
    "from t where i is not null",
    "from t where i is null",
    "from t where false",
    "select i, i from t",
    "select sum(l) as s, count(*) as n from t",
    "select s as first, f as second from t order by i",
]


@pytest.mark.parametrize("query", PREPARED)
def test_a_query_that_is_prepared_gives_what_it_gave(query: str) -> None:
    asked = KeptQuestions()
    first, *others = [asked.run(query, {"t": TYPES}) for _ in range(3)]
    for one in others:
        assert one.schema == first.schema
        assert repr(one.to_pylist()) == repr(first.to_pylist())  # not a number is not itself
    asked.close()


def test_what_a_query_reads_of_the_moment_is_of_the_moment() -> None:
    asked = KeptQuestions()
    query = "select now() as n, random() as r from t"
    found = [asked.run(query, {"t": rows(1)}).to_pylist()[0] for _ in range(4)]
    assert len({one["n"] for one in found}) == len({one["r"] for one in found}) == 4
    asked.close()
