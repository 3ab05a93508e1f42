"""Who is to lead waits for callers that were just answered; whatever happens, no one is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headgate as hg
from headgate.engine.calls.calling import Call
from headgate.engine.calls.queue import HandedIn, Queue
from tests.unit.engine.test_calls import PROGRAM, ROWS, accounts, move, wait_for

FOR_EVER = 600.0  # seconds: a test that waits for so long has failed


@pytest.fixture
def engine() -> Iterator[hg.Engine]:
    with hg.open(None, **PROGRAM) as found:
        found.load(accounts, ROWS)
        found.call(move, src=0, dst=1, amount=0)
        yield found


def queue_of(engine: hg.Engine, expected: int, patience: float = FOR_EVER) -> Queue:
    """The queue, as if so many callers had just been answered."""
    queue = engine.calls._queue
    queue._expected, queue._patience = expected, patience
    return queue


def ask(engine: hg.Engine, found: list[Any], amount: int = 1) -> threading.Thread:
    """A thread that calls, and keeps what it is answered."""

    def work() -> None:
        try:
            found.append(engine.call(move, src=0, dst=1, amount=amount))
        except hg.StoreError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


class Gate:
    """The gate of who gathers, with something that happens while it waits there."""

    def __init__(self, handed: HandedIn, happens: Callable[[], Any]) -> None:
        self._gate, self._happens = handed.gate, happens
        self.release = handed.gate.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout > 0:
            self._happens()
            return False  # the time is over, too
        return self._gate.acquire(blocking)


def gathering(engine: hg.Engine, happens: Callable[[], Any]) -> HandedIn:
    """A call of this thread that gathers, while something happens."""
    handed = HandedIn(engine.calls, (), [])
    engine.calls._prepare(handed, [Call(move, {"src": 0, "dst": 1, "amount": 2})])
    handed.gate = Gate(handed, happens)  # type: ignore[assignment]
    return handed


def test_who_makes_the_number_complete_leads_and_all_share_an_epoch(engine: hg.Engine) -> None:
    queue, run, leaders, found = queue_of(engine, 3), engine.calls.run, [], list[Any]()

    def noted(*given: Any) -> Any:
        leaders.append(threading.get_ident())
        return run(*given)

    engine.calls.run = noted  # type: ignore[method-assign]
    threads = [ask(engine, found), ask(engine, found)]
    wait_for(lambda: len(queue._waiting) == 2)
    found.append(engine.call(move, src=0, dst=1, amount=1))
    for thread in threads:
        thread.join(60)
    assert leaders == [threading.get_ident()]
    assert sorted(answer.left for answer in found) == [17, 18, 19]
    assert len({answer.epoch for answer in found}) == 1


def test_who_gathers_leads_when_no_one_comes(engine: hg.Engine) -> None:
    queue = queue_of(engine, 3, 0.001)
    assert engine.call(move, src=0, dst=1, amount=1).left == 19
    assert (queue._expected, queue._leader, queue._gatherer, queue._rounds) == (1, None, None, {})


def test_a_call_that_no_one_waits_for_has_who_gathers_lead(engine: hg.Engine) -> None:
    queue, found = queue_of(engine, 2), list[Any]()
    thread = ask(engine, found)
    wait_for(lambda: queue._gatherer is not None)
    assert engine.submit(move, src=0, dst=1, amount=1).result(60).left == 18
    thread.join(60)
    assert found[0].left == 19


def test_a_thread_of_the_queue_gathers_until_a_caller_leads_for_it(engine: hg.Engine) -> None:
    engine.submit(move, src=0, dst=1, amount=0).result(60)
    queue = queue_of(engine, 2)
    promise = engine.submit(move, src=0, dst=1, amount=1)
    wait_for(lambda: queue._gatherer is not None)
    gatherer = queue._gatherer
    assert engine.call(move, src=0, dst=1, amount=1).left == 18
    assert promise.result(60).left == 19
    assert gatherer is not None
    gatherer.gate.release()  # so that it need not wait to the end
    assert engine.submit(move, src=0, dst=1, amount=1).result(60).left == 17


def test_closing_has_who_gathers_lead(engine: hg.Engine) -> None:
    queue, found = queue_of(engine, 2), list[Any]()
    thread = ask(engine, found)
    wait_for(lambda: queue._gatherer is not None)
    engine.close()
    thread.join(60)
    assert found[0].left == 19


def test_ctrl_c_to_who_gathers_passes_the_lead_on(engine: hg.Engine) -> None:
    queue, found, threads = queue_of(engine, 3), list[Any](), list[threading.Thread]()

    def interrupted() -> None:
        threads.append(ask(engine, found))
        wait_for(lambda: len(queue._waiting) == 2)
        queue._expected = 1  # so that the next one does not gather
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.run(gathering(engine, interrupted))
    threads[0].join(60)
    assert found[0].left == 19  # the one that was interrupted did not run
    assert (queue._leader, queue._gatherer, queue._rounds) == (None, None, {})


def test_who_is_told_to_lead_too_late_to_hear_it_leads_once(engine: hg.Engine) -> None:
    """A call makes the number complete just when the time of who gathers is over."""
    queue, promises = queue_of(engine, 2), list[Any]()
    handed = gathering(engine, lambda: promises.append(engine.submit(move, src=0, dst=1, amount=1)))
    queue.run(handed)
    assert handed.answers[0].left == 18
    assert promises[0].result(60).left == 17
    assert engine.call(move, src=0, dst=1, amount=1).left == 16


def test_who_gathered_for_another_takes_nothing_and_is_answered(engine: hg.Engine) -> None:
    """The time of who gathers is over, and someone else leads by now, but has taken no calls."""
    queue, found, threads = queue_of(engine, 2), list[Any](), list[threading.Thread]()
    take, takers, second = queue._take, list[int](), threading.Event()

    def noted(*given: Any) -> None:
        takers.append(threading.get_ident())
        if len(takers) == 1:
            second.wait(0.2)  # there is none
        else:
            second.set()
        take(*given)

    def overtaken() -> None:
        threads.append(ask(engine, found))
        wait_for(lambda: bool(takers))

    queue._take = noted  # type: ignore[method-assign]
    handed = gathering(engine, overtaken)
    queue.run(handed)
    threads[0].join(60)
    assert takers == [threads[0].ident]
    assert (handed.answers[0].left, found[0].left) == (18, 17)
    assert handed.answers[0].epoch == found[0].epoch


def test_the_handler_of_a_signal_may_close_the_engine_while_it_gathers(engine: hg.Engine) -> None:
    queue = queue_of(engine, 2)
    handed = gathering(engine, engine.calls.close)
    queue.run(handed)
    assert handed.answers[0].left == 18
