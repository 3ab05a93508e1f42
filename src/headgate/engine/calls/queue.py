"""The queue of calls: those that wait at the same time share a batch, an epoch and a sync.

No thread stands between a caller and the engine. Who finds no one leading leads: takes what has
gathered, its own call with it, runs it, and waits for the disk for all of it. Who comes meanwhile
waits, and the first of them leads next; so calls run in the order in which they were handed in. A
caller who is alone runs its call as if there were no queue. Calls that no one waits for (`submit`)
are led by two threads of the queue's own, which begin with the first of them.

Callers that were just answered may come again at once, and a round of all of them costs little more
than a round of one. So who is to lead waits a moment for as many as there were the last time; and
who makes their number complete leads in its place, as it runs already and need not be woken.

Invariants: there is a leader whenever calls wait; who leaves, by an error or by Ctrl-C, passes that
on. What was handed in is answered, also when the engine is closed. The queue holds an engine only
while calls of it are on their way: one that is dropped can go.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import InvalidStateError
from itertools import islice
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headgate.engine.batch import Called
from headgate.engine.calls.promise import Promise
from headgate.engine.calls.values import TOGETHER_MAX, FewEvents, Word, events_table
from headgate.engine.results import Result
from headgate.engine.terms import Terms
from headgate.errors import InputError, StoreError, describe

GATHER_SECONDS_MAX = 0.0005  # so long a leader waits for callers that were just answered
MANY = 32  # calls that wait: enough for a round of their own while others are synced
THREADS = 2  # that lead what no one waits for: one runs while the other waits for the disk


_NO_GATE = threading.Lock()  # of calls that no one waits for


class Runner(Protocol):
    """The engine, as far as calls of it on their way need it."""

    def run(self, terms: Terms, events: pa.Table | FewEvents) -> Called:
        """Run events as one batch, up to the sync."""
        ...

    def wait(self, terms: Terms, epoch: int) -> None:
        """Return when the epoch is durable."""
        ...

    def ended(self, key: str, ended: Result | BaseException) -> None:
        """A keyed call has its result, which is durable, or the error that is its own."""
        ...


class Turn(NamedTuple):
    """One call that is to be run."""

    place: int  # among the answers of those who handed it in
    terms: Terms
    columns: Mapping[str, Any]
    words: Sequence[Word | None] | None  # the same as they are stored, where that is plain
    key: tuple[str, str] | None = None  # and what tells its call from another


class HandedIn:
    """Calls that one caller handed in together, and what they were answered."""

    __slots__ = ("answers", "gate", "is_ended", "is_queued", "promise", "runner", "turns")

    def __init__(
        self,
        runner: Runner,
        turns: Sequence[Turn],
        answers: list[Any],
        promise: Promise | None = None,
    ) -> None:
        self.runner: Runner = runner
        self.turns: Sequence[Turn] = turns
        self.answers: list[Any] = answers  # by place: a result or an error, once there is one
        self.promise: Promise | None = promise  # of the one call, when no one waits for it
        self.is_ended: bool = False
        self.is_queued: bool = False  # from then on the queue sees to their answers
        self.gate: threading.Lock = _NO_GATE
        if promise is None:  # someone waits: it is shut until they are answered, or are to lead
            self.gate = threading.Lock()
            self.gate.acquire()

    def is_still_wanted(self) -> bool:
        """Whether the promise was not cancelled; from now on it cannot be."""
        if self.promise is not None and not self.promise.begin():
            self.turns, self.is_ended = (), True
        return not self.is_ended

    def end(self) -> None:
        """Tell who handed them in that they are answered; once, however often it is called."""
        if self.is_ended:
            return
        if self.promise is None:
            self.is_ended = True
            self.gate.release()
            return
        answer = self.answers[0]
        with contextlib.suppress(InvalidStateError):  # it was told, and Ctrl-C came right then
            if isinstance(answer, BaseException):
                self.promise.set_exception(answer)
            else:
                self.promise.set_result(answer)
        self.is_ended = True


Waiting = tuple[HandedIn, Turn]


class Ran(NamedTuple):
    """What ran as one epoch, to be answered once that is durable."""

    waiting: Sequence[Waiting]
    called: Called


class Round:
    """The calls that one leader took: run one after another, waited for and answered together."""

    def __init__(self, taken: Sequence[HandedIn] = ()) -> None:
        self.taken: Sequence[HandedIn] = taken
        self._ran: list[Ran] = []
        self._is_durable = False

    def run(self) -> None:
        """Run all of them, up to the sync."""
        wanted = [one for one in self.taken if one.promise is None or one.is_still_wanted()]
        for group in _groups(wanted):
            self._run_together(group)

    def _run_together(self, group: Sequence[Waiting]) -> None:
        """Run calls of the same terms as one batch; one that cannot be read fails alone."""
        try:
            events = _events(group)  # which may raise anything: a value may be of any class
            (handed, turn), *_ = group
            try:
                self._ran.append(Ran(group, handed.runner.run(turn.terms, events)))
            except InputError:
                raise
            except Exception as error:
                for one in group:
                    self._answer(one, error)
        except Exception as error:
            if len(group) == 1:
                self._answer(group[0], error)
            for one in group if len(group) > 1 else ():
                self._run_together([one])

    def wait(self) -> None:
        """Return when all that ran is durable: once the last epoch is, all are."""
        if self._ran:
            (handed, turn), *_ = self._ran[-1].waiting
            handed.runner.wait(turn.terms, self._ran[-1].called.epoch)
        self._is_durable = True

    def answer(self) -> None:
        """Give each call its result."""
        for waiting, (_, results) in self._ran:
            for one, result in zip(waiting, results(), strict=True):
                self._answer(one, result)

    def fail(self, error: BaseException) -> None:
        """Give those that have none yet this error; Ctrl-C is of the thread that it came to."""
        if self._is_durable:
            self.answer()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            error = StoreError(f"the call was interrupted, and may have run ({describe(error)})")
        for handed in self.taken:
            for turn in handed.turns:
                if handed.answers[turn.place] is None:
                    self._answer((handed, turn), error)

    def _answer(self, waiting: Waiting, answer: Result | BaseException) -> None:
        handed, turn = waiting
        handed.answers[turn.place] = answer
        if turn.key is not None:
            handed.runner.ended(turn.key[0], answer)

    def end(self) -> None:
        """Tell all of them; Ctrl-C in the middle leaves no one waiting."""
        try:
            for handed in self.taken:
                handed.end()
        except BaseException:
            for handed in self.taken:
                handed.end()
            raise


def _groups(taken: Sequence[HandedIn]) -> Iterator[list[Waiting]]:
    """The calls in order, those of the same terms that stand together as one group.

    Of calls that one caller handed in together, those of the same terms stand together.
    """
    group: list[Waiting] = []
    for handed in taken:
        turns = handed.turns
        if len(turns) > 1 and len({id(turn.terms) for turn in turns}) > 1:
            places = {id(turn.terms): place for place, turn in reversed([*enumerate(turns)])}
            turns = sorted(turns, key=lambda turn: places[id(turn.terms)])
        for turn in turns:
            if group and group[-1][1].terms is not turn.terms:
                yield group
                group = []
            group.append((handed, turn))
    if group:
        yield group


def _events(group: Sequence[Waiting]) -> pa.Table | FewEvents:
    _, first = group[0]
    columns, keys = [turn.columns for _, turn in group], [turn.key for _, turn in group]
    rows = [turn.words for _, turn in group if turn.words is not None]
    if len(rows) == len(group) <= TOGETHER_MAX:
        return FewEvents(rows, columns, keys)
    return events_table(first.terms.route.transactions[0], columns, keys)


_OFFERED = object()  # it leads: whichever of the queue's own threads comes first


class OwnThread:
    """One of the queue's own threads, while it leads."""

    def __init__(self) -> None:
        self.gate: threading.Lock = threading.Lock()
        self.gate.acquire()


class Queue:
    """The calls of one engine that wait, and who leads.

    Ctrl-C comes where Python calls something or has called it, and not between plain assignments:
    who leads and who has taken what is changed by such, so that at no moment no one leads.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._disk = threading.Lock()  # for who waits for the disk: rounds become durable in turn
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Guarded by _lock:
        self._waiting: deque[HandedIn] = deque()
        self._leader: object | None = None
        self._gatherer: HandedIn | OwnThread | None = None  # it leads, and waits for others to come
        self._rounds: dict[object, int] = {}  # who takes calls and has not told them, its thread
        self._expected = 1  # how many callers were answered last: they may come again at once
        self._patience = 0.0  # so long to wait for them: not longer than a round takes
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    # --- handing in ---------------------------------------------------------------------------

    def run(self, handed: HandedIn) -> None:
        """Return when the calls are answered; this thread may have to run them, and others."""
        try:
            is_to_lead = self._put(handed)
            while not handed.is_ended:
                if not is_to_lead:
                    handed.gate.acquire()  # until they are answered, or are to lead
                if self._leader is handed and self._gather(handed):
                    self._lead(handed)
                is_to_lead = False
        finally:
            self._leave(handed)

    def submit(self, handed: HandedIn) -> None:
        """Hand in a call that no one waits for."""
        self._put(handed)

    def lead_at_once(self, handed: HandedIn) -> bool:
        """Lead with these calls if no others are on their way; `pass_on` and `end` must follow."""
        with self._lock:
            self._check_open()
            if self._leader is not None or self._waiting:
                return False
            self._leader = handed
            self._rounds[handed] = 0
            return True

    def pass_on(self, leader: object) -> None:
        """Lead no more."""
        with self._lock:
            if self._leader is leader:
                self._choose()

    def finish(self, taken: Round) -> None:
        """Wait until a round is durable, and answer; the store is to see one of them at a time.

        It takes who waits for the disk for as many threads as will come the next time, and waits
        for them (durability "group"); here the round behind already waited for the one before it.
        """
        with self._disk:
            taken.wait()
        taken.answer()

    def end(self, leader: object) -> None:
        """The calls of a round are answered."""
        with self._lock:
            self._rounds.pop(leader, None)
            if self._is_closed:
                self._changed.notify_all()

    def _put(self, handed: HandedIn) -> bool:
        """Wait among the others; whether this caller is to lead at once."""
        with self._lock:
            self._check_open()
            try:
                handed.is_queued = True
                self._waiting.append(handed)
            except BaseException:  # Ctrl-C: who claimed keys must know whether they are here
                handed.is_queued = handed in self._waiting
                raise
            if self._leader is None:
                if handed.promise is None:
                    self._leader = handed
                    return True
                self._offer()
            elif self._gatherer is not None and len(self._waiting) >= self._expected:
                if handed.promise is not None:
                    self._end_gathering(self._gatherer)
                    return False
                self._rounds.pop(self._gatherer, None)
                self._gatherer, self._leader = None, handed
                return True
            return False

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError("the engine is stopped: it was closed; open it again")

    def _leave(self, handed: HandedIn) -> None:
        """However it ended: what was not taken is not run, and another leads."""
        if handed.is_ended and self._leader is not handed and handed not in self._rounds:
            return
        with self._lock:
            is_withdrawn = handed in self._waiting
            if is_withdrawn:
                self._waiting.remove(handed)
            self._rounds.pop(handed, None)
            if self._leader is handed:
                self._choose()
        if is_withdrawn:  # else who took them answers them, though no one waits any more
            Round([handed]).fail(StoreError("the call was interrupted before it was run"))

    def _choose(self) -> None:
        """Have the first of those who wait lead; the lock is held."""
        self._gatherer = None
        if not self._waiting:
            self._leader = None
            if self._is_closed:
                self._changed.notify_all()
            return
        first = self._waiting[0]
        if first.promise is not None:
            self._offer()
            return
        self._leader = first
        first.gate.release()

    # --- leading ------------------------------------------------------------------------------

    def _gather(self, leader: HandedIn | OwnThread) -> bool:
        """Wait a moment for those who were just answered; whether it is still the one to lead."""
        with self._lock:
            if self._is_closed or len(self._waiting) >= self._expected:
                return True
            self._rounds[leader] = threading.get_ident()
            self._gatherer = leader
        is_told = leader.gate.acquire(timeout=self._patience)
        with self._lock:
            if self._leader is not leader:
                return False
            self._gatherer = None
            if not is_told:  # it may have been just now: the gate is shut while it leads
                leader.gate.acquire(blocking=False)
            return True

    def _end_gathering(self, gatherer: HandedIn | OwnThread) -> None:
        """Have it lead with those that are there; the lock is held."""
        self._gatherer = None
        gatherer.gate.release()

    def _lead(self, leader: object) -> None:
        """Take what has gathered, run it, pass the lead on, and answer once it is durable."""
        taken, began = Round(), self._now()
        try:
            self._take(leader, taken)
            taken.run()
            self._pass_on_early(leader, len(taken.taken))
            self.finish(taken)
        except BaseException as error:
            taken.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            try:
                # Before anyone is told: who is may come again at once, from this very thread.
                self._end_round(leader, len(taken.taken), self._now() - began)
            finally:
                taken.end()

    def _take(self, leader: object, taken: Round) -> None:
        """Give the round what has gathered, in order."""
        me = threading.get_ident()
        with self._lock:
            self._rounds[leader] = me
            left: deque[HandedIn] = deque()
            if len(self._waiting) > TOGETHER_MAX:
                left.extend(islice(self._waiting, TOGETHER_MAX, None))
                first = list(islice(self._waiting, TOGETHER_MAX))
                self._waiting, taken.taken = left, first
            else:
                self._waiting, taken.taken = left, self._waiting

    def _pass_on_early(self, leader: object, count: int) -> None:
        """Let another lead while this round is synced, where many wait, or as many as were taken.

        Where fewer do it is better that they wait for those who are answered first: all of them
        then share the next sync. No more than one round is behind.
        """
        with self._lock:
            if (
                self._leader is leader
                and len(self._rounds) == 1
                and len(self._waiting) >= min(count, MANY)
            ):
                self._choose()

    def _end_round(self, leader: object, count: int, seconds: float) -> None:
        with self._lock:
            self._rounds.pop(leader, None)
            self._expected = count + len(self._waiting)
            self._patience = min(seconds, GATHER_SECONDS_MAX)
            if self._leader is leader:
                self._choose()
            elif self._is_closed:
                self._changed.notify_all()

    # --- threads of its own -------------------------------------------------------------------

    def _offer(self) -> None:
        """Have one of the queue's own threads lead; the lock is held."""
        self._leader = _OFFERED
        while len(self._threads) < THREADS:
            thread = threading.Thread(target=self._serve, name="headgate-calls", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._changed.notify_all()

    def _serve(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Lead what is offered; False at the end. What it holds, it holds until it returns."""
        me = OwnThread()
        with self._lock:
            self._changed.wait_for(lambda: self._leader is _OFFERED or self._is_at_end)
            if self._leader is not _OFFERED:
                return False
            self._leader = me
        if self._gather(me):
            with contextlib.suppress(BaseException):  # whose calls they were has been told
                self._lead(me)
        return True

    @property
    def _is_at_end(self) -> bool:
        return self._is_closed and self._leader is None and not self._waiting

    def close(self) -> None:
        """Take no more, and return when what was handed in is answered."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
            if self._gatherer is not None:
                self._end_gathering(self._gatherer)
            if threading.get_ident() not in self._rounds.values():  # a signal's handler closes it
                self._changed.wait_for(lambda: self._is_at_end and not self._rounds)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
