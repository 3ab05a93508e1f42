"""A transaction that gets another name: results, keyed calls and held events go along."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.durability import StoreReader
from headgate.query.store_tables import of_stream, query_store

accounts = hg.Table("accounts", "id bigint, n bigint", key="id")
EVENT = "ts timestamp, id bigint, n bigint"


def make(name: str, output: str = "now bigint", event: str = EVENT) -> hg.Transaction:
    def put(event: Any, row: Any = accounts.at("id", create=True), out: Any = hg.output(output)):
        row.n = event.n

    put.__name__ = name
    return hg.transaction(event=event, compiled=False)(put)


def at(second: int, number: int) -> dict[str, Any]:
    moment = datetime.datetime(2026, 1, 1, 0, 0, second, tzinfo=datetime.UTC)
    return {"ts": moment, "id": number, "n": number}


RENAMED = hg.Migration("names").rename_transaction("pay", "transfer")


def opened(path: Path, *names: str, migrations: Any = ()) -> hg.Engine:
    made = [make(name) for name in names]
    return hg.open(path, tables=[accounts], transactions=made, migrations=migrations)


def results_of(path: Path, stream: str) -> list[tuple[int, str]]:
    reader = StoreReader.open(path)
    streams = reader.declared()["streams"]
    found = []
    for epoch, batch in reader.results(1, reader.last_epoch()):
        part = of_stream(batch, stream, streams, epoch)
        found += [(epoch, name) for name in part.column("transaction").to_pylist()]
    return found


def test_results_of_a_renamed_transaction_are_read_under_its_new_name(tmp_path: Path) -> None:
    with opened(tmp_path / "bank", "pay") as engine:
        engine.run("pay", [at(1, 1)])
    with opened(tmp_path / "bank", "transfer", "pay", migrations=[RENAMED]) as engine:
        engine.run("transfer", [at(2, 2)])
        engine.run("pay", [at(3, 3)])
    assert results_of(tmp_path / "bank", "transfer") == [(1, "pay"), (3, "transfer")]
    assert results_of(tmp_path / "bank", "pay") == [(4, "pay")]
    again = hg.Migration("again").rename_transaction("transfer", "move")
    hg.migrate(tmp_path / "bank", [RENAMED, again])
    assert results_of(tmp_path / "bank", "move") == [(1, "pay"), (3, "transfer")]
    found = query_store(StoreReader.open(tmp_path / "bank"), "select transaction from results")
    assert sorted(found.rows()) == [("pay",), ("pay",), ("transfer",)]


def test_an_old_program_is_refused_and_a_taken_name_too(tmp_path: Path) -> None:
    with opened(tmp_path / "bank", "pay", "take") as engine:
        engine.run("pay", [at(1, 1)])
    with pytest.raises(hg.DeclarationError, match="already"):
        hg.migrate(tmp_path / "bank", [hg.Migration("m").rename_transaction("pay", "take")])
    hg.migrate(tmp_path / "bank", [RENAMED])
    with pytest.raises(hg.DeclarationError, match=r"transaction 'pay'.*migration 'names'"):
        opened(tmp_path / "bank", "pay", "take")


@pytest.mark.parametrize("recovery", ["strong", "weak"])
def test_a_keyed_call_is_known_under_the_new_name(tmp_path: Path, recovery: str) -> None:
    path, columns = tmp_path / "bank", at(1, 5)
    with hg.open(path, tables=[accounts], transactions=[make("pay")], recovery=recovery) as engine:
        first = dict(engine.call_once("k", "pay", **columns))
        engine.snapshot()
    with opened(path, "transfer", "pay", migrations=[RENAMED]) as engine:
        assert dict(engine.call_once("k", "transfer", **columns)) == first
        with pytest.raises(hg.ConflictError):
            engine.call_once("k", "pay", **columns)


def test_held_events_wait_on_under_the_new_name(tmp_path: Path) -> None:
    options = {"order_by": "ts", "watermark": "10 seconds"}
    with opened(tmp_path / "bank", "pay") as engine:
        assert len(engine.run("pay", [at(1, 1), at(2, 2)], **options)) == 0
    with opened(tmp_path / "bank", "transfer", "pay", migrations=[RENAMED]) as engine:
        assert len(engine.flush("transfer", **options)) == 2
        assert engine.sql("select count(*) from accounts").rows() == [(2,)]


def test_held_events_that_lack_a_column_are_refused_with_what_to_do(tmp_path: Path) -> None:
    options = {"order_by": "ts", "watermark": "10 seconds"}
    with opened(tmp_path / "bank", "pay") as engine:
        engine.run("pay", [at(1, 1), at(2, 2)], **options)
    wider = make("pay", event=EVENT + ", note string")
    other = make("pay", event=EVENT.replace("n bigint", "n string"))
    for changed, column in ((wider, "note"), (other, "n")):
        with hg.open(tmp_path / "bank", tables=[accounts], transactions=[changed]) as engine:
            event = {**at(30, 3), column: "x"}
            for act in (engine.run, engine.flush):
                given = (changed, [event]) if act == engine.run else (changed,)
                with pytest.raises(hg.InputError, match=rf"held back.*{column!r}"):
                    act(*given, **options)


def test_outputs_that_change_are_united_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with hg.open(path, tables=[accounts], transactions=[make("pay", "now int")]) as engine:
        engine.run("pay", [at(1, 1)])
    more = make("pay", "now bigint, more string")
    with hg.open(path, tables=[accounts], transactions=[more]) as engine:
        engine.run("pay", [at(2, 2)])
    reader = StoreReader.open(path)
    found = query_store(reader, "select epoch, now, more from results order by epoch")
    assert found.arrow().schema.field("now").type == "int64"
    assert [row[0] for row in found.rows()] == [1, 2]
    with pytest.raises(hg.DeclarationError, match=r"'now'.*rename_transaction\('pay'"):
        hg.open(path, tables=[accounts], transactions=[make("pay", "now string")])
    aside = hg.Migration("aside").rename_transaction("pay", "pay_2025")
    texts = make("pay", "now string")
    with hg.open(path, tables=[accounts], transactions=[texts], migrations=[aside]) as engine:
        engine.run("pay", [at(3, 3)])
    assert results_of(path, "pay_2025") == [(1, "pay"), (2, "pay")]
    assert results_of(path, "pay") == [(4, "pay")]
    found = query_store(StoreReader.open(path), "select distinct typeof(now) from results")
    assert found.rows() == [("VARCHAR",)]  # numbers and texts in one column: texts


def test_rows_in_results_show_the_columns_of_all_times(tmp_path: Path) -> None:
    path = tmp_path / "bank"
    with opened(path, "pay") as engine:
        engine.run("pay", [at(1, 1)], updates=True)
    renamed = hg.Migration("m").rename_column("accounts", "n", "amount")
    table = hg.Table("accounts", "id bigint, amount bigint", key="id")

    @hg.transaction(event=EVENT, compiled=False)
    def pay(event, row=table.at("id", create=True), out=hg.output("now bigint")):
        row.amount = event.n

    with hg.open(path, tables=[table], transactions=[pay], migrations=[renamed]) as engine:
        engine.run(pay, [at(2, 2)], updates=True)
    query = "select row.n, row.amount from results order by epoch"
    assert query_store(StoreReader.open(path), query).rows() == [(1, None), (None, 2)]
