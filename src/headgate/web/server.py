"""The server: an application behind a socket, from its first line on the screen to its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from headgate.errors import InputError
from headgate.web.application import Application
from headgate.web.limits import Limits
from headgate.web.served import Served
from headgate.web.tokens import Token, Tokens, make_token, read_tokens

BACKLOG = 1024
CLOSE_SECONDS = 5
KEEP_SECONDS = 75  # longer than clients keep a quiet connection, so that they are who ends it
CONNECTIONS_MAX = 5000


@dataclass(frozen=True)
class Settings:
    """How a server is started."""

    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    needs_token: bool = True
    limits: Limits = field(default_factory=Limits)


def serve(served: Served, settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `say` is told the address and a new token, once."""
    tokens, fresh = _tokens(settings)
    listening = listen(settings)
    host, port = listening.getsockname()[:2]
    say(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")
    if fresh is not None:
        say(f"token: {fresh}")
    version = str(import_module("headgate").__version__)
    application = Application(served, tokens, settings.limits, version)
    application.warm()
    try:
        run(application.door(), listening)
    finally:
        application.close()
        served.close()


def _tokens(settings: Settings) -> tuple[Tokens, str | None]:
    """The tokens to take, and the one that was made just now, if any."""
    if not settings.needs_token:
        if settings.token_file is not None:
            raise InputError("a token file and no token at once: choose one")
        return Tokens(None), None
    if settings.token_file is not None:
        return Tokens(read_tokens(settings.token_file)), None
    fresh = make_token()
    return Tokens([Token.of(fresh)]), fresh


def listen(settings: Settings) -> socket.socket:
    """The socket, already listening: who connects from now on is answered once we run."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (settings.host, settings.port), family=family, backlog=BACKLOG
        )
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; choose another --port"
        ) from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel gives up a client that takes nothing of what is sent to it.
    stall_ms = int(settings.limits.stall_seconds_max * 1000)
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
    return listening


def run(application: ASGIApp, listening: socket.socket) -> None:
    """Answer who connects, until a signal comes."""
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    server = uvicorn.Server(config)
    gc.freeze()  # what was imported stays: looking through it again and again is for nothing
    # Uvicorn answers a signal first and then lets it take its course: ours is to come back here.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _no_trace_of_the_end():
            server.run(sockets=[listening])
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def _no_trace_of_the_end() -> Iterator[None]:
    """A signal is the usual end of a server."""
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        yield
