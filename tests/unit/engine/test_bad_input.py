"""Bad input: each has its answer in words, the engine goes on, and what was committed stays."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg

TS = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
accounts = hg.Table("accounts", "id bigint, n bigint", key="id", check="n >= 0")
other = hg.Table("other", "id bigint", key="id")


@hg.transaction(event="ts timestamp, id bigint, n bigint", compiled=False)
def add(event, row=accounts.at("id")):
    row.n += event.n


@hg.transaction(event="ts timestamp, id bigint", compiled=False)
def close(event, row=accounts.at("id")):
    hg.delete(row)


@hg.transaction(event="id bigint", compiled=False)
def foreign(event, row=other.at("id")):
    pass


ROUTES = {"add": add, "close": close}
GOOD = {"kind": "add", "ts": TS, "id": 1, "n": 5}


@pytest.fixture
def engine() -> hg.Engine:
    found = hg.open(None, tables=[accounts], transactions=[add, close])
    found.load(accounts, [{"id": 1, "n": 10}, {"id": 2, "n": 20}])
    return found


def event(**changed: Any) -> dict[str, Any]:
    return {**GOOD, **changed}


# --- malformed events are rejected, each with its reason ------------------------------------------

REJECTED = {
    "null key: id": event(id=None),
    "null order column: ts": event(ts=None),
    "null value: n": event(n=None),
    "null route: kind": event(kind=None),
    "unknown route: fly": event(kind="fly"),
    "out of range: n": event(n=2**63),
    "out of range: id": event(id=float("inf")),
    "not exact: n": event(n=1.5),
    "not exact: ts": event(ts=np.datetime64("2024-01-01T00:00:00.000000001")),
    "not UTF-8: kind": event(kind="\ud800"),
}


@pytest.mark.parametrize("reason", REJECTED)
def test_a_malformed_event_is_rejected_and_the_others_run(engine: hg.Engine, reason: str) -> None:
    events = [GOOD, REJECTED[reason], event(id=2), event(id=3)]
    found = engine.run(ROUTES, events, route_by="kind", order_by="ts").to_pylist()
    outcomes = [(row["position"], row["outcome"], row["reason"]) for row in found]
    assert outcomes == [
        (0, "committed", None),
        (1, "committed", None),
        (2, "aborted", "missing key: accounts"),
        (3, "rejected", reason),
    ]
    assert engine.sql("select n from accounts order by id").rows() == [(15,), (25,)]


def test_a_rejected_event_without_a_route_has_no_transaction(engine: hg.Engine) -> None:
    found = engine.run(ROUTES, [event(kind="fly")], route_by="kind").to_pylist()
    assert found[0]["transaction"] is None


def test_a_null_that_its_transaction_does_not_need_does_no_harm(engine: hg.Engine) -> None:
    found = engine.run(ROUTES, [event(kind="close", n=None), GOOD], route_by="kind").to_pylist()
    assert [row["outcome"] for row in found] == ["committed", "aborted"]


def test_routes_may_be_numbers(engine: hg.Engine) -> None:
    events = [event(kind=1), event(kind=2), event(kind=3)]
    found = engine.run({1: add, 2: close}, events, route_by="kind").to_pylist()
    assert [row["transaction"] for row in found] == ["add", "close", None]
    assert found[2]["reason"] == "unknown route: 3"


# --- input of another shape is an error that names it ---------------------------------------------

Call = Callable[[hg.Engine], Any]
REFUSED: dict[str, tuple[Call, str]] = {
    "a text for a number": (
        lambda engine: engine.run(add, [event(n="five")]),
        "events: column 'n' should be bigint",
    ),
    "a boolean for a number": (
        lambda engine: engine.run(add, [event(n=True)]),
        "column 'n' should be bigint",
    ),
    "a column twice": (
        lambda engine: engine.run(
            add, pa.Table.from_arrays([pa.array([1])] * 4, names=["ts", "id", "n", "n"])
        ),
        "events: the column 'n' is there 2 times; drop or rename the others",
    ),
    "batches of different columns": (
        lambda engine: engine.run(add, [pa.record_batch({"id": [1]}), pa.record_batch({"n": [1]})]),
        "events: cannot be read as one Arrow table",
    ),
    "a name that is no text": (
        lambda engine: engine.run(add, [{1: 1}]),
        "events: a column's name is a text, not 1",
    ),
    "a text for a time": (
        lambda engine: engine.run(add, [event(ts="noon")]),
        "column 'ts' should be timestamp",
    ),
    "an arrow column of another type": (
        lambda engine: engine.run(add, pa.table({"ts": [TS], "id": ["1"], "n": [1]})),
        "events: column 'id': the column is string, the declaration says bigint; cast it to bigint",
    ),
    "a missing column": (
        lambda engine: engine.run(add, [{"ts": TS, "id": 1}]),
        "events: no column 'n'; the columns are: ts, id",
    ),
    "a missing route column": (
        lambda engine: engine.run(ROUTES, [{"ts": TS, "id": 1, "n": 1}], route_by="kind"),
        "events: no column 'kind'",
    ),
    "no events at all": (lambda engine: engine.run(add, None), "hand in an Arrow table"),
    "a dict alone": (lambda engine: engine.run(add, GOOD), "cannot read a dict; hand in"),
    "a text": (lambda engine: engine.run(add, "events.csv"), "cannot read a str; hand in"),
    "items that are no dicts": (
        lambda engine: engine.run(add, [GOOD, 5]),
        "events: item 1 is a int; hand in an Arrow table",
    ),
    "an unknown order column": (
        lambda engine: engine.run(add, [GOOD], order_by="when"),
        "order_by: no event column 'when'; the columns are: ts, id, n",
    ),
    "dict without route_by": (
        lambda engine: engine.run(ROUTES, [GOOD]),
        "needs route_by, the column with its keys",
    ),
    "route_by without dict": (
        lambda engine: engine.run(add, [GOOD], route_by="kind"),
        "route_by goes with a dict of transactions",
    ),
    "no transaction": (
        lambda engine: engine.run("ad", [GOOD]),
        "no transaction 'ad' in this engine; the engine's transactions are: add",
    ),
    "a route to no transaction": (
        lambda engine: engine.run({"add": len}, [GOOD], route_by="kind"),
        "not the function 'len'; declare it with @hg.transaction(event=...)",
    ),
    "a transaction of another engine": (
        lambda engine: engine.run(foreign, [GOOD]),
        "transaction 'foreign' was not opened with this engine; the engine's transactions are: add",
    ),
    "a bad late": (
        lambda engine: engine.run(add, [GOOD], late="drop"),
        "late is 'reject' or 'append', not 'drop'",
    ),
    "a bad watermark": (
        lambda engine: engine.run(add, [GOOD], order_by="ts", watermark="soon"),
        "watermark: 'soon' is not a duration; write it as '10 seconds'",
    ),
    "a watermark without order": (
        lambda engine: engine.run(add, [GOOD], watermark="1 second"),
        "a watermark needs order_by to begin with a timestamp column",
    ),
    "a watermark over numbers": (
        lambda engine: engine.run(add, [GOOD], order_by="n", watermark="1 second"),
        "a watermark needs order_by to begin with a timestamp column",
    ),
    "a bad batch size": (
        lambda engine: engine.run(add, [GOOD], batch_size=0),
        "batch_size is a number of at least 1, not 0",
    ),
    "call with an unknown column": (
        lambda engine: engine.call(add, ts=TS, id=1, n=1, m=2),
        "call 'add': no column 'm'; the columns are: ts, id, n",
    ),
    "call without a column": (
        lambda engine: engine.call(add, ts=TS, id=1),
        "call 'add': the column 'n' is missing",
    ),
    "call with a wrong type": (
        lambda engine: engine.call(add, ts=TS, id=1, n="x"),
        "call 'add': column 'n' should be bigint",
    ),
    "load of an unknown table": (
        lambda engine: engine.load("nowhere", []),
        "no table 'nowhere' in this engine; the tables are: accounts",
    ),
    "a query over an unknown table": (
        lambda engine: engine.sql("select * from nowhere"),
        "The tables are: accounts",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(engine: hg.Engine, what: str) -> None:
    call, words = REFUSED[what]
    with pytest.raises(hg.HeadgateError) as refused:
        call(engine)
    assert words in str(refused.value)
    assert isinstance(refused.value, (hg.InputError, hg.DeclarationError))
    assert engine.epoch == 1
    assert engine.sql("select * from accounts order by id").rows() == [(1, 10), (2, 20)]
    assert engine.run(add, [GOOD]).column("outcome").to_pylist() == ["committed"]


# --- loads ----------------------------------------------------------------------------------------

BAD_LOADS: dict[str, tuple[Any, str]] = {
    "an unknown column": (
        [{"id": 1, "n": 1, "m": 2}],
        "load 'accounts': no column 'm' in the table",
    ),
    "a missing column": ([{"id": 1}], "load 'accounts': no column 'n'; the columns are: id"),
    "a key twice": ([{"id": 1, "n": 1}, {"id": 1, "n": 2}], "two of the rows have the key id=1"),
    "a null": ([{"id": 1, "n": None}], "column 'n': the value in row 0 is null"),
    "a null key": ([{"id": None, "n": 1}], "column 'id': the value in row 0 is null"),
    "a failing check": ([{"id": 7, "n": -1}], "the row id=7 fails the check 'n >= 0'"),
    "a wrong type": ([{"id": 1, "n": "x"}], "load 'accounts': column 'n' should be bigint"),
    "a fraction": (
        pa.table({"id": [1], "n": [1.5]}),
        "column 'n': the value in row 0 is not exact",
    ),
    "a number too large": ([{"id": 2**63, "n": 1}], "'id': the value in row 0 is out of range"),
    "an arrow type": (pa.table({"id": [1], "n": ["1"]}), "column 'n': the column is string"),
    "a column twice": (
        pa.Table.from_arrays([pa.array([1])] * 3, names=["id", "n", "n"]),
        "load 'accounts': the column 'n' is there 2 times",
    ),
}


@pytest.mark.parametrize("what", BAD_LOADS)
def test_a_bad_load_is_refused_and_leaves_the_table_to_be_filled(what: str) -> None:
    rows, words = BAD_LOADS[what]
    engine = hg.open(None, tables=[accounts], transactions=[add])
    with pytest.raises(hg.InputError) as refused:
        engine.load(accounts, rows)
    assert words in str(refused.value)
    assert engine.epoch == 0 and engine.sql("select * from accounts").rows() == []
    assert engine.load(accounts, [{"id": 1, "n": 1}]) == 1


def test_a_table_is_filled_once(engine: hg.Engine) -> None:
    assert engine.load(accounts, [{"id": 9, "n": 9}]) == 0
    engine.run(close, [{"ts": TS, "id": 1}, {"ts": TS, "id": 2}])
    assert engine.sql("select count(*) from accounts").rows() == [(0,)]
    assert engine.load(accounts, [{"id": 9, "n": 9}]) == 0


def test_an_event_that_did_not_commit_does_not_fill_a_table() -> None:
    @hg.transaction(event="id bigint", compiled=False)
    def create(event, row=accounts.at("id", create=True)):
        return hg.abort("not yet")

    engine = hg.open(None, tables=[accounts], transactions=[create])
    assert engine.call(create, id=1).reason == "not yet"
    assert engine.load(accounts, [{"id": 9, "n": 9}]) == 1


# --- opening --------------------------------------------------------------------------------------

BAD_OPENS: dict[str, tuple[Callable[[], Any], str]] = {
    "a missing table": (
        lambda: hg.open(None, tables=[other], transactions=[add]),
        "transaction 'add' uses the table 'accounts', which is not among the tables of this engine",
    ),
    "another table of that name": (
        lambda: hg.open(
            None, tables=[hg.Table("accounts", "id bigint, n bigint", key="id")], transactions=[add]
        ),
        "transaction 'add' uses another definition of the table 'accounts'",
    ),
    "two tables of one name": (
        lambda: hg.open(None, tables=[accounts, accounts]),
        "the table 'accounts' is in tables= twice",
    ),
    "two transactions of one name": (
        lambda: hg.open(None, tables=[accounts], transactions=[add, add]),
        "the transaction 'add' is in transactions= twice",
    ),
    "no table": (
        lambda: hg.open(None, tables=["accounts"]),
        "the text 'accounts', which is not a table; make one with hg.Table(...)",
    ),
    "no transaction": (lambda: hg.open(None, transactions=[len]), "is not a transaction"),
}


@pytest.mark.parametrize("what", BAD_OPENS)
def test_a_program_that_does_not_fit_together_is_refused(what: str) -> None:
    opening, words = BAD_OPENS[what]
    with pytest.raises(hg.DeclarationError) as refused:
        opening()
    assert words in str(refused.value)
