"""Limits: what one request may cost the server, who is next, and what is said to who is refused.

When more is asked for than runs at once, whoever has the least running is next, and no one has
every place while there are others: one client with endless queries does not keep all others
waiting. Turns are used in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headgate.errors import (
    ConflictError,
    DamageError,
    HeadgateError,
    InputError,
    LimitError,
    StoreError,
)


@dataclass(frozen=True)
class Limits:
    """Bounds on bodies, queries, answers and clients that do not read what they asked for."""

    body_bytes_max: int = 1 << 20
    query_seconds_max: float = 30.0
    rows_max: int = 100_000
    query_memory_bytes: int = 1 << 30
    query_workers: int = 4  # processes for queries: as many run at once
    queries_waiting_max: int = 256
    answer_bytes_max: int = 64 << 20
    unread_bytes_max: int = 512 << 20  # of all answers that clients have not read yet
    calls_waiting_max: int = 10_000
    followers_max: int = 1000
    head_bytes_max: int = 16 << 10
    headers_max: int = 100
    head_seconds_max: float = 8.0  # from the first byte of a request, or a connection, to its body
    body_seconds_max: float = 20.0
    idle_seconds_max: float = 75.0  # longer than clients keep a connection: they are who ends it
    stall_seconds_max: float = 30.0  # how long a client may read nothing of its answer
    connections_max: int = 4000
    connections_each_max: int = 2000  # of one address

    def __post_init__(self) -> None:
        for name in ("body_bytes_max", "query_seconds_max", "rows_max", "query_memory_bytes"):
            value = getattr(self, name)
            if not 0 < value < math.inf:  # nan is neither
                raise InputError(f"the limit {name} is {value}; it must be a number above 0")

    @property
    def query_memory(self) -> str:
        """The memory of a query, as DuckDB reads it."""
        return f"{self.query_memory_bytes / (1 << 20):g} MiB"


def busy(what: str) -> Refused:
    """Too much is waiting already."""
    return Refused(503, "busy", f"too many {what} wait already; try again", retry_after="1")


class Turns:
    """Some places, and the queue for them."""

    def __init__(self, places: int, waiting_max: int, what: str) -> None:
        self._places = places
        self._each_max = max(1, places - 1)
        self._waiting_max = waiting_max
        self._what = what
        self._running: Counter[Hashable] = Counter()
        self._waiting: list[tuple[Hashable, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(
        self, client: Hashable, seconds_max: float, gone: asyncio.Future[None]
    ) -> AsyncIterator[None]:
        """A place; Refused when too many wait for one, or for too long, Gone when no one waits."""
        own = sum(one == client for one, _ in self._waiting)
        if len(self._waiting) >= self._waiting_max or own > self._waiting_max // 2:
            raise busy(self._what)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((client, turn))
        self._call_next()
        try:
            if not turn.done():
                await asyncio.wait({turn, gone}, timeout=seconds_max, return_when="FIRST_COMPLETED")
            if gone.done():
                raise Gone
            if not turn.done():
                raise busy(self._what)
            yield
        finally:
            self._end(client, turn)

    def _end(self, client: Hashable, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._waiting.remove((client, turn))
            turn.cancel()
            return
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting and self._running.total() < self._places:
            found = min(self._waiting, key=lambda one: self._running[one[0]])
            if self._running[found[0]] >= self._each_max:
                return
            self._waiting.remove(found)
            self._running[found[0]] += 1
            found[1].set_result(None)


# --- refusals -------------------------------------------------------------------------------------
# Invariant: nothing else of an error leaves the server; its trace stays in the log, under the
# number of the request.


class Refused(Exception):
    """A request that is not done, and why."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Gone(Exception):
    """The client went away, or stopped to read."""


def refusal_of(error: BaseException) -> Refused:
    """What the client is told of an error."""
    if isinstance(error, Refused):
        return error
    for kind, status, code in _TOLD:
        if isinstance(error, kind):
            return Refused(status, code, _sentence(str(error)))
    if isinstance(error, HeadgateError):
        return Refused(500, "failed", "the server could not do this; its log says why")
    return Refused(500, "internal", "something went wrong in the server; its log says what")


_TOLD: tuple[tuple[type[HeadgateError], int, str], ...] = (
    (ConflictError, 409, "key_reused"),
    (LimitError, 422, "too_much"),
    (InputError, 400, "bad_input"),
    (StoreError, 503, "stopped"),
    (DamageError, 500, "damaged"),
)


def _sentence(message: str) -> str:
    """The message without the picture that DuckDB draws below it, and without folders of ours."""
    words = " ".join(message.partition("\n\nLINE ")[0].split())
    return _PATH.sub(lambda found: found[1], words)


# An absolute path of two names or more; of it the last one stays: the store's, or a file's of it.
_PATH = re.compile(r"(?<![\w.)\]*/-])/(?:[^\s/:;,'\"()<>]+/)+([^\s/:;,'\"()<>]+)/?")
