"""Checks: what an SQL-like expression means as Python, judged by DuckDB, and what is refused."""

from __future__ import annotations

import datetime
import decimal
import itertools
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from headgate.state.check import parse_check
from headgate.state.schema import Schema

SCHEMA = Schema.parse(
    "id bigint, n bigint, x double, s string, ok boolean, day date, due decimal(8,2)"
)
START = datetime.date(1970, 1, 1)


def evaluated(text: str, row: dict[str, Any]) -> bool:
    """The check's Python source over a row as a transaction sees it: a date is a number of days."""
    seen = {**row, "day": (row["day"] - START).days}
    scope = {"row": SimpleNamespace(**seen), "decimal": decimal.Decimal}
    return bool(eval(parse_check(text, SCHEMA, "here").python, scope))


def by_duckdb(text: str, row: dict[str, Any]) -> bool:
    types = {"n": "bigint", "x": "double", "due": "decimal(8,2)", "id": "bigint"}
    columns = [f"?::{types.get(name, 'varchar')} as {name}" for name in row if name in types]
    columns += ["? as s", "?::boolean as ok", "?::date as day"]
    values = [row[n] for n in row if n in types] + [row["s"], row["ok"], row["day"]]
    theirs = text.replace("startswith(", "starts_with(").replace("endswith(", "ends_with(")
    query = f"select ({theirs}) from (select {', '.join(columns)})"
    return bool(duckdb.execute(query, values).fetchall()[0][0])


ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(-3, 3),
        "n": st.integers(-6, 6),
        "x": st.integers(-8, 8).map(lambda n: n / 2),
        "s": st.sampled_from(["", "a", "b", "it's", "aba", "a\U0001f600b", "\uffff", "e\u0301"]),
        "ok": st.booleans(),
        "day": st.integers(19_720, 19_730).map(lambda n: START + datetime.timedelta(days=n)),
        "due": st.integers(-400, 400).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    }
)
WHOLE = st.sampled_from(["n", "id", "0", "1", "3", "-2"])
NUMBERS = st.recursive(
    WHOLE,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        inner.map(lambda e: f"abs({e})"),
        inner.map(lambda e: f"-({e})"),
        st.tuples(inner, inner).map(lambda p: f"least({p[0]}, {p[1]})"),
        st.tuples(inner, inner, inner).map(lambda p: f"GREATEST({p[0]}, {p[1]}, {p[2]})"),
    ),
    max_leaves=4,
)
TEXTS = st.recursive(
    st.sampled_from(["s", "s", "''", "'a'", "'it''s'", "'a\U0001f600'", "'\U00010000'"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: f"concat({p[0]}, {p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"least({p[0]}, {p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"greatest({p[0]}, {p[1]})"),
    ),
    max_leaves=3,
)
PATTERNS = st.sampled_from(
    ["a", "a%", "%a", "%a%", "a%b", "a%a", "%", "", "it''s%", "%\U0001f600b"]
)
SIGNS = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
COMPARISONS = st.one_of(
    st.tuples(NUMBERS, SIGNS, NUMBERS).map(" ".join),
    st.tuples(st.just("x"), SIGNS, st.sampled_from(["0.5", "-1.5", "n", "2"])).map(" ".join),
    st.tuples(st.just("due"), SIGNS, st.sampled_from(["0.25", "-1.5", "1"])).map(" ".join),
    st.tuples(TEXTS, SIGNS, TEXTS).map(" ".join),
    st.tuples(TEXTS, st.sampled_from(["like", "NOT LIKE"]), PATTERNS).map(
        lambda p: f"{p[0]} {p[1]} '{p[2]}'"
    ),
    st.tuples(st.sampled_from(["startswith", "endswith", "contains"]), TEXTS, TEXTS).map(
        lambda p: f"{p[0]}({p[1]}, {p[2]})"
    ),
    st.tuples(TEXTS, SIGNS, WHOLE).map(lambda p: f"length({p[0]}) {p[1]} {p[2]}"),
    st.tuples(TEXTS, TEXTS, TEXTS).map(lambda p: f"{p[0]} between {p[1]} and {p[2]}"),
    st.tuples(NUMBERS, st.sampled_from(["between", "not between"]), WHOLE, WHOLE).map(
        lambda p: f"{p[0]} {p[1]} {p[2]} and {p[3]}"
    ),
    st.tuples(NUMBERS, st.sampled_from(["in", "NOT IN"]), st.lists(WHOLE, min_size=1)).map(
        lambda p: f"{p[0]} {p[1]} ({', '.join(p[2])})"
    ),
    st.sampled_from(["s in ('a', 'b')", "day >= date '2024-01-01'", "day = DATE '2024-01-02'"]),
    st.sampled_from(["ok", "ok = true", "not ok", "s is not null", "x is null", "n / 4 < 0.6"]),
    st.sampled_from(["true", "FALSE"]),
)
CHECKS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or ", " AND ", " Or "]), inner).map("".join),
        inner.map(lambda e: f"not ({e})"),
        inner.map(lambda e: f"({e})"),
    ),
    max_leaves=5,
)


@settings(max_examples=150)
@given(text=CHECKS, row=ROWS)
def test_a_check_means_what_it_means_in_sql(text: str, row: dict[str, Any]) -> None:
    # A decimal beside a float would be refused when compiled, so they do not meet here.
    if "due" in text and ("x" in text or "/" in text):
        text = text.replace("due", "n")
    assert evaluated(text, row) == by_duckdb(text, row)


NULLABLE = Schema.parse("a bigint NULL, b bigint NULL, c bigint, s string NULL, t string NULL")
OF_NULLS = (
    "least(a, b) >= 0",
    "greatest(a, b, c) < 10",
    "least(a, c) >= 0 and greatest(a, b) is not null or c = 3",
    "not (least(a, b + 1, abs(a)) = -1)",
    "least(s, t) < 'm' or greatest(concat(s, 'x'), t) is null",
)


@pytest.mark.parametrize("text", OF_NULLS)
def test_least_and_greatest_pass_over_nulls_as_in_sql(text: str) -> None:
    source = parse_check(text, NULLABLE, "here").python
    values = ((None, -1, 5), (None, -2, 50), (0, 12), (None, "a", "z"), (None, "b"))
    rows = [dict(zip("abcst", one, strict=True)) for one in itertools.product(*values)]
    kinds = {"a": "bigint", "b": "bigint", "c": "bigint", "s": "varchar", "t": "varchar"}
    table = "(select " + ", ".join(f"${name}::{kind} as {name}" for name, kind in kinds.items())
    for row in rows:
        found = eval(source, {"row": SimpleNamespace(**row)})
        asked = f"select coalesce({text}, true) from {table})"
        assert found == duckdb.execute(asked, row).fetchall()[0][0], row


def test_many_values_that_may_be_null_are_refused() -> None:
    with pytest.raises(hg.DeclarationError, match="least of more than 6 values"):
        hg.Table("t", "id bigint, a int NULL", key="id", check="least(a, 1, 2, 3, 4, 5, 6) > 0")
    hg.Table("t", "id bigint, a int NULL", key="id", check="greatest(a, id, 3) > 0")


def test_the_loosest_binding_is_or_then_and_then_not() -> None:
    check = parse_check("not ok or n > 1 and s = 'a'", SCHEMA, "here")
    assert check.python == "((not row.ok) or ((row.n > 1) and (row.s == 'a')))"


def test_a_fraction_is_exact_beside_a_decimal_and_a_float_elsewhere() -> None:
    assert parse_check("due < 0.1", SCHEMA, "here").python == "(row.due < decimal('0.1'))"
    assert parse_check("x < 0.1", SCHEMA, "here").python == "(row.x < 0.1)"


def test_the_texts_of_a_check_are_known() -> None:
    check = parse_check("s in ('a', 'it''s') or s = '' or s like 'b%'", SCHEMA, "here")
    assert check.texts == {"a", "it's", "", "b"}


def test_a_column_whose_name_is_no_word_is_quoted() -> None:
    schema = Schema.parse("id int, `my n` int, `class` int")
    check = parse_check("`my n` > 1 and `class` = 2", schema, "here")
    row = SimpleNamespace(**{"my n": 2, "class": 2})
    assert eval(check.python, {"row": row})


BAD = {
    "n >": "expected a column, a literal or a bracket",
    "m > 0": "no column 'm' (the columns are: id, n, x, s, ok, day, due)",
    "(n > 0": "expected )",
    "n > 0)": "the expression should end here",
    "n = 1 = 2": "the expression should end here",
    "n ! 0": "cannot read this",
    "n % 2 = 0": "cannot read this",
    "n > 0; drop table t": "cannot read this",
    "n between 1": "expected and",
    "n in 1": "expected (",
    "n in ()": "expected a column, a literal or a bracket",
    "n is 5": "expected null",
    "s like 'a_'": "a pattern has % at its ends or once within, and no _ or backslash",
    "s like '%a%b'": "a pattern has % at its ends or once within, and no _ or backslash",
    "s like 'a\\%'": "a pattern has % at its ends or once within, and no _ or backslash",
    "s like n": "LIKE takes a text and a pattern, as in name like 'a%'",
    "n like 'a'": "LIKE takes a text and a pattern, as in name like 'a%'",
    "s ilike 'a%'": "there is no ILIKE, only LIKE",
    "length(n) > 1": "length takes 1 text",
    "length(s, s) > 1": "length takes 1 text",
    "contains(s)": "contains takes 2 texts",
    "concat(s) = 'a'": "concat takes 2 to 9 texts",
    "least(s, n) = 1": "least takes numbers alone, or texts alone",
    "abs(s) = 1": "abs takes numbers alone, or texts alone",
    "s || 'a' = 'b'": "cannot read this (write OR, or concat(a, b) of texts)",
    "'a": "cannot read this",
    "upper(s) = 'A'": "no function 'upper' in a check; the functions are: abs, least, greatest",
    "s > 5": "a text cannot be compared with a number",
    "day > '2024-01-01'": "a time is no text: write DATE '2024-01-31'",
    "s + 1 > 0": "texts cannot be computed with; concat(a, b) joins them",
    "n": "this is a number, and a condition is needed",
    "not n": "this is a number, and a condition is needed",
    "ok and x": "this is a number, and a condition is needed",
    "n > 0 && ok": "cannot read this (write AND)",
    "n => 0": "cannot read this (write >=)",
    "n =< 0": "cannot read this (write <=)",
    "day > date '2024-02-30'": "'2024-02-30' is not a date",
    "": "expected a column, a literal or a bracket",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_check_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        parse_check(text, SCHEMA, "table 't': check")
    assert str(refused.value).startswith("table 't': check: ")
    assert BAD[text] in str(refused.value)


@pytest.mark.parametrize("text", ["n > 007", "n >= 1e3", "n > 10 / 4", "-n < - - 3"])
def test_every_number_sql_reads_is_read(text: str) -> None:
    row = {"n": 8, "x": 0.0, "s": "", "ok": True, "day": START, "due": decimal.Decimal(0), "id": 0}
    assert evaluated(text, row) == by_duckdb(text, row)


@pytest.mark.parametrize("text", ["n > 1e400", "least(n) > 0", "abs(n, 1) > 0", "abs() > 0"])
def test_what_no_check_can_compute_is_refused_at_the_declaration(text: str) -> None:
    with pytest.raises(hg.DeclarationError):
        parse_check(text, SCHEMA, "here")


ODD = Schema.parse("id int, `order` int, `and` int, `y y` int, ü int, `ﬁ` int")
TOLD = {
    '"order" >= 0': "a column without quotes or in backticks: `order`",
    "and >= 0": "write the column 'and' in backticks: `and`",
    "id > 0 and and > 1": "write the column 'and' in backticks: `and`",
    "y y >= 0": "write the column 'y y' in backticks: `y y`",
    "id > y y": "write the column 'y y' in backticks: `y y`",
}


@pytest.mark.parametrize("text", TOLD)
def test_a_name_that_needs_backticks_is_said_with_them(text: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        parse_check(text, ODD, "here")
    assert TOLD[text] in str(refused.value)


@pytest.mark.parametrize(
    "text", ["ü < 3", "`ü` < 3", "order < 3", "`order` < 3", "`and` < 3", "`y y` < 3", "ﬁ < 3"]
)
def test_names_of_all_letters_are_read(text: str) -> None:
    table = hg.Table("t", ODD.ddl, key="id", check=text)

    @hg.transaction(event="id int, n int", compiled=False)
    def put(event, row=table.at("id", create=True)):
        for name in ("order", "and", "y y", "ü", "ﬁ"):
            setattr(row, name, event.n)

    with hg.open(None, tables=[table], transactions=[put]) as engine:
        assert engine.call(put, id=1, n=2).committed
        assert engine.call(put, id=1, n=3).reason == f"check failed: t: {text}"
