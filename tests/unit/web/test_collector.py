"""The collector: what comes while others run waits, and then runs together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import headgate as hg
from headgate.engine.calls.calling import Call
from headgate.engine.results import Result
from headgate.errors import InputError
from headgate.web.collector import Collector

accounts = hg.Table("accounts", "id bigint, n bigint", key="id")


@hg.transaction(event="n bigint", compiled=False)
def add(event: Any, account: Any = accounts.at("n", create=True)) -> Any:
    account.n += 1


CALL = Call(add, {"n": 0})


class Calling:
    """An engine that is always busy, so that the collector's thread runs the calls."""

    def __init__(self, run: Any) -> None:
        self.call_all = run

    def begin_at_once(self, calls: Sequence[Call]) -> None:
        return None

    def finish(self, begun: Any) -> Any:
        raise AssertionError("nothing was begun")


def call(number: int) -> Call:
    return CALL._replace(columns={"n": number})


def test_calls_run_in_order_in_groups_with_answers_of_their_own() -> None:
    groups: list[int] = []
    may_go = threading.Event()

    def run(calls: Sequence[Call]) -> list[Result | Exception]:
        may_go.wait(60)
        groups.append(len(calls))
        numbers = [one.columns["n"] for one in calls]
        return [InputError(str(n)) if n % 5 == 4 else Result({"n": n}) for n in numbers]

    async def work() -> list[Any]:
        collector = Collector(Calling(run))
        first = collector.submit(call(0))
        await asyncio.sleep(0)  # it begins
        others = [collector.submit(call(number)) for number in range(1, 100)]
        await asyncio.sleep(0)
        assert collector.count == 99
        may_go.set()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        collector.close()
        return found

    found = asyncio.run(work())
    assert groups == [1, 99]
    for number, answer in enumerate(found):
        if number % 5 == 4:
            assert isinstance(answer, InputError) and str(answer) == str(number)
        else:
            assert answer["n"] == number


def test_who_goes_away_harms_no_other() -> None:
    def run(calls: Sequence[Call]) -> list[Result | Exception]:
        return [Result(dict(one.columns)) for one in calls]

    async def work() -> None:
        collector = Collector(Calling(run))
        promises = [collector.submit(call(number)) for number in range(10)]
        promises[3].cancel()
        for number, promise in enumerate(promises):
            if number != 3:
                assert (await promise)["n"] == number
        collector.close()

    asyncio.run(work())


def test_an_engine_that_fails_fails_those_who_wait() -> None:
    def run(calls: Sequence[Call]) -> list[Result | Exception]:
        raise RuntimeError("broken")

    async def work() -> None:
        collector = Collector(Calling(run))
        with pytest.raises(RuntimeError, match="broken"):
            await collector.submit(call(1))
        with pytest.raises(RuntimeError, match="broken"):
            await collector.submit(call(2))
        collector.close()

    asyncio.run(work())


def test_calls_that_are_known_run_in_the_loop_unless_the_engine_is_held() -> None:
    async def work(engine: hg.Engine) -> None:
        collector = Collector(engine.calls)
        for number in range(3):  # first in the thread, then here
            assert (await collector.submit(call(number))).committed
        held, may_go = threading.Event(), threading.Event()

        def hold() -> None:
            with engine._lock:
                held.set()
                may_go.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        promise = collector.submit(call(3))
        await asyncio.sleep(0.05)
        assert not promise.done()  # and yet the loop went on
        may_go.set()
        assert (await promise).committed
        thread.join()
        collector.close()

    with hg.open(None, tables=[accounts], transactions=[add]) as engine:
        asyncio.run(work(engine))
        assert engine.sql("select count(*) from accounts").rows() == [(4,)]


def test_a_stopped_engine_refuses_what_waits() -> None:
    async def work(engine: hg.Engine) -> None:
        collector = Collector(engine.calls)
        assert (await collector.submit(call(1))).committed
        engine.close()
        with pytest.raises(hg.StoreError, match="closed"):
            await collector.submit(call(2))
        with pytest.raises(hg.StoreError, match="closed"):
            await collector.submit(call(3))
        collector.close()

    with hg.open(None, tables=[accounts], transactions=[add]) as engine:
        asyncio.run(work(engine))


class Syncing:
    """An engine that runs calls at once, and whose disk takes as long as it is told to."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.finished: list[int] = []
        self.may_sync = threading.Semaphore(0)

    def call_all(self, calls: Sequence[Call]) -> Any:
        return [Result(dict(one.columns)) for one in calls]

    def begin_at_once(self, calls: Sequence[Call]) -> Any:
        self.ran.append(len(calls))
        return calls

    def finish(self, begun: Any) -> Any:
        assert self.may_sync.acquire(timeout=60)
        self.finished.append(len(begun))
        return self.call_all(begun)


def test_one_more_round_runs_while_another_is_synced_once_as_many_wait() -> None:
    engine = Syncing()

    async def work() -> None:
        collector = Collector(engine)
        await collector.submit(call(0))  # its transaction is known from now on
        first = [collector.submit(call(number)) for number in range(3)]
        await asyncio.sleep(0)
        few = [collector.submit(call(number)) for number in range(3, 5)]
        await asyncio.sleep(0)
        assert (engine.ran, collector.count) == ([3], 2)  # too few for a sync of their own
        enough = collector.submit(call(5))
        await asyncio.sleep(0)
        assert (engine.ran, collector.count) == ([3, 3], 0)
        late = [collector.submit(call(number)) for number in range(6, 16)]
        await asyncio.sleep(0)
        assert (engine.ran, collector.count) == ([3, 3], 10)  # two are on their way
        engine.may_sync.release(3)
        found = await asyncio.gather(*first, *few, enough, *late)
        assert [answer["n"] for answer in found] == list(range(16))
        collector.close()

    asyncio.run(work())
    assert engine.ran == engine.finished == [3, 3, 10]
