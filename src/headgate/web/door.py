"""The door: every request comes in and every answer goes out here.

Invariant: a request has a number, a host that is ours and a token (or is refused), its body is
bounded, its end is counted, and whatever goes wrong inside leaves as a refusal, never as a trace.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from time import perf_counter
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headgate.web.admission import AllowedOrigins, Tokens
from headgate.web.bodies import encode
from headgate.web.limits import Gone, Limits, Refused, refusal_of
from headgate.web.server_metrics import ServerMetrics

log = logging.getLogger("headgate.web")
GONE_STATUS = 499  # counted when no one is left to be told
OPEN_PATHS = frozenset({"/health"})
_WANTED = frozenset({b"authorization", b"content-length", b"host", b"origin"})
_SHARED = (
    (b"vary", b"origin"),
    (b"access-control-expose-headers", b"headgate-epoch, headgate-place, x-request-id"),
)
_MAY_SEND = (
    (b"access-control-allow-methods", b"GET, POST"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, idempotency-key, last-event-id",
    ),
    (b"access-control-max-age", b"600"),
)
_STATUS_CODES = {404: "not_found", 405: "method_not_allowed"}
_SENTENCES = {404: "there is nothing at this address", 405: "this address has other methods"}


class Door:
    """The outermost application."""

    def __init__(
        self,
        inside: ASGIApp,
        tokens: Tokens,
        limits: Limits,
        metrics: ServerMetrics,
        origins: AllowedOrigins | None = None,
    ) -> None:
        self._inside = inside
        self._tokens = tokens
        self._origins = origins if origins is not None else AllowedOrigins()
        self._limits = limits
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._prefix = secrets.token_hex(4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return
        began = perf_counter()
        scope["app"] = self  # so that the router raises what it refuses
        exit_ = _Exit(send, f"{self._prefix}-{next(self._numbers)}", self._limits)
        scope["headgate.request"] = exit_.number
        try:
            headers = _wanted_headers(scope["headers"])
            self._check_origin(headers, exit_)
            if exit_.shared and _is_preflight(scope):
                await exit_.allow()
                return
            if scope["path"] not in OPEN_PATHS:
                self._tokens.check(headers.get(b"authorization"))
            self._check_length(headers)
            await self._inside(scope, receive, exit_.send)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._refuse(error, exit_, scope)
        finally:
            route = getattr(scope.get("endpoint"), "__name__", "none")
            self._metrics.note_request(route, exit_.status, perf_counter() - began)

    def _check_origin(self, headers: dict[bytes, bytes], exit_: _Exit) -> None:
        host, origin = headers.get(b"host"), headers.get(b"origin")
        text = None if origin is None else origin.decode("latin-1")
        self._origins.check(None if host is None else host.decode("latin-1"), text)
        if text is not None and self._origins.is_allowed(text):
            exit_.shared = [(b"access-control-allow-origin", origin or b""), *_SHARED]

    def _check_length(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._limits.body_bytes_max:
            raise too_long(self._limits.body_bytes_max)

    async def _refuse(self, error: BaseException, exit_: _Exit, scope: Scope) -> None:
        if isinstance(error, Gone):
            exit_.status = GONE_STATUS
            return
        refusal = _of_router(error) if isinstance(error, HTTPException) else refusal_of(error)
        where = f"{scope['method']} {scope['path']}"
        if refusal.status >= 500 and not isinstance(error, Refused):
            log.error("request %s: %s: %s", exit_.number, where, error, exc_info=error)
        else:
            log.info("request %s: %s: %s", exit_.number, where, refusal.code)
        if not exit_.has_begun:
            await exit_.refuse(refusal)
        else:
            raise error  # half an answer is out: only the end of the connection tells


class _Exit:
    """The way out of one request: its number on the answer, no waiting for who reads nothing."""

    def __init__(self, send: Send, number: str, limits: Limits) -> None:
        self._send = send
        self._stall_seconds = limits.stall_seconds_max
        self.number = number
        self.status = 0
        self.has_begun = False
        self.shared: list[tuple[bytes, bytes]] = []  # lets a page of another origin read

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.status = message["status"]
            message["headers"].append((b"x-request-id", self.number.encode()))
            message["headers"] += self.shared
            await self._send(message)
        elif message.get("more_body"):
            await self._send_slowly(message)
        else:
            await self._send(message)

    async def _send_slowly(self, message: Message) -> None:
        try:
            await asyncio.wait_for(self._send(message), self._stall_seconds)
        except TimeoutError:
            raise Gone from None

    async def allow(self) -> None:
        """Tell a browser what a page of another origin may send."""
        start = {"type": "http.response.start", "status": 204, "headers": list(_MAY_SEND)}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": b""})

    async def refuse(self, refusal: Refused) -> None:
        told = {"code": refusal.code, "message": refusal.message, "request": self.number}
        body = encode({"error": told})
        headers = {"content-type": "application/json", **refusal.headers}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        start = {"type": "http.response.start", "status": refusal.status, "headers": raw}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})


def _wanted_headers(raw: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that are looked at here; Refused when one that says who asks comes twice."""
    found: dict[bytes, bytes] = {}
    for name, value in raw:
        if name in _WANTED:
            if name in found:
                word = name.decode()
                raise Refused(400, "header_twice", f"the header {word} is there more than once")
            found[name] = value
    return found


def _is_preflight(scope: Scope) -> bool:
    asked = b"access-control-request-method"
    return scope["method"] == "OPTIONS" and any(name == asked for name, _ in scope["headers"])


def _of_router(error: HTTPException) -> Refused:
    code = _STATUS_CODES.get(error.status_code, "refused")
    sentence = _SENTENCES.get(error.status_code, str(error.detail))
    refusal = Refused(error.status_code, code, sentence)
    refusal.headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return refusal


def too_long(bytes_max: int) -> Refused:
    return Refused(413, "body_too_long", f"the body is longer than {bytes_max:,} bytes")


async def read_body(receive: Receive, bytes_max: int) -> bytes:
    """The whole body of a request, if it is not too long."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Gone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return _bounded(body, bytes_max)
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise too_long(bytes_max)
    return b"".join(parts)


def _bounded(body: bytes, bytes_max: int) -> bytes:
    if len(body) > bytes_max:
        raise too_long(bytes_max)
    return body


def header(scope: Any, name: bytes) -> str | None:
    """A header of a request, None when it was not sent."""
    for found, value in scope["headers"]:
        if found == name:
            text: str = value.decode("latin-1")
            return text
    return None
