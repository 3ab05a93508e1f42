"""A promise is a future in all that one can do with a future, kept early or late."""

from __future__ import annotations

import asyncio
import concurrent.futures as futures
import threading
from collections.abc import Callable

import pytest

from headgate.engine.calls.promise import Promise
from headgate.engine.results import Result

RESULT = Result({"outcome": "committed"})
ROUNDS = 300


def test_a_promise_kept_before_anyone_asks_gives_its_result() -> None:
    promise = Promise()
    assert promise.begin() and promise.running() and not promise.done()
    promise.set_result(RESULT)
    assert promise.done() and not promise.cancelled() and not promise.running()
    assert promise.result() is RESULT and promise.exception() is None
    assert "finished" in repr(promise)


def test_a_promise_that_failed_raises_its_error() -> None:
    promise = Promise()
    assert promise.begin()
    promise.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        promise.result()
    assert isinstance(promise.exception(), ValueError)


def test_a_promise_can_be_cancelled_until_it_begins() -> None:
    early, late = Promise(), Promise()
    assert early.cancel() and not early.begin()
    assert early.cancelled() and early.done()
    with pytest.raises(futures.CancelledError):
        early.result()
    assert late.begin() and not late.cancel()


@pytest.mark.parametrize("again", [Promise.set_result, Promise.set_exception])
def test_a_promise_is_kept_once(again: Callable[[Promise, object], None]) -> None:
    promise = Promise()
    assert promise.begin()
    promise.set_result(RESULT)
    with pytest.raises(futures.InvalidStateError):
        again(promise, RESULT if again is Promise.set_result else ValueError())
    assert promise.result() is RESULT


def test_waiting_for_a_promise_ends_at_its_time_limit() -> None:
    with pytest.raises(TimeoutError):
        Promise().result(timeout=0.001)


def test_callbacks_are_called_once_whether_they_come_before_the_result_or_after() -> None:
    promise, seen = Promise(), list[Result]()
    promise.add_done_callback(lambda one: seen.append(one.result()))
    promise.begin()
    promise.set_result(RESULT)
    promise.add_done_callback(lambda one: seen.append(one.result()))
    assert seen == [RESULT, RESULT]


def test_promises_work_with_wait_and_as_completed_and_asyncio() -> None:
    promises = [Promise() for _ in range(4)]
    for promise in promises[:2]:
        promise.begin()
        promise.set_result(RESULT)
    threading.Timer(0.01, lambda: [one.set_result(RESULT) for one in promises[2:]]).start()
    assert len(list(futures.as_completed(promises))) == 4
    assert futures.wait(promises).not_done == set()

    async def gathered() -> list[Result]:
        late = Promise()
        threading.Timer(0.01, lambda: late.set_result(RESULT)).start()
        return await asyncio.gather(*map(asyncio.wrap_future, [*promises, late]))

    assert asyncio.run(gathered()) == [RESULT] * 5


@pytest.mark.parametrize("ask", ["result", "callback", "cancel", "done"])
def test_who_asks_while_a_promise_is_kept_is_always_told(ask: str) -> None:
    for _ in range(ROUNDS):
        promise, told, together = Promise(), threading.Event(), threading.Barrier(2)

        def asking(promise: Promise, told: threading.Event, together: threading.Barrier) -> None:
            together.wait()
            if ask == "callback":
                promise.add_done_callback(lambda _: told.set())
                return
            while ask == "done" and not promise.done():
                pass
            if (ask == "cancel" and promise.cancel()) or promise.result(timeout=10) is RESULT:
                told.set()

        thread = threading.Thread(target=asking, args=(promise, told, together))
        thread.start()
        together.wait()
        if promise.begin():
            promise.set_result(RESULT)
        thread.join()
        assert told.wait(10)
