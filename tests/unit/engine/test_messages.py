"""What a newcomer gets wrong, at every public entry point: one sentence that says what to do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from tests.unit.engine.refusing import accounts, refusal, stock

wider = hg.Table("accounts", "id bigint, balance double, name string", key="id")
EVENT = "ts timestamp, src bigint, dst bigint, amount double"
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
GOOD = {"ts": NOON, "src": 1, "dst": 2, "amount": 1.0}


def declare() -> hg.Transaction:
    """A transaction of the same name and text each time: what a cell makes when it runs again."""

    @hg.transaction(event=EVENT, compiled=False)
    def transfer(event, src=accounts.at("src"), dst=accounts.at("dst")):
        src.balance -= event.amount
        dst.balance += event.amount

    return transfer


transfer, again = declare(), declare()


@pytest.fixture(scope="module")
def engine() -> Iterator[hg.Engine]:
    with hg.open(None, tables=[accounts, stock], transactions=transfer) as opened:
        opened.load(accounts, [{"id": number, "balance": 100.0} for number in range(3)])
        yield opened


# --- opening --------------------------------------------------------------------------------------

A_LIST = "tables= takes a list of what hg.Table(...) makes, such as tables=[...]"
DIFFERENCE = (
    "columns 'id bigint, balance double, name string' instead of 'id bigint, balance double'"
)
OPENS: dict[str, tuple[dict[str, Any], str]] = {
    "the name of a table": ({"tables": "accounts"}, f"{A_LIST}; this is the text 'accounts'"),
    "a dict of tables": ({"tables": {"accounts": accounts}}, f"{A_LIST}; this is a dict"),
    "no tables": ({"tables": None}, f"{A_LIST}; this is None"),
    "a list of names": (
        {"tables": ["accounts"]},
        "tables= holds the text 'accounts', which is not a table; make one with hg.Table(...)",
    ),
    "tables and transactions in each other's place": (
        {"tables": [transfer], "transactions": [accounts]},
        "tables= holds the transaction 'transfer'; hand it in as transactions=[...]",
    ),
    "a plain function": (
        {"transactions": [len]},
        "transactions= holds the function 'len', which is not a transaction; "
        "make one with @hg.transaction(event=...)",
    ),
    "a table twice": (
        {"tables": [accounts, accounts]},
        "the table 'accounts' is in tables= twice; name it once",
    ),
    "two definitions of a table": (
        {"tables": [accounts, wider]},
        f"two tables are called 'accounts': {DIFFERENCE}; rename one, or leave the older one out",
    ),
    "two definitions of a transaction": (
        {"tables": accounts, "transactions": [transfer, again]},
        "two transactions are called 'transfer'; rename one, or leave the older one out",
    ),
    "a transaction over a table that is not there": (
        {"tables": [stock], "transactions": [transfer]},
        "transaction 'transfer' uses the table 'accounts', which is not among the tables of this "
        "engine; add it to tables=[...]",
    ),
    "a transaction over the table as it was before": (
        {"tables": [wider], "transactions": [transfer]},
        "transaction 'transfer' uses another definition of the table 'accounts' than the engine is "
        "opened with: columns 'id bigint, balance double' instead of 'id bigint, balance double, "
        "name string'; define the transaction again, after the table",
    ),
}


@pytest.mark.parametrize("what", OPENS)
def test_a_bad_opening(what: str) -> None:
    options, words = OPENS[what]
    assert refusal(hg.DeclarationError, lambda: hg.open(None, **options)) == words


PLACE = (
    "hg.open takes first the path of the store's folder, or None to keep everything in memory; not "
)
PLACES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "tables first": ([accounts], {}, f"{PLACE}list"),
    "a number": (5, {}, f"{PLACE}int"),
    "an empty text": ("", {}, f"{PLACE}an empty text"),
    "a retention that is a number": (
        "bank",
        {"retain": 5},
        "retain is hg.Retention(...), such as epochs=1000; not 5",
    ),
    "a durability that is none": (
        "bank",
        {"durability": "fast"},
        "durability 'fast': it is one of sync, group, none",
    ),
    "a recovery that is none": (
        "bank",
        {"recovery": "strng"},
        "recovery is 'strong' or 'weak', changed_code 'refuse' or 'accept'; not 'strng', 'refuse'",
    ),
}


@pytest.mark.parametrize("what", PLACES)
def test_a_bad_place(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, options, words = PLACES[what]
    assert refusal(hg.InputError, lambda: hg.open(path, tables=accounts, **options)) == words


def test_a_file_in_place_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    told = refusal(hg.InputError, lambda: hg.open(tmp_path / "notes", tables=accounts))
    assert told == f"{tmp_path}/notes is a file, and a store is a folder"


def test_a_column_added_without_a_default(tmp_path: Path) -> None:
    hg.open(tmp_path / "bank", tables=accounts).close()
    more = "id bigint, balance double, name string"
    table = hg.Table("accounts", more, key="id", check="balance >= 0")
    assert refusal(hg.DeclarationError, lambda: hg.open(tmp_path / "bank", table)) == (
        "table 'accounts': the store has no column 'name', and its rows need a value for it; "
        "declare a default, as in: name string DEFAULT '', or compute it: "
        "migrations=[hg.Migration('...').add_column('accounts', 'name string', "
        "value='an SQL expression over the row')]"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"snapshots": 0}, "retention of 0 snapshots: at least 1 is needed"),
        ({"snapshots": "two"}, "retention with snapshots='two': it is a whole number"),
        ({"epochs": 1.5}, "retention with epochs=1.5: it is a whole number"),
        ({"epochs": -1}, "retention with epochs=-1: it cannot be below 0"),
    ],
)
def test_a_bad_retention(options: dict[str, Any], words: str) -> None:
    assert refusal(hg.InputError, lambda: hg.Retention(**options)) == words


# --- calls and batches ----------------------------------------------------------------------------

Attempt = Callable[[hg.Engine], Any]
ANOTHER = (
    "this transaction 'transfer' is another definition than the one that the engine was opened "
    "with, as when a cell runs again; close the engine and open it with this one, "
    "or hand in the name 'transfer' to run the engine's own"
)
A_ROUTE = "hand in a transaction or its name, or a dict {value: transaction} with route_by"
LEVELS = (
    "the levels are: PL1 (read-uncommitted), PL2 (read-committed), PL3 (serializable), PL4 (strict)"
)
UNITS = "units: microseconds, milliseconds, seconds, minutes, hours, days, weeks"
SCHEMES = (
    "the schemes are: auto, serial, shares, strata, depth, ready, tstream, lal, lwm, pat, "
    "virtual, nolock, lock, timestamp"
)
CALLS: dict[str, tuple[Attempt, str]] = {
    "a name that is close": (
        lambda engine: engine.call("transfr", **GOOD),
        "no transaction 'transfr' in this engine; the engine's transactions are: transfer; "
        "did you mean 'transfer'?",
    ),
    "a plain function": (
        lambda engine: engine.call(len, **GOOD),  # type: ignore[arg-type]
        "hand in a transaction of the engine or its name, not the function 'len'; "
        "declare it with @hg.transaction(event=...)",
    ),
    "call, defined again": (lambda engine: engine.call(again, **GOOD), ANOTHER),
    "submit, defined again": (lambda engine: engine.submit(again, **GOOD), ANOTHER),
    "call_once, defined again": (lambda engine: engine.call_once("k", again, **GOOD), ANOTHER),
    "run, defined again": (lambda engine: engine.run(again, [GOOD]), ANOTHER),
    "a route, defined again": (
        lambda engine: engine.run({"t": again}, [GOOD], route_by="kind"),
        ANOTHER,
    ),
    "sink, defined again": (lambda engine: engine.sink(again), ANOTHER),
    "a missing column": (
        lambda engine: engine.call(transfer, ts=NOON, src=1, dst=2),
        "call 'transfer': the column 'amount' is missing; an event has: ts, src, dst, amount",
    ),
    "a misspelt column": (
        lambda engine: engine.call(transfer, ts=NOON, src=1, dst=2, amuont=1.0),
        "call 'transfer': no column 'amuont'; the columns are: ts, src, dst, amount; "
        "did you mean 'amount'?",
    ),
    "a column too many": (
        lambda engine: engine.submit(transfer, fee=1, **GOOD),
        "call 'transfer': no column 'fee'; the columns are: ts, src, dst, amount",
    ),
    "a level that is none, in call": (
        lambda engine: engine.call(transfer, isolation="PL9", **GOOD),
        f"isolation 'PL9' is unknown; {LEVELS}; did you mean 'PL4'?",
    ),
    "a level that is none, in submit": (
        lambda engine: engine.submit(transfer, isolation="serial", **GOOD),
        f"isolation 'serial' is unknown; {LEVELS}; did you mean 'serializable'?",
    ),
    "a level that is none, in call_once": (
        lambda engine: engine.call_once("k", transfer, isolation=4, **GOOD),
        f"isolation 4 is unknown; {LEVELS}",
    ),
    "a key that is no text": (
        lambda engine: engine.call_once(5, transfer, **GOOD),  # type: ignore[arg-type]
        "a call's key is a text of 1 to 255 characters",
    ),
    "a list of transactions": (
        lambda engine: engine.run([transfer], [GOOD]),  # type: ignore[arg-type]
        f"{A_ROUTE}; not a list",
    ),
    "a dict of none": (
        lambda engine: engine.run({}, [GOOD], route_by="kind"),
        "the dict of transactions is empty; hand in {value: transaction}",
    ),
    "a dict without route_by": (
        lambda engine: engine.run({"t": "transfer"}, [GOOD]),
        "a dict of transactions needs route_by, the column with its keys",
    ),
    "route_by that is no column": (
        lambda engine: engine.run({"t": transfer}, [GOOD], route_by=5),  # type: ignore[arg-type]
        "a dict of transactions needs route_by, the column with its keys, not 5",
    ),
    "order by a column that is none": (
        lambda engine: engine.run(transfer, [GOOD], order_by="tss"),
        "order_by: no event column 'tss'; the columns are: ts, src, dst, amount; "
        "did you mean 'ts'?",
    ),
    "order downwards": (
        lambda engine: engine.run(transfer, [GOOD], order_by="ts desc"),
        "order_by: 'ts desc' is no column; name columns only, they order upwards",
    ),
    "order by a number": (
        lambda engine: engine.run(transfer, [GOOD], order_by=5),  # type: ignore[arg-type]
        "order_by is an event column or a list of them, not 5",
    ),
    "a watermark without a unit": (
        lambda engine: engine.run(transfer, [GOOD], order_by="ts", watermark="5"),
        f"watermark: '5' is not a duration; write it as '10 seconds' ({UNITS})",
    ),
    "a watermark that is a number": (
        lambda engine: engine.sink(transfer, order_by="ts", watermark=5),  # type: ignore[arg-type]
        f"watermark: 5 is not a duration; write it as '10 seconds' ({UNITS})",
    ),
    "a watermark without order": (
        lambda engine: engine.run(transfer, [GOOD], watermark="5 seconds"),
        "a watermark needs order_by to begin with a timestamp column",
    ),
    "late events dropped": (
        lambda engine: engine.run(transfer, [GOOD], late="drop"),
        "late is 'reject' or 'append', not 'drop'",
    ),
    "a level in other letters": (
        lambda engine: engine.run(transfer, [GOOD], isolation="serialisable"),
        f"isolation 'serialisable' is unknown; {LEVELS}; did you mean 'serializable'?",
    ),
    "a scheme that is none": (
        lambda engine: engine.run(transfer, [GOOD], scheme="seriel"),
        "scheme 'seriel' is unknown; strata, depth, ready take one of transaction, operation, "
        "chain and one of eager, lazy, each behind a hyphen; tstream takes one of everything, "
        f"nothing, socket and static, virtual takes rows; {SCHEMES}; did you mean 'serial'?",
    ),
    "threads in words": (
        lambda engine: engine.run(transfer, [GOOD], threads="two"),  # type: ignore[arg-type]
        "threads is a number of at least 1, or None for all cores; not 'two'",
    ),
    "no threads": (
        lambda engine: engine.run(transfer, [GOOD], scheme="ready", threads=0),
        "threads is a number of at least 1, or None for all cores; not 0",
    ),
    "a batch size in words": (
        lambda engine: engine.run(transfer, [GOOD], batch_size="10"),  # type: ignore[arg-type]
        "batch_size is a number of at least 1, not '10'",
    ),
    "a name that is a number": (
        lambda engine: engine.run(transfer, [GOOD], name=5),  # type: ignore[arg-type]
        "name is a text that tells streams apart, not 5",
    ),
    "a column of another name": (
        lambda engine: engine.run(transfer, [{"ts": NOON, "source": 1, "dst": 2, "amount": 1.0}]),
        "events: no column 'src'; the columns are: ts, dst, amount, source; did you mean 'source'?",
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_bad_call_or_batch(engine: hg.Engine, what: str) -> None:
    attempt, words = CALLS[what]
    before = engine.epoch
    assert refusal(hg.InputError, lambda: attempt(engine)) == words
    assert engine.epoch == before


# --- reading and loading --------------------------------------------------------------------------

ANOTHER_TABLE = (
    "this table 'accounts' is another definition than the one that the engine was opened with: "
    f"{DIFFERENCE}; close the engine and open it with this one, "
    "or hand in the name 'accounts' to use the engine's own"
)
NO_TABLE = (
    "no table 'acounts' in this engine; the tables are: accounts, stock; did you mean 'accounts'?"
)
READS: dict[str, tuple[Attempt, str]] = {
    "load, defined again": (lambda engine: engine.load(wider, []), ANOTHER_TABLE),
    "get, defined again": (lambda engine: engine.get(wider, 1), ANOTHER_TABLE),
    "scan, defined again": (lambda engine: engine.scan(wider), ANOTHER_TABLE),
    "load of a table that is none": (lambda engine: engine.load("acounts", []), NO_TABLE),
    "get of a table that is none": (lambda engine: engine.get("acounts", 1), NO_TABLE),
    "scan of a table that is none": (lambda engine: engine.scan("acounts"), NO_TABLE),
    "rows before the table": (
        lambda engine: engine.load([{"sku": "tea"}], stock),  # type: ignore[arg-type]
        "hand in a table of the engine or its name, not a list",
    ),
    "a transaction for a table": (
        lambda engine: engine.scan(transfer),  # type: ignore[arg-type]
        "hand in a table of the engine or its name, not the transaction 'transfer'",
    ),
    "a misspelt column to load": (
        lambda engine: engine.load(stock, [{"sku": "tea", "house": 1, "cuont": 2}]),
        "load 'stock': no column 'cuont' in the table; the columns are: sku, house, count; "
        "did you mean 'count'?",
    ),
    "a key of another type": (
        lambda engine: engine.get(accounts, "one"),
        "table 'accounts': key column 'id': 'one' cannot be a key of type bigint",
    ),
    "a key that is a list": (
        lambda engine: engine.get(accounts, [1]),
        "table 'accounts': key column 'id': [1] cannot be a key of type bigint",
    ),
    "half a key": (
        lambda engine: engine.get(stock, "tea"),
        "table 'stock': its key is (sku, house), so hand in a tuple of 2; not 'tea'",
    ),
    "more than a key": (
        lambda engine: engine.get(accounts, (1, 2)),
        "table 'accounts': its key is (id), so hand in one value; not (1, 2)",
    ),
    "a column that is none": (
        lambda engine: engine.scan(accounts, columns=["blance"]),
        "table 'accounts': no column 'blance'; the columns are: id, balance; "
        "did you mean 'balance'?",
    ),
    "a condition that is a function": (
        lambda engine: engine.scan(accounts, len),  # type: ignore[arg-type]
        "where is a SQL condition or a dict {column: value}, not a builtin_function_or_method",
    ),
    "no query": (
        lambda engine: engine.sql(None),  # type: ignore[arg-type]
        "a query is a text such as 'select * from accounts'; this is NoneType",
    ),
    "an empty query": (
        lambda engine: engine.sql(" "),
        "a query is a text such as 'select * from accounts'; this is empty",
    ),
    "two queries": (lambda engine: engine.sql("select 1; select 2"), "write one query, not 2"),
    "a parameter that is no list": (
        lambda engine: engine.sql("select ?", 5),  # type: ignore[arg-type]
        "parameters is a list for each ?, or a dict for each $name; not 5",
    ),
    "a query of an unknown table": (
        lambda engine: engine.sql("select * from acounts"),
        "the query cannot run: Catalog Error: Table with name acounts does not exist!\n"
        'Did you mean "accounts"?\nThe tables are: accounts, stock',
    ),
    "a query that changes rows": (
        lambda engine: engine.sql("delete from accounts"),
        "only SELECT reads a store; DELETE is refused",
    ),
    "an epoch in words": (
        lambda engine: engine.sql("select 1", epoch="latest"),  # type: ignore[arg-type]
        "epoch is the number of a commit, or None for the newest; not 'latest'",
    ),
    "an epoch in the future": (
        lambda engine: engine.sql("select 1", epoch=99),
        "no epoch 99 here: an engine in memory keeps only its newest, 1; "
        "open it with a path to read the past",
    ),
}


@pytest.mark.parametrize("what", READS)
def test_a_bad_question(engine: hg.Engine, what: str) -> None:
    attempt, words = READS[what]
    assert refusal(hg.InputError, lambda: attempt(engine)) == words


CLOSED: list[Attempt] = [
    lambda engine: engine.call(transfer, **GOOD),
    lambda engine: engine.submit("transfer", **GOOD),
    lambda engine: engine.call_once("k", transfer, **GOOD),
    lambda engine: engine.run(transfer, [GOOD]),
    lambda engine: engine.sink(transfer),
    lambda engine: engine.load(accounts, []),
    lambda engine: engine.get(accounts, 1),
    lambda engine: engine.scan(accounts),
    lambda engine: engine.sql("select 1"),
]


@pytest.mark.parametrize("attempt", CLOSED)
def test_a_closed_engine(attempt: Attempt) -> None:
    engine = hg.open(None, tables=accounts, transactions=transfer)
    engine.close()
    told = refusal(hg.StoreError, lambda: attempt(engine))
    assert told == "the engine is stopped: it was closed; open it again"


# --- a server -------------------------------------------------------------------------------------

CONNECTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "no address": (
        (None,),
        "None is no address of a server; write it as 'http://127.0.0.1:8000'",
    ),
    "an address without http": (
        ("127.0.0.1:8000",),
        "'127.0.0.1:8000' is no address of a server; write it as 'http://127.0.0.1:8000'",
    ),
    "a token of two lines": (
        ("http://127.0.0.1:1", "a\nb"),
        "the token is a text without spaces, as `headgate serve` shows it",
    ),
    "a token that is a number": (
        ("http://127.0.0.1:1", 5),
        "the token is a text without spaces, as `headgate serve` shows it",
    ),
}


@pytest.mark.parametrize("what", CONNECTS)
def test_a_bad_address(what: str) -> None:
    given, words = CONNECTS[what]
    assert refusal(hg.InputError, lambda: hg.connect(*given)) == words


def test_a_session_that_is_none() -> None:
    told = refusal(hg.InputError, lambda: hg.register(None))  # type: ignore[arg-type]
    assert told == "hg.register takes a SparkSession, not a NoneType"
