"""Spark SQL over the tables of an epoch: what it answers is what DuckDB answers."""

from __future__ import annotations

import datetime as dt
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.engine import reading
from headgate.query import store_tables
from headgate.query.sql import Limit, limited
from headgate.spark.asking import _time_literal, in_words_of_spark

things = hg.Table(
    "things",
    "id bigint, region string, kind string NULL, price decimal(12,2) NULL, ts timestamp NULL, "
    "day date, ok boolean NULL, weight double NULL, small float, count int NULL",
    key="id",
    check="id >= 0",
)
regions = hg.Table("regions", "region string, tax decimal(4,3)", key="region", replicate=True)
SHARDS = 3


@hg.transaction(event="id bigint, count int", compiled=False)
def recount(event, thing=things.at("id")):
    if event.count < 0:
        return hg.abort("less than nothing")
    thing.count = event.count


def thing(draw: random.Random, number: int) -> dict[str, Any]:
    def perhaps(value: Any) -> Any:
        return None if draw.random() < 0.2 else value

    noon = dt.datetime(2024, 2, 28, 12, tzinfo=dt.UTC)
    return {
        "id": number * 3, "region": draw.choice(("north", "süd", "O'Hare", "")),
        "kind": perhaps(draw.choice(("a", "B", "b", "ä", "a_b", "a\\nb", "zz"))),
        "price": perhaps(Decimal(draw.randrange(-10_000, 10**9)) / 100),
        "ts": perhaps(noon + dt.timedelta(microseconds=draw.randrange(10**13))),
        "day": dt.date(1969, 12, 25) + dt.timedelta(days=draw.randrange(30_000)),
        "ok": perhaps(draw.random() < 0.5),
        "weight": perhaps(draw.choice((0.0, -0.0, 1.5, -2.0, 1e300, math.inf, math.nan, 7.25))),
        "small": draw.choice((0.5, -0.25, 3.0)), "count": perhaps(draw.randrange(-5, 5)),
    }  # fmt: skip


@pytest.fixture(scope="module")
def engine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hg.Engine]:
    path, draw = tmp_path_factory.mktemp("asked") / "bank", random.Random(7)
    declared: dict[str, Any] = {"tables": [things, regions], "transactions": [recount]}
    with hg.open(path, **declared, spark=spark, shards=SHARDS) as found:
        found.load(things, [thing(draw, number) for number in range(200)])
        taxed = zip(("north", "süd", "O'Hare"), ("0.190", "0.2", "0.075"), strict=True)
        found.load(regions, [{"region": one, "tax": Decimal(tax)} for one, tax in taxed])
        found.run(recount, [{"id": 3, "count": 99}, {"id": 6, "count": -1}, {"id": 1, "count": 5}])
        yield found


# Times that PySpark hands over as others: before the calendar of today, and in an hour that two
# clocks of the year show.
OLD_DAY, OLD_TIME = dt.date(1, 1, 1), dt.datetime(1582, 10, 10, 1, 2, 3, 456789, dt.UTC)
TWICE = dt.datetime(2026, 11, 1, 1, 30)  # of no zone
EPOCH, MICROSECOND = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.timedelta(microseconds=1)
ASKED: list[tuple[str, Any]] = [
    ("select * from things order by id", None),
    ("select count(*) from things", None),
    ("select count(*), count(kind), count(distinct kind), min(id), max(id) from things;", None),
    ("select sum(price), min(price), max(price) from things", None),
    ("select region, sum(price) total, sum(count) from things group by region order by 1", None),
    ("select price * 3, price + 0.005, price - id, -price from things order by id", None),
    ("select kind, count(*) from things group by kind order by kind", None),
    ("select kind, count(*) from things group by kind order by kind desc", None),
    ("select id from things order by price desc, ts, id limit 7 offset 2", None),
    ("select id, kind from things where kind = 'a\\nb' or kind like 'z%' order by id", None),
    ("select id from things where region = 'O''Hare' and kind is not null order by id", None),
    ("select id from things where kind in ('a', 'ä') and not ok order by id", None),
    ("select id, ts from things where ts > timestamp '2024-03-01 00:00:00' order by ts, id", None),
    ("select min(ts), max(ts), count(ts) from things", None),
    ("select extract(year from ts) y, month(ts) m, count(*) from things group by all order by all",
     None),
    ("select day, year(day), day < date '1970-01-01' from things order by day, id", None),
    ("select cast(day as string) d, cast(id as string) t, cast(price as string) p from things "
     "order by id", None),
    ("select weight, count(*) from things group by weight order by weight, 2", None),
    ("select id from things where weight > 1 order by id", None),
    ("select sum(small), avg(id), avg(small), id / 2 from things group by id order by id", None),
    ("select coalesce(kind, 'none') || '-' || region, upper(kind), length(region) from things "
     "order by id", None),
    ("select t.id, r.tax * t.price from things t join regions r using (region) order by t.id",
     None),
    ("select r.region, count(t.id) from regions r left join things t on t.region = r.region "
     "and t.ok group by r.region order by r.region", None),
    ("with dear as (select * from things where price > 5e6) select region, count(*) from dear "
     "group by region having count(*) > 1 order by 2 desc, 1", None),
    ("select id, row_number() over (partition by region order by price, id) n, "
     "sum(count) over (partition by region order by id rows between 2 preceding and current row) "
     "from things order by id", None),
    ("select id, case when ok then 'yes' when ok is null then 'who knows' else 'no' end "
     "from things order by 1", None),
    ("select id from things where price > (select avg(id) from things) order by id", None),
    ("select region from things union select region from regions order by region", None),
    ("select \"id\", 'say \"id\"' from \"things\" where ID < 9 -- order by nothing\norder by 1",
     None),
    ("select id from things where price > ? and region = ? order by id", [Decimal("10.5"), "süd"]),
    ("select id from things where day < $day and ok = $ok order by id",
     {"day": dt.date(1999, 1, 1), "ok": True}),
    ("select ?::string, ?::string, ? < ?, id as \"a?\" from things where id < ? order by id -- ?",
     [OLD_DAY, TWICE, OLD_TIME, OLD_DAY, 4]),
    ("select $old_day::string, $old_time < $twice, id from things where id < $n and "
     "region <> ':n $old_day' order by id",
     {"old_time": OLD_TIME, "old_day": OLD_DAY, "twice": TWICE, "n": 9}),
    ("select transaction, outcome, reason, count(*) from results group by all order by all", None),
]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one is None) is type(other is None) and one == other


@pytest.mark.parametrize(("query", "parameters"), ASKED)
def test_spark_answers_as_duckdb_does(engine: hg.Engine, query: str, parameters: Any) -> None:
    expected = engine.sql(query, parameters, by="duckdb")
    found = engine.sql(query, parameters, by="spark")
    assert (found.by, expected.by, found.epoch) == ("spark", "duckdb", expected.epoch)
    assert len(found) == len(expected) > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert all(map(same, mine, theirs)), (mine, theirs)
    if query.startswith("select *"):
        assert found.arrow().schema == expected.arrow().schema


@pytest.mark.parametrize(
    "ts",
    [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(1582, 10, 10, tzinfo=dt.UTC),
     *(dt.datetime(2026, 11, 1, hour, 30, tzinfo=dt.UTC) for hour in (5, 6))],
)  # fmt: skip
def test_a_time_that_is_asked_for_is_that_time(engine: hg.Engine, ts: dt.datetime) -> None:
    found = engine.sql("select ? as ts", [ts], by="spark")
    assert [row[0].astimezone(dt.UTC) for row in found] == [ts]
    assert _time_literal(ts) == f"timestamp_micros({(ts - EPOCH) // MICROSECOND}L)"


def test_large_tables_are_asked_where_they_are_and_of_the_epoch_that_is_meant(
    engine: hg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, epoch = "select count from things where id = 3", engine.epoch
    before = engine.sql(query, epoch=epoch - 1).rows()
    monkeypatch.setattr(store_tables, "READ_BYTES_MAX", 1 << 10)

    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows of a large table come to the driver")

    monkeypatch.setattr(reading, "read_table", read)
    found = engine.sql(query)
    assert (found.rows(), found.by, found.epoch) == ([(99,)], "spark", epoch)
    assert "'things', and 0 MiB at most are read into one process" in found.why
    past = engine.sql(query, epoch=epoch - 1)
    assert (past.rows(), past.by, past.epoch) == (before, "spark", epoch - 1)
    assert engine.scan(things, {"id": 3, "region": ""}, "id").by == "spark"
    assert engine.scan(things, "id < 9 and count is not null", ["id"]).by == "spark"
    with pytest.raises(hg.InputError, match=r"ask the engine by engine\.sql"):
        engine.gather(query)
    with pytest.raises(AssertionError, match="come to the driver"):
        engine.sql("select * from regions")  # it is small: DuckDB
    assert engine.sql("select 1").by == "duckdb"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("insert into things select * from things", "PARSE_SYNTAX_ERROR"),
        ("drop view things", "PARSE_SYNTAX_ERROR"),
        ("execute immediate 'drop view things'", "PARSE_SYNTAX_ERROR"),
        ("with a as (select 1) insert into things select * from a", "PARSE_SYNTAX_ERROR"),
        ("set spark.sql.ansi.enabled = false", "PARSE_SYNTAX_ERROR"),
        ("select 1; select 2", "PARSE_SYNTAX_ERROR"),
        ("select nothing from things", "UNRESOLVED_COLUMN"),
        ("select * from thing", "The tables are: things, regions"),
        ("select * from parquet.`/etc`", "TABLE_OR_VIEW_NOT_FOUND"),
        ("select id / (id - id) from things", "DIVIDE_BY_ZERO"),
        ("select cast(region as int) from things", "CAST_INVALID_INPUT"),
    ],
)
def test_what_is_no_query_of_these_tables_is_refused(
    engine: hg.Engine, query: str, told: str
) -> None:
    with pytest.raises(hg.InputError, match="the query cannot run by Spark SQL: ") as found:
        engine.sql(query, by="spark")
    assert told in str(found.value)
    assert engine.sql("select count(*) from things", by="spark").rows() == [(200,)]


def test_who_is_to_answer_is_checked_and_limits_hold(engine: hg.Engine) -> None:
    with pytest.raises(hg.InputError, match="by is 'duckdb', 'spark' or None"):
        engine.sql("select 1", by="sparks")  # type: ignore[arg-type]
    with hg.open(None, tables=[things]) as one, pytest.raises(hg.InputError, match="with shards"):
        one.sql("select 1", by="spark")
    with pytest.raises(hg.InputError, match="no epoch 99"):
        engine.sql("select 1", epoch=99, by="spark")
    with limited(Limit(rows_max=3)):
        assert len(engine.sql("select id from things limit 3", by="spark")) == 3
        with pytest.raises(hg.LimitError, match="more than 3 rows"):
            engine.sql("select id from things", by="spark")


def test_orders_say_where_nulls_are_unless_the_text_does() -> None:
    assert in_words_of_spark("select a from t order by a || b, c desc nulls first, rows ;") == (
        "select a from t order by a || b nulls last, c desc nulls first, rows nulls last"
    )
    inner = "select 'order by a' x, rank() over (order by a rows 1 preceding) from (t) -- order by"
    assert in_words_of_spark(inner) == inner.replace("(order by a ", "(order by a nulls last ")
    assert in_words_of_spark("select '$a' where b = $a and c = '''$\\\\c'") == (
        "select '$a' where b = :a and c = '\\'$\\\\\\\\c'"
    )


def test_a_query_of_a_session_that_has_ended_is_told(
    engine: hg.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a socket says that nobody answers, as Python's side of Spark passes it on."""
    from headgate.spark import asking

    def refused(*_: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(asking, "_show", refused)
    told = "could not answer the query: Spark's own process does not answer .* begin a new session"
    with pytest.raises(hg.StoreError, match=told) as found:
        engine.sql("select * from things", by="spark")
    assert "committed" not in str(found.value)


def test_the_command_asks_spark_of_large_tables_and_says_so(
    engine: hg.Engine, program_environment: dict[str, str]
) -> None:
    program = (
        "import sys; from headgate.query import store_tables; store_tables.READ_BYTES_MAX = 0;"
        "from headgate.cli.commands import app; app(sys.argv[1:])"
    )
    query = "select region, count(*) as n from things group by region order by region limit 2"
    words = [sys.executable, "-c", program, "sql", str(engine.path), query, "--format", "csv"]
    ended = [
        subprocess.run(
            [*words, *more], env=program_environment, capture_output=True, text=True, check=False
        )
        for more in ((), ("--by", "duckdb"))
    ]
    assert [one.returncode for one in ended] == [0, 0], ended
    assert ended[0].stdout == ended[1].stdout
    assert len(ended[0].stdout.splitlines()) == 3
    assert ended[0].stderr.startswith("Spark SQL answers: the tables that it names take about")
    assert ended[1].stderr == ""
