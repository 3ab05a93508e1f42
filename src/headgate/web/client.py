"""The client: `hg.connect`, a Headgate server's tables and transactions from another process.

A call carries a key, its own or one made for it, so that it can be sent again when an answer is
lost: it still runs once. Whatever goes wrong is an error of Headgate's.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pyarrow as pa

from headgate.engine.results import Result
from headgate.errors import (
    ConflictError,
    HeadgateError,
    InputError,
    LimitError,
    ServerError,
    not_among,
    shown,
)
from headgate.query.answer import Answer
from headgate.state.objects import unwrapped
from headgate.state.schema import Schema
from headgate.state.types import ColumnType
from headgate.web.bodies import ARROW, EPOCH_HEADER, sent_parameters, write_json
from headgate.web.json_values import reader_of, sent_value

RETRIES = 5
FIRST_PAUSE_SECONDS = 0.1
_AGAIN = (httpx.TransportError,)
Types = dict[str, ColumnType]  # of columns, by name


def connect(url: str, token: str | None = None, *, timeout_seconds: float = 60.0) -> Client:
    """A client of the server at this address; nothing is sent before the first question.

    >>> with connect("http://127.0.0.1:8000", "token") as client:           # doctest: +SKIP
    ...     client.sql("select sum(balance) from accounts").rows()
    ...     client.call_once("order 17", "transfer", src=1, dst=2, amount=5.0).committed
    [(1000.0,)]
    True
    """
    _check_address(url, token, timeout_seconds)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    try:
        http = httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds)
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise InputError(f"{url!r} is no address of a server: {error}") from None
    return Client(http)


def _check_address(url: Any, token: Any, timeout_seconds: Any) -> None:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is no address of a server; write it as 'http://127.0.0.1:8000'")
    if token is not None and (not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token)):
        raise InputError("the token is a text without spaces, as `headgate serve` shows it")
    is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
    if not is_number or not timeout_seconds > 0:
        raise InputError(f"timeout_seconds is a number above 0, not {timeout_seconds!r}")


class Client:
    """A server's tables and transactions; made by `hg.connect`, for use by one thread at a time."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._types: dict[str, tuple[Types, Types]] = {}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables by name: columns and their types, key and check."""
        found = self._ask("GET", "/tables").json()["tables"]
        return {table["name"]: table for table in found}

    def transactions(self) -> dict[str, dict[str, Any]]:
        """The transactions by name: the columns of their events and outputs."""
        found = self._ask("GET", "/transactions").json()["transactions"]
        return {transaction["name"]: transaction for transaction in found}

    def sql(self, query: str, parameters: Any = None, epoch: int | None = None) -> Answer:
        """Run one SELECT over one epoch; the answer gives Arrow, pandas or rows."""
        body = {"query": query, "parameters": sent_parameters(query, parameters), "epoch": epoch}
        answer = self._ask("POST", "/sql", body, {"accept": ARROW})
        with pa.ipc.open_stream(answer.content) as stream:
            return Answer(stream.read_all(), int(answer.headers[EPOCH_HEADER]))

    def get(self, table: str, key: Any) -> dict[str, Any] | None:
        """The row with this key (a tuple when the key has several columns), or None."""
        declared = self.tables().get(table)
        if declared is None:
            among = not_among(table, self.tables(), "tables")
            raise InputError(f"no table {table!r} on the server; {among}")
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(declared["key"]):
            many = len(declared["key"])
            wanted = f"a tuple of {many}" if many > 1 else "one value"
            raise InputError(
                f"table {table!r}: its key is ({', '.join(declared['key'])}), so hand in {wanted}; "
                f"not {shown(key)}"
            )
        given = {name: _text(value) for name, value in zip(declared["key"], values, strict=True)}
        answer = self._send("GET", f"/tables/{table}/row", None, {}, given)
        if answer.status_code == 404 and _code(answer) == "no_row":
            return None
        row: dict[str, Any] = _checked(answer).json()["row"]
        return _typed(row, _types_of(declared["columns"]))

    def call(self, transaction: str, /, **columns: Any) -> Result:
        """Run a transaction over one event; sent again when the answer is lost, but run once."""
        return self.call_once(uuid.uuid4().hex, transaction, **columns)

    def call_once(self, key: str, transaction: str, /, **columns: Any) -> Result:
        """As `call`, with a key of your own: one call for each key, whoever sends it."""
        kinds = self._event(transaction)
        body = {name: sent_value(value, kinds.get(name)) for name, value in columns.items()}
        headers = {"idempotency-key": _checked_key(key)}
        answer = self._ask("POST", f"/transactions/{_quoted(transaction)}", body, headers)
        return Result(_typed(orjson.loads(answer.content), self._output(transaction)))

    def follow(
        self, transaction: str | None = None, after: str | int | None = None
    ) -> Iterator[Result]:
        """Results as they are committed, for ever: all behind `after`, or those from now on.

        `after` is an epoch, "earliest", or the place `epoch/position` of a result. When the
        connection ends, it is made again, and no result is left out or given twice.
        """
        path = (
            "/results" if transaction is None else f"/transactions/{_quoted(transaction)}/results"
        )
        place = "latest" if after is None else str(after)
        failures = 0
        while True:
            try:
                for seen, result in self._events(path, place):
                    failures, place = 0, seen
                    if result is not None:
                        yield result
            except _AGAIN as error:
                failures += 1
                if failures > RETRIES:
                    raise ServerError(f"cannot reach the server: {error}") from None
            time.sleep(FIRST_PAUSE_SECONDS * 2**failures)

    def _events(self, path: str, place: str) -> Iterator[tuple[str, Result | None]]:
        headers = {"accept": "text/event-stream"}
        self._refuse_closed()
        with contextlib.ExitStack() as stack:
            with _sendable():
                asked = self._http.stream("GET", path, params={"after": place}, headers=headers)
                answer = stack.enter_context(asked)
            if answer.status_code != 200:
                answer.read()
                _checked(answer)
            # Now the place is fixed, also when the connection ends before the first result.
            yield answer.headers.get("headgate-place", place), None
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif fields:
                    found = _event(fields)
                    fields = {}
                    if found is not None:
                        yield found[0], self._result(found[1])

    def _result(self, row: dict[str, Any]) -> Result:
        name = row.get("transaction")
        return Result(_typed(row, self._output(name) if name is not None else {}))

    def _output(self, transaction: str) -> Types:
        """The types of a transaction's output columns."""
        return self._known(transaction)[1]

    def _event(self, transaction: str) -> Types:
        """The types of a transaction's event columns."""
        return self._known(transaction)[0]

    def _known(self, transaction: str) -> tuple[Types, Types]:
        """The types of a transaction's event and output, asked for once."""
        if transaction not in self._types:
            found = self.transactions().get(transaction)
            if found is None:
                return {}, {}
            self._types[transaction] = _types_of(found["event"]), _types_of(found["output"])
        return self._types[transaction]

    def _ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return _checked(self._send(method, path, body, headers or {}, None))

    def _send(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], given: Any
    ) -> httpx.Response:
        """Send it, and again when that fails on the way: every question may be asked twice."""
        content = None if body is None else write_json(body)
        self._refuse_closed()
        more = {} if body is None else {"content-type": "application/json"}
        for attempt in range(RETRIES + 1):
            try:
                with _sendable():
                    answer = self._http.request(
                        method, path, content=content, headers={**headers, **more}, params=given
                    )
                if answer.status_code != 503 or attempt == RETRIES:
                    return answer
            except _AGAIN as error:
                if attempt == RETRIES:
                    address = self._http.base_url
                    raise ServerError(
                        f"cannot reach the server at {address}: {error}; "
                        "is `headgate serve` running there?"
                    ) from None
            time.sleep(FIRST_PAUSE_SECONDS * 2**attempt)
        raise ServerError("the server is busy")

    def _refuse_closed(self) -> None:
        if self._http.is_closed:
            raise ServerError("this client was closed; make another with hg.connect")

    def close(self) -> None:
        """Close the connection; closing twice is fine."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<client of {self._http.base_url}>"


def _checked_key(key: Any) -> str:
    if not isinstance(key, str) or not re.fullmatch(r"[!-~]{1,255}", key):
        raise InputError(f"a call's key is 1 to 255 visible characters of ASCII, not {shown(key)}")
    return key


def _quoted(name: Any) -> str:
    """A name as a part of an address, whatever stands in it."""
    if not isinstance(name, str) or not name:
        raise InputError(f"a transaction goes by its name here, not {name!r}")
    with _sendable():
        return quote(name, safe="")


@contextlib.contextmanager
def _sendable() -> Iterator[None]:
    """InputError when an address cannot be made of what was handed in."""
    try:
        yield
    except (UnicodeEncodeError, httpx.InvalidURL) as error:
        raise InputError(f"this cannot be sent: {error}") from None


def _event(fields: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
    if fields.get("event") == "error":
        told = orjson.loads(fields["data"])["error"]
        raise InputError(f"the server ends the results: {told['message']}")
    if "data" not in fields:
        return None
    row: dict[str, Any] = orjson.loads(fields["data"])
    return fields["id"], row


def _checked(answer: httpx.Response) -> httpx.Response:
    """The answer; an error of Headgate's when the server refused."""
    if answer.status_code == 200:
        return answer
    kind = _ERRORS.get(answer.status_code, InputError)
    if answer.status_code >= 500:
        kind = ServerError
    if answer.status_code == 409 and _code(answer) != "key_reused":
        kind = InputError
    raise kind(f"{_told(answer).get('message', answer.reason_phrase)} ({answer.status_code})")


_ERRORS: Mapping[int, type[HeadgateError]] = {409: ConflictError, 422: LimitError}


def _code(answer: httpx.Response) -> str:
    return str(_told(answer).get("code", ""))


def _told(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        told = orjson.loads(answer.content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}


def _text(value: Any) -> str:
    """A value of a key in an address."""
    value = unwrapped(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    sent = sent_value(value)
    return str(sent).lower() if isinstance(sent, bool) else str(sent)


def _types_of(columns: list[dict[str, str]]) -> dict[str, ColumnType]:
    return {one["name"]: Schema.parse(f"x {one['type']}")["x"].type for one in columns}


def _typed(row: Mapping[str, Any], types: Mapping[str, ColumnType]) -> dict[str, Any]:
    """A row with Python's own decimals, times and dates."""
    return {
        name: value if value is None or name not in types else reader_of(types[name])(value)
        for name, value in row.items()
    }
