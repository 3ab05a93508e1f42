"""The application: which address does what.

Whatever takes long runs in threads, so that the event loop always has time for the next request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headgate.durability import StoreReader
from headgate.engine.calls.answers import columns_of
from headgate.engine.calls.calling import Call
from headgate.errors import InputError, not_among
from headgate.query.sql import Limit
from headgate.query.store_tables import Origin, origin_of, recorded_names
from headgate.state.schema import Schema
from headgate.web import server_metrics as counting
from headgate.web.admission import AllowedOrigins, Tokens
from headgate.web.bodies import (
    JSON,
    Body,
    chosen_media,
    encode,
    plain,
    read_json,
    read_parameters,
    sent_parameters,
)
from headgate.web.collector import Collector
from headgate.web.door import Door, header, read_body
from headgate.web.following import Following, ResultPlace, read_place
from headgate.web.json_values import EventReader, read_key
from headgate.web.limits import Limits, Refused, Turns, busy
from headgate.web.openapi import EVENTS, KEY_HEADER, KEY_PATTERN, make_document
from headgate.web.target import Served
from headgate.web.worker_pool import QueryWorkers, Question

READ_THREADS = 2
PIECE_BYTES = 1 << 16
STOP_AGAIN_SECONDS = 0.2
TOLD_MAX = 16_384
CALLS_PATH = "/transactions/"
_KEY = re.compile(KEY_PATTERN)


class Endpoint:
    """An address that speaks ASGI itself."""

    def __init__(self, answer: ASGIApp) -> None:
        self._answer = answer
        self.__name__ = "call"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


class ShortWay:
    """The router, and before it the one address that is asked for most: a known transaction's.

    To look through all addresses takes longer than to read a call and to run it.
    """

    def __init__(self, call: Endpoint, names: Collection[str], router: Router) -> None:
        self._call, self._router = call, router
        self._names = {CALLS_PATH + name: name for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._names.get(scope["path"])
        if name is None or scope["type"] != "http" or scope["method"] != "POST":
            await self._router(scope, receive, send)
            return
        scope["endpoint"], scope["path_params"] = self._call, {"name": name}
        await self._call(scope, receive, send)


class ClosingResponse(StreamingResponse):
    """An answer bit by bit whose generator ends with it, also when the client leaves half-way.

    One that is only dropped ends when Python's collector comes by: what it counts would stay.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            pieces: Any = self.body_iterator
            await pieces.aclose()


class Application:
    """One served engine or store over HTTP."""

    def __init__(self, served: Served, tokens: Tokens, limits: Limits, version: str) -> None:
        self._served = served
        self._tokens = tokens
        self._limits = limits
        self._version = version
        self._metrics = counting.ServerMetrics()
        self._query_threads = ThreadPoolExecutor(limits.query_workers, "headgate-query")
        self._turns = Turns(limits.query_workers, limits.queries_waiting_max, "queries")
        self._workers = QueryWorkers(limits)
        self._read_threads = ThreadPoolExecutor(READ_THREADS, "headgate-read")
        self._following = Following(self._read_threads)
        self._readers = {name: EventReader(found) for name, found in served.transactions.items()}
        self._collector = Collector(served.calls)
        self._unread_bytes = 0
        self._told: dict[tuple[int, int], None] = {}  # the places of the last keyed calls

    def door(self, origins: AllowedOrigins | None = None) -> Door:
        """The whole application, as a server runs it."""
        call = Endpoint(self.call)
        routes = [
            Route(CALLS_PATH + "{name}", call, methods=["POST"]),
            Route("/transactions/{name}/results", self.follow, methods=["GET"]),
            Route("/transactions", self.list_transactions, methods=["GET"]),
            Route("/results", self.follow, methods=["GET"]),
            Route("/sql", self.sql, methods=["POST"]),
            Route("/tables/{name}/row", self.row, methods=["GET"]),
            Route("/tables", self.list_tables, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.json", self.document, methods=["GET"]),
        ]
        inside = ShortWay(call, self._readers, Router(routes, redirect_slashes=False))
        return Door(inside, self._tokens, self._limits, self._metrics, origins)

    def warm(self) -> None:
        """Begin to start what the first query needs."""
        self._query_threads.submit(self._workers.warm)

    def end(self) -> None:
        """The server is about to end: no one is to wait for what has no end."""
        self._workers.close()
        self._following.end()

    def close(self) -> None:
        """End the queries at once, and the threads when the calls that run are done."""
        self._workers.close()
        self._collector.close()
        for threads in (self._query_threads, self._read_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    # --- calls --------------------------------------------------------------------------------

    async def call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one transaction over the event in the body; by hand, as it is what is called most."""
        name = scope["path_params"]["name"]
        reader = self._readers.get(name)
        if reader is None:
            raise self._no_transaction(name)
        key = header(scope, b"idempotency-key")
        if key is not None and _KEY.fullmatch(key) is None:
            raise InputError(f"the header {KEY_HEADER} is 1 to 255 visible characters of ASCII")
        if scope["query_string"]:
            raise InputError("a call takes no parameters in its address")
        columns = reader.read(await self._json_body(scope, receive))
        if self._collector.count >= self._limits.calls_waiting_max:
            raise busy("calls")
        began, before = perf_counter(), 0 if key is None else self._served.epoch()
        result = columns_of(await self._collector.submit(Call(reader.transaction, columns, key)))
        if key is None or self._is_new(result, before):
            self._metrics.note_call(name, result["outcome"], perf_counter() - began)
        else:
            self._metrics.note_replay(name)
        body = encode(result if reader.is_plain else plain(result))
        headers = [(b"content-type", b"application/json"), _length(body)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _is_new(self, result: dict[str, Any], before: int) -> bool:
        """Whether a keyed call was run for this request, and not for an earlier one with its key.

        Its epoch is then younger than the request, and no other request was told of its place.
        """
        place = result["epoch"], result["position"]
        if place[0] <= before or place in self._told:
            return False
        self._told[place] = None
        if len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]
        return True

    def _no_transaction(self, name: str) -> Refused:
        if name in self._served.streams:
            why = "this server reads a store that another process writes: it takes no calls"
            return Refused(409, "read_only", why)
        among = not_among(name, self._readers, "transactions")
        return Refused(404, "no_transaction", f"no transaction {name!r}; {among}")

    async def _json_body(self, scope: Scope, receive: Receive) -> Any:
        media = header(scope, b"content-type")
        if media not in (None, JSON) and str(media).partition(";")[0].strip().lower() != JSON:
            raise Refused(415, "not_json", f"send the body as {JSON}")
        body = await read_body(receive, self._limits.body_bytes_max)
        return read_json(body)

    # --- queries ------------------------------------------------------------------------------

    async def sql(self, request: Request) -> Response:
        """Run one SELECT."""
        _refuse_query(request)
        media = chosen_media(header(request.scope, b"accept"))
        query, parameters, epoch = _read_query(
            await self._json_body(request.scope, request.receive)
        )
        if self._unread_bytes > self._limits.unread_bytes_max:
            raise busy("answers")
        question = Question(query, parameters, media)
        limit = Limit(self._limits.rows_max, self._limits.query_memory)

        def run() -> Body:
            tables, seen = self._served.gather(query, epoch)
            return self._workers.run(question, tables, seen, limit)

        return self._response(await self._run_query(run, limit, request))

    async def _run_query(self, run: Any, limit: Limit, request: Request) -> Body:
        """Run it, in its turn, until it is done, takes too long or no one waits for it."""
        seconds = self._limits.query_seconds_max
        client = _client(request)
        gone = asyncio.ensure_future(_wait_for_end(request))
        try:
            async with self._turns.turn(client, seconds, gone):
                loop = asyncio.get_running_loop()
                running = loop.run_in_executor(self._query_threads, run)
                await asyncio.wait({running, gone}, timeout=seconds, return_when="FIRST_COMPLETED")
                reason = "no one waits for the answer any more"
                if not gone.done():
                    reason = f"the query takes longer than {seconds:g} seconds: ask for less"
                while not running.done():
                    limit.stop(reason)
                    await asyncio.wait({running}, timeout=STOP_AGAIN_SECONDS)
                answer: Body = running.result()
                return answer
        finally:
            gone.cancel()

    def _response(self, answer: Body) -> Response:
        headers = dict(answer.headers or {})
        if len(answer.body) <= PIECE_BYTES:
            return Response(answer.body, media_type=answer.media, headers=headers)
        headers["content-length"] = str(len(answer.body))
        pieces = self._pieces(answer.body)
        return ClosingResponse(pieces, media_type=answer.media, headers=headers)

    async def _pieces(self, body: bytes) -> Any:
        """A long answer bit by bit, as fast as the client reads it."""
        self._unread_bytes += len(body)
        try:
            view = memoryview(body)
            for first in range(0, len(body), PIECE_BYTES):
                yield bytes(view[first : first + PIECE_BYTES])
        finally:
            self._unread_bytes -= len(body)

    async def row(self, request: Request) -> Response:
        """The row with the key in the address."""
        name = request.path_params["name"]
        table = self._served.tables.get(name)
        if table is None:
            among = not_among(name, self._served.tables, "tables")
            raise Refused(404, "no_table", f"no table {name!r}; {among}")
        _refuse_query(request, *table.key)
        key = read_key(table.key_columns, request.query_params)
        loop = asyncio.get_running_loop()
        row = await loop.run_in_executor(self._read_threads, self._served.get, name, key)
        if row is None:
            raise Refused(404, "no_row", f"no row of {name!r} has this key")
        return Response(encode({"row": plain(dict(row))}), media_type=JSON)

    # --- results ------------------------------------------------------------------------------

    async def follow(self, request: Request) -> Response:
        """Results as server-sent events."""
        name = request.path_params.get("name")
        known = {**self._served.streams, **self._served.transactions}
        _refuse_query(request, "after")
        if self._metrics.followers >= self._limits.followers_max:
            raise busy("clients that follow")
        reader = self._served.reader()
        text = header(request.scope, b"last-event-id") or request.query_params.get("after")
        place = read_place(text, reader)
        origin = None if name is None else self._origin(name, known, reader, place)
        events = self._followed(self._following.events(self._served, origin, place))
        headers = {"cache-control": "no-store", "headgate-place": str(place)}
        return ClosingResponse(events, media_type=EVENTS, headers=headers)

    def _origin(
        self, name: str, known: Collection[str], reader: StoreReader, place: ResultPlace
    ) -> Origin:
        """The stream that a name means; Refused when it never meant any."""
        streams = reader.declared().get("streams", {})
        if name in known:
            return recorded_names(streams, name)[0][:2]
        found = origin_of(streams, name, place.epoch)
        if found is None:
            raise Refused(404, "no_transaction", f"no transaction {name!r} has results")
        return found

    async def _followed(self, events: Any) -> Any:
        self._metrics.followers += 1
        try:
            async for event in events:
                yield event
        finally:
            self._metrics.followers -= 1

    # --- what there is ------------------------------------------------------------------------

    async def list_tables(self, request: Request) -> Response:
        _refuse_query(request)
        tables = [
            {
                "name": table.name,
                "columns": _named(table.schema),
                "key": list(table.key),
                "check": None if table.check is None else table.check.text,
            }
            for table in self._served.tables.values()
        ]
        return Response(encode({"epoch": self._served.epoch(), "tables": tables}), media_type=JSON)

    async def list_transactions(self, request: Request) -> Response:
        _refuse_query(request)
        found = [
            {
                "name": name,
                "event": _named(one.event),
                "output": _named(one.output) if one.output is not None else [],
            }
            for name, one in self._served.transactions.items()
        ]
        return Response(encode({"transactions": found}), media_type=JSON)

    async def health(self, request: Request) -> Response:
        _refuse_query(request)
        self._served.check()
        epoch = self._served.epoch()
        return Response(encode({"status": "ok", "epoch": epoch}), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        _refuse_query(request)
        text = self._metrics.text(
            self._served.epoch(), self._served.counts(), self._served.metrics()
        )
        return Response(text.encode(), headers={"content-type": counting.MEDIA})

    async def document(self, request: Request) -> Response:
        _refuse_query(request)
        document = make_document(self._served, self._version, self._tokens.are_needed)
        return Response(encode(document), media_type=JSON)


def _named(schema: Schema) -> list[dict[str, str]]:
    return [{"name": column.name, "type": column.kept_as} for column in schema]


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(body)).encode()


def _refuse_query(request: Request, *known: str) -> None:
    """InputError when the address has parameters that mean nothing, or one of them twice."""
    if not request.scope["query_string"]:
        return
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except ValueError:
        raise InputError("the parameters of the address are not UTF-8") from None
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            raise InputError(f"no parameter {name!r} here; there are: {', '.join(known) or 'none'}")
        if given.count(name) > 1:
            raise InputError(f"the parameter {name!r} is given twice")


def _read_query(body: Any) -> tuple[str, Any, int | None]:
    """The parts of a query's body."""
    if not isinstance(body, dict):
        raise InputError('the body is a JSON object: {"query": "select ..."}')
    for name in body:
        if name not in ("query", "parameters", "epoch"):
            raise InputError(f"no field {name!r}; there are: query, parameters, epoch")
    query, parameters, epoch = body.get("query"), body.get("parameters"), body.get("epoch")
    if not isinstance(query, str) or not query.strip():
        raise InputError("the field query is the text of one SELECT")
    if not isinstance(parameters, list | dict | None):
        raise InputError("the field parameters is a list, or an object by name")
    # Read here only to refuse what is none; the worker gets them in a form that orjson writes.
    parameters = sent_parameters(query, read_parameters(parameters))
    if epoch is not None and (type(epoch) is not int or epoch < 0):
        raise InputError("the field epoch is the number of an epoch")
    return query, parameters or None, epoch


async def _wait_for_end(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _client(request: Request) -> tuple[Any, ...]:
    """Who asks: for turns, whoever shares an address and a token is one."""
    address = request.client.host if request.client is not None else None
    return address, header(request.scope, b"authorization")
