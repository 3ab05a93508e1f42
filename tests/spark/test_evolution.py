"""A migrated store on Spark: every epoch in the names and columns of its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headgate as hg

accounts = hg.Table("accounts", "id bigint, owner string, n int", key="id")
ledger = hg.Table("ledger", "id bigint, n bigint, holder string, twice double", key="id")
CHANGE = (
    hg.Migration("change")
    .rename_table("accounts", "ledger")
    .widen("ledger", "n bigint")
    .add_column("ledger", "holder string", value="upper(owner)", after="n")
    .add_column("ledger", "twice double", value="2 * n")
    .drop_column("ledger", "owner")
    .rename_transaction("put", "set_n")
)


@hg.transaction(event="id bigint, n int", compiled=False)
def put(event: Any, row: Any = accounts.at("id"), out: Any = hg.output("was int")) -> Any:
    out.was = row.n
    row.n = event.n


@hg.transaction(event="id bigint, n bigint", compiled=False)
def set_n(event: Any, row: Any = ledger.at("id"), out: Any = hg.output("was bigint")) -> Any:
    out.was = row.n
    row.n = event.n


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "bank"
    with hg.open(path, tables=[accounts], transactions=[put]) as engine:
        engine.load(accounts, [{"id": i, "owner": f"o{i}", "n": i} for i in range(4)])
        engine.call(put, id=1, n=10)
    with hg.open(path, tables=[ledger], transactions=[set_n], migrations=[CHANGE]) as engine:
        engine.call(set_n, id=2, n=2**40)
    return str(path)


def rows(spark: SparkSession, store: str, **options: Any) -> list[tuple[Any, ...]]:
    frame = spark.read.format("headgate").options(**options).load(store)
    return sorted(tuple(row) for row in frame.collect())


def test_spark_reads_each_epoch_as_it_was_declared(spark: SparkSession, store: str) -> None:
    old = [(0, "o0", 0), (1, "o1", 10), (2, "o2", 2), (3, "o3", 3)]
    assert rows(spark, store, table="accounts", epoch=2) == old
    now = [(0, 0, "O0", 0.0), (1, 10, "O1", 20.0), (2, 2, "O2", 4.0), (3, 3, "O3", 6.0)]
    assert rows(spark, store, table="ledger", epoch=3) == now
    newest = [*now[:2], (2, 2**40, "O2", 4.0), now[3]]
    assert rows(spark, store, table="ledger") == newest
    with pytest.raises(PySparkException, match=r"no table 'accounts'.*at epoch 4.*ledger"):
        rows(spark, store, table="accounts")
    with pytest.raises(PySparkException, match=r"no table 'ledger'.*at epoch 2.*accounts"):
        rows(spark, store, table="ledger", epoch=2)


def test_results_of_a_renamed_transaction_are_one_stream(spark: SparkSession, store: str) -> None:
    frame = spark.read.format("headgate").option("stream", "set_n").load(store)
    found = sorted(tuple(row) for row in frame.select("epoch", "transaction", "was").collect())
    assert found == [(2, "put", 1), (4, "set_n", 2)]
    with pytest.raises(PySparkException, match="no stream 'put'"):
        spark.read.format("headgate").option("stream", "put").load(store)
