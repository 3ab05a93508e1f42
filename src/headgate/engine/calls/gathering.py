"""Gathering: single calls of many threads, run together: they share a batch, an epoch and a sync.

Each call is a transaction of its own. Calls run in the order in which they were handed in, and each
is answered when its epoch is durable. One thread runs what has gathered while another waits for the
disk; it runs no further ahead than that, so the slower the disk, the more calls share its sync.

The threads hold an engine only while calls of it are on their way: one that is dropped can go.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.engine.events import check_call, from_dicts
from headgate.engine.results import Result, as_results
from headgate.engine.terms import Terms
from headgate.errors import InputError, StoreError

TOGETHER_MAX = 4096  # calls of one batch
GATHER_SECONDS = 0.0005  # at most so long a batch waits for callers that were just answered

# Runs a table of events as one batch: its results, its epoch, and which event each result is of.
Run = Callable[[Terms, pa.Table], tuple[pa.Table, int, np.ndarray]]
Wait = Callable[[int], None]  # until an epoch is durable


class Waiting(NamedTuple):
    """One event that waits for its turn, the promise of its result, and the engine that keeps it.

    `run` and `wait` are the engine's: as long as a call is on its way, the engine is in use.
    """

    terms: Terms
    columns: Mapping[str, Any]
    promise: Future[Result]
    run: Run
    wait: Wait


class Ran(NamedTuple):
    """What ran as one epoch, to be answered once that is durable."""

    calls: Sequence[Waiting]
    results: pa.Table
    epoch: int
    rows: np.ndarray  # the place in `calls` of each result


class Gathering:
    """The single calls of one engine."""

    def __init__(self, run: Run, wait: Wait) -> None:
        self._run = run
        self._wait = wait
        self._calls = _Calls()

    def submit(self, terms: Terms, columns: Mapping[str, Any]) -> Future[Result]:
        """Hand in one event; the promise is kept when its epoch is durable."""
        check_call(terms.route.transactions[0], columns)
        call = Waiting(terms, columns, Future(), self._run, self._wait)
        self._calls.put(call)
        return call.promise

    def close(self) -> None:
        """Run and answer what was handed in, and end."""
        self._calls.close()


class _Calls:
    """What the threads of a gathering share; they begin with the first call."""

    def __init__(self) -> None:
        self._arrived = threading.Condition(threading.Lock())
        # Guarded by _arrived:
        self._waiting: deque[Waiting] = deque()
        self._expected = 1  # how many callers were answered last: they may come again at once
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        # From the thread that runs to the one that answers: one batch at a time, None at the end.
        self._ran: SimpleQueue[list[Ran] | None] = SimpleQueue()
        self._room = threading.Semaphore(1)

    def put(self, call: Waiting) -> None:
        """Hand in one call."""
        with self._arrived:
            if self._is_closed:
                raise StoreError("the engine is stopped: it was closed; open it again")
            if not self._threads:
                self._start()
            self._waiting.append(call)
            if len(self._waiting) in (1, self._expected):
                self._arrived.notify()

    def _start(self) -> None:
        for work in (self._run_all, self._answer_all):
            thread = threading.Thread(target=work, name="headgate-calls", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Run and answer what was handed in, and end."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run_all(self) -> None:
        while self._run_gathered():
            pass
        self._ran.put(None)

    def _run_gathered(self) -> bool:
        """Run what has gathered; False at the end. What it holds, it holds until it returns."""
        calls = self._gathered()
        ran = [one for group in _same_terms(calls) for one in self._run_together(group)]
        if ran:
            self._room.acquire()
            self._ran.put(ran)
        return bool(calls)

    def _gathered(self) -> list[Waiting]:
        """The calls to run next; none at the end."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._waiting or self._is_closed)
            if len(self._waiting) < self._expected:
                self._arrived.wait_for(self._is_gathered, GATHER_SECONDS)
            count = min(len(self._waiting), TOGETHER_MAX)
            return [self._waiting.popleft() for _ in range(count)]

    def _is_gathered(self) -> bool:
        return self._is_closed or len(self._waiting) >= self._expected

    def _run_together(self, calls: Sequence[Waiting]) -> list[Ran]:
        """Run calls of one terms as one batch; one that cannot be read must not fail the others."""
        calls = [call for call in calls if call.promise.set_running_or_notify_cancel()]
        if not calls:
            return []
        try:
            return [self._run_batch(calls)]
        except InputError:
            return [one for call in calls for one in self._run_alone(call)]
        except BaseException as error:
            _fail(calls, error)
            return []

    def _run_alone(self, call: Waiting) -> list[Ran]:
        try:
            return [self._run_batch([call])]
        except BaseException as error:
            _fail([call], error)
            return []

    def _run_batch(self, calls: Sequence[Waiting]) -> Ran:
        terms = calls[0].terms
        transaction = terms.route.transactions[0]
        rows = [call.columns for call in calls]
        events = from_dicts(rows, transaction.event, f"call {transaction.name!r}")
        return Ran(calls, *calls[0].run(terms, events))

    def _answer_all(self) -> None:
        while self._answer_next():
            pass

    def _answer_next(self) -> bool:
        """Answer what ran next; False at the end."""
        ran = self._ran.get()
        if ran is None:
            return False
        self._room.release()
        try:
            ran[-1].calls[0].wait(ran[-1].epoch)
            self._answer(ran)
        except BaseException as error:
            for one in ran:
                _fail(one.calls, error)
        return True

    def _answer(self, ran: Sequence[Ran]) -> None:
        with self._arrived:
            self._expected = min(sum(len(one.calls) for one in ran), TOGETHER_MAX)
        for one in ran:
            for row, result in zip(one.rows.tolist(), as_results(one.results), strict=True):
                one.calls[row].promise.set_result(result)


def _same_terms(calls: Sequence[Waiting]) -> Iterator[list[Waiting]]:
    """The calls in their order, those of one terms that stand together as one group."""
    for _, group in groupby(calls, key=lambda call: id(call.terms)):
        yield list(group)


def _fail(calls: Sequence[Waiting], error: BaseException) -> None:
    for call in calls:
        if not call.promise.done():
            call.promise.set_exception(error)
