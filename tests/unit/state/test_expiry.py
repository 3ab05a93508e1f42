"""Expiry as a declaration: what is refused, and what is known of it in a store."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import headgate as hg
from headgate.testing import SimulatedDisk

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
BAD = {
    "nothing + 1 day": "no column 'nothing'",
    "n + 1 day": "column 'n' is a bigint; rows expire by a timestamp or a date",
    "ts + 1 fortnight": "'1 fortnight' is not a duration",
    "ts - 1 day": "is not a column and a duration",
    "ts +": "is not a duration",
    "ts + 4000000 days": "is longer than 10,000 years",
}


def table(expires: Any = None, columns: str = "id bigint, ts timestamp, n bigint") -> hg.Table:
    return hg.Table("rows", columns, key="id", expires=expires)


@pytest.mark.parametrize("given", BAD)
def test_what_is_no_time_is_refused_where_it_is_declared(given: str) -> None:
    with pytest.raises(hg.DeclarationError, match="expires") as caught:
        table(given)
    assert BAD[given] in str(caught.value)


def test_expires_is_a_text() -> None:
    with pytest.raises(hg.DeclarationError, match="write it as 'ts"):
        table(30)


def declared(rows: hg.Table) -> hg.Transaction:
    @hg.transaction(event="at timestamp, id bigint, ts timestamp", compiled=False)
    def put(event, row=rows.at("id", create=True)):
        row.ts = event.ts

    return put


def run(engine: hg.Engine, put: hg.Transaction, minute: int, id: int, back: int = 0) -> None:
    now = NOON + dt.timedelta(minutes=minute)
    event = {"at": now, "id": id, "ts": now - dt.timedelta(minutes=back)}
    engine.run(put, [event], order_by="at")


def ids(engine: hg.Engine, column: str = "id") -> list[int]:
    return [row[column] for row in engine.sql(f"select {column} from rows order by 1").dicts()]


def test_expires_is_added_changed_and_dropped_from_opening_to_opening() -> None:
    disk = SimulatedDisk()
    for expires, minute, left in (
        (None, 0, [0]),
        ("ts + 3 minutes", 2, [0, 2]),
        ("ts + 3 minutes", 4, [2, 4]),
        ("ts + 1 minute", 6, [6]),
        ("`ts`", 8, []),
        (None, 10, [10]),
    ):
        rows = table(expires)
        put = declared(rows)
        with hg.open("/s", tables=[rows], transactions=[put], disk=disk) as engine:
            run(engine, put, minute, minute)
            assert ids(engine) == left, (expires, minute)


def test_a_migration_that_renames_the_column_keeps_what_expires() -> None:
    disk, rows = SimulatedDisk(), table("ts + 3 minutes")
    with hg.open("/s", tables=[rows], disk=disk) as engine:
        engine.load(rows, [{"id": 1, "ts": NOON, "n": 0}])
    renamed = hg.Table(
        "rows", "id bigint, since timestamp, n bigint", key="id", expires="since + 3 minutes"
    )
    migration = hg.Migration("since").rename_column("rows", "ts", "since")
    with hg.open("/s", tables=[renamed], disk=disk, migrations=[migration]) as engine:
        assert engine.tables["rows"].expires is not None
        assert engine.tables["rows"].expires.column == "since"


def test_calls_and_streams_without_a_time_see_what_the_time_so_far_leaves() -> None:
    rows = table("ts + 3 minutes")
    put = declared(rows)
    with hg.open(None, tables=[rows], transactions=[put]) as engine:
        run(engine, put, 0, 1)
        engine.call(put, at=NOON + dt.timedelta(days=1), id=2, ts=NOON)
        assert ids(engine) == [1, 2], "a call moves no time"
        run(engine, put, 9, 3)
        engine.call(put, at=NOON, id=4, ts=NOON)
        assert ids(engine) == [3], "and what it makes that is due does not stay"
        engine.run(put, [{"at": NOON, "id": 5, "ts": NOON}])
        assert ids(engine) == [3]
        assert engine.metrics().expired == {"rows": 4}
        assert 'headgate_expired_total{table="rows"} 4' in hg.prometheus(engine)


def test_expired_rows_are_gone_from_the_files_of_the_store() -> None:
    disk, rows = SimulatedDisk(), table("ts + 3 minutes")
    put = declared(rows)
    with hg.open("/s", tables=[rows], transactions=[put], disk=disk) as engine:
        run(engine, put, 0, 1)
        run(engine, put, 2, 2)
        run(engine, put, 3, 3)
        assert ids(engine) == [2, 3]
        assert engine.sql("select id from rows order by 1", epoch=2).rows() == [(1,), (2,)]
    with hg.open("/s", tables=[rows], transactions=[put], disk=disk) as engine:
        assert ids(engine) == [2, 3]
        engine.run(put, [{"at": NOON, "id": 9, "ts": NOON}], order_by="at")
        assert ids(engine) == [2, 3], "the time of the table is as it was"
