"""Turns: who is next when more is asked for than runs at once.

Whoever has the least running is next, and no one has every place while there are others: one client
with endless queries does not keep all others waiting. Used in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from headgate.web.refusals import Gone, Refusal


def busy(what: str) -> Refusal:
    """Too much is waiting already."""
    return Refusal(503, "busy", f"too many {what} wait already; try again", retry_after="1")


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
        """A place; Refusal when too many wait for one, or for too long, Gone when no one waits."""
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
