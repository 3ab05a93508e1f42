"""Calling: calls that are handed in together run together: few batches, few epochs, one sync.

Each is a transaction of its own with an answer of its own: that one is refused is no error of the
others. Calls of one transaction become one batch, in the order in which they were handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headgate.engine.calls.once import Once
from headgate.engine.calls.remembered import digest_of, with_keys
from headgate.engine.events import check_call, from_dicts
from headgate.engine.journal import EngineLock, Guard
from headgate.engine.results import Result, as_results
from headgate.errors import HeadgateError, InputError
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


class Turn(NamedTuple):
    """A call that is to be run, with its place among those that were handed in."""

    place: int
    call: Call
    transaction: Transaction
    digest: str | None


class Ran(NamedTuple):
    """A batch that was run, and is not yet known to be durable."""

    turns: Sequence[Turn]
    results: pa.Table
    rows: np.ndarray  # the place in `turns` of each result


Answer = Result | Exception


@dataclass
class Begun:
    """Calls that were run: all but the wait for their last epoch to be durable."""

    answers: list[Any]
    sharing: dict[int, Future[Result]]  # by place: the same call, run by someone else or by us
    ran: list[Ran] = field(default_factory=list)
    epoch: int | None = None


# Runs events of one transaction as one batch: results, epoch, and the event each result is of.
Run = Callable[[Transaction, pa.Table], tuple[pa.Table, int, np.ndarray]]


class Calling:
    """The calls of one engine; any thread may hand some in."""

    def __init__(
        self,
        run: Run,
        guard: Guard,
        lock: EngineLock,
        once: Once,
        transactions: Mapping[str, Transaction],
        called: Mapping[str, str],
    ) -> None:
        self._transactions = transactions
        self._called = called  # by name: what it was called first, where that was another name
        self._run = run
        self._guard = guard
        self._lock = lock
        self._once = once

    def call_all(self, calls: Sequence[Call]) -> list[Answer]:
        """Run the calls and answer each, with its result or with the error that is its own."""
        return self.finish(self.begin(calls))

    def begin_at_once(self, calls: Sequence[Call]) -> Begun | None:
        """Run the calls if no other thread holds the engine; None when one does."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self.begin(calls)
        finally:
            self._lock.release()

    def begin(self, calls: Sequence[Call]) -> Begun:
        """Run the calls, up to the sync of the log; `finish` must follow."""
        self._guard.check()
        answers: list[Any] = [None] * len(calls)
        sharing: dict[int, Future[Result]] = {}
        groups: dict[str, list[Turn]] = {}
        for place, call in enumerate(calls):
            try:
                transaction = find_transaction(call.transaction, self._transactions)
                check_call(transaction, call.columns)
                digest = self._claim(place, call, transaction, sharing)
            except HeadgateError as error:
                answers[place] = error
                continue
            if place not in sharing:
                turn = Turn(place, call, transaction, digest)
                groups.setdefault(call.name, []).append(turn)
        begun = Begun(answers, sharing)
        self._run_groups(list(groups.values()), begun)
        return begun

    def finish(self, begun: Begun) -> list[Answer]:
        """Wait until all is durable, and answer."""
        if begun.epoch is not None:
            self._answer(begun.ran, begun.epoch, begun.answers)
        for place, promise in begun.sharing.items():
            begun.answers[place] = promise.exception() or promise.result()
        return begun.answers

    def _claim(
        self,
        place: int,
        call: Call,
        transaction: Transaction,
        sharing: dict[int, Future[Result]],
    ) -> str | None:
        if call.key is None:
            return None
        digest = digest_of(transaction, call.columns, self._called.get(transaction.name))
        promise = self._once.claim(call.key, digest)
        if promise is not None:
            sharing[place] = promise
        return digest

    def _run_groups(self, groups: list[list[Turn]], begun: Begun) -> None:
        ran, answers = begun.ran, begun.answers
        while groups:
            turns = groups.pop(0)
            try:
                results, begun.epoch, rows = self._run_batch(turns)
            except InputError as error:
                if len(turns) > 1:  # one cannot be read; it must not fail the others
                    groups[:0] = [[turn] for turn in turns]
                else:
                    self._fail(turns, error, answers)
            except BaseException as error:
                self._fail(turns, error, answers)
                if not isinstance(error, Exception):
                    left = [one.turns for one in ran] + groups
                    self._fail([turn for turns in left for turn in turns], error, answers)
                    raise
            else:
                ran.append(Ran(turns, results, rows))

    def _run_batch(self, turns: Sequence[Turn]) -> tuple[pa.Table, int, np.ndarray]:
        transaction = turns[0].transaction
        columns = [turn.call.columns for turn in turns]
        events = from_dicts(columns, transaction.event, f"call {transaction.name!r}")
        if any(turn.digest is not None for turn in turns):
            keys = [turn.call.key for turn in turns]
            events = with_keys(events, keys, [turn.digest for turn in turns])
        return self._run(transaction, events)

    def _answer(self, ran: Sequence[Ran], epoch: int, answers: list[Any]) -> None:
        """Once the last epoch is durable all are."""
        try:
            self._guard.wait(epoch)
        except BaseException as error:
            for one in ran:
                self._fail(one.turns, error, answers)
            if not isinstance(error, Exception):
                raise
            return
        for one in ran:
            for row, result in zip(one.rows.tolist(), as_results(one.results), strict=True):
                turn = one.turns[row]
                answers[turn.place] = result
                if turn.call.key is not None:
                    self._once.keep(turn.call.key, result)

    def _fail(self, turns: Sequence[Turn], error: BaseException, answers: list[Any]) -> None:
        for turn in turns:
            answers[turn.place] = error
            if turn.call.key is not None:
                self._once.fail(turn.call.key, error)
