"""What a client is told when it asks for what is not there, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headgate as hg
from headgate.web.client import Client
from tests.web.bank import ACCOUNTS
from tests.web.conftest import PROGRAM, Running, serving


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(PROGRAM, store=Path(tmp_path_factory.mktemp("client")) / "bank") as server:
        yield server


EVENT = {"src": 1, "dst": 2, "amount": 1}
TOLD: dict[str, tuple[Callable[[Client], Any], str]] = {
    "a misspelt transaction": (
        lambda client: client.call("transfr", **EVENT),
        "no transaction 'transfr'; the transactions are: transfer, note; "
        "did you mean 'transfer'? (404)",
    ),
    "a name that is a path": (
        lambda client: client.call("../tables", **EVENT),
        "there is nothing at this address (404)",
    ),
    "no name": (
        lambda client: client.call(5, **EVENT),  # type: ignore[arg-type]
        "a transaction goes by its name here, not 5",
    ),
    "a misspelt column": (
        lambda client: client.call("transfer", src=1, dst=2, amuont=1),
        "call 'transfer': no column 'amuont'; the columns are: src, dst, amount; "
        "did you mean 'amount'? (400)",
    ),
    "a missing column": (
        lambda client: client.call("transfer", src=1, dst=2),
        "call 'transfer': the column 'amount' is missing; an event has: src, dst, amount (400)",
    ),
    "a value that JSON has not": (
        lambda client: client.call("transfer", src=object(), dst=2, amount=1),
        "this cannot be sent: Type is not JSON serializable: object",
    ),
    "a key that is a number": (
        lambda client: client.call_once(5, "transfer", **EVENT),  # type: ignore[arg-type]
        "a call's key is 1 to 255 visible characters of ASCII, not 5",
    ),
    "a key that no header takes": (
        lambda client: client.call_once("ü", "transfer", **EVENT),
        "a call's key is 1 to 255 visible characters of ASCII, not 'ü'",
    ),
    "a misspelt table": (
        lambda client: client.get("acounts", 1),
        "no table 'acounts' on the server; the tables are: accounts, things; "
        "did you mean 'accounts'?",
    ),
    "half a key": (
        lambda client: client.get("things", "tea"),
        "table 'things': its key is (code, day), so hand in a tuple of 2; not 'tea'",
    ),
    "an epoch to come": (
        lambda client: client.sql("select 1", epoch=999),
        "no epoch 999: this store has the epochs 0 to 1 (400)",
    ),
}


@pytest.mark.parametrize("what", TOLD)
def test_a_client_is_told_what_is_wrong(running: Running, what: str) -> None:
    attempt, words = TOLD[what]
    with running.client() as client, pytest.raises(hg.InputError) as refused:
        attempt(client)
    assert str(refused.value) == words


def test_a_wrong_token_is_named(running: Running) -> None:
    with hg.connect(running.url, "wrong") as client, pytest.raises(hg.InputError) as refused:
        client.tables()
    assert str(refused.value) == "the server does not know this token (401)"


def test_a_closed_client_says_so(running: Running) -> None:
    client = running.client()
    client.close()
    for attempt in (client.tables, lambda: next(client.follow())):
        with pytest.raises(hg.ServerError, match=r"was closed; make another with hg\.connect"):
            attempt()


def test_where_nobody_listens_the_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.web.client.RETRIES", 0)
    with hg.connect("http://127.0.0.1:1") as client, pytest.raises(hg.ServerError) as refused:
        client.tables()
    assert str(refused.value) == (
        "cannot reach the server at http://127.0.0.1:1: [Errno 111] Connection refused; "
        "is `headgate serve` running there?"
    )


def test_an_answer_over_http_is_rows_and_an_arrow_stream(running: Running) -> None:
    with running.client() as client:
        answer = client.sql("select id, balance from accounts order by id")
    assert repr(answer) == f"<answer of {ACCOUNTS} rows at epoch 1: id, balance>"
    assert (next(iter(answer)), len(answer)) == ((0, 100), ACCOUNTS)
    assert pa.table(answer).num_rows == ACCOUNTS
    assert duckdb.sql("select sum(balance) from answer").fetchall() == [(100 * ACCOUNTS,)]
    assert answer._repr_html_().count("<tr>") == 21
