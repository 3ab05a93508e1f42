"""Answers keep every value, in JSON and in Arrow."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import orjson
import pyarrow as pa
import pytest

from headgate.query.sql import run_sql
from headgate.web.bodies import ARROW, JSON, chosen_media, table_answer
from headgate.web.limits import Refused

TABLE = pa.table(
    {
        "n": pa.array([2**63 - 1, None], pa.int64()),
        "d": pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
        "f": pa.array([math.nan, -math.inf]),
        "t": pa.array(
            [datetime.datetime(2024, 1, 1, 0, 0, 0, 5, datetime.UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "day": pa.array([datetime.date(2024, 1, 1), None]),
        "word": pa.array(["é", None]).dictionary_encode(),
        "list": pa.array([[1.5, math.inf], None]),
    }
)


def test_json_loses_nothing() -> None:
    answer = orjson.loads(table_answer(TABLE, 7, JSON).body)
    assert answer["epoch"] == 7
    assert [column["name"] for column in answer["columns"]] == TABLE.column_names
    assert answer["rows"] == [
        [
            9223372036854775807,
            "12345678901234567890.12",
            "NaN",
            "2024-01-01T00:00:00.000005Z",
            "2024-01-01",
            "é",
            [1.5, "Infinity"],
        ],
        [None, None, "-Infinity", None, None, None, None],
    ]


def test_arrow_is_the_table_itself() -> None:
    answer = table_answer(TABLE, 7, ARROW)
    assert pa.ipc.open_stream(answer.body).read_all().to_pylist()[1] == TABLE.to_pylist()[1]
    assert answer.headers == {"headgate-epoch": "7"}


def test_whatever_duckdb_answers_can_be_written() -> None:
    table = run_sql("select * from test_all_types()", {}).arrow()
    answer = orjson.loads(table_answer(table, None, JSON).body)
    assert len(answer["rows"]) == table.num_rows
    assert all(len(row) == table.num_columns for row in answer["rows"])


def test_an_answer_without_rows_or_columns_is_an_answer() -> None:
    assert (
        orjson.loads(table_answer(pa.table({"a": pa.array([], pa.int64())}), 1, JSON).body)["rows"]
        == []
    )
    assert orjson.loads(table_answer(pa.table({}), 1, JSON).body)["rows"] == []


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/json", JSON),
        (ARROW, ARROW),
        (f"{ARROW}, application/json;q=0.5", ARROW),
        (f"{ARROW};q=0.1, application/json", JSON),
        ("text/html, application/*;q=0.3", JSON),
        (f"text/html, {ARROW};q=0.3", ARROW),
    ],
)
def test_the_client_chooses(accept: str | None, media: str) -> None:
    assert chosen_media(accept) == media


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "application/json;q=x"])
def test_a_client_that_accepts_neither_is_told(accept: str) -> None:
    with pytest.raises(Refused) as refused:
        chosen_media(accept)
    assert refused.value.status == 406
