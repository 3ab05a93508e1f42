"""The server: an application behind a socket, from its first line on the screen to its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from headgate.errors import InputError
from headgate.web.admission import AllowedOrigins, Token, Tokens, make_token, read_tokens
from headgate.web.application import Application
from headgate.web.connection import Connection, Connections
from headgate.web.limits import Limits
from headgate.web.target import Served

log = logging.getLogger("headgate.web")
BACKLOG = 1024
SEND_BYTES = 1 << 18
CLOSE_SECONDS = 1  # for answers under way
END_SECONDS = 4.5  # from the signal to the end, at the latest
EXIT_CODE_LATE = 1
FILES_MAX = 512  # beside connections: the store's, and tables that are shared


@dataclass(frozen=True)
class Settings:
    """How a server is started."""

    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    needs_token: bool = True
    limits: Limits = field(default_factory=Limits)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()


def serve(served: Served, settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `say` is told the address and a new token, once."""
    tokens, fresh = _tokens(settings)
    origins = AllowedOrigins.of(settings.host, settings.allowed_hosts, settings.allowed_origins)
    listening = listen(settings)
    host, port = listening.getsockname()[:2]
    say(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")
    if fresh is not None:
        say(f"token: {fresh}")
    version = str(import_module("headgate").__version__)
    application = Application(served, tokens, settings.limits, version)
    application.warm()
    try:
        run(application.door(origins), listening, settings.limits, application.end)
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
    # What the kernel holds for a client that does not read is no more than this.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    # The kernel gives up a client that takes nothing of what is sent to it.
    stall_ms = int(settings.limits.stall_seconds_max * 1000)
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stall_ms)
    return listening


class _Server(uvicorn.Server):
    """Uvicorn's server, with an end that takes a bounded time."""

    def __init__(self, config: uvicorn.Config, on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_end = on_end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        _end_at_the_latest()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)


def _end_at_the_latest() -> None:
    """From now on the process has a bounded time, whatever it does in it."""

    def end() -> None:
        log.error(
            "the server did not end within %g seconds and ends now; what was acknowledged is "
            "durable, and the next start recovers it",
            END_SECONDS,
        )
        sys.stderr.flush()
        os._exit(EXIT_CODE_LATE)

    timer = threading.Timer(END_SECONDS, end)
    timer.daemon = True
    timer.start()


def run(
    application: ASGIApp,
    listening: socket.socket,
    limits: Limits | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Answer who connects, until a signal comes; `on_end` is called when it has come."""
    limits = limits or Limits()
    _allow_descriptors(limits.connections_max)
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http=cast(Any, functools.partial(Connection, Connections(limits))),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="critical",  # what goes wrong is told by the door, in our own log
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(limits.idle_seconds_max) + 1,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    server = _Server(config, on_end)
    gc.freeze()  # what was imported stays: looking through it again and again is for nothing
    # Uvicorn answers a signal first and then lets it take its course: ours is to come back here.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _no_trace_of_the_end():
            server.run(sockets=[listening])
    finally:
        gc.unfreeze()


def _allow_descriptors(connections: int) -> None:
    """Let the process have as many open files as it may, if it needs them for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_MAX
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


@contextlib.contextmanager
def _no_trace_of_the_end() -> Iterator[None]:
    """A signal is the usual end of a server."""
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        yield
