"""Calling: one event for one transaction, handed in by keywords, alone, together or with a key.

What is wrong with a call is said at once; what is not is handed to the queue. Each call has an
answer of its own: that one is refused is no error of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.engine.batch import Called
from headgate.engine.calls.keyed import Once, digest_of
from headgate.engine.calls.promise import Promise
from headgate.engine.calls.queue import HandedIn, Queue, Round, Turn
from headgate.engine.calls.values import CallReader, FewEvents
from headgate.engine.events import check_call
from headgate.engine.journal import EngineLock, Guard
from headgate.engine.results import Result
from headgate.engine.terms import Terms, of_calls
from headgate.errors import HeadgateError, StoreError
from headgate.isolation.levels import make_isolation
from headgate.transactions import Transaction, find_transaction


class Call(NamedTuple):
    """One event for one transaction; with a key, it runs at most once."""

    transaction: Transaction | str  # or its name
    columns: Mapping[str, Any]
    key: str | None = None

    @property
    def name(self) -> str:
        return self.transaction if isinstance(self.transaction, str) else self.transaction.name


def event_columns(transaction: Transaction, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a call's event, without the level of isolation that it may name beside them.

    A call runs alone, between batches: that is PL4, and so every weaker level, too.
    """
    found = dict(columns)
    if "isolation" in found and "isolation" not in transaction.event:
        make_isolation(found.pop("isolation"))
    return found


class Begun(NamedTuple):
    """Calls that ran: all but the wait for their last epoch to be durable."""

    handed: HandedIn
    shared: Mapping[int, Future[Result]]  # by place: the same call, run by someone else or by us
    round: Round


class Calls:
    """The calls of one engine; any thread may hand some in."""

    def __init__(
        self,
        run: Callable[[Terms, pa.Table | FewEvents], Called],
        wait: Callable[[Terms, int], None],
        guard: Guard,
        lock: EngineLock,
        once: Once,
        transactions: Mapping[str, Transaction],
        called: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        self._run, self._wait = run, wait
        self._guard = guard
        self._lock = lock
        self._once = once
        self._transactions = transactions
        self._called = called  # by name: what it was called first, where that was another name
        self._known: dict[Transaction | str, tuple[Terms, CallReader, Transaction]] = {}
        self._queue = Queue(now)

    # --- handing in ---------------------------------------------------------------------------

    def call(self, call: Call) -> Result:
        """Run one call; an error is its own."""
        if call.key is None:
            self._guard.check_entry()
            handed = HandedIn(self, (self._turn(0, call),), [None])
            self._run_all(handed)
            answer = _answers(handed, {})[0]
        else:
            answer = self.call_all((call,))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def submit(self, call: Call) -> Future[Result]:
        """The promise of a call's result, which is kept when its epoch is durable."""
        self._guard.check_entry()
        turn = self._turn(0, call)
        if turn.words is None:  # else all of its values are of types that do not change
            kept = {name: _kept(value) for name, value in call.columns.items()}
            turn = turn._replace(columns=kept)
        promise = Promise()
        self._queue.submit(HandedIn(self, (turn,), [None], promise))
        return promise

    def call_all(self, calls: Sequence[Call]) -> list[Result | Exception]:
        """Run the calls and answer each, with its result or with the error that is its own."""
        self._guard.check_entry()
        handed = HandedIn(self, (), [])
        try:
            shared = self._prepare(handed, calls)
            if handed.turns:
                self._run_all(handed)
        except BaseException as error:
            if not handed.is_queued:
                self._abandon(handed, calls, error)
            raise
        return _answers(handed, shared)

    def begin_at_once(self, calls: Sequence[Call]) -> Begun | None:
        """Run the calls if no one else is in the engine, up to the sync; `finish` must follow.

        None when someone is: an event loop, which calls this, must not wait.
        """
        self._guard.check_entry()
        handed = HandedIn(self, (), [])
        if not self._queue.lead_at_once(handed):
            return None
        is_run = False
        try:
            if not self._lock.acquire(blocking=False):
                return None
            taken = Round([handed])
            try:
                shared = self._prepare(handed, calls)
                taken.run()
                is_run = True
            except BaseException as error:
                taken.fail(error)
                self._abandon(handed, calls, error)
                raise
            finally:
                self._lock.release()
        finally:
            self._queue.pass_on(handed)
            if not is_run:
                self._queue.end(handed)
        return Begun(handed, shared, taken)

    def finish(self, begun: Begun) -> list[Result | Exception]:
        """Wait until all is durable, and answer."""
        try:
            self._finish(begun.round)
        finally:
            self._queue.end(begun.handed)
        return _answers(begun.handed, begun.shared)

    def close(self) -> None:
        """Run and answer what was handed in, and take no more."""
        self._queue.close()

    # --- what the queue needs -----------------------------------------------------------------

    def run(self, terms: Terms, events: pa.Table | FewEvents) -> Called:
        """Run events as one batch, up to the sync."""
        return self._run(terms, events)

    def wait(self, terms: Terms, epoch: int) -> None:
        """Return when the epoch is durable."""
        self._wait(terms, epoch)

    def ended(self, key: str, ended: Result | BaseException) -> None:
        """A keyed call has its result, which is durable, or the error that is its own."""
        if isinstance(ended, BaseException):
            self._once.fail(key, ended)
        else:
            self._once.keep(key, ended)

    # --- one after another --------------------------------------------------------------------

    def _prepare(self, handed: HandedIn, calls: Sequence[Call]) -> dict[int, Future[Result]]:
        """Give it what is to be run of the calls, and the errors of those that are not; returns
        what is shared with others."""
        turns: list[Turn] = []
        answers: list[Any] = [None] * len(calls)
        shared: dict[int, Future[Result]] = {}
        for place, call in enumerate(calls):
            try:
                turn = self._turn(place, call)
                promise = self._claimed(turn, handed)
            except HeadgateError as error:
                answers[place] = error
                continue
            if promise is None:
                turns.append(turn)
            else:
                shared[place] = promise
        handed.turns, handed.answers = turns, answers
        return shared

    def _claimed(self, turn: Turn, owner: HandedIn) -> Future[Result] | None:
        return None if turn.key is None else self._once.claim(*turn.key, owner)

    def _abandon(self, owner: HandedIn, calls: Sequence[Call], error: BaseException) -> None:
        """Nothing of them was handed in: whoever waits for one of their keys must not for ever."""
        if not isinstance(error, Exception):
            error = StoreError("the call was interrupted before it was run")
        for call in calls:
            if call.key is not None:
                self._once.abandon(call.key, owner, error)

    def _turn(self, place: int, call: Call) -> Turn:
        """The call as it is to be run; what is wrong with its columns is said here."""
        try:
            terms, reader, transaction = self._known[call.transaction]
        except (KeyError, TypeError):  # it is the first of them, or no transaction
            terms, reader, transaction = self._know(call.transaction)
        if call.columns.keys() != reader.names:
            check_call(transaction, call.columns)
        words = reader.read(call.columns)
        if call.key is None:
            return Turn(place, terms, call.columns, words)
        digest = digest_of(transaction, call.columns, self._called.get(transaction.name))
        return Turn(place, terms, call.columns, words, (call.key, digest))

    def _know(self, given: Transaction | str) -> tuple[Terms, CallReader, Transaction]:
        """What is the same for all calls of a transaction, by what it was handed in as."""
        transaction = find_transaction(given, self._transactions)
        if transaction not in self._known:
            kept = of_calls(transaction), CallReader(transaction.event), transaction
            self._known[transaction] = kept
        self._known[given] = self._known[transaction]
        return self._known[given]

    def _run_all(self, handed: HandedIn) -> None:
        if self._lock.is_mine():  # it must not wait for who waits for the lock
            self._run_here(handed)
        else:
            self._queue.run(handed)

    def _run_here(self, handed: HandedIn) -> None:
        taken = Round([handed])
        try:
            taken.run()
        except BaseException as error:
            taken.fail(error)
            raise
        self._finish(taken)

    def _finish(self, taken: Round) -> None:
        try:
            self._queue.finish(taken)
        except BaseException as error:
            taken.fail(error)
            if not isinstance(error, Exception):
                raise


def _kept(value: Any) -> Any:
    """A value that its caller may change before it is read, as it is now."""
    if isinstance(value, list | bytearray):
        return value[:]
    return value.copy() if isinstance(value, np.ndarray) else value


def _answers(handed: HandedIn, shared: Mapping[int, Future[Result]]) -> list[Result | Exception]:
    """What each call was answered, those too that someone else ran."""
    for place, promise in shared.items():
        handed.answers[place] = promise.exception() or promise.result()
    for answer in handed.answers:
        if answer is None:
            raise StoreError("the call was interrupted, and may have run")
        if not isinstance(answer, Result | Exception):
            raise answer  # the power is gone: not an error of the call
    return handed.answers
