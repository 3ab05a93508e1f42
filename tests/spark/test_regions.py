"""Transactional regions: one event over several tables, two engines in one Spark job.

The first region's results, with the rows it installed, are an ordinary stream; the second region
takes them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import headgate as hg

EVENTS = "ts bigint, request bigint, src bigint, dst bigint, amount bigint"
requests = hg.Table("requests", "id bigint, kind string", key="id", unique=["kind"])
accounts = hg.Table("accounts", "id bigint, balance bigint", key="id", check="balance >= 0")
lows = hg.Table("lows", "account bigint, least bigint DEFAULT 1000000, seen bigint", key="account")


@hg.transaction(event=EVENTS, compiled=False)
def transfer(
    event: Any,
    request: Any = requests.at("request", create=True),
    src: Any = accounts.at("src"),
    dst: Any = accounts.at("dst"),
) -> Any:
    """The validator and the balances of the paper's bank: all of it is one transaction."""
    request.kind = "k" + str(int(event.request) % 40)
    src.balance -= event.amount
    dst.balance += event.amount


@hg.transaction(event="ts bigint, account bigint, balance bigint", compiled=False)
def lowest(event: Any, low: Any = lows.at("account", create=True)) -> Any:
    low.least = min(low.least, event.balance)
    low.seen += 1


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[hg.Engine, hg.Engine]]:
    bank = hg.open(tmp_path / "bank", [requests, accounts], [transfer])
    audit = hg.open(tmp_path / "audit", [lows], [lowest])
    bank.load(accounts, [{"id": number, "balance": 100} for number in range(5)])
    with bank, audit:
        yield bank, audit


def write_events(folder: Path) -> None:
    folder.mkdir()
    for batch in range(3):
        places = range(30 * batch, 30 * batch + 30)
        columns = {
            "ts": list(places),
            "request": list(places),
            "src": [place % 5 for place in places],
            "dst": [(place * 3 + 1) % 5 for place in places],
            "amount": [place * 7 % 90 for place in places],
        }
        pq.write_table(pa.table(columns), folder / f"{batch}.parquet")


def through(frame: DataFrame, sink: Any, checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_two_regions_in_one_job_and_the_rows_of_the_first_in_the_second(
    spark: SparkSession, tmp_path: Path, engines: tuple[hg.Engine, hg.Engine]
) -> None:
    bank, audit = engines
    write_events(tmp_path / "events")
    events = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).parquet(
        str(tmp_path / "events")
    )  # fmt: skip
    through(events, bank.sink(transfer, order_by="ts", updates=True), tmp_path / "c1")

    results = spark.readStream.format("headgate").option("stream", "transfer")
    installed = results.load(str(tmp_path / "bank")).where("outcome = 'committed'")
    balances = installed.selectExpr("ts", "src.id as account", "src.balance as balance")
    through(balances, audit.sink(lowest, order_by="ts"), tmp_path / "c2")

    recorded = spark.read.format("headgate").option("stream", "transfer")
    rows = recorded.load(str(tmp_path / "bank")).orderBy("ts").collect()
    assert len(rows) == 90
    reasons = {row.reason for row in rows if row.outcome == "aborted"}
    # A later request of one kind breaks the validator's promise: nothing of it is applied.
    assert reasons == {"unique failed: requests: kind", "check failed: accounts: balance >= 0"}
    assert all((row.src is None) == (row.outcome == "aborted") for row in rows)
    assert bank.sql("select sum(balance) from accounts").rows() == [(500,)]
    done = [row for row in rows if row.outcome == "committed"]
    assert bank.sql("select count(*) from requests").rows() == [(len(done),)]
    expected: dict[int, list[int]] = {}
    for row in done:
        expected.setdefault(row.src.id, []).append(row.src.balance)
    found = audit.sql("select account, least, seen from lows").rows()
    assert sorted(found) == sorted((a, min(seen), len(seen)) for a, seen in expected.items())
