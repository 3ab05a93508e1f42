"""Schemas: what Spark DDL means here, in Arrow and as stored, and how bad DDL is answered."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.state.schema import Schema, split_list
from headgate.state.types import ColumnType, logical_value, stored_value

TYPES = {
    "boolean": ("boolean", pa.bool_()),
    "bool": ("boolean", pa.bool_()),
    "int": ("int", pa.int32()),
    "INTEGER": ("int", pa.int32()),
    "bigint": ("bigint", pa.int64()),
    "Long": ("bigint", pa.int64()),
    "float": ("float", pa.float32()),
    "real": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "string": ("string", pa.string()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestamp_ltz": ("timestamp", pa.timestamp("us", tz="UTC")),
    "date": ("date", pa.date32()),
    "decimal": ("decimal(10,0)", pa.decimal128(10, 0)),
    "decimal(5)": ("decimal(5,0)", pa.decimal128(5, 0)),
    "numeric ( 18 , 4 )": ("decimal(18,4)", pa.decimal128(18, 4)),
    "array<int>": ("array<int>", pa.list_(pa.int32())),
    "array<decimal(5,2)>": ("array<decimal(5,2)>", pa.list_(pa.decimal128(5, 2))),
}


@pytest.mark.parametrize("written", TYPES)
def test_a_type_is_read_as_spark_reads_it(written: str) -> None:
    name, arrow = TYPES[written]
    column = Schema.parse(f"x {written}")["x"]
    assert str(column.type) == name
    assert column.type.arrow == arrow


def test_columns_keep_their_order_and_their_names() -> None:
    schema = Schema.parse("b int, `my column` string, a: double NOT NULL COMMENT 'it''s, first'")
    assert schema.names == ("b", "my column", "a")
    assert schema.arrow.names == ["b", "my column", "a"]
    assert "a" in schema and "c" not in schema


DEFAULTS = {
    "n int DEFAULT -7": -7,
    "n bigint DEFAULT 9223372036854775807": 2**63 - 1,
    "x double DEFAULT 5": 5.0,
    "x float DEFAULT 0.1": 0.1,
    "b boolean DEFAULT true": True,
    "s string DEFAULT 'a, ''b'''": "a, 'b'",
    "d decimal(5,2) DEFAULT -1.25": -125,
    "d date DEFAULT date '1970-01-11'": 10,
    "t timestamp DEFAULT '1970-01-01 00:00:01'": 1_000_000,
    "t timestamp DEFAULT timestamp'1970-01-01 01:00:00+01:00'": 0,
    "n int NOT NULL DEFAULT 5 COMMENT 'five'": 5,
}


@pytest.mark.parametrize("ddl", DEFAULTS)
def test_a_default_is_kept_as_rows_store_it(ddl: str) -> None:
    assert Schema.parse(ddl).columns[0].default == DEFAULTS[ddl]


BAD = {
    "": "has no columns",
    " , ": "has no columns",
    "id": "write it as 'name type'",
    "id bigint extra": "column 'id': cannot read 'extra'",
    "id bigint DEFAULT": "cannot read 'DEFAULT'",
    "id tinyint": "unknown type 'tinyint'; the types are: array<type>, bigint",
    "m map<string,int>": "unknown type 'map<string,int>'",
    "a array<array<int>>": "an array of arrays is not supported",
    "a int, b int, a int": "column 'a' is declared twice",
    "__slot bigint": "names in __ are reserved",
    "d decimal(19,2)": "decimal(19,2) is out of bounds; at most 18 digits",
    "d decimal(5,6)": "decimal(5,6) is out of bounds",
    "d decimal(0)": "decimal(0,0) is out of bounds",
    "n int DEFAULT 1.5": "column 'n': the default 1.5 is not a int",
    "n int DEFAULT 3000000000": "is not a int",
    "n bigint DEFAULT 9223372036854775808": "is not a bigint",
    "b boolean DEFAULT 1": "is not a boolean",
    "s string DEFAULT 5": "is not a string",
    "d date DEFAULT date '2024-02-30'": "the default '2024-02-30' is not a date",
    "d decimal(3,1) DEFAULT 1.25": "is not a decimal(3,1)",
    "x double DEFAULT null": "its default is NULL, so declare it NULL",
    "x int NULL NOT NULL": "it is NULL or NOT NULL, not both",
    "x array<int> NULL": "an array is never null",
    "x double DEFAULT 1e400": "x",
}


@pytest.mark.parametrize("ddl", BAD)
def test_bad_ddl_is_refused_with_its_column_and_what_to_write(ddl: str) -> None:
    with pytest.raises(hg.DeclarationError) as refused:
        Schema.parse(ddl, "table 't'")
    assert str(refused.value).startswith("table 't': ")
    assert BAD[ddl] in str(refused.value)


def test_a_schema_that_is_no_text_is_refused() -> None:
    with pytest.raises(hg.DeclarationError, match=r"a schema is a DDL string such as .*, not list"):
        Schema.parse(["id bigint"])  # type: ignore[arg-type]


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(hg.DeclarationError, match=r"here: no column 'c'; the columns are: a, b"):
        Schema.parse("a int, b int").require("c", "here")


# --- round trips ----------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,6}", fullmatch=True) | st.sampled_from(
    ["my name", "from", "größe"]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(datetime.UTC)),
    "decimal": st.integers(-99999, 99999).map(lambda n: decimal.Decimal(n).scaleb(-2)),
}


@st.composite
def columns(draw: st.DrawFn, name: str) -> str:
    kind = draw(st.sampled_from(sorted(VALUES)))
    written = "decimal(5,2)" if kind == "decimal" else kind
    if draw(st.booleans()):
        return f"`{name}` {written}"
    value = draw(VALUES[kind])
    literal = str(value).replace("'", "''")
    quoted = f"'{literal}'" if kind in ("string", "date", "timestamp") else literal.lower()
    return f"`{name}` {written} DEFAULT {quoted}"


@given(data=st.data(), names=st.lists(NAMES, min_size=1, max_size=5, unique=True))
def test_the_ddl_of_a_schema_reads_as_that_schema(data: st.DataObject, names: list[str]) -> None:
    """A store keeps its declarations as DDL, so they must come back as they were."""
    schema = Schema.parse(", ".join(data.draw(columns(name)) for name in names))
    assert Schema.parse(schema.ddl) == schema


@given(data=st.data(), name=st.sampled_from(sorted(VALUES)))
def test_a_stored_value_shows_as_the_value_it_was(data: st.DataObject, name: str) -> None:
    kind = ColumnType("decimal", 5, 2) if name == "decimal" else ColumnType(name)
    value = data.draw(VALUES[name])
    assert logical_value(kind, stored_value(kind, value, "here")) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31),
        ("int", True),
        ("bigint", 1.0),
        ("bigint", "1"),
        ("double", "1.0"),
        ("boolean", 1),
        ("string", b"a"),
        ("date", datetime.datetime(2024, 1, 1)),
        ("timestamp", "2024-01-01"),
        ("timestamp", None),
    ],
)
def test_a_value_of_another_type_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(hg.InputError, match=f"here: .* is not a {kind}"):
        stored_value(ColumnType(kind), value, "here")


def test_a_decimal_is_stored_only_when_its_column_holds_it_exactly() -> None:
    kind = ColumnType("decimal", 4, 2)
    assert stored_value(kind, decimal.Decimal("-12.5"), "here") == -1250
    assert stored_value(kind, 7, "here") == 700
    for bad in (decimal.Decimal("0.125"), decimal.Decimal(100), 1.5, decimal.Decimal("NaN")):
        with pytest.raises(hg.InputError, match=r"is not a decimal\(4,2\)"):
            stored_value(kind, bad, "here")


def test_a_list_is_split_outside_of_brackets_and_quotes() -> None:
    text = "a decimal(5,2), b array<decimal(3,1)>, `c,d` int, e string DEFAULT 'x,''y'"
    assert [part.strip() for part in split_list(text)] == [
        "a decimal(5,2)",
        "b array<decimal(3,1)>",
        "`c,d` int",
        "e string DEFAULT 'x,''y'",
    ]
