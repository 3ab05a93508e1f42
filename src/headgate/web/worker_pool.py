"""The pool of workers: the server's side of the processes that run queries (web/worker.py).

Invariant: a query has a worker of its own while it runs, and ends with it at the latest: a worker
that does not stop when it is told to is killed, and the next query gets a new one. What a worker
says is read as data, never run.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.errors import InputError, LimitError, ServerError
from headgate.query.sharing import Shared, Shelf
from headgate.query.sql import Limit
from headgate.web.bodies import Body
from headgate.web.limits import Limits, Refused
from headgate.web.worker import DESCRIPTORS_MAX, receive, send

log = logging.getLogger("headgate.web")
START_SECONDS = 60.0
STOP_SECONDS = 0.5  # between the word to stop and the end
THREADS_MAX = 8
_ENVIRONMENT = {
    # Reserve no addresses ahead: the kernel bounds what a worker has of them.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True)
class Question:
    """A query and the form of its answer."""

    query: str
    parameters: Any
    media: str


class _Ended(LimitError):
    """A worker ended without an answer: its query did that, or someone else did."""


class WorkerProcess:
    """One worker as the server holds it; it runs one query at a time."""

    def __init__(self, limits: Limits, threads: int) -> None:
        self._limits = limits
        self._threads = threads
        self._known: set[int] = set()  # the segments that it has mapped
        self._numbers = itertools.count(1)
        self._number = 0
        self._told_to_stop: float | None = None
        self._sending = threading.Lock()
        self.is_good = True
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._connection = ours
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headgate.web.worker"),
                    *(str(theirs.fileno()), limits.query_memory, str(threads)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def wait_until_ready(self) -> None:
        """ServerError when it does not start."""
        self._connection.settimeout(START_SECONDS)
        try:
            message = receive(self._connection, self._limits.answer_bytes_max)
        except (OSError, ValueError):
            message = None
        self._connection.settimeout(None)
        if message is None:
            self.end()
            raise ServerError("the process for queries does not start; the server's log says why")

    def ask(self, question: Question, shared: Shared, epoch: int, limit: Limit) -> Body:
        """What a query finds; LimitError when it takes too much of anything."""
        self._number, self._told_to_stop = next(self._numbers), None
        with limit.watching(self):
            try:
                with self._sending:
                    self._map(shared)
                    send(self._connection, self._request(question, shared, epoch))
                message = receive(self._connection, self._limits.answer_bytes_max)
            except (OSError, ValueError):
                message = None
        if message is None:
            self.end()
            limit.check()
            raise _Ended("the query ended the process that ran it: ask for less")
        told, body, _ = message
        # First: one that is about to end must not be asked again, whatever came of this query.
        self.is_good = self.is_good and not told["is_last"]
        if told.get("error") == "limit":
            limit.check()  # the reason for which it was stopped
        return _answer(told, bytes(body))

    def _request(self, question: Question, shared: Shared, epoch: int) -> dict[str, Any]:
        limits = self._limits
        return {
            "kind": "run",
            "number": self._number,
            "query": question.query,
            "parameters": question.parameters,
            "media": question.media,
            "epoch": epoch,
            "tables": shared.tables,
            "threads": self._threads,
            "rows_max": limits.rows_max,
            "seconds": limits.query_seconds_max,
            "memory": limits.query_memory,
            "memory_bytes": limits.query_memory_bytes,
            "answer_bytes_max": limits.answer_bytes_max,
        }

    def _map(self, shared: Shared) -> None:
        new = [one for number, one in shared.segments.items() if number not in self._known]
        for first in range(0, len(new), DESCRIPTORS_MAX):
            part = new[first : first + DESCRIPTORS_MAX]
            numbers = [segment.number for segment in part]
            message = {"kind": "map", "segments": numbers}
            send(self._connection, message, fds=[segment.fd for segment in part])
            self._known.update(numbers)

    def forget(self, shelf: Shelf) -> None:
        """Let it unmap what is of the past; only while it runs nothing."""
        gone = [number for number in self._known if not shelf.is_alive(number)]
        if gone:
            self._known.difference_update(gone)
            with contextlib.suppress(OSError):
                send(self._connection, {"kind": "forget", "segments": gone})

    def interrupt(self) -> None:
        """Tell the query to stop; said again some time later, it ends the process."""
        now = time.monotonic()
        if self._told_to_stop is None:
            self._told_to_stop = now
        if now - self._told_to_stop >= STOP_SECONDS:
            self.kill()
            return
        if self._sending.acquire(blocking=False):  # if not, it is told the next time
            try:
                with contextlib.suppress(OSError):
                    send(self._connection, {"kind": "stop", "number": self._number})
            finally:
                self._sending.release()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked; while it was idle, someone else may have ended it."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it whatever it does; who waits for its answer is told at once."""
        self.is_good = False
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill it and wait until nothing of it is left."""
        self.kill()
        self._process.wait()
        self._connection.close()


def _answer(told: Mapping[str, Any], body: bytes) -> Body:
    kind = told.get("error")
    if kind == "input":
        raise InputError(told["why"])
    if kind == "limit":
        raise LimitError(told["why"])
    if kind is not None:
        raise ServerError(f"a query failed in its process: {told['why']}")
    return Body(body, told["media"], told["headers"])


def _ending() -> Refused:
    return Refused(503, "stopped", "the server ends; ask again when it is back", retry_after="1")


class QueryWorkers:
    """All workers of a server; every method may be called from any thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = min(os.cpu_count() or 1, THREADS_MAX)
        self._shelf = Shelf()
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._is_closed = False

    def run(
        self, question: Question, tables: Mapping[str, pa.Table], epoch: int, limit: Limit
    ) -> Body:
        """Run a query over these tables, which are of this epoch, in a worker that is free."""
        with self._shelf.share(tables) as shared:
            with contextlib.suppress(_Ended):
                return self._ask(question, shared, epoch, limit, self._take())
            # It may have ended for another reason than this query, which only reads: once more.
            fresh = self._take(is_fresh=True)
            try:
                return self._ask(question, shared, epoch, limit, fresh)
            except _Ended as error:
                raise LimitError(str(error)) from None

    def _ask(
        self, question: Question, shared: Shared, epoch: int, limit: Limit, worker: WorkerProcess
    ) -> Body:
        try:
            return worker.ask(question, shared, epoch, limit)
        except LimitError:
            if self._is_closed:
                raise _ending() from None
            raise
        finally:
            self._put_back(worker)

    def warm(self) -> None:
        """Have a worker ready."""
        with contextlib.suppress(ServerError, Refused):
            self._put_back(self._take())

    def _take(self, is_fresh: bool = False) -> WorkerProcess:
        worker = None if is_fresh else self._idle_one()
        if worker is not None:
            return worker
        with contextlib.suppress(ServerError):  # someone may have ended it while it started
            return self._start()
        return self._start()

    def _idle_one(self) -> WorkerProcess | None:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                self._all.discard(worker)
                worker.end()
        return None

    def _start(self) -> WorkerProcess:
        with self._lock:
            if self._is_closed:
                raise _ending()
            worker = WorkerProcess(self._limits, self._threads)
            self._all.add(worker)
        try:
            worker.wait_until_ready()
        except ServerError:
            with self._lock:
                self._all.discard(worker)
            raise
        return worker

    def _put_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            if worker.is_good and not self._is_closed:
                self._idle.append(worker)
                for one in self._idle:
                    one.forget(self._shelf)
                return
            self._all.discard(worker)
            is_wanted = not self._all and not self._is_closed
        worker.end()
        if is_wanted:  # the next query is not to wait for a process to start
            threading.Thread(target=self.warm, name="headgate-worker", daemon=True).start()

    def close(self) -> None:
        """End all of them, whatever they run."""
        with self._lock:
            self._is_closed = True
            for worker in self._all:
                worker.kill()
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()
