"""Shards on Spark: tasks of a real session give the results, epochs and rows of one process."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.durability import verify
from headgate.shards import sharding
from tests.property.harness import decoded, same_bytes
from tests.unit.shards.bank import (
    FIRST,
    ROUTES,
    TABLES,
    accounts,
    batch,
    in_one_process,
    move,
    rates,
    rows_of,
)

SCHEMA = "what string, src bigint, dst bigint, amount bigint, kind string"


def opened(spark: SparkSession, path: Path, shards: int = 3) -> hg.Engine:
    transactions = list(ROUTES.values())
    if not shards:
        return hg.open(path, tables=TABLES, transactions=transactions)
    return hg.open(path, tables=TABLES, transactions=transactions, spark=spark, shards=shards)


def frame_of(spark: SparkSession, rows: list[dict[str, Any]], ddl: str) -> Any:
    names = [column.split()[0] for column in ddl.split(", ")]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], ddl)


def test_a_sharded_life_is_that_of_one_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharding, "DRIVER_BYTES_MAX", 0)  # all of it on executors
    one, draw = in_one_process(), random.Random(5)
    with opened(spark, tmp_path / "bank") as engine:
        first = frame_of(spark, FIRST["accounts"], "id bigint, owner string, balance bigint")
        assert engine.load(accounts, first) == len(FIRST["accounts"])
        assert engine.load(rates, FIRST["rates"]) == len(FIRST["rates"])
        for _ in range(3):
            events = batch(draw, 25)
            found = engine.run(ROUTES, events, route_by="what")
            expected = one.run(ROUTES, events, route_by="what")
            assert same_bytes(decoded(found), decoded(expected))
            assert rows_of(engine) == rows_of(one)
        assert engine.call(move, src=1, dst=2, amount=1, kind="a").epoch == one.epoch + 1
        one.call(move, src=1, dst=2, amount=1, kind="a")
        assert engine.get("accounts", 2) == one.get("accounts", 2)
        assert engine.counts() == one.counts()
        read = spark.read.format("headgate").option("table", "accounts").load(str(engine.path))
        assert read.rdd.getNumPartitions() == 3
        rows = sorted(map(tuple, read.collect()))
        assert rows == [tuple(row.values()) for row in rows_of(one)["accounts"].to_pylist()]
    assert verify(tmp_path / "bank").is_whole
    with opened(spark, tmp_path / "bank") as engine:  # its workers hold copies of the life before
        events = batch(draw, 25)
        found = engine.run(ROUTES, events, route_by="what")
        assert same_bytes(decoded(found), decoded(one.run(ROUTES, events, route_by="what")))
        assert rows_of(engine) == rows_of(one)


def test_what_executors_lack_and_columns_that_do_not_fit_are_told_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours: Any = ModuleType("driver_only")
    ours.twice = lambda number: 2 * number
    monkeypatch.setitem(sys.modules, "driver_only", ours)

    @hg.transaction(event="id bigint", compiled=False)
    def odd(event, account=accounts.at("id")):
        account.balance += ours.twice(event.id)

    cause = "could not begin: ModuleNotFoundError: No module named 'driver_only'; nothing of it"
    with pytest.raises(hg.StoreError, match=cause):
        hg.open(tmp_path / "odd", tables=TABLES, transactions=[odd], spark=spark, shards=2)
    with opened(spark, tmp_path / "bank") as engine:
        rows = [{"id": "1", "owner": "", "balance": 50}]
        wrong = frame_of(spark, rows, "id string, owner string, balance bigint")
        with pytest.raises(hg.InputError, match="'accounts': column 'id': the column is string"):
            engine.load(accounts, wrong)
        assert engine.load(accounts, FIRST["accounts"]) == len(FIRST["accounts"])


def test_a_query_feeds_an_engine_with_shards_once_across_restarts_with_other_shards(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, past = in_one_process(), {}
    (tmp_path / "events").mkdir()
    for turn, shards in enumerate((2, 3, 0)):
        events = batch(random.Random(turn), 15)
        if turn:
            hg.reshard(tmp_path / "bank", shards)
        with opened(spark, tmp_path / "bank", shards) as engine:
            for table in TABLES:
                engine.load(table, FIRST[table.name])
            pq.write_table(pa.Table.from_pylist(events), tmp_path / "events" / f"{turn}.parquet")
            stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "events"))
            query = (
                stream.writeStream.foreachBatch(engine.sink(ROUTES, route_by="what"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
            one.run(ROUTES, events, route_by="what")
            assert engine.epoch == one.epoch + turn  # a change of shards is an epoch, too
            assert rows_of(engine) == rows_of(one)
            past[engine.epoch] = shards, rows_of(one)["accounts"].to_pylist()
    reader = spark.read.format("headgate").option("table", "accounts")
    for epoch, (shards, rows) in past.items():
        read = reader.option("epoch", epoch).load(str(tmp_path / "bank"))
        assert read.rdd.getNumPartitions() == (shards or 1)
        assert sorted(map(tuple, read.collect())) == [tuple(row.values()) for row in rows]


def test_rows_of_a_frame_that_cannot_be_loaded_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    twice = [*FIRST["accounts"], FIRST["accounts"][3]]
    with opened(spark, tmp_path / "bank") as engine:
        frame = frame_of(spark, twice, "id bigint, owner string, balance bigint")
        with pytest.raises(hg.InputError, match="two of the rows have the key id=3"):
            engine.load(accounts, frame)
        assert engine.counts()["accounts"] == 0
        assert engine.load(accounts, frame.where("balance > 0").distinct()) == 20
