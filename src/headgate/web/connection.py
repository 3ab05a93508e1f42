"""Connections: what a client may cost before it is known: bytes, time, and a place.

Invariant: a connection that waits for its client (for a request's head or body, for the next one,
or for an answer to be read) ends after a bounded time, and when there are too many of them the
oldest ends at once, so that whoever sends a whole request finds a place.
"""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.web.bodies import encode
from headgate.web.limits import Limits

TICK_SECONDS = 0.25
DISCARDED_BYTES_MAX = 1 << 20  # of a body that was refused, so that the refusal can be read
CHUNKED_RATIO = 8  # bytes on the wire for one of a body, in the smallest chunks
PIPELINE_MAX = 64
_LEFT = getattr(select, "POLLRDHUP", 0)  # POLLHUP and POLLERR are always told
_TOO_LONG = 431, "head_too_long", "the head of the request is too long"


class Connections:
    """All connections of a server, by what they wait for; the oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.tick = 0  # the time, in ticks: cheaper than a clock for each request
        self._is_ticking = False
        self._all: dict[Connection, None] = {}
        self._of_address: Counter[str] = Counter()
        self.incomplete: dict[Connection, None] = {}  # a request has not arrived
        self.idle: dict[Connection, None] = {}  # between two requests
        self.stalled: dict[Connection, None] = {}  # an answer is not read
        self.pipelining: dict[Connection, None] = {}  # not read from while an answer is made

    def add(self, connection: Connection) -> None:
        """Take a new connection in; others that only wait end for it."""
        self._begin_to_tick(connection.loop)
        self._all[connection] = None
        self.incomplete[connection] = None
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > self.limits.connections_each_max:
            self._make_room(connection, connection.address)
        elif len(self._all) > self.limits.connections_max:
            self._make_room(connection, self._most_frequent())

    def remove(self, connection: Connection) -> None:
        if connection not in self._all:
            return
        del self._all[connection]
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
        for group in (self.incomplete, self.idle, self.stalled, self.pipelining):
            group.pop(connection, None)

    def _most_frequent(self) -> str:
        return self._of_address.most_common(1)[0][0]

    def _make_room(self, new: Connection, address: str) -> None:
        """End the oldest of this address that waits for its client; if none does, the new one."""
        for group in (self.incomplete, self.idle, self.stalled):
            for one in group:
                if one.address == address and one is not new:
                    one.end()
                    return
        new.end()

    def _begin_to_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            loop.call_later(TICK_SECONDS, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """End those that have waited too long."""
        self.tick += 1
        limits = self.limits
        for group, seconds in (
            (self.incomplete, None),
            (self.idle, limits.idle_seconds_max),
            (self.stalled, limits.stall_seconds_max),
        ):
            for one in list(group):
                allowed = one.seconds_max if seconds is None else seconds
                if (self.tick - one.since) * TICK_SECONDS > allowed:
                    one.time_out()
        for one in list(self.pipelining):
            one.end_if_left()
        self._is_ticking = bool(self._all)
        if self._is_ticking:
            loop.call_later(TICK_SECONDS, self._tick, loop)


class Connection(HttpToolsProtocol):
    """One client's connection: uvicorn's, with bounds."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._held = connections
        self._limits = connections.limits
        self._why: tuple[int, str, str] | None = None  # a refusal, while the parser ends
        self._is_in_head = False
        self._is_in_body = False
        self._data_bytes = 0  # of what has just arrived
        self._wire_bytes = 0  # of the head or the body that arrives now
        self._body_bytes = 0
        self._answered: Any = None  # the request that is answered now; later ones may wait
        self.address = ""
        self.since = connections.tick

    @property
    def seconds_max(self) -> float:
        """How long what is arriving now may take."""
        limits = self._limits
        return limits.body_seconds_max if self._is_in_body else limits.head_seconds_max

    # --- the beginning and the end ------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.since = self._held.tick
        self._held.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.remove(self)
        super().connection_lost(exc)
        if self._answered is not None:  # uvicorn tells only the request that arrived last
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.pipeline.clear()

    def end_if_left(self) -> None:
        """End when the client has left: one that is not read from would not be noticed."""
        if not self.pipeline:
            self._held.pipelining.pop(self, None)
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            watch = select.poll()
            watch.register(connection.fileno(), _LEFT)
            if watch.poll(0):
                self.end()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def end(self) -> None:
        """End at once; nothing is waited for."""
        self.transport.abort()

    def time_out(self) -> None:
        """End, with a word where it was the request that did not arrive."""
        if self.transport.is_closing() or not (self._is_in_head or self._is_in_body):
            self.end()
        else:
            self.since = self._held.tick  # so long for the word to be read
            self._refuse(408, "too_slow", "the request did not arrive in time")

    # --- what arrives -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._data_bytes = len(data)
        self._wire_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # to nothing that is spoken here; the request is answered as it is
        except httptools.HttpParserError:
            self._refuse(*(self._why or (400, "not_http", "this is not a request of HTTP")))
        else:
            if self._wire_bytes > self._wire_bytes_max:
                self._refuse(*_TOO_LONG)

    @property
    def _wire_bytes_max(self) -> int:
        """How much may arrive of a head, or of a body, which is longer in chunks."""
        limits = self._limits
        body = CHUNKED_RATIO * limits.body_bytes_max + DISCARDED_BYTES_MAX
        return body if self._is_in_body else limits.head_bytes_max

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._body_bytes = 0
        self._await()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._limits.headers_max:
            self._stop(*_TOO_LONG)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        limits = self._limits
        if max(self._wire_bytes, self._data_bytes) > limits.head_bytes_max:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > limits.head_bytes_max:
                self._stop(*_TOO_LONG)
        if len(self.pipeline) >= PIPELINE_MAX:
            self._stop(503, "busy", "too many requests at once on one connection")
        super().on_headers_complete()
        if self.pipeline:
            self._held.pipelining[self] = None
        self._is_in_head, self._is_in_body = False, True
        self._wire_bytes = self._data_bytes
        self._await()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes_max + DISCARDED_BYTES_MAX:
            self._stop(413, "body_too_long", "the body is too long")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._wire_bytes = 0
        self._held.incomplete.pop(self, None)
        super().on_message_complete()
        if self.cycle.response_complete:  # a refusal was faster than the body
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not (self._is_in_head or self._is_in_body or self.pipeline):
            self._rest()

    def _await(self) -> None:
        """A part of a request is to arrive, from now on."""
        self.since = self._held.tick
        self._held.idle.pop(self, None)
        self._held.incomplete[self] = None

    def _rest(self) -> None:
        """Nothing is asked and nothing is owed: wait for the next request."""
        if not self.transport.is_closing():
            self.since = self._held.tick
            self._held.idle[self] = None

    # --- what is sent -------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._held.idle.pop(self, None)
        self._held.stalled[self] = None
        self.since = self._held.tick

    def resume_writing(self) -> None:
        super().resume_writing()
        self._held.stalled.pop(self, None)

    def _stop(self, status: int, code: str, message: str) -> None:
        """Refuse out of the parser, which ends with that."""
        self._why = status, code, message
        raise ValueError(message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Say what is wrong, unless an answer is under way, and end."""
        cycle: Any = self.cycle
        is_answered = cycle is not None and cycle.response_complete
        if self.pipeline or (is_answered and self._is_in_body):
            self.end()
        elif cycle is None or is_answered:
            self._tell(status, code, message)
        elif cycle.response_started:
            self.end()
        else:
            cycle.disconnected = True  # the application is told that no one waits
            cycle.message_event.set()
            self._tell(status, code, message)

    def _tell(self, status: int, code: str, message: str) -> None:
        body = encode({"error": {"code": code, "message": message, "request": ""}})
        lines = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"content-length: %d\r\n\r\n" % len(body),
        ]
        self.transport.write(b"".join(lines) + body)
        self.transport.close()
