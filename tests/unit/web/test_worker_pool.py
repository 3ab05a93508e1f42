"""QueryWorkers that end, or do not start: played by a process that does what its part says."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.errors import LimitError, ServerError
from headgate.query.sql import Limit
from headgate.web import worker_pool as module
from headgate.web.bodies import JSON
from headgate.web.limits import Limits
from headgate.web.worker_pool import QueryWorkers, Question

# What a worker does, line by line, with a socket to its server.
PLAYER = """
import socket, sys
from headgate.web.worker import receive, send
server = socket.socket(fileno=int(sys.argv[1]))
hear = lambda: receive(server, 1 << 20)
ready = lambda: send(server, {"ready": 1})
def answer(body=b"7", **more):
    send(server, {"headers": {}, "media": "m", "is_last": False, **more}, body)
"""
ANSWERS = "ready()\nwhile hear(): answer()"
ENDS_AT_ONCE = "pass"
ENDS_WHEN_ASKED = "ready(); hear()"
# Told to stop, it says so, and that it ends: which it does in its own time, asked or not.
ENDS_WHEN_STOPPED = (
    "ready(); hear(); hear(); answer(error='limit', why='stopped', is_last=True)\n"
    "if hear(): answer(b'asked once too often')"
)
QUESTION = Question("select 7", None, JSON)


class Cast:
    """QueryWorkers that play these parts, one after another, and the last for ever."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts
        self.workers = QueryWorkers(Limits())
        self.started = 0

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        part = self._parts[min(self.started, len(self._parts) - 1)]
        self.started += 1
        return _popen([sys.executable, "-c", PLAYER + part, command[3]], **options)

    def run(self, limit: Limit | None = None) -> bytes:
        return self.workers.run(QUESTION, {}, 1, limit or Limit()).body


_popen = subprocess.Popen


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cast]]:
    made: list[Cast] = []

    def play(*parts: str) -> Cast:
        made.append(Cast(list(parts)))
        monkeypatch.setattr(module.subprocess, "Popen", made[-1].start)
        return made[-1]

    yield play
    for one in made:
        one.workers.close()


def stopped(cast: Cast, reason: str) -> None:
    """Ask, and stop the query while its worker has it."""
    limit, done = Limit(), threading.Event()

    def stop() -> None:
        while limit._connection is None and not done.wait(0.01):
            pass
        while not done.wait(0.1):  # as the server does: it may just be sending
            limit.stop(reason)

    cast.workers.warm()
    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(LimitError, match=reason):
        cast.run(limit)
    done.set()
    thread.join()


def test_a_query_does_not_pay_for_the_one_before_it(cast: Callable[..., Cast]) -> None:
    """A worker that said that it ends is asked no more, also when its query had been stopped."""
    played = cast(ENDS_WHEN_STOPPED, ANSWERS)
    stopped(played, "it took too long")
    assert played.run() == b"7"


def test_a_query_whose_worker_someone_ended_runs_in_another(cast: Callable[..., Cast]) -> None:
    played = cast(ENDS_WHEN_ASKED, ANSWERS)
    assert played.run() == b"7" and played.run() == b"7"
    assert played.started >= 2


def test_a_query_that_ends_every_worker_is_refused(cast: Callable[..., Cast]) -> None:
    played = cast(ENDS_WHEN_ASKED)
    with pytest.raises(LimitError, match="ended the process that ran it"):
        played.run()


def test_a_worker_that_does_not_start_is_started_once_more(cast: Callable[..., Cast]) -> None:
    played = cast(ENDS_AT_ONCE, ANSWERS)
    assert played.run() == b"7"
    assert played.started == 2


def test_workers_that_never_start_are_told_of_and_not_kept(cast: Callable[..., Cast]) -> None:
    played = cast(ENDS_AT_ONCE)
    for count in (2, 4):
        with pytest.raises(ServerError, match="does not start"):
            played.run()
        assert played.started == count
    assert played.workers._all == set() and played.workers._idle == []
