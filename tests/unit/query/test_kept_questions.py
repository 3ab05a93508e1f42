"""Kept questions: a query that is asked again sees the rows of now, whatever was kept of it."""

from __future__ import annotations

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
    with pytest.raises(hg.InputError, match="cannot run"):
        asked.run("select nothing from t", {"t": rows(1)})
    with pytest.raises(hg.InputError, match="only SELECT"):
        asked.run("create table x(a int)", {"t": rows(1)})
    assert asked.run(COUNT, {"t": rows(4)}).to_pylist() == [{"n": 1, "s": 4}]
    asked.close()


def test_many_questions_are_answered_though_few_are_kept() -> None:
    asked = KeptQuestions()
    for number in [*range(80), 0, 79]:
        found = asked.run(f"select v + {number} as w from t", {"t": rows(1)})
        assert found.to_pylist() == [{"w": 1 + number}]
    asked.close()
